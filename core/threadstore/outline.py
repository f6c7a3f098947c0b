"""The plan of a transcript: its turns, and what of a large log is left out (see `transcript`).

Both follow from the columns and the turns of a scan, so no log is read for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from threadstore.effects import Effect
from threadstore.passages import SAID
from threadstore.scan import FullScan, Kind
from threadstore.turns import Turn

TAKEN_BACK, BEFORE, BEGUN_BEFORE = "taken back", "before the checkpoint", "begun before the checkpoint"
GONE = frozenset((TAKEN_BACK, BEFORE))

_MOST_OF_RECORD = 2 * SAID  # bytes that a record comes to, at most
_AROUND = 512  # bytes of titles and fences around it
_LITTLE = 64  # bytes for each record that isn't shown, but may begin a turn
_MADE_OF = frozenset((Kind.ITEM, Kind.CHECKPOINT, Kind.ROLLBACK, Kind.DAMAGED))
_END = (1 << 16, 0)  # a place behind everything

Place = tuple[int, int]  # segment and offset


class Heading(NamedTuple):
    """A turn as it is announced: where it begins and ends, its number if it counts, and why its text doesn't."""

    start: Place
    end: Place
    turn: Turn
    number: int | None
    state: str

    @property
    def title(self) -> str:
        """Number and state."""
        name = "Turn" if self.number is None else f"Turn {self.number}"
        return f"{name} · {self.state}" if self.state else name


class Run(NamedTuple):
    """Records of one segment that follow each other, by their positions in the columns; all shown or all left out."""

    segment: int
    first: int
    last: int
    shown: bool


def headings(scan: FullScan, effect: Effect) -> list[Heading]:
    """The turns in the order of their beginnings; numbers as in `turns.jsonl`."""
    made: list[Heading] = []
    number = 0
    starts = [_start(turn, scan) for turn in scan.tracker.turns]
    for turn, (start, following) in zip(scan.tracker.turns, pairwise([*starts, _END]), strict=True):
        number += turn.dropped_by is None
        end = following if turn.end is None else min(following, (turn.end.segment, turn.end.end))
        counted = number if turn.dropped_by is None else None
        made.append(Heading(start, end, turn, counted, _state(turn, start, end, effect.checkpoint)))
    return made


def _start(turn: Turn, scan: FullScan) -> Place:
    """Where a turn begins. One of an old log is opened by an event that follows the person's message."""
    segment, offset = turn.start.segment, turn.start.offset
    if not turn.explicit and turn.user:
        _, offsets, _, kinds = scan.columns
        before = bisect_left(offsets, offset) - 1  # legacy: there is one segment
        if before >= 0 and kinds[before] == Kind.ITEM:
            offset = offsets[before]
    return segment, offset


def _state(turn: Turn, start: Place, end: Place, checkpoint: Place | None) -> str:
    if turn.dropped_by is not None:
        return TAKEN_BACK
    if checkpoint is None or checkpoint < start:
        return ""
    return BEGUN_BEFORE if checkpoint < end else BEFORE


def position(scan: FullScan, place: Place) -> int:
    """Where the records from a place on begin in the columns."""
    segments, offsets, _, _ = scan.columns
    low = bisect_left(segments, place[0])
    return bisect_left(offsets, place[1], low, bisect_left(segments, place[0] + 1, low))


def runs(scan: FullScan, turns: list[Heading], most: int, since: int = 0) -> Iterator[Run]:
    """What is shown and what is left out, in order, so that about `most` bytes are shown: first of all what counts, of
    either kind the newest. Begins with the record at position `since` of the columns.
    """
    segments, _, lengths, _ = scan.columns
    whole = sum(lengths[since:]) + _AROUND * (len(lengths) - since) <= most
    parts = [(since, len(segments), False)] if whole else list(_parts(scan, turns, since))
    cuts = {False: since} if whole else _cuts(scan, parts, most)
    pending: Run | None = None
    for first, end, gone in parts:
        cut = min(max(cuts[gone], first), end)
        for start, stop, shown in ((first, cut, False), (cut, end, True)):
            for run in _by_segment(scan, start, stop, shown=shown):
                if pending is not None and (pending.segment, pending.shown) == (run.segment, shown):
                    run = pending._replace(last=run.last)
                elif pending is not None:
                    yield pending
                pending = run
    if pending is not None:
        yield pending


def _by_segment(scan: FullScan, start: int, stop: int, *, shown: bool) -> Iterator[Run]:
    segments = scan.columns[0]
    while start < stop:
        end = bisect_left(segments, segments[start] + 1, start, stop)
        yield Run(segments[start], start, end - 1, shown)
        start = end


def _parts(scan: FullScan, turns: list[Heading], since: int) -> Iterator[tuple[int, int, bool]]:
    """The records of each turn, from its beginning to that of the next one, and whether they are gone."""
    begin, gone = since, False
    for turn in turns:
        at = max(position(scan, turn.start), since)
        yield begin, at, gone
        begin, gone = at, turn.state in GONE
    yield begin, len(scan.columns[0]), gone


def _cuts(scan: FullScan, parts: list[tuple[int, int, bool]], most: int) -> dict[bool, int]:
    """The first record that is shown of what counts and of what is gone."""
    lengths, kinds = scan.columns[2], scan.columns[3]
    cuts = {False: 0, True: 0}
    for which in cuts:
        for first, end, gone in reversed(parts):
            if gone != which:
                continue
            for at in range(end - 1, first - 1, -1):
                most -= min(lengths[at], _MOST_OF_RECORD) + _AROUND if kinds[at] in _MADE_OF else _LITTLE
                if most < 0:
                    cuts[which] = at + 1
                    break
            if most < 0:
                break
        if most < 0:
            cuts[True] = cuts[True] if which else len(lengths)
            break
    return cuts
