"""The index: what it says is what is computed, whatever happened to the store or to the index since."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shutil
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database
from threadstore import files, index, indexrows, metas, mtimes
from threadstore import opened as opened_module
from threadstore import store as store_module
from threadstore.index import SIZES, IndexReader
from threadstore.indexing import Indexer, Progress
from threadstore.names import brief_name
from threadstore.projection import Basis, View
from threadstore.spines import spines
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.conftest import CopyStore, Corpus
from tests.core.reading import content
from tests.corpus_store import CorpusStore


class Indexed:
    """A store with an index that was built once."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.folder = folder
        self.recalled = 0  # files of which the index had the extents
        self.together = 0  # the same, of small threads
        self.path = Path(index.place(str(folder / "index"), str(home)))
        self.indexer = Indexer(self.store(), str(self.path))

    def store(self) -> ThreadStore:
        """As a mount that begins now sees it."""
        spool = Spool(str(self.folder / "spool"))
        return ThreadStore(str(self.home), spool, index=IndexReader(str(self.path)))

    def build(self) -> Progress:
        """A whole pass by a process that begins now."""
        self.indexer.close()
        self.indexer = Indexer(self.store(), str(self.path))
        progress = self.indexer.advance("", 1e9)
        assert progress is not None
        assert progress.last is None
        return progress

    def check(self) -> int:
        """Whatever it says now is what is computed now; of how many derived files it says something."""
        store = self.store()
        said = 0
        for thread in store.thread_ids():
            packed, outlines = store.packed(thread), store.outlines(thread)
            together = {} if packed is None else store.unpack(packed, outlines)
            for view, outline in outlines.items():
                made = store.project(thread, view)
                if view in together:
                    assert content(store, together[view]) == content(store, made)
                    assert lasting(together[view].basis) == lasting(made.basis)
                    self.together += 1
                recalled = store.recall(thread, view)
                assert recalled is None or content(store, recalled) == content(store, made)
                self.recalled += recalled is not None
                assert (outline.size, outline.generation) == (made.size, made.generation), (thread, view)
                assert lasting(outline.basis) == lasting(made.basis)
                said += 1
            assert store.links(thread) == ThreadStore(str(self.home), store.spool).links(thread)
        self._check_spines(store)
        return said

    def _check_spines(self, store: ThreadStore) -> None:
        """What views show is the same without an index, and what `thread.json` tells."""
        threads, plain = store.thread_ids(), ThreadStore(str(self.home), store.spool)
        read = spines(plain, threads, whole=True)
        assert spines(store, threads, whole=True) == read
        for thread, spine, begun in zip(threads, read, spines(plain, threads, whole=False), strict=True):
            assert spine is not None
            assert begun == spine._replace(cwd=None, model=None, is_whole=begun is not None and begun.is_whole)
            summary = plain.summary(thread)
            assert (spine.cwd, spine.branch, spine.model) == (summary.cwd, summary.branch, summary.model)
            assert spine.is_agent == plain.is_agent(thread)
            title = plain.title(thread)
            assert brief_name(title.preview or "") or spine.words == brief_name(summary.preview or "")


def lasting(basis: tuple[Basis, ...]) -> list[Basis]:
    """Without what was changed just now, which may be true for one of two that are made one after the other."""
    return [one for one in basis if ".sqlite" not in one.path]


@pytest.fixture
def indexed(copy_store: CopyStore, tmp_path: Path) -> Indexed:
    """A store of several generations and forks, with its database."""
    made = Indexed(copy_store("revert_forked.paginated").home, tmp_path)
    made.build()
    return made


def test_it_says_what_is_computed(corpus_store: CorpusStore, tmp_path: Path) -> None:
    """Of every thread that is sound every derived file is known."""
    made = Indexed(corpus_store.home, tmp_path)
    total = made.build().total
    lasting = sum(bool(made.store().project(thread, View.TURNS).basis) for thread in made.store().thread_ids())
    assert made.check() == len(View) * lasting
    assert lasting == total or corpus_store.name in ("broken",)
    assert made.build().entered == total - lasting


def _log(home: Path) -> Path:
    return max(home.glob("sessions/*/*/*/*.jsonl"), key=lambda path: path.stat().st_size)


def _append(home: Path) -> None:
    log = _log(home)
    with log.open("ab") as file:
        file.write(log.read_bytes().splitlines(keepends=True)[-1])


