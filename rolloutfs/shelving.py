"""Keeps `Shelves` right: asks for what isn't known of the threads, and again only for those that have changed.

`forget` is told of threads that changed. Rollouts that came or went are seen from the version of the store, names from
the files that hold them. Where nobody tells of changes, files are compared with what they were, as often as that costs
little. Nothing large is read here: a worker does that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

import trio
from threadstore.errors import StoreError
from threadstore.projection import Basis

from rolloutfs.engine import Engine
from rolloutfs.freshness import Share
from rolloutfs.shelves import WHOLE, Shelves, mark

_SLICE, _WHOLE_SLICE = 4000, 2000  # threads that a worker is asked for at once
_FEW: Final = 20  # threads whose names are asked for one by one
_QUICK: Final = 0.1  # seconds of work; what takes no longer is done whenever it may be needed
_RARELY: Final = 20  # times as long as reading very many names took until they are read again
_ATTEMPTS: Final = 3  # at a store that changes while we look


class Shelving:
    """Invariant: outside of `ready`, every thread of the store of version `_version` has a card that was read after its
    last change that we were told of, or is in `_stale`; `_partial` are those whose card isn't whole.
    """

    def __init__(self, engine: Engine, shelves: Shelves, is_watched: Callable[[], bool]) -> None:
        self._engine = engine
        self._shelves = shelves
        self._is_watched = is_watched
        self._stale: set[str] = set()
        self._many = _SLICE  # in `_stale`, upon which those are dropped that are gone
        self._partial: set[str] = set()
        self._version = 0
        self._naming: tuple[Basis, ...] = ()
        self._names_due = 0.0
        self._files_share = Share()
        self._doubted = False
        self._learning = trio.Lock()

    def forget(self, threads: Iterable[str]) -> None:
        """Threads have changed."""
        if self._version:
            self._stale.update(threads)
        if len(self._stale) > self._many:
            store = self._engine.store
            self._stale = {thread for thread in self._stale if thread in self._shelves or thread in store}
            self._many = max(2 * len(self._stale), _SLICE)

    def doubt(self) -> None:
        """Anything may have changed unheard."""
        self._doubted = True

    async def ready(self, shelf: str) -> None:
        """Bring what a shelf shows up to date. Raises OSError when a worker can't."""
        for _ in range(_ATTEMPTS):
            self._look()
            if not self._learning.locked() and not self._wanted(shelf):
                return
            async with self._learning:
                wanted = self._wanted(shelf)
                await self._learn(wanted, whole=shelf in WHOLE)

    def _wanted(self, shelf: str) -> set[str]:
        return self._stale | self._partial if shelf in WHOLE and self._partial else self._stale

    def _look(self) -> None:
        """Which cards don't hold any more, as far as that can be told at once?"""
        store = self._engine.store
        ids = store.thread_ids() if store.version != self._version or not self._version else None
        if ids is not None:
            self._version = store.version
            gone = [thread for thread in self._shelves.threads() if thread not in store]
            self._shelves.put(dict.fromkeys(gone))
            self._partial.difference_update(gone)
            self._stale.update(thread for thread in ids if thread not in self._shelves)
        if self._doubted or (not self._is_watched() and self._files_share.is_due()):
            self._doubted = False
            with self._files_share:
                self._stale.update(thread for thread in self._shelves.threads() if self._has_changed(thread))
        self._look_at_names()

    def _look_at_names(self) -> None:
        store = self._engine.store
        naming = store.naming()
        is_young = any(basis.mtime_ns == -1 for basis in naming)
        if (naming == self._naming and not is_young) or time.monotonic() < self._names_due:
            return
        start = time.thread_time()
        self._naming = naming
        self._shelves.entitle(store.titles())
        self._stale.update(thread for thread in store.reverted() if thread in self._shelves)  # it selects rollouts
        cost = time.thread_time() - start
        self._names_due = 0.0 if cost < _QUICK else time.monotonic() + cost * _RARELY

    def _has_changed(self, thread: str) -> bool:
        card = self._shelves.card(thread)
        try:
            head = self._engine.store.head(thread)
            file = self._engine.store.status(head)
        except (KeyError, StoreError, OSError):
            return True
        return (card.file, card.is_archived) != (mark(file.size, file.mtime_ns), head.archived)

    async def _learn(self, wanted: set[str], *, whole: bool) -> None:
        threads, step = sorted(wanted), _WHOLE_SLICE if whole else _SLICE
        for start in range(0, len(threads), step):
            some = tuple(threads[start : start + step])
            self._stale.difference_update(some)  # what changes while it is being read is stale again
            try:
                found = await self._engine.spines(some, whole=whole)
            except BaseException:
                self._stale.update(some)
                raise
            cards = {}
            for thread, spine in zip(some, found, strict=True):
                try:
                    archived = self._engine.store.head(thread).archived
                except KeyError:  # gone meanwhile
                    spine, archived = None, False
                cards[thread] = None if spine is None else (spine, archived)
                if spine is not None and not spine.is_whole:
                    self._partial.add(thread)
                else:
                    self._partial.discard(thread)
            self._shelves.put(cards)
        if threads:
            self._name(threads)
        self._stale, self._partial = set(self._stale), set(self._partial)  # a set that was large stays so

    def _name(self, threads: list[str]) -> None:
        store = self._engine.store
        if len(threads) > _FEW:
            self._shelves.entitle(store.titles())
        else:
            self._shelves.entitle([(thread, store.title(thread)) for thread in threads], only=threads)
