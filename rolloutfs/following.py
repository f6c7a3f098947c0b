"""What happens to the store while it is mounted: everybody who keeps something of it takes note, and the kernel is made
to ask again for what may be different now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from threadstore import databases
from threadstore.names import parse_rollout

from rolloutfs import freshness
from rolloutfs.invalidating import drop_entry
from rolloutfs.nodes import Place
from rolloutfs.searches import Searches
from rolloutfs.shelving import Shelving
from rolloutfs.shortcuts import Parts, Shortcuts
from rolloutfs.slots import README, ROOT
from rolloutfs.watch import Changes, Watch

log = logging.getLogger(__name__)

_APART = frozenset({ROOT, README})  # what is known of these doesn't depend on which threads there are


def _nobody(_threads: set[str]) -> None:
    """Where nobody needs to know."""


class Following:
    """Follows one store, by a watch or by looking now and then, for what is kept in these."""

    def __init__(self, parts: Parts, shortcuts: Shortcuts, shelving: Shelving, searches: Searches) -> None:
        self._store = parts.engine.store
        self._tree, self._contents = parts.tree, parts.contents
        self._answers, self._notices, self._patience = parts.answers, parts.notices, parts.describer.patience
        self._shortcuts, self._shelving, self._searches = shortcuts, shelving, searches
        self._rescans = freshness.Rescans(self._refresh)
        self._watch: Watch | None = None
        self._heads: dict[str, str] | None = None  # selected paths of the threads that have several rollouts
        self._heads_looked = freshness.Share()
        self._heads_moved = False
        self.touched: Callable[[set[str]], None] = _nobody  # is told of threads that have changed

    def use(self, watch: Watch) -> None:
        """Rely on a watch that tells `note` of every change, for as long as it is active."""
        self._watch = watch
        if self._store.is_scanned:  # what changed between that scan and the watch was heard by nobody
            self._store.refresh()
        self._answers.start()
        self._shelving.doubt()
        self._contents.note(watched=True)
        self._heads_moved = True  # note them before anything is told for long
        self._patience.watched = True

    def is_watched(self) -> bool:
        """True while every change of the store is heard of."""
        return self._watch is not None and self._watch.is_active

    def look(self, inode: int) -> None:
        """Before an answer about an inode: take note of what happened to the store until now."""
        if inode in _APART:
            return
        if self._watch is not None and self._watch.drain():
            if self._heads_moved and self._heads_looked.is_due():
                self._look_at_heads()
        else:
            self._rescans.perhaps()
        self._shortcuts.look_at_links()

    def note(self, changes: Changes) -> None:
        """Something happened to the store: make the kernel ask again for what may be different now. Doesn't fail: what
        can't be taken note of ends the watch, and the store is looked at each time instead.
        """
        try:
            self._note(changes)
        except Exception:
            log.exception("%r could not be taken note of", changes)
            if self._watch is not None:
                self._watch.close()
        if self._watch is not None and not self._watch.is_active:
            self._patience.watched = False
            self._answers.stop()
            self._contents.note(watched=False)
            self._shortcuts.forget_names()

    def _note(self, changes: Changes) -> None:
        store = self._store
        touched: set[str] = set()
        self._answers.note(changes)
        self._shortcuts.note()
        self._contents.note(watched=True)
        if changes.folders or changes.everything:
            touched = self._refresh()
            self._invalidate_root()
        if changes.everything:
            touched = set(store.thread_ids())
            self._shelving.doubt()
        for path in changes.files:
            touched |= self._contents.heirs(path)
            rollout = parse_rollout(path)
            if rollout is not None:
                touched.add(rollout.thread_id)
            elif databases.is_part(path):
                self._heads_moved = True
            for place in self._tree.known_in_store(path):
                self._renew(place)
        for path in changes.folders:
            for place in self._tree.known_in_store(path):
                self._renew(place)
        self._shelving.forget(touched)
        for thread in touched:
            self._invalidate_thread(thread)
        self._shortcuts.look_at_links()
        self._bury({thread for thread in touched if thread not in store})
        self._tell(touched)

    def _bury(self, gone: set[str]) -> None:
        """These threads are no longer in the store: keep no more of them than the kernel may ask for."""
        for thread in gone:
            drop_entry(self._tree.threads, thread)
        if gone:
            self._contents.bury(gone)
            self._tree.bury(gone)

    def _tell(self, threads: set[str]) -> None:
        """Let those know who keep something of all threads."""
        self._searches.note(threads)
        self.touched(threads)

    def _refresh(self) -> set[str]:
        """Look for rollouts that came or went; their threads. What is said of these depends on which ones there are."""
        store = self._store
        touched = store.refresh()
        self._contents.close_deleted()
        for thread in touched:
            if thread in store:
                self._contents.forget(thread)
        if not self.is_watched():
            self._bury({thread for thread in touched if thread not in store})
        return touched

    def _look_at_heads(self) -> None:
        """The database was written: which threads go on from another rollout than before?"""
        self._heads_moved = False
        with self._heads_looked:
            now = {thread: self._store.head(thread).path for thread in self._store.reverted()}
        before = now if self._heads is None else self._heads
        for thread, path in now.items():
            if before.get(thread) != path:  # or it has only just got another rollout
                self._invalidate_thread(thread)
                self._tell({thread})
        self._heads = now

    def changed(self, thread: str) -> None:
        """Make the kernel ask again for what an operation on a thread may have changed."""
        self._shelving.forget({thread})
        self._invalidate_root()
        self._invalidate_thread(thread)
        self._shortcuts.look_at_links()

    def _invalidate_root(self) -> None:
        for node in (*self._tree.root_nodes(), self._tree.root):
            for ino in self._contents.numbers(node):
                self._notices.give(ino)

    def _invalidate_thread(self, thread: str) -> None:
        self._answers.forget(thread)
        self._shortcuts.stir(thread)
        if thread not in self._store:
            return
        folder = self._tree.folder(thread)
        self._notices.give(folder.ino)
        self._shortcuts.drop_names(thread)
        for place in (*self._tree.known_rollouts(thread), *self._tree.family(thread)):
            self._renew(place)

    def _renew(self, place: Place) -> None:
        """Make the kernel ask again for a file; and for its name while it is open, since the number may have to change
        for who asks next.
        """
        numbers = self._contents.numbers(place.node)
        for ino in numbers:
            self._notices.give(ino)
        if place.folder is not None and any(map(self._contents.is_open, numbers)):
            drop_entry(place.folder, place.name)
