"""Which records of a log still count: what replay and scan have found, asked of one record after the other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from threadstore.history import MADE
from threadstore.replay import Replay
from threadstore.scan import FullScan, Kind


class Effect:
    """Which records count: items that are in the history now, the checkpoint that they came from, and what belongs
    to turns that were not taken back. `checkpoint` is the place (segment, offset) of the newest one in force.
    """

    def __init__(self, scan: FullScan, replay: Replay | None) -> None:
        self._items: dict[int, list[int]] = {}
        self._marks: set[tuple[int, int]] = set()
        if replay is not None:
            for item in replay.history:
                if item.segment != MADE:
                    self._items.setdefault(item.segment, []).append(item.offset)
            for offsets in self._items.values():
                offsets.sort()
            if replay.base is not None:
                self._marks.add((replay.base.segment, replay.base.offset))
            self._marks.update(replay.ops)
        self._dropped: dict[int, tuple[list[int], list[int]]] = {}  # segment -> starts, and the furthest end so far
        for turn in scan.tracker.turns:
            if turn.dropped_by is not None:
                starts, ends = self._dropped.setdefault(turn.start.segment, ([], []))
                here = turn.end is not None and turn.end.segment == turn.start.segment
                starts.append(turn.start.offset)
                ends.append(max([turn.end.end if turn.end is not None and here else 1 << 63, *ends[-1:]]))
        self.checkpoint = self._checkpoint(scan) if scan.counts["checkpoints"] else None
        self._leaf = len(scan.sources) - 1
        self._meta_seen: set[int] = set()

    def effective(self, segment: int, offset: int, length: int, kind: int) -> bool:
        """True when the record has a part in what the thread is now."""
        if kind in (Kind.RECOVERED, Kind.UNKNOWN):
            return False
        if kind in (Kind.ITEM, Kind.CHECKPOINT):
            return (segment, offset) in self._marks or self.has_item(segment, offset, offset + length)
        if kind == Kind.META:
            first = segment not in self._meta_seen
            self._meta_seen.add(segment)
            return first and segment == self._leaf
        starts, ends = self._dropped.get(segment, ((), ()))
        before = bisect_right(starts, offset)
        return before == 0 or offset >= ends[before - 1]

    def has_item(self, segment: int, start: int, end: int) -> bool:
        """True when the history has an item that lies between two offsets."""
        offsets = self._items.get(segment, [])
        at = bisect_left(offsets, start)
        return at < len(offsets) and offsets[at] < end

    def _checkpoint(self, scan: FullScan) -> tuple[int, int] | None:
        segments, offsets, _, kinds = scan.columns
        for at in range(len(kinds) - 1, -1, -1):
            if kinds[at] == Kind.CHECKPOINT and (segments[at], offsets[at]) in self._marks:
                return segments[at], offsets[at]
        return None
