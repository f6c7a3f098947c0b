"""Operations that both Codex and we carry out, on copies of one store."""

from __future__ import annotations

from dataclasses import dataclass

from threadstore.cut import Boundary, NoSuchTurnError, RequestError
from threadstore.store import ThreadStore

from tests.interop.codex import Codex, CodexError

LATEST = Boundary("latest")


@dataclass(frozen=True, slots=True)
class Step:
    """A fork, revert or compaction of a thread."""

    op: str
    thread_id: str
    boundary: Boundary = LATEST

    def __str__(self) -> str:
        return f"{self.op} {self.thread_id} {self.boundary.kind} {self.boundary.turn}"


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of a step: a thread, or a refusal in words."""

    thread_id: str = ""
    refusal: str = ""


def by_codex(codex: Codex, step: Step) -> Taken:
    """Codex carries a step out."""
    names = {"latest": "", "through": "lastTurnId", "before": "beforeTurnId"}
    turn = {names[step.boundary.kind]: step.boundary.turn} if step.boundary.turn else {}
    try:
        if step.op == "fork":
            return Taken(codex.fork(step.thread_id, **turn))
        codex.resume(step.thread_id)
        if step.op == "compact":
            codex.compact(step.thread_id)
        else:
            codex.call("thread/revert", threadId=step.thread_id, **turn)
    except CodexError as error:
        return Taken(refusal=str(error))
    return Taken(step.thread_id)


def by_us(store: ThreadStore, step: Step) -> Taken:
    """We carry a step out."""
    try:
        if step.op == "fork":
            return Taken(store.fork(step.thread_id, step.boundary).thread_id)
        if step.op == "compact":
            return Taken(store.compact(step.thread_id, "A summary.").thread_id)
        return Taken(store.revert(step.thread_id, step.boundary.turn).thread_id)
    except (NoSuchTurnError, RequestError) as error:
        return Taken(refusal=str(error))
