"""The bytes of the files: which version a file has now, what the kernel has been told, and what open handles keep.

Rules, and where they come from:

* A size is exact or a placeholder that is asked for again (FUSE 6.1).  `announced` remembers what the kernel was told last, so
  that a placeholder doesn't shrink a file that somebody reads, nor empty its page cache.
* An OPEN looks at the store.  If the content is not the one that was opened last, the kernel's pages are dropped.
* A handle keeps what it opened (FAULTS 28).  If the content only grew, its reader follows.  If it was *replaced* while handles
  are open, the two must not meet in one page cache.  So the inode stays with its old content, frozen, and the file moves to a
  new inode number, its next *epoch*: the OPEN that noticed it is answered with ESTALE, upon which the kernel walks
  the path once more with fresh look-ups (`LOOKUP_REVAL` in fs/namei.c) and opens the new inode; the program sees nothing.
  When the last handle is gone the file returns to its own number.
* Two bounds on memory: projections are kept by weight, what is known about files by number.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from threadstore.errors import StoreError
from threadstore.projection import Projection, StoreView, View

from rolloutfs import freshness, inodes
from rolloutfs.engine import Engine
from rolloutfs.fds import OpenFiles
from rolloutfs.lru import Recent
from rolloutfs.readers import Derived, Literal, Plain, Reader, Version, reader
from rolloutfs.storefiles import StoreFiles
from rolloutfs.tree import Kind, Node, Tree

log = logging.getLogger(__name__)

PROJECTIONS: Final = 32 << 20  # bytes of extents kept for files that nobody has open
KNOWN: Final = 20_000  # files whose size is remembered
_ATTEMPTS = 4  # at a content that is replaced again and again while we look


@dataclass(frozen=True, slots=True)
class Announced:
    """What the kernel was told about an inode: bytes, ns, permission bits."""

    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int = 0o400


@dataclass(slots=True)
class _Open:
    """An inode with handles."""

    reader: Reader
    handles: int = 0


@dataclass(frozen=True, slots=True)
class _Handle:
    ino: int
    state: _Open


def _weight(version: Derived) -> int:
    extents = version.extents
    return 512 if extents is None else 1024 + 24 * len(extents) + len(extents.pool) + 200 * len(extents.sources)


Times = Callable[[Node, Version], tuple[int, int]]


class Contents:
    """State of all files.

    Invariants: every inode in `_open` has at least one handle and a reader that is closed when the last one goes; a file has an
    entry in `_epochs` exactly while its current inode is not its canonical one.
    """

    def __init__(self, engine: Engine, tree: Tree, files: StoreFiles, readme: bytes, times: Times) -> None:
        self._engine = engine
        self._tree = tree
        self._files = files
        self._readme = Literal(readme)
        self._times = times
        self._fds = OpenFiles(files)
        self._known: Recent[int, Derived] = Recent(KNOWN)
        self._full: Recent[int, Derived] = Recent(PROJECTIONS, _weight)
        self._announced: Recent[int, Announced] = Recent(KNOWN)
        self._opened: Recent[int, object] = Recent(KNOWN)
        self._epochs: dict[int, int] = {}
        self._open: dict[int, _Open] = {}
        self._handles: dict[int, _Handle] = {}
        self._next_handle = 1
        self._renewals: dict[int, freshness.Share] = {}

    # What the kernel is told

    def inode(self, node: Node) -> int:
        """The number under which a file is to be found now."""
        number = self._epochs.get(node.ino)
        return node.ino if number is None else inodes.with_epoch(node.ino, number)

    def announced(self, ino: int) -> Announced | None:
        """What the kernel was told last, if we remember it."""
        return self._announced.get(ino)

    def is_open(self, ino: int) -> bool:
        """True for an inode with handles."""
        return ino in self._open

    async def measure(self, ino: int, node: Node) -> Announced:
        """The exact attributes of a file's inode, computed if they have to be. Never fails for one that is open."""
        if self._is_frozen(ino):
            return self._frozen(ino)
        try:
            version = await self._version(node, with_extents=ino in self._open)
            if ino in self._open and isinstance(version, Derived) and version.extents is None:  # opened meanwhile
                version = await self._version(node, with_extents=True)
        except (KeyError, OSError, StoreError):
            if ino in self._open:  # gone or damaged: who has it open keeps what they have
                return self._frozen(ino)
            raise
        state = self._open.get(ino)
        size = version.size
        if state is not None:
            if self._is_frozen(ino):
                return self._frozen(ino)
            if not state.reader.follow(version):
                self._move(ino)
                return self._frozen(ino)
            size = state.reader.size
        return self._tell(ino, node, version, size)

    def glance(self, ino: int, node: Node) -> Announced | None:
        """Attributes that are known without computing anything; None for what has to be measured."""
        if node.kind is Kind.README:
            return self._tell(ino, node, self._readme, self._readme.size)
        if node.kind is not Kind.STORE_FILE or ino in self._open:
            return None
        version = Plain.of(node.name, self._files.shown(node.name))
        return self._tell(ino, node, version, version.size)

    def _tell(self, ino: int, node: Node, version: Version, size: int) -> Announced:
        mode = version.mode if node.kind is Kind.STORE_FILE and isinstance(version, Plain) else 0o400
        told = Announced(size, *self._times(node, version), mode)
        self._announced.put(ino, told)
        return told

    def tell(self, ino: int, told: Announced) -> None:
        """Remember what the kernel was told about a folder or a link."""
        self._announced.put(ino, told)

    async def open(self, ino: int, node: Node, invalidate: Callable[[int], None]) -> tuple[int, bool]:
        """A handle, and whether the kernel may keep the pages that it has.

        Calls `invalidate` when the kernel's attributes no longer hold. Raises OSError, ESTALE when the file is to be
        looked up again.
        """
        for _ in range(_ATTEMPTS):
            self._must_be_current(ino)
            version = await self._version(node, with_extents=True)
            self._must_be_current(ino)
            state = self._open.get(ino)
            if state is None:
                try:
                    state = _Open(reader(version, self._fds))
                except OSError as error:
                    if error.errno in (errno.ESTALE, errno.ENOENT):  # replaced since we looked
                        self._drop(node)
                        continue
                    raise
                self._open[ino] = state
            elif not state.reader.follow(version):
                self._move(ino)
                raise OSError(errno.ESTALE, "The content was replaced")
            return self._handle(ino, state, version, invalidate)
        raise OSError(errno.EIO, "The content is replaced faster than it can be opened")

    def _handle(self, ino: int, state: _Open, version: Version, invalidate: Callable[[int], None]) -> tuple[int, bool]:
        state.handles += 1
        keep = self._opened.get(ino) == version.signature
        self._opened.put(ino, version.signature)
        told = self._announced.get(ino)
        if not keep or (told is not None and told.size != state.reader.size):
            invalidate(ino)
        number, self._next_handle = self._next_handle, self._next_handle + 1
        self._handles[number] = _Handle(ino, state)
        return number, keep

    def read(self, handle: int, offset: int, length: int) -> bytes:
        """Bytes of the content that a handle opened."""
        return self._handles[handle].state.reader.read(offset, length)

    def release(self, handle: int) -> None:
        """Close a handle."""
        closed = self._handles.pop(handle)
        state, ino = closed.state, closed.ino
        state.handles -= 1
        if state.handles:
            return
        del self._open[ino]
        state.reader.close()
        base = inodes.canonical(ino)
        if base in self._epochs and not any(inodes.with_epoch(base, n) in self._open for n in range(inodes.EPOCHS)):
            del self._epochs[base]

    # Epochs

    def _is_frozen(self, ino: int) -> bool:
        return ino in self._open and inodes.epoch(ino) != self._epochs.get(inodes.canonical(ino), 0)

    def _must_be_current(self, ino: int) -> None:
        if inodes.epoch(ino) != self._epochs.get(inodes.canonical(ino), 0):
            raise OSError(errno.ESTALE, "This inode's content was replaced")

    def is_stale(self, ino: int) -> bool:
        """True for a number of an epoch that is over and that nobody has open: it must be looked up again."""
        return ino not in self._open and inodes.epoch(ino) != self._epochs.get(inodes.canonical(ino), 0)

    def _frozen(self, ino: int) -> Announced:
        told = self._announced.get(ino)
        size = self._open[ino].reader.size
        return dataclasses.replace(told, size=size) if told is not None else Announced(size, 0, 0)

    def _move(self, ino: int) -> None:
        """Leave an inode to its handles and give the file the next number that nobody uses."""
        base, number = inodes.canonical(ino), inodes.epoch(ino)
        for step in range(1, inodes.EPOCHS):
            fresh = (number + step) % inodes.EPOCHS
            if inodes.with_epoch(base, fresh) not in self._open:
                if fresh:
                    self._epochs[base] = fresh
                else:
                    self._epochs.pop(base, None)
                return
        raise OSError(errno.EMFILE, "Too many old versions of this file are open")

    # Versions

    async def _version(self, node: Node, *, with_extents: bool) -> Version:
        """What the file contains now."""
        if node.kind is Kind.README:
            return self._readme
        if node.kind is Kind.STORE_FILE:
            return Plain.of(node.name, self._files.shown(node.name))
        if node.kind is Kind.ROLLOUT:
            rollout = self._tree.rollout_names(node.thread)[node.name]
            if not rollout.compressed:
                return Plain.of(rollout.path, self._files.shown(rollout.path))
        known = self._known.get(node.ino)
        if known is not None and self._holds(node, known.projection):
            if not with_extents or not known.given:
                return known
            full = self._full.get(node.ino)
            if full is not None and full.signature == known.signature:
                return full
        full = Derived.of(await self._project(node))
        self._known.put(node.ino, full.outline())
        self._full.put(node.ino, full)
        return full

    def _holds(self, node: Node, projection: Projection) -> bool:
        if node.kind is Kind.STORE_VIEW:
            return not self._renewals[node.ino].is_due()
        return self._engine.store.is_current(node.thread, projection)

    async def _project(self, node: Node) -> Projection:
        if isinstance(node.view, StoreView):
            with self._renewals.setdefault(node.ino, freshness.Share()):
                return await self._engine.project_store(node.view)
        if isinstance(node.view, View):
            return await self._engine.project(node.thread, node.view)
        return await self._engine.project_rollout(self._tree.rollout_names(node.thread)[node.name])

    def _drop(self, node: Node) -> None:
        self._known.drop(node.ino)
        self._full.drop(node.ino)
