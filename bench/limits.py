"""What can't be undercut: the steps that a scan of a log is made of, by themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import orjson

from bench import stores, timing
from bench.cases import Settings, Table, ms, ratio, store_of
from bench.rollout import rollout_name
from bench.thread import MIB, THREAD

_KIND = re.compile(rb'"type":"(\w+)"')
_HEAD = 400  # bytes of a line in which its kinds stand
_TAIL = 33 << 20  # bytes behind the last checkpoint


def scan(folder: Path, settings: Settings) -> Table:
    """The log of a gigabyte: reading it, finding its lines and their kinds, and decoding them."""
    with store_of("checkpoints", folder, settings) as store:
        log = store / rollout_name(THREAD)
        size = log.stat().st_size
        tail = min(_TAIL // settings.scale, size)
        steps: dict[str, Callable[[], object]] = {
            "reading it": lambda: _read(log),
            "… and the offset of each line": lambda: _offsets(log),
            "… and the kind of each line": lambda: _kinds(log),
            "… and decoding each line with orjson": lambda: _decoded(log, 0),
        }
        samples = timing.in_turns(
            settings.runs,
            {name: lambda step=step: timing.clocked(step) for name, step in steps.items()}
            | {"tail": lambda: timing.clocked(lambda: _decoded(log, size - tail))},
        )
    first = samples["reading it"]
    rows = [
        (name, ms(samples[name]), f"{size / 1e6 / samples[name].median:,.0f} MB/s", ratio(samples[name], first))
        for name in steps
    ]
    rows.append((f"only its last {tail / 1e6:.1f} MB, decoding each line", ms(samples["tail"]), "", ""))
    text = (
        f"{stores.RECIPES['checkpoints'].says}; in one process, without anything of ours. Which lines count, and so "
        "how long a history is, can't be told without decoding each: Codex passes over one of which a field is missing."
    )
    return Table("The steps of a scan", text, ("", "median", "speed", "÷ reading"), rows)


def _read(log: Path) -> int:
    with log.open("rb", buffering=0) as file:
        return sum(len(chunk) for chunk in iter(lambda: file.read(MIB), b""))


def _offsets(log: Path) -> list[int]:
    found, start = [], 0
    with log.open("rb", buffering=0) as file:
        for chunk in iter(lambda: file.read(4 * MIB), b""):
            at = chunk.find(b"\n")
            while at >= 0:
                found.append(start + at + 1)
                at = chunk.find(b"\n", at + 1)
            start += len(chunk)
    return found


def _kinds(log: Path) -> list[tuple[int, bytes, bytes]]:
    found, start = [], 0
    with log.open("rb") as file:
        for line in file:
            outer = _KIND.search(line, 0, _HEAD)
            inner = None if outer is None else _KIND.search(line, outer.end(), _HEAD)
            found.append((start, outer[1] if outer else b"", inner[1] if inner else b""))
            start += len(line)
    return found


def _decoded(log: Path, start: int) -> int:
    count = 0
    with log.open("rb") as file:
        file.seek(start)
        if start:
            file.readline()
        for line in file:
            orjson.loads(line)
            count += 1
    return count
