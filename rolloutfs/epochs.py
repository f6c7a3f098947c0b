"""Under which inode numbers files are to be found.

Content that was replaced while somebody reads the old one must not meet the new one in one page cache. So the inode
stays with its old content, *frozen*, and the file moves to a new number, its next *epoch*; it returns to its own number
when neither is open any more. To `tail -F` another number is another file, which it would print from its beginning.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from rolloutfs import inodes
from rolloutfs.lru import Recent
from rolloutfs.nodes import Node

_MOVED: Final = 20_000  # files that were shown under another number, of which all are told of changes


class Epochs:
    """Invariant: a file has an entry in `_epochs` exactly while it is not to be found under its own number."""

    def __init__(self, is_frozen: Callable[[int], bool | None]) -> None:
        """`is_frozen` says so of an inode; None of one that nobody has open."""
        self._is_frozen = is_frozen
        self._epochs: dict[int, int] = {}
        self._highest: Recent[int, int] = Recent(_MOVED)  # the highest epoch that a file ever had

    def inode(self, node: Node) -> int:
        """The number under which a file is to be found now."""
        number = self._epochs.get(node.ino)
        return node.ino if number is None else inodes.with_epoch(node.ino, number)

    def numbers(self, node: Node) -> list[int]:
        """Every number under which the kernel may know a file."""
        highest = max(self._highest.get(node.ino) or 0, self._epochs.get(node.ino, 0))
        return [inodes.with_epoch(node.ino, number) for number in range(highest + 1)]

    def is_steady(self, node: Node) -> bool:
        """True for a file that was never shown under another number."""
        return self.is_own(node.ino)

    def is_own(self, ino: int) -> bool:
        """The same by its own number."""
        return ino not in self._highest and ino not in self._epochs

    def is_moved(self, ino: int) -> bool:
        """True for a number with which a file goes that is not to be found under its own."""
        return bool(self._epochs) and inodes.canonical(ino) in self._epochs

    def choose(self, ino: int) -> None:
        """Find a number under which the file can be shown: the one it has while that is open, else the first one.

        Neither may be frozen.
        """
        file = inodes.canonical(ino)
        if self._is_frozen(inodes.with_epoch(ino, self._epochs.get(file, 0))) is False:
            return
        for number in range(inodes.EPOCHS):
            if not self._is_frozen(inodes.with_epoch(ino, number)):
                break
        else:
            raise OSError(errno.EMFILE, "Too many old versions of this file are open")
        if number:
            self._epochs[file] = number
            self._highest.put(file, max(number, self._highest.get(file) or 0))
        else:
            self._epochs.pop(file, None)

    def __len__(self) -> int:
        return len(self._epochs)
