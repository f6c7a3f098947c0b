"""What operations ask of the thread that they work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from threadstore import drafts, fork
from threadstore.catalog import preference
from threadstore.cut import Boundary, RequestError, find_turn
from threadstore.errors import LineageError, StoreError
from threadstore.heads import Head, Subject
from threadstore.lineage import Position, is_paginated
from threadstore.lines import Log, backward
from threadstore.metas import read_whole_meta
from threadstore.names import RolloutFile, safe_name
from threadstore.opened import OpenLineage, first_dialect
from threadstore.recorder import next_ordinal
from threadstore.records import Dialect, Record, decode, is_blank
from threadstore.scan import FullScan

Json = dict[str, Any]


def accepted_meta(lineage: OpenLineage, what: str) -> Json:
    """The session meta of the selected rollout. Without one that Codex accepts nothing is made from the thread: nobody
    could say in which mode it is.
    """
    file = lineage.files[-1]
    meta = read_whole_meta(file.log)
    if not meta:
        bare = "is a log of mid 2025 and " if first_dialect(file.log) is Dialect.BARE else ""
        raise StoreError(f"{file.rollout.path} {bare}has no session meta that Codex accepts: it can't be {what}.")
    return meta


def refuse_archived(head: Head) -> None:
    """RequestError for a thread in the archive."""
    if head.rollout.archived:
        raise RequestError("the thread is archived: take it out of the archive in Codex first, or fork it.")


def generation_before(subject: Subject, meta: Json, brings_back: Callable[[RolloutFile], bool]) -> RolloutFile:
    """The rollout that was selected before the one that is: as its meta says, or else the newest older one by name that
    brings a turn back, where there are several: what was never selected need not.

    Raises LineageError when the one that the meta names is not there: any other would be another past.
    """
    previous = meta.get(drafts.PREVIOUS)
    if previous is None:
        older = sorted((rollout for rollout in subject.rollouts if rollout < subject.head.rollout), reverse=True)
        if not older:
            raise RequestError("nothing to undo: the thread was never reverted.")
        return older[0] if len(older) == 1 else next(filter(brings_back, older), older[0])
    recorded = [rollout for rollout in subject.rollouts if rollout.rollout_id == previous]
    if not recorded:
        own = "" if previous == subject.thread_id else f"_{safe_name(str(previous))}"
        missing = f"rollout-<time>-{subject.thread_id}{own}.jsonl"
        raise LineageError(
            "lineage_missing",
            f"{subject.head.rollout.path} says that the thread was reverted from {missing}, and there is no such file: "
            "it can't go back there. Put the file back, then ask again. Nothing was changed.",
        )
    return max(recorded, key=preference)


def effective(scan: FullScan) -> list[str]:
    """The ids of the turns that count, oldest first."""
    return [turn.turn_id for turn in scan.tracker.turns if turn.dropped_by is None]


def kept_turns(boundary: Boundary, scan: FullScan) -> set[str]:
    """The ids of the turns that a fork at a boundary has."""
    effective = [turn for turn in scan.tracker.turns if turn.dropped_by is None]
    if boundary.kind == "latest":
        return {turn.turn_id for turn in effective}
    at = effective.index(find_turn(scan, boundary.turn))
    return {turn.turn_id for turn in effective[: at + (boundary.kind == "through")]}


def preview(subject: Subject, boundary: Boundary, first: str, *, paginated: bool) -> str | None:
    """The preview of a fork that remembers `first` as its first message; None for that of its source, which is kept by
    a fork of all of it, and where it says the same.
    """
    if boundary.kind == "latest" and (first or paginated):
        return None
    known = subject.row.preview if subject.row is not None else None
    return None if first and known and first.startswith(known) else first


def segment_of(lineage: OpenLineage, base: Position) -> int:
    """Which segment of a lineage a position lies in."""
    return next(
        number for number, segment in enumerate(lineage.segments) if segment.rollout.rollout_id == base.rollout_id
    )


def tokens_at(lineage: OpenLineage, base: Position | None) -> int | None:
    """The tokens used where a generation begins; None when nothing says, and the database keeps its number."""
    return None if base is None else fork.tokens_before(lineage, segment_of(lineage, base), base.end_offset)


def latest(lineage: OpenLineage) -> tuple[int, int]:
    """The next ordinal and the next byte of the selected rollout."""
    log = lineage.files[-1].log
    return next_ordinal(log, lineage.files[-1].rollout.path), _end_of_records(log)


def _end_of_records(log: Log) -> int:
    """The byte after the last line that was written as a whole."""
    for line in backward(log):
        if is_blank(line):
            continue
        if line.ended:
            return line.end + 1
        if isinstance(decode(line), Record):
            return line.end
    return 0


def place(settings: Json | None) -> Json:
    """Where the thread works now: its folder and its workspace. A fork's meta says that, wherever it is cut."""
    now = settings["thread_settings"] if settings is not None else {}
    return {key: now[key] for key in ("cwd", "runtime_workspace_roots") if now.get(key)}


def newest_settings(lineage: OpenLineage) -> Json | None:
    """The newest record of settings in the whole lineage: a fork or revert keeps them, whatever it cuts."""
    paginated = is_paginated(lineage.segments[-1].meta)
    for record, _ in lineage.newest_first(paginated=paginated):
        if isinstance(record, Record) and record.is_event("thread_settings_applied"):
            return record.payload
    return None
