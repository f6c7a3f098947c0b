"""The private folder for decoded copies: made at the mount, removed at the unmount, swept at the next mount after a
crash.

A folder is in use while somebody holds the lock on its `.lock` file.  The kernel drops that lock when the process
ends, however it ends, so what is not locked is left over.  Making and sweeping exclude each other by a second lock.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass

import platformdirs

log = logging.getLogger(__name__)

_PREFIX = "spool-"


@dataclass(frozen=True, slots=True)
class SpoolFolder:
    """A folder of ours; `lock` is the descriptor that keeps it from being swept."""

    path: str
    lock: int

    def remove(self) -> None:
        """Delete it and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def make(*avoid: str) -> SpoolFolder:
    """A new private folder (0700) in the user's cache, or where temporary files go when that can't be; below none of
    `avoid`.
    """
    for parent in (platformdirs.user_cache_dir("rolloutfs"), None):
        if parent is not None and any(_is_below(parent, folder) for folder in avoid):
            continue
        try:
            return _make_in(parent if parent is not None else _temporary())
        except OSError as error:
            if parent is None:
                raise
            log.info("%s can't be used as cache (%s)", parent, error)
    raise AssertionError("unreachable")


def _make_in(parent: str) -> SpoolFolder:
    os.makedirs(parent, mode=0o700, exist_ok=True)
    exclusive = os.open(
        os.path.join(parent, "sweep.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        fcntl.flock(exclusive, fcntl.LOCK_EX)
        _sweep(parent)
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        lock = os.open(os.path.join(path, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return SpoolFolder(path, lock)
    finally:
        os.close(exclusive)


def _sweep(parent: str) -> None:
    """Remove the folders that nobody holds."""
    for name in os.listdir(parent):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(parent, name)
        try:
            lock = os.open(os.path.join(path, ".lock"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            shutil.rmtree(path, ignore_errors=True)
            continue
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _temporary() -> str:
    """A folder for this user below /tmp (or $TMPDIR) that nobody else can have prepared."""
    path = os.path.join(tempfile.gettempdir(), f"rolloutfs-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    status = os.lstat(path)
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or os.path.islink(path):
        return tempfile.mkdtemp(prefix="rolloutfs-")
    return path


def _is_below(path: str, folder: str) -> bool:
    return f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(folder)}/")
