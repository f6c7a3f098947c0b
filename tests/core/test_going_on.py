"""An index that goes on with logs which have grown has what one has that is made from nothing."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from threadstore import index, indexrows, lineages, lines, passes
from threadstore.index import IndexReader, unpacked_extents, unpacked_together
from threadstore.indexing import Indexer
from threadstore.parts import Part
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.conftest import CopyStore
from tests.core.logs import Log, assistant, call, output
from tests.core.logs import Store as Home
from tests.corpus_store import CorpusStore

Rows = dict[str, Counter[str]]
_TURNS = 120  # of 60 KB each
_PLACES = 6  # of a store of the corpus at which it is read
_MADE = ("threads", "rollouts", "turns", "spent", "problems", "texts", "extents", "parts")


class Indexed:
    """A store and its index. Each build is by a process that begins then."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.folder = folder
        self.fresh = 0

    def build(self, name: str = "index") -> int:
        """A pass over all threads; how many were entered."""
        place = index.place(str(self.folder / name), str(self.home))
        store = ThreadStore(str(self.home), Spool(str(self.folder / "spool")), index=IndexReader(place))
        with closing(Indexer(store, place)) as indexer:
            progress = indexer.advance("", 1e9)
        assert progress is not None
        return progress.entered

    def rows(self, name: str = "index") -> Rows:
        """All that the index says, without what is only for going on."""
        place = index.place(str(self.folder / name), str(self.home))
        with closing(sqlite3.connect(place)) as connection:
            return {table: Counter(map(repr, _rows(connection, table))) for table in _MADE}

    def from_nothing(self) -> Rows:
        """What an index says that was made now."""
        self.fresh += 1
        self.build(f"fresh-{self.fresh}")
        return self.rows(f"fresh-{self.fresh}")

    def found(self, word: str) -> int:
        """Texts that a search for a word finds."""
        place = index.place(str(self.folder / "index"), str(self.home))
        with closing(sqlite3.connect(place)) as connection:
            query = "SELECT count(*) FROM texts_fts WHERE texts_fts MATCH ?"
            return int(connection.execute(query, (word,)).fetchone()[0])


def _rows(connection: sqlite3.Connection, table: str) -> list[tuple[object, ...]]:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    names = [name for name in names if (table, name) != ("texts", "id")]
    rows: list[tuple[object, ...]] = connection.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall()
    if table == "extents":
        return [(thread, file, _extents(file, data)) for thread, file, data in rows]
    if table == "parts":  # two packed ones of the same part may differ
        return [(thread, key, Part(*passes.unpacked(data))) for thread, key, data in rows]
    return rows


