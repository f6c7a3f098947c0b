"""Making the derived files of one thread: from its head to projections.

Two passes exist. The *replay* reads from the end and stops early; the histories and the world state come from it.
The *scan* reads everything from the beginning; turns, usage, counts and problems come from it. Both can go on where
they stopped when a log has only grown, so that following a live thread costs its new bytes; the results for the
last few threads are kept for that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from typing import Any, Protocol

from threadstore import diagnosis, dropped, prompt, reverts, transcript, views
from threadstore.calls import match_calls
from threadstore.catalog import Catalog
from threadstore.effects import Effect
from threadstore.errors import LineageError, Problem, StoreError, TooLargeError, UnreadableError
from threadstore.extents import Extents, ExtentsBuilder
from threadstore.heads import Subject
from threadstore.lineage import Segment, base_of, is_paginated, resolve
from threadstore.lines import Line, Log, forward
from threadstore.metas import REJECTED, Metas
from threadstore.names import RolloutFile
from threadstore.opened import Decode, OpenLineage, first_dialect, open_rollout
from threadstore.parts import KIND as WRITTEN
from threadstore.parts import Part, Parts
from threadstore.passes import Blocks, Digester, Pass, packed, unpacked
from threadstore.projection import Basis, Projection, View
from threadstore.records import Dialect, Json, Memo, Record, Skip, decode, dialect_of, is_blank
from threadstore.replay import Replay, is_silent
from threadstore.replaying import continued, extended, replay_lineage, whole_lines
from threadstore.scan import FullScan, Source, words_of
from threadstore.spool import Spool
from threadstore.texts import Text, text_of, texts_of
from threadstore.usage import Spent, add

KINDS = ("scan", "history", "state")  # of passes
BLOCKS = "blocks"  # of what all of them have read
DOUBT = "doubt"  # is kept of a thread as long as these are doubtful
_KEPT = 4  # threads whose passes are kept
_KEPT_GENERATIONS = 1000  # of which is known what was spent in them
_REMEMBERED = (
    1 << 20
)  # bytes of a lineage up to which records are kept from one pass to the next, and above which passes
_UNPACKED = 8 << 20  # bytes of text in parts of transcripts that needn't be packed: most are never asked for again
_AT_HAND = 16 << 20  # up to which items are kept while derived files are made: some three bytes of memory for each

_HISTORIES = frozenset((View.EFFECTIVE_HISTORY, View.MODEL_INPUT, View.PENDING_CALLS))
_SAID = (b"user_message", b"UserMessage")  # in the lines with the words of a person
_DROPPED = frozenset((View.DROPPED, View.DROPPED_TURNS))
_ANEW = frozenset((View.DROPPED,))  # made from the records themselves each time
#: Files that can't be made when the lineage is broken; the others tell what there is.
_NEED_LINEAGE = _HISTORIES | _DROPPED | {View.WORLD_STATE, View.TURNS, View.USAGE, View.LINEAGE, View.TRANSCRIPT}


class Projector:
    """See the module text. Raises StoreError and OSError."""

    def __init__(self, root: str, spool: Spool, catalog: Catalog, metas: Metas) -> None:
        self._root = root
        self.spool = spool
        self.catalog = catalog
        self._metas = metas
        self._kept: OrderedDict[tuple[str, str], object] = OrderedDict()  # passes by thread and kind
        self._memo: tuple[tuple[Basis, ...], Memo] = ((), Memo())
        self.remembered: Callable[[str, str], bytes | None] | None = None  # packed ones of another process
        self.parts: Callable[[str], dict[bytes, bytes]] = lambda _thread: {}  # of transcripts, of another process
        self._reverted: OrderedDict[object, Spent] = OrderedDict()
        self._dropped: OrderedDict[object, bytes] = OrderedDict()  # lines of turns by the end of a generation
        self._blocks: dict[str, Blocks] = {}  # what passes over large logs of this process have read
        self._digester = Digester()
        self._proven: tuple[tuple[Basis, ...], bool] = ((), False)
        self._disproven: set[str] = set()  # threads of which the passes of another process are worth nothing

    def project(self, subject: Subject, view: View) -> Projection:
        """Make one derived file."""
        rollout = subject.head.rollout
        try:
            segments, error = self.segments(rollout), None
        except LineageError as broken:
            segments, error = [Segment(rollout, self._metas.read(rollout), None, None)], broken
        except (UnreadableError, TooLargeError) as shut:
            if view is not View.PROBLEMS:
                raise
            extents, generation = _rendered(diagnosis.closed(subject, shut))
            return Projection(extents, (), generation)
        with self.open(segments) as lineage:
            passes = _Passes(self, subject, lineage, error)
            if error is not None and view in _NEED_LINEAGE:
                return Projection(None, (), b"", error.message)
            passes.keep = view is View.TRANSCRIPT and _REMEMBERED < sum(lineage.ends()) <= _AT_HAND
            extents, generation = self._make(passes, view)
            return Projection(extents, passes.basis(view), generation)

    def project_all(self, subject: Subject, hearer: Hearer | None = None) -> dict[View, Projection]:
        """Every derived file, for less than one by one costs. What can't be made of a closed file is left out, and of a
        large log what would read it again although only a turn was added. The `hearer` is told what was said.
        """
        rollout = subject.head.rollout
        try:
            lineage = self.open(self.segments(rollout))
        except LineageError:
            return {view: self.project(subject, view) for view in View}
        except (UnreadableError, TooLargeError):
            return {View.PROBLEMS: self.project(subject, View.PROBLEMS)}
        with lineage:
            if not _is_large(lineage):
                lineage.decode = self._memo_of(lineage).decode
            passes = _Passes(self, subject, lineage, None)
            passes.keep = _REMEMBERED < sum(lineage.ends()) <= _AT_HAND
            if hearer is not None:
                self._tell(passes, hearer)
            first = (View.THREAD, *View)  # from the scan, which makes the others quicker
            anew = _ANEW if _is_large(lineage) else frozenset()
            made = {view: self._make(passes, view) for view in dict.fromkeys(first) if view not in anew}
            if self.remembered is not None and _is_large(lineage):
                known = self._blocks.get(subject.thread_id)
                self._blocks[subject.thread_id] = Blocks.over(lineage, known, self._digester)
                self._disproven.discard(subject.thread_id)
            return {view: Projection(made[view][0], passes.basis(view), made[view][1]) for view in made}

    def _memo_of(self, lineage: OpenLineage) -> Memo:
        """What was decoded last, if it was of the same files."""
        basis = tuple(file.basis for file in lineage.files)
        if self._memo[0] != basis:
            self._memo = (basis, Memo())
        return self._memo[1]

    def segments(self, head: RolloutFile) -> list[Segment]:
        """The lineage of a rollout. Raises LineageError."""
        meta = self._metas.read(head)
        mode = meta.get("history_mode", "legacy")
        if mode not in ("legacy", "paginated"):
            message = f"{head.path}: unknown history mode {mode!r}. A newer release of rolloutfs may know it."
            raise LineageError("meta_mode", message)
        if REJECTED in meta and meta.get("history_base") is not None and base_of(meta) is None:
            raise LineageError("lineage_base", f"{head.path}: its history_base is damaged, so its past can't be found.")
        if not meta and self._is_undecodable(head):
            raise LineageError("zstd_corrupt", f"{head.path}: nothing of it can be decoded. Restore it from a backup.")
        return resolve(head, self._ancestor, self._find, self._decoded_size)

    def _is_undecodable(self, head: RolloutFile) -> bool:
        if not head.compressed:
            return False
        opened = open_rollout(self._root, head, self.spool)
        opened.log.close()
        return opened.damage == "corrupt" and opened.log.size == 0

    def _ancestor(self, rollout: RolloutFile) -> Json:
        """The meta of a file of a lineage, which is broken when that can't be read."""
        try:
            return self._metas.read(rollout)
        except (UnreadableError, TooLargeError) as error:
            raise LineageError("lineage_unreadable", f"{rollout.path} is needed: {error.message}") from error

    def _find(self, rollout_id: str) -> RolloutFile | None:
        files = self.catalog.of_rollout(rollout_id)
        return files[-1] if files else None

    def _decoded_size(self, rollout: RolloutFile) -> int:
        opened = open_rollout(self._root, rollout, self.spool)
        opened.log.close()
        return opened.log.size

    def open(self, segments: list[Segment]) -> OpenLineage:
        """The open files of a lineage; close it."""
        lineage = OpenLineage(segments, [])
        try:
            for segment in segments:
                lineage.files.append(open_rollout(self._root, segment.rollout, self.spool))
        except BaseException:
            lineage.close()
            raise
        return lineage

    def open_thread(self, head: RolloutFile) -> OpenLineage:
        """The open files of the lineage of a rollout, of which lines are decoded once if they are small; close it."""
        lineage = self.open(self.segments(head))
        if not _is_large(lineage):
            lineage.decode = self._memo_of(lineage).decode
        return lineage

    def _make(self, passes: _Passes, view: View) -> tuple[Extents, bytes]:
        subject, lineage, error = passes.subject, passes.lineage, passes.error
        if view in _HISTORIES:
            return _history_view(view, lineage, passes.history)
        if view is View.WORLD_STATE:
            return _rendered(views.world_state(passes.state))
        if view is View.DROPPED_TURNS:
            return _rendered(b"".join(self._dropped_turns(end) for end in passes.ends.ends))
        if view is View.DROPPED:
            return self._dropped_text(passes.ends)
        if view is View.LINEAGE:
            return _rendered(views.lineage(subject.thread_id, subject.head, subject.rollouts, lineage))
        scan = passes.scan
        if view is View.TURNS:
            return _rendered(views.turns(scan))
        if view is View.USAGE:
            return _rendered(views.page(passes.usage))
        if view is View.PROBLEMS:
            return _rendered(views.problem_lines(passes.problems, scan.hidden_problems))
        if view is View.THREAD:
            replay = None if error is not None else passes.state
            preview = subject.row.preview if subject.row is not None else None
            created = self.created(subject.rollouts)
            summary = views.Summary(subject.thread_id, subject.head, subject.name, preview, created)
            usage = None if error is not None else passes.usage
            return _rendered(views.thread(summary, lineage.segments, scan, replay, passes.problems, usage, error))
        if view is View.TRANSCRIPT:
            return self._transcript(passes)
        builder = ExtentsBuilder()
        views.full_history(scan, passes.effect, lineage.files, builder)
        return builder.build(), digest(*lineage.identities(), *_marks(None if error is not None else passes.history))

    def _transcript(self, passes: _Passes) -> tuple[Extents, bytes]:
        """The transcript, of a large log from the parts that were written before."""
        thread_id, lineage = passes.subject.thread_id, passes.lineage
        builder = ExtentsBuilder()
        if not _is_large(lineage):
            generation = transcript.write(passes.scan, passes.effect, lineage, builder).generation
            return builder.build(), generation
        before = self._recall(thread_id, WRITTEN, lineage)
        now = Pass.over(lineage)
        known: Mapping[bytes, bytes | Part] = {}
        if before is not None and _may_go_on(before.passed, now, lineage):
            known = before.found if isinstance(before, Parts) else self.parts(thread_id)
        written = transcript.write(passes.scan, passes.effect, lineage, builder, known)
        now.consumed = whole_lines(lineage.files[-1].log)
        new = {part.key: part for part in written.new}
        parts = {key: new[key] if key in new else known[key] for key in written.order}
        self._keep(thread_id, WRITTEN, Parts(now, written.generation, written.order, parts))
        self._pack()
        return builder.build(), written.generation

    def _pack(self) -> None:
        """Of the transcripts that are kept, pack what is more than `_UNPACKED`, the newest last."""
        left = _UNPACKED
        for parts in reversed(self._kept.values()):
            if isinstance(parts, Parts):
                left -= parts.weight()
                if left < 0:
                    parts.packed()

    # The two passes

    def history(self, thread_id: str, lineage: OpenLineage) -> Replay:
        """The replay that histories need, going on from the last one where nothing but items was added."""
        return self._replay(thread_id, lineage, state=False)

    def state(self, thread_id: str, lineage: OpenLineage) -> Replay:
        """The replay that tells settings, world state and window, too, going on where whole turns were added."""
        return self._replay(thread_id, lineage, state=True)

    def _replay(self, thread_id: str, lineage: OpenLineage, *, state: bool) -> Replay:
        kind = "state" if state else "history"
        known: tuple[Pass, Replay] | None = self._recall(thread_id, kind, lineage)
        now = Pass.over(lineage)
        replay = None
        if known is not None and _may_go_on(known[0], now, lineage):
            go_on = continued if state else extended
            replay = go_on(known[1], lineage, known[0].consumed or 0)
        if replay is None:
            replay = replay_lineage(lineage, state=state)
        now.consumed = whole_lines(lineage.files[-1].log)
        self._keep(thread_id, kind, (now, replay))
        return replay

    def _recall(self, thread_id: str, kind: str, lineage: OpenLineage) -> Any:
        """What is known of the last pass of a kind; it is taken, since going on changes it."""
        known = self._kept.pop((thread_id, kind), None)
        if known is None and self.remembered is not None and _is_large(lineage):
            data = self.remembered(thread_id, kind)
            known = unpacked(data) if data is not None and self._is_proven(thread_id, lineage) else None
        return known

    def _is_proven(self, thread_id: str, lineage: OpenLineage) -> bool:
        """True when the files still begin with what passes of another process have read, as far as that is compared
        before going on (`Blocks`), or with what this one has read.
        """
        if thread_id in self._blocks:
            return True
        if thread_id in self._disproven:
            return False
        basis = tuple(file.basis for file in lineage.files)
        if self._proven[0] != basis:
            proven = self._compare(thread_id, lineage, whole=False)
            self._proven = (basis, proven is not None)
            if proven is not None:
                self._blocks[thread_id] = proven
        return self._proven[1]

    def _compare(self, thread_id: str, lineage: OpenLineage, *, whole: bool) -> Blocks | None:
        data = None if self.remembered is None else self.remembered(thread_id, BLOCKS)
        blocks = None if data is None else unpacked(data)
        return blocks.proven(lineage, whole=whole) if isinstance(blocks, Blocks) else None

    def prove(self, thread_id: str, head: RolloutFile) -> bytes | None:
        """Compare all that passes of another process have read of a thread with what is there: packed blocks that are
        not doubtful any more. None when it is something else, and then nothing of it is used again.
        """
        with self.open(self.segments(head)) as lineage:
            blocks = self._compare(thread_id, lineage, whole=True)
        if blocks is None:
            self._forget(thread_id)
            return None
        self._blocks[thread_id] = blocks
        return packed(blocks)

    def _forget(self, thread_id: str) -> None:
        """The passes over a thread are worth nothing."""
        for kind in (*KINDS, WRITTEN):
            self._kept.pop((thread_id, kind), None)
        self._blocks.pop(thread_id, None)
        self._disproven.add(thread_id)

    def _keep(self, thread_id: str, kind: str, found: object) -> None:
        self._kept[thread_id, kind] = found
        while len(self._kept) > _KEPT * (len(KINDS) + 1):
            self._kept.popitem(last=False)

    def packed_passes(self, thread_id: str) -> dict[str, bytes]:
        """The passes over a thread that were made last, to be `remembered` in another process."""
        found: dict[str, object] = {kind: self._kept.get((thread_id, kind)) for kind in KINDS}
        found[BLOCKS] = blocks = self._blocks.get(thread_id)
        found[DOUBT] = True if blocks is not None and blocks.doubtful else None
        parts = self._kept.get((thread_id, WRITTEN))
        found[WRITTEN] = parts.outline() if isinstance(parts, Parts) else None
        return {kind: packed(one) for kind, one in found.items() if one is not None}

    def packed_parts(self, thread_id: str) -> dict[bytes, bytes]:
        """The parts of the transcript that was made last of a large log, by their keys."""
        parts = self._kept.get((thread_id, WRITTEN))
        return parts.packed() if isinstance(parts, Parts) else {}

    def scan(
        self, thread_id: str, lineage: OpenLineage, listener: Listener | None = None, *, keep: bool = False
    ) -> FullScan:
        """Everything that happened, going on from the last time where that is possible. With `keep` what is decoded is
        left in the lineage.
        """
        known: tuple[Pass, FullScan] | None = self._recall(thread_id, "scan", lineage)
        now = Pass.over(lineage)
        first = len(lineage.files) - 1
        sources = _sources(lineage)  # the meta of a file that was just begun may have come since
        if known is not None and _may_go_on(known[0], now, lineage) and known[1].sources == sources:
            scan = known[1]
        else:
            scan = FullScan(sources)
            first = 0
        fresh = first == 0 and scan.is_new
        if listener is not None:
            listener.begin((first, scan.offset))
        settled = True
        for number in range(first, len(lineage.files)):
            if fresh or number > first:
                scan.begin(number)
            log = lineage.files[number].log
            take = _keeping(lineage, number, whole=scan.offset == 0) if keep else lineage.decode
            if listener is not None and self.remembered is not None and scan.offset == 0 and _is_large(lineage):
                self._digester.listen(lineage.files[number])
            for line in forward(log, scan.offset, now.ends[number]):
                may_grow = not line.ended and number == len(lineage.files) - 1
                if may_grow and not is_blank(line) and not _is_whole(line, log):
                    break  # it may still be being written
                found = scan.line(line, take)
                if listener is not None and isinstance(found, Record):
                    listener.record(found, number)
                settled = line.ended  # what lacks its newline may yet become another line
        now.consumed = scan.offset if settled else None
        self._keep(thread_id, "scan", (now, scan))
        return scan

    def first_words(self, head: RolloutFile) -> str | None:
        """What a person said first, as `thread.json` has it for a preview; reads no further than that."""
        try:
            segments = self.segments(head)
        except LineageError:
            segments = [Segment(head, self._metas.read(head), None, None)]
        with self.open(segments) as lineage:
            for number, file in enumerate(lineage.files):
                dialect: Dialect | None = None
                for line in forward(file.log, 0, lineage.end_of(number)):
                    if dialect is None and line.data[:1] == b"{":
                        dialect = dialect_of(line)
                    if dialect is not Dialect.BARE and not any(mark in line.data for mark in _SAID):
                        continue
                    record = decode(line, dialect or Dialect.ENVELOPE)
                    words = None if isinstance(record, Skip) else words_of(record)
                    if words is not None:
                        return words
        return None

    def created(self, rollouts: Iterable[RolloutFile]) -> str | None:
        """A revert writes a new meta with a new time; the thread began with the oldest rollout of its own."""
        oldest = min(rollouts, key=lambda rollout: (rollout.stamp, rollout.rollout_id))
        try:
            created = self._metas.read(oldest).get("timestamp")
        except (StoreError, OSError):
            return None  # damaged or just gone: the selected rollout says when it was written itself
        return created if isinstance(created, str) else None

    def reverted(self, subject: Subject, lineage: OpenLineage) -> Spent:
        """What the thread spent in generations, or ends of them, that no longer count. These seldom change."""
        counted = {file.rollout.rollout_id: lineage.end_of(number) for number, file in enumerate(lineage.files)}
        found: Spent = {}
        for rollout in subject.rollouts:
            if rollout == subject.head.rollout:
                continue
            with suppress(StoreError, FileNotFoundError), self.open(self.segments(rollout)) as generation:
                key = (tuple(file.basis for file in generation.files), tuple(sorted(counted.items())))
                known = self._reverted.get(key)
                if known is None:
                    known = self._reverted[key] = reverts.spent_beside(generation, subject.thread_id, counted)
                    while len(self._reverted) > _KEPT_GENERATIONS:
                        self._reverted.popitem(last=False)
                add(found, known)
                reverts.note(generation, subject.thread_id, counted)
        return found

    def ends(self, subject: Subject, lineage: OpenLineage) -> dropped.Ends:
        """The ends of generations that the current lineage doesn't have. Opens files, and reads none of them."""
        if len(subject.rollouts) == 1:
            return dropped.Ends((), (), lasts=True)
        counted: dropped.Counted = {}
        dropped.note(lineage, counted)
        found: list[dropped.End] = []
        basis: dict[Basis, None] = {}
        lasts = True
        for rollout in sorted(subject.rollouts, key=lambda one: (one.stamp, one.rollout_id), reverse=True):
            if rollout.rollout_id == subject.head.rollout.rollout_id or self._find(rollout.rollout_id) != rollout:
                continue  # the current one, or a twin that nobody takes
            try:
                meta = self._metas.read(rollout)
                try:
                    segments = self.segments(rollout)
                except LineageError:
                    if not is_paginated(meta):
                        raise
                    segments, lasts = [Segment(rollout, meta, None, None)], False  # its own file, at least
                if not is_paginated(meta):
                    continue
                with self.open(segments) as generation:
                    start = dropped.start_of(generation, counted)
                    dropped.note(generation, counted)
                    basis |= dict.fromkeys(file.basis for file in generation.files)
            except FileNotFoundError:
                lasts = False  # it was taken away just now
            except (LineageError, UnreadableError, TooLargeError) as error:
                lasts = False
                found.append(dropped.End(rollout.path, (), (0, 0), error.message))
            else:
                if start is not None:
                    found.append(dropped.End(rollout.path, tuple(segments), start))
        own = {file.basis for file in lineage.files}
        return dropped.Ends(tuple(reversed(found)), tuple(one for one in basis if one not in own), lasts)

    def _dropped_turns(self, end: dropped.End) -> bytes:
        """The lines of the turns in the end of a generation. These seldom change."""
        if end.shut is not None:
            return b""
        with self.open(list(end.segments)) as generation:
            key = (tuple(file.basis for file in generation.files), end.start)
            known = self._dropped.get(key)
            if known is None:
                known = self._dropped[key] = dropped.turns(end, _scan(generation))
                while len(self._dropped) > _KEPT_GENERATIONS:
                    self._dropped.popitem(last=False)
            return known

    def _dropped_text(self, ends: dropped.Ends) -> tuple[Extents, bytes]:
        text, most = dropped.Text(), transcript.LARGEST // max(len(ends.ends), 1)
        for end in ends.ends:
            if end.shut is not None:
                text.say(end.path, end.shut)
                continue
            with self.open(list(end.segments)) as generation:
                text.add(end, _scan(generation), generation, most)
        return text.builder.build(), digest(*text.marks)

    # What was said

    def texts(self, subject: Subject) -> Iterator[Text]:
        """What was said in the thread's own rollouts; also what was dropped by reverts."""
        with self.open_thread(subject.head.rollout) as lineage:
            ends = self.ends(subject, lineage)
            yield from texts_of(lineage, subject.thread_id, (0, 0))
        yield from self._dropped_texts(subject, ends)

    def _dropped_texts(self, subject: Subject, ends: dropped.Ends) -> Iterator[Text]:
        for end in ends.ends:
            if end.shut is None:
                with self.open(list(end.segments)) as generation:
                    for text in texts_of(generation, subject.thread_id, end.start):
                        yield text._replace(effective=False)

    def _tell(self, passes: _Passes, hearer: Hearer) -> None:
        """What was said, from where the hearer has it if it can go on, else from the beginning. The scan that comes
        first anyway tells it, unless it has other lines to read.
        """
        subject, lineage, ends = passes.subject, passes.lineage, passes.ends
        now, last = Pass.over(lineage), len(lineage.files) - 1
        grown = [file.basis for file in lineage.files[:-1]] if ends.ends else []  # the ends may lie in these, too
        mark = f"{ends.mark()}{grown}"
        start = None
        if hearer.known is not None and _is_large(lineage) and self._is_proven(subject.thread_id, lineage):
            before = unpacked(hearer.known)
            if isinstance(before, tuple) and before[1] == mark and before[0].continues(now, lineage):
                start = before[0].consumed or 0
        hearer.begin(goes_on=start is not None)
        listener = Listener(subject.thread_id, lineage, hearer, (0, 0) if start is None else (last, start))
        passes.listener = listener
        _ = passes.scan
        if not listener.has_heard:
            for text in texts_of(lineage, subject.thread_id, listener.start):
                hearer.take(text)
        if start is None:
            for text in self._dropped_texts(subject, ends):
                hearer.take(text)
        now.consumed = whole_lines(lineage.files[-1].log)
        hearer.end(packed((now, mark)) if _is_large(lineage) else None)


