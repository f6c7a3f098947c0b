"""The stores that are measured, by name; each is made below a folder of its own and thrown away afterwards."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import zstandard

from bench import longline
from bench.longline import LongLine
from bench.rollout import RolloutWriter, rollout_name, uuid
from bench.text import TextPool
from bench.thread import MIB, THREAD, Author, Checkpoints, Shape, write_thread

SMALL_THREADS, MANY_THREADS, HUGE_THREADS = 2000, 20_000, 100_000
WARM = uuid(0, 2)  # a thread of a few megabytes beside a large one
CHILD = uuid(0, 3)  # a fork of the large one


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a store is made; `make(root, scale)` divides its sizes by `scale`, so that tests can have it smaller."""

    name: str
    says: str
    make: Callable[[Path, int], None]


def _long_life(root: Path, scale: int, checkpoints: Checkpoints, *, paginated: bool) -> None:
    size, every = 1024 * MIB // scale, 64 * MIB // scale
    shape = Shape(size, checkpoints, every=every, tail=every // 2, paginated=paginated)
    out = write_thread(root / rollout_name(THREAD), shape)
    write_thread(root / rollout_name(WARM), Shape(2 * MIB, thread=WARM, seed=7))
    if paginated:
        end = (THREAD, out.ordinal, out.size)
        child = Shape(4 * MIB // scale, Checkpoints.NONE, thread=CHILD, seed=8, forked=end)
        write_thread(root / rollout_name(CHILD), child)


def _middling(root: Path, scale: int) -> None:
    write_thread(root / rollout_name(THREAD), Shape(10_000_000 // scale, Checkpoints.NONE))
    write_thread(root / rollout_name(WARM), Shape(2 * MIB, thread=WARM, seed=7))


def _compressed(root: Path, scale: int) -> None:
    _long_life(root, scale, Checkpoints.FULL, paginated=True)
    plain = root / rollout_name(THREAD)
    packed = plain.with_name(plain.name + ".zst")
    with plain.open("rb") as source, packed.open("wb") as target:
        zstandard.ZstdCompressor(level=3).copy_stream(source, target)
    plain.unlink()


def _long_line(root: Path, scale: int, kind: LongLine) -> None:
    longline.write_long_line(root / rollout_name(THREAD), kind, 512 * MIB // scale)


def _images(root: Path, scale: int) -> None:
    longline.write_repeated_images(root / rollout_name(THREAD), 300, max(100 // scale, 2), 20_000)


def _large_lines(root: Path, scale: int) -> None:
    longline.write_large_lines(root / rollout_name(THREAD), 3000 // scale, 233_000)


def _small(root: Path, scale: int, count: int) -> None:
    for number in range(count // scale):
        thread = uuid(5, number)
        stamp = f"2026-{number % 11 + 1:02}-{number % 27 + 1:02}T10-00-00"
        path = root / rollout_name(thread, stamp)
        with RolloutWriter(path, paginated=number % 2 == 0) as out:
            author = Author(out, Shape(0, thread=thread, seed=0, paginated=out.paginated), _pool())
            author.begin(instructions=800)
            author.turn(rounds=1, output=900)
        written = datetime.strptime(stamp, "%Y-%m-%dT%H-%M-%S").replace(tzinfo=UTC).timestamp()
        os.utime(path, (written, written))  # nearly all threads of a large store have been quiet for long


@functools.cache
def _pool() -> TextPool:
    return TextPool(seed=9)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "checkpoints",
            "1 GiB, paginated, a complete checkpoint every 64 MiB, 32 MiB after the last one",
            functools.partial(_long_life, checkpoints=Checkpoints.FULL, paginated=True),
        ),
        Recipe(
            "legacy",
            "1 GiB, legacy, checkpoints of 2025 (a replacement history and nothing else) every 64 MiB",
            functools.partial(_long_life, checkpoints=Checkpoints.HISTORY, paginated=False),
        ),
        Recipe(
            "none",
            "1 GiB, paginated, no checkpoint at all",
            functools.partial(_long_life, checkpoints=Checkpoints.NONE, paginated=True),
        ),
        Recipe("middling", "10 MB, paginated, no checkpoint at all", _middling),
        Recipe("zst", "the first one, compressed (zstd, level 3)", _compressed),
        Recipe("image", "one line of 512 MiB: a user's image", functools.partial(_long_line, kind=LongLine.IMAGE)),
        Recipe("output", "one line of 512 MiB: a tool's output", functools.partial(_long_line, kind=LongLine.OUTPUT)),
        Recipe(
            "checkpoint",
            "one line of 512 MiB: a checkpoint with 300 images",
            functools.partial(_long_line, kind=LongLine.CHECKPOINT),
        ),
        Recipe("images", "300 images in each of 100 checkpoints, 0.6 GB", _images),
        Recipe("lines", "700 MB in 3,000 tool outputs, no checkpoint", _large_lines),
        *(
            Recipe(name, f"{count:,} threads of a few kilobytes", functools.partial(_small, count=count))
            for name, count in (("small", SMALL_THREADS), ("many", MANY_THREADS), ("huge", HUGE_THREADS))
        ),
    )
}


def make(name: str, root: Path, scale: int = 1) -> Path:
    """Make a store below `root` and return it."""
    (root / "sessions").mkdir(parents=True)
    RECIPES[name].make(root, scale)
    return root
