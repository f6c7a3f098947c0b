"""A store is watched: the kernel may keep what it was told for an hour, and sees every change all the same.

The threads here were last written long ago, so nothing but an invalidation makes the kernel ask again in time.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.mount.conftest import DEADLINE, Lab, until
from tests.mount.control_lab import stock
from tests.tree.sample import message

OLD = (1_700_000_000, 1_700_000_000)
VIEW = "effective_history.jsonl"


@pytest.fixture
def threads(lab: Lab) -> list[str]:
    """Three quiet threads, mounted; all that there is to know of them is in the kernel's caches."""
    found = [lab.sample.add(number, "hello") for number in range(1, 4)]
    for thread in found:
        os.utime(lab.sample.path(thread), OLD)
    lab.mount(patch=_LONG)
    until(lambda: (lab.folder / "watched").exists(), "the store is watched")
    subprocess.run(["ls", "-lR", str(lab.mountpoint)], stdout=subprocess.DEVNULL, check=True, timeout=DEADLINE)
    return found


_LONG = """
import pathlib, sys
from rolloutfs import following, freshness
freshness.LIVE = freshness.QUIET
use = following.Following.use
def used(self, watch):
    use(self, watch)
    pathlib.Path(sys.argv[-1]).with_name("watched").touch()
following.Following.use = used
"""


def size(path: Path) -> int:
    """Bytes, as the kernel has it."""
    return path.stat().st_size


def test_growth(lab: Lab, threads: list[str]) -> None:
    """Every file that a new line changes has its new size."""
    files = [lab.thread(threads[0]) / name for name in (VIEW, "model_input.jsonl", "full_history.jsonl")]
    raw = [lab.thread(threads[0]) / "rollouts/current", *(lab.mountpoint / "store").rglob(f"*{threads[0]}.jsonl")]
    assert len(raw) == 2
    before = [size(path) for path in files + raw]
    lab.sample.append(threads[0], "more")
    until(lambda: all(size(path) > old for path, old in zip(files + raw, before, strict=True)), "all have grown")
    assert (lab.thread(threads[0]) / VIEW).read_bytes().endswith(b'"more"}]}\n')


def test_a_listing_is_of_its_own_moment(lab: Lab, threads: list[str]) -> None:
    """What comes with the names of a folder that was opened long ago is no older than the reading of it."""
    folder = os.open(lab.thread(threads[0]), os.O_RDONLY | os.O_DIRECTORY)
    before = os.stat(VIEW, dir_fd=folder).st_size
    lab.sample.append(threads[0], "of a thread that goes on")
    until(lambda: os.stat(VIEW, dir_fd=folder).st_size > before, "it does")
    try:
        for number in range(20):
            before = os.stat(VIEW, dir_fd=folder).st_size
            lab.sample.append(threads[0], f"more {number}")
            assert VIEW in os.listdir(folder)
            assert os.stat(VIEW, dir_fd=folder).st_size > before
    finally:
        os.close(folder)


def test_threads_come_and_go(lab: Lab, threads: list[str]) -> None:
    """A new thread in a folder of a new day is listed and found; one that was moved away is not."""
    folder = lab.mountpoint / "threads"
    new = lab.sample.add(9, "new", folder="sessions/2027/03/04")
    until(lambda: new in os.listdir(folder), "the new thread is listed")
    assert "new" in (lab.thread(new) / VIEW).read_text()
    assert size(folder / new / VIEW)
    os.rename(lab.sample.path(threads[1]), lab.folder / "away.jsonl")
    until(lambda: threads[1] not in os.listdir(folder), "the moved thread is not listed")
    until(lambda: not (folder / threads[1]).exists(), "its folder is gone")
    until(lambda: not (folder / threads[1] / VIEW).exists(), "its files are gone")
    os.rename(lab.folder / "away.jsonl", lab.sample.path(threads[1]))
    until((folder / threads[1] / VIEW).exists, "it is back")


def test_a_folder_comes_and_goes(lab: Lab, threads: list[str]) -> None:
    """Threads whose whole folder is moved away, and back."""
    folder = lab.mountpoint / "threads"
    day = lab.sample.path(threads[0]).parent
    os.rename(day, lab.folder / "day")
    until(lambda: not os.listdir(folder), "nothing is listed")
    until(lambda: not any((folder / thread).exists() for thread in threads), "nothing is there")
    os.rename(lab.folder / "day", day)
    until(lambda: sorted(os.listdir(folder)) == sorted(threads), "everything is listed")
    lab.sample.append(threads[2], "more")
    until(lambda: "more" in (lab.thread(threads[2]) / VIEW).read_text(), "and watched")


