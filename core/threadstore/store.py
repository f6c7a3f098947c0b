"""`ThreadStore`: the one door to a store of threads.

It knows which threads there are, which rollout of each is selected, and makes the derived files of one on demand.
It writes only what an operation asks for, holds no file open between calls, and remembers only what `stat` can
prove to be still true.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from threadstore import kinship, overview, turnfiles
from threadstore.catalog import Catalog
from threadstore.cut import Boundary
from threadstore.errors import StoreError, UnreadableError
from threadstore.extents import Extents
from threadstore.files import FileIdentity, open_regular, pread_exactly
from threadstore.filestates import FileStates
from threadstore.heads import Head, Row, StateDatabase, Subject, is_young, select
from threadstore.index import Entry, IndexReader, Kept, Packed
from threadstore.lines import Log, forward
from threadstore.masking import Mask
from threadstore.metas import Metas, agent_of
from threadstore.names import ARCHIVED, SESSION_INDEX, SESSIONS, RolloutFile, parse_rollout
from threadstore.neighbours import Edges, Links, Neighbours, edge_of
from threadstore.opened import open_rollout
from threadstore.operations import Operator, Outcome
from threadstore.projection import Basis, FamilyView, Outline, Projection, StoreView, View
from threadstore.projector import Hearer, Projector, digest
from threadstore.seen import Seen
from threadstore.spool import Spool
from threadstore.summaries import Opening, Summary, Title, TurnPlace, of_document
from threadstore.tallies import Tally, tally
from threadstore.texts import Text
from threadstore.times import parse_time
from threadstore.turnfiles import Files, Turns

__all__ = ["Links", "ThreadStore", "Times"]

#: Views that also tell what the databases say of a thread: its name, how it was selected, what is wrong with its row.
SELECTION = frozenset({View.THREAD, View.PROBLEMS, View.LINEAGE})
#: Files for people to read, in which secrets are masked if that is asked for; and those of a turn.
MASKED = frozenset({View.TRANSCRIPT, View.DROPPED})
_MASKED_FILES = frozenset({"user.md", "assistant.md"})
#: Views that also tell what happened in generations that no longer count.
_OF_GENERATIONS = frozenset({View.USAGE, View.DROPPED, View.DROPPED_TURNS})
_TIMES = 8192  # threads whose times are remembered, about 200 bytes each
_TIME = struct.Struct("<QQQqq")  # device, inode, size and mtime of the file, time of the last record
_TAILS = (4 << 10, 64 << 10)  # bytes at the end of a log in which the last time is looked for
_TALLIES = 50_000  # threads of which is remembered what they add to statistics, about 1 KiB each
_SLICE = 500  # threads that an index is asked for at once
_MOVES = 5  # times that a log may grow while one of its turns is looked for
_MANY = 100  # rollouts from which asking the index for all of them is quicker than reading their session metas
_EXPANSION = 20  # decoded bytes per compressed byte that are assumed for an estimate


@dataclass(frozen=True, slots=True)
class Times:
    """Unix times in ns: of the last record, and the ctime of the selected rollout's file."""

    mtime_ns: int
    ctime_ns: int


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
        self._metas = Metas(self._states, spool)
        self._neighbours = Neighbours(self._metas, self._states)
        self._projector = Projector(self.root, spool, self._catalog, self._metas)
        if index is not None:
            self._projector.remembered = index.passed
            self._projector.parts = index.parts
        self._times: OrderedDict[str, bytes] = OrderedDict()
        self._latest: tuple[os.stat_result, Times] | None = None  # a walk asks for a thread again and again
        self._tallied: OrderedDict[str, tuple[Projection, Tally]] = OrderedDict()
        self._names: tuple[FileIdentity, dict[str, str]] | None = None

    # Which threads there are

    def refresh(self, *, anew: bool = False) -> set[str]:
        """Look for rollouts that came or went; the threads that they belong to. `anew`: whatever is remembered."""
        touched = self._catalog.refresh(anew=anew)
        for thread_id in touched:
            if thread_id not in self._catalog.threads:
                self._times.pop(thread_id, None)
                self._tallied.pop(thread_id, None)
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
        rollouts = self._catalog.threads[thread_id]
        return rollouts[0] if len(rollouts) == 1 else self._head(thread_id)[0].rollout

    def _head(self, thread_id: str) -> tuple[Head, Row | None]:
        rollouts = self._catalog.threads[thread_id]
        row = self._database.row(thread_id)
        return select(rollouts, row), row

    def times(self, thread_id: str) -> Times:
        """When the thread's last record was written."""
        rollout = self.head(thread_id)
        status = self._states.lstat(rollout.path)
        if self._latest is None or self._latest[0] is not status:
            self._latest = status, self._times_of(thread_id, rollout, status)
        return self._latest[1]

    def _times_of(self, thread_id: str, rollout: RolloutFile, status: os.stat_result) -> Times:
        packed = self._times.get(thread_id)
        if packed is not None:
            dev, ino, size, mtime_ns, last = _TIME.unpack(packed)
            if (dev, ino, size, mtime_ns) == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns):
                return Times(last, status.st_ctime_ns)
        entry = None if self._index is None else self._index.entry(thread_id)
        if entry is not None and entry.made_from[0] == _basis(rollout.path, status):
            self._remember(thread_id, entry.made_from[0], entry.last_record_ns)
            return Times(entry.last_record_ns, status.st_ctime_ns)
        descriptor = open_regular(self.root, rollout.path)
        try:
            now = os.fstat(descriptor)
            found = None if rollout.compressed else _last_time(descriptor, now.st_size)
        finally:
            os.close(descriptor)
        last = now.st_mtime_ns if found is None else found
        self._remember(thread_id, _basis(rollout.path, now), last)
        return Times(last, now.st_ctime_ns)

    def _remember(self, thread_id: str, file: Basis, last: int) -> None:
        """The time of the last record, for as long as the selected rollout is as it was."""
        self._times[thread_id] = _TIME.pack(*file[1:], last)
        if len(self._times) > _TIMES:
            self._times.popitem(last=False)

    def cost(self, thread_id: str) -> int:
        """Bytes of log that a projection may have to read, at most."""
        rollouts = list(self._catalog.threads[thread_id])
        inherited = 0
        try:
            segments = self._projector.segments(self.head(thread_id))
            inherited = sum(segment.end or 0 for segment in segments)
        except (StoreError, OSError):
            inherited = 0  # broken: what there is will be read
        return inherited + sum(map(self._cost, rollouts))

    def _cost(self, rollout: RolloutFile) -> int:
        size = self._states.lstat(rollout.path).st_size
        return size * _EXPANSION if rollout.compressed else size

    def is_current(self, thread_id: str, projection: Projection) -> bool:
        """True while the thread's head and every file that the projection was made from are as they were."""
        return self.is_made_from(thread_id, projection.basis)

    def is_made_from(self, thread_id: str, basis: tuple[Basis, ...]) -> bool:
        """True while the thread's head is the first of these files, and each of them as it was."""
        if not basis:
            return False
        try:
            selected = self.head(thread_id).path == basis[0].path
            return selected and all(map(self._is_same, basis)) and self._is_chosen(thread_id, basis)
        except (KeyError, StoreError, OSError):
            return False

    def is_single(self, thread_id: str, basis: tuple[Basis, ...]) -> bool:
        """True when a thread's only rollout is the only one of these files, and as it was: `is_made_from` of most
        threads, in a quarter of the time. Raises OSError.
        """
        return (
            len(basis) == 1
            and self._catalog.threads.single(thread_id) == basis[0][0]
            and self._states.basis(basis[0][0]) == basis[0]
        )

    def _is_same(self, basis: Basis) -> bool:
        return self._states.basis(basis.path) == basis

    def _is_chosen(self, thread_id: str, basis: tuple[Basis, ...]) -> bool:
        """True while each file of another thread is still what is taken for its rollout: a twin may have come."""
        for inherited in basis[1:]:
            rollout = parse_rollout(inherited.path)
            if rollout is None or rollout.thread_id == thread_id:
                continue
            files = self._catalog.of_rollout(rollout.rollout_id)
            if not files or files[-1].path != inherited.path:
                return False
        return True

    # Derived files

    def project(self, thread_id: str, view: View) -> Projection:
        """Make one derived file of a thread. May read all of its log."""
        named = self._named(thread_id) if view in SELECTION else self._beside(thread_id, view)
        projection = self._projector.project(self._present(thread_id, named=view is View.THREAD), view)
        return self._shown(_with_basis(projection, view, named), view)

    def project_all(self, thread_id: str) -> dict[View, Projection]:
        """Make every derived file of a thread; left out is one that can't be made, or is to be masked."""
        named = self._named(thread_id)
        beside = {view: named if view in SELECTION else self._beside(thread_id, view) for view in View}
        made = self._projector.project_all(self._present(thread_id))
        given = {view: one for view, one in made.items() if not self.masks(view)}
        return {view: _with_basis(projection, view, beside[view]) for view, projection in given.items()}

    def masks(self, view: object) -> bool:
        """True for a derived file in which secrets are masked."""
        return self.mask is not None and view in MASKED

    def _shown(self, projection: Projection, view: View) -> Projection:
        return _masked(projection, self.mask) if self.mask is not None and view in MASKED else projection

    def _present(self, thread_id: str, *, named: bool = True) -> Subject:
        head, row = self._head(thread_id)
        return Subject(thread_id, self.rollouts(thread_id), head, row, self._name(thread_id, row) if named else None)

    def _named(self, thread_id: str) -> tuple[Basis, ...]:
        """The files that may name or select a thread, or tell when it began, without a new record in its log."""
        return (*self.naming(), *self._others(thread_id))

    def naming(self) -> tuple[Basis, ...]:
        """The files that name threads, as they are; a time of -1 says that what is made of them holds only now."""
        database = [Basis(*entry) for entry in self._database.identity()]
        if is_young(tuple(database)):
            database = [part._replace(mtime_ns=-1) for part in database]
        return (self._states.basis(SESSION_INDEX), *database)

    def _beside(self, thread_id: str, view: View) -> tuple[Basis, ...]:
        """The files besides its lineage that a derived file tells of: all generations."""
        return self._others(thread_id) if view in _OF_GENERATIONS else ()

    # What the index keeps

    def make_entry(self, thread_id: str, hearer: Hearer | None = None) -> tuple[Entry, dict[View, Projection]]:
        """What the index is to know of a thread now, and the derived files; the `hearer` is told what was said. Raises
        StoreError for a thread of which nothing lasting can be said.
        """
        subject = self._present(thread_id)
        facts = self._facts(subject)
        made = self._projector.project_all(subject, hearer)
        checked = {*(made[View.THREAD].basis if View.THREAD in made else ()), *self._others(thread_id)}
        outlines = {
            view: Outline(projection.size, projection.basis, projection.generation)
            for view, projection in made.items()
            if projection.basis and projection.extents is not None and checked.issuperset(projection.basis)
        }
        if View.THREAD not in outlines or View.TURNS not in outlines:
            raise StoreError(f"What thread {thread_id} is can't be told for longer than now.")
        return Entry(outlines[View.THREAD].basis, facts, outlines, self.times(thread_id).mtime_ns), made

    def is_entry_current(self, thread_id: str, entry: Entry) -> bool:
        """True while everything that an entry was made from is as it was. Raises KeyError, StoreError, OSError."""
        if not all(map(self._is_same, entry.made_from)) or not self._is_chosen(thread_id, entry.made_from):
            return False
        subject = self._present(thread_id)
        return subject.head.rollout.path == entry.made_from[0].path and self._facts(subject) == entry.facts

    def _facts(self, subject: Subject) -> bytes:
        """What derived files depend on besides the content of the thread's lineage: rollouts, selection, names, and
        when the oldest rollout began.
        """
        others = self._others(subject.thread_id)
        facts = (subject.rollouts, subject.head, subject.row, subject.name, others)
        return digest(repr(facts).encode("utf-8", "surrogatepass"))

    def _others(self, thread_id: str) -> tuple[Basis, ...]:
        """All rollouts of a thread that has several."""
        rollouts = self._catalog.threads[thread_id]
        return () if len(rollouts) == 1 else tuple(self._states.basis(rollout.path) for rollout in rollouts)

    def outlines(self, thread_id: str) -> dict[View, Outline]:
        """What the index knows of the derived files of a thread, as far as it holds; nothing of one that is masked."""
        return {view: outline for view, outline in self._outlines(thread_id).items() if not self.masks(view)}

    def _outlines(self, thread_id: str) -> dict[View, Outline]:
        entry = None if self._index is None else self._index.entry(thread_id)
        if entry is None:
            return {}
        try:
            named = self._named(thread_id)
            if not self.is_entry_current(thread_id, entry):
                return {}
        except (KeyError, StoreError, OSError):
            return {}
        self._remember(thread_id, entry.made_from[0], entry.last_record_ns)
        alone, selected = entry.made_from, entry.made_from + named
        together = alone + self._others(thread_id)
        found: dict[View, Outline] = {}
        for view, outline in entry.outlines.items():
            basis = selected if view in SELECTION else together if view in _OF_GENERATIONS else alone
            found[view] = Outline(outline.size, basis, outline.generation)
        return found

    def recall(self, thread_id: str, view: View) -> Projection | None:
        """A derived file of a large thread as the index has it, if that holds."""
        outline = self._outlines(thread_id).get(view)
        if outline is None or self._index is None:
            return None
        in_parts = self._index.transcript(thread_id, outline.generation) if view is View.TRANSCRIPT else None
        extents = in_parts or self._index.extents(thread_id, view)
        if extents is None or extents.size != outline.size:
            return None
        return self._shown(Projection(extents, outline.basis, outline.generation), view)

    def packed(self, thread_id: str) -> Packed | None:
        """What the index has of all derived files of a small thread. It holds if outlines do that it fits."""
        return None if self._index is None else self._index.packed(thread_id)

    def unpack(self, packed: Packed, outlines: Mapping[View, Outline]) -> dict[View, Projection]:
        """Every derived file of a thread from that, if it fits these, which hold; else nothing."""
        known = packed.unpacked() if packed.fits(outlines) else {}
        if known.keys() != outlines.keys() or any(known[view].size != outlines[view].size for view in known):
            return {}
        return {view: Projection(known[view], one.basis, one.generation) for view, one in outlines.items()}

    def packed_passes(self, thread_id: str) -> dict[str, bytes]:
        """How far the passes over a thread have come that were made just now."""
        return self._projector.packed_passes(thread_id)

    def packed_parts(self, thread_id: str) -> dict[bytes, bytes]:
        """The parts of the transcript of a large thread that was made just now, by their keys."""
        return self._projector.packed_parts(thread_id)

    def prove(self, thread_id: str) -> bytes | None:
        """Compare all that was read of a large thread with what is there (`passes.Blocks`): what the index is to keep,
        None when it is something else.
        """
        return self._projector.prove(thread_id, self.head(thread_id))

    def texts(self, thread_id: str) -> Iterator[Text]:
        """What was said in a thread."""
        return self._projector.texts(self._present(thread_id))

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
        return self._name(thread_id, self._head(thread_id)[1])

    def titles(self) -> Iterator[tuple[str, Title]]:
        """What the databases call the threads that they know, one by one; see `naming`. Nothing else is to be asked of
        the store meanwhile.
        """
        names = dict(self._index_names())
        for thread_id, name, preview in self._database.titles():
            yield thread_id, Title(name or names.pop(thread_id, None), preview)
            names.pop(thread_id, None)
        for thread_id, called in names.items():
            yield thread_id, Title(called, None)

    def title(self, thread_id: str) -> Title:
        """What the databases call one thread."""
        row = self._database.row(thread_id)
        return Title(self._name(thread_id, row), row.preview if row is not None else None)

    def opening(self, thread_id: str) -> Opening:
        """What stands at the beginning of a thread's log; reads no further. Raises StoreError."""
        head = self.head(thread_id)
        meta = self._metas.read(head)
        git, created = meta.get("git"), meta.get("timestamp")
        return Opening(
            created=self.created(thread_id) or (created if isinstance(created, str) else None),
            words=self._projector.first_words(head),
            branch=git.get("branch") if isinstance(git, dict) else None,
            is_agent=agent_of(meta) is not None,
        )

    def created(self, thread_id: str) -> str | None:
        """When the oldest rollout of a thread says that it began, as recorded."""
        return self._projector.created(self.rollouts(thread_id))

    def kept(self, thread_ids: Sequence[str]) -> dict[str, Kept]:
        """What the index has of some threads; each to be checked by `is_made_from`."""
        return {} if self._index is None else self._index.kept(thread_ids)

    def _known(self, thread_id: str) -> IndexReader | None:
        """The index, if what it says of a thread holds."""
        return self._index if self.outlines(thread_id) else None

    def _document(self, thread_id: str) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self.rendered(thread_id, View.THREAD))
        return document

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
            with self._projector.open_thread(self.head(thread_id)) as lineage:
                if turns.basis == tuple(file.basis for file in reversed(lineage.files)):
                    made = turnfiles.make(Turns.of(content), lineage, name)
                    return made if self.mask is None else _masked_turns(made, self.mask)
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
            content = overview.stats(self.root, self._catalog, self._database, self._tallies())
        else:
            selected = {thread_id: self._head(thread_id)[0] for thread_id in self._catalog.threads}
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

    def _tallies(self) -> Iterator[Tally | None]:
        """What each thread adds to the statistics; None for one that can't be read."""
        ids = self.thread_ids()
        for first in range(0, len(ids), _SLICE):
            some = ids[first : first + _SLICE]
            indexed = {} if self._index is None else self._index.tallies(some[0], some[-1])
            for thread_id in some:
                entry, known = indexed.get(thread_id, (None, None))
                try:
                    holds = entry is not None and self.is_entry_current(thread_id, entry)
                    yield known if holds else self._tally(thread_id)
                except (KeyError, StoreError, OSError):
                    yield None

    def _tally(self, thread_id: str) -> Tally:
        known = self._tallied.get(thread_id)
        if known is None or not self.is_current(thread_id, known[0]):
            turns = self.project(thread_id, View.TURNS)
            usage = self.project(thread_id, View.USAGE)
            known = replace(usage, extents=None), tally(rendered(turns), rendered(usage))
            self._tallied[thread_id] = known
            if len(self._tallied) > _TALLIES:
                self._tallied.popitem(last=False)
        return known[1]

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
        return Operator(self.root, self._projector)

    def _subject(self, thread_id: str) -> Subject:
        self.refresh()
        return self._present(thread_id)

    # Names and neighbours

    def _name(self, thread_id: str, row: Row | None) -> str | None:
        """What the user called a thread: the database first, then the index of names (FORMAT 2.3)."""
        if row is not None and row.name:
            return row.name
        return self._index_names().get(thread_id)

    def _index_names(self) -> dict[str, str]:
        try:
            if not self._states.basis(SESSION_INDEX).ino:
                return {}
            descriptor = open_regular(self.root, SESSION_INDEX)
        except (OSError, UnreadableError):
            return {}
        log = Log(descriptor, os.fstat(descriptor).st_size)
        try:
            identity = FileIdentity.of(os.fstat(descriptor))
            if self._names is None or self._names[0] != identity:
                self._names = (identity, _read_names(log))
            return self._names[1]
        finally:
            log.close()

    def links(self, thread_id: str) -> Links:
        """The neighbours of a thread. Reads the session metas of `unread_heads` first."""
        head = self.head(thread_id)
        if not self._neighbours.is_fresh(self._catalog.version):
            unread = self.unread_heads()
            self.learn_edges(unread, self.edges(unread))
            self._neighbours.arrange(_Heads(self), self._catalog.version)
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


