"""Logs of other releases of Codex: what can be done with them, and what is refused with a true reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from threadstore.cut import Boundary, RequestError
from threadstore.errors import StoreError
from threadstore.operations import Outcome
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.conftest import CopyStore
from tests.operations.snapshots import read, turns_of

OPERATIONS: tuple[Callable[[ThreadStore, str], Outcome], ...] = (
    lambda store, one: store.fork(one, Boundary("latest")),
    lambda store, one: store.revert(one, "-1"),
    lambda store, one: store.undo(one),
    lambda store, one: store.compact(one, "it"),
)
UNREADABLE = ("old_0.20.0_basic", "old_0.20.0_autocompact")


def opened(home: Path) -> ThreadStore:
    """The store, seen anew."""
    return ThreadStore(str(home), Spool(f"{home}.spool"))


def active(home: Path) -> list[str]:
    """The threads that aren't archived."""
    store = opened(home)
    return [thread_id for thread_id in store.thread_ids() if not store.head(thread_id).archived]


def contents(home: Path) -> dict[str, bytes]:
    """Every file of the store."""
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_codex_cannot_read_is_refused(name: str, copy_store: CopyStore) -> None:
    """Bare items: a fork would be a thread that nothing can read, and a checkpoint one that nobody sees."""
    home = copy_store(name).home
    before = contents(home)
    for thread_id in opened(home).thread_ids():
        for operation in OPERATIONS:
            with pytest.raises(StoreError, match="mid 2025 and has no session meta that Codex accepts"):
                operation(opened(home), thread_id)
    now = {path: data for path, data in contents(home).items() if not path.startswith("thread-writer-locks/")}
    assert now == before


@pytest.mark.parametrize("name", ["old_0.47.0_basic", "old_0.60.1_basic", "old_0.80.0_basic"])
def test_revert_of_turns_without_records_of_their_own(name: str, copy_store: CopyStore) -> None:
    """The message lies before the event that opens the turn: both lose the same turns, one after the other."""
    home = copy_store(name).home
    for thread_id in active(home):
        turns, memory = turns_of(opened(home), thread_id), read(opened(home), thread_id, View.MODEL_INPUT)
        while turns:
            opened(home).revert(thread_id, "-1")
            assert turns_of(opened(home), thread_id) == turns[:-1]
            shorter = read(opened(home), thread_id, View.MODEL_INPUT)
            assert memory.startswith(shorter)
            assert len(shorter) < len(memory)
            turns, memory = turns[:-1], shorter
        assert b"question" not in memory


def test_several_turns_of_an_old_log_at_once(copy_store: CopyStore) -> None:
    """A marker for two turns is the same as two markers."""
    memories = []
    for steps in (("-2",), ("-1", "-1")):
        home = copy_store("old_0.80.0_basic").home
        thread_id = max(active(home), key=lambda one: len(turns_of(opened(home), one)))
        for step in steps:
            opened(home).revert(thread_id, step)
        memories.append(read(opened(home), thread_id, View.MODEL_INPUT))
    assert memories[0] == memories[1]


@pytest.mark.parametrize(
    "name", ["old_0.47.0_autocompact", "old_0.80.0_basic_autocompact", "old_0.100.0_basic_autocompact"]
)
def test_a_refusal_leads_somewhere(name: str, copy_store: CopyStore) -> None:
    """Behind a checkpoint a marker may mean two things; a fork is advised only where one can be made."""
    home = copy_store(name).home
    for thread_id in active(home):
        for number in range(1, len(turns_of(opened(home), thread_id)) + 1):
            before = turns_of(opened(home), thread_id)
            memory = read(opened(home), thread_id, View.MODEL_INPUT)
            message = refusal(home, thread_id, str(-number))
            if message is None:
                copy = copy_store(name).home
                opened(copy).revert(thread_id, str(-number))
                assert turns_of(opened(copy), thread_id) == before[:-number]
                assert memory.startswith(read(opened(copy), thread_id, View.MODEL_INPUT))
            elif "Fork the thread before that turn" in message:
                opened(home).fork(thread_id, Boundary("before", str(-number)))
            else:
                assert "fork latest" in message
                opened(home).fork(thread_id, Boundary("latest"))
                opened(home).compact(thread_id, "it", dry_run=True)


def refusal(home: Path, thread_id: str, turn: str) -> str | None:
    """Why a revert is refused; None when it isn't."""
    try:
        opened(home).revert(thread_id, turn, dry_run=True)
    except RequestError as error:
        return error.message
    return None
