"""Everything that happened in a thread: one forward pass over its lineage.

The turn list, the usage, the list of all records and the list of what is damaged need every record. `FullScan` is a
reducer over records, oldest first, that can go on where it stopped: when a log has grown, only its new bytes are
read. What it keeps is a few numbers a record.

Whether a line is *torn* can't be said while it may still be being written, so an unfinished last line is not
consumed; it is reported beside the scan and read again next time.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from threadstore.errors import Problem
from threadstore.lineage import is_paginated
from threadstore.lines import Line
from threadstore.records import RECORD_START, Dialect, Json, Record, Skip, decode, dialect_of, is_blank, loads
from threadstore.turns import LegacyTurns, PaginatedTurns, Tracker
from threadstore.usage import UsageTracker

MOST_PROBLEMS = 10_000  # of one thread are named one by one; the rest is counted


class Kind(IntEnum):
    """What a line is, as far as `full_history.jsonl` and the counts need it."""

    META = 0
    ITEM = 1
    EVENT = 2
    CHECKPOINT = 3
    OTHER = 4
    ROLLBACK = 5
    DAMAGED = 6
    RECOVERED = 7
    UNKNOWN = 8


_KINDS = {
    "session_meta": Kind.META,
    "response_item": Kind.ITEM,
    "inter_agent_communication": Kind.ITEM,
    "compacted": Kind.CHECKPOINT,
}
_NO_RECORDS = frozenset((Kind.DAMAGED, Kind.RECOVERED, Kind.UNKNOWN))
_MARKER = re.compile(
    rb'\{"timestamp":"[^"]*",(?:"ordinal":\d+,)?"type":"(?:response_item|token_usage_record|event_msg","payload":\{"type":'
    rb'"(?:item_completed|agent_message|user_message|agent_reasoning|token_count)")'
)
_MOST_PIECES = 64  # of one line are looked at
_HEAD = re.compile(rb'\{"timestamp":"[^"]*",(?:"ordinal":(\d+),)?')
#: The tags of a line, as far as they tell what kind of record it is.
_TAGS = re.compile(
    rb'"type":"(?:(?:event_msg|response_item)","payload":\{"type":"\w+"|(?!event_msg"|response_item")\w+","payload":\{")'
)
_TELLING = 160  # bytes that two lines begin with can't be the same by chance


@dataclass(frozen=True, slots=True)
class Source:
    """What the scan is told of a segment: path, session meta, whether it is the thread's selected rollout, and whether
    it is a rollout of the thread at all.
    """

    path: str
    meta: Json
    own: bool
    of_thread: bool


class FullScan:
    """Reducer over all lines of a lineage.

    Invariant: the columns have one entry a line that isn't blank; `offset` is the first byte of segment `segment`
    that was not consumed.
    """

    def __init__(self, sources: list[Source]) -> None:
        self.sources = sources
        leaf = sources[-1].meta
        self.paginated = is_paginated(leaf)
        starts = [_start_ordinal(source.meta) for source in self.sources]
        self.tracker: Tracker = PaginatedTurns(starts) if self.paginated else LegacyTurns()
        self.attached = bool(leaf.get("attached_thread"))
        self.copied = not self.paginated and bool(leaf.get("forked_from_id"))  # the log begins with one that was forked
        self.usage = UsageTracker()
        self.segment = 0
        self.offset = 0
        self.columns = (array("H"), array("Q"), array("Q"), array("B"))  # segment, offset, length, kind
        self.counts: Counter[str] = Counter()
        self.problems: list[Problem] = []
        self.hidden_problems = 0
        self.first_time: str | None = None
        self.last_time: str | None = None
        self.first_user: str | None = None
        self.cwd: object = leaf.get("cwd")  # where the thread works now: the newest settings say
        self.dialect: Dialect | None = None
        self._index = 0
        self._metas = 0
        self._segment_start = 0  # lines before the current segment
        self._ordinal: int | None = None
        self._lost = 0  # records that lines passed over since then may have held
        self._retried: tuple[bytes, int, int] | None = None  # a damaged line that the next one may repeat
        self._open_turns: set[str] = set()
        self._own_from = starts[-1]  # the first ordinal of what isn't copied from a parent
        self._inherited_marked = False
        self.forked_at: int | None = None  # in a copied fork: the first byte of its own

    @property
    def is_new(self) -> bool:
        """True before the first line."""
        return self.segment == 0 and self.offset == 0

    def is_sound(self, segment: int, line: Line) -> bool:
        """True for a line of which this has seen that it is a record."""
        segments, offsets, lengths, kinds = self.columns
        low = bisect_left(segments, segment)
        at = bisect_left(offsets, line.start, low, bisect_right(segments, segment, low))
        if at == len(offsets) or (segments[at], offsets[at]) != (segment, line.start):
            return False
        return lengths[at] == line.end - line.start and kinds[at] not in _NO_RECORDS

    def begin(self, segment: int) -> None:
        """The lines of another segment follow."""
        self.segment, self.offset = segment, 0
        self._metas = 0
        self._segment_start = len(self.columns[0])
        self.dialect = None
        self._retried = None
        if self.sources[segment].of_thread and segment and not self.sources[segment - 1].of_thread:
            self._mark_inherited()

    def line(self, line: Line, decode: Callable[[Line, Dialect], Record | Skip] = decode) -> Record | Skip | None:
        """Take the next line; what it holds, None for a blank one."""
        self.offset = line.end + (1 if line.ended else 0)
        if is_blank(line):
            self.counts["blank"] += 1
            return None
        if self.dialect is None and line.data[:1] == b"{":
            self.dialect = dialect_of(line)
        decoded = decode(line, self.dialect or Dialect.ENVELOPE)
        if isinstance(decoded, Skip):
            self._skip(decoded)
        else:
            self._record(decoded)
        return decoded

    def _record(self, record: Record) -> None:
        if self._retried is not None:
            self._note_retry(record.line)
        kind = self._kind(record)
        self._add(record.line, kind)
        self.counts["records"] += 1
        if record.timestamp is not None:
            self.first_time = self.first_time or record.timestamp
            self.last_time = record.timestamp
        if kind is Kind.META:
            self._meta(record)
        else:
            self._content(record, kind)
        if self.paginated:
            self._check_ordinal(record)
        self._index += 1

    def _kind(self, record: Record) -> Kind:
        if record.type == "event_msg":
            return Kind.ROLLBACK if record.payload["type"] == "thread_rolled_back" else Kind.EVENT
        return _KINDS.get(record.type, Kind.OTHER)

    def _add(self, line: Line, kind: Kind) -> None:
        segments, offsets, lengths, kinds = self.columns
        segments.append(self.segment)
        offsets.append(line.start)
        lengths.append(line.end - line.start)
        kinds.append(kind)

    def _meta(self, record: Record) -> None:
        self._metas += 1
        first_of_file = len(self.columns[0]) == self._segment_start + self._metas
        if self._metas == 1 and not first_of_file:
            self._problem(
                record.line,
                "meta_late",
                "the session meta is not the first record of its file",
                "it is used nevertheless",
            )
        if (
            self._metas > 1 and not first_of_file
        ):  # a copied fork begins with the metas of its ancestors, which is as it should be
            self._problem(record.line, "meta_second", "a second session meta", "the first one gives the identity")

    def _content(self, record: Record, kind: Kind) -> None:
        if self._own_from and self.sources[self.segment].own and (record.ordinal or 0) >= self._own_from:
            self._own_from = 0
            self._mark_inherited()
        if kind is Kind.ITEM:
            self.counts["items"] += 1
        elif kind is Kind.CHECKPOINT:
            self.counts["checkpoints"] += 1
        elif kind is Kind.ROLLBACK:
            self.counts["rollbacks"] += 1
        elif kind is Kind.EVENT and record.payload["type"] == "thread_settings_applied":
            self._settings(record)
        if self.first_user is None:
            self.first_user = words_of(record)
        if not self.attached or self.sources[self.segment].own:
            self.tracker.feed(record, self.segment, self._index)
        current = self.tracker.current
        self.usage.feed(record, current.turn_id if current is not None else None)
        if record.type == "event_msg":
            self._check_writers(record)

    def _settings(self, record: Record) -> None:
        """A copied fork writes its own settings after the copied records: what was used before them is inherited."""
        leaf = self.sources[-1].meta
        self.cwd = record.payload["thread_settings"].get("cwd") or self.cwd
        if self.copied and self.forked_at is None and record.payload.get("thread_id") == leaf.get("id"):
            self.forked_at = record.line.start
            self._mark_inherited()

    def _mark_inherited(self) -> None:
        if not self._inherited_marked:
            self._inherited_marked = True
            self.usage.mark_inherited()

    # What is damaged or odd

    def _skip(self, skip: Skip) -> None:
        self._note_retry(skip.line)
        self._lost += max(1, skip.line.data.count(RECORD_START))
        if skip.code == "unknown":
            self._add(skip.line, Kind.UNKNOWN)
            self.counts["unknown"] += 1
            return
        self._add(skip.line, Kind.DAMAGED)
        if skip.code == "old_format":  # settings that Codex no longer reads; what was spent was spent on that model
            self.usage.take_settings(loads(skip.line.data).get("payload"))
        for record in skip.recovered:
            self._add(record.line, Kind.RECOVERED)
        self.counts["damaged"] += 1
        self._retried = (skip.line.data, skip.line.start, len(self.problems))
        uncertain = skip.code == "nul_run" or may_have_mattered(skip.line.data)
        consequence = "the line is passed over, as Codex does"
        if skip.recovered:
            consequence += f"; {len(skip.recovered)} whole records in it are shown in full_history.jsonl only"
        if skip.code == "bad_utf8" and not self.paginated:
            consequence += "; Codex 0.171.0 refuses the whole thread because of it"
        if uncertain:
            consequence += "; it may have been a rollback, a checkpoint or a change of settings"
        code, reason = skip.code, skip.reason
        if not skip.line.ended and self.segment + 1 < len(self.sources):
            code, reason = "lineage_inside", "what was inherited ends inside this line"
        self._problem(skip.line, code, reason, consequence, uncertain=uncertain)

    def _note_retry(self, line: Line) -> None:
        """A writer that failed in the middle of a record repeats it whole on a new line (FAULTS 2)."""
        retried, self._retried = self._retried, None
        if retried is None or retried[2] >= len(self.problems):
            return
        torn, whole = retried[0], line.data
        if not _repeats(torn, whole):
            return
        problem = self.problems[retried[2]]
        self.problems[retried[2]] = Problem(
            "torn_then_retried",
            problem.path,
            problem.offset,
            problem.length,
            "the first part of a record that the next line has whole",
            "nothing is lost: the whole one counts, once",
        )

    def _check_ordinal(self, record: Record) -> None:
        expected, ordinal = self._ordinal, record.ordinal
        if ordinal is None:
            self._problem(
                record.line,
                "ordinal_missing",
                "a record without ordinal",
                "file order rules; Codex's turn list passes it over",
            )
            return
        self._ordinal, lost, self._lost = ordinal, self._lost, 0
        if expected is None or expected < ordinal <= expected + 1 + lost:
            return
        code = (
            "ordinal_duplicate" if ordinal == expected else "ordinal_backwards" if ordinal < expected else "ordinal_gap"
        )
        self._problem(record.line, code, f"ordinal {ordinal} follows {expected}", "file order rules")

    def _check_writers(self, record: Record) -> None:
        """Events of a turn after another one has started: two processes wrote at once (FAULTS 20)."""
        kind, turn_id = record.kind, record.payload.get("turn_id")
        if not isinstance(turn_id, str):
            return
        if kind in ("task_started", "turn_started"):
            self._open_turns.discard(turn_id)
            current = self.tracker.current
            for turn in self.tracker.turns[-8:]:
                if turn is not current and turn.explicit and turn.end is None and turn.turn_id != turn_id:
                    self._open_turns.add(turn.turn_id)
        elif turn_id in self._open_turns:
            self._open_turns.discard(turn_id)
            self._problem(
                record.line,
                "two_writers",
                f"turn {turn_id} goes on after another turn has begun: two processes wrote this thread at once",
                "records are taken in file order",
            )

    def _problem(self, line: Line, code: str, message: str, consequence: str, *, uncertain: bool = False) -> None:
        if len(self.problems) >= MOST_PROBLEMS:
            self.hidden_problems += 1
            return
        path = self.sources[self.segment].path
        length = line.end - line.start
        self.problems.append(Problem(code, path, line.start, length, message, consequence, uncertain))


def may_have_mattered(data: bytes) -> bool:
    """False for a damaged line of which every piece is known to be neither rollback nor checkpoint nor settings."""
    if b"\0" in data:
        return True  # nobody knows what the NULs stand for
    at = 0
    for _ in range(_MOST_PIECES):
        if _MARKER.match(data, at) is None:
            return True
        at = data.find(RECORD_START, at + 1)
        if at < 0:
            return False
    return True


def _start_ordinal(meta: Json) -> int:
    """The first ordinal of a sub-agent's own turns (FORMAT 15.4)."""
    start = meta.get("subagent_history_start_ordinal")
    return start if isinstance(start, int) and not isinstance(start, bool) else 0


