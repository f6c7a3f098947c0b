"""What the index keeps of each thread: what an entry is made of, and whether one that is there still holds."""

from __future__ import annotations

from collections.abc import Mapping

from threadstore.errors import StoreError
from threadstore.heads import Heads
from threadstore.index import Entry, IndexReader, Packed
from threadstore.mtimes import Mtimes
from threadstore.projection import OF_GENERATIONS, SELECTION, Outline, Projection, View
from threadstore.projector import Projector
from threadstore.texts import Hearer


class Entries:
    """Those of the threads of a store; none are there without an `index`."""

    def __init__(self, heads: Heads, projector: Projector, mtimes: Mtimes, index: IndexReader | None) -> None:
        self._heads = heads
        self._projector = projector
        self._mtimes = mtimes
        self._index = index

    def make(self, thread_id: str, hearer: Hearer | None = None) -> tuple[Entry, dict[View, Projection]]:
        """What the index is to know of a thread now, and the derived files; the `hearer` is told what was said. Raises
        StoreError for a thread of which nothing lasting can be said.
        """
        subject = self._heads.subject(thread_id)
        facts = self._heads.facts(subject)
        made = self._projector.project_all(subject, hearer)
        checked = {*(made[View.THREAD].basis if View.THREAD in made else ()), *self._heads.others(thread_id)}
        outlines = {
            view: Outline(projection.size, projection.basis, projection.generation)
            for view, projection in made.items()
            if projection.basis and projection.extents is not None and checked.issuperset(projection.basis)
        }
        if View.THREAD not in outlines or View.TURNS not in outlines:
            raise StoreError(f"What thread {thread_id} is can't be told for longer than now.")
        return Entry(outlines[View.THREAD].basis, facts, outlines, self._mtimes.times(thread_id).mtime_ns), made

    def is_current(self, thread_id: str, entry: Entry) -> bool:
        """True while everything that an entry was made from is as it was. Raises KeyError, StoreError, OSError."""
        if not self._heads.are_same(thread_id, entry.made_from):
            return False
        subject = self._heads.subject(thread_id)
        return subject.head.rollout.path == entry.made_from[0].path and self._heads.facts(subject) == entry.facts

    def outlines(self, thread_id: str) -> dict[View, Outline]:
        """What is known of the derived files of a thread, as far as it holds."""
        entry = None if self._index is None else self._index.entry(thread_id)
        if entry is None:
            return {}
        try:
            selected = entry.made_from + self._heads.beside(thread_id, View.THREAD)
            if not self.is_current(thread_id, entry):
                return {}
        except (KeyError, StoreError, OSError):
            return {}
        self._mtimes.remember(thread_id, entry.made_from[0], entry.last_record_ns)
        alone, together = entry.made_from, entry.made_from + self._heads.others(thread_id)
        found: dict[View, Outline] = {}
        for view, outline in entry.outlines.items():
            basis = selected if view in SELECTION else together if view in OF_GENERATIONS else alone
            found[view] = Outline(outline.size, basis, outline.generation)
        return found

    def recall(self, thread_id: str, view: View) -> Projection | None:
        """A derived file of a large thread, if what is known of it holds."""
        outline = self.outlines(thread_id).get(view)
        if outline is None or self._index is None:
            return None
        in_parts = self._index.transcript(thread_id, outline.generation) if view is View.TRANSCRIPT else None
        extents = in_parts or self._index.extents(thread_id, view)
        if extents is None or extents.size != outline.size:
            return None
        return Projection(extents, outline.basis, outline.generation)


def unpack(packed: Packed, outlines: Mapping[View, Outline]) -> dict[View, Projection]:
    """Every derived file of a small thread from its row, if that fits these outlines and they are all; else nothing."""
    known = packed.unpacked() if packed.fits(outlines) else {}
    if known.keys() != outlines.keys() or any(known[view].size != outlines[view].size for view in known):
        return {}
    return {view: Projection(known[view], one.basis, one.generation) for view, one in outlines.items()}
