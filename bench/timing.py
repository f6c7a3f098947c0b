"""Timed runs: each case several times, in turns with its reference, so that a noisy moment hits both."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of several runs of one thing."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """From the fastest to the slowest run, as a part of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


def in_turns(runs: int, cases: Mapping[str, Callable[[], float]]) -> dict[str, Sample]:
    """Run each case once, then all again; a case returns its seconds."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(runs):
        for name, case in cases.items():
            taken[name].append(case())
    return {name: Sample(tuple(seconds)) for name, seconds in taken.items()}


def clocked(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def command(words: Sequence[object]) -> float:
    """Seconds of a command whose output goes through a pipe to nowhere."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as drain:
        start = time.perf_counter()
        subprocess.run([*map(str, words)], stdout=drain.stdin, check=True)
        seconds = time.perf_counter() - start
        assert drain.stdin is not None
        drain.stdin.close()
    return seconds


def quiet_command(words: Sequence[object]) -> float:
    """Seconds of a command that writes to /dev/null."""
    return clocked(lambda: subprocess.run([*map(str, words)], stdout=subprocess.DEVNULL, check=True))


def inside(place: Path, words: str) -> float:
    """The same of a command of the shell in a folder."""
    return quiet_command(["bash", "-c", f"cd {place} && {words}"])
