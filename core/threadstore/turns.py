"""The turns of a thread, as Codex lists them (FORMAT 14.1, 14.2).

The two history modes count turns differently, and both differ from the boundaries that rollback counts. In a
paginated thread a turn exists when a lifecycle record names it, and its first terminal record decides how it ended.
In a legacy thread turns are also opened by events of the user interface: such implicit turns get the id
`rollout-<n>`, where n is the index of the opening record among those that decode, and `thread_rolled_back` takes
the last ones away. A taken turn stays in our list, marked as not effective.

Both trackers take the records of a lineage oldest first and may be asked for their turns at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from threadstore.records import Record

LONGEST_TEXT = 64 << 10  # characters of a user's text that are kept


class Place(NamedTuple):
    """Where a record lies: number of the segment, first byte, first byte after its newline, ordinal."""

    segment: int
    offset: int
    end: int
    ordinal: int | None


@dataclass(slots=True)
class Turn:
    """One turn. Times are unix seconds; `status` is completed, interrupted, failed or (while open) inProgress."""

    turn_id: str
    start: Place
    explicit: bool
    end: Place | None = None
    status: str = "inProgress"
    dropped_by: Place | None = None  # the rollback marker that took it away
    started_at: int | None = None
    completed_at: int | None = None
    duration_ms: int | None = None
    error: Any = None
    model: str | None = None
    user: list[str] = field(default_factory=list)
    items: int = 0
    empty: bool = True  # an implicit turn that only a checkpoint has opened so far

    @property
    def shown_status(self) -> str:
        """The status of a thread that nobody runs: what has no end was interrupted."""
        return "interrupted" if self.status == "inProgress" else self.status


def place_of(record: Record, segment: int) -> Place:
    """Where a record lies."""
    return Place(segment, record.line.start, record.line.end + (1 if record.line.ended else 0), record.ordinal)


class PaginatedTurns:
    """FORMAT 14.1: only lifecycle records open turns, the first terminal record wins.

    Codex writes no rollback markers in this mode. Where another tool did, the model's history honours them and the
    turn list of Codex does not (measured: tests/core/vectors); this list is the same as Codex's.
    """

    def __init__(self, first_ordinals: Sequence[int]) -> None:
        """`first_ordinals` has the first one that counts in each segment: an agent's begins after what was copied."""
        self._first_ordinals = first_ordinals
        self._segment = 0
        self._next_ordinal = first_ordinals[0]
        self.turns: list[Turn] = []
        self._by_id: dict[str, Turn] = {}
        self.current: Turn | None = None

    def feed(self, record: Record, segment: int, index: int) -> None:
        """Take the next record. `index` is not used in this mode."""
        if not self._is_projected(record.ordinal, segment):
            return
        if record.type == "turn_context":
            _take_model(self._by_id.get(str(record.payload.get("turn_id"))) or self.current, record)
        if record.type != "event_msg":
            return
        kind, payload = record.kind, record.payload
        if kind in ("task_started", "turn_started"):
            self.current = self._get(payload["turn_id"], record, segment)
            _take_start(self.current, payload)
        elif kind in ("task_complete", "turn_complete"):
            self._end(payload["turn_id"], record, segment, "failed" if payload.get("error") else "completed")
        elif kind == "turn_aborted" and isinstance(payload.get("turn_id"), str):
            self._end(payload["turn_id"], record, segment, "interrupted")
        elif kind == "item_completed":
            turn = self._by_id.get(payload["turn_id"])
            if turn is not None:
                _take_item(turn, payload["item"])

    def _is_projected(self, ordinal: int | None, segment: int) -> bool:
        """False for records that Codex's list passes over: without ordinal, or with one that went back (FORMAT 5)."""
        if segment != self._segment:
            self._segment, self._next_ordinal = segment, self._first_ordinals[segment]
        if ordinal is None or ordinal < self._next_ordinal:
            return False
        self._next_ordinal = ordinal + 1
        return True

    def _get(self, turn_id: str, record: Record, segment: int) -> Turn:
        turn = self._by_id.get(turn_id)
        if turn is None:
            turn = self._by_id[turn_id] = Turn(turn_id, place_of(record, segment), explicit=True)
            self.turns.append(turn)
        return turn

    def _end(self, turn_id: str, record: Record, segment: int, status: str) -> None:
        turn = self._get(turn_id, record, segment)
        if turn.status == "inProgress":
            _take_end(turn, record, segment, status)
        if self.current is turn:
            self.current = None


#: Events that belong to a turn and open an implicit one when none is there.
_OPENING = frozenset(
    (
        "agent_message",
        "agent_reasoning",
        "agent_reasoning_raw_content",
        "patch_apply_end",
        "mcp_tool_call_end",
        "web_search_end",
        "image_generation_end",
        "exec_command_end",
        "context_compacted",
        "entered_review_mode",
        "exited_review_mode",
        "sub_agent_activity",
    )
)


