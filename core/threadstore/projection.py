"""What a replay hands over: the content of one derived file, and what it was computed from.

A projection is a small picklable value.  It names the files that it depends on by identity and length, so that
whoever serves it can tell by `stat` alone whether it still holds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from threadstore.errors import StoreError
from threadstore.extents import Extents


class View(Enum):
    """The derived files of one thread; the value is the file name in the tree."""

    __hash__ = object.__hash__  # that of an enumeration is a Python function, and a walk asks for a hundred a thread

    EFFECTIVE_HISTORY = "effective_history.jsonl"
    MODEL_INPUT = "model_input.jsonl"
    FULL_HISTORY = "full_history.jsonl"
    WORLD_STATE = "world_state.json"
    THREAD = "thread.json"
    TURNS = "turns.jsonl"
    PENDING_CALLS = "pending_calls.jsonl"
    USAGE = "usage.json"
    PROBLEMS = "problems.jsonl"
    LINEAGE = "lineage.json"
    TRANSCRIPT = "transcript.md"
    DROPPED = "dropped.md"
    DROPPED_TURNS = "dropped_turns.jsonl"


#: Views that also tell what the databases say of a thread: its name, how it was selected, what is wrong with its row.
SELECTION = frozenset({View.THREAD, View.PROBLEMS, View.LINEAGE})
#: Views that also tell what happened in generations that no longer count.
OF_GENERATIONS = frozenset({View.USAGE, View.DROPPED, View.DROPPED_TURNS})


class StoreView(Enum):
    """The derived files of the whole store."""

    HEADS = "heads.jsonl"
    PROBLEMS = "problems.jsonl"
    STATS = "stats.json"
    LINEAGE = "lineage.mmd"


class FamilyView(Enum):
    """The derived files of a family of threads."""

    TEXT = "family.txt"
    MERMAID = "family.mmd"


class Basis(NamedTuple):
    """One file that a projection was computed from: its path below the store and what `stat` said (bytes, ns).

    All zero for a file that wasn't there.
    """

    path: str
    dev: int
    ino: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str, status: os.stat_result) -> Basis:
        """A file of which `stat` has said this."""
        return cls(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class Outline(NamedTuple):
    """A projection without its extents: what a listing needs. `size` in bytes; the rest as in `Projection`."""

    size: int
    basis: tuple[Basis, ...]
    generation: bytes


@dataclass(frozen=True, slots=True)
class Projection:
    """The content of one derived file.

    `extents` is None when the content can't be given truthfully; the file then answers EIO and `error` says why.
    Two projections of one file with equal `generation`: the shorter one is a prefix of the longer one (it was appended
    to); with different ones the content was replaced.  `basis` is complete: while every file in it has that identity
    and size and the head of the thread is the same, the projection holds.
    """

    extents: Extents | None
    basis: tuple[Basis, ...]
    generation: bytes
    error: str | None = None

    @property
    def size(self) -> int:
        """Bytes of content; 0 for one that can't be given."""
        return self.extents.size if self.extents is not None else 0


def digest(*parts: bytes) -> bytes:
    """A short name for a generation of content."""
    return blake2b(b"\0".join(parts), digest_size=16).digest()


def rendered(projection: Projection) -> bytes:
    """The content of a derived file of which nothing lies in a log. Raises StoreError when it can't be given."""
    if projection.extents is None:
        raise StoreError(projection.error or "What is asked for can't be told.")
    return b"".join(part for part in projection.extents.plan(0, projection.size) if isinstance(part, bytes))
