"""The recorder: when there is a file, what a barrier promises, and what becomes of records that could not be written.

A limit on the size of files makes the system itself take a part of a write, and refuse the rest.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from threadstore.errors import StoreError, UnwritableError
from threadstore.lines import Log
from threadstore.recorder import Draft, Durability, Recorder, next_ordinal

Opened = Callable[..., Recorder]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the rollout is to be."""
    return tmp_path / "rollout.jsonl"


@pytest.fixture
def opened(path: Path) -> Iterator[Opened]:
    """Makes recorders, whose threads end with the test."""
    made: list[Recorder] = []

    def make(*, ordinal: int | None = 0, create: bool = True, **more: Any) -> Recorder:
        made.append(Recorder(str(path), ordinal=ordinal, create=create, **more))
        return made[-1]

    yield make
    for recorder in made:
        recorder.abandon()


def fact(number: int, length: int = 0) -> Draft:
    """A record that is told from others."""
    return Draft.of("event_msg", {"type": "task_started", "turn_id": "x" * length, "number": number})


def records(path: Path) -> list[tuple[int | None, int]]:
    """Ordinal and number of each line that is a record; what was cut is passed over, as every reader does."""
    found = []
    for line in path.read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            found.append((record.get("ordinal"), record["payload"]["number"]))
    return found


@contextlib.contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file of this process may grow beyond that; Python ignores the signal, so that a write fails with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# When there is a file


