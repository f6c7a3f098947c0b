"""The kernel keeps the names in folders of quiet threads: they are right all the same, as is every listing."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import termios
from pathlib import Path

import pytest

from tests.mount.conftest import Lab, until
from tests.mount.control_lab import PAGINATED, shell, stock

OLD = (1_700_000_000, 1_700_000_000)

_WATCHED = """
import pathlib, signal, sys
from rolloutfs import following, freshness, gate
from rolloutfs.watch import Changes
use = following.Following.use
def used(self, watch):
    use(self, watch)
    pathlib.Path(sys.argv[-1]).with_name("watched").touch()
    signal.signal(signal.SIGUSR2, lambda *_: (watch.close(), self.note(Changes())))
following.Following.use = used
"""


@pytest.fixture
def threads(lab: Lab) -> list[str]:
    """Three quiet threads in a mount that is watched."""
    found = [lab.sample.add(number, "hello") for number in range(1, 4)]
    for thread in found:
        os.utime(lab.sample.path(thread), OLD)
    lab.mount(patch=_WATCHED)
    until(lambda: (lab.folder / "watched").exists(), "the store is watched")
    return found


def names(folder: Path) -> set[str]:
    """What is in a folder, asked for three times: the second one may be what the kernel has kept of the first."""
    once, again, more = (set(os.listdir(folder)) for _ in range(3))
    assert once == again == more
    return once


def test_links_between_threads(lab: Lab, threads: list[str]) -> None:
    """A fork that somebody else makes is among the forks of a thread of which nobody knew any, until it is gone."""
    forks, agents = (lab.thread(threads[0]) / "lineage" / name for name in ("forks", "agents"))
    assert names(forks) == names(agents) == set()
    assert names(forks.parent) == {"lineage.json", "forks", "agents"}
    made = lab.sample.add(9, "more", forked_from_id=threads[0])
    until(lambda: os.listdir(forks) == [made], "the fork is listed")
    assert names(lab.thread(made) / "lineage") >= {"forked_from", "family.txt"}
    until(lambda: "family.txt" in os.listdir(forks.parent), "there is a family")
    os.rename(lab.sample.path(made), lab.folder / "away.jsonl")
    until(lambda: not os.listdir(forks), "it is gone")
    os.rename(lab.folder / "away.jsonl", lab.sample.path(made))
    until(lambda: os.listdir(forks) == [made], "it is back")


def test_another_generation(lab: Lab, threads: list[str]) -> None:
    """A second rollout of a thread is listed, as are the files about what was dropped."""
    folder = lab.thread(threads[1])
    before = names(folder)
    assert len(names(folder / "rollouts")) == 2
    path = lab.sample.path(threads[1])
    other = path.with_name(path.name.replace("T21", "T22"))
    other.write_bytes(path.read_bytes())
    until(lambda: len(os.listdir(folder / "rollouts")) == 3, "it is listed")
    until(lambda: set(os.listdir(folder)) - before == {"dropped.md", "dropped_turns.jsonl"}, "so are the others")
    assert (folder / "dropped.md").exists()
    other.rename(lab.folder / "away.jsonl")
    until(lambda: names(folder) == before, "they are not any more")
    until(lambda: not (folder / "dropped.md").exists(), "it can't be looked up, either")
    assert not (folder / "dropped_turns.jsonl").exists()


def test_what_is_asked_for_here_is_there_at_once(lab: Lab) -> None:
    """Who makes a fork finds it at the next look, also in folders that were listed before."""
    (thread,) = stock(lab, PAGINATED)
    lab.mount(patch=_WATCHED)
    until(lambda: (lab.folder / "watched").exists(), "the store is watched")
    forks = lab.thread(thread) / "lineage" / "forks"
    before = names(lab.mountpoint / "threads")
    assert names(forks) == set()
    for number in range(1, 4):
        assert shell(lab, thread, "echo latest > fork")[0] == 0
        assert len(os.listdir(forks)) == number
        assert set(os.listdir(lab.mountpoint / "threads")) - before == names(forks)


def test_a_watch_that_ends(lab: Lab, threads: list[str]) -> None:
    """When nobody tells of changes any more nothing that was kept before stays."""
    forks = lab.thread(threads[0]) / "lineage" / "forks"
    assert names(forks) == set()
    lab.servers[-1].send_signal(signal.SIGUSR2)
    made = lab.sample.add(9, "more", forked_from_id=threads[0])
    until(lambda: os.listdir(forks) == [made], "the fork is listed")
    os.rename(lab.sample.path(made), lab.folder / "away.jsonl")
    until(lambda: not os.listdir(forks), "it is gone")


def test_a_folder_that_is_read_in_pieces(lab: Lab) -> None:
    """Every name comes once, whatever comes and goes between the pieces; the next reading has what there is then."""
    threads = [lab.sample.add(number, "hello") for number in range(1, 1501)]
    lab.edits = True
    lab.mount(patch=_WATCHED)
    folder = lab.mountpoint / "threads"
    until(lambda: (lab.folder / "watched").exists(), "the store is watched")
    with os.scandir(folder) as first, os.scandir(folder) as second:
        found = [next(first).name, next(second).name]
        os.rename(lab.sample.path(threads[700]), lab.folder / "away.jsonl")
        made = lab.sample.add(2000, "new")
        until(lambda: names(folder) == {*threads, made} - {threads[700]}, "it is listed anew")
        rest = [[entry.name for entry in part] for part in (first, second)]
    for part in rest:
        assert len(part) == len(set(part))
        assert set(threads) - {threads[700], *found} <= set(part) <= set(threads)


@pytest.mark.parametrize("room", [1, 4 << 20])
def test_long_requests(lab: Lab, room: int) -> None:
    """A write of a megabyte reaches its handler, whatever the socket takes at once."""
    (thread,) = stock(lab, PAGINATED)
    lab.mount(patch=f"from rolloutfs import gate\ngate._ROOM = {room}")
    for length in (100, 100_000, 300_000):
        file = os.open(lab.thread(thread) / "fork", os.O_RDWR)
        try:
            with pytest.raises(OSError, match=r".") as caught:
                os.write(file, b"nonsense " * (length // 9))
            assert caught.value.errno in (errno.EINVAL, errno.E2BIG)
            assert b'"error"' in os.pread(file, 4096, 0) or b"message" in os.pread(file, 4096, 0)
        finally:
            os.close(file)
    assert len(names(lab.mountpoint / "threads")) == 1


def test_what_nobody_handles(lab: Lab, threads: list[str]) -> None:
    """What libfuse answers by itself is answered, and what comes after it as well."""
    file = os.open(lab.thread(threads[0]) / "effective_history.jsonl", os.O_RDONLY)
    try:
        for _ in range(5):
            with pytest.raises(OSError, match=r".") as caught:
                fcntl.ioctl(file, termios.TIOCGWINSZ, bytes(8))
            assert caught.value.errno == errno.ENOTTY
            assert os.lseek(file, 0, os.SEEK_DATA) == 0
            assert names(lab.thread(threads[0])) > {"effective_history.jsonl", "rollouts"}
    finally:
        os.close(file)
    with pytest.raises(FileNotFoundError):
        os.listdir(lab.mountpoint / "threads" / "nothing")
    assert os.listdir(lab.mountpoint / "threads" / threads[0] / "..") == os.listdir(lab.mountpoint / "threads")
