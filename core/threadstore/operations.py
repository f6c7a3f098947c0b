"""The operations on threads: fork, revert, undo, compact (DESIGN 4).

An operation reads the thread, says what it would do, and does it in one step that other readers see whole or not at
all. One that fails changed nothing. Forks need no lock: a frozen prefix can be shared while its thread is being
written. The others hold Codex's writer lock of the thread from the first look to the last byte. Who has looked at the
thread before passes in what was seen (`expected`): when it is another thread by now, nothing is done.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from threadstore import compact, drafts, fork
from threadstore.boundaries import is_contextual_user, is_visible_user, user_text
from threadstore.catalog import preference
from threadstore.cut import Boundary, RequestError, find_turn, position
from threadstore.errors import LineageError, StoreError, UnwritableError
from threadstore.folders import Folder, check_owner, open_folder
from threadstore.heads import Head, Subject
from threadstore.history import MADE, Flag, History
from threadstore.ids import new_id, now_text
from threadstore.lineage import Position, is_paginated
from threadstore.lines import Line, Log, backward, forward
from threadstore.locks import BusyError, writer_lock
from threadstore.metas import read_whole_meta
from threadstore.names import RolloutFile, partial_of, safe_name
from threadstore.opened import OpenLineage, first_dialect
from threadstore.pointer import Listing, Pointer, new_path
from threadstore.projector import Projector
from threadstore.recorder import Draft, Durability, Recorder, UnsettledError, next_ordinal
from threadstore.records import Dialect, Record, decode, is_blank
from threadstore.replay import Replay
from threadstore.replaying import replay_lineage
from threadstore.scan import FullScan
from threadstore.seen import Seen
from threadstore.spool import Copy
from threadstore.turns import Turn

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

    def __init__(self, root: str, projector: Projector, durability: Durability = Durability.FSYNC) -> None:
        self._root = root
        self._projector = projector
        self._durability = durability
        self._pointer = Pointer(root)

    def fork(self, subject: Subject, boundary: Boundary, *, dry_run: bool = False) -> Outcome:
        """A new thread from a boundary of this one."""
        if not dry_run:
            check_owner(self._root)
        with self._open(subject) as lineage:
            meta = _accepted_meta(lineage, "forked")
            scan = self._projector.scan(subject.thread_id, lineage)
            kept = _kept_turns(boundary, scan)
            dropped = [turn for turn in _effective(scan) if turn not in kept]
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
                return Outcome("fork", None, subject.thread_id, None, before, None, dropped, dry_run=True)
            fork.create(self._root, path, records, ordinal=ordinal, durability=self._durability)
        first = ((scan.first_user if ordinal else None) or "") if scan.paginated else told.first
        preview = _preview(subject, boundary, first, paginated=scan.paginated)
        listing = Listing(preview, told.first, told.tokens, meta | {"source": drafts.fork_source(meta)})
        note = None
        try:
            self._pointer.adopt(subject.thread_id, child, path, listing)
            if subject.name and not scan.paginated:
                self._pointer.name(child, subject.name)
        except (StoreError, OSError) as error:  # the fork is there and whole; its row and name are a convenience
            note = (
                "The fork is there as a whole and needs nothing more; asking again would make a second one. "
                f"{_sentence(_why(error))} Codex lists the fork under its own preview once it has opened it."
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
            meta = _accepted_meta(lineage, "reverted")
            expected = None if dry_run else self._expected(subject)
            scan = self._projector.scan(subject.thread_id, lineage)
            first = find_turn(scan, turn)
            effective = [turn for turn in scan.tracker.turns if turn.dropped_by is None]
            dropped = [other.turn_id for other in effective[effective.index(first) :]]
            if scan.paginated:
                base = position(Boundary("before", first.turn_id), scan, lineage, _latest(lineage))
                tokens = _tokens_at(lineage, base)
                return self._next_generation(
                    "revert", subject, lineage, meta, base, tokens, expected, dropped, dry_run=dry_run
                )
            history = self._projector.history(subject.thread_id, lineage)
            return self._roll_back(subject, lineage, meta, history, first, dropped, dry_run=dry_run)

    def undo(self, look: Look, *, dry_run: bool = False, expected: Seen | None = None, held: bool = False) -> Outcome:
        """A further generation that goes on where the one before the last revert ended."""
        with self._held(look, expected, held=held, dry_run=dry_run) as subject:
            return self._told(subject, self._undo(subject, dry_run=dry_run))

    def _undo(self, subject: Subject, *, dry_run: bool) -> Outcome:
        with self._open(subject) as lineage:
            meta = _accepted_meta(lineage, "reverted")
            if not is_paginated(meta):
                raise RequestError(
                    "a legacy thread can't undo a revert: its marker is part of the log, and every reader honours it. "
                    "What was taken back is in full_history.jsonl."
                )
            before = _generation_before(subject, meta)
            expected = None if dry_run else self._expected(subject)
            now = _effective(self._projector.scan(subject.thread_id, lineage))
            with self._projector.open(self._projector.segments(before)) as earlier:
                _accepted_meta(earlier, "gone back to")
                then = set(_effective(self._projector.scan(subject.thread_id, earlier)))
                dropped = [turn for turn in now if turn not in then]
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
                self._rehearse(subject)
            return self._told(subject, self._compact(subject, summary, dry_run=dry_run))

    def _compact(self, subject: Subject, summary: str | None, *, dry_run: bool) -> Outcome:
        with self._open(subject) as lineage:
            meta = _accepted_meta(lineage, "compacted")
            if not dry_run:
                self._expected(subject)
            replay = replay_lineage(lineage, state=True)
            items = compact.replacement(replay.history, lineage.fetch, summary)
            paginated = is_paginated(meta)
            taken = compact.carried(lineage)
            records = list(compact.checkpoint(replay, items, summary, meta, taken, paginated=paginated))
            return self._append("compact", subject, lineage, meta, records, [], dry_run=dry_run)

    # Parts

    @contextlib.contextmanager
    def _held(self, look: Look, expected: Seen | None, *, held: bool, dry_run: bool) -> Iterator[Subject]:
        """The thread as it is under the writer's lock, or just as it is now: a dry run makes no file, and waits for
        nobody.
        """
        before = look()
        _refuse_archived(before.head)
        with contextlib.nullcontext() if held or dry_run else writer_lock(self._root, before.thread_id):
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
            rollout = rollout._replace(path=outcome.rollout)
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
                f"the operation failed, and the new file {path} could not be removed again: {_why(error)}"
            ) from error

    def _selects(self, thread_id: str, target: str, doubt: UnsettledError) -> bool:
        """Ask the database what became of a transaction that failed at its end."""
        for ask in (self._pointer.path_of, self._pointer.path_at_rest):
            with contextlib.suppress(StoreError):
                return ask(thread_id) == target
        raise UnsettledError(f"{doubt.message} It can't be asked whether {target} is selected now: look again.")

    def _roll_back(
        self,
        subject: Subject,
        lineage: OpenLineage,
        meta: Json,
        replay: Replay,
        first: Turn,
        dropped: list[str],
        *,
        dry_run: bool,
    ) -> Outcome:
        """Revert a legacy thread by the marker that every Codex honours, where it means what was asked for."""
        history, offset = replay.history, _beginning(first, lineage)
        starts = [at for at, flags in enumerate(history.flags) if flags & Flag.BOUNDARY]
        later = [at for at in starts if history.segments[at] != MADE and history.offsets[at] >= offset]
        made = any(history.segments[at] == MADE for at in starts[-len(dropped) :])
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
        if len(later) != len(dropped):
            raise RequestError(
                f"the turn list drops {len(dropped)} turns where the model's history has {len(later)}: "
                f"a marker would mean different things for the two. {instead}"
            )
        marker = drafts.rollback(len(dropped))
        if not _means_the_same(history, marker, lineage, len(dropped)):
            raise RequestError(
                "in a log of this age a marker would bring back what the last checkpoint stands for: a legacy thread "
                f"can't go back there. {instead}"
            )
        return self._append("revert", subject, lineage, meta, [marker], dropped, dry_run=dry_run)

    def _append(
        self,
        op: str,
        subject: Subject,
        lineage: OpenLineage,
        meta: Json,
        records: list[Draft],
        dropped: list[str],
        *,
        dry_run: bool,
    ) -> Outcome:
        """Append records to the selected rollout: all of them, or none."""
        rollout, log = subject.head.rollout, lineage.files[-1].log
        ordinal = next_ordinal(log, rollout.path) if is_paginated(meta) else None
        if ordinal is None and _has_ordinals(log):
            raise StoreError(
                f"{rollout.path} is no paginated rollout by its session meta, but its records have ordinals: "
                "nothing can be appended."
            )
        thread_id, rollout_id = subject.thread_id, rollout.rollout_id
        if dry_run:
            path = None if rollout.compressed else rollout.path
            return Outcome(op, thread_id, thread_id, path, rollout_id, rollout_id, dropped, dry_run=True)
        with open_folder(self._root, rollout.path.rpartition("/")[0]) as folder:
            name = self._plain(rollout, folder)
            size = folder.size(name)
            recorder = Recorder(
                name, ordinal=ordinal, create=False, durability=self._durability, again=False, folder=folder
            )
            try:
                recorder.append(records)
                recorder.barrier()
            except Exception:
                _cut_back(folder, name, size)
                raise
            finally:
                recorder.abandon()
        with contextlib.suppress(StoreError):  # it is done; the row's times only order a list
            self._pointer.touch(subject.thread_id, "updated_at", *(("recency_at",) if op == "compact" else ()))
        return Outcome(op, thread_id, thread_id, rollout.plain_path, rollout_id, rollout_id, dropped)

    def _rehearse(self, subject: Subject) -> None:
        """All that an append asks of the database and the file system, but the records."""
        self._expected(subject)
        rollout = subject.head.rollout
        with open_folder(self._root, rollout.path.rpartition("/")[0]) as folder:
            if rollout.compressed:
                self._decoded(rollout)
                folder.probe()
            else:
                os.close(folder.open(rollout.name, os.O_WRONLY | os.O_APPEND))

    def _decoded(self, rollout: RolloutFile) -> Copy:
        decoded = self._projector.spool.decode(self._root, rollout.path)
        if decoded.damage is not None:
            raise StoreError(f"{rollout.path} is damaged: it is not decompressed for appending.")
        return decoded

    def _plain(self, rollout: RolloutFile, folder: Folder) -> str:
        """The name of a rollout that can be appended to; a compressed one is decompressed first, as Codex does."""
        if not rollout.compressed:
            return rollout.name
        decoded = self._decoded(rollout)
        plain = rollout.name.removesuffix(".zst")
        partial = partial_of(plain, new_id())
        folder.sweep()
        try:
            _copy_file(decoded.path, folder, partial)
            folder.publish(partial, plain)
        finally:
            with contextlib.suppress(OSError):  # not made at all, or it stays: a name that no reader takes
                folder.unlink(partial)
        try:
            folder.sync()
            folder.unlink(rollout.name)
        except OSError:
            fork.take_away(folder, plain)
            raise
        return plain


def _accepted_meta(lineage: OpenLineage, what: str) -> Json:
    """The session meta of the selected rollout. Without one that Codex accepts nothing is made from the thread: nobody
    could say in which mode it is.
    """
    file = lineage.files[-1]
    meta = read_whole_meta(file.log)
    if not meta:
        bare = "is a log of mid 2025 and " if first_dialect(file.log) is Dialect.BARE else ""
        raise StoreError(f"{file.rollout.path} {bare}has no session meta that Codex accepts: it can't be {what}.")
    return meta


def _has_ordinals(log: Log) -> bool:
    """True when one of the first or last records has an ordinal."""
    for lines in (forward(log), backward(log)):
        records = (decode(line) for line in lines if not is_blank(line))
        sound = (record for record in records if isinstance(record, Record))
        if any(record.ordinal is not None for record in islice(sound, 3)):
            return True
    return False


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


_ADVICE = re.compile(r"[;,] (?:then )?try again(?=\.)| Nothing was changed\.")


def _why(error: StoreError | OSError) -> str:
    """Why something that goes with an operation could not be done, as a sentence that asks for nothing."""
    if isinstance(error, StoreError):
        return _ADVICE.sub("", error.message)
    return f"{error.filename or 'The disk'}: {error.strerror}."


def _sentence(text: str) -> str:
    """A message that follows a full stop."""
    return text[:1].upper() + text[1:]


def _generation_before(subject: Subject, meta: Json) -> RolloutFile:
    """The rollout that was selected before the one that is: as its meta says, or else the one before it by name.

    Raises LineageError when the one that the meta names is not there: any other would be another past.
    """
    previous = meta.get(drafts.PREVIOUS)
    if previous is None:
        older = [rollout for rollout in subject.rollouts if rollout < subject.head.rollout]
        if not older:
            raise RequestError("nothing to undo: the thread was never reverted.")
        return max(older)
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


def _cut_back(folder: Folder, name: str, size: int) -> None:
    """Take away what was appended; we hold the writer's lock, so nobody else has appended."""
    try:
        if folder.size(name) != size:
            descriptor = folder.open(name, os.O_WRONLY)
            try:
                os.ftruncate(descriptor, size)
            finally:
                os.close(descriptor)
    except (OSError, UnwritableError) as error:
        raise UnsettledError(
            f"the operation failed, and what it had appended to {os.path.join(folder.path, name)} after byte {size} "
            f"could not be taken back: {_why(error)} The thread may have a part of it."
        ) from error


def _copy_file(source: str, folder: Folder, name: str) -> None:
    with (
        open(source, "rb") as reading,
        open(folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as writing,
    ):
        while chunk := reading.read(1 << 20):
            writing.write(chunk)
        writing.flush()
        os.fsync(writing.fileno())


def _refuse_archived(head: Head) -> None:
    if head.rollout.archived:
        raise RequestError("the thread is archived: take it out of the archive in Codex first, or fork it.")


def _preview(subject: Subject, boundary: Boundary, first: str, *, paginated: bool) -> str | None:
    """The preview of a fork that remembers `first` as its first message; None for that of its source, which is kept by
    a fork of all of it, and where it says the same.
    """
    if boundary.kind == "latest" and (first or paginated):
        return None
    known = subject.row.preview if subject.row is not None else None
    return None if first and known and first.startswith(known) else first


def _effective(scan: FullScan) -> list[str]:
    """The ids of the turns that count, oldest first."""
    return [turn.turn_id for turn in scan.tracker.turns if turn.dropped_by is None]


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
