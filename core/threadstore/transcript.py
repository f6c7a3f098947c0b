"""`transcript.md`: a thread as people read it, and as `grep` finds it (DESIGN 3).

One walk over the log, in which what happened is shown where it happened: turns, what was said in them, calls and
results, checkpoints, rollbacks, the places where a thread was forked or taken back. What no longer counts stays, and is
marked as such, like in `full_history.jsonl`. Nothing in it names the thread itself, and what was inherited is rendered
from the rollouts that it lies in; so two forks differ from where their logs do.

It is text made of other text, so it is literals and not slices, and that is why its size has a bound: of a log that
may make more than `LARGEST` bytes, what is old is left out, first of what no longer counts. That isn't read either.

Nothing but a walk can tell what the text is, and a walk decodes every record that is shown. So it is made of `parts`,
and those that are known needn't be read again: then a turn that was added costs the time of its own records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, NamedTuple

from threadstore.effects import Effect
from threadstore.extents import ExtentsBuilder
from threadstore.history import is_recorded
from threadstore.lines import Line, forward
from threadstore.longitems import LongItem
from threadstore.markdown import cut, excerpt, word
from threadstore.opened import OpenLineage, first_dialect
from threadstore.outline import BEFORE, GONE, TAKEN_BACK, Place, Run, headings, position, runs
from threadstore.parts import Part, State, key_of, part_of, stretches
from threadstore.passages import PRINTED, SAID, Calls, Passage, passage, summary_of
from threadstore.records import Dialect, Json, Record, Skip
from threadstore.scan import FullScan, Kind
from threadstore.views import dumps

LARGEST: Final = 16 << 20  # bytes, by the most that a record may come to

_TITLE = "# Transcript\n\n*Made from the log by rolloutfs. Times are UTC; what lies in a block is quoted.*\n\n"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_GENERATION = 16  # bytes
_LAST_SECOND = 253_402_300_799  # of the year 9999

_SHOWN = frozenset((Kind.ITEM, Kind.CHECKPOINT, Kind.ROLLBACK, Kind.DAMAGED))
#: A whole record that Codex doesn't take any more, of a kind that isn't shown here.
_SETTINGS = re.compile(rb'\{"timestamp":"[^"]*",(?:"ordinal":\d+,)?"type":"(?:turn_context|event_msg)"')


class Written(NamedTuple):
    """What a walk has made besides the text: the name of this generation, any change of the text makes another one;
    its parts in their order, of which those that weren't known are `new`.
    """

    generation: bytes
    order: tuple[bytes, ...]
    new: tuple[Part, ...]


def write(
    scan: FullScan,
    effect: Effect,
    lineage: OpenLineage,
    builder: ExtentsBuilder,
    known: Mapping[bytes, bytes | Part] = MappingProxyType({}),
) -> Written:
    """Add the transcript to `builder`. `known` has parts of a log that this one begins with, by their keys."""
    walk = _Walk(scan, effect, lineage, builder, known)
    walk.everything()
    return Written(walk.digest.digest(), tuple(walk.order), tuple(walk.new))


def write_end(
    scan: FullScan, effect: Effect, lineage: OpenLineage, builder: ExtentsBuilder, start: Place, most: int
) -> bytes:
    """Add what happened from a place on, in about `most` bytes; a digest of what was added."""
    walk = _Walk(scan, effect, lineage, builder, {})
    walk.end(start, most)
    return walk.digest.digest()


class _Walk:
    """Shows the records of a lineage, oldest first.

    Invariant: what was said so far is in `builder` and in `digest`, but for `_said`, and its parts are in `order`. The
    first `_next` headings were met; `_told` says that the last of them is the one that what follows stands under.
    """

    def __init__(
        self,
        scan: FullScan,
        effect: Effect,
        lineage: OpenLineage,
        builder: ExtentsBuilder,
        known: Mapping[bytes, bytes | Part],
    ) -> None:
        self._scan = scan
        self._effect = effect
        self._lineage = lineage
        self._builder = builder
        self._known = known
        self._paths = [word(file.rollout.path) for file in lineage.files]
        self._dialects: dict[int, Dialect] = {}  # of the segments of which something was shown
        self._kept: dict[int, dict[int, Record | Skip | Line] | None] = {}  # of these, what needn't be read again
        self._headings = headings(scan, effect)
        self._next = 0
        self._told = True
        self._again = lineage.again  # the scan has found sound what is shown
        self._calls = Calls()
        self._said: list[bytes] = []
        self.order: list[bytes] = []
        self.new: list[Part] = []
        self.digest = blake2b(digest_size=_GENERATION)

    def everything(self) -> None:
        """Show all there is."""
        self._add(_TITLE)
        leaf = self._lineage.segments[-1].meta
        if len(self._paths) == 1 and self._scan.paginated and leaf.get("forked_from_id"):
            self._add(f"## Fork\n\n*Of thread {word(leaf['forked_from_id'])}, of which nothing was inherited.*\n\n")
        self._from(0, 0, LARGEST)

    def end(self, start: Place, most: int) -> None:
        """Show what happened from a place on."""
        before = [heading for heading in self._headings if heading.start < start]
        self._next, self._told = len(before), False
        number = max((heading.number for heading in before if heading.number is not None), default=None)
        self._add("# From the beginning on" if number is None else f"# After turn {number}")
        self._add(f"\n\n*It lies in `{self._paths[start[0]]}:{start[1]}`.*\n\n")
        self._from(position(self._scan, start), start[0], most)

    def _from(self, first: int, segment: int, most: int) -> None:
        """Show the records from one on, which lies in `segment`."""
        for run in runs(self._scan, self._headings, most, first):
            segment = self._enter(segment, run.segment)
            if run.shown:
                for stretch in stretches(self._scan, run):
                    self._part(stretch)
            else:
                self._leave_out(run)
        self._enter(segment, len(self._paths) - 1)
        self._add(self._calls.end())
        self._between()

    # Parts

    def _part(self, run: Run) -> None:
        """Show a stretch of records, or what is known of it."""
        self._between()
        begin = self._next
        key = self._key(run)
        part = part_of(key, self._known.get(key))
        if part is None:
            self._show(run)
            part = Part(key, self._taken(), (self._next - begin, self._told, self._calls.state()))
            self.new.append(part)
        else:
            consumed, self._told, calls = part.after
            self._next, self._calls = begin + consumed, Calls(*calls)
        self._put(part)

    def _between(self) -> None:
        """What was said between two parts is one, too."""
        if self._said:
            text = self._taken()
            part = Part(key_of(text), text, ())
            if part_of(part.key, self._known.get(part.key)) is None:
                self.new.append(part)
            self._put(part)

    def _put(self, part: Part) -> None:
        self.order.append(part.key)
        self.digest.update(part.text)
        self._builder.literal(part.text)

    def _taken(self) -> bytes:
        """What was said since it was taken last."""
        data = b"".join(self._said)
        self._said.clear()
        return data

    def _key(self, run: Run) -> bytes:
        """All that the text of some records follows from but their bytes. Of a turn that began before them it isn't the
        status, nor where it ends later: so what was written while it ran stays.
        """
        scan, segment, some = self._scan, run.segment, slice(run.first, run.last + 1)
        _, offsets, lengths, kinds = scan.columns
        effect, end = self._effect, (segment, self._end(run))
        counted = bytes(
            effect.has_item(segment, offset, offset + length)
            for offset, length in zip(offsets[some], lengths[some], strict=True)
        )
        before: State = ()
        if self._next:
            heading = self._headings[self._next - 1]
            before = (heading.title, heading.state, min(heading.end, end))
        met: list[State] = []
        for heading in self._headings[self._next :]:
            if heading.start >= end:
                break
            turn = heading.turn
            about = (turn.shown_status, turn.model, turn.started_at, turn.error)
            met.append((heading.start, min(heading.end, end), heading.title, heading.state, *about))
        return key_of(
            *(self._paths[segment], segment, offsets[some], lengths[some], kinds[some], counted, end),
            *(scan.copied, scan.forked_at, self._lineage.segments[-1].meta.get("forked_from_id"), effect.checkpoint),
            *(before, met, self._told, self._calls.state()),
        )

    def _end(self, run: Run) -> int:
        """The first byte of the segment that isn't read for some records. Those found inside a line end before it."""
        _, offsets, lengths, kinds = self._scan.columns
        last = run.last
        while last > run.first and kinds[last] == Kind.RECOVERED:
            last -= 1
        return min(offsets[last] + lengths[last] + 1, self._lineage.end_of(run.segment))

    # What is said

    def _enter(self, segment: int, following: int) -> int:
        """What is said between two segments: how the thread came to go on in another rollout."""
        for number in range(segment, following):
            before, after = self._lineage.files[number], self._lineage.files[number + 1]
            end = self._lineage.end_of(number)
            if before.rollout.thread_id != after.rollout.thread_id:
                text = f"Fork\n\n*What came before is inherited from thread {word(before.rollout.thread_id)}.*"
            elif end < before.log.size:
                text = (
                    f"Revert\n\n*The thread was taken back to here. What had followed: `{self._paths[number]}:{end}`.*"
                )
            else:
                text = "Undo of a revert\n\n*What came before counts again, to its end.*"
            self._close(text)
        return following

    def _show(self, run: Run) -> None:
        _, offsets, _, kinds = self._scan.columns
        log = self._lineage.files[run.segment].log
        if run.segment not in self._dialects:
            self._dialects[run.segment] = first_dialect(log)
            self._kept[run.segment] = self._lineage.kept[run.segment] if self._lineage.as_kept(run.segment) else None
        dialect, kept = self._dialects[run.segment], self._kept[run.segment]
        at = run.first
        if kept is not None:
            for offset, kind in zip(offsets[at : run.last + 1], kinds[at : run.last + 1], strict=True):
                if kind != Kind.RECOVERED:
                    held = kept[offset]
                    self._line(held if isinstance(held, Line) else held.line, run.segment, kind, dialect)
            return
        for line in forward(log, offsets[at], self._end(run)):
            while at <= run.last and offsets[at] < line.start:  # what was found inside a damaged line
                at += 1
            if at <= run.last and offsets[at] == line.start:
                self._line(line, run.segment, kinds[at], dialect)

    def _leave_out(self, run: Run) -> None:
        segments, offsets, lengths, _ = self._scan.columns
        turns = 0
        while self._next < len(self._headings) and self._headings[self._next].start <= (run.segment, offsets[run.last]):
            self._next += 1
            turns += 1
        size = offsets[run.last] + lengths[run.last] - offsets[run.first]
        place = f"{self._paths[segments[run.first]]}:{offsets[run.first]}"
        records = run.last + 1 - run.first
        text = f"## Left out\n\n*{turns:,} turns begin here, {records:,} records of {size:,} bytes, from `{place}` on.*"
        self._add(f"{text}\n\n")
        self._told = False

    def _line(self, line: Line, segment: int, kind: int, dialect: Dialect) -> None:
        place = (segment, line.start)
        while self._next < len(self._headings) and self._headings[self._next].start <= place:
            self._turn(self._again(segment, line, dialect), place)
        if line.start == self._scan.forked_at:
            self._close(
                f"Fork\n\n*What came before was copied from thread "
                f"{word(self._lineage.segments[-1].meta.get('forked_from_id'))}.*"
            )
        if kind in _SHOWN:
            is_damaged = kind == Kind.DAMAGED
            decoded = self._lineage.decode(line, dialect) if is_damaged else self._again(segment, line, dialect)
            if isinstance(decoded, Record):
                self._record(decoded, place)
            elif decoded.code != "bad_record" or _SETTINGS.match(line.data) is None:
                where = f"`{self._paths[segment]}:{line.start}`"
                self._add(f"*A damaged line of {line.end - line.start:,} bytes was passed over: {where}*\n\n")

    def _record(self, record: Record, place: Place) -> None:
        if record.is_event("thread_rolled_back"):
            count = record.payload["num_turns"]
            self._close(f"Rollback{self._time(record, place)}\n\n*Turns taken back: the last {count:,}.*")
            return
        long, payload = None, record.payload
        if record.line.gaps:
            long = LongItem(self._lineage.files[place[0]].log, place[1], record.line.end - place[1])
            document = long.document()
            payload = document if record.dialect is Dialect.BARE else document["payload"]
        if record.type == "compacted":
            self._checkpoint(record, payload, place, long)
            return
        self._announce(place)
        item = payload if record.type == "response_item" else payload | {"type": record.type}
        where = f"{self._paths[place[0]]}:{place[1]}"
        self._said.append(passage(Passage(item, where, self._mark(record, place), long), self._calls))

    def _turn(self, first: Record | Skip, place: Place) -> None:
        """A turn begins."""
        self._add(self._calls.end())
        heading = self._headings[self._next]
        self._next += 1
        self._told = True
        turn = heading.turn
        status = f" · {turn.shown_status}"
        model = f" · {word(turn.model)}" if turn.model else ""
        time = _utc(turn.started_at) or (self._time(first, place) if isinstance(first, Record) else "")
        self._add(f"## {heading.title}{status}{model}{time}\n\n")
        if turn.error is not None:
            message = turn.error.get("message") if isinstance(turn.error, dict) else None
            text = message if isinstance(message, str) else dumps(turn.error).decode()
            self._add("*It failed:*\n\n")
            self._said.append(excerpt(cut(text, PRINTED), f"{self._paths[place[0]]}:{place[1]}"))

    def _checkpoint(self, record: Record, payload: Json, place: Place, long: LongItem | None) -> None:
        newest = self._effect.checkpoint
        state = "in force" if place == newest else BEFORE if newest is not None and place < newest else TAKEN_BACK
        items = payload.get("replacement_history")
        by = f"{len(items):,} items" if isinstance(items, list) else "the newest messages of the user and the summary"
        text = f"Checkpoint · {state}{self._time(record, place)}\n\n*The model's memory was replaced by {by}.*"
        self._interrupt(text)
        summary = summary_of(payload["message"])
        if summary.strip():
            of = Passage(payload, f"{self._paths[place[0]]}:{place[1]}", "", long)
            self._said.append(of.shown(summary, SAID))

    def _interrupt(self, text: str) -> None:
        """Something that is no part of a turn, though it may happen in one."""
        self._add(f"## {text}\n\n")
        self._told = False

    def _close(self, text: str) -> None:
        """The same of something that a turn doesn't outlive."""
        self._add(self._calls.end())
        self._interrupt(text)

    def _announce(self, place: Place) -> None:
        """Say which turn goes on."""
        if not self._told and self._next:
            heading = self._headings[self._next - 1]
            self._add(f"## {heading.title} · {'continued' if place < heading.end else 'after its end'}\n\n")
        self._told = True

    def _mark(self, record: Record, place: Place) -> str:
        """What is to be said of an item because its turn's heading doesn't say it."""
        state = self._headings[self._next - 1].state if self._next else ""
        if self._effect.has_item(place[0], place[1], record.line.end):
            return " · still remembered" if state in GONE else ""
        if state in GONE or (record.type == "response_item" and not is_recorded(record)):
            return ""
        newest = self._effect.checkpoint
        return f" · {BEFORE if newest is not None and place < newest else TAKEN_BACK}"

    def _time(self, record: Record, place: Place) -> str:
        """When a record was written. What was copied from another thread tells the time of copying only."""
        scan = self._scan
        if scan.copied and (scan.forked_at is None or place[1] < scan.forked_at):
            return ""
        time = _TIME.match(record.timestamp or "")
        return f" · {time[0].replace('T', ' ')}" if time is not None else ""

    def _add(self, text: str) -> None:
        if text:
            self._said.append(text.encode())


def _utc(seconds: int | None) -> str:
    if seconds is None or not 0 <= seconds <= _LAST_SECOND:
        return ""
    return f" · {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
