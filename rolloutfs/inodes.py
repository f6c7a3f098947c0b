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
from hashlib import blake2b
from typing import Generic, TypeVar

from rolloutfs.numbered import Numbered

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
    """Digests of thread ids, both ways.

    Invariants: a digest is in `_ids`, with its thread, exactly when it was answered for that thread and the thread was
    not forgotten since. `_wanted` are digests that several threads would have had, of which nothing is forgotten.
    `_last` is what was asked for last, and holds.
    """

    __slots__ = ("_digest", "_ids", "_last", "_wanted")

    def __init__(self, digest: Callable[[str, int], int] = digest) -> None:
        self._digest = digest
        self._ids: Numbered[str] = Numbered()
        self._wanted: set[int] = set()
        self._last = (-1, "")

    def of(self, thread_id: str) -> int:
        """The digest of a thread, never 0 and never that of another thread."""
        probe = 0
        while True:
            number = self._digest(thread_id, probe)
            known = self._ids.get(number)
            if known == thread_id:
                return number
            if number and known is None:
                self._ids.put(number, thread_id)
                return number
            if number:
                self._wanted.add(number)
            probe += 1

    def forget(self, thread_id: str) -> None:
        """Nobody will ask for this thread by its number. It gets the same one again if it comes back, unless another
        thread has taken that meanwhile.
        """
        number = self._digest(thread_id, 0)
        if self._ids.get(number) == thread_id and number not in self._wanted:
            self._last = (-1, "")
            self._ids.drop(number)

    def thread(self, number: int) -> str:
        """The thread that was given this digest; KeyError when there is none."""
        if self._last[0] == number:
            return self._last[1]
        thread = self._ids.get(number)
        if thread is None:
            raise KeyError(number)
        self._last = number, thread
        return thread


class Keys(Generic[N]):
    """What keys say. As it stands, nothing: then the node and all of its key are kept."""

    def node(self, ino: int, key: str) -> N | None:
        """The node with this key and number; None for one that the key doesn't tell."""

    def shared(self, key: str) -> str | None:
        """A text that is in memory in any case, and among whose `keys` this one is."""

    def keys(self, shared: str) -> tuple[str, ...]:
        """The keys that a shared text stands for, of which the number tells the right one."""
        return ()


class DynamicNumbers(Generic[N]):
    """Nodes with keys of their own, of which the kernel may know 200,000 of a large store, so that no object is kept
    of those that their key tells.

    Invariants: an entry lives from being numbered until the kernel forgot it. `_known` has its key, or a text that is
    shared for it; `_counts` how often the kernel was told of it, unless that is once; `_nodes` the nodes that no key
    tells.

    `number` alone doesn't make an entry last: the caller counts with `remember` what it really handed out, and unused
    ones are swept now and then.
    """

    __slots__ = ("_counts", "_digest", "_keys", "_known", "_nodes", "_unused")

    def __init__(self, digest: Callable[[str, int], int] = digest, keys: Keys[N] | None = None) -> None:
        self._digest = digest
        self._keys = keys if keys is not None else Keys[N]()
        self._known: Numbered[bytes | str] = Numbered()
        self._counts: dict[int, int] = {}
        self._nodes: dict[int, N] = {}
        self._unused: list[int] = []

    def number(self, key: str, make: Callable[[int], N]) -> N:
        """The node for a key, made with its inode number."""
        probe = 0
        while True:
            number = self._digest(key, probe)
            ino = compose(number, DYNAMIC)
            known = self._key(ino)
            if number and known in (None, key):
                node = make(ino)
                if known is None:
                    shared = self._keys.shared(key)
                    is_told = shared is not None and self._told(ino, shared) == key
                    self._known.put(ino, shared if shared is not None and is_told else os.fsencode(key))
                    self._counts[ino] = 0
                    self._unused.append(ino)
                    self._sweep()
                if self._keys.node(ino, key) != node:
                    self._nodes[ino] = node
                return node
            probe += 1

    def find(self, key: str) -> int | None:
        """The number of a key; None when the kernel doesn't know it."""
        probe = 0
        while True:
            ino = compose(self._digest(key, probe), DYNAMIC)
            known = self._key(ino)
            if known in (None, key):
                return ino if known is not None else None
            probe += 1

    def node(self, ino: int) -> N:
        """The node of a number; KeyError when the kernel shouldn't know it."""
        number = canonical(ino)
        node = self._nodes.get(number)
        if node is None:
            key = self._key(number)
            node = None if key is None else self._keys.node(number, key)
        if node is None:
            raise KeyError(ino)
        return node

    def _key(self, ino: int) -> str | None:
        """The key of a number; None when there is none."""
        known = self._known.get(ino)
        return self._told(ino, known) if isinstance(known, str) else None if known is None else os.fsdecode(known)

    def _told(self, ino: int, shared: str) -> str | None:
        """The key of a number for which there is a shared text."""
        return next((key for key in self._keys.keys(shared) if compose(self._digest(key, 0), DYNAMIC) == ino), None)

    def remember(self, ino: int) -> None:
        """The kernel has been told of this number once more."""
        self._count(canonical(ino), 1)

    def forget(self, ino: int, lookups: int) -> None:
        """The kernel forgot `lookups` of them."""
        if self._count(canonical(ino), -lookups) <= 0:
            self._drop(canonical(ino))

    def _count(self, number: int, more: int) -> int:
        """How often the kernel has been told of a number, after `more`; 0 for one that isn't known."""
        if self._known.get(number) is None:
            return 0
        lookups = max(self._counts.get(number, 1) + more, 0)
        if lookups == 1:
            self._counts.pop(number, None)
        else:
            self._counts[number] = lookups
        return lookups

    def _drop(self, number: int) -> None:
        self._known.drop(number)
        self._counts.pop(number, None)
        self._nodes.pop(number, None)

    def _sweep(self) -> None:
        """Drop old entries that were numbered (in a snapshot of a folder, say) but never handed out."""
        if len(self._unused) <= 8192:
            return
        old, self._unused = self._unused[:4096], self._unused[4096:]
        for ino in old:
            if not self._count(ino, 0):
                self._drop(ino)

    def __len__(self) -> int:
        return len(self._known)
