"""Open files of the store and the spool, shared by everything that reads them.

A handle pins the files that its content lies in, so that it can go on when they are renamed, replaced, compressed
or deleted.  Those that nobody pins stay open for a while, since a tool that reads one file of a thread soon reads
the next.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict

from rolloutfs.storefiles import StoreFiles

IDLE = 128  # unpinned files that are kept open
_FINGERPRINT = 256  # bytes


class OpenFile:
    """One open file; `pins` counts its users."""

    __slots__ = ("descriptor", "identity", "pins")

    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self.descriptor = descriptor
        self.identity = identity
        self.pins = 0


class OpenFiles:
    """Invariant: every file in `_files` is open; those without pins are in `_idle`, oldest first, at most `IDLE` of
    them.
    """

    def __init__(self, files: StoreFiles, idle: int = IDLE) -> None:
        self._opener = files
        self._limit = idle
        self._files: dict[tuple[int, int], OpenFile] = {}
        self._idle: OrderedDict[tuple[int, int], OpenFile] = OrderedDict()

    def pin(self, path: str, dev: int, ino: int) -> OpenFile:
        """The file of that identity. Raises ESTALE when another one lies at `path` by now, ENOENT when none does."""
        file = self._files.get((dev, ino))
        if file is None:
            descriptor = self._opener.open(path)
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != (dev, ino):
                os.close(descriptor)
                raise OSError(errno.ESTALE, "The file was replaced by another one", path)
            file = self._files[dev, ino] = OpenFile(descriptor, (dev, ino))
        file.pins += 1
        self._idle.pop(file.identity, None)
        return file

    def pin_guarded(
        self, path: str, dev: int, ino: int, limit: int, known: tuple[OpenFile, Guard] | None = None
    ) -> tuple[OpenFile, Guard]:
        """The same, with a guard of its first `limit` bytes. `known` is what this gave before: its guard serves on if
        the file hasn't been closed since. Raises OSError, and nothing is pinned: ESTALE when fewer bytes are there.
        """
        file = self.pin(path, dev, ino)
        try:
            guard = known[1] if known is not None and known[0] is file else Guard(file.descriptor, limit)
            if guard.broken:
                raise OSError(errno.ESTALE, "The file was cut meanwhile", path)
        except OSError:
            self.unpin(file)
            raise
        return file, guard

    def close_deleted(self) -> None:
        """Don't keep the disk space of files that were deleted, unless somebody reads them."""
        for file in [*self._idle.values()]:
            if not os.fstat(file.descriptor).st_nlink:
                self._close(file)

    def unpin(self, file: OpenFile) -> None:
        """One user less."""
        file.pins -= 1
        if file.pins:
            return
        self._idle[file.identity] = file
        if not os.fstat(file.descriptor).st_nlink:
            self._close(file)
        while len(self._idle) > self._limit:
            self._close(next(iter(self._idle.values())))

    def _close(self, file: OpenFile) -> None:
        del self._idle[file.identity], self._files[file.identity]
        os.close(file.descriptor)

    def __len__(self) -> int:
        return len(self._files)


class Guard:
    """Notices when the first `limit` bytes of an open file are no longer what they were (FAULTS 28).

    A log only grows.  One that was cut, or cut and written anew, under the same inode would give other bytes at the
    same offsets; serving them as the old content would be a lie.  Growth is told from a rewrite by the last bytes
    before `limit`, compared when size or mtime moved.
    """

    __slots__ = ("_descriptor", "_mark", "_stamp", "broken", "limit")

    def __init__(self, descriptor: int, limit: int) -> None:
        status = os.fstat(descriptor)
        self._descriptor = descriptor
        self.limit = limit
        self.broken = status.st_size < limit
        self._stamp = (status.st_size, status.st_mtime_ns)
        self._mark = self._bytes()

    def intact(self) -> bool:
        """False once a change of the guarded bytes was noticed, and from then on."""
        if self.broken:
            return False
        status = os.fstat(self._descriptor)
        stamp = (status.st_size, status.st_mtime_ns)
        if stamp != self._stamp:
            if status.st_size < self.limit or self._bytes() != self._mark:
                self.broken = True
                return False
            self._stamp = stamp
        return True

    def extend(self, limit: int) -> None:
        """Guard more bytes of a file that has grown."""
        self.limit = limit
        self._mark = self._bytes()

    def _bytes(self) -> bytes:
        start = max(self.limit - _FINGERPRINT, 0)
        return os.pread(self._descriptor, self.limit - start, start)