def test_replaced_content(lab: Lab, threads: list[str]) -> None:
    """A log that was written anew under its name, or cut, has its new content."""
    path, shown = lab.sample.path(threads[0]), lab.thread(threads[0]) / VIEW
    whole = path.read_bytes()
    path.with_suffix(".new").write_bytes(whole + message("other", second=5))
    os.rename(path.with_suffix(".new"), path)
    until(lambda: size(shown) == len(shown.read_bytes()) and "other" in shown.read_text(), "the new log is shown")
    os.truncate(path, len(whole))
    until(lambda: size(shown) == len(shown.read_bytes()) and "other" not in shown.read_text(), "the cut log is shown")


@pytest.mark.parametrize("where", ["threads/ID", "threads/ID/lineage", "threads/ID/rollouts", "store"])
def test_replaced_content_that_is_open(lab: Lab, threads: list[str], where: str) -> None:
    """`stat` of a file is new although somebody keeps the old content open, in every folder that shows it."""
    names = (VIEW, "lineage.json", lab.sample.path(threads[0]).name)
    place = lab.mountpoint / where.replace("ID", threads[0])
    (shown,) = [path for name in names for path in (place.rglob(name) if where == "store" else place.glob(name))]
    with shown.open("rb") as held:
        old = held.read()
        lab.sample.replace(threads[0], "longer " * 2000)
        until(lambda: size(shown) > len(old), "the new size is shown")
        assert size(shown) == len(shown.read_bytes())
        assert os.pread(held.fileno(), 1 << 20, 0) == old
        lab.sample.replace(threads[0], "much longer " * 20_000)
        with shown.open("rb") as again:
            middle = size(shown)
            lab.sample.replace(threads[0], "hello")
            until(lambda: size(shown) < middle, "the third size is shown")
            assert size(shown) == len(shown.read_bytes())
            assert os.fstat(again.fileno()).st_size == middle


def test_an_ancestor_is_cut_and_restored(lab: Lab, threads: list[str]) -> None:
    """A fork whose parent's log was cut has no history that could be told, and has it again when the log is back."""
    stock(lab, "forks.paginated")
    bases: dict[str, str] = {}
    for path in lab.sample.root.rglob("rollout-*.jsonl"):
        meta = json.loads(path.read_bytes().partition(b"\n")[0])["payload"]
        if meta.get("history_base"):
            bases[meta["id"]] = meta["history_base"]["thread_id"]
        os.utime(path, OLD)
    child, parent = next(iter(bases.items()))
    shown = lab.thread(child) / VIEW
    until(shown.exists, "the fork is there")
    whole = shown.read_bytes()
    assert size(shown) == len(whole) > 0
    (log,) = lab.sample.root.rglob(f"rollout-*{parent}.jsonl")
    before = log.read_bytes()
    os.truncate(log, 100)
    until(lambda: size(shown) == 0, "its history can't be told")
    with pytest.raises(OSError, match="Input/output error"):
        shown.read_bytes()
    log.write_bytes(before)
    until(lambda: size(shown) == len(whole), "it is back")
    assert shown.read_bytes() == whole


def test_every_line_at_full_speed(lab: Lab, threads: list[str]) -> None:
    """A follower sees 10,000 lines, each once, whole and in order, while two readers read the file from its start.

    A full invalidation from the serving thread would end this in a deadlock (FUSE 6.2).
    """
    lines = [message(f"line {number}", second=1) for number in range(10_000)]
    followed = lab.thread(threads[0]) / VIEW
    tail = subprocess.Popen(["tail", "-n", "+1", "-s", "0.05", "-f", str(followed)], stdout=subprocess.PIPE)
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            (lab.thread(threads[0]) / "rollouts/current").read_bytes()

    readers = [threading.Thread(target=read) for _ in range(2)]
    try:
        for reader in readers:
            reader.start()
        with lab.sample.path(threads[0]).open("ab", buffering=0) as file:
            for one in lines:
                file.write(one)
        assert tail.stdout is not None
        seen = [tail.stdout.readline() for _ in range(1 + len(lines))]
    finally:
        stop.set()
        tail.kill()
        tail.communicate()
        for reader in readers:
            reader.join(DEADLINE)
    assert [f'"line {number}"'.encode() in one for number, one in enumerate(seen[1:])] == [True] * len(lines)
    assert seen[1:] == followed.read_bytes().splitlines(keepends=True)[1 : 1 + len(lines)]


@pytest.mark.parametrize("options", [(), ("--read-only",)])
def test_a_listing_while_somebody_holds_the_old_content(options: tuple[str, ...], lab: Lab) -> None:
    """`tail -f` in one window, a revert and `ls -l` in another one: the size is that of the new content."""
    lab.edits = True
    thread = lab.sample.add(1, "hello")
    lab.mount("--no-index", *options)
    shown = lab.thread(thread) / "transcript.md"
    for number in range(12):
        with shown.open("rb") as held:
            before = held.read()
            lab.sample.replace(thread, "other words " * (number + 1))
            for entry in os.scandir(shown.parent):
                entry.stat(follow_symlinks=False)
            time.sleep(0.2)
            size = shown.stat().st_size
            assert size == len(shown.read_bytes()) != len(before)