def _extents(file: object, data: object) -> object:
    if file == index.ALL:
        return {view: extents.to_bytes() for view, extents in unpacked_together(data).items()}
    extents = unpacked_extents(data)
    return None if extents is None else extents.to_bytes()


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of a few kilobytes are treated as large ones, of which the last two blocks are compared."""
    monkeypatch.setattr(lineages, "_REMEMBERED", -1)
    monkeypatch.setattr(indexrows, "_LARGE", 0)
    monkeypatch.setattr(indexrows, "_VERY_LARGE", 0)
    monkeypatch.setattr(lines, "CHUNK", 2000)
    monkeypatch.setattr(passes, "_BLOCK", 2000)
    monkeypatch.setattr(passes, "_COMPARED", 2)


def _places(data: bytes) -> list[int]:
    """Where to cut a log: behind its session meta, where its turns begin and end, and within the lines there."""
    found, at = [data.find(b"\n") + 1], 0
    for line in data.splitlines(keepends=True):
        if any(mark in line[:200] for mark in (b'"task_started"', b'"task_complete"', b'"turn_context"')):
            found += [at, at + len(line) // 2, at + len(line) - 1, at + len(line)]
        at += len(line)
    return sorted({*found, len(data)})


@pytest.mark.usefixtures("_small")
def test_a_store_that_grows(corpus_store: CorpusStore, copy_store: CopyStore, tmp_path: Path) -> None:
    """Every store of the corpus, read at some of the turns of its logs and in the middle of their lines."""
    home = copy_store(corpus_store).home
    whole = {path: path.read_bytes() for path in sorted(home.glob("sessions/*/*/*/*.jsonl"))}
    places = {path: _places(data) for path, data in whole.items()}
    for path in whole:
        os.truncate(path, places[path][0])
    indexed = Indexed(home, tmp_path)
    indexed.build()
    for step in range(1, _PLACES + 1):
        for number, (path, data) in enumerate(whole.items()):
            some = places[path]
            at = some[min((len(some) - 1) * step // _PLACES + number % 2, len(some) - 1)]
            with path.open("ab") as log:
                log.write(data[path.stat().st_size : at])
        indexed.build()
        assert indexed.rows() == indexed.from_nothing()


def _turn(log: Log, number: int, size: int = 60_000) -> Log:
    words = (call(str(number)), output(str(number), "y" * size), assistant("x" * 900))
    return log.turn(str(number), f"question{number}", *words, model="m")


@pytest.fixture(params=[True, False], ids=["paginated", "legacy"])
def log(request: pytest.FixtureRequest) -> Log:
    """A thread whose tool outputs are sent without their middles."""
    made = Log(request.param)
    made.turn("0", "first", model="m").world({"cwd": "/"}, full=True)
    for number in range(1, _TURNS):
        _turn(made, number)
    return made


@pytest.fixture
def indexed(log: Log, tmp_path: Path) -> Indexed:
    """A store with that thread, and an index of it."""
    return _indexed(log, tmp_path)


@pytest.fixture(params=[True, False], ids=["paginated", "legacy"])
def short(request: pytest.FixtureRequest, _small: None) -> Log:
    """A thread of some blocks."""
    made = Log(request.param)
    for number in range(20):
        _turn(made, number, 1000)
    return made


def _indexed(log: Log, folder: Path) -> Indexed:
    Home(folder / "home").write(log.name, log.data)
    made = Indexed(folder / "home", folder)
    made.build()
    return made


def _path(log: Log, indexed: Indexed) -> Path:
    return indexed.home / log.name


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all that is read of files."""
    lengths: list[int] = []
    pread = os.pread

    def counting(descriptor: int, length: int, offset: int) -> bytes:
        data = pread(descriptor, length, offset)
        lengths.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counting)
    return lengths


