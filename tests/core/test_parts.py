"""Parts of transcripts: what is kept of an earlier one is what a walk over all of the log writes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from threadstore import incremental, index, indexrows, lineages, parts, transcript
from threadstore.index import IndexReader
from threadstore.indexing import Indexer
from threadstore.outline import Run
from threadstore.projection import Projection, View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.conftest import CopyStore
from tests.core.logs import Log, assistant, call, output, thread_id, user
from tests.core.logs import Store as Home
from tests.corpus_store import CorpusStore


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of a few kilobytes are treated as large ones."""
    monkeypatch.setattr(lineages, "_REMEMBERED", -1)
    monkeypatch.setattr(indexrows, "_LARGE", 0)
    monkeypatch.setattr(indexrows, "_VERY_LARGE", 0)
    monkeypatch.setattr(parts, "STRETCH", 2000)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were shown by each stretch that a walk has read."""
    found: list[int] = []
    show = transcript._Walk._show

    def counting(walk: transcript._Walk, run: Run) -> None:
        found.append(run.last + 1 - run.first)
        show(walk, run)

    monkeypatch.setattr(transcript._Walk, "_show", counting)
    return found


class Indexed:
    """A store and its index, as processes see them that begin now."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.spool = Spool(str(folder / "spool"))
        self.path = index.place(str(folder / "index"), str(home))

    def store(self, *, known: bool = True) -> ThreadStore:
        """With the index or without it."""
        return ThreadStore(str(self.home), self.spool, index=IndexReader(self.path) if known else None)

    def build(self) -> None:
        """Bring the index up to date."""
        indexer = Indexer(self.store(), self.path)
        assert indexer.advance("", 1e9) is not None
        indexer.close()

    def check(self, *others: ThreadStore, recalled: bool | None = None) -> None:
        """The transcripts, with what is kept, are those that are made of the logs alone; `recalled` says whether the
        index has them as they are.
        """
        store, plain = self.store(), self.store(known=False)
        for one in (store, plain, *others):
            one.refresh()
        for thread in store.thread_ids():
            wanted = plain.project(thread, View.TRANSCRIPT)
            kept = store.recall(thread, View.TRANSCRIPT)
            if wanted.basis and recalled is not None:
                assert (kept is not None) is recalled
            for made in (kept, *(one.project(thread, View.TRANSCRIPT) for one in (store, *others))):
                assert made is None or same(made) == same(wanted)


def same(made: Projection) -> tuple[bytes | None, int, bytes]:
    """Text, size and generation."""
    return None if made.extents is None else made.extents.pool, made.size, made.generation