def _cut(home: Path) -> None:
    os.truncate(_log(home), _log(home).stat().st_size // 2)


def _replace(home: Path) -> None:
    log = _log(home)
    other = log.with_suffix(".new")
    other.write_bytes(log.read_bytes().replace(b"completed", b"finished!"))
    other.rename(log)


def _rewrite(home: Path) -> None:
    log = _log(home)
    log.write_bytes(log.read_bytes().replace(b"agent_message", b"agent_massage"))


def _archive(home: Path) -> None:
    (home / "archived_sessions").mkdir(exist_ok=True)
    log = _log(home)
    log.rename(home / "archived_sessions" / log.name)


def _delete(home: Path) -> None:
    _log(home).unlink()


def _name(home: Path) -> None:
    thread = _log(home).stem[-36:]
    with (home / "session_index.jsonl").open("a") as file:
        file.write(
            json.dumps({"id": thread, "thread_name": "Another name", "updated_at": "2026-01-01T00:00:00Z"}) + "\n"
        )


def _twin(home: Path) -> None:
    log = _log(home)
    other = home / "sessions/2020/01/01" / log.name
    other.parent.mkdir(parents=True)
    shutil.copy(log, other)


def _rows(home: Path, change: str) -> None:
    for database in home.glob("state_*.sqlite"):
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(change)


def _lose_database(home: Path) -> None:
    for path in home.glob("state_*.sqlite*"):
        path.unlink()


CHANGES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda home: None,
    "append": _append,
    "cut": _cut,
    "replace": _replace,
    "rewrite": _rewrite,
    "archive": _archive,
    "delete": _delete,
    "name": _name,
    "twin": _twin,
    "rows: names": lambda home: _rows(home, "UPDATE threads SET name = 'Renamed'"),
    "rows: previews": lambda home: _rows(home, "UPDATE threads SET preview = 'Said first'"),
    "rows: heads": lambda home: _rows(home, "UPDATE threads SET rollout_path = 'nowhere'"),
    "rows: gone": lambda home: _rows(home, "DELETE FROM threads"),
    "database gone": _lose_database,
}


@pytest.mark.parametrize("change", ["nothing", "append", "cut", "replace", "rewrite", "twin"])
def test_small_threads(indexed: Indexed, change: str) -> None:
    """Of small threads the derived files themselves are kept, in one piece, and hold for as long."""
    CHANGES[change](indexed.home)
    said = indexed.check()
    assert indexed.together == said > 0 or change != "nothing"
    for damage in ("substr(data, 1, length(data) - 1) || x'00'", "x''", "17"):
        with closing(sqlite3.connect(indexed.path)) as connection, connection:
            connection.execute(f"UPDATE extents SET data = {damage}")
        indexed.together = 0
        indexed.check()
        assert indexed.together == 0