class Hearer(Protocol):
    """Who wants to know what was said in a thread, and has heard some of it before: `known` is what `end` gave then."""

    known: bytes | None

    def begin(self, *, goes_on: bool) -> None:
        """What follows comes after what was heard before, or else replaces it."""

    def take(self, text: Text) -> None:
        """The next text."""

    def end(self, passed: bytes | None) -> None:
        """That was all. None for a small log, which is read anew."""


class Listener:
    """Tells a hearer what was said in the records of a scan, if that begins at the place `start`."""

    def __init__(self, thread_id: str, lineage: OpenLineage, hearer: Hearer, start: tuple[int, int]) -> None:
        self.start = start
        self.has_heard = False
        self._hearer = hearer
        self._paths = [
            file.rollout.path if file.rollout.thread_id == thread_id else None for file in lineage.files
        ]  # of the thread's own rollouts

    def begin(self, place: tuple[int, int]) -> None:
        """A scan begins at that place."""
        self.has_heard = place == self.start

    def record(self, record: Record, number: int) -> None:
        """A record of the file of that number."""
        path = self._paths[number]
        text = text_of(record, path) if self.has_heard and path is not None else None
        if text is not None:
            self._hearer.take(text)


class _Passes:
    """What the derived files of one thread are made from; each part is made when it is asked for first.

    `error` says that the lineage is broken: then there is neither `history` nor `state`.
    """

    def __init__(
        self, projector: Projector, subject: Subject, lineage: OpenLineage, error: LineageError | None
    ) -> None:
        self._projector = projector
        self.subject = subject
        self.lineage = lineage
        self.error = error
        self.keep = False  # what a scan has decoded, for the passes that follow
        self.listener: Listener | None = None  # to what the scan reads

    @cached_property
    def history(self) -> Replay:
        """The replay for the histories."""
        return self._projector.history(self.subject.thread_id, self.lineage)

    @cached_property
    def state(self) -> Replay:
        """The replay that tells settings, world state and window, too."""
        return self._projector.state(self.subject.thread_id, self.lineage)

    @cached_property
    def scan(self) -> FullScan:
        """Everything that happened. What is replayed after it needn't find out once more which lines are records."""
        thread_id = self.subject.thread_id
        scan = self._projector.scan(thread_id, self.lineage, self.listener, keep=self.keep)
        self.lineage.is_sound = scan.is_sound
        return scan

    @cached_property
    def effect(self) -> Effect:
        """Which records count."""
        return Effect(self.scan, None if self.error is not None else self.history)

    @cached_property
    def usage(self) -> Json:
        """The content of `usage.json`."""
        return self.scan.usage.render(self._projector.reverted(self.subject, self.lineage))

    @cached_property
    def ends(self) -> dropped.Ends:
        """What reverts dropped."""
        return self._projector.ends(self.subject, self.lineage)

    def basis(self, view: View) -> tuple[Basis, ...]:
        """The files that a derived file was made from, but for the thread's own older rollouts, which the store adds. A
        broken lineage may be mended by a file that we have not seen, so what is said of it holds only now.
        """
        if self.error is not None or (view in _DROPPED and not self.ends.lasts):
            return ()
        own = tuple(file.basis for file in reversed(self.lineage.files))
        if view not in _DROPPED:
            return own
        rollouts = {rollout.path for rollout in self.subject.rollouts}
        return own + tuple(one for one in self.ends.basis if one.path not in rollouts)

    @cached_property
    def problems(self) -> list[Problem]:
        """What is wrong."""
        listed = self._projector.catalog.problems_of(self.subject.thread_id)
        return diagnosis.problems(self.subject, listed, self.lineage, self.scan, self.error)