class _Heads(Mapping[str, RolloutFile]):
    """The selected rollout of each thread, found when it is asked for: there may be 100,000."""

    def __init__(self, store: ThreadStore) -> None:
        self._store = store

    def __getitem__(self, thread_id: str) -> RolloutFile:
        return self._store.head(thread_id)

    def __contains__(self, thread_id: object) -> bool:
        return thread_id in self._store

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.thread_ids())

    def __len__(self) -> int:
        return len(self._store.thread_ids())


def rendered(projection: Projection) -> bytes:
    """The content of a derived file of which nothing lies in a log. Raises StoreError when it can't be given."""
    if projection.extents is None:
        raise StoreError(projection.error or "What is asked for can't be told.")
    return b"".join(part for part in projection.extents.plan(0, projection.size) if isinstance(part, bytes))


def _masked(projection: Projection, mask: Mask) -> Projection:
    """A derived file without its secrets."""
    if projection.extents is None:
        return projection
    content = mask(rendered(projection))
    return replace(projection, extents=Extents.of_bytes(content), generation=digest(b"masked", content))


def _masked_turns(made: dict[str, Files], mask: Mask) -> dict[str, Files]:
    return {
        turn: {path: _masked(one, mask) if path in _MASKED_FILES else one for path, one in files.items()}
        for turn, files in made.items()
    }


