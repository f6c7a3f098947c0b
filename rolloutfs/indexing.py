"""Keeping the index up to date while a store is mounted: by a worker of its own, at low priority, in short steps.

A pass over the whole store comes first; after that the threads that the watch told of are entered a moment later.
Without a watch there is a pass now and then. Nothing depends on it: what isn't in the index is computed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final

import platformdirs
import trio
from threadstore import index

from rolloutfs import worker
from rolloutfs.pool import Pool

log = logging.getLogger(__name__)

PAUSE: Final = 2.0  # seconds after the mount, and after a change, until it is worked on
UNWATCHED: Final = 300.0  # seconds between passes over a store of which no changes are told
_AGAIN = 3600.0  # seconds between passes over a store that is watched: a name may change without its thread's log
_STEP = 0.5  # seconds of one step: another mount may take its turn, and a reader sees what is done
_ATTEMPTS = 3
_BUSY = 30.0  # seconds until it is tried again while another process builds the index
_MANY = 1000  # threads; more that changed at once are a pass over all


def place(root: str, *avoid: str) -> str | None:
    """Where the index of a store lies: in the user's cache, unless that is below one of `avoid`."""
    folder = os.path.realpath(os.path.join(platformdirs.user_cache_dir("rolloutfs"), "index"))
    if any(os.path.commonpath((folder, os.path.realpath(one))) == os.path.realpath(one) for one in avoid):
        return None
    return index.place(folder, root)


class Indexing:
    """Told of changes by `note`; works in `run`."""

    def __init__(self, path: str, is_watched: Callable[[], bool], calm: Callable[[], Awaitable[None]]) -> None:
        """`calm` is waited for before each step."""
        self._path = path
        self._is_watched = is_watched
        self._calm = calm
        self._changed: set[str] = set()
        self._entering: tuple[str, ...] | None = None  # besides `_changed`; None: nobody knows what else
        self._wake = trio.Event()

    def note(self, threads: set[str]) -> None:
        """Threads that have changed. More than `_MANY` needn't be known: that makes a pass over all."""
        if len(self._changed) <= _MANY:
            self._changed.update(islice(threads, 2 * _MANY))
        self._wake.set()

    def lagging(self) -> tuple[str, ...] | None:
        """The threads that have changed and may not be entered yet; None when it isn't known which."""
        if self._entering is None or not self._is_watched():
            return None
        found = {*self._changed, *self._entering}
        return tuple(sorted(found)) if len(found) <= _MANY else None

    async def run(self, pool: Pool) -> None:
        """Work until cancelled, or until the index can't be written. A damaged one is thrown away by the first pass and
        built by the second.
        """
        for attempt in range(_ATTEMPTS):
            try:
                while True:
                    await trio.sleep(PAUSE)
                    await self._pass(pool)
                    await self._follow(pool)
            except Exception as error:  # noqa: BLE001  nothing depends on it, so nothing may end with it
                self._entering = None
                log.info("Attempt %d: the index %s can't be kept (%r).", attempt + 1, self._path, error)

    async def _pass(self, pool: Pool) -> None:
        """Look at every thread."""
        is_watched = self._is_watched()
        if self._entering is not None:
            self._entering = (*self._entering, *self._changed)
        self._changed.clear()
        last: str | None = ""
        entered = 0
        while last is not None:
            await self._calm()
            progress = (await pool.run(worker.index_all, last, _STEP)).progress
            if progress is None:
                await trio.sleep(_BUSY)
                continue
            last, entered = progress.last, entered + progress.entered
        log.info("The index has all threads; %d had changed.", entered)
        self._entering = () if is_watched and self._is_watched() else None

    async def _follow(self, pool: Pool) -> None:
        """Enter what changes, until that is so much, or has gone on for so long, that a pass is better."""
        end = trio.current_time() + _AGAIN
        while self._is_watched() and trio.current_time() < end:
            if not self._changed:
                self._wake = trio.Event()
                with trio.move_on_at(end):
                    await self._wake.wait()
                await trio.sleep(PAUSE)
            if len(self._changed) > _MANY:
                return
            threads, self._changed = tuple(sorted(self._changed)), set()
            self._entering = threads
            await self._calm()
            if not (await pool.run(worker.index_some, threads)).is_done:
                self._changed |= set(threads)
                await trio.sleep(_BUSY)
            self._entering = ()
        if not self._is_watched():
            await trio.sleep(UNWATCHED)
