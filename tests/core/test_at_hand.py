"""What a scan keeps at hand while one transcript is made: the same text, with each item decoded once."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest
from hypothesis import given
from threadstore import incremental, lineages, lines, opened, projector
from threadstore.lines import Line
from threadstore.projection import Projection, View, rendered
from threadstore.records import Dialect, Record, Skip, decode, decode_again
from threadstore.replay import ReverseScan, is_silent
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.core.logs import Log, Store, assistant, user
from tests.core.threads import RECORDS, Step, logs
from tests.corpus_store import CorpusStore

SETTLED, UNSETTLED = -1 << 62, 1 << 62  # ns since the last change of a log for which `stat` tells nothing of it


def made(home: Path, at_hand: int, tick: int = SETTLED) -> dict[str, tuple[bytes, bytes]]:
    """The transcript of each thread and its generation, in a process that has read nothing of them."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as spool:
        patch.setattr(lineages, "_REMEMBERED", -1)
        patch.setattr(projector, "_AT_HAND", at_hand)
        patch.setattr(opened, "_TICK", tick)
        store = ThreadStore(str(home), Spool(spool))
        store.refresh()
        found: dict[str, tuple[bytes, bytes]] = {}
        for thread in store.thread_ids():
            projection: Projection = store.project(thread, View.TRANSCRIPT)
            text = b"" if projection.extents is None else rendered(projection)
            found[thread] = (text, projection.generation)
        return found


def test_the_same_of_the_corpus(corpus_store: CorpusStore) -> None:
    """Of every log that Codex wrote, whether lines are read again or not."""
    wanted = made(corpus_store.home, -2)
    assert made(corpus_store.home, 1 << 30) == wanted
    assert made(corpus_store.home, 1 << 30, UNSETTLED) == wanted


@given(log=logs())
def test_the_same_of_any_log(log: Log) -> None:
    """Of records in any order, too."""
    with TemporaryDirectory() as folder:
        Store(Path(folder), log)
        wanted = made(Path(folder), -2)
        assert made(Path(folder), 1 << 30) == wanted
        assert made(Path(folder), 1 << 30, UNSETTLED) == wanted


@given(step=RECORDS)
def test_what_is_silent(step: Step) -> None:
    """What a replay isn't given leaves it as it is."""
    log = Log()
    step(log)
    for data in log.lines[1:]:
        record = decode(Line(0, len(data), data))
        if isinstance(record, Record) and is_silent(record):
            scan = ReverseScan(paginated=True)
            before = repr(vars(scan))
            scan.feed(record, 0)
            assert repr(vars(scan)) == before


@pytest.mark.parametrize(("tick", "times"), [(SETTLED, 1), (UNSETTLED, 3)], ids=["settled", "changed just now"])
def test_what_is_read(tick: int, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that lies still is read once, by the scan, beside the reading of its session meta."""
    Store(tmp_path, Log().turn("1", "one", assistant("two"), model="m").item(user("three")))
    (path,) = tmp_path.rglob("rollout-*.jsonl")
    lengths: list[int] = []
    read = lines.Log.read

    def noted(log: lines.Log, offset: int, length: int) -> bytes:
        data = read(log, offset, length)
        lengths.append(len(data))
        return data

    monkeypatch.setattr(lines.Log, "read", noted)
    made(tmp_path, 1 << 30, tick)
    assert sum(lengths) == (1 + times) * path.stat().st_size


@pytest.mark.parametrize("tick", [SETTLED, UNSETTLED], ids=["settled", "changed just now"])
def test_each_item_is_decoded_once(tick: int, corpus_store: CorpusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the scan no response item is decoded again, and no line that says nothing to a replay."""
    again: list[Record | Skip] = []

    def noted(line: Line, dialect: Dialect) -> Record | Skip:
        again.append(decode_again(line, dialect))
        return again[-1]

    monkeypatch.setattr(opened, "decode_again", noted)
    made(corpus_store.home, 1 << 30, tick)
    records = [one for one in again if isinstance(one, Record)]
    assert [one for one in records if one.type == "response_item" or is_silent(one)] == []


@pytest.mark.parametrize("tick", [SETTLED, UNSETTLED], ids=["settled", "changed just now"])
def test_a_line_that_is_written_over(tick: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is at hand is of the bytes that were read: others in the same place are decoded."""
    Store(tmp_path, Log().item(user("one"), assistant("two")))
    (path,) = tmp_path.rglob("rollout-*.jsonl")
    os.utime(path, (1, 1))  # so that its time tells of the change, however soon that comes
    scanned = incremental.Passes.scan

    def then_changed(*arguments: object, **more: object) -> object:
        found = scanned(*arguments, **more)  # type: ignore[arg-type]
        with path.open("r+b") as file:
            file.write(path.read_bytes().replace(orjson.dumps("two"), orjson.dumps("2.0")))
        return found

    monkeypatch.setattr(incremental.Passes, "scan", then_changed)
    ((text, _),) = made(tmp_path, 1 << 30, tick).values()
    assert b"  2.0\n" in text
    assert b"  two\n" not in text