def _keeping(lineage: OpenLineage, segment: int, *, whole: bool) -> Decode:
    """Decodes the lines of a segment, `whole` from its beginning, and leaves in the lineage what others need of them:
    what was decoded, or lines that say nothing.
    """
    kept, decode = lineage.begin_keeping(segment, whole=whole), lineage.decode

    def take(line: Line, dialect: Dialect) -> Record | Skip:
        decoded = decode(line, dialect)
        kept[line.start] = line if isinstance(decoded, Record) and is_silent(decoded) else decoded
        return decoded

    return take


def _is_large(lineage: OpenLineage) -> bool:
    return sum(lineage.ends()) > _REMEMBERED


def _may_go_on(before: Pass, now: Pass, lineage: OpenLineage) -> bool:
    """True when a pass may take in what was added. A small log is read anew unless nothing has changed: what was
    written over in its middle is then seen, whatever was appended since.
    """
    if before.consumed is None or not (_is_large(lineage) or before.is_of(now)):
        return False
    return before.continues(now, lineage)


def _scan(generation: OpenLineage) -> FullScan:
    """Everything that happened in a generation that isn't written to any more."""
    scan = FullScan(_sources(generation))
    for number, file in enumerate(generation.files):
        scan.begin(number)
        for line in forward(file.log, 0, generation.end_of(number)):
            scan.line(line, generation.decode)
    return scan


