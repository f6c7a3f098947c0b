"""Names of links in one folder, each another one whatever the threads are called."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, tzinfo
from typing import NamedTuple, overload

from threadstore.names import brief_name
from threadstore.summaries import Title

_FEW = 500  # names that are kept
_ID = 8  # last characters of an id that tell threads of one name apart
_MOST = 40  # that a name may be lengthened, for folders that somebody called like the links of others on purpose


class Label(NamedTuple):
    """What a thread is called: a part of a name, and whether somebody chose it."""

    text: str
    is_given: bool


def label(title: Title) -> Label | None:
    """What databases call a thread: the name that it was given, else their preview; None where that makes no name, and
    what was said first is to be used.
    """
    name = brief_name(title.name) if title.name else ""
    if name:
        return Label(name, is_given=True)
    preview = brief_name(title.preview) if title.preview else ""
    return Label(preview, is_given=False) if preview else None


def timed(began: datetime, words: str, *, is_in_day: bool = False) -> str:
    """The name of a link by when its thread began, and what that is called, if anything; `is_in_day` in a folder that
    tells the day.
    """
    time = f"{began.hour:02}-{began.minute:02}-{began.second:02}"
    if not is_in_day:
        time = f"{began.year:04}-{began.month:02}-{began.day:02}T{time}"
    return f"{time}_{words}" if words else time


def moment(time_ns: int, zone: tzinfo) -> datetime:
    """A time (Unix, ns) as names of links have it."""
    return datetime.fromtimestamp(time_ns // 1_000_000_000, zone)


class Names(Sequence[str]):
    """The names of the links in a folder, sorted; each is another one, none is `taken`, and they depend on no order.

    `wanted` gives the name that a thread's link would have alone, and whether it ends in the id whatever else there is,
    and must go on to give the same. Names are made when they are asked for: those of 100,000 links take 12 MB.
    """

    __slots__ = ("_lengths", "_listed", "_wanted", "threads")

    def __init__(
        self, threads: Iterable[str], wanted: Callable[[str], tuple[str, bool]], taken: frozenset[str] = frozenset()
    ) -> None:
        self._wanted = wanted
        self.threads = list(threads)
        self._lengths = bytearray(len(self.threads))  # of the ids in names
        names = []
        for at, thread in enumerate(self.threads):
            name, is_long = wanted(thread)
            self._lengths[at] = is_long
            names.append(f"{name}-{thread[-_ID:]}" if is_long else name)
        while self._lengthen(self._sort(names), taken):
            pass
        self._listed: list[str] | None = names

    def _sort(self, names: list[str]) -> list[str]:
        """Sort by name."""
        order = array("I", sorted(range(len(names)), key=names.__getitem__))
        self.threads = [self.threads[at] for at in order]
        self._lengths = bytearray(self._lengths[at] for at in order)
        names.sort()
        return names

    def _lengthen(self, names: list[str], taken: frozenset[str]) -> bool:
        """Let names that are alike end in more of the id. False when none are."""
        alike = bytearray(name in taken for name in names)  # bytes rather than a set: all of 100,000 may be alike
        for at in range(1, len(names)):
            if names[at] == names[at - 1]:
                alike[at - 1] |= self._lengths[at - 1] < 2
                alike[at] |= self._lengths[at] < 2
        for at, is_alike in enumerate(alike):
            alike[at] = is_alike and self._lengths[at] < _MOST
            if alike[at]:
                self._lengths[at] += 1
                names[at] = self[at]
        return any(alike)

    @property
    def weight(self) -> int:
        """Bytes of memory, about, once somebody has asked for them."""
        return 512 + len(self.threads) * (128 if len(self.threads) <= _FEW else 9)

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

    def listed(self) -> list[str]:
        """All of them, to be kept by the caller."""
        names = list(self) if self._listed is None else self._listed
        self._listed = names if len(names) <= _FEW else None
        return names

    def thread(self, name: str) -> str:
        """The thread of a link; KeyError when there is none of that name."""
        if self._listed is not None and len(self) > _FEW:
            self._listed = None
        at = bisect_left(range(len(self)), name, key=self.__getitem__)
        if at == len(self) or self[at] != name:
            raise KeyError(name)
        return self.threads[at]
