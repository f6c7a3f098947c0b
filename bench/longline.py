"""Threads with one enormous line (FAULTS 15), and threads of many large ones.

The line comes in the middle of ordinary turns, so that every reader has to pass it.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from bench.rollout import RolloutWriter
from bench.thread import MIB, Author, Checkpoints, Shape


class LongLine(Enum):
    """What the enormous line is."""

    IMAGE = "image"  # a user's message with a huge base64 image
    OUTPUT = "output"  # a tool's output, full of escapes
    CHECKPOINT = "checkpoint"  # a checkpoint that keeps 300 images


def write_long_line(path: Path, kind: LongLine, length: int, seed: int = 2) -> None:
    """A thread of a few megabytes with one line of `length` bytes, then some more turns."""
    shape = Shape(size=0, seed=seed)
    with RolloutWriter(path, paginated=True) as out:
        author = Author(out, shape)
        author.begin()
        for _ in range(20):
            author.turn()
        author.start()
        if kind is LongLine.IMAGE:
            author.user(b"Look at this.", author.pool.base64(length))
        elif kind is LongLine.OUTPUT:
            author.user(b"Run it.")
            author.round(0, _many_lines(author, length))
        else:
            author.user(b"Keep all of these.")
        author.complete(b"done")
        if kind is LongLine.CHECKPOINT:
            image = author.pool.base64(length // 300)
            author.checkpoint([image] * 300)
        for _ in range(20):
            author.turn()


def _many_lines(author: Author, length: int) -> bytes:
    block = author.pool.text(4 * MIB)
    return block * (length // len(block) + 1)


def write_repeated_images(path: Path, images: int, checkpoints: int, size: int, seed: int = 3) -> None:
    """`images` images that every one of `checkpoints` checkpoints repeats; `size` bytes each."""
    with RolloutWriter(path, paginated=True) as out:
        author = Author(out, Shape(size=0, seed=seed))
        author.begin()
        kept = [author.pool.base64(size) for _ in range(images)]
        for _ in range(checkpoints):
            author.turn()
            author.checkpoint(kept)
        author.turn()


def write_large_lines(path: Path, lines: int, size: int, seed: int = 4) -> None:
    """`lines` outputs of `size` bytes each and no checkpoint."""
    with RolloutWriter(path, paginated=True) as out:
        author = Author(out, Shape(size=0, checkpoints=Checkpoints.NONE, seed=seed))
        author.begin()
        author.start()
        author.user(b"Print everything.")
        for _ in range(lines):
            author.round(0, author.pool.text(size))
        author.complete(b"done")
