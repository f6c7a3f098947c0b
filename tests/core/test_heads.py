"""Codex's database of threads: asked first, never needed, and never touched (FORMAT 11.4, FAULTS 26)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from threadstore.filestates import FileStates, RememberedStates
from threadstore.heads import Head, select
from threadstore.names import RolloutFile, parse_rollout
from threadstore.statedb import Row, StateDatabase

from tests.core.logs import rollout_name, thread_id

THREAD = thread_id(5)  # greater than the ids of its later rollouts: times come first


def rollout(path: str) -> RolloutFile:
    """A rollout by its path."""
    parsed = parse_rollout(path)
    assert parsed is not None
    return parsed


OLD = rollout(rollout_name(THREAD))
NEW = rollout(rollout_name(THREAD, thread_id(2), "2026-11-30T10-00-00"))
ARCHIVED = rollout(f"archived_sessions/rollout-2026-12-01T10-00-00-{THREAD}_{thread_id(3)}.jsonl")


def row(path: str) -> Row:
    """A row that selects a file."""
    return Row(path, "paginated", False, None, None, None, None, None, None, None, None)


# Which file


@pytest.mark.parametrize(
    ("rollouts", "path", "chosen", "by"),
    [
        ((OLD, NEW), None, NEW, "name"),
        ((OLD, NEW, ARCHIVED), None, NEW, "name"),
        ((ARCHIVED,), None, ARCHIVED, "name"),
        ((OLD, NEW), f"/home/user/.codex/{OLD.path}", OLD, "index"),
        ((OLD, NEW), f"/elsewhere/{OLD.path}.zst", OLD, "index"),
        ((OLD, NEW), "C:\\codex\\" + OLD.path.replace("/", "\\"), OLD, "index"),
        ((OLD, NEW, ARCHIVED), f"/home/user/.codex/{ARCHIVED.path}", ARCHIVED, "index"),
    ],
)
def test_selected_rollout(rollouts: tuple[RolloutFile, ...], path: str | None, chosen: RolloutFile, by: str) -> None:
    """FORMAT 11.4: the row's file, wherever the store was when it was written; else the newest active name."""
    assert select(rollouts, None if path is None else row(path)) == Head(chosen, by)


def test_same_stamp_greatest_id_wins() -> None:
    """FORMAT 11.4: with equal times in the names the greater rollout id is chosen."""
    first, second = rollout(rollout_name(THREAD, thread_id(8))), rollout(rollout_name(THREAD, thread_id(9)))
    assert select((second, first), None).rollout is second


def test_row_of_a_file_that_is_gone() -> None:
    """FAULTS 26: Codex finds nothing then; we use the newest file and say so."""
    head = select((OLD, NEW), row("/home/user/.codex/sessions/gone.jsonl"))
    assert (head.rollout, head.by) == (NEW, "name")
    assert head.problem is not None
    assert head.problem.code == "index_ghost"


# The database


class Home:
    """A Codex home with a database of one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "home"
        self.folder.mkdir()
        self.path = self.folder / "state_5.sqlite"
        with self.connected() as connection:
            connection.execute("CREATE TABLE threads (id TEXT PRIMARY KEY, rollout_path TEXT, name TEXT)")
            connection.execute("INSERT INTO threads VALUES (?, 'first.jsonl', 'a name')", (THREAD,))
            connection.commit()
        self.database = StateDatabase(FileStates(str(self.folder)), str(folder / "scratch"))

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """A connection, as Codex holds one."""
        with closing(sqlite3.connect(self.path)) as connection:
            yield connection

    def selected(self) -> str | None:
        """The path that we read."""
        found = self.database.row(THREAD)
        return None if found is None else found.rollout_path

    def state(self) -> dict[str, tuple[int, int, int, bytes]]:
        """Every file of the home: its identity, times and bytes."""
        found = {}
        for path in self.folder.iterdir():
            status = path.stat()
            found[path.name] = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, path.read_bytes())
        return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home whose database is closed in the end."""
    home = Home(tmp_path)
    yield home
    home.database.close()