def test_a_store_that_grows(corpus_store: CorpusStore, copy_store: CopyStore, tmp_path: Path) -> None:
    """Every log of the corpus, read when half of it was there and then as a whole, by one process and with an index."""
    home = copy_store(corpus_store).home
    whole = {path: path.read_bytes().splitlines(keepends=True) for path in home.glob("sessions/*/*/*/*.jsonl")}
    for path, lines in whole.items():
        path.write_bytes(b"".join(lines[: len(lines) // 2]))
    indexed = Indexed(home, tmp_path)
    indexed.build()
    one = indexed.store(known=False)
    one.refresh()
    for thread in one.thread_ids():
        one.project(thread, View.TRANSCRIPT)
    for path, lines in whole.items():
        with path.open("ab") as log:
            log.write(b"".join(lines[len(lines) // 2 :]))
    indexed.check(one)
    indexed.build()
    indexed.check(recalled=True)


def _grown(log: Log, number: int) -> Log:
    words = assistant("x" * 1500)
    return log.turn(str(number), f"question {number}", call(str(number)), output(str(number)), words, model="m")


@pytest.fixture(params=[True, False], ids=["paginated", "legacy"])
def log(request: pytest.FixtureRequest) -> Log:
    """A thread of many parts."""
    made = Log(request.param)
    for number in range(40):
        _grown(made, number)
    return made


@pytest.fixture
def indexed(log: Log, tmp_path: Path) -> Indexed:
    """A store with that thread, and an index of it."""
    home = Home(tmp_path / "home")
    home.write(log.name, log.data)
    made = Indexed(tmp_path / "home", tmp_path)
    made.build()
    made.check(recalled=True)
    return made


def _file(log: Log, indexed: Indexed) -> Path:
    return indexed.home / log.name


def test_only_what_is_new_is_written(log: Log, indexed: Indexed, shown: list[int]) -> None:
    """After one more turn its own records are read, and those of the stretch in which it begins, in any process."""
    one, records = indexed.store(), len(log.lines)
    one.refresh()
    one.project(log.thread, View.TRANSCRIPT)
    assert not shown  # all of it was in the index
    _file(log, indexed).write_bytes(_grown(log, 40).data)
    for store in (one, indexed.store()):
        shown.clear()
        store.refresh()
        store.project(log.thread, View.TRANSCRIPT)
        assert 0 < sum(shown) <= 3 * (len(log.lines) - records)


@pytest.mark.parametrize("paginated", [True, False], ids=["paginated", "legacy"])
def test_what_happens_in_a_long_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, paginated: bool) -> None:
    """Checkpoints in the middle of a turn, calls without result, failure and rollback change what was said before."""
    monkeypatch.setattr(parts, "STRETCH", 1)  # each line by itself
    log = Log(paginated).turn("a", "first", model="m").start("b").item(user("long"), call("1"), call("2"))
    kept = [user("long"), assistant("so far")]
    for number in range(3):
        log.item(assistant(f"step {number}"), output("1"))
        log.compacted("summary", **({} if number == 1 else {"replacement_history": kept}))
        log.item(assistant("on"), call("1")).world({"cwd": "/"}, full=True)
    log.event("task_complete", turn_id="b", last_agent_message=None, error={"message": "Oops"})
    log.item(assistant("late"), output("2")).roll_back(1).turn("c", "again").roll_back(1).roll_back(1).turn("d", "end")
    check_growth(log, tmp_path)


@pytest.mark.parametrize("stretch", [1, 900])
def test_what_is_left_out_moves(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretch: int) -> None:
    """What is shown of a log that has become too large begins later with each record, in the middle of a turn, too."""
    monkeypatch.setattr(parts, "STRETCH", stretch)
    monkeypatch.setattr(transcript, "LARGEST", 6000)
    short = Log(log.paginated)
    for turn in range(4):
        short.start(str(turn)).item(user("do"))
        for number in range(4):
            short.item(call(f"{number}"), call(f"{number} too"), assistant("now"), output(f"{number}"))
        short.compacted("all of it").item(assistant("done"), output("2 too")).complete(str(turn))
    check_growth(short, tmp_path)


def check_growth(log: Log, folder: Path) -> None:
    """One process reads a log after each line and shows what one shows that begins then."""
    path = Home(folder / "home").write(log.name, b"")
    indexed = Indexed(folder / "home", folder)
    one = indexed.store(known=False)
    for line in log.data.splitlines(keepends=True):
        with path.open("ab") as file:
            file.write(line)
        one.refresh()
        made, wanted = (store.project(log.thread, View.TRANSCRIPT) for store in (one, indexed.store(known=False)))
        assert same(made) == same(wanted)


def test_only_what_is_new_is_put_into_the_index(log: Log, indexed: Indexed) -> None:
    """Rows of parts that are still good are left alone, those that no transcript has any more are gone."""
    before = _rows(indexed)
    _file(log, indexed).write_bytes(_grown(log, 40).data)
    indexed.build()
    after = _rows(indexed)
    assert len(before.items() & after.items()) >= len(before) - 3
    _file(log, indexed).write_bytes(log.roll_back(30).data)
    indexed.build()
    assert not log.paginated or _rows(indexed).items() & after.items()
    indexed.check(recalled=True)
    _file(log, indexed).unlink()
    indexed.build()
    assert _rows(indexed) == {}


def _rows(indexed: Indexed) -> dict[int, bytes]:
    """The parts in the index by the numbers of their rows."""
    with closing(sqlite3.connect(indexed.path)) as connection:
        return dict(connection.execute("SELECT rowid, key FROM parts"))


def _replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes().replace(b"question 7", b"answered 7"))
    other.rename(path)


def _write_over(path: Path) -> None:
    """In place, with the same length, and one more line after it."""
    data = path.read_bytes()
    path.write_bytes(data.replace(b"question 7", b"answered 7") + data.splitlines(keepends=True)[-1])


def _archive(path: Path) -> None:
    place = path.parents[4] / "archived_sessions" / path.name
    place.parent.mkdir()
    path.rename(place)


CHANGES: dict[str, Callable[[Path], object]] = {
    "replaced": _replace,
    "written over": _write_over,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "archived": _archive,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_never_shown(log: Log, indexed: Indexed, change: str) -> None:
    """Parts of a log that isn't the same any more are not used, whoever kept them."""
    one = indexed.store()
    one.refresh()
    one.project(log.thread, View.TRANSCRIPT)
    CHANGES[change](_file(log, indexed))
    indexed.check(recalled=False)
    indexed.build()
    indexed.check(recalled=True)


DAMAGE = {
    "a byte of each": "UPDATE parts SET data = CAST(substr(data, 1, length(data) - 1) || x'00' AS BLOB)",
    "none is left": "DELETE FROM parts",
    "one is missing": "DELETE FROM parts WHERE rowid = (SELECT min(rowid) + 3 FROM parts)",
    "exchanged": "UPDATE parts SET data = (SELECT data FROM parts ORDER BY rowid LIMIT 1)",
    "no bytes": "UPDATE parts SET data = 7",
    "no order": "UPDATE passes SET data = x'00' WHERE kind = 'transcript'",
    "no pass": "DELETE FROM passes WHERE kind = 'transcript'",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index(log: Log, indexed: Indexed, damage: str) -> None:
    """Parts that are not as they were written are written again, and the index has sound ones after the next turn."""
    with closing(sqlite3.connect(indexed.path)) as connection, connection:
        connection.execute(DAMAGE[damage])
    indexed.check(recalled=False)
    _file(log, indexed).write_bytes(_grown(log, 40).data)
    indexed.check(recalled=False)
    indexed.build()
    indexed.check(recalled=True)


def test_parts_of_another_state(log: Log, indexed: Indexed) -> None:
    """An older order of parts, all of them sound, isn't taken for the text of now."""
    with closing(sqlite3.connect(indexed.path)) as connection, connection:
        (old,) = connection.execute("SELECT data FROM passes WHERE kind = 'transcript'").fetchone()
        kept = connection.execute("SELECT * FROM parts").fetchall()
        _file(log, indexed).write_bytes(_grown(log, 40).data)
        indexed.build()
        connection.execute("UPDATE passes SET data = ? WHERE kind = 'transcript'", (old,))
        connection.executemany("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", kept)
    indexed.check(recalled=False)


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_what_is_packed(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the newest transcripts, as many parts stay as they are as a bound in bytes of text allows; whoever goes on
    from packed ones writes the same.
    """
    threads = [thread_id(number) for number in range(3)]
    Home(tmp_path, *(_grown(Log(thread=thread), 1) for thread in threads))
    plain, store = (ThreadStore(str(tmp_path), Spool(str(tmp_path / "spool"))) for _ in range(2))
    plain.refresh()
    wanted = [same(plain.project(thread, View.TRANSCRIPT)) for thread in threads]
    monkeypatch.setattr(incremental, "_UNPACKED", sum(size for _, size, _ in wanted[:most]))
    store.refresh()
    assert [same(store.project(thread, View.TRANSCRIPT)) for thread in threads] == wanted
    kept = [found for found in store._passes._kept.values() if isinstance(found, parts.Parts)]
    assert [found.weight() > 0 for found in kept] == [number >= 3 - most for number in range(3)]
    assert [same(store.project(thread, View.TRANSCRIPT)) for thread in threads] == wanted