class LegacyTurns:
    """FORMAT 14.2.

    Invariant: `_by_id` has the turns of `turns`, in that order.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._by_id: dict[str, list[Turn]] = {}
        self.current: Turn | None = None

    def feed(self, record: Record, segment: int, index: int) -> None:
        """Take the next record; `index` is its place among the records that decode, the session meta being 0."""
        if record.type == "compacted":
            if self.current is None:
                self._open_implicit(record, segment, index)
        elif record.type == "turn_context":
            _take_model(self.current, record)
        elif record.type == "event_msg":
            self._event(record, segment, index)

    def _event(self, record: Record, segment: int, index: int) -> None:
        kind, payload = record.kind, record.payload
        if kind in ("task_started", "turn_started"):
            _take_start(self._add(Turn(payload["turn_id"], place_of(record, segment), explicit=True)), payload)
        elif kind == "user_message":
            current = self.current
            if current is None or not (current.explicit or current.empty):
                current = self._open_implicit(record, segment, index)
            current.empty = False
            _take_user(current, payload.get("message"))
        elif kind in _OPENING:
            self._belongs(record, segment, index)
        elif kind in ("task_complete", "turn_complete"):
            turn = self._find(payload["turn_id"]) or self.current
            if turn is not None:
                status = "failed" if payload.get("error") else "completed"
                _take_end(turn, record, segment, "interrupted" if turn.status == "interrupted" else status)
                self._close(turn)
        elif kind == "turn_aborted":
            turn = self._find(payload.get("turn_id")) or self.current
            if turn is not None:
                _take_end(turn, record, segment, "interrupted")
                self._close(turn)
        elif kind == "thread_rolled_back":
            self._roll_back(payload["num_turns"], place_of(record, segment))
        elif kind == "item_completed":
            turn = self._find(payload["turn_id"])
            if turn is not None:
                _take_item(turn, payload["item"])

    def _belongs(self, record: Record, segment: int, index: int) -> None:
        turn_id = record.payload.get("turn_id")
        turn = self._find(turn_id) or self.current
        if turn is None:
            turn = self._open_implicit(
                record, segment, index, turn_id if isinstance(turn_id, str) and turn_id else None
            )
        turn.empty = False
        turn.items += 1

    def _open_implicit(self, record: Record, segment: int, index: int, turn_id: str | None = None) -> Turn:
        name = turn_id or f"rollout-{index}"
        return self._add(Turn(name, place_of(record, segment), explicit=False, status="completed"))

    def _find(self, turn_id: object) -> Turn | None:
        for turn in reversed(self._by_id.get(turn_id, ()) if isinstance(turn_id, str) else ()):
            if turn.dropped_by is None:
                return turn
        return None

    def _add(self, turn: Turn) -> Turn:
        self.turns.append(turn)
        self._by_id.setdefault(turn.turn_id, []).append(turn)
        self.current = turn
        return turn

    def _close(self, turn: Turn) -> None:
        if self.current is turn:
            self.current = None

    def _roll_back(self, count: int, place: Place) -> None:
        for turn in reversed(self.turns):
            if count == 0:
                break
            if turn.dropped_by is None:
                turn.dropped_by = place
                self._close(turn)
                count -= 1


def _take_model(turn: Turn | None, record: Record) -> None:
    if turn is not None:
        turn.model = record.payload.get("model")


def _take_start(turn: Turn, payload: dict[str, Any]) -> None:
    if turn.started_at is None:
        turn.started_at = _integer(payload.get("started_at"))


def _take_end(turn: Turn, record: Record, segment: int, status: str) -> None:
    payload = record.payload
    turn.status = status
    turn.end = place_of(record, segment)
    turn.started_at = turn.started_at if turn.started_at is not None else _integer(payload.get("started_at"))
    turn.completed_at = _integer(payload.get("completed_at"))
    turn.duration_ms = _integer(payload.get("duration_ms"))
    turn.error = payload.get("error")


def _take_item(turn: Turn, item: dict[str, Any]) -> None:
    turn.items += 1
    content = item.get("content")
    if item.get("type") == "UserMessage" and isinstance(content, list):
        _take_user(turn, "".join(str(part.get("text", "")) for part in content if isinstance(part, dict)))


def _take_user(turn: Turn, text: object) -> None:
    if isinstance(text, str) and sum(map(len, turn.user)) < LONGEST_TEXT:
        turn.user.append(text[:LONGEST_TEXT])


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


Tracker = PaginatedTurns | LegacyTurns


def render(turn: Turn, number: int | None, path: Callable[[int], str], usage: object) -> dict[str, object]:
    """One line of `turns.jsonl`. `number` counts effective turns from 1; `path` names the file of a segment."""
    end = turn.end
    return {
        "id": turn.turn_id,
        "number": number,
        "status": turn.shown_status,
        "effective": turn.dropped_by is None,
        "why": None if turn.dropped_by is None else "rolled_back",
        "user": "\n\n".join(turn.user) if turn.user else None,
        "model": turn.model,
        "started_at": turn.started_at,
        "completed_at": turn.completed_at,
        "duration_ms": turn.duration_ms,
        "error": turn.error,
        "usage": usage,
        "implicit": not turn.explicit,
        "start": {"file": path(turn.start.segment), "offset": turn.start.offset, "ordinal": turn.start.ordinal},
        "end": None if end is None else {"file": path(end.segment), "offset": end.end, "ordinal": end.ordinal},
    }
