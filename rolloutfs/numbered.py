"""What belongs to very many numbers, in a sixth of the memory that a dictionary takes.

Numbers and values lie in two arrays, sorted by number. What came lately is in a dictionary, and is sorted in when that
is more than a part of the whole, so that a million entries cost a few dozen merges; what goes leaves a hole until then.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import compress
from typing import Generic, TypeVar

RECENT = 1024  # that are in the dictionary in any case
_PART = 16  # of what is sorted, 1/16 more may be in the dictionary

V = TypeVar("V")


class Numbered(Generic[V]):
    """Numbers from 0 to 2^64 - 1. Invariants: none is in `_recent` and in `_numbers`; `_holes` is how many of those in
    `_numbers` have no value.
    """

    __slots__ = ("_holes", "_numbers", "_recent", "_values")

    def __init__(self) -> None:
        self._numbers = array("Q")
        self._values: list[V | None] = []
        self._recent: dict[int, V] = {}
        self._holes = 0

    def get(self, number: int) -> V | None:
        """The value of a number; None when there is none."""
        found = self._recent.get(number)
        if found is not None or not self._values:
            return found
        at = self._place(number)
        return None if at is None else self._values[at]

    def put(self, number: int, value: V) -> None:
        """Set the value of a number."""
        at = self._place(number)
        if at is not None:
            self._holes -= self._values[at] is None
            self._values[at] = value
            return
        self._recent[number] = value
        if len(self._recent) > RECENT + len(self._values) // _PART:
            self._merge()

    def items(self) -> Iterator[tuple[int, V]]:
        """All numbers with their values, in no order; nothing may be changed meanwhile."""
        yield from self._recent.items()
        for number, value in zip(self._numbers, self._values, strict=True):
            if value is not None:
                yield number, value

    def drop(self, number: int) -> None:
        """Forget a number if it is there."""
        if self._recent.pop(number, None) is not None:
            return
        at = self._place(number)
        if at is not None and self._values[at] is not None:
            self._values[at] = None
            self._holes += 1
            if self._holes > RECENT + len(self._values) // _PART:
                self._merge()

    def __len__(self) -> int:
        return len(self._recent) + len(self._values) - self._holes

    def _place(self, number: int) -> int | None:
        """Where a number stands in the arrays."""
        at = bisect_left(self._numbers, number)
        return at if at < len(self._numbers) and self._numbers[at] == number else None

    def _merge(self) -> None:
        """Sort in what came, and leave out what went."""
        numbers, values, start = array("Q"), list[V | None](), 0
        for number in sorted(self._recent):
            end = bisect_left(self._numbers, number, start)
            numbers += self._numbers[start:end]
            values += self._values[start:end]
            numbers.append(number)
            values.append(self._recent[number])
            start = end
        numbers += self._numbers[start:]
        values += self._values[start:]
        if self._holes:
            numbers = array("Q", compress(numbers, (value is not None for value in values)))
            values = [value for value in values if value is not None]
        self._numbers, self._values, self._recent, self._holes = numbers, values, {}, 0
