"""A mount with an index: the same tree, without a log being read for a listing."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs.worker import UNNOTICED, WAITED_FOR
from tests.core.logs import Log, assistant
from tests.core.reading import content
from tests.mount.conftest import DEADLINE, Lab, until
from tests.mount.control_lab import big_thread, workers

_FIVE = range(1, 6)
#: What would have to read a log fails.
_NOTHING_IS_COMPUTED = """
from threadstore import mtimes, projector
def refuse(*arguments, **more): raise AssertionError("a log was read for a listing")
projector.Projector.project = projector.Projector.project_all = refuse
mtimes._last_time = refuse
"""
_AT_ONCE = "from rolloutfs import indexing; indexing.PAUSE = 0.05"
#: What a client waits for takes three seconds; the first pass over the store is due after one.
_BUSY = """
import time, trio
from rolloutfs import indexing, pool
indexing.PAUSE = 1.0
work = pool.Pool._work
async def timed(self, job, function, args):
    began = time.monotonic()
    if function.__name__ == "project":
        await trio.sleep(3)
    await work(self, job, function, args)
    with open({told!r}, "a") as file:
        print(function.__name__, began, time.monotonic(), file=file)
pool.Pool._work = timed
"""


@pytest.fixture(autouse=True)
def _an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the other tests run without one."""
    monkeypatch.delenv("ROLLOUTFS_INDEX", raising=False)


@pytest.fixture
def threads(lab: Lab) -> list[str]:
    """A few threads."""
    return [lab.sample.add(number, f"thread {number}") for number in _FIVE]


def _listing(lab: Lab) -> str:
    """All names, kinds, sizes, modes, times and numbers."""
    command = ["find", str(lab.mountpoint), "-path", "*/store/*", "-o", "-printf", "%P %y %s %m %T@ %i\\n"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE).stdout


def _index(lab: Lab) -> Path:
    (path,) = lab.folder.glob("cache/rolloutfs/index/*.sqlite")
    return path


def _append(lab: Lab, thread: str) -> None:
    path = lab.sample.path(thread)
    last = path.read_bytes().splitlines(keepends=True)[-1]
    with path.open("ab") as log:
        log.write(last)


def _entered(lab: Lab) -> dict[str, int]:
    """Threads in the index, with the number of their records."""
    found = list(lab.folder.glob("cache/rolloutfs/index/*.sqlite"))
    if not found:
        return {}
    with closing(sqlite3.connect(f"{found[0].as_uri()}?mode=ro", uri=True)) as connection:
        return dict(connection.execute("SELECT id, records FROM threads"))


def test_a_listing_reads_no_log(lab: Lab, threads: list[str]) -> None:
    """What the index knows isn't computed, and is what would be."""
    lab.mount()
    computed = _listing(lab)
    lab.unmount()
    report = json.loads(lab.run("index", "--json", lab.sample.root).stdout)
    assert (report["threads"], report["entered"], report["index"]) == (len(threads), len(threads), str(_index(lab)))
    assert "0 had changed" in lab.run("index", lab.sample.root).stdout
    lab.mount(patch=_NOTHING_IS_COMPUTED)
    assert _listing(lab) == computed


def test_changes_while_nothing_was_mounted(lab: Lab, threads: list[str]) -> None:
    """The next mount shows what is there now."""
    lab.run("index", lab.sample.root)
    _append(lab, threads[0])
    lab.sample.path(threads[1]).unlink()
    lab.mount()
    with_index = _listing(lab)
    for shown in lab.mountpoint.glob("threads/*/*.json*"):
        assert shown.stat().st_size == len(shown.read_bytes())
    lab.unmount()
    _index(lab).unlink()
    lab.mount()
    assert _listing(lab) == with_index


def test_it_is_built_when_nobody_waits_for_a_worker(lab: Lab, threads: list[str]) -> None:
    """No step of a pass begins while a file is being made that a client waits for; and it has the lowest priority."""
    thread = big_thread(lab)
    told = lab.folder / "jobs"
    server = lab.mount(patch=_BUSY.format(told=str(told)))
    (lab.thread(thread) / "effective_history.jsonl").read_bytes()
    until(lambda: {*threads, thread} <= set(_entered(lab)), "the index has all threads")
    jobs = [line.split() for line in told.read_text().splitlines()]
    began, ended = next((float(job[1]), float(job[2])) for job in jobs if job[0] == "project")
    assert ended - began >= 3
    steps = [float(job[1]) for job in jobs if job[0] == "index_all"]
    assert steps
    assert not [step for step in steps if began < step < ended]
    own = os.getpriority(os.PRIO_PROCESS, server.pid)
    found = sorted(os.getpriority(os.PRIO_PROCESS, pid) - own for pid in workers(server.pid))
    assert found == [WAITED_FOR, UNNOTICED]


def test_a_mount_keeps_it_up_to_date(lab: Lab, threads: list[str]) -> None:
    """It is built beside the mount, follows changes, and is built anew when somebody deletes it."""
    lab.edits = True
    lab.mount(patch=_AT_ONCE)
    until(lambda: set(_entered(lab)) == set(threads), "the index has all threads")
    before = _entered(lab)[threads[0]]
    _append(lab, threads[0])
    until(lambda: _entered(lab)[threads[0]] == before + 1, "the new record is in the index")
    new = lab.sample.add(9, "a new one")
    until(lambda: new in _entered(lab), "a new thread is in the index")
    lab.sample.path(threads[1]).unlink()
    until(lambda: threads[1] not in _entered(lab), "a thread that is gone is out of the index")
    for part in _index(lab).parent.iterdir():
        part.unlink()
    size = (lab.thread(threads[2]) / "thread.json").stat().st_size
    assert size == len((lab.thread(threads[2]) / "thread.json").read_bytes())
    lab.sample.add(10, "another one")
    until(lambda: len(_entered(lab)) > 0, "there is an index again")


