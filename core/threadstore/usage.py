"""Tokens: what a thread used, turn by turn, and what it inherited (FORMAT 3.10, 3.12).

Two kinds of records count tokens. `token_count` events carry running totals since 2025; the same total is repeated
by events that only report rate limits, so totals are compared, never added. `token_usage_record` (since October
2026) names its turn. A fork starts with the totals of its parent: what was used before the fork is *inherited* and
not the fork's own.

What a thread *spent* is the sum of what each request added to the running total, by day and model. A total goes back
where a thread was taken back to an earlier turn; what had been spent by then stays spent.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from threadstore.records import Record

FIELDS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_input_tokens",
    "output_tokens",
    "reasoning_output_tokens",
    "total_tokens",
)
Usage = dict[str, int]
Spent = dict[tuple[str, str], Usage]  # by UTC day (empty where no time is recorded) and model (empty if unknown)


def read(document: object) -> Usage | None:
    """A usage object with all fields as numbers; None for anything else."""
    if not isinstance(document, dict):
        return None
    get = document.get
    return {name: value if type(value := get(name)) is int else 0 for name in FIELDS}


def difference(later: Usage | None, earlier: Usage | None) -> Usage | None:
    """What was used between two totals. A total that went back (a thread that began anew) counts from zero."""
    if later is None:
        return None
    if earlier is None:
        return later
    used = {name: later[name] - earlier[name] for name in FIELDS}
    return later if min(used.values()) < 0 else used


def total_of(spent: Spent) -> Usage | None:
    """The sum over days and models; None for nothing."""
    if not spent:
        return None
    return {name: sum(usage[name] for usage in spent.values()) for name in FIELDS}


def add(spent: Spent, more: Spent) -> None:
    """Add what was spent elsewhere."""
    for key, usage in more.items():
        known = spent.get(key)
        spent[key] = usage if known is None else {name: known[name] + usage[name] for name in FIELDS}


def rows(spent: Spent) -> list[dict[str, object]]:
    """The same as a table, by day and model."""
    return [{"day": day or None, "model": model or None, **usage} for (day, model), usage in sorted(spent.items())]


class UsageTracker:
    """Takes the records of a lineage oldest first."""

    def __init__(self) -> None:
        self.total: Usage | None = None  # the newest running total
        self.last: Usage | None = None  # the newest request
        self.window: int | None = None  # tokens of the model's context window
        self.inherited: Usage | None = None  # the total where the thread's own part begins
        self.turns: dict[str, Usage] = {}
        self.spent: Spent = {}  # by the thread itself
        self._recent: Spent = {}  # of requests whose record no total has followed yet
        self._model = ""
        self._at_start: dict[str, Usage | None] = {}
        self._recorded: set[str] = set()  # turns with a usage record of their own

    def feed(self, record: Record, turn_id: str | None) -> None:
        """Take the next record; `turn_id` is the turn that is open."""
        payload: dict[str, Any] = record.payload
        if record.type == "token_usage_record":
            self._record(payload)
            self._note(self._recent, read(payload.get("usage")), record)
        elif record.type == "turn_context":
            self.take_settings(payload)
        elif record.type == "event_msg" and payload["type"] == "token_count":
            info = payload.get("info")
            if isinstance(info, dict):
                before = self.total
                self._count(info, turn_id)
                self._spend(difference(self.total, before), record)

    def take_settings(self, context: object) -> None:
        """What follows is spent on the model that a turn context names."""
        model = context.get("model") if isinstance(context, dict) else None
        self._model = model if isinstance(model, str) else ""

    def mark_inherited(self) -> None:
        """What was counted so far belongs to another thread."""
        self.inherited = self.total
        self.begin()

    def begin(self) -> None:
        """Count what is spent from here on."""
        self.spent, self._recent = {}, {}

    def all_spent(self) -> Spent:
        """What was spent since then, with requests that no total followed: the process was killed."""
        spent = dict(self.spent)
        add(spent, self._recent)
        return spent

    def _spend(self, used: Usage | None, record: Record) -> None:
        """The total has grown. Requests that it should follow may be more: one was lost when a process was killed. When
        the window is full, Codex sets the total to that without a request.
        """
        if used is None or not (used["input_tokens"] or used["output_tokens"]):
            return
        recent = sum(usage["total_tokens"] for usage in self._recent.values())
        if self._recent and recent >= used["total_tokens"]:
            add(self.spent, self._recent)
        else:
            self._note(self.spent, used, record)
        self._recent = {}

    def _note(self, spent: Spent, used: Usage | None, record: Record) -> None:
        if used is not None and any(used.values()):
            add(spent, {(_day(record.timestamp), self._model): used})

    def _count(self, info: dict[str, Any], turn_id: str | None) -> None:
        before = self.total
        self.total = read(info.get("total_token_usage")) or self.total
        self.last = read(info.get("last_token_usage")) or self.last
        window = info.get("model_context_window")
        self.window = window if isinstance(window, int) else self.window
        if turn_id is None or turn_id in self._recorded:
            return
        start = self._at_start.setdefault(turn_id, before)
        used = difference(self.total, start)
        if used is not None:
            self.turns[turn_id] = used

    def _record(self, payload: dict[str, Any]) -> None:
        turn_id, used = payload.get("turn_id"), read(payload.get("turn_token_usage"))
        if isinstance(turn_id, str) and used is not None:
            self._recorded.add(turn_id)
            self.turns[turn_id] = used

    def render(self, reverted: Spent) -> dict[str, object]:
        """The content of `usage.json`. `reverted` is what the thread spent in generations that no longer count."""
        spent = self.all_spent()
        add(spent, reverted)
        return {
            "total": self.total,
            "inherited": self.inherited,
            "own": total_of(spent),
            "reverted": total_of(reverted),
            "spent": rows(spent),
            "last_request": self.last,
            "model_context_window": self.window,
        }


def _day(timestamp: str | None) -> str:
    try:
        moment = datetime.fromisoformat(timestamp or "")
        return (moment if moment.tzinfo is None else moment.astimezone(UTC)).date().isoformat()
    except (ValueError, OverflowError):
        return ""
