"""Tokens: what a thread used, turn by turn, and what it inherited (FORMAT 3.10, 3.12).

Two kinds of records count tokens. `token_count` events carry running totals since 2025; the same total is repeated
by events that only report rate limits, so totals are compared, never added. `token_usage_record` (since October
2026) names its turn. A fork starts with the totals of its parent: what was used before the fork is *inherited* and
not the fork's own.
"""

from __future__ import annotations

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


def read(document: object) -> Usage | None:
    """A usage object with all fields as numbers; None for anything else."""
    if not isinstance(document, dict):
        return None
    usage = {}
    for name in FIELDS:
        value = document.get(name, 0)
        usage[name] = value if isinstance(value, int) and not isinstance(value, bool) else 0
    return usage


def difference(later: Usage | None, earlier: Usage | None) -> Usage | None:
    """What was used between two totals. A total that went back (a thread that began anew) counts from zero."""
    if later is None:
        return None
    if earlier is None or any(later[name] < earlier[name] for name in FIELDS):
        return later
    return {name: later[name] - earlier[name] for name in FIELDS}


class UsageTracker:
    """Takes the records of a lineage oldest first."""

    def __init__(self) -> None:
        self.total: Usage | None = None  # the newest running total
        self.last: Usage | None = None  # the newest request
        self.window: int | None = None  # tokens of the model's context window
        self.inherited: Usage | None = None  # the total where the thread's own part begins
        self.turns: dict[str, Usage] = {}
        self._at_start: dict[str, Usage | None] = {}
        self._recorded: set[str] = set()  # turns with a usage record of their own

    def feed(self, record: Record, turn_id: str | None) -> None:
        """Take the next record; `turn_id` is the turn that is open."""
        payload: dict[str, Any] = record.payload
        if record.type == "token_usage_record":
            self._record(payload)
        elif record.is_event("token_count"):
            info = payload.get("info")
            if isinstance(info, dict):
                self._count(info, turn_id)

    def mark_inherited(self) -> None:
        """What was counted so far belongs to another thread."""
        self.inherited = self.total

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

    def render(self) -> dict[str, object]:
        """The content of `usage.json`."""
        return {
            "total": self.total,
            "inherited": self.inherited,
            "own": difference(self.total, self.inherited),
            "last_request": self.last,
            "model_context_window": self.window,
        }
