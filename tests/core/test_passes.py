"""Passes that go on in another process: they read what is new, and believe nothing that isn't theirs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import zstandard
from threadstore import files, index, lines, passes
from threadstore.index import IndexReader
from threadstore.indexing import Indexer
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.core.logs import Log, assistant
from tests.core.logs import Store as Home
from tests.core.reading import content

_TURNS = 400  # of 20 KB each


def _turn(log: Log, number: int) -> None:
    log.turn(str(number), f"question {number}", assistant("x" * 20_000), model="m")


@pytest.fixture(params=[True, False], ids=["paginated", "legacy"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Log, Path, Path]:
    """A log of several megabytes: what writes it, its file, and the index that was made of it."""
    log = Log(request.param)
    log.turn("0", "first").world({"cwd": "/"}, full=True)
    for number in range(1, _TURNS):
        _turn(log, number)
    path = Home(tmp_path / "home").write(log.name, log.data)
    place = Path(index.place(str(tmp_path / "index"), str(tmp_path / "home")))
    _enter(tmp_path, place)
    return log, path, place


def _store(folder: Path, place: Path) -> ThreadStore:
    """As a process that begins now sees it."""
    return ThreadStore(str(folder / "home"), Spool(str(folder / "spool")), index=IndexReader(str(place)))


def _enter(folder: Path, place: Path) -> None:
    progress = Indexer(_store(folder, place), str(place)).advance("", 1e9)
    assert progress is not None
    assert progress.entered == 1


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all that is read of files."""
    lengths: list[int] = []
    pread = os.pread

    def counting(descriptor: int, length: int, offset: int) -> bytes:
        data = pread(descriptor, length, offset)
        lengths.append(len(data))
        return data

    for module in (files, lines):
        if hasattr(module, "os"):
            monkeypatch.setattr(module.os, "pread", counting)
    return lengths


def test_an_appended_turn_costs_its_own_bytes(home: tuple[Log, Path, Path], read: list[int], tmp_path: Path) -> None:
    """A new process that enters a log which has grown reads what was added, and a little to see that it only grew."""
    log, path, place = home
    before = len(log.data)
    _turn(log, _TURNS)
    path.write_bytes(log.data)
    added = len(log.data) - before
    read.clear()
    _enter(tmp_path, place)
    once = 2 << 20  # the first chunk, for the session meta and for the first words
    more = 5 * added + once + (64 << 10) * 8
    blocks = before  # a new process looks once whether all of it is as it was
    assert added + blocks <= sum(read) <= more + blocks + (1 << 20)
    store, fresh = _store(tmp_path, place), ThreadStore(str(tmp_path / "home"), Spool(str(tmp_path / "spool")))
    (thread,) = store.thread_ids()
    for view, outline in store.outlines(thread).items():
        assert outline.size == fresh.project(thread, view).size
    assert set(View) - store.outlines(thread).keys() == {View.DROPPED}  # which is made anew each time


def test_in_one_process_no_more_is_read(home: tuple[Log, Path, Path], read: list[int], tmp_path: Path) -> None:
    """The process that entered the log before doesn't read the old part again."""
    log, path, place = home
    indexer = Indexer(_store(tmp_path, place), str(place))
    for number in (_TURNS, _TURNS + 1):
        before = len(log.data)
        _turn(log, number)
        path.write_bytes(log.data)
        read.clear()
        assert indexer.advance("", 1e9) is not None
    assert len(log.data) - before <= sum(read) <= 5 * (len(log.data) - before) + (3 << 20)


@pytest.mark.parametrize("turn", [3, _TURNS // 2, _TURNS - 1])
def test_what_was_written_over_is_seen(home: tuple[Log, Path, Path], tmp_path: Path, turn: int) -> None:
    """A word that was changed in place is gone from everything, although the log has grown since."""
    log, path, place = home
    old, new = f"question {turn}".encode(), f"redacted {turn}".encode()
    data = log.data.replace(old, new)
    before = len(data)
    _turn(log, _TURNS)
    path.write_bytes(data + log.data[before:])
    for _ in range(2):
        store = _store(tmp_path, place)
        (thread,) = store.thread_ids()
        text = content(store, store.project(thread, View.TURNS))
        assert new in text
        assert old + b'"' not in text
        _enter_again(tmp_path, place)


def _enter_again(folder: Path, place: Path) -> None:
    assert Indexer(_store(folder, place), str(place)).advance("", 1e9) is not None


def test_what_was_rewritten_is_read_again(home: tuple[Log, Path, Path], read: list[int], tmp_path: Path) -> None:
    """Another log under the same name is not taken for one that has grown."""
    log, path, place = home
    data = log.data.replace(b"question 7", b"question 8")
    _turn(log, _TURNS)
    path.write_bytes(data + log.data[len(data) :])
    os.truncate(path, len(data) - 10)
    read.clear()
    _enter(tmp_path, place)
    assert sum(read) > len(data)


class _Getter:
    """What a forger would write to have something called."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (Log, "turn")


THINGS = [os.system, Path("/"), print, object(), _Getter()]


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: type(thing).__name__)
def test_nothing_else_is_unpickled(thing: object) -> None:
    """An index that somebody else has written makes no other objects and calls nothing."""
    assert passes.unpacked(passes.packed([1, "a", thing])) is None


def test_what_is_damaged_is_not_unpickled() -> None:
    """A changed byte is found before anything is made of it."""
    packed = bytearray(passes.packed([1, 2]))
    assert passes.unpacked(bytes(packed)) == [1, 2]
    packed[-1] ^= 1
    assert passes.unpacked(bytes(packed)) is None
    assert passes.unpacked(b"") is None
    assert pickle.loads(zstandard.decompress(passes.packed([1, 2])[16:])) == [1, 2]
