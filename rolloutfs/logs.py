"""Where the server writes what went wrong: to the terminal in the foreground, to a file in the background."""

from __future__ import annotations

import errno
import faulthandler
import logging
import os
import signal
import sys
from pathlib import Path
from urllib.parse import quote

import platformdirs

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LARGEST = 1 << 20  # bytes; a longer file is begun anew at the next mount
_LONGEST_NAME = 200


def log_file(mountpoint: str) -> Path:
    """The log of the server of a mountpoint, in the XDG state folder."""
    name = quote(os.fsencode(mountpoint.strip("/") or "root"), safe="").replace("%2F", "-")[-_LONGEST_NAME:]
    return Path(platformdirs.user_state_dir("rolloutfs")) / f"{name}.log"


def _is_news(record: logging.LogRecord) -> bool:
    """False where pyfuse3 tells that nobody waits for an answer: its program was killed, or the mount has ended."""
    return not (record.name == "pyfuse3" and "fuse_reply_" in str(record.msg) and record.args == _NOBODY)


_NOBODY = (os.strerror(errno.ENOENT),)


def to_terminal(level: int = logging.WARNING) -> None:
    """Log to stderr. SIGUSR1 writes the stack of every thread there."""
    logging.basicConfig(level=level, format=_FORMAT, stream=sys.stderr, force=True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_news)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def open_file(mountpoint: str, store: str) -> tuple[int, Path | None]:
    """A descriptor to log to, and the file that it writes to: None when there can't be one, and the log goes nowhere.

    To be called before the mount exists: the state folder could lie below the mountpoint. In the store nothing is made.
    """
    path = log_file(mountpoint)
    try:
        if path.resolve().is_relative_to(Path(store).resolve()):
            raise PermissionError(errno.EPERM, "the state folder lies inside the store")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        too_long = path.exists() and path.stat().st_size > _LARGEST
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_TRUNC if too_long else 0)
        return os.open(path, flags, 0o600), path
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), None


def to_file(target: int) -> None:
    """Send the log, and all that anything writes to stdout and stderr, to a descriptor, and nothing to stdin."""
    source = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in ((0, source), (1, target), (2, target)):
        os.dup2(descriptor, number)
    os.close(source)
    os.close(target)
    to_terminal()
