"""What the kernel was told last of files, as far as it is remembered: that is more than it can be asked for again.

A size is exact or a placeholder that is asked for again (FUSE 6.1). What is remembered here keeps a placeholder from
shrinking a file that somebody reads, and from emptying its page cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rolloutfs.lru import Recent
from rolloutfs.marks import Marks
from rolloutfs.outlines import KNOWN, OUTLINED


class Announced(NamedTuple):
    """What the kernel was told about an inode: bytes, ns, permission bits."""

    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int = 0o400


class Told:
    """By inode number."""

    def __init__(self) -> None:
        self._announced: Recent[int, Announced] = Recent(KNOWN)
        self._unsure: Recent[int, bool] = Recent(KNOWN)  # files of which the kernel may not know what was announced
        self._together: Recent[int, tuple[Mapping[int, int], tuple[int, int]]] = Recent(OUTLINED)  # see `put_together`
        #: One more than the sizes of files that the kernel asks for again and again, settled while the store is
        #: watched, until something happens to it.
        self._sizes = Marks()

    def get(self, ino: int) -> Announced | None:
        """What the kernel was told last, alone or with other files of its thread."""
        told = self._announced.get(ino)
        if told is None:
            together = self._together.get(ino & ~0xFF)
            size = None if together is None else together[0].get(ino & 0xFF)
            if together is not None and size is not None:
                told = Announced(size, *together[1])
        return told

    def put(self, ino: int, told: Announced) -> None:
        """Remember what the kernel was told."""
        self._announced.put(ino, told)

    def put_together(self, base: int, sizes: Mapping[int, int], times: tuple[int, int]) -> None:
        """The same of derived files of a thread by their slots; `base` is the number of the thread's folder."""
        for slot in sizes:
            self._announced.drop(base | slot)
        self._together.put(base, (sizes, times))

    def keep(self, ino: int) -> None:
        """What was told of a file stays so, although the others of its thread are told together."""
        told = self.get(ino)
        if told is not None:
            self._announced.put(ino, told)

    def doubt(self, ino: int) -> None:
        """The kernel may not know what it was told."""
        self._unsure.put(ino, True)

    def undoubt(self, ino: int) -> bool:
        """True if so; from now on whoever asked knows."""
        is_unsure = ino in self._unsure
        if is_unsure:
            self._unsure.drop(ino)
        return is_unsure

    def settle_size(self, ino: int, size: int) -> None:
        """A file has this size in bytes until something happens to the store."""
        self._sizes.put(ino, size + 1)
        self._sizes.settle(ino, self._sizes.age)

    def settled_size(self, ino: int) -> int | None:
        """The size in bytes of a file to which nothing has happened since."""
        more = self._sizes.settled(ino)
        return more - 1 if more else None

    def disturb(self) -> None:
        """Something happened to the store."""
        self._sizes.disturb()

    def __len__(self) -> int:
        return len(self._announced)
