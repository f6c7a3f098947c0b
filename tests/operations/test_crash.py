"""An operation that is stopped, or that the system refuses something, leaves the store as before or as after it.

strace delivers SIGKILL, or an error, at the n-th system call that changes anything, for every n. After that the
store must mean what it meant before the operation or what it means after one that went through; nothing half-made
may be selected, and the same operation must succeed when it is tried again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import CopyStore
from tests.operations.snapshots import State, problems_of, state_of

CALLS = ",".join(
    (
        *("write", "pwrite64", "writev", "fsync", "fdatasync", "link", "linkat", "rename", "renameat", "renameat2"),
        *("unlink", "unlinkat", "mkdir", "mkdirat", "ftruncate", "truncate", "flock"),
    )
)
_COUNTED = re.compile(rb"^(?:\d+ +)?(?:" + CALLS.replace(",", "|").encode() + rb")\(", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """An operation on a thread of a corpus store."""

    store: str
    operation: str
    argument: str = ""
    sqlite: bool = True

    def __str__(self) -> str:
        return f"{self.store} {self.operation} {self.argument}" + ("" if self.sqlite else " without SQLite")


CASES = [
    Case("forks.paginated", "fork", "latest"),
    Case("forks.paginated", "fork", "before 2", sqlite=False),
    Case("forks.legacy", "fork", "through 1"),
    Case("forks.paginated", "revert", "-1"),
    Case("forks.paginated", "revert", "2", sqlite=False),
    Case("forks.legacy", "revert", "-1"),
    Case("revert_once.paginated", "undo"),
    Case("forks.paginated", "compact", "what was done"),
    Case("forks.legacy", "compact", "what was done", sqlite=False),
    Case("compressed.legacy", "compact", "what was done"),
]


class Bench:
    """Fresh copies of one store and the command that works on them."""

    def __init__(self, case: Case, copy_store: CopyStore, tmp_path: Path) -> None:
        self.case = case
        self.folder = tmp_path
        self.original = copy_store(case.store, sqlite=case.sqlite).home
        self.thread_id = next(iter(state_of(self.original)))

    def fresh(self) -> Path:
        """A copy to work on."""
        home = self.folder / "home"
        for path in (home, Path(f"{home}.spool")):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.original, home, symlinks=True)
        return home

    def command(self, home: Path) -> list[str]:
        """The operation as a command."""
        driver = [sys.executable, "-m", "tests.operations.driver", str(home), self.thread_id, self.case.operation]
        return [*driver, *([self.case.argument] if self.case.argument else [])]

    def run(self, home: Path, *strace: str) -> subprocess.CompletedProcess[bytes]:
        """Run it, under strace when that has arguments."""
        tracer = ["strace", "-f", "-qq", "-e", "signal=none", *strace] if strace else []
        return subprocess.run([*tracer, *self.command(home)], capture_output=True, timeout=60, check=False)

    def calls(self) -> int:
        """How many system calls that change something the operation makes."""
        log = self.folder / "calls"
        result = self.run(self.fresh(), "-e", f"trace={CALLS}", "-o", str(log))
        assert result.returncode == 0, result.stdout + result.stderr
        return len(_COUNTED.findall(log.read_bytes()))


def differs(before: State, now: State, case: Case) -> bool:
    """True when the operation has happened."""
    return before != now if case.operation != "fork" else len(now) > len(before)


def shape(state: State, before: State) -> list[tuple[bool, int, int]]:
    """A state without the ids that differ from run to run: which threads were there, how long history and turn list
    are.
    """
    return sorted(
        (thread_id in before, state[thread_id][0].count(b"\n"), len(state[thread_id][1])) for thread_id in state
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_killed_at_every_system_call(case: Case, copy_store: CopyStore, tmp_path: Path) -> None:
    """The store is as before or as after, and a retry succeeds."""
    bench = Bench(case, copy_store, tmp_path)
    before = state_of(bench.original)
    home = bench.fresh()
    assert bench.run(home).returncode == 0
    after = shape(state_of(home), before)
    count = bench.calls()
    assert count > 3
    for number in range(1, count + 1):
        home = bench.fresh()
        bench.run(home, "-e", f"trace={CALLS}", "-e", f"inject={CALLS}:signal=SIGKILL:when={number}", "-o", os.devnull)
        now = state_of(home)
        assert now == before or shape(now, before) == after, f"killed at call {number} of {count}"
        assert set(problems_of(home)) <= set(problems_of(bench.original)) | {"torn_tail"}, number
        if now == before:
            again = bench.run(home)
            assert again.returncode == 0, (number, again.stdout, again.stderr)
            assert shape(state_of(home), before) == after, number


@pytest.mark.parametrize(
    ("case", "error"),
    [(CASES[0], "ENOSPC"), (CASES[2], "EDQUOT"), (CASES[3], "EIO"), (CASES[5], "ENOSPC"), (CASES[7], "EIO")],
    ids=str,
)
def test_refused_at_every_write(case: Case, error: str, copy_store: CopyStore, tmp_path: Path) -> None:
    """A disk that is full, over quota or broken makes the operation fail with nothing changed, or go through."""
    bench = Bench(case, copy_store, tmp_path)
    before = state_of(bench.original)
    writes = "write,pwrite64,fsync,fdatasync,link,mkdir"
    for number in range(1, 200):
        home = bench.fresh()
        log = tmp_path / "injected"
        result = bench.run(
            home, "-e", f"trace={writes}", "-e", f"inject={writes}:error={error}:when={number}", "-o", str(log)
        )
        if b"(INJECTED)" not in log.read_bytes():
            break
        now = state_of(home)
        if result.returncode == 0:
            assert json.loads(result.stdout)["status"] == "done"
            assert differs(before, now, case), number
        elif b"INJECTED" in log.read_bytes().split(b"\n")[0] and not result.stdout:
            continue  # the report itself could not be written
        else:
            assert now == before, (number, result.stdout)
    else:
        pytest.fail("more writes than expected")
