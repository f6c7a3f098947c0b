"""Files of threads that the index has as a whole are opened without being looked into, and read as they were opened."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import zstandard
from threadstore import index
from threadstore.index import IndexReader
from threadstore.indexing import Indexer
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import outlines, packs
from rolloutfs.attributes import Clock
from rolloutfs.content import Contents
from rolloutfs.engine import Engine
from rolloutfs.storefiles import StoreFiles
from rolloutfs.tree import Tree
from tests.tree.conftest import Planted
from tests.tree.sample import SampleStore, meta

NAMES = [view.value for view in View if view not in (View.LINEAGE, View.DROPPED, View.DROPPED_TURNS)]
ALL = 1 << 20


class Indexed:
    """A tree over a store that has an index, of which every change is told."""

    def __init__(self, sample: SampleStore, folder: Path) -> None:
        self.sample = sample
        self.path = folder / "index.sqlite"
        self._spool = Spool(str(folder / "spool"))
        self.enter()
        store = ThreadStore(str(sample.root), self._spool, index=IndexReader(str(self.path)))
        files = StoreFiles(store.root)
        tree = Tree(store, files)
        contents = Contents(Engine(store, None), tree, files, b"readme", Clock(store, files).of_content)
        self.planted = Planted(sample, store, tree, contents)
        self.contents = contents
        self.looked = 0
        contents.note(watched=True)

    def enter(self) -> None:
        """Bring the index up to date."""
        indexer = Indexer(ThreadStore(str(self.sample.root), self._spool), str(self.path))
        indexer.advance("", 1e9)
        indexer.close()

    def ino(self, thread: str, name: str) -> int:
        """The number of a file."""
        return self.planted.walk(f"threads/{thread}/{name}").ino

    def open(self, thread: str, name: str) -> tuple[int, bool]:
        """A handle, and whether the kernel keeps the pages."""
        node = self.planted.walk(f"threads/{thread}/{name}")
        opened = self.contents.open_now(node.ino, node, 1, lambda ino: None)
        assert opened is not None
        return opened

    def read(self, thread: str, name: str) -> bytes:
        """The content of a file."""
        handle, _ = self.open(thread, name)
        try:
            return self.contents.read(handle, 0, ALL)
        finally:
            self.contents.release(handle)

    def again(self, thread: str, name: str) -> int | None:
        """A handle of a file of which nothing has to be found out."""
        return self.contents.open_again(self.ino(thread, name), 1)

    @contextmanager
    def counting(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        """How often it is looked where the bytes of files lie."""
        found: list[str] = []
        unpack = index.Packed.unpacked

        def counted(packed: index.Packed) -> object:
            found.append("looked")
            return unpack(packed)

        with monkeypatch.context() as patch:
            patch.setattr(index.Packed, "unpacked", counted)
            yield found


@pytest.fixture
def indexed(sample: SampleStore, tmp_path: Path) -> Callable[[], Indexed]:
    """A function that makes the index of the sample and the tree over it."""
    return lambda: Indexed(sample, tmp_path)


def computed(sample: SampleStore, folder: Path, thread: str) -> dict[str, bytes]:
    """The files of a thread, without an index."""
    store = ThreadStore(str(sample.root), Spool(str(folder / "other")))
    files = StoreFiles(store.root)
    tree = Tree(store, files)
    contents = Contents(Engine(store, None), tree, files, b"readme", Clock(store, files).of_content)
    found = {}
    for node in tree.views(thread):
        if node.view is not None and node.view.value in NAMES:
            opened = contents.open_now(node.ino, node, 1, lambda ino: None)
            assert opened is not None
            found[node.view.value] = contents.read(opened[0], 0, ALL)
    return found


def test_a_walk_looks_into_each_thread_once(
    sample: SampleStore, indexed: Callable[[], Indexed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one into none, also after something happened to another thread, however many there are; and what it
    reads is right.
    """
    monkeypatch.setattr(packs, "ROWS", 5000)
    monkeypatch.setattr(packs, "_LOOKED", 2)
    monkeypatch.setattr(outlines, "OUTLINED", 2)
    threads = [sample.add(number, f"hello {number}", "more") for number in range(6)]
    wanted = {thread: computed(sample, tmp_path, thread) for thread in threads}
    tree = indexed()
    for name in ("project", "project_all"):
        monkeypatch.delattr(ThreadStore, name)
    with tree.counting(monkeypatch) as looked:
        for thread in threads:
            assert {name: tree.read(thread, name) for name in NAMES} == wanted[thread]
        assert len(looked) == len(threads)
        for turn in range(2):
            for thread in threads:
                for name in NAMES:
                    handle, keep = tree.open(thread, name) if turn else (tree.again(thread, name), True)
                    assert handle is not None
                    assert keep
                    tree.contents.release(handle)
            assert len(looked) == len(threads)
            tree.contents.note(watched=True)
    for thread in threads:
        assert {name: tree.read(thread, name) for name in NAMES} == wanted[thread]


