"""An operation acts on the thread as it is under the lock, and only if that is the one that was seen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from threadstore import operations, pointer
from threadstore.cut import RequestError
from threadstore.locks import BusyError, writer_lock
from threadstore.operations import Outcome
from threadstore.projection import View
from threadstore.recorder import Draft
from threadstore.seen import Seen
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.operations.model import append, meta, said, turn
from tests.operations.snapshots import read

THREAD = "01a22938-0000-7000-8000-00000000000a"
Operation = Callable[[ThreadStore, Seen | None], Outcome]

OPERATIONS: dict[str, Operation] = {
    "revert": lambda store, expected: store.revert(THREAD, "-1", expected=expected),
    "undo": lambda store, expected: store.undo(THREAD, expected=expected),
    "compact": lambda store, expected: store.compact(THREAD, "it", expected=expected),
}
EACH = pytest.mark.parametrize("name", OPERATIONS)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A store without a database, whose thread has four turns and was reverted once."""
    home = tmp_path / "home"
    path = home / "sessions" / "2026" / "01" / "01" / f"rollout-2026-01-01T00-00-00-{THREAD}.jsonl"
    path.parent.mkdir(parents=True)
    append(path, [Draft.of("session_meta", meta(THREAD, paginated=True))], paginated=True, create=True)
    for number in range(1, 6):
        append(path, turn(THREAD, number, paginated=True), paginated=True)
    fresh(home).revert(THREAD, "-1")
    return home


def fresh(home: Path) -> ThreadStore:
    """A store that has seen nothing yet."""
    return ThreadStore(str(home), Spool(f"{home}.spool"))


def codex(home: Path) -> None:
    """Codex adds a turn."""
    store = fresh(home)
    append(home / store.head(THREAD).path, turn(THREAD, 9, paginated=True), paginated=True)


CHANGES: dict[str, Callable[[Path], object]] = {
    "codex": codex,
    "revert": lambda home: fresh(home).revert(THREAD, "2"),
    "compact": lambda home: fresh(home).compact(THREAD, "another one"),
}


def contents(home: Path) -> dict[Path, bytes]:
    """Every rollout."""
    return {path: path.read_bytes() for path in home.rglob("rollout-*")}


@EACH
@pytest.mark.parametrize("change", CHANGES)
def test_a_thread_that_changed_is_left_alone(home: Path, name: str, change: str) -> None:
    """Whoever changed it, and whatever was changed; what is seen now can be acted on."""
    store = fresh(home)
    seen = store.seen(THREAD)
    CHANGES[change](home)
    before = contents(home)
    with pytest.raises(BusyError, match="changed since"):
        OPERATIONS[name](store, seen)
    assert contents(home) == before
    OPERATIONS[name](store, store.seen(THREAD))
    assert contents(home) != before


@EACH
def test_an_operation_tells_what_it_left(home: Path, name: str) -> None:
    """So the next one can expect it."""
    store = fresh(home)
    first = OPERATIONS[name](store, store.seen(THREAD))
    assert first.seen == store.seen(THREAD)
    assert OPERATIONS[name](store, first.seen).seen == fresh(home).seen(THREAD)
    assert store.revert(THREAD, "1", dry_run=True).seen == store.seen(THREAD)


@EACH
@pytest.mark.parametrize("expecting", [True, False])
def test_what_happens_before_the_lock_is_seen(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, expecting: bool
) -> None:
    """Without a database nothing but a look under the lock tells that another rollout was selected meanwhile."""

    @contextlib.contextmanager
    def late(root: str, thread_id: str) -> Iterator[None]:
        monkeypatch.setattr(operations, "writer_lock", writer_lock)
        fresh(home).revert(THREAD, "2")
        with writer_lock(root, thread_id):
            yield

    store = fresh(home)
    seen = store.seen(THREAD) if expecting else None
    monkeypatch.setattr(operations, "writer_lock", late)
    if expecting:
        with pytest.raises(BusyError, match="changed since"):
            OPERATIONS[name](store, seen)
        assert len(contents(home)) == 3
        return
    OPERATIONS[name](store, None)
    expected = {"revert": [], "undo": ["said 1", "said 2", "said 3", "said 4"], "compact": ["said 1"]}[name]
    assert said(read(fresh(home), THREAD, View.MODEL_INPUT)) == expected


def test_an_archived_thread_is_left_without_a_lock_file(home: Path) -> None:
    """It is refused before anything is made."""
    (home / "archived_sessions").mkdir()
    for path in home.rglob("rollout-*"):
        path.rename(home / "archived_sessions" / path.name)
    before = set((home / "thread-writer-locks").iterdir())
    for operation in OPERATIONS.values():
        with pytest.raises(RequestError, match="archived"):
            operation(fresh(home), None)
    assert set((home / "thread-writer-locks").iterdir()) == before


@pytest.mark.parametrize("seconds", [0, -1, -3600, -86400 * 400])
def test_a_clock_that_goes_back_hides_nothing(home: Path, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Without a database the greatest name is in force, so each new generation must have it."""
    now = time.time_ns()
    store = fresh(home)
    for number in range(4):
        moment = now + seconds * 1_000_000_000 * (number + 1)
        stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.localtime(moment // 1_000_000_000))
        monkeypatch.setattr(time, "time_ns", partial(int, moment))
        monkeypatch.setattr(pointer, "file_stamp", partial(str, stamp))
        outcome = store.revert(THREAD, "-1") if number % 2 == 0 else store.undo(THREAD)
        assert fresh(home).head(THREAD).path == outcome.rollout
    monkeypatch.undo()
    assert said(read(fresh(home), THREAD, View.MODEL_INPUT)) == ["said 1", "said 2", "said 3", "said 4"]