def _sources(lineage: OpenLineage) -> list[Source]:
    leaf = lineage.segments[-1]
    return [
        Source(
            segment.rollout.path,
            segment.meta,
            own=segment is leaf,
            of_thread=segment.rollout.thread_id == leaf.rollout.thread_id,
        )
        for segment in lineage.segments
    ]


def _history_view(view: View, lineage: OpenLineage, replay: Replay) -> tuple[Extents, bytes]:
    history = replay.history
    if view is View.PENDING_CALLS:
        pending = match_calls(history).pending
        documents = [prompt.excerpt(history[at], lineage.fetch, lineage.look) for at in pending]
        return _rendered(views.pending_calls(history, pending, lineage.files, documents))
    builder = ExtentsBuilder()
    sources = [builder.source(file.source) for file in lineage.files]
    generation = [*lineage.identities(), *_marks(replay)]
    if view is View.EFFECTIVE_HISTORY:
        prompt.effective(history, builder, sources, lineage.fetch, lineage.look)
    else:
        prompt.model_input(history, builder, sources, lineage.fetch, lineage.look)
        state = match_calls(history)
        generation.append(repr((state.pending, sorted(state.orphans))).encode())
    return builder.build(), digest(*generation)


def _rendered(content: bytes) -> tuple[Extents, bytes]:
    """Rendered content is replaced as a whole whenever it changes."""
    return Extents.of_bytes(content), digest(content)


def digest(*parts: bytes) -> bytes:
    """A short name for a generation of content."""
    return blake2b(b"\0".join(parts), digest_size=16).digest()


def _marks(replay: Replay | None) -> list[bytes]:
    """What tells that a history is more than the extension of another one."""
    if replay is None:
        return [b"none"]
    base = b"start" if replay.base is None else f"{replay.base.segment}:{replay.base.offset}".encode()
    return [base, repr(replay.ops).encode()]


def _is_whole(line: Line, log: Log) -> bool:
    """True for a last line without newline that is a record nevertheless: only its newline was lost."""
    return isinstance(decode(line, first_dialect(log)), Record)
