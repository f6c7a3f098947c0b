"""An operation that is stopped, or that the system refuses something, leaves the store as before or as after it.

Every operation is stopped, refused or cut short at every libc call that changes a file (`shim.c`), and stopped at
random moments. After that the store must mean what it meant before the operation or what it means after one that
went through; nothing half-made may be selected, and the same operation must succeed when it is tried again.

What may be left lying about after a stop: a `.partial` file, locks that nobody holds, the database's own log, and a
rollout that the database does not select yet. An operation that only failed leaves none of them, unless the disk
refuses to remove them.

Two variables make it more than the part that runs by default:

* ROLLOUTFS_CRASH=all tries each error and each kind of failure at every call, not one of them in turn;
* ROLLOUTFS_CRASH_RUNS=5000 is the number of runs that are killed at random, and a third of it that of runs with two
  processes. Each batch of them draws its moments from a seed of its own.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest

from tests.conftest import Corpus
from tests.operations.bench import CASES, Bench, Case, Facts, Shape
from tests.operations.nursery import Mode, Nursery, Report

EVERYTHING = os.environ.get("ROLLOUTFS_CRASH") == "all"
_BATCH = 150  # runs
_BATCHES = -(-int(os.environ.get("ROLLOUTFS_CRASH_RUNS", "150")) // _BATCH)
SOME = [case for case in CASES if EVERYTHING or not case.at_length]
_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
_SHORT = (Mode.HALF, Mode.BYTE, Mode.HALF_FAIL, Mode.HALF_FULL, Mode.HALF_KILL, Mode.HALF_LOST)

MakeBench = Callable[[Case], Bench]


@pytest.fixture(scope="session")
def make_bench(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> MakeBench:
    """A function that prepares a case, once, and does the operation to see what it leads to."""

    @cache
    def make(case: Case) -> Bench:
        bench = Bench(case, corpus(case.store, sqlite=case.sqlite).home, tmp_path_factory.mktemp("bench"))
        bench.fresh()
        (bench.expected,) = nursery.run(bench.job())
        assert bench.expected.status == "done", bench.expected
        bench.after = bench.shape()
        assert not bench.new_problems()
        assert bench.leftovers(bench.look()) <= {"unselected rollout"}
        return bench

    return make


def appends(case: Case) -> bool:
    """True for an operation that adds to the log of its thread; the others make a new one."""
    return case.operation == "compact" or (case.operation == "revert" and "legacy" in case.store)


def left_by(case: Case) -> set[str]:
    """The kinds of files that a stop may leave, each somewhere among all the calls of the operation."""
    kinds = set() if case.operation == "fork" else {"lock"}
    kinds |= {"database log"} if case.sqlite else set()
    if appends(case):
        return kinds | ({"partial", "twin"} if case.store.startswith("compressed") else set())
    return kinds | {"partial"} | ({"unselected rollout"} if case.sqlite and case.operation != "fork" else set())


def check_stopped(bench: Bench, nursery: Nursery, where: object, now: Facts) -> str:
    """Nothing is half-done after a stop, and a retry succeeds. Whether it is as before or as after."""
    if not bench.is_before(now):
        assert bench.shape() == bench.after, where
        assert not bench.new_problems(), where
        return "after"
    assert bench.new_problems() <= _ENDED, where
    retry(bench, nursery, where, now)
    return "before"


#: A torn line that was there before the operation has been ended by a newline.
_ENDED = {"bad_json"}


def retry(bench: Bench, nursery: Nursery, where: object, now: Facts) -> None:
    """Now that nothing is in its way, the operation succeeds. In a case with many calls it is tried once for each set
    of files that was left.
    """
    situation = frozenset(bench.leftovers(now))
    if bench.case.sqlite and situation in bench.retried and not EVERYTHING:
        return
    bench.retried.add(situation)
    (again,) = nursery.run(bench.job())
    assert again.status == "done", (where, again)
    assert bench.shape() == bench.after, where


def check_refused(bench: Bench, nursery: Nursery, report: Report, mode: Mode, where: object) -> str:
    """What was reported is what happened: done, or nothing at all, or, where the disk refuses to take back what was
    written, the error that says so.
    """
    assert report.status in ("done", "failed"), (where, report)
    now = bench.look()
    lasting = {"database log", "lock"} | ({"partial"} if mode in (Mode.FAIL, Mode.BROKEN) else set())
    if report.status == "done":
        assert bench.shape() == bench.after, where
        assert not bench.new_problems(), where
        lasting |= {"unselected rollout"}  # of the past
    elif report.error == "UnsettledError":
        assert mode in (Mode.BROKEN, Mode.FAIL), (where, report)
        assert bench.is_before(now) or bench.shape() == bench.after, (where, report)
        return "unsettled"
    else:
        assert bench.is_untouched(now), (where, report)
    assert bench.leftovers(now) <= lasting, where
    if report.status == "failed":
        retry(bench, nursery, where, now)
    return report.status


@pytest.mark.parametrize("case", SOME, ids=str)
def test_killed_at_every_call(case: Case, make_bench: MakeBench, nursery: Nursery) -> None:
    """The store is as before or as after, a retry succeeds, and only files of known kinds are left."""
    bench = make_bench(case)
    found, left = Counter[str](), set[str]()
    for number in range(1, bench.expected.calls + 1):
        bench.fresh()
        (report,) = nursery.run(bench.job(Mode.KILL, number))
        assert report.status == "killed", (number, report)
        now = bench.look()
        left |= bench.leftovers(now)
        found[check_stopped(bench, nursery, number, now)] += 1
    print(case, dict(found), left)
    assert min(found["before"], found["after"]) > 0
    assert left == left_by(case)


@pytest.mark.parametrize("case", SOME, ids=str)
def test_refused_at_every_call(case: Case, make_bench: MakeBench, nursery: Nursery) -> None:
    """On a disk that is full, over quota or broken, for one call or from then on, the operation goes through or fails
    with nothing changed; a retry succeeds when the disk is well again.
    """
    bench = make_bench(case)
    found = Counter[str]()
    ways = [(Mode.BROKEN, errno.EIO), (Mode.FULL, errno.ENOSPC), *((Mode.FAIL, error) for error in _ERRORS)]
    for number in range(1, bench.expected.calls + 1):
        for mode, error in ways if EVERYTHING else [ways[(number + CASES.index(case)) % len(ways)]]:
            bench.fresh()
            (report,) = nursery.run(bench.job(mode, number, error))
            where = (number, mode.name, errno.errorcode[error])
            found[f"{mode.name} {check_refused(bench, nursery, report, mode, where)}"] += 1
    print(case, dict(found))


@pytest.mark.parametrize("case", SOME, ids=str)
def test_cut_short_at_every_write(case: Case, make_bench: MakeBench, nursery: Nursery) -> None:
    """A write that does only a part of its work is continued, or taken back when that fails, also where the process
    that appends is lost.
    """
    bench = make_bench(case)
    found = Counter[str]()
    for number in range(1, bench.expected.writes + 1):
        if case.sqlite and number % 3 and not EVERYTHING:
            continue  # most are SQLite's
        for mode in _SHORT if EVERYTHING or not case.sqlite else [_SHORT[(number + CASES.index(case)) % len(_SHORT)]]:
            bench.fresh()
            (report,) = nursery.run(bench.job(mode, number, errno.ENOSPC))
            where = (number, mode.name)
            if report.status == "killed":
                assert mode in (Mode.HALF_KILL, Mode.HALF_LOST), where
                found[f"{mode.name} {check_stopped(bench, nursery, where, bench.look())}"] += 1
            else:
                found[f"{mode.name} {check_refused(bench, nursery, report, mode, where)}"] += 1
                assert report.status == "done" or mode not in (Mode.HALF, Mode.BYTE), where
    print(case, dict(found))


@pytest.mark.parametrize("batch", range(_BATCHES))
def test_killed_at_random(batch: int, make_bench: MakeBench, nursery: Nursery) -> None:
    """At whatever moment the process dies, the store is as before or as after, and a retry succeeds."""
    chance = random.Random(f"alone {batch}")
    benches = [make_bench(case) for case in CASES]
    found = Counter[str]()
    for number in range(_BATCH):
        bench = chance.choice(benches)
        bench.fresh()
        delay = chance.uniform(0, 1.2 * bench.expected.seconds)
        (report,) = nursery.run(bench.job(), kill_after=delay)
        assert report.status in ("killed", "done"), (number, report)
        where = (number, str(bench.case), delay)
        found[f"{report.status}, {check_stopped(bench, nursery, where, bench.look())}"] += 1
    print(dict(found))
    assert not found["done, before"]


PAIRS = [
    (Case("forks.paginated", "revert", "-1", sqlite=True), ("compact", "what was done")),
    (Case("forks.paginated", "revert", "2"), ("revert", "-1")),
    (Case("forks.paginated", "fork", "latest"), ("revert", "-1")),
    (Case("revert_once.paginated", "undo", sqlite=True), ("fork", "latest")),
    (Case("forks.legacy", "revert", "-1"), ("compact", "what was done")),
    (Case("compressed.legacy", "compact", "what was done"), ("fork", "through 1")),
]


@pytest.mark.parametrize("batch", range(_BATCHES))
def test_killed_at_random_beside_another(batch: int, make_bench: MakeBench, nursery: Nursery) -> None:
    """Two processes work on the same thread, and one or both die: each operation has happened as a whole or not at
    all, and the next one finds the thread free.
    """
    chance = random.Random(f"together {batch}")
    benches = [(make_bench(case), other) for case, other in PAIRS]
    allowed = [possible(bench, nursery, other) for bench, other in benches]
    found = Counter[str]()
    for number in range(_BATCH // 3):
        at = number % len(PAIRS)
        bench, other = benches[at]
        bench.fresh()
        delay = chance.uniform(0, 1.8 * bench.expected.seconds)
        victims = chance.choice([(0,), (1,), (0, 1)])
        reports = nursery.run(bench.job(), bench.other(*other), kill_after=delay, victims=victims)
        where = (number, str(bench.case), other, delay, reports)
        assert all(report.status != "crashed" for report in reports), where
        shapes, refusals = allowed[at]
        assert {report.error for report in reports} <= refusals | {"", "BusyError"}, where
        assert bench.shape() in shapes, where
        assert bench.new_problems() <= _ENDED, where
        found[", ".join(report.status for report in reports)] += 1
        (again,) = nursery.run(bench.other("compact", "and so on"))
        assert again.status == "done", (where, again)
    print(dict(found))


def possible(bench: Bench, nursery: Nursery, other: tuple[str, str]) -> tuple[list[Shape], set[str]]:
    """What a store may mean when any of two operations have happened, in either order, and the errors with which the
    second one may be refused after the first: a legacy thread can't go back behind a compaction.
    """
    bench.fresh()
    shapes, errors = [bench.shape()], set[str]()
    for jobs in permutations([bench.job(), bench.other(*other)]):
        bench.fresh()
        for job in jobs:
            (report,) = nursery.run(job)
            errors.add(report.error)
            shapes.append(bench.shape())
    return shapes, errors


_SCRIPT = """\
import ctypes, os, sys
from tests.operations.driver import run
shim = ctypes.CDLL(None)
shim.shim_arm(1, 0, 0, 1)
os.path.exists("/the operation begins")
run(*sys.argv[2:])
os.path.exists("/the operation ends")
shim.shim_disarm()
shim.shim_log.restype = ctypes.c_char_p
open(sys.argv[1], "wb").write(shim.shim_log())
"""
_SPACE = ("write", "pwrite", "link", "symlink", "rename", "mkdir", "mknod", "fallocate", "copy_file_range", "sendfile")
_KINDS = {*_SPACE, "fsync", "fdatasync", "unlink", "rmdir", "truncate", "ftruncate", "flock", "splice", "creat", "open"}


@pytest.mark.parametrize("case", [CASES[0], CASES[-2]], ids=str)
def test_no_call_is_missed(case: Case, make_bench: MakeBench, nursery: Nursery, tmp_path: Path) -> None:
    """strace sees the same calls that change something, in the same numbers, as the harness counts."""
    bench = make_bench(case)
    home = bench.fresh()
    counted, traced = tmp_path / "counted", tmp_path / "traced"
    command = [sys.executable, "-c", _SCRIPT, str(counted), home, bench.thread_id, case.operation, case.argument]
    tracer = ["strace", "-f", "-qq", "-e", "trace=%file,%desc", "-e", "signal=none", "-o", str(traced)]
    preload = ["env", f"LD_PRELOAD={nursery.shim}"]
    subprocess.run([*tracer, *preload, *command], check=True, timeout=120)
    inside = traced.read_text().partition("/the operation begins")[2].partition("/the operation ends")[0]
    seen = Counter(found for line in inside.split("\n")[1:-1] if (found := _kind(line)))
    assert seen == Counter(_plain(name) for name in counted.read_text().split())


def _kind(line: str) -> str:
    """What a line of strace's is about; empty when it changes nothing."""
    name = _plain(line.split(None, 1)[1].partition("(")[0])
    if "resumed>" in line or (name == "open" and not ("O_CREAT" in line or "O_TRUNC" in line)):
        return ""
    return name if name in _KINDS else ""


def _plain(name: str) -> str:
    """The name of a call without what its variants add."""
    for ending in ("64v2", "v2", "at64", "64", "at2", "at", "v", "2"):
        if name not in _KINDS:
            name = name.removesuffix(ending) if name.removesuffix(ending) in _KINDS else name
    return name
