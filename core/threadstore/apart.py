"""A write that no kill of this process cuts short.

The kernel looks for a SIGKILL between the pages of one write(2), so a process that is killed while it appends can leave
a part of a record. Therefore what must be there as a whole or not at all is written by a process that exists for this
one write: a copy of ours in a session of its own, which nobody has a reason to kill. It also has our locks, which are
those of an open file and not of a process, until the write is done; but no pipe, at the other end of which somebody may
wait for our end.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
from contextlib import suppress

from threadstore.files import write


def write_apart(descriptor: int, data: bytes) -> tuple[int, OSError | None]:
    """Append all of it to a file that is open for appending, and that nobody else appends to meanwhile. How many bytes
    are in the file now, and why not all of them are.
    """
    size = os.fstat(descriptor).st_size
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # also in the copy, for all of its life
    try:
        pid = os.fork()
        if pid == 0:
            _write_and_exit(descriptor, data)
    except OSError as error:  # no process to be had
        return 0, error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = 0
    with suppress(ChildProcessError):  # somebody ignores SIGCHLD: it has ended all the same
        _, status = os.waitpid(pid, 0)
    done = min(max(os.fstat(descriptor).st_size - size, 0), len(data))
    return done, None if done == len(data) else _error(status)


def _write_and_exit(descriptor: int, data: bytes) -> None:
    code = errno.EIO
    try:
        os.setsid()
        _close_pipes()
        _, error = write(descriptor, data)
        code = 0 if error is None else error.errno or code
    finally:
        os._exit(code)


def _close_pipes() -> None:
    with suppress(OSError):  # no /proc
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # that of the listing itself
                mode = os.fstat(int(name)).st_mode
                if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                    os.close(int(name))


def _error(status: int) -> OSError:
    code = os.waitstatus_to_exitcode(status)
    if code > 0:
        return OSError(code, os.strerror(code))
    why = f"ended by signal {-code}" if code else "ended, and nobody knows why"
    return OSError(errno.EIO, f"the process that was to write it has {why}")
