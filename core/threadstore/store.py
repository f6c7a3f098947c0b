"""`ThreadStore`: the one door to a store of threads.

It knows which threads there are, which rollout of each is selected, and makes the derived files of one on demand.
It writes only what an operation asks for, holds no file open between calls, and remembers only what `stat` can
prove to be still true.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from threadstore import kinship, overview, turnfiles
from threadstore.catalog import Catalog
from threadstore.cut import Boundary
from threadstore.entries import Entries, unpacked
from threadstore.errors import StoreError
from threadstore.extents import Extents
from threadstore.filestates import FileStates
from threadstore.heads import Heads, Subject
from threadstore.incremental import Passes
from threadstore.index import Entry, IndexReader, Kept, Packed
from threadstore.lineages import Lineages
from threadstore.masked import MASKED, masked, masked_turns
from threadstore.masking import Mask
from threadstore.metas import Metas, agent_of
from threadstore.mtimes import Mtimes, Times
from threadstore.names import ARCHIVED, SESSIONS, RolloutFile
from threadstore.neighbours import Edges, Links, Neighbours, edge_of
from threadstore.opened import open_rollout
from threadstore.openings import created, opening
from threadstore.operations import Operator, Outcome
from threadstore.overview import Tallies
from threadstore.projection import (
    OF_GENERATIONS,
    SELECTION,
    Basis,
    FamilyView,
    Outline,
    Projection,
    StoreView,
    View,
    digest,
    rendered,
)
from threadstore.projector import Projector
from threadstore.seen import Seen
from threadstore.spool import Spool
from threadstore.statedb import StateDatabase
from threadstore.summaries import Opening, Summary, Title, TurnPlace, of_document
from threadstore.texts import Hearer, Text
from threadstore.titles import Titles
from threadstore.turnfiles import Files, Turns

__all__ = ["Links", "ThreadStore", "Times"]

_MOVES = 5  # times that a log may grow while one of its turns is looked for
_MANY = 100  # rollouts from which asking the index for all of them is quicker than reading their session metas
_EXPANSION = 20  # decoded bytes per compressed byte that are assumed for an estimate


class ThreadStore:
    """See the module text. Raises StoreError, KeyError (unknown thread) and OSError, nothing else.

    With `mask` no secret that it knows leaves the store in a file for people. What the index has is as in the log: a
    text is masked when it is asked for, as a whole.
    """

    def __init__(
        self,
        root: str,
        spool: Spool,
        states: FileStates | None = None,
        index: IndexReader | None = None,
        mask: Mask | None = None,
    ) -> None:
        self.root = os.path.realpath(root)
        if not any(os.path.isdir(os.path.join(self.root, name)) for name in (SESSIONS, ARCHIVED)):
            raise StoreError(
                f"{root} has no folder named {SESSIONS} or {ARCHIVED}, so it is no store of Codex threads. "
                "Give the folder that holds it, usually ~/.codex."
            )
        self.spool = spool
        self.mask = mask
        self._index = index
        self._states = states if states is not None else FileStates(self.root)
        self._catalog = Catalog(self.root, self._states)
        self._database = StateDatabase(self._states, spool.folder)
        self._titles = Titles(self._states, self._database)
        self._heads = Heads(self._catalog, self._database, self._titles, self._states)
        self._times = Mtimes(self._heads, self._states, index)
        self._metas = Metas(self._states, spool)
        self._neighbours = Neighbours(self._metas, self._states)
        self._lineages = Lineages(self.root, spool, self._catalog, self._metas)
        self._passes = Passes()
        if index is not None:
            self._passes.remembered, self._passes.parts = index.passed, index.parts
        self._projector = Projector(self._lineages, self._passes, self._catalog, self._metas)
        self._entries = Entries(self._heads, self._projector, self._times, index)
        self._tallies = Tallies(index)

    # Which threads there are

    def refresh(self, *, anew: bool = False) -> set[str]:
        """Look for rollouts that came or went; the threads that they belong to. `anew`: whatever is remembered."""
        touched = self._catalog.refresh(anew=anew)
        for thread_id in touched:
            if thread_id not in self._catalog.threads:
                self._times.forget(thread_id)
                self._tallies.forget(thread_id)
        return touched

    @property
    def version(self) -> int:
        """Another one whenever rollouts came or went; 0 before the folders have been read."""
        return self._catalog.version

    @property
    def is_scanned(self) -> bool:
        """False before anybody asked which threads there are: the folders have not been read yet."""
        return self._catalog.version > 0

    def thread_ids(self) -> list[str]:
        """All thread ids, sorted."""
        return list(self._catalog.threads)

    def __contains__(self, thread_id: object) -> bool:
        return thread_id in self._catalog.threads

    def rollouts(self, thread_id: str) -> tuple[RolloutFile, ...]:
        """Every rollout of a thread. KeyError when there is none."""
        return self._catalog.threads[thread_id]

    def reverted(self) -> set[str]:
        """The threads that have several rollouts, of which the database may select any."""
        return self._catalog.several

    def head(self, thread_id: str) -> RolloutFile:
        """The selected rollout of a thread (FORMAT 11.4)."""
        return self._heads[thread_id]

    def times(self, thread_id: str) -> Times:
        """When the thread's last record was written."""
        return self._times.times(thread_id)

    def cost(self, thread_id: str) -> int:
        """Bytes of log that a projection may have to read, at most."""
        rollouts = list(self._catalog.threads[thread_id])
        inherited = 0
        try:
            segments = self._lineages.segments(self.head(thread_id))
            inherited = sum(segment.end or 0 for segment in segments)
        except (StoreError, OSError):
            inherited = 0  # broken: what there is will be read
        return inherited + sum(map(self._cost, rollouts))

    def _cost(self, rollout: RolloutFile) -> int:
        size = self._states.lstat(rollout.path).st_size
        return size * _EXPANSION if rollout.compressed else size

    def is_current(self, thread_id: str, projection: Projection) -> bool:
        """True while the thread's head and every file that the projection was made from are as they were."""
        return self._heads.is_made_from(thread_id, projection.basis)

    def is_made_from(self, thread_id: str, basis: tuple[Basis, ...]) -> bool:
        """True while the thread's head is the first of these files, and each of them as it was."""
        return self._heads.is_made_from(thread_id, basis)

    # Derived files

    def project(self, thread_id: str, view: View) -> Projection:
        """Make one derived file of a thread. May read all of its log."""
        beside = self._heads.beside(thread_id, view)
        projection = self._projector.project(self._heads.subject(thread_id, named=view is View.THREAD), view)
        return self._shown(_with_basis(projection, view, beside), view)

    def project_all(self, thread_id: str) -> dict[View, Projection]:
        """Make every derived file of a thread; left out is one that can't be made, or is to be masked."""
        selected, others = self._heads.beside(thread_id, View.THREAD), self._heads.others(thread_id)
        made = self._projector.project_all(self._heads.subject(thread_id))
        beside = dict.fromkeys(SELECTION, selected) | dict.fromkeys(OF_GENERATIONS, others)
        given = {view: one for view, one in made.items() if not self.masks(view)}
        return {view: _with_basis(one, view, beside.get(view, ())) for view, one in given.items()}

    def masks(self, view: object) -> bool:
        """True for a derived file in which secrets are masked."""
        return self.mask is not None and view in MASKED

    def _shown(self, projection: Projection, view: View) -> Projection:
        return masked(projection, self.mask) if self.mask is not None and view in MASKED else projection

    def naming(self) -> tuple[Basis, ...]:
        """The files that name threads, as they are; a time of -1 says that what is made of them holds only now."""
        return self._titles.basis()

    # What the index keeps

    def make_entry(self, thread_id: str, hearer: Hearer | None = None) -> tuple[Entry, dict[View, Projection]]:
        """What the index is to know of a thread now, and the derived files; the `hearer` is told what was said. Raises
        StoreError for a thread of which nothing lasting can be said.
        """
        return self._entries.make(thread_id, hearer)

    def is_entry_current(self, thread_id: str, entry: Entry) -> bool:
        """True while everything that an entry was made from is as it was. Raises KeyError, StoreError, OSError."""
        return self._entries.is_current(thread_id, entry)

    def outlines(self, thread_id: str) -> dict[View, Outline]:
        """What the index knows of the derived files of a thread, as far as it holds; nothing of one that is masked."""
        return {view: outline for view, outline in self._entries.outlines(thread_id).items() if not self.masks(view)}

    def recall(self, thread_id: str, view: View) -> Projection | None:
        """A derived file of a large thread as the index has it, if that holds."""
        found = self._entries.recall(thread_id, view)
        return None if found is None else self._shown(found, view)

    def packed(self, thread_id: str) -> Packed | None:
        """What the index has of all derived files of a small thread. It holds if outlines do that it fits."""
        return None if self._index is None else self._index.packed(thread_id)

    def unpack(self, packed: Packed, outlines: Mapping[View, Outline]) -> dict[View, Projection]:
        """Every derived file of a thread from that, if it fits these, which hold; else nothing."""
        return unpacked(packed, outlines)

    def packed_passes(self, thread_id: str) -> dict[str, bytes]:
        """How far the passes over a thread have come that were made just now."""
        return self._passes.packed_passes(thread_id)

    def packed_parts(self, thread_id: str) -> dict[bytes, bytes]:
        """The parts of the transcript of a large thread that was made just now, by their keys."""
        return self._passes.packed_parts(thread_id)

    def prove(self, thread_id: str) -> bytes | None:
        """Compare all that was read of a large thread with what is there (`passes.Blocks`): what the index is to keep,
        None when it is something else.
        """
        with self._lineages.open(self._lineages.segments(self.head(thread_id))) as lineage:
            return self._passes.prove(thread_id, lineage)

    # What is told of a thread

    def texts(self, thread_id: str) -> Iterator[Text]:
        """What was said in a thread."""
        return self._projector.texts(self._heads.subject(thread_id))

    def summary(self, thread_id: str) -> Summary:
        """What a list tells of a thread. Reads its log unless the index knows; raises StoreError for one of which
        nothing can be told.
        """
        known = self._known(thread_id)
        found = None if known is None else known.summary(thread_id)
        return of_document(self._document(thread_id)) if found is None else found

    def turns(self, thread_id: str) -> list[TurnPlace]:
        """The turns of a thread, in their order."""
        known = self._known(thread_id)
        if known is not None:
            return known.turns(thread_id)
        turns = map(orjson.loads, self.rendered(thread_id, View.TURNS).split(b"\n")[:-1])
        return [TurnPlace(turn["id"], turn["number"], (turn["start"] or {}).get("file")) for turn in turns]

    def problems(self, thread_id: str) -> list[dict[str, Any]]:
        """The lines of a thread's `problems.jsonl`."""
        known = self._known(thread_id)
        if known is not None:
            return known.problems(thread_id)
        return [orjson.loads(one) for one in self.rendered(thread_id, View.PROBLEMS).split(b"\n")[:-1]]

    def rendered(self, thread_id: str, view: View) -> bytes:
        """The content of a derived file that has no slices of logs in it: `thread.json`, turns, problems, lineage.
        Raises StoreError when it can't be given.
        """
        return rendered(self.project(thread_id, view))

    def is_agent(self, thread_id: str) -> bool:
        """True for a thread that no person started: a sub-agent's, a review's."""
        return agent_of(self._metas.read(self.head(thread_id))) is not None

    def name(self, thread_id: str) -> str | None:
        """What the user called a thread."""
        return self._titles.name(thread_id, self._heads.head(thread_id)[1])

    def titles(self) -> Iterator[tuple[str, Title]]:
        """What the databases call the threads that they know, one by one; see `naming`. Nothing else is to be asked of
        the store meanwhile.
        """
        return self._titles.all()

    def title(self, thread_id: str) -> Title:
        """What the databases call one thread."""
        return self._titles.title(thread_id)

    def opening(self, thread_id: str) -> Opening:
        """What stands at the beginning of a thread's log; reads no further. Raises StoreError."""
        return opening(self.head(thread_id), self.rollouts(thread_id), self._lineages, self._metas)

    def created(self, thread_id: str) -> str | None:
        """When the oldest rollout of a thread says that it began, as recorded."""
        return created(self.rollouts(thread_id), self._metas)

    def kept(self, thread_ids: Sequence[str]) -> dict[str, Kept]:
        """What the index has of some threads; each to be checked by `is_made_from`."""
        return {} if self._index is None else self._index.kept(thread_ids)

    def _known(self, thread_id: str) -> IndexReader | None:
        """The index, if what it says of a thread holds."""
        return self._index if self.outlines(thread_id) else None

    def _document(self, thread_id: str) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self.rendered(thread_id, View.THREAD))
        return document

    # Rollouts, turns, families and the whole store

    def state(self, rollout: RolloutFile) -> os.stat_result:
        """What `lstat` says of a rollout. Raises OSError."""
        return self._states.lstat(rollout.path)

    def status(self, rollout: RolloutFile) -> Basis:
        """What `stat` says of a rollout."""
        return self._states.basis(rollout.path)

    def project_rollout(self, rollout: RolloutFile) -> Projection:
        """The decoded content of one rollout file."""
        opened = open_rollout(self.root, rollout, self.spool)
        identity = opened.identity()
        opened.log.close()
        extents = Extents.of_source(opened.source, opened.log.size)
        return Projection(extents, (opened.basis,), digest(identity))

    def project_turn(self, thread_id: str, name: str | None = None) -> dict[str, Files]:
        """The files of one turn, or of all turns of a thread, by the names of their folders. Of a large log only the
        bytes of that turn are read if it is known where that lies. Raises StoreError when it can't be told.
        """
        for _ in range(_MOVES):
            turns = self.recall(thread_id, View.TURNS) or self.project(thread_id, View.TURNS)
            content = rendered(turns)
            with self._lineages.open_thread(self.head(thread_id)) as lineage:
                if turns.basis == tuple(file.basis for file in reversed(lineage.files)):
                    made = turnfiles.make(Turns.of(content), lineage, name)
                    return made if self.mask is None else masked_turns(made, self.mask)
        raise StoreError(f"Thread {thread_id} is being written to faster than it can be read.")

    def project_store(self, view: StoreView) -> Projection:
        """Make one derived file of the whole store.

        What it is made from is everything, so it holds only now; its basis is just what changed last.
        """
        self.refresh()
        basis = overview.newest(self.root, self._catalog, self._database)
        if view is StoreView.LINEAGE:
            content = kinship.whole(self)
        elif view is StoreView.STATS:
            content = overview.stats(self.root, self._catalog, self._database, self._tallies.of_all(self))
        else:
            selected = {thread_id: self._heads.head(thread_id)[0] for thread_id in self._catalog.threads}
            if view is StoreView.HEADS:
                content = overview.heads(selected)
            else:
                content = overview.problems(self._catalog, self._database, selected)
        return Projection(Extents.of_bytes(content), basis, digest(content))

    def project_family(self, thread_id: str, view: FamilyView) -> Projection:
        """Make one derived file of the family that a thread is the root of; it holds only now."""
        content, newest_ns = kinship.family(self, thread_id, view)
        basis = Basis(self.head(thread_id).path, 0, 0, 0, newest_ns)  # says when the newest record was written
        return Projection(Extents.of_bytes(content), (basis,), digest(content))

    def is_small_family(self, thread_id: str, most: int) -> bool:
        """True when a file of the family below a thread reads at most so many bytes of log."""
        left = most
        for member in kinship.members(self, thread_id):
            left -= self.cost(member)
            if left < 0:
                return False
        return True

    # Operations

    def fork(self, thread_id: str, boundary: Boundary, *, dry_run: bool = False) -> Outcome:
        """A new thread from a boundary of this one."""
        return self._operator().fork(self._subject(thread_id), boundary, dry_run=dry_run)

    def seen(self, thread_id: str) -> Seen:
        """The state of a thread now, to be expected by an operation later."""
        return Seen.now(self.root, self._subject(thread_id).head.rollout)

    def revert(
        self, thread_id: str, turn: str, *, dry_run: bool = False, expected: Seen | None = None, held: bool = False
    ) -> Outcome:
        """The same thread goes on from before a turn. With `expected`, only if the thread is still in that state; with
        `held` the caller has its writer's lock.
        """
        look = partial(self._subject, thread_id)
        return self._operator().revert(look, turn, dry_run=dry_run, expected=expected, held=held)

    def undo(
        self, thread_id: str, *, dry_run: bool = False, expected: Seen | None = None, held: bool = False
    ) -> Outcome:
        """The generation before the last revert goes on; `expected` and `held` as in `revert`."""
        look = partial(self._subject, thread_id)
        return self._operator().undo(look, dry_run=dry_run, expected=expected, held=held)

    def compact(
        self,
        thread_id: str,
        summary: str | None,
        *,
        dry_run: bool = False,
        expected: Seen | None = None,
        held: bool = False,
    ) -> Outcome:
        """A checkpoint with a summary, or with the newest user messages alone; `expected` and `held` as in `revert`."""
        look = partial(self._subject, thread_id)
        return self._operator().compact(look, summary, dry_run=dry_run, expected=expected, held=held)

    def _operator(self) -> Operator:
        return Operator(self.root, self._lineages, self._passes)

    def _subject(self, thread_id: str) -> Subject:
        self.refresh()
        return self._heads.subject(thread_id)

    # Neighbours

    def links(self, thread_id: str) -> Links:
        """The neighbours of a thread. Reads the session metas of `unread_heads` first."""
        head = self.head(thread_id)
        if not self._neighbours.is_fresh(self._catalog.version):
            unread = self.unread_heads()
            self.learn_edges(unread, self.edges(unread))
            self._neighbours.arrange(self._heads, self._catalog.version)
        return self._neighbours.links(thread_id, head, lambda basis: self._is_alone(thread_id, basis))

    def _is_alone(self, thread_id: str, head: Basis) -> bool:
        """True for a selected rollout of which the index knows that it names no thread that it came from."""
        entry = None if self._index is None else self._index.entry(thread_id)
        return entry is not None and entry.is_alone and entry.made_from[0] == head

    def unread_heads(self) -> list[RolloutFile]:
        """The rollouts whose session metas `links` would have to read before it can answer."""
        if self._neighbours.is_fresh(self._catalog.version):
            return []
        return self._neighbours.unread(self.head(key) for key in self._catalog.threads)

    def edges(self, rollouts: list[RolloutFile]) -> Edges:
        """What the session metas of rollouts say of neighbours, for `learn_edges`, also that of another process."""
        if self._index is None or len(rollouts) < _MANY:
            return self._neighbours.look(rollouts)
        known = {basis: edge_of(forked, parent, agent) for basis, forked, parent, agent in self._index.edges()}
        return self._neighbours.look(rollouts, known)

    def learn_edges(self, rollouts: list[RolloutFile], found: Edges) -> None:
        """Take over what `edges` has found out about these rollouts."""
        self._neighbours.learn(rollouts, found)


def _with_basis(projection: Projection, view: View, more: tuple[Basis, ...]) -> Projection:
    """Further files that a derived file depends on; what holds only now holds no longer with them."""
    if not more or not (projection.basis or view in SELECTION):
        return projection
    return replace(projection, basis=projection.basis + more)
