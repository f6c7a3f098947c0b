"""What a list tells of a store's threads: names, times, whose they are, and beginnings of ids that are short."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from threadstore.errors import StoreError
from threadstore.store import ThreadStore
from threadstore.summaries import Summary

_SHORTEST = 8  # characters of an id that are shown at least


def begins(ids: Sequence[str], beginning: str) -> Sequence[str]:
    """Those of sorted ids that begin so."""
    return ids[bisect_left(ids, beginning) : bisect_left(ids, beginning + "~")]


def name_of(store: ThreadStore, thread: str) -> str | None:
    """What the user called a thread; None where that can't be read."""
    try:
        return store.name(thread)
    except (KeyError, StoreError, OSError):
        return None


def newest_first(store: ThreadStore) -> list[tuple[int, str]]:
    """All threads with the time of their last record (Unix, ns), the newest first; 0 where it can't be read."""
    return sorted(((_time(store, thread), thread) for thread in store.thread_ids()), reverse=True)


def _time(store: ThreadStore, thread: str) -> int:
    try:
        return store.times(thread).mtime_ns
    except (KeyError, StoreError, OSError):
        return 0


def by_people(store: ThreadStore, thread: str) -> bool:
    """True for a thread that a person started, and for one of which that can't be told."""
    try:
        return not store.is_agent(thread)
    except (KeyError, StoreError, OSError):
        return True


def summary_of(store: ThreadStore, thread: str) -> Summary | None:
    """What is told of a thread; None where nothing can be."""
    try:
        return store.summary(thread)
    except (KeyError, StoreError, OSError):
        return None


class ShortIds:
    """The beginning of an id that names no other thread of the store."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids

    def of(self, thread: str) -> str:
        """At least as long as it must be."""
        at = bisect_left(self._ids, thread)
        others = [*self._ids[max(at - 1, 0) : at], *(one for one in self._ids[at : at + 2] if one != thread)]
        length = max([_SHORTEST, *(_in_common(thread, other) + 1 for other in others)])
        return thread[: length + 1] if thread[length - 1 : length] == "-" else thread[:length]

    def all_of(self, threads: Iterator[str]) -> dict[str, str]:
        """Those of some threads, all as long as the longest."""
        short = {thread: self.of(thread) for thread in threads}
        length = max(map(len, short.values()), default=0)
        return {thread: thread[:length] for thread in short}


def _in_common(one: str, other: str) -> int:
    """Characters with which both begin."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
