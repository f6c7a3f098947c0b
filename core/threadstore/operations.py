"""The operations on threads: fork, revert, undo, compact (DESIGN 4).

An operation reads the thread, says what it would do, and does it in one step that other readers see whole or not at
all. One that fails changed nothing. Forks need no lock: a frozen prefix can be shared while its thread is being
written. The others hold Codex's writer lock of the thread from the first look to the last byte.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from threadstore import compact, drafts, fork
from threadstore.cut import Boundary, RequestError, find_turn, position
from threadstore.errors import LineageError, StoreError
from threadstore.heads import Head
from threadstore.history import MADE, Flag
from threadstore.ids import new_id
from threadstore.lineage import Position, is_paginated
from threadstore.lines import Log, backward
from threadstore.locks import BusyError, writer_lock
from threadstore.metas import read_whole_meta
from threadstore.names import RolloutFile
from threadstore.opened import OpenLineage, first_dialect
from threadstore.pointer import Pointer, new_path
from threadstore.projector import Projector, Subject, replay_lineage
from threadstore.recorder import Draft, Durability, Recorder, next_ordinal
from threadstore.records import Record, decode, is_blank
from threadstore.replay import Replay
from threadstore.scan import FullScan

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an operation did, or would do when `dry_run`."""

    op: str
    thread_id: str  # of the result
    source_thread_id: str
    rollout: str | None  # path of the rollout that is selected afterwards, below the store
    before: str  # rollout id that was selected before
    after: str | None  # and afterwards; None for a dry run of something that makes a new one
    dropped_turns: list[str] = field(default_factory=list)
    dry_run: bool = False
    message: str | None = None  # what else is to be known

    def as_json(self) -> Json:
        """The answer to a request."""
        return {
            "op": self.op,
            "thread_id": self.thread_id,
            "source_thread_id": self.source_thread_id,
            "rollout": self.rollout,
            "status": "done",
            "error": None,
            "message": self.message,
            "dry_run": self.dry_run,
            "dropped_turns": self.dropped_turns,
            "before": self.before,
            "after": self.after,
            "workspace": "untouched",
        }


