"""The operations on threads: fork, revert, undo, compact (DESIGN 4).

An operation reads the thread, says what it would do, and does it in one step that other readers see whole or not at
all. One that fails changed nothing. Forks need no lock: a frozen prefix can be shared while its thread is being
written. The others hold Codex's writer lock of the thread from the first look to the last byte. Who has looked at the
thread before passes in what was seen (`expected`): when it is another thread by now, nothing is done.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
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
from threadstore.pointer import Listing, Pointer, new_path
from threadstore.projector import Projector, Subject, replay_lineage
from threadstore.recorder import Draft, Durability, Recorder, UnsettledError, next_ordinal, sync_folder
from threadstore.records import Record, decode, is_blank
from threadstore.replay import Replay
from threadstore.scan import FullScan
from threadstore.seen import Seen

Json = dict[str, Any]
Look = Callable[[], Subject]


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
    seen: Seen | None = None  # the thread as the operation left it, or found it when `dry_run`; not for forks

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
    """Carries operations out. Raises StoreError and OSError; then nothing was changed, but for an UnsettledError.

    All but forks take `look`, which tells what the thread is at the time of the call, and `expected`, the state that it
    must still be in (BusyError if it isn't). With `held` the caller has the writer's lock already.
    """

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
            told = fork.Told()
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
                records = fork.copied(meta, child, log, end, first_dialect(log), settings, started, told)
                ordinal = None
            before = subject.head.rollout.rollout_id
            if dry_run:
                return Outcome("fork", child, subject.thread_id, None, before, None, dropped, dry_run=True)
            fork.create(self._root, path, records, ordinal=ordinal, durability=self._durability)
        inherits = bool(ordinal or boundary.kind == "latest" if scan.paginated else told.first)
        listing = Listing(inherits, told.first, told.tokens, meta | {"source": drafts.fork_source(meta)})
        note = None
        try:
            self._pointer.adopt(subject.thread_id, child, path, listing)
            if subject.name and not scan.paginated:
                self._pointer.name(child, subject.name)
        except (StoreError, OSError) as error:  # the fork is there and whole; its row and name are a convenience
            reason = error.message if isinstance(error, StoreError) else f"its name can't be written: {error.strerror}."
            note = f"{reason} Codex lists the fork under its own preview once it has opened it."
        return Outcome("fork", child, subject.thread_id, path, before, child, dropped, message=note)

    def revert(
        self, look: Look, turn: str, *, dry_run: bool = False, expected: Seen | None = None, held: bool = False
    ) -> Outcome:
        """The same thread goes on from before a turn."""
        with self._held(look, expected, held=held) as subject:
            return self._told(subject, self._revert(subject, turn, dry_run=dry_run))

    def _revert(self, subject: Subject, turn: str, *, dry_run: bool) -> Outcome:
        with self._open(subject) as lineage:
            expected = self._expected(subject)
            scan = self._projector.scan(subject.thread_id, lineage)
            first = find_turn(scan, turn)
            effective = [turn for turn in scan.tracker.turns if turn.dropped_by is None]
            dropped = [other.turn_id for other in effective[effective.index(first) :]]
            if scan.paginated:
                base = position(Boundary("before", first.turn_id), scan, lineage, _latest(lineage))
                tokens = _tokens_at(lineage, base)
                return self._next_generation(
                    "revert", subject, lineage, base, tokens, expected, dropped, dry_run=dry_run
                )
            history = self._projector.history(subject.thread_id, lineage)
            return self._roll_back(subject, lineage, history, first.start.offset, dropped, dry_run=dry_run)

    def undo(self, look: Look, *, dry_run: bool = False, expected: Seen | None = None, held: bool = False) -> Outcome:
        """A further generation that goes on where the one before the last revert ended."""
        with self._held(look, expected, held=held) as subject:
            return self._told(subject, self._undo(subject, dry_run=dry_run))

    def _undo(self, subject: Subject, *, dry_run: bool) -> Outcome:
        with self._open(subject) as lineage:
            if not is_paginated(lineage.segments[-1].meta):
                raise RequestError(
                    "a legacy thread can't undo a revert: its marker is part of the log, and every reader honours it. "
                    "What was taken back is in full_history.jsonl."
                )
            before = _generation_before(subject, lineage.segments[-1].meta)
            expected = self._expected(subject)
            with self._projector.open(self._projector.segments(before)) as earlier:
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
                tokens = _tokens_at(earlier, base)
                return self._next_generation("undo", subject, lineage, base, tokens, expected, [], dry_run=dry_run)

    def compact(
        self,
        look: Look,
        summary: str | None,
        *,
        dry_run: bool = False,
        expected: Seen | None = None,
        held: bool = False,
    ) -> Outcome:
        """A checkpoint: the newest user messages and a summary become the model's memory."""
        with self._held(look, expected, held=held) as subject:
            return self._told(subject, self._compact(subject, summary, dry_run=dry_run))

    def _compact(self, subject: Subject, summary: str | None, *, dry_run: bool) -> Outcome:
        with self._open(subject) as lineage:
            self._expected(subject)
            meta = read_whole_meta(lineage.files[-1].log)
            if not meta:
                raise StoreError(
                    f"{subject.head.rollout.path} has no session meta that Codex accepts: it can't be compacted."
                )
            replay = replay_lineage(lineage, state=True)
            items = compact.replacement(replay.history, lineage.fetch, summary)
            paginated = is_paginated(meta)
            taken = compact.carried(lineage)
            records = list(compact.checkpoint(replay, items, summary, meta, taken, paginated=paginated))
            return self._append("compact", subject, lineage, records, [], dry_run=dry_run)

    # Parts

    @contextlib.contextmanager
    def _held(self, look: Look, expected: Seen | None, *, held: bool) -> Iterator[Subject]:
        """The thread as it is under the writer's lock."""
        before = look()
        _refuse_archived(before.head)
        with contextlib.nullcontext() if held else writer_lock(self._root, before.thread_id):
            subject = look()
            _refuse_archived(subject.head)
            if expected is not None and Seen.now(self._root, subject.head.rollout) != expected:
                raise BusyError(
                    f"thread {subject.thread_id} changed since it was looked at: nothing was done. "
                    "Look again, and repeat the request if it is still meant."
                )
            yield subject

    def _told(self, subject: Subject, outcome: Outcome) -> Outcome:
        """With the state that the next request may expect; the lock is still held."""
        rollout = subject.head.rollout
        if not outcome.dry_run and outcome.rollout is not None:
            rollout = replace(rollout, path=outcome.rollout)
        try:
            return replace(outcome, seen=Seen.now(self._root, rollout))
        except OSError:  # it is done all the same
            return outcome

    def _open(self, subject: Subject) -> OpenLineage:
        try:
            return self._projector.open(self._projector.segments(subject.head.rollout))
        except FileNotFoundError as error:  # decompressed or archived meanwhile
            raise BusyError(f"thread {subject.thread_id} changed while it was being opened; look again.") from error

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
        tokens: int | None,
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
        records = [drafts.reverted_meta(meta, base, head.rollout_id)]
        settings = _newest_settings(lineage)
        if settings is not None:
            records.append(drafts.settings(settings, subject.thread_id))
        ordinal = base.end_ordinal if base is not None else 0
        fork.create(self._root, path, iter(records), ordinal=ordinal, durability=self._durability)
        if expected is not None:
            self._select(subject.thread_id, expected, path, tokens)
        return outcome

    def _select(self, thread_id: str, expected: str, path: str, tokens: int | None) -> None:
        """Move the pointer to a new rollout; when it can't be moved, the rollout is taken away again."""
        target = os.path.join(self._root, path)
        try:
            swapped = self._pointer.swap(thread_id, expected, path, tokens)
        except UnsettledError as error:
            if self._selects(thread_id, target, error):
                return
            fork.take_away(target)
            raise StoreError(error.message) from error
        except StoreError:
            fork.take_away(target)
            raise
        if not swapped:
            fork.take_away(target)
            raise BusyError(f"thread {thread_id} changed while it was being reverted.")

    def _selects(self, thread_id: str, target: str, doubt: UnsettledError) -> bool:
        """Ask the database what became of a transaction that failed at its end."""
        for ask in (self._pointer.path_of, self._pointer.path_at_rest):
            with contextlib.suppress(StoreError):
                return ask(thread_id) == target
        raise UnsettledError(f"{doubt.message} It can't be asked whether {target} is selected now: look again.")

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
            rollout.plain_path,
            rollout.rollout_id,
            rollout.rollout_id,
            dropped,
            dry_run,
        )
        if dry_run:
            return outcome
        path = self._plain(rollout)
        size = os.stat(path).st_size
        recorder = Recorder(path, ordinal=ordinal, create=False, durability=self._durability, again=False)
        try:
            recorder.append(records)
            recorder.barrier()
        except OSError:
            _cut_back(path, size)
            raise
        finally:
            recorder.abandon()
        with contextlib.suppress(StoreError):  # it is done; the row's times only order a list
            self._pointer.touch(subject.thread_id, "updated_at", *(("recency_at",) if op == "compact" else ()))
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
        partial = os.path.join(os.path.dirname(plain), f".{rollout.shown}.{new_id()}.partial")
        try:
            _copy_file(copy.path, partial)
            os.link(partial, plain)
        finally:
            with contextlib.suppress(OSError):  # not made at all, or it stays: a name that no reader takes
                os.unlink(partial)
        try:
            sync_folder(os.path.dirname(plain))
            os.unlink(path)
        except OSError:
            fork.take_away(plain)
            raise
        return plain


def _generation_before(subject: Subject, meta: Json) -> RolloutFile:
    """The rollout that was selected before the one that is: as its meta says, or else the one before it by name."""
    older = [rollout for rollout in subject.rollouts if rollout < subject.head.rollout]
    recorded = [rollout for rollout in subject.rollouts if rollout.rollout_id == meta.get(drafts.PREVIOUS)]
    if not older and not recorded:
        raise RequestError("nothing to undo: the thread was never reverted.")
    return max(recorded or older)


def _cut_back(path: str, size: int) -> None:
    """Take away what was appended; we hold the writer's lock, so nobody else has appended."""
    try:
        if os.stat(path).st_size != size:
            os.truncate(path, size)
    except OSError as error:
        raise UnsettledError(
            f"the operation failed, and what it had appended to {path} after byte {size} could not be taken back: "
            f"{error.strerror}. The thread may have a part of it."
        ) from error


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


def _tokens_at(lineage: OpenLineage, base: Position | None) -> int | None:
    """The tokens used where a generation begins; None when nothing says, and the database keeps its number."""
    return None if base is None else fork.tokens_before(lineage, _segment_of(lineage, base), base.end_offset)


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