@pytest.mark.parametrize("change", ["append", "replace", "delete", "archive", "compress"])
@pytest.mark.parametrize("entered", [True, False])
def test_it_reads_as_it_was_opened(
    sample: SampleStore, indexed: Callable[[], Indexed], change: str, *, entered: bool
) -> None:
    """Whatever became of the log and of the row in the index before the first read."""
    thread, other = sample.add(1, "hello", "more"), sample.add(2, "another")
    tree = indexed()
    before = {name: tree.read(thread, name) for name in NAMES}
    handles = {name: tree.again(thread, name) for name in NAMES}
    path = sample.path(thread)
    if change == "append":
        sample.append(thread, "and on")
    elif change == "replace":
        sample.replace(thread, "something else")
    elif change == "archive":
        (sample.root / "archived_sessions").mkdir()
        os.rename(path, sample.root / "archived_sessions" / path.name)
    else:
        if change == "compress":
            packed = path.with_name(path.name + ".zst")
            packed.write_bytes(zstandard.compress(path.read_bytes()))
        path.unlink()
    if entered:
        tree.enter()
    tree.planted.store.refresh()
    tree.contents.note(watched=True)
    assert b"another" in tree.read(other, "effective_history.jsonl")
    for name, handle in handles.items():
        assert handle is not None
        assert tree.contents.read(handle, 0, ALL) == before[name], name
        tree.contents.release(handle)
    fds = tree.contents._fds
    assert len(fds) == len(fds._idle)


async def test_it_follows_growth(sample: SampleStore, indexed: Callable[[], Indexed]) -> None:
    """A handle that nobody has read from is told of what was appended, like any other."""
    thread = sample.add(1, "hello")
    tree = indexed()
    before = tree.read(thread, "effective_history.jsonl")
    handle = tree.again(thread, "effective_history.jsonl")
    assert handle is not None
    node = tree.planted.walk(f"threads/{thread}/effective_history.jsonl")
    told = tree.contents.announced(node.ino)
    assert told is not None
    assert told.size == (await tree.contents.measure(node.ino, node)).size == len(before)
    sample.append(thread, "and on")
    tree.contents.note(watched=True)
    assert (await tree.contents.measure(node.ino, node)).size > len(before)
    after = tree.contents.read(handle, 0, ALL)
    assert after.startswith(before)
    assert b"and on" in after
    tree.contents.release(handle)
    assert tree.read(thread, "effective_history.jsonl") == after


