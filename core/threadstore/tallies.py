"""What one thread adds to the statistics of its store: turns, and tokens by day and model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from threadstore.usage import FIELDS, Spent, add, total_of

COLUMNS = ("day", "model", *FIELDS)  # of `spent` in a usage.json, and in the index


class Tally(NamedTuple):
    """Turns in all, those that count, and what the thread itself spent."""

    turns: int
    effective_turns: int
    spent: Spent


def tally(turns: bytes, usage: bytes) -> Tally:
    """From a `turns.jsonl` and a `usage.json`."""
    effective = [orjson.loads(line)["effective"] for line in turns.split(b"\n")[:-1]]
    return Tally(len(effective), sum(effective), of_rows(tuple(row.values()) for row in orjson.loads(usage)["spent"]))


def of_rows(rows: Iterable[tuple[Any, ...]]) -> Spent:
    """From rows of `COLUMNS`."""
    return {(day or "", model or ""): dict(zip(FIELDS, counts, strict=True)) for day, model, *counts in rows}


class Sums:
    """The same of a whole store."""

    def __init__(self) -> None:
        self._turns = self._effective = self._unknown = 0
        self._spent: Spent = {}

    def add(self, one: Tally | None) -> None:
        """Another thread; None for one that can't be read."""
        if one is None:
            self._unknown += 1
            return
        self._turns += one.turns
        self._effective += one.effective_turns
        add(self._spent, one.spent)

    def render(self) -> dict[str, object]:
        """As `stats.json` has it."""
        days: Spent = {}
        models: Spent = {}
        for (day, model), usage in self._spent.items():
            add(days, {(day, ""): usage})
            add(models, {("", model): usage})
        return {
            "threads_not_read": self._unknown,
            "turns": self._turns,
            "effective_turns": self._effective,
            "tokens": total_of(self._spent),
            "tokens_by_model": [{"model": model or None, **usage} for (_, model), usage in sorted(models.items())],
            "tokens_by_day": [{"day": day or None, **usage} for (day, _), usage in sorted(days.items())],
        }
