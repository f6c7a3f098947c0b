"""What a thread spent in generations that no longer count: nobody gets it back by a revert.

Each generation begins where another one was at some byte, so what it spent by itself are the ends of its files that no
other generation has in its history.
"""

from __future__ import annotations

import re
from typing import Final

from threadstore.lines import forward
from threadstore.opened import OpenLineage, first_dialect
from threadstore.records import Record, is_blank
from threadstore.usage import Spent, UsageTracker, add

Counted = dict[str, int]  # by rollout id: the decoded bytes of it whose tokens were counted

_HEAD: Final = 512  # bytes of a line in which its kind is told
_OF_USE: Final = re.compile(rb'"(?:token_count|token_usage_record|turn_context)"')


def spent_beside(generation: OpenLineage, thread_id: str, counted: Counted) -> Spent:
    """What was spent in one generation of a thread, except in the bytes of `counted`."""
    tracker, found = UsageTracker(), Spent()
    for number, file in enumerate(generation.files):
        first = counted.get(file.rollout.rollout_id, 0) if file.rollout.thread_id == thread_id else None
        dialect = first_dialect(file.log)
        tracker.begin()
        for line in forward(file.log, 0, generation.end_of(number)):
            if is_blank(line) or not _OF_USE.search(line.data, 0, _HEAD):
                continue
            record = generation.decode(line, dialect)
            if isinstance(record, Record):
                tracker.feed(record, None)
                if first is not None and line.start < first:
                    tracker.begin()
        if first is not None:
            add(found, tracker.all_spent())
    return found


def note(generation: OpenLineage, thread_id: str, counted: Counted) -> None:
    """The tokens of this generation were counted."""
    for number, file in enumerate(generation.files):
        if file.rollout.thread_id == thread_id:
            known = counted.get(file.rollout.rollout_id, 0)
            counted[file.rollout.rollout_id] = max(known, generation.end_of(number))
