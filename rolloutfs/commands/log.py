"""`rolloutfs log`: the turns of a thread, one line each, the newest first."""

from __future__ import annotations

from typing import Any

import orjson
from threadstore.masking import Mask
from threadstore.projection import View
from threadstore.store import ThreadStore

from rolloutfs.commands.opened import opened
from rolloutfs.harmless import json_line
from rolloutfs.meant import find
from rolloutfs.table import Column, Row, say, show
from rolloutfs.times import amount, duration, local

Json = dict[str, Any]
_COLUMNS = (
    Column("TURN", is_number=True),
    Column("STATUS"),
    Column("TIME"),
    Column("TOOK", is_number=True),
    Column("TOKENS", is_number=True),
    Column("WORDS", gives=True),
)
_WORDS = 300  # characters of a turn's text that are shown


def log(
    store: str,
    wanted: str | None,
    count: int = 0,
    *,
    as_json: bool,
    dropped: bool = False,
    mask: bool | None = None,
) -> None:
    """Print the newest `count` turns (0: all), or of those that no longer count. With JSON each is its line of
    turns.jsonl or dropped_turns.jsonl. With `mask`, or None where the settings say so, no secret of the user's words is
    shown. Raises MountError.
    """
    with opened(store, mask) as its:
        thread = find(its.store, wanted)
        turns = _turns(its.store, thread, View.TURNS)
        if dropped:
            rolled_back = [turn for turn in turns if not turn["effective"]]
            turns = _turns(its.store, thread, View.DROPPED_TURNS) + rolled_back
        turns = turns[: count or None]
        if its.store.mask is not None:
            for turn in turns:
                turn["user"] = _masked(turn["user"], its.store.mask)
    if dropped and not turns:
        say("Every turn counts.", is_error=True)
    if as_json:
        for turn in turns:
            say(json_line(turn))
    elif turns:
        show(_COLUMNS, map(_row, turns))
    elif not dropped:
        say("The thread has no turns.", is_error=True)


def _masked(text: str | None, mask: Mask) -> str | None:
    return text and mask(text.encode("utf-8", "replace")).decode()


def _turns(store: ThreadStore, thread: str, view: View) -> list[Json]:
    return [orjson.loads(line) for line in reversed(store.rendered(thread, view).split(b"\n")[:-1])]


def _row(turn: Json) -> Row:
    number = turn["number"] if turn["number"] is not None else turn.get("number_then", "-")
    status = turn["status"] if turn["effective"] else str(turn["why"] or "gone").replace("_", " ")
    tokens = (turn["usage"] or {}).get("total_tokens")
    started = turn["started_at"] if turn["started_at"] is not None else turn["completed_at"]
    cells = (
        str(number),
        status,
        local(started),
        duration(turn["duration_ms"]),
        amount(tokens),
        (turn["user"] or "")[:_WORDS],
    )
    return Row(cells, not turn["effective"])
