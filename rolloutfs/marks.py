"""What the kernel may still have of very many files: a few bytes each, in a room that doesn't grow.

A table of fixed size without chains: a number has two places, and who comes third takes the one that was used longer
ago. What is forgotten costs a read, never a wrong answer.
"""

from __future__ import annotations

import mmap
from typing import Final

BITS: Final = 17  # of the number of pairs of places
_SPREAD: Final = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: neighbours come to lie far apart
_WORD: Final = (1 << 64) - 1


class Marks:
    """A digest (64 bits, not 0) for each of some inode numbers, and whether it still holds without a look.

    A mark is *settled* from `settle` until `disturb`, `lift` or another digest. With 17 `bits` at most 2^18 are kept,
    in 5 MiB, of which the system gives what is used.
    """

    __slots__ = ("_age", "_ages", "_digests", "_numbers", "_shift")

    def __init__(self, bits: int = BITS) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 16 << bits)).cast("Q")
        self._digests = memoryview(mmap.mmap(-1, 16 << bits)).cast("Q")
        self._ages = memoryview(mmap.mmap(-1, 8 << bits)).cast("I")  # in which a mark was settled; 0: it isn't
        self._shift = 64 - bits
        self._age = 1

    @property
    def age(self) -> int:
        """How often something has happened: 2^32 is far away."""
        return self._age

    def disturb(self) -> None:
        """Something happened: no mark is settled."""
        self._age += 1

    def get(self, ino: int) -> int:
        """The digest; 0 when none is known."""
        at = self._find(ino)
        return 0 if at is None else self._digests[at]

    def put(self, ino: int, digest: int) -> None:
        """Set the digest, not settled."""
        at = self._find(ino)
        if at is None:
            first = self._place(ino)
            if self._numbers[first]:  # the second place is that of who came earlier
                for column in (self._numbers, self._digests, self._ages):
                    column[first + 1] = column[first]
            at = first
            self._numbers[at] = ino
        elif self._digests[at] == digest:
            return
        self._digests[at] = digest
        self._ages[at] = 0

    def settle(self, ino: int, age: int) -> None:
        """The digest holds without a look, if nothing has happened since it was of that age."""
        at = self._find(ino)
        if at is not None:
            self._ages[at] = age

    def settled(self, ino: int) -> int:
        """The digest if it holds without a look; else 0."""
        at = (ino * _SPREAD & _WORD) >> self._shift << 1  # `_find`, which takes as long again: this is asked most
        if self._numbers[at] != ino:
            at += 1
            if self._numbers[at] != ino:
                return 0
        return self._digests[at] if self._ages[at] == self._age else 0

    def lift(self, ino: int) -> None:
        """The digest has to be looked at again."""
        at = self._find(ino)
        if at is not None:
            self._ages[at] = 0

    def _find(self, ino: int) -> int | None:
        at = self._place(ino)
        if self._numbers[at] == ino:
            return at
        return at + 1 if self._numbers[at + 1] == ino else None

    def _place(self, ino: int) -> int:
        """Where the pair of places of a number begins."""
        return (ino * _SPREAD & _WORD) >> self._shift << 1
