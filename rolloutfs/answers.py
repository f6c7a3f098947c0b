"""What was answered about the nodes of a thread, for as long as nothing happened that may change it.

A walk asks a dozen questions about each thread, and the next walk asks them again. While the store is watched, answers
can't have changed before an event tells of it, and `Operations` takes note of the events before it answers. Those about
the rollouts of a thread drop what is kept of that thread, and of whatever follows from the links between threads; any
other drops everything.

An answer goes into the `Kept` that was there when it was asked for. If an event came while it was being computed, that
one is no longer in `Answers`, and nobody sees it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyfuse3 import EntryAttributes
from threadstore.names import parse_rollout
from threadstore.store import Links

from rolloutfs.attributes import Sheet
from rolloutfs.lru import Recent
from rolloutfs.nodes import Kind, Listing, Node
from rolloutfs.watch import Changes

THREADS: Final = 512  # of which answers are kept, about 12 KiB each

#: What depends on the rollouts of other threads, too: which names there are in it, or whether it exists.
_LINKED = frozenset(
    {Kind.LINEAGE, Kind.FORKED_FROM, Kind.PARENT, Kind.FORKS, Kind.AGENTS, Kind.THREAD_LINK}
    | {Kind.FAMILY, Kind.FAMILY_LINK}
)


@dataclass(slots=True)
class Kept:
    """Of nodes of one thread, by inode number: attributes, the same as bytes, and the children of folders. `sheet` is
    about the derived files of the thread, `links` about its neighbours.
    """

    entries: dict[int, EntryAttributes] = field(default_factory=dict)
    packed: dict[int, bytes] = field(default_factory=dict)
    sheet: Sheet | None = None
    links: Links | None = None
    listings: dict[int, Listing] = field(default_factory=dict)


class Answers:
    """Between `start` and `stop`, `note` must be told of every change to the store before `of` is asked.

    Invariant: nothing in `_own` and `_linked` is older than the last change that may matter to it.
    """

    def __init__(self, most: int = THREADS) -> None:
        self._own: Recent[str, Kept] = Recent(most)
        self._linked: Recent[str, Kept] = Recent(most)
        self._started = False

    def of(self, node: Node) -> Kept:
        """What is kept about a node and those like it, to be added to; of nodes without a thread, nothing is."""
        if not self._started or not node.thread:
            return Kept()
        return self._in(self._linked if node.kind in _LINKED else self._own, node.thread)

    def own(self, thread: str) -> Kept:
        """What is kept about the nodes of a thread that don't depend on others."""
        return self._in(self._own, thread) if self._started else Kept()

    def _in(self, threads: Recent[str, Kept], thread: str) -> Kept:
        kept = threads.get(thread)
        if kept is None:
            kept = Kept()
            threads.put(thread, kept)
        return kept

    def note(self, changes: Changes) -> None:
        """Something happened to the store."""
        self._linked.clear()
        rollouts = [parse_rollout(path) for path in changes.files]
        if changes.folders or changes.everything or None in rollouts:
            self._own.clear()
        for rollout in rollouts:
            if rollout is not None:
                self._own.drop(rollout.thread_id)

    def forget(self, thread: str) -> None:
        """Something happened that matters to this thread."""
        self._own.drop(thread)
        self._linked.drop(thread)

    def start(self) -> None:
        """From now on `note` is told of every change: keep answers."""
        self._started = True

    def stop(self) -> None:
        """Nobody tells of changes any more: keep nothing."""
        self._started = False
        self._own.clear()
        self._linked.clear()
