"""What the tests do to a thread before Codex goes on with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from threadstore.cut import Boundary
from threadstore.projection import View
from threadstore.store import ThreadStore

from tests.interop.following import lines

Operate = Callable[[ThreadStore, str], str]
SUMMARY = 'What was done: the beginning.\nWhat is left: the rest. – ünï 漢字 "quoted" \\ {json: no}'


@dataclass(frozen=True, slots=True)
class Case:
    """An operation, or several, on one thread; gives the id of the thread to look at."""

    name: str
    operate: Operate

    @property
    def kind(self) -> str:
        """The name without the number of a turn."""
        return self.name.rstrip(" 0123456789")


def _fork(kind: str, turn: str = "") -> Operate:
    return lambda store, thread_id: store.fork(thread_id, Boundary(kind, turn)).thread_id


def _revert(turn: str) -> Operate:
    return lambda store, thread_id: store.revert(thread_id, turn).thread_id


def _undo(store: ThreadStore, thread_id: str) -> str:
    return store.undo(thread_id).thread_id


def _compact(summary: str | None) -> Operate:
    return lambda store, thread_id: store.compact(thread_id, summary).thread_id


def _sequence(*operations: Operate) -> Operate:
    """Each operation goes on with the thread that the one before gave."""

    def operate(store: ThreadStore, thread_id: str) -> str:
        for operation in operations:
            thread_id = operation(store, thread_id)
        return thread_id

    return operate


def turn_ids(store: ThreadStore, thread_id: str) -> list[str]:
    """The turns that count."""
    return [turn["id"] for turn in lines(store, thread_id, View.TURNS) if turn["effective"]]


def at_turns(store: ThreadStore, thread_id: str) -> Iterator[Case]:
    """A cut at every turn."""
    for number in range(1, len(turn_ids(store, thread_id)) + 1):
        yield Case(f"fork through {number}", _fork("through", str(number)))
        yield Case(f"fork before {number}", _fork("before", str(number)))
        yield Case(f"revert before {number}", _revert(str(number)))


#: Operations and short sequences that mean something for any thread with a turn.
CASES = (
    Case("fork", _fork("latest")),
    Case("fork of a fork", _sequence(_fork("latest"), _fork("before", "-1"))),
    Case("fork of a fork, whole", _sequence(_fork("through", "1"), _fork("latest"))),
    Case("fork of a reverted thread", _sequence(_revert("-1"), _fork("latest"))),
    Case("fork before a reverted thread's first turn", _sequence(_revert("-1"), _fork("before", "1"))),
    Case("revert of a fork", _sequence(_fork("latest"), _revert("-1"))),
    Case("revert of a fork to nothing", _sequence(_fork("latest"), _revert("1"))),
    Case("undo", _sequence(_revert("-1"), _undo)),
    Case("undo of an undo", _sequence(_revert("-1"), _undo, _undo)),
    Case("undo of a revert to nothing", _sequence(_revert("1"), _undo)),
    Case("revert after an undo", _sequence(_revert("-1"), _undo, _revert("1"))),
    Case("compact", _compact(SUMMARY)),
    Case("compact to the newest messages", _compact(None)),
    Case("compact twice", _sequence(_compact("First."), _compact("Second."))),
    Case("compact after a revert", _sequence(_revert("-1"), _compact(SUMMARY))),
    Case("compact after a revert to nothing", _sequence(_revert("1"), _compact(SUMMARY))),
    Case("compact a fork", _sequence(_fork("latest"), _compact(SUMMARY))),
    Case("fork after a compaction", _sequence(_compact(SUMMARY), _fork("latest"))),
    Case("fork before a compaction", _sequence(_compact(SUMMARY), _fork("before", "-1"))),
    Case("fork through a compaction", _sequence(_compact(SUMMARY), _fork("through", "-1"))),
    Case("revert before a compaction", _sequence(_compact(SUMMARY), _revert("-1"))),
    Case("undo of a revert before a compaction", _sequence(_compact(SUMMARY), _revert("-1"), _undo)),
    Case("compact twice, revert between", _sequence(_compact("First."), _compact("Second."), _revert("-1"))),
    Case("compact, revert to nothing", _sequence(_compact(SUMMARY), _revert("1"))),
)