def test_no_file_before_the_first_fact(path: Path, opened: Opened) -> None:
    """Neither a barrier nor the end makes one; a record does, and only its owner can read it."""
    recorder = opened()
    recorder.barrier()
    recorder.append([])
    recorder.barrier()
    assert not path.exists()
    recorder.append([fact(0)])
    recorder.barrier()
    assert records(path) == [(0, 0)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_recorder_that_got_nothing_leaves_nothing(path: Path, opened: Opened) -> None:
    """Closed or abandoned."""
    recorder = Recorder(str(path), ordinal=0, create=True)
    recorder.close()
    opened()
    assert not path.exists()


def test_nothing_is_made_over_what_is_there(path: Path, opened: Opened) -> None:
    """A new rollout never goes into an old file, nor through a link."""
    path.write_bytes(b"there\n")
    recorder = opened(again=False)
    recorder.append([fact(0)])
    with pytest.raises(FileExistsError):
        recorder.barrier()
    assert path.read_bytes() == b"there\n"


# Barriers


def test_a_barrier_is_behind_all_that_was_appended_before(path: Path, opened: Opened) -> None:
    """By several callers at once: those of each are in order, and ordinals have no gap."""
    recorder = opened()
    callers, each = 4, 200

    def call(caller: int) -> None:
        for number in range(each):
            recorder.append([fact(caller * each + number)])
        recorder.barrier()
        mine = [number for _, number in records(path) if number // each == caller]
        assert mine == list(range(caller * each, (caller + 1) * each))

    wrong: list[BaseException] = []

    def caught(caller: int) -> None:
        try:
            call(caller)
        except BaseException as error:  # noqa: BLE001  it is raised below
            wrong.append(error)

    threads = [threading.Thread(target=caught, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert [ordinal for ordinal, _ in records(path)] == list(range(callers * each))


def test_records_that_wait_together_are_written_together(
    path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader sees all of an append, or none."""
    recorder = opened(durability=Durability.FLUSH)
    real = os.write
    seen: list[int] = []

    def write(descriptor: int, data: bytes) -> int:
        seen.append(len(data))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    recorder.append([fact(number) for number in range(100)])
    recorder.barrier()
    assert seen == [path.stat().st_size]


def test_the_queue_is_bounded(path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is faster than the disk has to wait for it, and loses nothing."""
    is_busy, go_on = threading.Event(), threading.Event()
    real = os.write

    def slow(descriptor: int, data: bytes) -> int:
        is_busy.set()
        go_on.wait()
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", slow)
    recorder = opened(durability=Durability.FLUSH)
    recorder.append([fact(number) for number in range(300)])  # more than may be pending: the writer begins
    is_busy.wait()
    appended = 300
    while not recorder._commands.full():
        recorder.append([fact(appended)])
        appended += 1
    waiting = threading.Thread(target=recorder.append, args=([fact(appended)],))
    waiting.start()
    was_waiting = waiting.is_alive()
    go_on.set()
    waiting.join()
    assert was_waiting
    recorder.barrier()
    assert records(path) == [(number, number) for number in range(appended + 1)]


@pytest.mark.parametrize(("durability", "synced"), [(Durability.FLUSH, []), (Durability.FSYNC, ["file", "folder"])])
def test_what_a_barrier_syncs(
    path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, durability: Durability, synced: list[str]
) -> None:
    """For `fsync` a new file and the folder that names it, then the file alone, and nothing that is on the disk."""
    real = os.fsync
    calls: list[str] = []

    def count(descriptor: int) -> None:
        calls.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", count)
    recorder = opened(durability=durability)
    recorder.append([fact(0)])
    recorder.barrier()
    assert calls == synced
    recorder.barrier()
    assert calls == synced
    recorder.append([fact(1)])
    recorder.barrier()
    assert calls == synced + synced[:1]


# What could not be written


@pytest.mark.parametrize("ordinal", [7, None])
@pytest.mark.parametrize("room", [0, 1, 60, 198, 199, 200, 201, 399, 500, 598, 599])
def test_what_was_not_written_is_kept(path: Path, opened: Opened, room: int, ordinal: int | None) -> None:
    """A part of the records fits: the rest is written by the next barrier, each record once, in order and with the
    ordinal after the last whole one; a line that was cut is ended, so that nothing is glued to it.
    """
    path.write_bytes(b"")
    recorder = opened(ordinal=ordinal, create=False)
    size = len(fact(0).line("2026-01-01T00:00:00.000Z", ordinal))
    facts = [fact(number, 200 - size) for number in range(3)]
    with files_end_at(room):
        recorder.append(facts)
        for _ in range(2):
            with pytest.raises(OSError, match="File too large") as caught:
                recorder.barrier()
            assert caught.value.errno == errno.EFBIG
        assert path.stat().st_size <= room
    recorder.append([fact(3)])
    recorder.barrier()
    first = ordinal
    assert records(path) == [(None if first is None else first + number, number) for number in range(4)]
    cut = [line for line in path.read_bytes().split(b"\n")[:-1] if not line.endswith(b"}")]
    assert len(cut) <= 1
    assert path.read_bytes().endswith(b"}\n")


def test_a_second_try_at_once(path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that passes is nobody's business: half a line, then nothing, then all is well."""
    real = os.write
    fates = ["half", "fail"]

    def write(descriptor: int, data: bytes) -> int:
        fate = fates.pop(0) if fates else ""
        if fate == "fail":
            raise OSError(errno.EIO, "passing")
        return real(descriptor, data[: len(data) // 2] if fate == "half" else data)

    monkeypatch.setattr(os, "write", write)
    recorder = opened()
    recorder.append([fact(number) for number in range(5)])
    recorder.barrier()
    assert records(path) == [(number, number) for number in range(5)]


def test_who_takes_back_what_was_written_gets_no_second_try(path: Path, opened: Opened) -> None:
    """The first error is the end: nothing follows it, whatever is appended, and each barrier says so."""
    path.write_bytes(b"")
    recorder = opened(create=False, again=False)
    with files_end_at(250):
        recorder.append([fact(number, 50) for number in range(3)])
        with pytest.raises(OSError, match="File too large"):
            recorder.barrier()
    left = path.read_bytes()
    recorder.append([fact(3)])
    with pytest.raises(OSError, match="File too large"):
        recorder.barrier()
    assert path.read_bytes() == left


def test_a_failed_fsync_is_never_made_good(path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system forgets what it could not write: a second fsync would say that all is well."""
    recorder = opened()
    recorder.append([fact(0)])

    def fail(_: int) -> NoReturn:
        raise OSError(errno.EIO, "lost")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="lost"):
            recorder.barrier()
    for _ in range(2):
        with pytest.raises(OSError, match="lost"):
            recorder.barrier()


@pytest.mark.parametrize("count", [1, 300])
def test_an_error_of_ours_ends_the_wait(
    path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Whatever it is, and wherever it is met, nobody waits forever, and the next barrier says the same."""

    def fail(*_: object) -> NoReturn:
        raise MemoryError

    recorder = opened()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        recorder.append([fact(number) for number in range(count)])
        with pytest.raises(MemoryError):
            recorder.barrier()
    with pytest.raises(MemoryError):
        recorder.barrier()


def test_close_can_be_tried_again(path: Path) -> None:
    """After an error the recorder stays open, with what it has."""
    path.write_bytes(b"")
    recorder = Recorder(str(path), ordinal=0, create=False)
    with files_end_at(0):
        recorder.append([fact(0)])
        with pytest.raises(OSError, match="File too large"):
            recorder.close()
    recorder.close()
    assert records(path) == [(0, 0)]


def test_a_link_is_not_followed(path: Path, opened: Opened, tmp_path: Path) -> None:
    """Nothing is written through it."""
    (tmp_path / "other").write_bytes(b"")
    path.symlink_to("other")
    recorder = opened(create=False)
    recorder.append([fact(0)])
    with pytest.raises((OSError, UnwritableError)):
        recorder.barrier()
    assert (tmp_path / "other").read_bytes() == b""


# Where a log goes on


@pytest.mark.parametrize("end", [b"", b"\n", b'\n{"cut', b"\nnot json\n\n"])
def test_ordinals_go_on_from_the_last_valid_record(path: Path, opened: Opened, end: bytes) -> None:
    """Whatever stands behind it, which is ended first if it is no whole line."""
    path.write_bytes(fact(0).line("2026-01-01T00:00:00.000Z", 41)[:-1] + end)
    with path.open("rb") as file:
        ordinal = next_ordinal(Log(file.fileno(), path.stat().st_size), "it")
    recorder = opened(ordinal=ordinal, create=False)
    recorder.append([fact(1), fact(2)])
    recorder.barrier()
    assert records(path) == [(41, 0), (42, 1), (43, 2)]
    assert path.read_bytes().startswith(fact(0).line("2026-01-01T00:00:00.000Z", 41)[:-1] + end)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "does not start with session metadata"),
        (b"{}\n", "does not start with session metadata"),
        (fact(0).line("2026-01-01T00:00:00.000Z", None), "is missing an ordinal"),
        (fact(0).line("2026-01-01T00:00:00.000Z", (1 << 64) - 1), "overflow"),
    ],
)
def test_where_nothing_can_be_appended(path: Path, data: bytes, told: str) -> None:
    """It is refused where Codex could not go on either."""
    path.write_bytes(data)
    with path.open("rb") as file, pytest.raises(StoreError, match=told):
        next_ordinal(Log(file.fileno(), len(data)), "it")