def test_what_was_told_of_another_row(sample: SampleStore, indexed: Callable[[], Indexed]) -> None:
    """A file whose size isn't that in the row is opened otherwise, and the log is pinned no longer than that."""
    thread = sample.add(1, "hello", "more")
    tree = indexed()
    wanted = tree.read(thread, "transcript.md")
    told = dict(tree.contents._outlines.told(thread) or {})
    assert told
    told[View.TRANSCRIPT] = told[View.TRANSCRIPT]._replace(size=len(wanted) + 1)
    tree.contents._outlines._outlined.put(thread, told)
    node = tree.planted.walk(f"threads/{thread}/transcript.md")
    assert tree.contents._open_packed(node.ino, node, 1, lambda ino: None) is None
    assert sum(file.pins for file in tree.contents._fds._files.values()) == 0


def test_a_log_that_somebody_else_found_changed(sample: SampleStore, indexed: Callable[[], Indexed]) -> None:
    """The one who reads next is told the same, not that the handle were stale; and keeps nothing pinned."""
    thread = sample.add(1, "hello", "more")
    tree = indexed()
    names = ("effective_history.jsonl", "full_history.jsonl")
    for name in names:
        tree.read(thread, name)
    handles = [tree.again(thread, name) for name in names]
    path = sample.path(thread)
    length = path.stat().st_size
    path.write_bytes(meta(thread) + b"x" * length)
    for handle in handles:
        assert handle is not None
        with pytest.raises(OSError, match="changed") as raised:
            tree.contents.read(handle, 0, ALL)
        assert raised.value.errno == errno.EIO
        tree.contents.release(handle)
    assert sum(file.pins for file in tree.contents._fds._files.values()) == 0


def test_a_log_that_was_written_anew_is_noticed(sample: SampleStore, indexed: Callable[[], Indexed]) -> None:
    """It has been guarded since the file was opened: other bytes in the same place are an error."""
    thread = sample.add(1, "hello", "more")
    tree = indexed()
    tree.read(thread, "effective_history.jsonl")
    handle = tree.again(thread, "effective_history.jsonl")
    assert handle is not None
    path = sample.path(thread)
    length = path.stat().st_size
    path.write_bytes(meta(thread) + b"x" * length)
    tree.contents.note(watched=True)
    with pytest.raises(OSError, match="changed") as raised:
        tree.contents.read(handle, 0, ALL)
    assert raised.value.errno == errno.EIO
    tree.contents.release(handle)


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_another_row_is_not_taken(
    sample: SampleStore, indexed: Callable[[], Indexed], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """A row that isn't the one that was looked into tells nothing, and what is opened then is right."""
    thread = sample.add(1, "hello")
    tree = indexed()
    before = {name: tree.read(thread, name) for name in NAMES}
    with closing(sqlite3.connect(tree.path)) as database:
        if damage == "gone":
            database.execute("DELETE FROM extents WHERE thread_id = ?", (thread,))
        else:
            database.execute("UPDATE extents SET data = substr(data, 1, 100) WHERE thread_id = ?", (thread,))
        database.commit()
    tree.contents._packs._at_hand.clear()
    assert tree.again(thread, NAMES[0]) is None
    assert {name: tree.read(thread, name) for name in NAMES} == before


@pytest.mark.parametrize("what", ["name", "head"])
def test_what_follows_from_more_than_the_log(sample: SampleStore, indexed: Callable[[], Indexed], what: str) -> None:
    """A name that was given meanwhile, or a second log, is told at once."""
    thread = sample.add(1, "hello")
    tree = indexed()
    before = tree.read(thread, "thread.json")
    assert tree.read(thread, "thread.json") == before
    if what == "name":
        named = f'{{"id":"{thread}","thread_name":"Something","updated_at":"2026-11-29T21:00:00Z"}}\n'
        (sample.root / "session_index.jsonl").write_text(named)
    else:
        later = sample.path(thread).with_name(f"rollout-2026-11-30T21-00-00-{thread}.jsonl")
        later.write_bytes(meta(thread))
    tree.planted.store.refresh()
    tree.contents.note(watched=True)
    assert tree.again(thread, "thread.json") is None
    after = tree.read(thread, "thread.json")
    assert after != before
    if what == "name":
        assert b"Something" in after
