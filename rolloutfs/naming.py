"""Which thread is meant, and what to call it: beginnings of ids, names, and the last thread of a folder."""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from threadstore.errors import StoreError
from threadstore.store import ThreadStore
from threadstore.summaries import Summary

from rolloutfs import mounttable
from rolloutfs.errors import Exit, MountError
from rolloutfs.harmless import harmless, quoted

_SHORTEST = 8  # characters of an id that are shown at least
_CANDIDATES = 5  # threads that a refusal lists


class UnnamedError(MountError):
    """Nothing that was said names one thread: there is none, or there are several. `errno` is that of a request."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, Exit.REFUSED)
        self.errno = code


def find(store: ThreadStore, wanted: str | None) -> str:
    """The thread of an id, of the beginning of one, or of a name; without any, the one whose folder in a mount this is,
    else the last one of the current folder. Raises UnnamedError.
    """
    if wanted is None:
        return entered(store) or last_here(store)
    ids = store.thread_ids()
    found = begun(begins(ids, wanted.lower()), wanted) if wanted else None
    if found is not None:
        return found
    named = [thread for thread in ids if wanted and name_of(store, thread) == wanted]
    if len(named) > 1:
        told = f"{len(named)} threads are called {quoted(wanted)}: give the id of one. {_candidates(named)}"
        raise UnnamedError(told, errno.EINVAL)
    if not named:
        told = f"There is no thread {quoted(wanted)} in {harmless(store.root)}: rolloutfs ls lists ids and names."
        raise UnnamedError(told, errno.ENOENT)
    return named[0]


def begun(found: Sequence[str], wanted: str) -> str | None:
    """The one that is meant of the sorted ids that begin so; None when there is none. Raises UnnamedError."""
    if len(found) > 1 and found[0] != wanted.lower():
        told = f"{quoted(wanted)} is the beginning of {len(found)} thread ids: give more of it. {_candidates(found)}"
        raise UnnamedError(told, errno.EINVAL)
    return found[0] if found else None


def _candidates(found: Sequence[str]) -> str:
    more = f" and {len(found) - _CANDIDATES} more" if len(found) > _CANDIDATES else ""
    return f"They are {', '.join(found[:_CANDIDATES])}{more}."


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


def entered(store: ThreadStore) -> str | None:
    """The thread in whose folder, in a mount of the store, the current folder is."""
    here = os.getcwd()
    for mount in mounttable.ours():
        top = os.path.join(mount.mountpoint, "threads", "")
        if mount.store == store.root and here.startswith(top):
            thread = here[len(top) :].partition("/")[0]
            return thread if thread in store.thread_ids() else None
    return None


def last_here(store: ThreadStore) -> str:
    """The last thread of a person, not archived, whose folder is the current one or above it. Raises UnnamedError."""
    here = _here()
    for _, thread in newest_first(store):
        if by_people(store, thread) and not store.head(thread).archived:
            summary = summary_of(store, thread)
            if summary is not None and any(is_at_or_above(summary.cwd, folder) for folder in here):
                return thread
    told = f"No thread in {harmless(store.root)} was in {harmless(here[0])} or above it: name one, see rolloutfs ls."
    raise UnnamedError(told, errno.ENOENT)


def summary_of(store: ThreadStore, thread: str) -> Summary | None:
    """What is told of a thread; None where nothing can be."""
    try:
        return store.summary(thread)
    except (KeyError, StoreError, OSError):
        return None


def is_at_or_above(recorded: str | None, folder: str) -> bool:
    """Compares texts: a recorded folder is never looked at (FAULTS 23)."""
    return bool(recorded) and f"{folder.rstrip('/')}/".startswith(f"{str(recorded).rstrip('/')}/")


def _here() -> list[str]:
    """The current folder, also as the shell calls it when a link led there."""
    here = os.getcwd()
    named = os.environ.get("PWD", "")
    if os.path.isabs(named) and named != here and os.path.realpath(named) == here:
        return [here, os.path.normpath(named)]
    return [here]


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