def test_two_mounts_share_one(lab: Lab, threads: list[str], tmp_path: Path) -> None:
    """Both show what changes; nobody complains."""
    lab.mount(patch=_AT_ONCE)
    first, lab.mountpoint = lab.mountpoint, tmp_path / "second"
    lab.mountpoint.mkdir()
    lab.mount(patch=_AT_ONCE)
    try:
        until(lambda: set(_entered(lab)) == set(threads), "the index has all threads")
        for _ in range(20):
            _append(lab, threads[0])
            shown = f"threads/{threads[0]}/full_history.jsonl"
            assert (lab.mountpoint / shown).read_bytes() == (first / shown).read_bytes()
    finally:
        lab.run("umount", "-z", lab.mountpoint)
        lab.mountpoint = first


def test_without_a_cache_folder(lab: Lab, threads: list[str]) -> None:
    """A mount works without an index; the command says why it doesn't."""
    (lab.folder / "cache").mkdir(exist_ok=True)
    (lab.folder / "cache" / "rolloutfs").write_text("in the way")
    result = lab.run("index", lab.sample.root, code=None)
    assert result.returncode != 0
    lab.mount(patch=_AT_ONCE)
    assert sorted(os.listdir(lab.mountpoint / "threads")) == sorted(threads)
    assert _listing(lab)


def test_the_index_never_lies_in_the_store(lab: Lab, threads: list[str]) -> None:
    """Where the cache is below the store there is none."""
    inside = str(lab.sample.root / "cache")
    assert "XDG_CACHE_HOME" in lab.run("index", lab.sample.root, code=9, XDG_CACHE_HOME=inside).stderr
    assert not (lab.sample.root / "cache").exists()
    lab.mount(patch=f"import os; os.environ['XDG_CACHE_HOME'] = {inside!r}\n{_AT_ONCE}")
    assert sorted(os.listdir(lab.mountpoint / "threads")) == sorted(threads)
    assert not (lab.sample.root / "cache").exists()


@pytest.mark.parametrize("error", ["TypeError('odd')", "RuntimeError('odd')", "MemoryError()"])
def test_an_error_of_the_index_ends_nothing(lab: Lab, threads: list[str], error: str) -> None:
    """Nothing depends on the index, so nothing may end with it."""
    broken = f"def refuse(*arguments): raise {error}"
    lab.mount(patch=f"{_AT_ONCE}\nfrom rolloutfs import pool, worker\n{_BREAKING}\n{broken}\nbreak_with(refuse)")
    for _ in range(10):
        assert sorted(os.listdir(lab.mountpoint / "threads")) == sorted(threads)
        time.sleep(0.05)
    assert _listing(lab)


_BREAKING = """
run = pool.Pool.run
def break_with(refuse):
    async def other(self, function, *arguments):
        if function in (worker.index_all, worker.index_some):
            refuse()
        return await run(self, function, *arguments)
    pool.Pool.run = other
"""


_NO_WORKER_IS_ASKED = """
from rolloutfs import pool
async def refuse(*arguments): raise OSError(5, "A worker was asked")
pool.Pool.run = refuse
"""


def test_the_transcript_of_a_large_thread(lab: Lab, tmp_path: Path) -> None:
    """A new mount has it from the index, and two that share one show each turn that is added, whole and at its size."""
    log = Log(True)
    for number in range(60):
        log.turn(str(number), f"question {number}", assistant("x" * 20_000))
    path = lab.sample.root / log.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(log.data)
    name = f"threads/{log.thread}/{View.TRANSCRIPT.value}"
    lab.run("index", lab.sample.root)
    lab.mount(patch=_NO_WORKER_IS_ASKED)
    assert (lab.mountpoint / name).stat().st_size == len(_transcript(lab, log.thread))
    assert (lab.mountpoint / name).read_bytes() == _transcript(lab, log.thread)
    lab.unmount()
    lab.mount(patch=_AT_ONCE)
    first, lab.mountpoint = lab.mountpoint, tmp_path / "second"
    lab.mountpoint.mkdir()
    lab.mount(patch=_AT_ONCE)
    for number in range(60, 64):
        with (first / name).open("rb") as kept:
            before = _transcript(lab, log.thread)
            added = len(log.data)
            log.turn(str(number), f"question {number}", assistant("y" * 20_000))
            with path.open("ab") as file:
                file.write(log.data[added:])
            wanted = _transcript(lab, log.thread)
            for place in (first, lab.mountpoint):
                assert (place / name).read_bytes() == wanted
                assert (place / name).stat().st_size == len(wanted)
            assert kept.read() == before
        if number % 2:
            until(lambda: _entered(lab)[log.thread] == len(log.lines), "the turn is in the index")
    lab.run("umount", lab.mountpoint)
    lab.mountpoint = first
    lab.unmount()
    lab.run("index", lab.sample.root)
    lab.mount(patch=_NO_WORKER_IS_ASKED)
    assert (lab.mountpoint / name).read_bytes() == wanted


def _transcript(lab: Lab, thread: str) -> bytes:
    """As it is made without an index."""
    store = ThreadStore(str(lab.sample.root), Spool(str(lab.folder / "plain-spool")))
    return content(store, store.project(thread, View.TRANSCRIPT))