class Operator:
    """Carries operations out. Raises StoreError and OSError; then nothing was changed."""

    def __init__(self, root: str, projector: Projector, durability: Durability = Durability.FSYNC) -> None:
        self._root = root
        self._projector = projector
        self._durability = durability
        self._pointer = Pointer(root)

    def fork(self, subject: Subject, boundary: Boundary, *, dry_run: bool = False) -> Outcome:
        """A new thread from a boundary of this one."""
        with self._open(subject) as lineage:
            scan = self._projector.scan(subject.thread_id, lineage)
            meta = read_whole_meta(lineage.files[-1].log)
            if not meta:
                raise StoreError(
                    f"{subject.head.rollout.path} has no session meta that Codex accepts: it can't be forked."
                )
            kept = _kept_turns(boundary, scan)
            dropped = [
                turn.turn_id for turn in scan.tracker.turns if turn.dropped_by is None and turn.turn_id not in kept
            ]
            child = new_id()
            path = new_path(child, child, ())
            settings = _newest_settings(lineage)
            meta |= _place(settings)
            if scan.paginated:
                base = position(boundary, scan, lineage, _latest(lineage))
                started = (
                    None if base is None else fork.unfinished(lineage, _segment_of(lineage, base), base.end_offset)
                )
                records = fork.referenced(meta, child, base, settings, started)
                ordinal = base.end_ordinal if base is not None else 0
            else:
                log = lineage.files[-1].log
                end = fork.legacy_cut(boundary, scan)
                started = fork.unfinished(lineage, len(lineage.files) - 1, end)
                records = fork.copied(meta, child, log, end, first_dialect(log), settings, started)
                ordinal = None
            before = subject.head.rollout.rollout_id
            if dry_run:
                return Outcome("fork", child, subject.thread_id, None, before, None, dropped, dry_run=True)
            fork.create(self._root, path, records, ordinal=ordinal, durability=self._durability)
        note = None
        try:
            self._pointer.adopt(subject.thread_id, child, path)
        except StoreError as error:  # the fork is there and whole; its row is only a convenience
            note = f"{error.message} Codex lists the fork under its own preview once it has opened it."
        return Outcome("fork", child, subject.thread_id, path, before, child, dropped, message=note)

    def revert(self, subject: Subject, turn: str, *, dry_run: bool = False) -> Outcome:
        """The same thread goes on from before a turn."""
        _refuse_archived(subject.head)
        with writer_lock(self._root, subject.thread_id), self._open(subject) as lineage:
            expected = self._expected(subject)
            scan = self._projector.scan(subject.thread_id, lineage)
            first = find_turn(scan, turn)
            effective = [turn for turn in scan.tracker.turns if turn.dropped_by is None]
            dropped = [other.turn_id for other in effective[effective.index(first) :]]
            if scan.paginated:
                base = position(Boundary("before", first.turn_id), scan, lineage, _latest(lineage))
                return self._next_generation("revert", subject, lineage, base, expected, dropped, dry_run=dry_run)
            history = self._projector.history(subject.thread_id, lineage)
            return self._roll_back(subject, lineage, history, first.start.offset, dropped, dry_run=dry_run)

    def undo(self, subject: Subject, *, dry_run: bool = False) -> Outcome:
        """A further generation that goes on where the one before the last revert ended."""
        _refuse_archived(subject.head)
        with writer_lock(self._root, subject.thread_id), self._open(subject) as lineage:
            if not is_paginated(lineage.segments[-1].meta):
                raise RequestError(
                    "a legacy thread can't undo a revert: its marker is part of the log, and every reader honours it. "
                    "What was taken back is in full_history.jsonl."
                )
            older = [rollout for rollout in subject.rollouts if rollout < subject.head.rollout]
            if not older:
                raise RequestError("nothing to undo: the thread was never reverted.")
            expected = self._expected(subject)
            previous = self._projector.segments(max(older))
            with self._projector.open(previous) as earlier:
                ordinal, offset = _latest(earlier)
                segment = earlier.segments[-1]
                base: Position | None = Position(segment.rollout.rollout_id, ordinal, offset)
                if ordinal == segment.first_ordinal:
                    parent = earlier.segments[-2] if len(earlier.segments) > 1 else None
                    ends = (parent.end_ordinal, parent.end) if parent is not None else (None, None)
                    base = (
                        None
                        if ends[0] is None or ends[1] is None or parent is None
                        else Position(parent.rollout.rollout_id, ends[0], ends[1])
                    )
                return self._next_generation("undo", subject, lineage, base, expected, [], dry_run=dry_run)

    def compact(self, subject: Subject, summary: str | None, *, dry_run: bool = False) -> Outcome:
        """A checkpoint: the newest user messages and a summary become the model's memory."""
        _refuse_archived(subject.head)
        with writer_lock(self._root, subject.thread_id), self._open(subject) as lineage:
            self._expected(subject)
            meta = read_whole_meta(lineage.files[-1].log)
            if not meta:
                raise StoreError(
                    f"{subject.head.rollout.path} has no session meta that Codex accepts: it can't be compacted."
                )
            replay = replay_lineage(lineage, state=True)
            items = compact.replacement(replay.history, lineage.fetch, summary)
            paginated = is_paginated(meta)
            records = list(compact.checkpoint(replay, items, summary, meta, paginated=paginated))
            return self._append("compact", subject, lineage, records, [], dry_run=dry_run)

    # Parts

    def _open(self, subject: Subject) -> OpenLineage:
        return self._projector.open(self._projector.segments(subject.head.rollout))

    def _expected(self, subject: Subject) -> str | None:
        """What the database says now, after making sure that it still selects what we have read."""
        recorded = self._pointer.path_of(subject.thread_id)
        if recorded is not None and subject.head.by == "index":
            name = recorded.replace("\\", "/").rpartition("/")[2].removesuffix(".zst")
            if name != subject.head.rollout.name.removesuffix(".zst"):
                raise BusyError(f"thread {subject.thread_id} changed while it was being read; look again.")
        return recorded

    def _next_generation(
        self,
        op: str,
        subject: Subject,
        lineage: OpenLineage,
        base: Position | None,
        expected: str | None,
        dropped: list[str],
        *,
        dry_run: bool,
    ) -> Outcome:
        """Write a new rollout of the same thread and select it."""
        head = subject.head.rollout
        rollout_id = new_id()
        path = new_path(subject.thread_id, rollout_id, subject.rollouts)
        outcome = Outcome(op, subject.thread_id, subject.thread_id, path, head.rollout_id, rollout_id, dropped, dry_run)
        meta = read_whole_meta(lineage.files[-1].log)
        if not meta:
            raise StoreError(f"{head.path} has no session meta that Codex accepts: it can't be reverted.")
        if dry_run:
            return outcome
        records = [drafts.reverted_meta(meta, base)]
        settings = _newest_settings(lineage)
        if settings is not None:
            records.append(drafts.settings(settings, subject.thread_id))
        ordinal = base.end_ordinal if base is not None else 0
        fork.create(self._root, path, iter(records), ordinal=ordinal, durability=self._durability)
        if expected is not None:
            self._select(subject.thread_id, expected, path)
        return outcome

    def _select(self, thread_id: str, expected: str, path: str) -> None:
        """Move the pointer to a new rollout; when it can't be moved, the rollout is taken away again."""
        target = os.path.join(self._root, path)
        try:
            swapped = self._pointer.swap(thread_id, expected, path)
        except StoreError:
            if self._pointer.path_of(thread_id) != target:  # the database says what became of the transaction
                os.unlink(target)
                raise
            return
        if not swapped:
            os.unlink(target)
            raise BusyError(f"thread {thread_id} changed while it was being reverted.")

    def _roll_back(
        self, subject: Subject, lineage: OpenLineage, replay: Replay, offset: int, dropped: list[str], *, dry_run: bool
    ) -> Outcome:
        """Revert a legacy thread by the marker that every Codex honours, where it means what was asked for."""
        history = replay.history
        starts = [at for at, flags in enumerate(history.flags) if flags & Flag.BOUNDARY]
        later = [at for at in starts if history.segments[at] != MADE and history.offsets[at] >= offset]
        made = any(history.segments[at] == MADE for at in starts[-len(dropped) :])
        if made or (replay.base is not None and replay.base.offset > offset):
            raise RequestError(
                "the turn lies before the last checkpoint, whose summary stands for it: a legacy thread can't go back "
                "there. Fork it before that turn instead."
            )
        if len(later) != len(dropped):
            raise RequestError(
                f"the turn list drops {len(dropped)} turns where the model's history has {len(later)}: "
                "a marker would mean different things for the two. Fork the thread before that turn instead."
            )
        return self._append("revert", subject, lineage, [drafts.rollback(len(dropped))], dropped, dry_run=dry_run)

    def _append(
        self,
        op: str,
        subject: Subject,
        lineage: OpenLineage,
        records: list[Draft],
        dropped: list[str],
        *,
        dry_run: bool,
    ) -> Outcome:
        """Append records to the selected rollout: all of them, or none."""
        rollout, log = subject.head.rollout, lineage.files[-1].log
        ordinal = next_ordinal(log, rollout.path) if is_paginated(lineage.segments[-1].meta) else None
        outcome = Outcome(
            op,
            subject.thread_id,
            subject.thread_id,
            rollout.path,
            rollout.rollout_id,
            rollout.rollout_id,
            dropped,
            dry_run,
        )
        if dry_run:
            return outcome
        path = self._plain(rollout)
        size = os.stat(path).st_size
        recorder = Recorder(path, ordinal=ordinal, create=False, durability=self._durability)
        try:
            recorder.append(records)
            recorder.barrier()
        except OSError:
            os.truncate(path, size)  # we hold the writer's lock: nobody else has appended
            raise
        finally:
            recorder.abandon()
        return outcome

    def _plain(self, rollout: RolloutFile) -> str:
        """The path of a rollout that can be appended to; a compressed one is decompressed first, as Codex does."""
        path = os.path.join(self._root, rollout.path)
        if not rollout.compressed:
            return path
        copy = self._projector.spool.decode(self._root, rollout.path)
        if copy.damage is not None:
            raise StoreError(f"{rollout.path} is damaged: it is not decompressed for appending.")
        plain = path.removesuffix(".zst")
        partial = os.path.join(os.path.dirname(plain), f".{rollout.shown}.{os.getpid()}.partial")
        _copy_file(copy.path, partial)
        try:
            os.link(partial, plain)
        finally:
            os.unlink(partial)
        os.unlink(path)
        return plain


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as reading, open(target, "xb") as writing:
        while chunk := reading.read(1 << 20):
            writing.write(chunk)
        writing.flush()
        os.fsync(writing.fileno())