def _repeats(torn: bytes, whole: bytes) -> bool:
    """True when `whole` is the record of which `torn` is the beginning; the time of writing may differ."""
    first, second = _HEAD.match(torn), _HEAD.match(whole)
    if first is None or second is None:
        return len(torn) > _TELLING and whole.startswith(torn)
    if first[1] is not None and whole.startswith(torn):
        return True  # the same ordinal at the same time
    rest = torn[first.end() :]
    if first[1] != second[1] or _TAGS.match(rest) is None or not whole.startswith(rest, second.end()):
        return False  # what was lost may have been of another kind: any next record takes the same ordinal
    return first[1] is not None or first[0] == second[0] or len(rest) > _TELLING


def words_of(record: Record) -> str | None:
    """What a person said, from the event of either mode; None for any other record."""
    if record.is_event("user_message"):
        return str(record.payload["message"])[:4096]
    if record.is_event("item_completed") and record.payload["item"].get("type") == "UserMessage":
        content = record.payload["item"].get("content")
        if isinstance(content, list):
            return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))[:4096]
    if record.dialect is Dialect.BARE and record.kind == "message" and record.payload.get("role") == "user":
        from threadstore.boundaries import is_visible_user, user_text

        return user_text(record.payload)[:4096] if is_visible_user(record.payload) else None
    return None
