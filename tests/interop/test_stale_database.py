"""Databases that are not what they should be: each operation either goes through, and the real Codex goes on from it,
or it is refused in words and nothing changes.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from threadstore import pointer
from threadstore.cut import Boundary, RequestError
from threadstore.locks import BusyError
from threadstore.store import ThreadStore

from tests.interop.codex import Codex, databases
from tests.interop.conftest import FRESH, MakeHome
from tests.interop.following import Following, open_store
from tests.interop.model_server import ModelServer
from tests.interop.untouched import fingerprint, rows

Threads = dict[str, dict[str, str]]


@contextmanager
def editing(home: Path) -> Iterator[sqlite3.Connection]:
    """Codex's database of threads, to be changed."""
    (database,) = databases(home)
    with closing(sqlite3.connect(database)) as connection:
        yield connection
        connection.commit()


def path_of(home: Path, thread_id: str) -> str:
    """What the row says of a thread."""
    return str(rows(home)[thread_id]["rollout_path"])


def select(home: Path, thread_id: str, path: str) -> None:
    """Let the row say something else."""
    with editing(home) as database:
        database.execute("UPDATE threads SET rollout_path = ? WHERE id = ?", (path, thread_id))


# What may be wrong with a database. Each takes the home and the thread that is operated on.


def no_row(home: Path, thread_id: str) -> None:
    """The table has no row of the thread."""
    with editing(home) as database:
        database.execute("DELETE FROM threads WHERE id = ?", (thread_id,))


def no_rows(home: Path, thread_id: str) -> None:
    """The table is empty."""
    with editing(home) as database:
        database.execute("DELETE FROM threads")


def another_home(home: Path, thread_id: str) -> None:
    """The row names the file where it lay before the store was moved."""
    inside = path_of(home, thread_id).removeprefix(str(home))
    select(home, thread_id, f"/home/somebody/.codex{inside}")


def backslashes(home: Path, thread_id: str) -> None:
    """The row was written on Windows."""
    inside = path_of(home, thread_id).removeprefix(str(home)).replace("/", "\\")
    select(home, thread_id, f"C:\\Users\\somebody\\.codex{inside}")


def older_rollout(home: Path, thread_id: str) -> None:
    """The row names the rollout that the thread had before it was reverted."""
    older = min(home.rglob(f"rollout-*{thread_id}*.jsonl"), key=lambda path: path.name)
    select(home, thread_id, str(older))


def moved_to_the_archive(home: Path, thread_id: str) -> None:
    """Somebody put the files into the archive and didn't tell the database."""
    archive = home / "archived_sessions"
    archive.mkdir(exist_ok=True)
    for path in home.glob(f"sessions/**/rollout-*{thread_id}*"):
        path.rename(archive / path.name)


def newer_schema(home: Path, thread_id: str) -> None:
    """A later release added columns and counts its migrations further."""
    with editing(home) as database:
        database.execute("ALTER TABLE threads ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'")
        database.execute('ALTER TABLE threads ADD COLUMN "order" INTEGER')
        columns = [row[1] for row in database.execute("PRAGMA table_info(_sqlx_migrations)")]
        last = database.execute("SELECT * FROM _sqlx_migrations ORDER BY version DESC LIMIT 1").fetchone()
        later = dict(zip(columns, last, strict=True)) | {"version": last[0] + 1, "description": "later"}
        marks = ", ".join("?" * len(later))
        database.execute(f"INSERT INTO _sqlx_migrations VALUES ({marks})", list(later.values()))


def of_a_later_release(home: Path, thread_id: str) -> None:
    """Only the database of a later release is there. Codex 0.171.0 makes itself another one, and each selects for
    itself: what Codex reverts from then on only an older database knows, which we don't ask.
    """
    newer_schema(home, thread_id)
    (database,) = databases(home)
    shutil.move(database, home / "state_6.sqlite")


#: What may be wrong with single rows, and the thread of the fresh stores that it is done to.
ROWS: dict[str, Callable[[Path, str], None]] = {
    "compacted": no_row,
    "fork": another_home,
    "named": backslashes,
    "reverted": older_rollout,
    "interrupted": moved_to_the_archive,
}
TABLES = (no_rows, newer_schema, of_a_later_release)