def _with_basis(projection: Projection, view: View, more: tuple[Basis, ...]) -> Projection:
    """Further files that a derived file depends on; what holds only now holds no longer with them."""
    if not more or not (projection.basis or view in SELECTION):
        return projection
    return replace(projection, basis=projection.basis + more)


def _basis(path: str, status: os.stat_result) -> Basis:
    return Basis(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read_names(log: Log) -> dict[str, str]:
    """The last name of each thread."""
    names: dict[str, str] = {}
    for line in forward(log):
        try:
            entry = orjson.loads(line.data)
        except orjson.JSONDecodeError:
            continue  # a torn line, as in any append-only file
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and isinstance(entry.get("thread_name"), str):
            names[entry["id"].lower()] = entry["thread_name"]
    return names


def _last_time(descriptor: int, size: int) -> int | None:
    """The time of the last record that has one, in ns."""
    for length in _TAILS:
        start = max(size - length, 0)
        tail = pread_exactly(descriptor, size - start, start)
        at = len(tail)
        while (at := tail.rfind(b'{"timestamp":"', 0, at)) >= 0:
            if start == 0 if at == 0 else tail[at - 1] == 0x0A:
                parsed = parse_time(tail[at + 14 : at + 54].partition(b'"')[0])
                if parsed is not None:
                    return parsed
        if start == 0:
            break
    return None
