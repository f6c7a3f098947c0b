"""Large logs in bounded memory, and no more of them read than an answer needs (FAULTS 14, 15; DESIGN rule 7).

The stores are those of `bench/`, smaller, but each still so large that it shows when something is kept as a whole.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from bench import cases, stores
from bench.reads import reads_of
from bench.rollout import RolloutWriter, rollout_name
from bench.server import mounted
from bench.thread import MIB, THREAD, Author, Checkpoints, Shape, write_thread

CEILING = 150 * MIB  # resident, in each process


def long_life(root: Path, checkpoints: Checkpoints, *, paginated: bool = True) -> int:
    """A thread of 48 MiB with a checkpoint every 8 MiB and 4 MiB after the last one; its size."""
    shape = Shape(48 * MIB, checkpoints, every=8 * MIB, tail=4 * MIB, paginated=paginated)
    return write_thread(root / rollout_name(THREAD), shape).size


@pytest.mark.parametrize(
    ("checkpoints", "paginated"), [(Checkpoints.FULL, True), (Checkpoints.FULL, False), (Checkpoints.HISTORY, False)]
)
def test_a_history_costs_the_end_of_its_log(tmp_path: Path, checkpoints: Checkpoints, paginated: bool) -> None:
    """The log is read back to the last checkpoint, each byte once, and no further."""
    size = long_life(tmp_path, checkpoints, paginated=paginated)
    reads = reads_of(tmp_path, tmp_path / "spool", THREAD, View.EFFECTIVE_HISTORY)
    assert reads.most == 1
    assert MIB < reads.total < 8 * MIB < size


@pytest.mark.parametrize(
    ("checkpoints", "view"),
    [(Checkpoints.FULL, View.TURNS), (Checkpoints.FULL, View.PROBLEMS), (Checkpoints.NONE, View.EFFECTIVE_HISTORY)],
)
def test_a_scan_reads_each_byte_once(tmp_path: Path, checkpoints: Checkpoints, view: View) -> None:
    """What needs every record reads the log from one end to the other."""
    size = long_life(tmp_path, checkpoints)
    reads = reads_of(tmp_path, tmp_path / "spool", THREAD, view)
    assert (reads.total, reads.most) == (size, 1)


@pytest.mark.parametrize("name", ["image", "output", "checkpoint"])
def test_memory_with_one_enormous_line(tmp_path: Path, name: str) -> None:
    """A line of 64 MiB is read in every form, and no process of the mount ever holds it."""
    store = stores.make(name, tmp_path / "store", scale=8)
    with mounted(store, tmp_path) as mount:
        peaks = cases.read_everything(mount)
        assert (mount.thread(THREAD) / "problems.jsonl").read_bytes() == b""
    assert 0 < peaks.server < CEILING
    assert 0 < peaks.worker < CEILING


@pytest.mark.parametrize(("name", "scale"), [("images", 10), ("lines", 10), ("zst", 16)])
def test_memory_with_much_of_everything(tmp_path: Path, name: str, scale: int) -> None:
    """Images repeated in checkpoints, large outputs, a compressed log: memory doesn't follow the log."""
    store = stores.make(name, tmp_path / "store", scale)
    with mounted(store, tmp_path) as mount:
        peaks = cases.read_everything(mount)
        assert (mount.thread(THREAD) / "problems.jsonl").read_bytes() == b""
    assert 0 < peaks.server < CEILING
    assert 0 < peaks.worker < CEILING


def test_shortened_outputs_are_no_copies(tmp_path: Path) -> None:
    """Of 300 outputs that are cut for the model, 48 KB each, the projection holds hardly anything."""
    store = ThreadStore(str(stores.make("lines", tmp_path / "store", scale=10)), Spool(str(tmp_path / "spool")))
    projection = store.project(THREAD, View.MODEL_INPUT)
    assert projection.size > 300 * 40_000
    assert len(pickle.dumps(projection)) < 300 * 1000


@pytest.mark.parametrize(
    ("value", "size"),
    [(b"[],", 4 * MIB - 1000), (b'{"a":1},', 4 * MIB - 1000), (b'"ab",', 20 * MIB), (b"1234567,", 20 * MIB)],
    ids=["arrays", "objects", "strings", "numbers"],
)
def test_memory_with_millions_of_values(tmp_path: Path, value: bytes, size: int) -> None:
    """A line whose values would take far more memory than its text is named and passed over; the next one counts."""
    with RolloutWriter(tmp_path / "store" / rollout_name(THREAD), paginated=True) as out:
        author = Author(out, Shape(0))
        author.begin()
        tools = (value * (size // len(value)))[:-1]
        out.add(b"response_item", b'{"type":"additional_tools","role":"developer","tools":[', tools, b"]}")
        author.turn(rounds=1)
    with mounted(tmp_path / "store", tmp_path) as mount:
        peaks = cases.read_everything(mount)
        items = (mount.thread(THREAD) / "effective_history.jsonl").read_bytes().count(b"\n")
        problems = (mount.thread(THREAD) / "problems.jsonl").read_bytes()
    assert peaks.worker < CEILING
    assert items - (b"too_large" not in problems) == 5