@pytest.mark.parametrize("change", ["nothing", "append", "cut", "replace", "rewrite", "twin"])
def test_large_threads(indexed: Indexed, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Where their derived files lie is kept as well, and holds for as long."""
    monkeypatch.setattr(indexrows, "_LARGE", 0)
    for path in indexed.path.parent.iterdir():
        path.unlink()
    indexed.build()
    CHANGES[change](indexed.home)
    said = indexed.check()
    assert indexed.recalled == said > 0 or change != "nothing"
    with closing(sqlite3.connect(indexed.path)) as connection, connection:
        connection.execute("UPDATE extents SET data = substr(data, 1, length(data) - 1) || x'00'")
    indexed.recalled = 0
    indexed.check()
    assert indexed.recalled == 0


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_never_hidden(indexed: Indexed, change: str) -> None:
    """What the index said before is not said of what is there now; after the next pass it says what is right."""
    before = indexed.check()
    CHANGES[change](indexed.home)
    between = indexed.check()
    assert (between == before) == (change == "nothing")
    indexed.build()
    after = indexed.check()
    assert after >= between
    assert indexed.build().entered == 0 or change == "delete"
    if change == "nothing":
        return
    with closing(sqlite3.connect(indexed.path)) as connection:
        threads = {row[0] for row in connection.execute("SELECT id FROM threads")}
        others = {
            row[0]
            for table in ("rollouts", "turns", "problems")
            for row in connection.execute(f"SELECT thread_id FROM {table}")
        }
    assert others <= threads <= set(indexed.store().thread_ids())


def test_only_what_changed_is_entered(indexed: Indexed) -> None:
    """A pass enters the threads that changed, and a part of one goes on where it stopped."""
    total = indexed.build()
    assert (total.entered, total.done, total.total) == (0, total.total, total.total)
    _append(indexed.home)
    steps, last = 0, ""
    while True:
        progress = indexed.indexer.advance(last, 0)
        assert progress is not None
        steps += progress.entered
        if progress.last is None:
            break
        last = progress.last
    inherits = [
        thread for thread in indexed.store().thread_ids() if _log(indexed.home).name in _sources(indexed, thread)
    ]
    assert steps == len(inherits)
    assert indexed.check() == len(View) * total.total


def _sources(indexed: Indexed, thread: str) -> list[str]:
    return [one.path.rpartition("/")[2] for one in indexed.store().project(thread, View.TURNS).basis]


def test_threads_that_are_named(indexed: Indexed) -> None:
    """Those alone are looked at, whether they changed, came or went."""
    store = indexed.store()
    before = indexed.check()
    _append(indexed.home)
    _name(indexed.home)
    assert indexed.check() < before
    assert indexed.indexer.enter(store.thread_ids())
    assert indexed.check() == before
    gone = _log(indexed.home).stem[-36:]
    for path in indexed.home.glob(f"sessions/*/*/*/*{gone}*"):
        path.unlink()
    indexed.indexer = Indexer(indexed.store(), str(indexed.path))
    assert indexed.indexer.enter([gone])
    with closing(sqlite3.connect(indexed.path)) as connection:
        assert connection.execute("SELECT count(*) FROM threads WHERE id = ?", (gone,)).fetchone() == (0,)


def test_an_empty_store_has_an_empty_index(indexed: Indexed) -> None:
    """Also when the last of its threads has gone."""
    for path in indexed.home.rglob("rollout-*"):
        path.unlink()
    assert indexed.build().total == 0
    with closing(sqlite3.connect(indexed.path)) as connection:
        for table in ("threads", "rollouts", "turns", "problems", "texts"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_an_entry_is_replaced_as_a_whole(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that is stopped midway leaves what was there."""
    before = _dump(indexed.path)
    _append(indexed.home)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ThreadStore, "status", stop)
        with pytest.raises(KeyboardInterrupt):
            indexed.indexer.advance("", 1e9)
    assert _dump(indexed.path) == before
    assert indexed.build().entered >= 1


def _dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def test_it_may_be_deleted_at_any_moment(indexed: Indexed) -> None:
    """Who reads goes on without it, who builds makes a new one."""
    reading = indexed.store()
    thread = reading.thread_ids()[0]
    assert reading.outlines(thread)
    for path in indexed.path.parent.iterdir():
        path.unlink()
    time.sleep(1.1)
    assert reading.outlines(thread) == {}
    assert indexed.indexer.advance("", 1e9) is not None
    time.sleep(1.1)
    assert reading.outlines(thread)
    assert indexed.check()


TAMPERED = {
    "a size": "UPDATE threads SET full_history_bytes = full_history_bytes + 32",
    "a negative size": "UPDATE threads SET effective_history_bytes = -4",
    "a size that is none": "UPDATE threads SET effective_history_bytes = 'abc'",
    "no generations": "UPDATE threads SET generations = NULL",
    "a time that is none": "UPDATE threads SET last_record_ns = 'x'",
    "files that are none": "UPDATE threads SET made_from = '[[1]]'",
    "a text that is none": "UPDATE threads SET rollout = CAST(x'ff' AS TEXT)",
    "texts everywhere": "UPDATE threads SET facts = 'a', digest = 'b'",
}


