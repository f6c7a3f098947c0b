"""Inode numbers that are the same after a remount, a restart and on another machine.

Backup programs recognise a file by its inode number: if it changes, restic and borg read everything again.  So a number
is computed, never counted:

    bits 63..16   47 bits of blake2b over a stable key (a thread id, or a path) - bit 63 stays 0
    bits 15..8    epoch: 0, unless the content was replaced while somebody still reads the old one (see `content`)
    bits 7..0     slot: which of a thread's fixed names, or DYNAMIC for a name that has a key of its own

Hash 0 is not handed out to keys: with it, the slot alone is the number, and the root gets its 1.

A number with a fixed slot can be read backwards with one entry a thread.  The others (rollout files, links,
the store's files) are remembered while the kernel knows them, and dropped when it forgets them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

DYNAMIC = 0xFF
EPOCHS = 256
_HASH_BITS = 47
_EPOCH_MASK = 0xFF00

N = TypeVar("N")


def compose(digest: int, slot: int) -> int:
    """The inode number of a slot, epoch 0."""
    return digest << 16 | slot


def canonical(ino: int) -> int:
    """The number with epoch 0."""
    return ino & ~_EPOCH_MASK


def epoch(ino: int) -> int:
    """The epoch in a number."""
    return (ino & _EPOCH_MASK) >> 8


def with_epoch(ino: int, number: int) -> int:
    """The same file in another epoch."""
    return canonical(ino) | number << 8


def digest(key: str, probe: int = 0) -> int:
    """47 bits for a key; `probe` gives the alternatives that are used when two keys collide."""
    data = os.fsencode(key) + (b"\0%d" % probe if probe else b"")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") >> (64 - _HASH_BITS)


class ThreadNumbers:
    """Digests of thread ids, both ways. Invariant: `_ids[d] == t` exactly when `of(t) == d` was answered."""

    __slots__ = ("_digest", "_ids")

    def __init__(self, digest: Callable[[str, int], int] = digest) -> None:
        self._digest = digest
        self._ids: dict[int, str] = {}

    def of(self, thread_id: str) -> int:
        """The digest of a thread, never 0 and never that of another thread."""
        probe = 0
        while True:
            number = self._digest(thread_id, probe)
            if number and self._ids.setdefault(number, thread_id) == thread_id:
                return number
            probe += 1

    def thread(self, number: int) -> str:
        """The thread that was given this digest; KeyError when there is none."""
        return self._ids[number]


@dataclass(slots=True)
class _Known(Generic[N]):
    key: str
    node: N
    lookups: int = 0


class DynamicNumbers(Generic[N]):
    """Nodes with keys of their own. Invariant: an entry lives from being numbered until the kernel forgot it.

    `number` alone doesn't make an entry last: the caller counts with `remember` what it really handed out, and unused
    ones are swept now and then.
    """

    __slots__ = ("_digest", "_known", "_unused")

    def __init__(self, digest: Callable[[str, int], int] = digest) -> None:
        self._digest = digest
        self._known: dict[int, _Known[N]] = {}
        self._unused: list[int] = []

    def number(self, key: str, make: Callable[[int], N]) -> N:
        """The node for a key, made with its inode number."""
        probe = 0
        while True:
            number = self._digest(key, probe)
            ino = compose(number, DYNAMIC)
            known = self._known.get(ino)
            if number and (known is None or known.key == key):
                node = make(ino)
                if known is None:
                    self._known[ino] = _Known(key, node)
                    self._unused.append(ino)
                    self._sweep()
                else:
                    known.node = node
                return node
            probe += 1

    def find(self, key: str) -> int | None:
        """The number of a key; None when the kernel doesn't know it."""
        probe = 0
        while True:
            ino = compose(self._digest(key, probe), DYNAMIC)
            known = self._known.get(ino)
            if known is None:
                return None
            if known.key == key:
                return ino
            probe += 1

    def node(self, ino: int) -> N:
        """The node of a number; KeyError when the kernel shouldn't know it."""
        return self._known[canonical(ino)].node

    def remember(self, ino: int) -> None:
        """The kernel has been told of this number once more."""
        known = self._known.get(canonical(ino))
        if known is not None:
            known.lookups += 1

    def forget(self, ino: int, lookups: int) -> None:
        """The kernel forgot `lookups` of them."""
        number = canonical(ino)
        known = self._known.get(number)
        if known is not None:
            known.lookups -= lookups
            if known.lookups <= 0:
                del self._known[number]

    def _sweep(self) -> None:
        """Drop old entries that were numbered (in a snapshot of a folder, say) but never handed out."""
        if len(self._unused) <= 8192:
            return
        old, self._unused = self._unused[:4096], self._unused[4096:]
        for ino in old:
            known = self._known.get(ino)
            if known is not None and known.lookups <= 0:
                del self._known[ino]

    def __len__(self) -> int:
        return len(self._known)