def test_idle_database(home: Home) -> None:
    """It is read, columns that it lacks are None, and nothing lies beside it afterwards."""
    before = home.state()
    found = home.database.row(THREAD)
    assert found is not None
    assert (found.rollout_path, found.name, found.preview) == ("first.jsonl", "a name", None)
    assert home.database.row(thread_id(2)) is None
    assert home.database.ids() == [THREAD]
    assert home.state() == before
    assert list(before) == ["state_5.sqlite"]


def test_a_home_of_which_somebody_hears(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the files are is looked up once, until it is told that something happened; elsewhere nobody hears of it."""
    states = RememberedStates(str(home.folder))
    states.start()
    home.database.close()
    home.database = StateDatabase(states, str(tmp_path / "scratch"))
    assert home.selected() == "first.jsonl"
    before = home.database.identity()
    asked: list[str] = []
    lstat = RememberedStates.lstat

    def noted(self: RememberedStates, path: str) -> os.stat_result:
        asked.append(path)
        return lstat(self, path)

    monkeypatch.setattr(RememberedStates, "lstat", noted)
    assert home.database.identity() == before
    assert asked == []
    with home.connected() as connection:
        connection.execute("UPDATE threads SET rollout_path = 'second.jsonl'")
        connection.commit()
    assert home.database.identity() == before
    states.forget("", "state_5.sqlite")
    assert home.database.identity() != before
    assert home.selected() == "second.jsonl"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home.folder / "config.toml").write_text(f'sqlite_home = "{elsewhere}"\n')
    states.forget("", "config.toml")
    assert home.database.identity() == ()
    home.path.rename(elsewhere / home.path.name)
    assert home.database.identity()[0][0] == str(elsewhere / home.path.name)


@pytest.mark.parametrize("is_dangling", [True, False])
def test_a_link_to_a_database_elsewhere(home: Home, tmp_path: Path, *, is_dangling: bool) -> None:
    """Nobody in the home hears when that is written, or comes to be."""
    states = RememberedStates(str(home.folder))
    states.start()
    home.database.close()
    home.database = StateDatabase(states, str(tmp_path / "scratch"))
    elsewhere = home.path.rename(tmp_path / "aside")
    home.path.symlink_to(elsewhere)
    if is_dangling:
        elsewhere.rename(tmp_path / "away")
    before = home.database.identity()
    if is_dangling:
        (tmp_path / "away").rename(elsewhere)
    else:
        with closing(sqlite3.connect(elsewhere)) as connection:
            connection.execute("UPDATE threads SET rollout_path = 'second.jsonl'")
            connection.commit()
    assert home.database.identity() != before


def test_no_database(home: Home) -> None:
    """FAULTS 26: absent is no problem; one that appears, or goes away, is seen."""
    moved = home.path.rename(home.folder.parent / "aside")
    assert home.selected() is None
    assert home.database.problem is None
    moved.rename(home.path)
    assert home.selected() == "first.jsonl"
    home.path.unlink()
    assert home.selected() is None


@pytest.mark.parametrize("damage", [b"", b"not a database", b"SQLite format 3\0" + b"\xff" * 5000])
def test_corrupt_database(home: Home, damage: bytes) -> None:
    """FAULTS 26: no answer, a problem with a code, and no trace; a repaired one is used again."""
    sound = home.path.read_bytes()
    home.path.write_bytes(damage)
    before = home.state()
    assert home.selected() is None
    assert home.database.problem is not None
    assert home.database.problem.code == "index_corrupt"
    assert home.database.ids() == []
    assert home.state() == before
    home.path.write_bytes(sound)
    assert home.selected() == "first.jsonl"
    assert home.database.problem is None


def test_page_of_the_table_is_corrupt(home: Home) -> None:
    """FAULTS 26: damage that shows only when the row is read is a problem as well."""
    data = bytearray(home.path.read_bytes())
    data[4096 : 4096 + 200] = b"\xff" * 200
    home.path.write_bytes(data)
    assert home.selected() is None
    assert home.database.problem is not None


def test_database_of_another_schema(home: Home) -> None:
    """A table without the column that selects is as good as none."""
    with home.connected() as connection:
        connection.execute("ALTER TABLE threads RENAME COLUMN rollout_path TO path")
        connection.commit()
    assert home.selected() is None
    assert home.database.problem is not None


def test_newest_schema_is_read(home: Home) -> None:
    """FORMAT 2.5: `state_10` is newer than `state_5`, and other files are no databases of threads."""
    (home.folder / "state_10.sqlite").write_bytes(home.path.read_bytes().replace(b"first.jsonl", b"other.jsonl"))
    (home.folder / "state_99.sqlite.bak").write_bytes(b"")
    assert home.selected() == "other.jsonl"


def test_locked_database(home: Home) -> None:
    """FAULTS 26: another process's exclusive transaction neither blocks us nor shows us what is not committed."""
    with home.connected() as codex:
        codex.execute("PRAGMA locking_mode=EXCLUSIVE")
        codex.execute("BEGIN EXCLUSIVE")
        codex.execute("UPDATE threads SET rollout_path = 'second.jsonl'")
        before = home.state()
        assert home.selected() == "first.jsonl"
        assert home.state() == before
        codex.commit()
    assert home.selected() == "second.jsonl"


def test_busy_database(home: Home) -> None:
    """FORMAT 2.5: rows that are committed but still in the write-ahead log are seen; Codex's files stay as they are."""
    with home.connected() as codex:
        codex.execute("PRAGMA journal_mode=WAL")
        codex.execute("UPDATE threads SET rollout_path = 'second.jsonl'")
        codex.commit()
        before = home.state()
        assert before["state_5.sqlite-wal"][3]
        assert home.selected() == "second.jsonl"
        assert home.state() == before
        codex.execute("UPDATE threads SET rollout_path = 'third.jsonl'")
        assert home.selected() == "second.jsonl", "not committed"
        codex.commit()
        assert home.selected() == "third.jsonl"
    assert home.selected() == "third.jsonl"
    assert sorted(path.name for path in home.folder.iterdir()) == ["state_5.sqlite"]


def test_crashed_database(home: Home) -> None:
    """A write-ahead log that its writer left behind is read, and left where it is."""
    with home.connected() as codex:
        codex.execute("PRAGMA journal_mode=WAL")
        codex.execute("UPDATE threads SET rollout_path = 'second.jsonl'")
        codex.commit()
        left = {name: parts[3] for name, parts in home.state().items() if not name.endswith("-shm")}
    for name, data in left.items():
        (home.folder / name).write_bytes(data)
    before = home.state()
    assert home.selected() == "second.jsonl"
    assert home.state() == before


def test_garbage_in_the_write_ahead_log(home: Home) -> None:
    """What is no log is passed over, as SQLite does: the rows of the database count."""
    (home.folder / "state_5.sqlite-wal").write_bytes(b"garbage" * 100)
    assert home.selected() == "first.jsonl"


def test_private_copies_are_removed(home: Home, tmp_path: Path) -> None:
    """Only the newest copy of a busy database is kept, and none after closing."""
    with home.connected() as codex:
        codex.execute("PRAGMA journal_mode=WAL")
        for number in range(3):
            codex.execute("UPDATE threads SET rollout_path = ?", (f"{number}.jsonl",))
            codex.commit()
            assert home.selected() == f"{number}.jsonl"
            assert len(list((tmp_path / "scratch").iterdir())) == 1
    home.database.close()
    assert list((tmp_path / "scratch").iterdir()) == []
