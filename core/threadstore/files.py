"""Opening files of a store safely: below its root, without following links, never blocking (FAULTS 24, 25).

The store's root, and `sessions` itself, may be links: people move them to other disks. Below that no link is
followed and only regular files are opened, so nothing in a store can lead out of it, hang on a FIFO or wake a
device.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from threadstore.errors import UnreadableError


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What tells one state of a file from another. Sizes in bytes, times in ns."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """From the answer of `stat`."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def open_regular(root: str, path: str) -> int:
    """A read-only descriptor of a regular file; `path` is relative to `root` (or absolute, for spool files).

    Every folder below the first one is opened without following links. Raises UnreadableError, whose `errno` is 0
    when the file is of another kind, and FileNotFoundError when it is not there.
    """
    folder, _, name = path.rpartition("/")
    try:
        place = _open_folder(root, folder) if folder else os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            descriptor = _open_quietly(name, place)
        finally:
            os.close(place)
    except OSError as error:
        raise _explain(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableError(f"{path} is not a regular file: it is left alone.")
    return descriptor


_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _open_quietly(name: str, place: int) -> int:
    """Open without moving the access time, which only the owner may ask for."""
    try:
        return os.open(name, _FLAGS | os.O_NOATIME, dir_fd=place)
    except PermissionError:
        return os.open(name, _FLAGS, dir_fd=place)


def _open_folder(root: str, folder: str) -> int:
    """A descriptor of a folder, reached part by part."""
    if folder.startswith("/"):
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    first, *rest = folder.split("/")
    place = os.open(os.path.join(root, first), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in rest:
        try:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
        finally:
            os.close(place)
        place = deeper
    return place


def _explain(path: str, error: OSError) -> OSError | UnreadableError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if error.errno in (errno.ELOOP, errno.ENXIO):
        return UnreadableError(f"{path} is a link or a special file, not a rollout: it is left alone.")
    reason = error.strerror or str(error)
    return UnreadableError(f"{path} can't be read: {reason}. Check its permissions.", error.errno or errno.EIO)


def pread_exactly(descriptor: int, length: int, offset: int) -> bytes:
    """`length` bytes at `offset`; fewer only where the file ends."""
    data = os.pread(descriptor, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    missing = length - len(data)
    while missing:
        data = os.pread(descriptor, missing, offset + length - missing)
        if not data:
            break
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def write(descriptor: int, data: bytes) -> tuple[int, OSError | None]:
    """Write all of it, in several steps where the system takes only a part. How many bytes it took, and why no more."""
    done = 0
    try:
        while done < len(data):
            done += os.write(descriptor, memoryview(data)[done:] if done else data)
    except OSError as error:
        return done, error
    return done, None


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it. Raises OSError."""
    _, error = write(descriptor, data)
    if error is not None:
        raise error