def test_only_what_is_new_is_read(log: Log, indexed: Indexed, read: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log that a new process finds grown: its beginning and its end, however long it is, and what was added."""
    monkeypatch.setattr(passes, "_COMPARED", 1)
    before = len(log.data)
    added = len(_turn(log, _TURNS).data) - before
    _path(log, indexed).write_bytes(log.data)
    read.clear()
    assert indexed.build() == 1
    assert sum(read) <= 5 * added + (4 << 20) < before
    assert indexed.rows() == indexed.from_nothing()


def test_from_nothing_each_byte_is_read_once(tmp_path: Path, read: list[int]) -> None:
    """One pass tells turns and texts, and takes the digests. The rest needs what comes after the last checkpoint."""
    log = Log(paginated=True)
    for number in range(400):
        _turn(log, number)
    log.compacted(replacement_history=[], window_number=1, window_id="0192a7b0-0000-7000-8000-000000000001")
    log.turn("end", "short", model="m")
    Home(tmp_path / "home").write(log.name, log.data)
    Indexed(tmp_path / "home", tmp_path).build()
    shown = 16 << 20  # of a transcript are written at most
    assert len(log.data) > shown
    assert sum(read) <= len(log.data) + shown + (5 << 20)


def _write_over(log: Log, indexed: Indexed, turn: int) -> bytes:
    """A word is changed in place, and then a turn is appended."""
    path = _path(log, indexed)
    data = log.data.replace(f"question{turn}".encode(), f"redacted{turn}".encode())
    added = _turn(log, _TURNS).data[len(data) :]
    with path.open("r+b") as file:
        file.write(data + added)
    return data + added


def test_what_was_written_over_is_found_by_the_next_pass(
    log: Log, indexed: Indexed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that was also changed far from its end looks as if it had only grown. What goes on with it is doubtful,
    and is compared as a whole by the pass after that, once.
    """
    monkeypatch.setattr(passes, "_COMPARED", 1)
    _write_over(log, indexed, 3)
    assert indexed.build() == 1
    assert indexed.found("question3") == 1
    assert indexed.build() == 1
    assert (indexed.found("question3"), indexed.found("redacted3")) == (0, 1)
    assert indexed.rows() == indexed.from_nothing()
    assert indexed.build() == 0


def test_what_was_only_added_to_is_compared_once(
    log: Log, indexed: Indexed, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing is entered again, and the pass after it reads nothing."""
    monkeypatch.setattr(passes, "_COMPARED", 1)
    _path(log, indexed).write_bytes(_turn(log, _TURNS).data)
    assert indexed.build() == 1
    found = []
    for _ in range(2):
        read.clear()
        assert indexed.build() == 0
        found.append(sum(read))
    assert found[1] == 0 < len(log.data) < found[0]
    assert indexed.rows() == indexed.from_nothing()


def test_who_is_never_idle_is_compared_now_and_then(
    log: Log, indexed: Indexed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log that has grown whenever somebody looks, all is compared when that is too long ago."""
    monkeypatch.setattr(passes, "_COMPARED", 1)
    monkeypatch.setattr(passes, "_TRUSTED", 0)
    _write_over(log, indexed, 3)
    assert indexed.build() == 1
    assert (indexed.found("question3"), indexed.found("redacted3")) == (0, 1)
    assert indexed.rows() == indexed.from_nothing()


def test_what_was_written_over_near_the_end_is_seen_at_once(log: Log, indexed: Indexed) -> None:
    """Everything is told anew, what is searched as well."""
    _write_over(log, indexed, _TURNS - 2)
    assert indexed.build() == 1
    assert (indexed.found(f"question{_TURNS - 2}"), indexed.found(f"redacted{_TURNS - 2}")) == (0, 1)
    assert indexed.rows() == indexed.from_nothing()


def _replace(path: Path, data: bytes) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(data.replace(b"question3", b"answered3"))
    other.rename(path)


CHANGES: dict[str, Callable[[Path, bytes], object]] = {
    "cut": lambda path, _: os.truncate(path, path.stat().st_size // 2),
    "cut and grown again": lambda path, data: path.write_bytes(data[: len(data) // 2] + data[len(data) // 3 :]),
    "replaced": _replace,
    "with another length": lambda path, data: path.write_bytes(data.replace(b"question3", b"no question3")),
    "emptied": lambda path, _: os.truncate(path, 0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("compared", [1, 8])
def test_another_log(short: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, compared: int) -> None:
    """What isn't the log any more that it was is read from its beginning."""
    monkeypatch.setattr(passes, "_COMPARED", compared)
    indexed = _indexed(short, tmp_path)
    data = _turn(short, 20, 1000).data
    CHANGES[change](_path(short, indexed), data)
    indexed.build()
    assert indexed.rows() == indexed.from_nothing()


DAMAGE = ("scan", "state", "history", "blocks", "texts", "transcript")


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("how", ["x'00'", "substr(data, 1, length(data) - 1)", "7", None])
def test_a_damaged_pass(short: Log, tmp_path: Path, kind: str, how: str | None) -> None:
    """One that isn't as it was written is not gone on with."""
    indexed = _indexed(short, tmp_path)
    place = index.place(str(indexed.folder / "index"), str(indexed.home))
    with closing(sqlite3.connect(place)) as connection, connection:
        change = "DELETE FROM passes" if how is None else f"UPDATE passes SET data = {how}"
        connection.execute(f"{change} WHERE kind = ?", (kind,))
    _path(short, indexed).write_bytes(_turn(short, 20, 1000).data)
    indexed.build()
    assert indexed.rows() == indexed.from_nothing()


@pytest.mark.parametrize("kind", ["scan", "texts"])
def test_passes_of_two_states(short: Log, tmp_path: Path, kind: str) -> None:
    """Where the scan and the texts have come to different places, each goes on from its own."""
    indexed = _indexed(short, tmp_path)
    place = index.place(str(indexed.folder / "index"), str(indexed.home))
    query = "SELECT data FROM passes WHERE kind = ?"
    with closing(sqlite3.connect(place)) as connection:
        (old,) = connection.execute(query, (kind,)).fetchone()
        (count,) = connection.execute("SELECT max(id) FROM texts").fetchone()
    _path(short, indexed).write_bytes(_turn(short, 20, 1000).data)
    indexed.build()
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.create_function("by_character", 1, str)
        connection.execute("UPDATE passes SET data = ? WHERE kind = ?", (old, kind))
        if kind == "texts":
            connection.execute("DELETE FROM texts WHERE id > ?", (count,))
    _path(short, indexed).write_bytes(_turn(short, 21, 1000).data)
    indexed.build()
    assert indexed.rows() == indexed.from_nothing()


def test_rows_are_all_there(indexed: Indexed) -> None:
    """What is compared here is something, of each kind."""
    rows = indexed.rows()
    assert [table for table in _MADE if not rows[table]] == ["spent", "problems"]
    assert min(len(rows[table]) for table in ("turns", "texts", "extents", "parts")) > 3
