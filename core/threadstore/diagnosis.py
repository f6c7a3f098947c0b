"""What is odd or damaged about one thread (FAULTS): from what passes over its logs have found to problems by name."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from threadstore import views
from threadstore.errors import LineageError, Problem, TooLargeError, UnreadableError
from threadstore.files import pread_exactly
from threadstore.heads import Subject
from threadstore.metas import REJECTED
from threadstore.names import canonical_id
from threadstore.opened import OpenFile, OpenLineage
from threadstore.records import Dialect
from threadstore.scan import FullScan, may_have_mattered


def problems(
    subject: Subject, listed: Sequence[Problem], lineage: OpenLineage, scan: FullScan, error: LineageError | None
) -> list[Problem]:
    """Everything that is odd or damaged about a thread, in the order of `problems.jsonl`. `listed` is what the names
    of its files tell.
    """
    found: list[Problem] = []
    head = subject.head
    if error is not None and error.code not in {_DAMAGES[file.damage][0] for file in lineage.files if file.damage}:
        consequence = (
            "what the thread is now can't be told: derived files answer EIO; "
            "full_history.jsonl and rollouts/ still work"
        )
        found.append(Problem(error.code, head.rollout.path, None, None, error.message, consequence))
    if head.problem is not None:
        found.append(head.problem)
    own = {rollout.path for rollout in subject.rollouts}
    found += [problem for problem in listed if problem.path in own]
    found += _meta_problems(subject, lineage, is_empty=not scan.columns[0] and scan.offset >= lineage.ends()[-1])
    if scan.dialect is Dialect.BARE:
        message = "a log of mid 2025, whose lines are bare items"
        consequence = "Codex 0.171.0 does not read it; its history is made from the bare items"
        found.append(Problem("old_format", head.rollout.path, 0, None, message, consequence))
    found += [_spool_problem(file) for file in lineage.files if file.damage is not None]
    found += scan.problems
    tail = _torn_tail(scan, lineage)
    if tail is not None:
        found.append(tail)
    return found


def closed(subject: Subject, error: UnreadableError | TooLargeError) -> bytes:
    """What can be said of a thread whose file can't be opened: why. It holds only now."""
    refused = isinstance(error, UnreadableError) and error.errno in (errno.EACCES, errno.EPERM)
    code = "too_large" if isinstance(error, TooLargeError) else "no_permission" if refused else "not_a_file"
    consequence = "nothing of the thread can be told; other threads are not affected"
    problem = Problem(code, subject.head.rollout.path, None, None, error.message, consequence)
    return views.problem_lines([problem])


def _torn_tail(scan: FullScan, lineage: OpenLineage) -> Problem | None:
    log = lineage.files[-1].log
    if scan.offset >= log.size:
        return None
    path = lineage.files[-1].rollout.path
    tail = pread_exactly(log.descriptor, min(log.size - scan.offset, 1 << 20), scan.offset)
    code = "nul_run" if b"\0" in tail else "torn_tail"
    message = "the file ends in NUL bytes" if code == "nul_run" else "the last line was cut short"
    consequence = "it is passed over; the next record begins on a fresh line"
    uncertain = may_have_mattered(tail)
    if uncertain:
        consequence += "; it may have been a rollback, a checkpoint or a change of settings"
    return Problem(code, path, scan.offset, log.size - scan.offset, message, consequence, uncertain)


def _meta_problems(subject: Subject, lineage: OpenLineage, *, is_empty: bool) -> list[Problem]:
    """What is odd about the identity of a thread (FAULTS 10, 11)."""
    leaf, path = lineage.segments[-1].meta, subject.head.rollout.path
    if not leaf:
        if lineage.files[-1].damage is not None and is_empty:
            return []  # the damage explains it
        if is_empty:
            consequence = "the thread is starting: it has no history yet"
            return [Problem("starting", path, 0, 0, "the file is empty", consequence)]
        consequence = "identity and mode are guessed from the file's name"
        return [Problem("meta_missing", path, 0, None, "no session meta in the file", consequence)]
    found = []
    if REJECTED in leaf:
        message = f"the session meta is not accepted by Codex: {leaf[REJECTED]}"
        found.append(Problem("meta_rejected", path, 0, None, message, "what can be read of it is used", uncertain=True))
    if isinstance(leaf.get("id"), str) and canonical_id(leaf["id"]) != subject.thread_id:
        message = f"the session meta is of thread {leaf['id']}, the file name of thread {subject.thread_id}"
        found.append(Problem("meta_foreign", path, 0, None, message, "the file is shown under the id in its name"))
    return found


_DAMAGES = {
    "torn": ("zstd_torn", "the compressed file ends within a frame"),
    "trailing": ("zstd_trailing", "bytes that are no zstd frame follow the content"),
    "corrupt": ("zstd_corrupt", "the compressed file is damaged"),
}


def _spool_problem(file: OpenFile) -> Problem:
    code, message = _DAMAGES[file.damage or "corrupt"]
    consequence = "what could be decoded is shown, like a log with a torn tail; what is lost may have been anything"
    return Problem(code, file.rollout.path, None, None, message, consequence, uncertain=True)