@pytest.mark.parametrize("change", TAMPERED)
def test_a_damaged_row_is_entered_again(indexed: Indexed, change: str) -> None:
    """SQLite doesn't notice when a value has changed; a row that isn't as it was written says nothing."""
    before = indexed.check()
    with closing(sqlite3.connect(indexed.path)) as connection, connection:
        connection.execute(TAMPERED[change])
    assert indexed.check() == 0
    for _ in range(2):
        try:
            indexed.build()
        except sqlite3.Error:
            continue
    assert indexed.check() == before


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bits(indexed: Indexed, seed: int) -> None:
    """Whatever is left of an index, it never says what is wrong, and never does harm."""
    chance = random.Random(seed)
    indexed.indexer.close()
    with closing(sqlite3.connect(indexed.path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(indexed.path.read_bytes())
    for _ in range(20):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    indexed.path.write_bytes(data)
    store = indexed.store()
    for thread in store.thread_ids():
        for view, outline in store.outlines(thread).items():
            assert outline.size == store.project(thread, view).size
    for _ in range(3):
        try:
            indexed.build()
        except sqlite3.Error:
            continue
    assert indexed.check() > 0


@pytest.mark.parametrize("which", [0, -1], ids=["an older rollout", "the selected one"])
def test_a_folder_whose_name_is_no_text(copy_store: CopyStore, tmp_path: Path, which: int) -> None:
    """A thread in it is left out; the others are entered."""
    home = copy_store("revert_all_empty.paginated").home
    rollout = sorted(home.glob("sessions/*/*/*/*.jsonl"))[which]
    folder = Path(os.fsdecode(os.fsencode(home) + b"/sessions/2026/11/2\xff"))
    folder.mkdir()
    rollout.rename(folder / rollout.name)
    made = Indexed(home, tmp_path)
    progress = made.build()
    made.check()
    assert made.build().total == progress.total


def test_when_the_oldest_rollout_says_that_it_began(copy_store: CopyStore, tmp_path: Path) -> None:
    """A thread began with its oldest rollout, which it may no longer inherit from."""
    home = copy_store("revert_all_empty.paginated").home
    made = Indexed(home, tmp_path)
    made.build()
    oldest = min(home.glob("sessions/*/*/*/*.jsonl"))
    data = oldest.read_bytes()
    oldest.write_bytes(
        re.sub(rb'"timestamp":"[^"]*","cwd"', b'"timestamp":"2026-11-29T00:00:00Z","cwd"', data, count=1)
    )
    assert oldest.read_bytes() != data
    made.check()


def test_links_are_those_of_the_files(copy_store: CopyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the index says of forks counts only for files that are as they were."""
    monkeypatch.setattr(store_module, "_MANY", 0)
    home = copy_store("forks.paginated").home
    made = Indexed(home, tmp_path)
    made.build()
    made.check()
    first, other, *_ = made.store().thread_ids()
    for log in home.glob("sessions/*/*/*/*.jsonl"):
        log.write_bytes(
            log.read_bytes().replace(b'"forked_from_id":"' + first.encode(), b'"forked_from_id":"' + other.encode())
        )
    made.check()


def test_who_came_from_nowhere(copy_store: CopyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a thread that the index knows to have no parent isn't opened for its links, until it changes."""
    monkeypatch.setattr(store_module, "_MANY", 0)
    home = copy_store("forks.paginated").home
    made = Indexed(home, tmp_path)
    made.build()
    opened: list[str] = []
    open_regular = files.open_regular

    def noted(root: str, path: str) -> int:
        opened.append(path)
        return open_regular(root, path)

    monkeypatch.setattr(metas, "open_regular", noted)
    store = made.store()
    links = {thread: store.links(thread) for thread in store.thread_ids()}
    alone = {thread for thread, one in links.items() if one.forked_from is None and one.parent is None}
    forks = links.keys() - alone
    assert alone
    assert forks
    assert set(opened) == {store.head(thread).path for thread in forks}
    root, fork = min(alone), min(forks)
    log = home / store.head(root).path
    begin = b'"session_meta","payload":{'
    assert begin in log.read_bytes()
    log.write_bytes(log.read_bytes().replace(begin, begin + b'"forked_from_id":"%s",' % fork.encode(), 1))
    assert store.links(root).forked_from == fork
    assert store.head(root).path in opened


@pytest.mark.parametrize("damage", ["zeros", "cut", "another", "empty"])
def test_a_damaged_one_is_built_anew(indexed: Indexed, damage: str) -> None:
    """It is never believed, and the next passes make a sound one."""
    indexed.indexer.close()
    if damage == "zeros":
        with indexed.path.open("r+b") as file:
            file.write(bytes(8192))
    elif damage == "cut":
        os.truncate(indexed.path, 5000)
    elif damage == "empty":
        os.truncate(indexed.path, 0)
    else:
        indexed.path.unlink()
        Database(indexed.path).table("other").insert({"a": 1})
    indexed.check()
    for _ in range(2):
        try:
            indexed.indexer.advance("", 1e9)
        except sqlite3.Error:
            continue
    assert indexed.check() > 0


def test_one_builds_at_a_time(indexed: Indexed) -> None:
    """Who finds it being built leaves it alone."""
    with open(f"{indexed.path}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert indexed.indexer.advance("", 1e9) is None
        assert not indexed.indexer.enter(indexed.store().thread_ids())
    assert indexed.indexer.advance("", 1e9) is not None


def test_it_is_private_and_keeps_to_itself(indexed: Indexed) -> None:
    """Only its owner may read it; old indexes of the same store go, those of others stay."""
    mode = stat.S_IMODE(indexed.path.stat().st_mode)
    assert (mode, stat.S_IMODE(indexed.path.parent.stat().st_mode)) == (0o600, 0o700)
    store = indexed.path.name.partition("-")[0]
    names = (f"{store}-old", f"{store}-new", "0-old", "1-orphan", "2-living")
    old, young, other, orphan, living = (indexed.path.with_name(f"{name}.sqlite") for name in names)
    for path in (old, young, other):
        path.touch()
    for path, root in ((orphan, b"/no such folder"), (living, os.fsencode(indexed.home))):
        Database(path).table("store").insert({"root": root})
    for path in (old, other, orphan, living):
        os.utime(path, (0, 0))
    indexed.path.unlink()
    assert indexed.indexer.advance("", 1e9) is not None
    assert [path.exists() for path in (old, young, other, orphan, living)] == [False, True, True, False, True]


def test_people_can_read_it(corpus: Corpus, tmp_path: Path) -> None:
    """Tables, columns and foreign keys as sqlite-utils shows them; the figures are those of the derived files."""
    made = Indexed(corpus("forks.paginated").home, tmp_path)
    made.build()
    database = Database(made.path)
    names = {name for name in database.table_names() if not name.startswith("texts_fts")}
    names.remove("store")  # one row: where the store is
    packed = {"extents", "passes", "parts", "spines"}
    assert names == {"threads", "rollouts", "turns", "spent", "problems", "texts"} | packed
    assert database.table("texts").detect_fts() == "texts_fts"
    for name in names - {"threads"}:
        (key,) = database.table(name).foreign_keys
        assert (key.column, key.other_table, key.other_column) == ("thread_id", "threads", "id")
    store = made.store()
    for row in database.table("threads").rows:
        for view, column in SIZES.items():
            assert row[column] == store.project(row["id"], view).size
        turns = [turn["number"] for turn in database.table("turns").rows_where("thread_id = ?", [row["id"]])]
        assert len(turns) == row["turns"]


def _branch(home: Path) -> None:
    """The threads were begun in a repository."""
    for log in home.glob("sessions/*/*/*/*.jsonl"):
        log.write_bytes(log.read_bytes().replace(b'"cli_version":', b'"git":{"branch":"main"},"cli_version":', 1))


def test_the_queries_of_the_documents(copy_store: CopyStore, tmp_path: Path) -> None:
    """Each query of docs/sql.md works, and all of them together find something in stores that have it all."""
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len(queries) == 10
    found: Counter[str] = Counter()
    for name in ("revert_forked.paginated", "failed_turn.paginated", "killed_torn.paginated", "forks.legacy"):
        made = Indexed(copy_store(name).home, tmp_path / name)
        if name == "forks.legacy":
            _branch(made.home)
            store = made.store()
            store.revert(store.thread_ids()[0], "-1")
        made.build()
        with closing(sqlite3.connect(made.path)) as connection:
            for query in queries:
                found[query] += len(connection.execute(query).fetchall())
    assert min(found[query] for query in queries) > 0, found


def test_without_an_edition_of_this_code_it_is_not_used(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another edition may write derived files differently: it has an index of its own."""
    assert indexed.check()
    monkeypatch.setattr(index, "edition", lambda: "another")
    assert Indexed(indexed.home, indexed.folder).path != indexed.path


@pytest.mark.parametrize("data", ["x'00'", "substr(data, 1, length(data) - 1) || x'00'", "data || x'00'", "7", "NULL"])
def test_a_damaged_spine(indexed: Indexed, data: str) -> None:
    """What views show is then read from the logs, and the index has it again with the next change of the thread."""
    said = indexed.check()
    with closing(sqlite3.connect(indexed.path)) as connection, connection:
        connection.execute(f"UPDATE spines SET data = {data}")
    store = indexed.store()
    assert store.kept(store.thread_ids()) == {}
    assert indexed.check() == said
    _append(indexed.home)
    indexed.build()
    assert indexed.store().kept(store.thread_ids()) != {}


def test_a_spine_is_read_from_the_index_alone(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    """No log of a thread with one rollout is opened for what views show of it."""
    opened: list[str] = []
    for module in (metas, mtimes, opened_module):
        monkeypatch.setattr(module, "open_regular", lambda _root, path: opened.append(path))
    store = indexed.store()
    single = [thread for thread in store.thread_ids() if len(store.rollouts(thread)) == 1]
    assert all(spine is not None and spine.is_whole for spine in spines(store, single, whole=True))
    assert single
    assert opened == []
