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

from threadstore import compact, drafts, fork, markers, sources
from threadstore.appending import Appender
from threadstore.cut import Boundary, RequestError, find_turn, position
from threadstore.errors import LineageError, StoreError, UnwritableError, sentence, why
from threadstore.folders import check_owner, open_folder
from threadstore.heads import Subject
from threadstore.ids import new_id
from threadstore.incremental import Passes
from threadstore.lineage import Position, is_paginated
from threadstore.lineages import Lineages
from threadstore.locks import BusyError, writer_lock
from threadstore.names import RolloutFile
from threadstore.opened import OpenLineage, first_dialect
from threadstore.pointer import Listing, Pointer, new_path
from threadstore.recorder import Draft, Durability, UnsettledError
from threadstore.replaying import replay_lineage
from threadstore.seen import Seen

Json = dict[str, Any]
Look = Callable[[], Subject]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an operation did, or would do when `dry_run`."""

    op: str
    result_id: str | None  # the thread that the operation has made or changed; None for a dry run of a fork
    source_thread_id: str
    rollout: str | None  # path of the rollout selected afterwards, below the store; a dry run names none to be made
    before: str  # rollout id that was selected before
    after: str | None  # and afterwards; None for a dry run of something that makes a new one
    dropped_turns: list[str] = field(default_factory=list)
    dry_run: bool = False
    message: str | None = None  # what else is to be known
    seen: Seen | None = None  # the thread as the operation left it, or found it when `dry_run`; not for forks

    @property
    def thread_id(self) -> str:
        """The thread of the result. Raises ValueError where there is none."""
        if self.result_id is None:
            raise ValueError("a dry run of a fork makes no thread")
        return self.result_id

    def as_json(self) -> Json:
        """The answer to a request."""
        return {
            "op": self.op,
            "thread_id": self.result_id,
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

    def __init__(
        self, root: str, lineages: Lineages, passes: Passes, durability: Durability = Durability.FSYNC
    ) -> None:
        self._root = root
        self._lineages = lineages
        self._passes = passes
        self._durability = durability
        self._pointer = Pointer(root)
        self._appender = Appender(root, lineages.spool, durability)

    def fork(self, subject: Subject, boundary: Boundary, *, dry_run: bool = False) -> Outcome:
        """A new thread from a boundary of this one."""
        if not dry_run:
            check_owner(self._root)
        with self._open(subject) as lineage:
            meta = sources.accepted_meta(lineage, "forked")
            scan = self._passes.scan(subject.thread_id, lineage)
            kept = sources.kept_turns(boundary, scan)
            dropped = [turn for turn in sources.effective(scan) if turn not in kept]
            child = new_id()
            path = new_path(child, child, ())
            settings = sources.newest_settings(lineage)
            meta |= sources.place(settings)
            told = fork.Told()
            if scan.paginated:
                base = position(boundary, scan, lineage, sources.latest(lineage))
                started = (
                    None
                    if base is None
                    else fork.unfinished(lineage, sources.segment_of(lineage, base), base.end_offset)
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
                return Outcome("fork", None, subject.thread_id, None, before, None, dropped, dry_run=True)
            fork.create(self._root, path, records, ordinal=ordinal, durability=self._durability)
        first = ((scan.first_user if ordinal else None) or "") if scan.paginated else told.first
        preview = sources.preview(subject, boundary, first, paginated=scan.paginated)
        listing = Listing(preview, told.first, told.tokens, meta | {"source": drafts.fork_source(meta)})
        note = None
        try:
            self._pointer.adopt(subject.thread_id, child, path, listing)
            if subject.name and not scan.paginated:
                self._pointer.name(child, subject.name)
        except (StoreError, OSError) as error:  # the fork is there and whole; its row and name are a convenience
            note = (
                "The fork is there as a whole and needs nothing more; asking again would make a second one. "
                f"{sentence(why(error))} Codex lists the fork under its own preview once it has opened it."
            )
        return Outcome("fork", child, subject.thread_id, path, before, child, dropped, message=note)

    def revert(
        self, look: Look, turn: str, *, dry_run: bool = False, expected: Seen | None = None, held: bool = False
    ) -> Outcome:
        """The same thread goes on from before a turn."""
        with self._held(look, expected, held=held, dry_run=dry_run) as subject:
            return self._told(subject, self._revert(subject, turn, dry_run=dry_run))

    def _revert(self, subject: Subject, turn: str, *, dry_run: bool) -> Outcome:
        with self._open(subject) as lineage:
            meta = sources.accepted_meta(lineage, "reverted")
            expected = None if dry_run else self._expected(subject)
            scan = self._passes.scan(subject.thread_id, lineage)
            first = find_turn(scan, turn)
            effective = [turn for turn in scan.tracker.turns if turn.dropped_by is None]
            dropped = [other.turn_id for other in effective[effective.index(first) :]]
            if scan.paginated:
                base = position(Boundary("before", first.turn_id), scan, lineage, sources.latest(lineage))
                tokens = sources.tokens_at(lineage, base)
                return self._next_generation(
                    "revert", subject, lineage, meta, base, tokens, expected, dropped, dry_run=dry_run
                )
            replay = self._passes.history(subject.thread_id, lineage)
            marker = markers.marker(lineage, replay, first, len(dropped))
            return self._append("revert", subject, lineage, [marker], dropped, paginated=False, dry_run=dry_run)

    def undo(self, look: Look, *, dry_run: bool = False, expected: Seen | None = None, held: bool = False) -> Outcome:
        """A further generation that goes on where the one before the last revert ended."""
        with self._held(look, expected, held=held, dry_run=dry_run) as subject:
            return self._told(subject, self._undo(subject, dry_run=dry_run))

    def _undo(self, subject: Subject, *, dry_run: bool) -> Outcome:
        with self._open(subject) as lineage:
            meta = sources.accepted_meta(lineage, "reverted")
            if not is_paginated(meta):
                raise RequestError(
                    "a legacy thread can't undo a revert: its marker is part of the log, and every reader honours it. "
                    "What was taken back is in full_history.jsonl."
                )
            expected = None if dry_run else self._expected(subject)
            now = sources.effective(self._passes.scan(subject.thread_id, lineage))

            def brings_back(rollout: RolloutFile) -> bool:
                with self._lineages.open(self._lineages.segments(rollout)) as earlier:
                    turns = sources.effective(self._passes.scan(subject.thread_id, earlier))
                return not set(turns) <= set(now)

            before = sources.generation_before(subject, meta, brings_back)
            with self._lineages.open(self._lineages.segments(before)) as earlier:
                sources.accepted_meta(earlier, "gone back to")
                then = set(sources.effective(self._passes.scan(subject.thread_id, earlier)))
                dropped = [turn for turn in now if turn not in then]
                ordinal, offset = sources.latest(earlier)
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
                tokens = sources.tokens_at(earlier, base)
                return self._next_generation(
                    "undo", subject, lineage, meta, base, tokens, expected, dropped, dry_run=dry_run
                )

    def compact(
        self,
        look: Look,
        summary: str | None,
        *,
        dry_run: bool = False,
        expected: Seen | None = None,
        held: bool = False,
    ) -> Outcome:
        """A checkpoint: the newest user messages and a summary become the model's memory.

        A dry run under the writer's lock is a rehearsal: what passes it fails later only if records can't be written.
        """
        if summary is not None and "\0" in summary:
            raise RequestError("the summary has NUL bytes in it: it is not text. Nothing was done.")
        with self._held(look, expected, held=held, dry_run=dry_run) as subject:
            if dry_run and held:
                self._expected(subject)
                self._appender.rehearse(subject.head.rollout)
            return self._told(subject, self._compact(subject, summary, dry_run=dry_run))

    def _compact(self, subject: Subject, summary: str | None, *, dry_run: bool) -> Outcome:
        with self._open(subject) as lineage:
            meta = sources.accepted_meta(lineage, "compacted")
            if not dry_run:
                self._expected(subject)
            replay = replay_lineage(lineage, state=True)
            items = compact.replacement(replay.history, lineage.fetch, summary)
            paginated = is_paginated(meta)
            taken = compact.carried(lineage)
            records = list(compact.checkpoint(replay, items, summary, meta, taken, paginated=paginated))
            return self._append("compact", subject, lineage, records, [], paginated=paginated, dry_run=dry_run)

    # Parts

    @contextlib.contextmanager
    def _held(self, look: Look, expected: Seen | None, *, held: bool, dry_run: bool) -> Iterator[Subject]:
        """The thread as it is under the writer's lock, or just as it is now: a dry run makes no file, and waits for
        nobody.
        """
        before = look()
        sources.refuse_archived(before.head)
        with contextlib.nullcontext() if held or dry_run else writer_lock(self._root, before.thread_id):
            subject = look()
            sources.refuse_archived(subject.head)
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
            rollout = rollout._replace(path=outcome.rollout)
        try:
            return replace(outcome, seen=Seen.now(self._root, rollout))
        except OSError:  # it is done all the same
            return outcome

    def _open(self, subject: Subject) -> OpenLineage:
        try:
            return self._lineages.open(self._lineages.segments(subject.head.rollout))
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
        meta: Json,
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
        if dry_run:
            return Outcome(op, subject.thread_id, subject.thread_id, None, head.rollout_id, None, dropped, dry_run=True)
        outcome = Outcome(op, subject.thread_id, subject.thread_id, path, head.rollout_id, rollout_id, dropped)
        records = [drafts.reverted_meta(meta, base, head.rollout_id)]
        settings = sources.newest_settings(lineage)
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
            self._take_away(path)
            raise error.reason or StoreError(error.message) from error
        except StoreError:
            self._take_away(path)
            raise
        if not swapped:
            self._take_away(path)
            raise BusyError(f"thread {thread_id} changed while it was being reverted.")

    def _take_away(self, path: str) -> None:
        """Remove a rollout that was made and can't be selected. Raises UnsettledError when it stays."""
        place, _, name = path.rpartition("/")
        try:
            with open_folder(self._root, place) as folder:
                fork.take_away(folder, name)
        except (OSError, UnwritableError) as error:
            raise UnsettledError(
                f"the operation failed, and the new file {path} could not be removed again: {why(error)}"
            ) from error

    def _selects(self, thread_id: str, target: str, doubt: UnsettledError) -> bool:
        """Ask the database what became of a transaction that failed at its end."""
        for ask in (self._pointer.path_of, self._pointer.path_at_rest):
            with contextlib.suppress(StoreError):
                return ask(thread_id) == target
        raise UnsettledError(f"{doubt.message} It can't be asked whether {target} is selected now: look again.")

    def _append(
        self,
        op: str,
        subject: Subject,
        lineage: OpenLineage,
        records: list[Draft],
        dropped: list[str],
        *,
        paginated: bool,
        dry_run: bool,
    ) -> Outcome:
        thread_id, rollout_id = subject.thread_id, subject.head.rollout.rollout_id
        path = self._appender.append(lineage, records, paginated=paginated, dry_run=dry_run)
        if not dry_run:
            with contextlib.suppress(StoreError):  # it is done; the row's times only order a list
                self._pointer.touch(thread_id, "updated_at", *(("recency_at",) if op == "compact" else ()))
        return Outcome(op, thread_id, thread_id, path, rollout_id, rollout_id, dropped, dry_run=dry_run)


__all__ = ["BusyError", "LineageError", "Operator", "Outcome"]
