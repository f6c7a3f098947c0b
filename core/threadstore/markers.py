"""Reverting a legacy thread: the marker that every Codex honours, where it means what was asked for."""

from __future__ import annotations

import copy

from threadstore import drafts
from threadstore.boundaries import is_contextual_user, is_visible_user, user_text
from threadstore.cut import RequestError
from threadstore.history import MADE, Flag, History
from threadstore.ids import now_text
from threadstore.lines import Line, backward, forward
from threadstore.opened import OpenLineage
from threadstore.recorder import Draft
from threadstore.records import Record, decode, is_blank
from threadstore.replay import Replay
from threadstore.replaying import replay_lineage
from threadstore.turns import Turn


def marker(lineage: OpenLineage, replay: Replay, first: Turn, count: int) -> Draft:
    """What takes a thread back to before the turn `first`, the first of the `count` that it drops. RequestError where
    the marker would mean something else.
    """
    history, offset = replay.history, _beginning(first, lineage)
    starts = [at for at, flags in enumerate(history.flags) if flags & Flag.BOUNDARY]
    later = [at for at in starts if history.segments[at] != MADE and history.offsets[at] >= offset]
    made = any(history.segments[at] == MADE for at in starts[-count:])
    instead = (
        "Fork the thread before that turn instead."
        if first.explicit
        else "No fork can begin there either, since the turn has no record of its own: fork latest and go on in "
        "the copy, or compact with a summary that leaves out what should be forgotten."
    )
    if made or (replay.base is not None and replay.base.offset > offset):
        raise RequestError(
            "the turn lies before the last checkpoint, whose summary stands for it: a legacy thread can't go back "
            f"there. {instead}"
        )
    if len(later) != count:
        raise RequestError(
            f"the turn list drops {count} turns where the model's history has {len(later)}: "
            f"a marker would mean different things for the two. {instead}"
        )
    draft = drafts.rollback(count)
    if not _means_the_same(history, draft, lineage, count):
        raise RequestError(
            "in a log of this age a marker would bring back what the last checkpoint stands for: a legacy thread "
            f"can't go back there. {instead}"
        )
    return draft


def _beginning(turn: Turn, lineage: OpenLineage) -> int:
    """The first byte of a legacy turn, its user's message included.

    Until 2026 (observed with Codex 0.47.0 to 0.80.0) there was no record of a turn's start, and the message lies before
    the event that shows it, which is what opens the turn in the turn list.
    """
    if turn.explicit:
        return turn.start.offset
    log = lineage.files[turn.start.segment].log
    opening = decode(next(forward(log, turn.start.offset)))
    if not isinstance(opening, Record) or not opening.is_event("user_message"):
        return turn.start.offset
    for line in backward(log, turn.start.offset):
        record = None if is_blank(line) else decode(line)
        if not isinstance(record, Record) or record.type == "turn_context" or record.is_event("token_count"):
            continue
        if record.type != "response_item":
            break
        if is_visible_user(record.payload):
            shortened = line.gaps or opening.line.gaps
            same = shortened or user_text(record.payload) == opening.payload["message"]
            return line.start if same else turn.start.offset
        if not is_contextual_user(record.payload):
            break
    return turn.start.offset


def _means_the_same(history: History, marker: Draft, lineage: OpenLineage, count: int) -> bool:
    """True when a reader of the log with the marker gets this history without its last turns, and nothing else."""
    end = lineage.files[-1].log.size
    text = marker.line(now_text(), None)
    record = decode(Line(end, end + len(text) - 1, text[:-1]))
    assert isinstance(record, Record)
    kept = copy.deepcopy(history)
    kept.drop_turns(count)
    after = replay_lineage(lineage, state=False, added=record).history
    return _slices(kept) == _slices(after)


def _slices(history: History) -> list[tuple[int, int, int] | bytes]:
    return [
        history.made[item.offset] if item.segment == MADE else (item.segment, item.offset, item.length)
        for item in history
    ]
