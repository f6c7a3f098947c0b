"""The replay of an open lineage: from its end, or going on from an earlier one with the records that were added."""

from __future__ import annotations

from dataclasses import replace

from threadstore.checkpoints import initial_window
from threadstore.files import pread_exactly
from threadstore.history import history_item
from threadstore.lineage import is_paginated
from threadstore.lines import Log, backward, forward
from threadstore.opened import OpenLineage, first_dialect
from threadstore.records import Record, decode, is_blank
from threadstore.replay import Replay, ReverseScan


def replay_lineage(lineage: OpenLineage, *, state: bool, added: Record | None = None) -> Replay:
    """Rebuild a thread from the end of its log, or as it would be if that record were `added`."""
    leaf = lineage.segments[-1].meta
    paginated = is_paginated(leaf)
    scan = ReverseScan(paginated=paginated, state=state)
    if added is not None:
        scan.feed(added, len(lineage.files) - 1)
    for decoded, segment in lineage.newest_first(paginated=paginated):
        if isinstance(decoded, Record) and scan.feed(decoded, segment):
            break
    return scan.result(initial_window(leaf), lineage.fetch, lineage.look)


def extended(replay: Replay, lineage: OpenLineage, consumed: int) -> Replay | None:
    """A replay with the records from `consumed` on, or None when one of them needs a replay from scratch."""
    last = len(lineage.files) - 1
    log = lineage.files[last].log
    dialect = first_dialect(log)
    added = []
    for line in forward(log, consumed):
        if is_blank(line):
            continue
        record = decode(line, dialect)
        if not isinstance(record, Record):
            continue
        if record.type in ("compacted", "session_meta") or record.is_event("thread_rolled_back"):
            return None
        made = history_item(record, last)
        if made is not None:
            added.append(made)
    for item, budget in added:
        replay.history.append(item)
        if budget is not None:
            replay.history.budgets[item.segment, item.offset] = budget
    return replace(replay)


def continued(replay: Replay, lineage: OpenLineage, consumed: int) -> Replay | None:
    """A replay with state and the records from `consumed` on, or None when those are more than whole turns."""
    last = len(lineage.files) - 1
    log = lineage.files[last].log
    dialect = first_dialect(log)
    scan = ReverseScan(paginated=is_paginated(lineage.segments[-1].meta))
    for line in backward(log, lineage.end_of(last), consumed):
        if is_blank(line):
            continue
        record = lineage.decode(line, dialect)
        if not isinstance(record, Record):
            continue
        if record.type in ("compacted", "session_meta"):
            return None
        scan.feed(record, last)
    return scan.continuing(replay)


def whole_lines(log: Log) -> int | None:
    """Where the last whole line ends; None when the last one lacks only its newline, so that it may yet become
    another one.
    """
    if log.size == 0 or pread_exactly(log.descriptor, 1, log.size - 1) == b"\n":
        return log.size
    return None
