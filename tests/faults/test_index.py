"""FAULTS 26: what is wrong with Codex's database. The files rule; the database only selects among them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from threadstore.projection import StoreView, View
from threadstore.store import ThreadStore

from tests.faults.logs import PAGINATED, Home, Log, Views, content, fingerprint, pairs, store_problems, uuid

COLUMNS = "id TEXT PRIMARY KEY, rollout_path TEXT, history_mode TEXT, archived INTEGER, name TEXT, preview TEXT"


def database(
    home: Home, *rows: tuple[str, str | bytes | None], name: str = "state_5.sqlite", wal: bool = False
) -> Path:
    """Codex's table of threads, as far as we read it: thread id and path of the selected rollout."""
    path = home.root / name
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA page_size=512")
        if wal:
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"CREATE TABLE threads ({COLUMNS})")
        for thread, rollout in rows:
            connection.execute(
                "INSERT INTO threads VALUES (?, ?, 'paginated', 0, ?, 'p')", (thread, rollout, f"n {thread}")
            )
        connection.commit()
    home.changed()
    return path


@pytest.fixture
def reverted(home: Home) -> Log:
    """A thread with two generations, `first` and the newer `second`. Only the database can say that the first one
    counts.
    """
    first, second = Log(PAGINATED, 1), Log(PAGINATED, 1, rollout=5)
    first.turn("first")
    second.turn("second")
    home.put(first)
    home.put(second, stamp="2026-11-29T11-00-00")
    return first


def _first(home: Home, root: str | None = None) -> str:
    return f"{root or home.root}/sessions/2026/11/29/{home.name(Log(PAGINATED, 1))}"


def _selected(home: Home) -> list[str]:
    return home.read(uuid(1)).effective()


def test_the_row_selects(home: Home, reverted: Log) -> None:
    """What the faults below are measured by: the row counts, and names the thread."""
    database(home, (reverted.thread, _first(home)))
    views = home.read(reverted)
    assert views.effective() == pairs("first")
    assert views.problems() == []
    page = views.thread()
    assert (page["name"], page["rollout"]["selected_by"]) == (f"n {reverted.thread}", "index")


def test_without_a_database(home: Home, reverted: Log) -> None:
    """FAULTS 26: the newest name wins (FORMAT 11.4), and it is no problem."""
    views = home.read(reverted)
    assert views.effective() == pairs("second")
    assert views.problems() == []
    assert views.thread()["rollout"]["selected_by"] == "name"


def test_of_several_databases_the_newest_schema_counts(home: Home, reverted: Log) -> None:
    """FAULTS 26: an old release's database is left beside the new one; 10 is more than 9."""
    database(home, (reverted.thread, "nowhere"), name="state_9.sqlite")
    database(home, (reverted.thread, _first(home)), name="state_10.sqlite")
    database(home, (reverted.thread, "nowhere"), name="state_11.sqlite.bak")
    assert _selected(home) == pairs("first")


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
@pytest.mark.parametrize("wal", [False, True])
def test_locked(home: Home, reverted: Log, wal: bool, mode: str) -> None:
    """FAULTS 26: Codex is writing: what was committed is read at once, without waiting, without a trace."""
    path = database(home, (reverted.thread, _first(home)), wal=wal)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        if wal:
            writer.execute(
                "UPDATE threads SET preview = 'changed'"
            )  # makes the log, which stays as long as this is open
        writer.execute(f"BEGIN {mode}")
        home.changed()
        views = home.read(reverted)
        before = fingerprint(home.root)
        assert views.effective() == pairs("first")
        assert views.problems() == []
        assert store_problems(views.store) == []
        assert fingerprint(home.root) == before
        writer.execute("ROLLBACK")
    home.changed()