def operate(store: ThreadStore, thread_id: str) -> list[str]:
    """Fork, revert and compact a thread; the threads to go on with."""
    children = [store.fork(thread_id, Boundary("latest")).thread_id]
    store.revert(thread_id, "-1")
    children.append(store.fork(thread_id, Boundary("through", "1")).thread_id)
    store.compact(thread_id, "A summary.")
    return [*children, thread_id]


def refuses(home: Path, operation: Callable[[], object], error: type[Exception], words: str) -> None:
    """An operation is refused for that reason, and changes nothing."""
    before = fingerprint(home)
    with pytest.raises(error, match=words):
        operation()
    assert fingerprint(home) == before
    assert not list(home.rglob("*.partial"))


@pytest.mark.parametrize("name", FRESH)
def test_rows_that_are_wrong(name: str, make_home: MakeHome, fresh_threads: Threads, tmp_path: Path) -> None:
    """A row that is missing, or names what is not there, or not the newest rollout: we see the thread as Codex does,
    and it goes on from what we wrote.
    """
    home = make_home(name, tmp_path)
    threads = {kind: thread_id for kind, thread_id in fresh_threads[name].items() if kind in ROWS}
    for kind, thread_id in threads.items():
        ROWS[kind](home, thread_id)
    store = open_store(home)
    todo = []
    for kind, thread_id in threads.items():
        if kind != "interrupted":
            todo += operate(store, thread_id)
            continue
        for operation in (lambda: store.revert(thread_id, "-1"), lambda: store.compact(thread_id, "A summary.")):  # noqa: B023
            refuses(home, operation, RequestError, "is archived: take it out of the archive")
        todo.append(store.fork(thread_id, Boundary("latest")).thread_id)
    with ModelServer() as model, Codex(home, model) as codex:
        following = Following(codex, store)
        for one in todo:
            (following.goes_on if one in threads.values() else following.answers)(one)


@pytest.mark.parametrize("name", FRESH)
@pytest.mark.parametrize("fault", TABLES, ids=lambda fault: fault.__name__)
def test_tables_that_are_wrong(
    fault: Callable[[Path, str], None], name: str, make_home: MakeHome, fresh_threads: Threads, tmp_path: Path
) -> None:
    """The same with a table that lost everything, or that a later release has changed."""
    home = make_home(name, tmp_path)
    thread_id = fresh_threads[name]["plain"]
    fault(home, thread_id)
    store = open_store(home)
    todo = operate(store, thread_id)
    with ModelServer() as model, Codex(home, model) as codex:
        following = Following(codex, store)
        for one in todo:
            (following.goes_on if one == thread_id and fault is not of_a_later_release else following.answers)(one)


@pytest.mark.parametrize("name", FRESH)
def test_a_database_that_is_locked(
    name: str, make_home: MakeHome, fresh_threads: Threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody writes to the database for long, what needs it is refused in words and changes nothing. A fork
    does without, and says so.
    """
    monkeypatch.setattr(pointer, "_PATIENCE", 0.1)
    home = make_home(name, tmp_path)
    thread_id = fresh_threads[name]["plain"]
    store = open_store(home)
    (path,) = databases(home)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        operations: list[Callable[[], object]] = [
            lambda: store.revert(thread_id, "-1"),
            lambda: store.compact(thread_id, "A summary."),
        ]
        for operation in operations:
            refuses(home, operation, BusyError, "is locked by another process; try again")
        child = store.fork(thread_id, Boundary("latest"))
        assert "locked by another process" in (child.message or "")
        assert child.thread_id not in rows(home)
        writer.execute("ROLLBACK")
    todo = [child.thread_id, *operate(store, thread_id)]
    with ModelServer() as model, Codex(home, model) as codex:
        following = Following(codex, store)
        for one in todo:
            (following.goes_on if one in (thread_id, child.thread_id) else following.answers)(one)
        assert {thread["id"] for thread in codex.known()} >= set(todo)