def _refuse_archived(head: Head) -> None:
    if head.rollout.archived:
        raise RequestError("the thread is archived: take it out of the archive in Codex first, or fork it.")


def _kept_turns(boundary: Boundary, scan: FullScan) -> set[str]:
    effective = [turn for turn in scan.tracker.turns if turn.dropped_by is None]
    if boundary.kind == "latest":
        return {turn.turn_id for turn in effective}
    at = effective.index(find_turn(scan, boundary.turn))
    return {turn.turn_id for turn in effective[: at + (boundary.kind == "through")]}


def _segment_of(lineage: OpenLineage, base: Position) -> int:
    return next(
        number for number, segment in enumerate(lineage.segments) if segment.rollout.rollout_id == base.rollout_id
    )


def _latest(lineage: OpenLineage) -> tuple[int, int]:
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


def _place(settings: Json | None) -> Json:
    """Where the thread works now: its folder and its workspace. A fork's meta says that, wherever it is cut."""
    now = settings["thread_settings"] if settings is not None else {}
    return {key: now[key] for key in ("cwd", "runtime_workspace_roots") if now.get(key)}


def _newest_settings(lineage: OpenLineage) -> Json | None:
    """The newest record of settings in the whole lineage: a fork or revert keeps them, whatever it cuts."""
    paginated = is_paginated(lineage.segments[-1].meta)
    for record, _ in lineage.newest_first(paginated=paginated):
        if isinstance(record, Record) and record.is_event("thread_settings_applied"):
            return record.payload
    return None


__all__ = ["BusyError", "LineageError", "Operator", "Outcome"]