def test_uncommitted_changes_do_not_count(home: Home, reverted: Log) -> None:
    """FAULTS 26: nor what Codex has only begun to write."""
    path = database(home, (reverted.thread, _first(home)), wal=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("UPDATE threads SET preview = 'changed'")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE threads SET rollout_path = 'nowhere'")
        home.changed()
        assert _selected(home) == pairs("first")
        writer.execute("ROLLBACK")
    home.changed()


def test_revert_is_seen(home: Home, reverted: Log) -> None:
    """FAULTS 26: the pointer moves while we look, in the write-ahead log and out of it."""
    path = database(home, (reverted.thread, _first(home)), wal=True)
    store = home.open()
    views = Views(store, reverted.thread)
    old = store.project(reverted.thread, View.EFFECTIVE_HISTORY)
    assert views.effective() == pairs("first")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute(
            "UPDATE threads SET rollout_path = replace(replace(rollout_path, '10-00-00', '11-00-00'), '.jsonl', ?)",
            (f"_{uuid(5)}.jsonl",),
        )
        assert views.effective() == pairs("second")
        assert not store.is_current(reverted.thread, old)
    assert views.effective() == pairs("second")
    home.changed()


def _random(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 100)


def _header_only(path: Path) -> None:
    os.truncate(path, 100)


def _zeroed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[512:] = bytes(len(data) - 512)
    path.write_bytes(data)


def _no_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE threads")


def _other_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE threads RENAME COLUMN rollout_path TO path")


DAMAGES = [_random, _empty, _truncated, _header_only, _zeroed, _no_table, _other_table]


@pytest.mark.parametrize("damage", DAMAGES)
def test_corrupt(home: Home, reverted: Log, damage: Callable[[Path], None]) -> None:
    """FAULTS 26: then it is as if there were none, and the store says so."""
    path = database(home, (reverted.thread, _first(home)), *((uuid(n), f"x{n}") for n in range(100, 160)))
    damage(path)
    home.changed()
    store = home.open()
    views = Views(store, reverted.thread)
    # A row that can still be read may still select; what can't be read selects nothing.
    assert views.effective() in (pairs("second"), pairs("first"))
    assert "index_corrupt" in [code for code, _ in store_problems(store)]
    assert views.thread()["health"] in ("sound", "problems")


def test_corrupt_log(home: Home, reverted: Log) -> None:
    """FAULTS 26: a write-ahead log that is no log is what SQLite itself makes of it: not there."""
    database(home, (reverted.thread, _first(home)))
    (home.root / "state_5.sqlite-wal").write_bytes(os.urandom(5000))
    home.changed()
    store = home.open()
    assert Views(store, reverted.thread).effective() == pairs("first")


def test_ghosts(home: Home, reverted: Log) -> None:
    """FAULTS 26: rows whose files are lost: no thread, but listed; a thread whose row names a lost file goes on with
    the files that are there. Codex would find nothing (FORMAT 11.4, rule 2), which is said.
    """
    database(
        home,
        (reverted.thread, f"{home.root}/sessions/2026/11/29/rollout-2026-11-29T12-00-00-{uuid(1)}_{uuid(7)}.jsonl"),
        (uuid(66), "gone"),
    )
    views = home.read(reverted)
    assert views.effective() == pairs("second")
    [(code, file, _, _)] = views.problems()
    assert (code, Path(file).name) == ("index_ghost", home.name(Log(PAGINATED, 1, rollout=5), "2026-11-29T11-00-00"))
    assert uuid(66) not in views.store
    assert [code for code, _ in store_problems(views.store)] == ["index_ghost", "index_ghost"]


@pytest.mark.parametrize(
    "old",
    ["/home/old/.codex", "/gone", "C:\\Users\\me\\.codex", "\\\\wsl.localhost\\Ubuntu\\root\\.codex", "sessions", ""],
)
def test_moved_store(home: Home, reverted: Log, old: str) -> None:
    """FAULTS 26: absolute paths of another place or machine: what follows `sessions/` is right; the place is never
    looked at.
    """
    path = _first(home, old)
    database(home, (reverted.thread, path.replace("/", "\\") if "\\" in old else path))
    views = home.read(reverted)
    assert views.effective() == pairs("first")
    assert views.problems() == []


def test_row_of_a_compressed_file(home: Home) -> None:
    """FORMAT 11.4: the row says `.jsonl`, the file has been compressed since; or the other way round."""
    first, second = Log(PAGINATED, 1), Log(PAGINATED, 1, rollout=5)
    first.turn("first")
    second.turn("second")
    home.put(first, compressed=True)
    home.put(second, stamp="2026-11-29T11-00-00")
    database(home, (first.thread, _first(home)))
    assert _selected(home) == pairs("first")


def test_row_that_leads_out_of_the_store(home: Home, reverted: Log, tmp_path: Path) -> None:
    """FAULTS 24, 26: a path outside, or to another thread's file, selects nothing."""
    other = tmp_path / home.name(Log(PAGINATED, 1), "2026-11-29T09-00-00")
    other.write_bytes(Log(PAGINATED, 1).content)
    for path in (str(other), "/etc/passwd", f"{home.root}/sessions/../../x", str(home.root / "auth.json")):
        (home.root / "state_5.sqlite").unlink(missing_ok=True)
        database(home, (reverted.thread, path))
        assert _selected(home) == pairs("second")


def test_row_of_another_threads_file(home: Home, reverted: Log) -> None:
    """FAULTS 26: a stale row that names a file of another thread never shows that one's content."""
    other = Log(PAGINATED, 2)
    other.turn("secret")
    path = home.put(other)
    database(home, (reverted.thread, str(home.root / path)))
    views = home.read(reverted)
    assert views.effective() == pairs("second")
    assert "index_ghost" in views.codes()


@pytest.mark.parametrize("value", [None, "", b"\xff\xfe", 7, "\0", "x" * 100_000, "sessions/", "\ud7ff"])
def test_odd_values(home: Home, reverted: Log, value: str | bytes | None) -> None:
    """FAULTS 26: SQLite columns hold anything."""
    database(home, (reverted.thread, value))
    assert _selected(home) == pairs("second")


def test_odd_ids(home: Home, reverted: Log) -> None:
    """FAULTS 26: ids that are no ids are ghosts at most."""
    database(home, (reverted.thread, _first(home)))
    with closing(sqlite3.connect(home.root / "state_5.sqlite")) as connection:
        for odd in (None, b"\xff\x00", 7.5, "", "../../etc", "x" * 10_000):
            connection.execute("INSERT INTO threads (id, rollout_path) VALUES (?, 'x')", (odd,))
        connection.commit()
    home.changed()
    store = home.open()
    assert len(store.thread_ids()) == 4
    assert {code for code, _ in store_problems(store)} == {"index_ghost"}


def test_index_of_names(home: Home) -> None:
    """FAULTS 26: `session_index.jsonl` torn, with rubbish, with the same id twice: the last sound line wins."""
    log = Log(PAGINATED, 1)
    home.put(log)
    lines = [
        orjson.dumps({"id": log.thread, "thread_name": "old"}),
        b"rubbish",
        b"\xff\x00",
        b"[]",
        orjson.dumps({"id": 7, "thread_name": "x"}),
        orjson.dumps({"id": log.thread, "thread_name": ["x"]}),
        orjson.dumps({"id": log.thread.upper(), "thread_name": "new"}),
        orjson.dumps({"id": log.thread, "thread_name": "torn"})[:-5],
    ]
    (home.root / "session_index.jsonl").write_bytes(b"\n".join(lines))
    home.changed()
    assert home.read(log).thread()["name"] == "new"


def test_database_can_be_deleted_while_in_use(home: Home, reverted: Log) -> None:
    """DESIGN rule 4: every database can be deleted and nothing but time is lost."""
    path = database(home, (reverted.thread, _first(home)))
    store = home.open()
    views = Views(store, reverted.thread)
    assert views.effective() == pairs("first")
    path.unlink()
    home.changed()
    assert views.effective() == pairs("second")
    assert store_problems(store) == []


@pytest.mark.parametrize("wal", [False, True])
def test_reading_touches_nothing(home: Home, reverted: Log, wal: bool) -> None:
    """FAULTS 26, DESIGN rule 1: no byte, no time and no file changes, whatever is looked at; access times included."""
    path = database(home, (reverted.thread, _first(home)), wal=wal)
    broken = Log(PAGINATED, 3, base={"thread_id": uuid(99), "end_ordinal_exclusive": 1, "end_byte_offset": 9})
    home.put(broken)
    packed = Log(PAGINATED, 4)
    home.put(packed, compressed=True)
    (home.root / "session_index.jsonl").write_bytes(b"{}\n")
    keep = sqlite3.connect(path, isolation_level=None)
    if wal:
        keep.execute("UPDATE threads SET preview = 'changed'")
    home.changed()
    before, names = fingerprint(home.root), sorted(os.walk(home.root))
    store: ThreadStore = home.open()
    for _ in range(2):
        for view in StoreView:
            content(store.project_store(view), store.root)
        for thread in store.thread_ids():
            store.times(thread)
            store.links(thread)
            store.cost(thread)
            for each in View:
                store.is_current(thread, store.project(thread, each))
            for rollout in store.rollouts(thread):
                store.project_rollout(rollout)
        store.refresh()
    assert sorted(os.walk(home.root)) == names
    assert fingerprint(home.root) == before
    keep.close()
    home.changed()
