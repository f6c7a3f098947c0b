"""Mounts with and without passthrough, and the log itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bench import timing
from bench.cases import Settings, Table, ratio, store_of
from bench.rollout import rollout_name
from bench.server import mounted
from bench.thread import THREAD
from bench.timing import Sample
from bench.walks import KINDS, REQUESTS

_OPENS = 1000
_WAYS = ("--no-passthrough", "--passthrough")


def passthrough(folder: Path, settings: Settings) -> Table:
    """The raw log of a gigabyte, whole and in pieces, and requests that have nothing to do with it."""
    taken: dict[tuple[str, str], list[float]] = {}

    def take(row: str, way: str, seconds: float) -> None:
        taken.setdefault((row, way), []).append(seconds)

    def take_in_turns(log: Path, file: Path, way: str) -> None:
        for row in ("first", "again"):
            take(row, "native", timing.command(["cat", log]))
            take(row, way, timing.command(["cat", file]))
        take("open and close", "native", _opens(log))
        take("open and close", way, _opens(file))

    with store_of("checkpoints", folder, settings) as store:
        log = store / rollout_name(THREAD)
        size = log.stat().st_size
        timing.command(["cat", log])
        for _ in range(settings.runs):
            for way in _WAYS:
                with mounted(store, folder, "--no-index", way) as mount:
                    *requests, reading = KINDS.items()
                    for row, measure in requests:  # meanwhile the first worker starts, on the same core
                        take(row, way, measure(mount.thread(THREAD)))
                    take_in_turns(log, mount.thread(THREAD) / "rollouts/current", way)
                    take(reading[0], way, reading[1](mount.thread(THREAD)))
    samples = {key: Sample(tuple(seconds)) for key, seconds in taken.items()}

    def cells(row: str, unit: Callable[[float], str]) -> tuple[str, ...]:
        native = samples.get((row, "native"))
        asked = [samples[row, way] for way in _WAYS]
        if native is None:
            return (row, *(unit(sample.median) for sample in asked), "")
        return (row, *(f"{unit(one.median)} ({ratio(native, one)})" for one in asked), unit(native.median))

    rows = [
        cells("first", lambda seconds: f"{size / seconds / 1e6:.0f} MB/s"),
        cells("again", lambda seconds: f"{size / seconds / 1e6:.0f} MB/s"),
        cells("open and close", lambda seconds: f"{seconds / _OPENS * 1e6:.0f} µs"),
        *(cells(row, lambda seconds: f"{REQUESTS / seconds:,.0f} / s") for row in KINDS),
    ]
    return Table(
        f"The raw rollout of {size / 1e6:.0f} MB, read by the kernel itself",
        "`--passthrough`, as root. First and again: `cat` into a pipe. In parentheses: the part of the native speed.",
        ("", "without", "with passthrough", "native"),
        rows,
    )


def _opens(path: Path) -> float:
    def ask() -> None:
        for _ in range(_OPENS):
            os.close(os.open(path, os.O_RDONLY))

    return timing.clocked(ask)
