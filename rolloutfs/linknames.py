"""Names of links in one folder, each another one whatever the threads are called."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import overload

_ID = 8  # last characters of an id that tell threads of one name apart
_MOST = 40  # that a name may be lengthened, for folders that somebody called like the links of others on purpose


class Names(Sequence[str]):
    """The names of the links in a folder, sorted; each is another one, none is `taken`, and they depend on no order.

    `wanted` gives the name that a thread's link would have alone, and whether it ends in the id whatever else there is,
    and must go on to give the same. Names are made when they are asked for: those of 100,000 links take 12 MB.
    """

    __slots__ = ("_lengths", "_wanted", "threads")

    def __init__(
        self, threads: Iterable[str], wanted: Callable[[str], tuple[str, bool]], taken: frozenset[str] = frozenset()
    ) -> None:
        self._wanted = wanted
        self.threads = list(threads)
        self._lengths = bytearray(int(wanted(thread)[1]) for thread in self.threads)  # of the ids in names
        while self._lengthen(taken):
            pass

    def _lengthen(self, taken: frozenset[str]) -> bool:
        """Sort by name; let the names of those that are alike end in more of the id. False when none are."""
        names = list(self)
        order = sorted(range(len(names)), key=names.__getitem__)
        self.threads = [self.threads[at] for at in order]
        self._lengths = bytearray(self._lengths[at] for at in order)
        alike = {at for at, one in enumerate(order) if names[one] in taken}
        for at in range(1, len(order)):
            if names[order[at]] == names[order[at - 1]]:
                alike |= {at - 1, at}
        alike = {at for at in alike if self._lengths[at] < 2 or names[order[at]] in taken}
        alike = {at for at in alike if self._lengths[at] < _MOST}
        for at in alike:
            self._lengths[at] += 1
        return bool(alike)

    def __len__(self) -> int:
        return len(self.threads)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[one] for one in range(len(self))[at]]
        thread, length = self.threads[at], self._lengths[at]
        name = self._wanted(thread)[0]
        if length < 2:
            return f"{name}-{thread[-_ID:]}" if length else name
        return f"{name}-{thread}{'_' * (length - 2)}"

    def thread(self, name: str) -> str:
        """The thread of a link; KeyError when there is none of that name."""
        at = bisect_left(range(len(self)), name, key=self.__getitem__)
        if at == len(self) or self[at] != name:
            raise KeyError(name)
        return self.threads[at]
