"""Runs operations in processes of their own, each stopped or refused at a chosen call, in milliseconds.

`Nursery` starts `python -m tests.operations.nursery` with `shim.c` before libc. That process has everything
imported; for each request on its standard input (a line of JSON) it forks a child per job, which arms the shim, does
the operation and reports through a pipe. Nothing has threads before a child does its work.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from threadstore.errors import StoreError

from tests.operations.driver import run

Json = dict[str, Any]

_PR_SET_CHILD_SUBREAPER = 36


class Mode(IntEnum):
    """What happens at the counted call; `shim.c` describes them."""

    OFF = 0
    COUNT = 1
    KILL = 2
    FAIL = 3
    BROKEN = 4
    FULL = 5
    HALF = 6
    BYTE = 7
    HALF_FAIL = 8
    HALF_FULL = 9
    HALF_KILL = 10
    HALF_LOST = 11


@dataclass(frozen=True, slots=True)
class Job:
    """An operation, and what happens to it at which call (or, from HALF on, at which write)."""

    home: str
    thread_id: str
    operation: str
    argument: str = ""
    mode: int = Mode.COUNT
    number: int = 0
    error: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """How it ended: `done`, `failed` with an error of the kind that operations raise, `killed`, or `crashed`."""

    status: str
    error: str = ""  # the exception's class
    message: str = ""
    calls: int = 0
    writes: int = 0
    seconds: float = 0.0


class Nursery:
    """The process that forks. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.shim = folder / "shim.so"
        source = Path(__file__).with_name("shim.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.shim, source, "-ldl"], check=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.operations.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"LD_PRELOAD": str(self.shim)},
        )

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def run(self, *jobs: Job, kill_after: float | None = None, victims: tuple[int, ...] = (0,)) -> list[Report]:
        """Do the jobs at the same time; after that many seconds the victims among them are killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"jobs": [asdict(job) for job in jobs], "kill_after": kill_after, "victims": victims}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return [Report(**report) for report in json.loads(self._process.stdout.readline())]


def _work(job: Job, pipe: int) -> None:
    """In the child: do it and report."""
    shim = ctypes.CDLL(None)
    report: Json
    shim.shim_arm(int(job.mode), job.number, job.error, 0)
    try:
        run(job.home, job.thread_id, job.operation, job.argument)
        report = {"status": "done"}
    except (StoreError, OSError) as error:
        report = {"status": "failed", "error": type(error).__name__, "message": str(error)}
    except BaseException:  # noqa: BLE001 - the parent tells the test
        report = {"status": "crashed", "message": traceback.format_exc()}
    shim.shim_disarm()
    report |= {"calls": shim.shim_count(), "writes": shim.shim_writes()}
    os.write(pipe, json.dumps(report).encode())


def _start(job: Job) -> tuple[int, int]:
    """Fork a child; its process id and the pipe on which it reports."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _work(job, writing)
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def _serve(request: Json) -> list[Json]:
    begun = time.monotonic()
    children = [_start(Job(**job)) for job in request["jobs"]]
    victims = [children[at] for at in request["victims"]] if request["kill_after"] is not None else []
    if victims:
        until = begun + request["kill_after"]
        with suppress(ProcessLookupError):
            select.select([], [], [], max(until - time.monotonic(), 0))
            for child, _ in victims:
                os.kill(child, signal.SIGKILL)
    reports = []
    for child, reading in children:
        with open(reading, "rb") as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
        report = json.loads(told) if told else {"status": "killed"}
        reports.append(report | {"seconds": time.monotonic() - begun})
    with suppress(ChildProcessError):  # those whose master was killed are ours now
        while True:
            os.waitpid(-1, 0)
    return reports


def main() -> None:
    """Serve until the standard input ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    gc.freeze()  # a child doesn't copy what it only looks at
    for line in sys.stdin.buffer:
        print(json.dumps(_serve(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
