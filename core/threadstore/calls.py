"""Calls and their results (FORMAT 8.2, 14; DESIGN rule 3).

A call without a recorded result may have done nothing, something or everything: its effect is unknown. It is
listed, never repaired in the log, never retried. Only what is sent to a model gets the output `aborted` that Codex
puts there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from threadstore.history import Flag, History


class CallState(NamedTuple):
    """Positions in the history: calls without a result, results without a call."""

    pending: tuple[int, ...]
    orphans: frozenset[int]


def match_calls(history: History) -> CallState:
    """Which calls have no result, and which results no call, within one history."""
    called: set[int] = set()
    answered: set[int] = set()
    for flags, call in zip(history.flags, history.calls, strict=True):
        if call:
            if flags & Flag.CALL:
                called.add(call)
            elif flags & Flag.OUTPUT:
                answered.add(call)
    return CallState(
        tuple(_positions(history, Flag.CALL, answered)),
        frozenset(_positions(history, Flag.OUTPUT, called)),
    )


def _positions(history: History, kind: int, matched: set[int]) -> Iterator[int]:
    for at, (flags, call) in enumerate(zip(history.flags, history.calls, strict=True)):
        if call and flags & kind and call not in matched:
            yield at
