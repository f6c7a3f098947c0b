"""Codex's own locks, honoured in both directions (FORMAT 2.6).

Whoever has a thread open for writing holds an exclusive `flock` on `thread-writer-locks/<thread id>.lock`. The file
is made, tested and removed only while `.coordination.lock` is held, so that nobody locks a file that another
process is about to unlink. Both locks go with the process: a writer that died blocks nobody.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

from threadstore.errors import StoreError
from threadstore.folders import Folder, open_folder

FOLDER = "thread-writer-locks"
_COORDINATION = ".coordination.lock"
_PATIENCE = 5.0  # seconds to wait for the coordination lock, which is held for microseconds
_PAUSE = 0.005


class BusyError(StoreError):
    """Somebody else is writing the thread, or it changed while we looked. Nothing was changed by us."""


@contextlib.contextmanager
def writer_lock(root: str, thread_id: str) -> Iterator[int]:
    """Hold the writer's lock of a thread. Raises BusyError when another process has it.

    What it gives is the descriptor of the open file to which the lock belongs. Another process that has that open file,
    too, goes on holding the lock afterwards.
    """
    name = f"{thread_id}.lock"
    with open_folder(root, FOLDER) as folder:
        with _coordinated(folder):
            descriptor = folder.open(name, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise BusyError(
                        f"thread {thread_id} already has an active writer: another process has it open. "
                        "Close the thread there, then try again."
                    ) from error
                raise
        try:
            yield descriptor
        finally:
            with contextlib.ExitStack() as stack:
                stack.callback(os.close, descriptor)
                with contextlib.suppress(OSError, StoreError), _coordinated(folder):
                    stack.close()
                    _remove(folder, name)


def _remove(folder: Folder, name: str) -> None:
    """Remove the file of a lock that nobody holds any more. Raises OSError."""
    descriptor = folder.open(name, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.unlink(name)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _coordinated(folder: Folder) -> Iterator[None]:
    """Hold the lock around all lock files of a store."""
    descriptor = folder.open(_COORDINATION, os.O_RDWR | os.O_CREAT)
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BusyError("the store's coordination lock is held by another process; try again.") from None
                time.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)
