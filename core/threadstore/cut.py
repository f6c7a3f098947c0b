"""Where a history may be cut: turns as requests name them, and the positions that forks and reverts freeze (FORMAT
10.2).

A cut lies at the edge of a turn, never inside one. In a paginated thread it is a *position*: the rollout that owns
the record, the first ordinal and the first byte that are not kept. A position at the very beginning of a segment
says nothing of that segment, so it becomes the end of its parent, or no base at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from threadstore.errors import StoreError
from threadstore.lineage import Position
from threadstore.opened import OpenLineage
from threadstore.scan import FullScan
from threadstore.turns import Place, Turn

_NUMBER = re.compile(r"-?[1-9][0-9]{0,6}")  # more digits can only be the beginning of an id
_SHORTEST = 4  # characters of an id that may stand for it


class NoSuchTurnError(StoreError):
    """The turn that was asked for is not in the thread."""


class RequestError(StoreError):
    """The request can't be understood, or means nothing for this thread."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """What is kept: everything (`latest`), up to and including a turn (`through`), or up to but excluding it
    (`before`).
    """

    kind: str
    turn: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("latest", "through", "before"):
            raise RequestError(f"{self.kind!r} is no boundary: say latest, through TURN or before TURN.")


def find_turn(scan: FullScan, wanted: str) -> Turn:
    """A turn by id, number among the effective turns (from 1) or from the end (-1 is the last), or unique beginning of
    an id, of at least 4 characters. Raises NoSuchTurnError and RequestError.
    """
    turns = [turn for turn in scan.tracker.turns if turn.dropped_by is None]
    exact = [turn for turn in turns if turn.turn_id == wanted]
    if exact:
        return exact[-1]
    if _NUMBER.fullmatch(wanted):
        number = int(wanted)
        if abs(number) > len(turns):
            count = f"{len(turns)} turn{'s' * (len(turns) != 1)}"
            raise NoSuchTurnError(f"turn not found: {wanted}. The thread has {count}; see turns.jsonl.")
        return turns[number - 1] if number > 0 else turns[number]
    if len(wanted) < _SHORTEST:
        raise NoSuchTurnError(
            f"turn not found: {wanted}. It is neither a number (1 is the first turn, -1 the last) nor an id, of which "
            f"at least {_SHORTEST} characters are needed; see turns.jsonl."
        )
    matches = [turn for turn in turns if turn.turn_id.startswith(wanted)]
    if len(matches) > 1:
        raise RequestError(f"{wanted!r} is the beginning of {len(matches)} turn ids: give more of it.")
    if not matches:
        raise NoSuchTurnError(f"turn not found: {wanted}. See turns.jsonl for the turns that there are.")
    return matches[0]


def position(boundary: Boundary, scan: FullScan, lineage: OpenLineage, latest: tuple[int, int]) -> Position | None:
    """The position of a boundary in a paginated thread; None when nothing is kept.

    `latest` is the next ordinal and the next byte of the selected rollout.
    """
    last = len(lineage.segments) - 1
    if boundary.kind == "latest":
        return _collapse(last, *latest, lineage)
    turn = find_turn(scan, boundary.turn)
    place = _edge(boundary, turn)
    if place.ordinal is None:
        raise RequestError(f"turn {turn.turn_id} does not have persisted rollout positions.")
    if boundary.kind == "before":
        return _collapse(place.segment, place.ordinal, place.offset, lineage)
    return _collapse(place.segment, place.ordinal + 1, place.end, lineage)


def _edge(boundary: Boundary, turn: Turn) -> Place:
    if boundary.kind == "through":
        if turn.end is None:
            raise RequestError(
                f"turn {turn.turn_id} was never ended: it can't be forked through; use latest or before."
            )
        return turn.end
    if turn.end is not None and turn.end == turn.start:
        raise RequestError(f"turn {turn.turn_id} does not have a persisted start boundary.")
    return turn.start


def _collapse(segment: int, ordinal: int, offset: int, lineage: OpenLineage) -> Position | None:
    """Trap 5 of FORMAT: at the start of a segment stands the end of its parent."""
    while ordinal == lineage.segments[segment].first_ordinal:
        if segment == 0:
            return None
        segment -= 1
        parent = lineage.segments[segment]
        if parent.end is None or parent.end_ordinal is None:
            return None
        ordinal, offset = parent.end_ordinal, parent.end
    return Position(lineage.segments[segment].rollout.rollout_id, ordinal, offset)
