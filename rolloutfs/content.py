"""The bytes of the files: which version a file has now, what the kernel has been told, and what open handles keep.

Rules, and where they come from:

* A size is exact or a placeholder that is asked for again (FUSE 6.1).  `announced` remembers what the kernel was
  told last, so that a placeholder doesn't shrink a file that somebody reads, nor empty its page cache.
* An OPEN looks at the store.  If the content is not the one that was opened last, the kernel's pages are dropped.
* A handle keeps what it opened (FAULTS 28).  If the content only grew, its reader follows.  If it was *replaced*
  while handles are open, the two must not meet in one page cache.  So the inode stays with its old content, frozen,
  and the file moves to a new inode number, its next *epoch*: the OPEN that noticed it is answered with ESTALE, upon
  which the kernel walks the path once more with fresh look-ups (`LOOKUP_REVAL` in fs/namei.c) and opens the new
  inode; the program sees nothing. The file returns to its own number when neither is open any more: to `tail -F`
  another number is another file, which it would print from its beginning.
* The page with the end of a file is filled up with zeros in the kernel's cache, and a greater size makes these look
  like content until the page is gone. So of an open file the pages are dropped first, and the size is told then.
* The kernel may read a large raw file by itself (`backings`). Opens of both kinds of one inode can't coexist, so that
  is decided when it has no handle; such a handle reads what the file holds, without a guard against changes in place.
* Two bounds on memory: projections are kept by weight, what is known about files by number.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio
from threadstore.errors import StoreError
from threadstore.projection import Basis, FamilyView, Outline, Projection, StoreView, View
from threadstore.store import SELECTION

from rolloutfs import freshness, inodes
from rolloutfs.backing import Backings
from rolloutfs.engine import Engine
from rolloutfs.fds import OpenFiles
from rolloutfs.heirs import Heirs
from rolloutfs.lru import Recent
from rolloutfs.marks import Marks
from rolloutfs.nodes import Kind, Node
from rolloutfs.packs import Packs
from rolloutfs.readers import Derived, Literal, Plain, Reader, Version, reader, whole_reader
from rolloutfs.slots import VIEW_SLOTS
from rolloutfs.storefiles import StoreFiles
from rolloutfs.tree import Tree
from rolloutfs.turnfolders import TurnFolders

log = logging.getLogger(__name__)

PROJECTIONS: Final = 24 << 20  # bytes of extents kept for files that nobody has open
BESIDE: Final = 4 << 20  # bytes of those that were made together with one that was opened
KNOWN: Final = 4096  # files whose size is remembered, about 1.5 KiB each
OUTLINED: Final = 512  # threads of which the sizes of all derived files are remembered, about 4 KiB each
_MOVED: Final = 20_000  # files that were shown under another number, of which all are told of changes
_OPENED: Final = 18  # bits of the number of pairs of files of which it is remembered what was opened: 10 MiB
LARGE: Final = 1 << 20  # bytes from which a raw file is worth a backing file (FUSE 3)
_RAW = (Kind.ROLLOUT, Kind.STORE_FILE)
_RETRY = 1.0  # seconds that the kernel's second walk along a path may take
_ASK_AGAIN = 2.0  # seconds until the index may know more of a thread
_MOVES = 12  # times that a thread's files may be moved while we look at them
_ATTEMPTS = 4  # at a content that is replaced again and again while we look
_PATIENT = 24  # requests that may wait for pages to go, which wait for reads: pyfuse3 takes 99 requests at a time
_SEARCHES = frozenset({Kind.SEARCH_README, Kind.SEARCH_PROBLEMS, Kind.HITS, Kind.INCOMPLETE, Kind.HINT})


class Announced(NamedTuple):
    """What the kernel was told about an inode: bytes, ns, permission bits."""

    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int = 0o400


@dataclass(slots=True)
class _Open:
    """An inode with handles. `frozen`: its content is no longer that of the file. `seen`: when it last was (s,
    monotonic), `sure` that nothing was in the way of seeing it. `backing`: the number of the file that the kernel reads
    instead of asking us. `shown`: the size in bytes that the kernel may know; none of its pages was made when there
    were fewer. It grows under `growing`.
    """

    reader: Reader
    seen: float
    handles: int = 0
    frozen: bool = False
    backing: int | None = None
    sure: bool = True
    shown: int = 0
    growing: trio.Lock | None = None  # made when it is needed: few files grow while they are open

    def __post_init__(self) -> None:
        self.shown = self.reader.size


class _Handle(NamedTuple):
    ino: int
    state: _Open


def _weight(version: Derived) -> int:
    """Bytes of memory, about."""
    extents, files = version.extents, 200 * len(version.projection.basis)
    if extents is None:
        return 512 + files
    return 1024 + files + extents.weight + 200 * len(extents.sources)


def _bases(version: Derived) -> int:
    """1, and as much again for each 8 files that it was made from: a thread may have any number of generations."""
    return 1 + len(version.projection.basis) // 8


def _all_bases(outlines: Mapping[View, Outline]) -> int:
    """The same, of the most that one of them was made from."""
    return 1 + max(len(outline.basis) for outline in outlines.values()) // 8


Times = Callable[[Node, Version], tuple[int, int]]


async def _no_pages(ino: int) -> None:
    """Drops the pages of an inode where there is no kernel."""


def _no_matter(thread: str) -> None:
    """Hears of a thread of which a file has got another number."""


class Contents:
    """State of all files.

    Invariants: every inode in `_open` has at least one handle and a reader that is closed when the last one goes; a
    file has an entry in `_epochs` exactly while it is not to be found under its own number.
    """

    def __init__(
        self,
        engine: Engine,
        tree: Tree,
        files: StoreFiles,
        readme: bytes,
        times: Times,
        operations: str | None = None,
        searches: Callable[[Node], Awaitable[bytes]] | None = None,
    ) -> None:
        self._searches = searches  # what the files below search/ say
        self._engine = engine
        self._tree = tree
        self._files = files
        self._readme = Literal(readme)
        self._operations = operations  # the path of the journal
        self.backings: Backings | None = None  # where the kernel may read files by itself
        self._times = times
        self.drop_pages: Callable[[int], Awaitable[None]] = _no_pages  # all that the kernel has of an inode
        self.moved: Callable[[str], None] = _no_matter
        self.turns = TurnFolders(engine, tree)
        self._fds = OpenFiles(files)
        self._known: Recent[int, Derived] = Recent(KNOWN, _bases)
        self._full: Recent[int, Derived] = Recent(PROJECTIONS, _weight)
        self._packs = Packs(engine.store, tree, self._fds)
        self._beside: Recent[int, Derived] = Recent(BESIDE, _weight)  # what was made with them, and not opened so far
        self._outlined: Recent[str, Mapping[View, Outline]] = Recent(OUTLINED, _all_bases)  # what the index knows
        self._announced: Recent[int, Announced] = Recent(KNOWN)
        self._together: Recent[int, tuple[Mapping[int, int], tuple[int, int]]] = Recent(OUTLINED)  # see `sizes`
        #: Digests of the signatures of what was opened. Those of threads are settled while the store is watched, until
        #: something happens to it: the kernel needn't be told anything when they are opened again.
        self._opened = Marks(_OPENED)
        #: One more than the sizes of files that the kernel asks for again and again, settled in the same way.
        self._sizes = Marks()
        self._asked: Recent[str, float] = Recent(KNOWN)  # when the index was asked for a thread (s, monotonic)
        self._missed: Recent[str, float] = Recent(KNOWN)  # when it knew nothing of one (s, monotonic)
        self._retries: Recent[tuple[int, int], float] = Recent(256)
        self._heirs = Heirs()
        self._epochs: dict[int, int] = {}
        self._highest: Recent[int, int] = Recent(_MOVED)  # the highest epoch that a file ever had
        self._open: dict[int, _Open] = {}
        self._patient = 0  # requests that wait for pages to go
        self._handles: dict[int, _Handle] = {}
        self._next_handle = 1
        self._renewals: dict[int, freshness.Share] = {}
        # Generations of files about families since the last change, while the store is watched.
        self._unchanged: Recent[int, bytes] | None = None

    # What the kernel is told

    def inode(self, node: Node) -> int:
        """The number under which a file is to be found now."""
        number = self._epochs.get(node.ino)
        return node.ino if number is None else inodes.with_epoch(node.ino, number)

    def numbers(self, node: Node) -> list[int]:
        """Every number under which the kernel may know a file."""
        highest = max(self._highest.get(node.ino) or 0, self._epochs.get(node.ino, 0))
        return [inodes.with_epoch(node.ino, number) for number in range(highest + 1)]

    def announced(self, ino: int) -> Announced | None:
        """What the kernel was told last, if we remember it; of an open inode, its size in any case."""
        told, state = self._told(ino), self._open.get(ino)
        return told if state is None else (told or Announced(0, 0, 0))._replace(size=state.shown)

    def is_open(self, ino: int) -> bool:
        """True for an inode with handles."""
        return ino in self._open

    def is_passing(self, ino: int) -> bool:
        """True for an inode with handles whose content may not be that of the file, or is more than was told."""
        state = self._open.get(ino)
        return state is not None and (state.frozen or not state.sure or state.shown != state.reader.size)

    async def measure(self, ino: int, node: Node) -> Announced:
        """The exact attributes of a file's inode, computed if they have to be. Never fails for one that is open."""
        state = self._open.get(ino)
        if state is not None and state.frozen:
            return await self._kept(ino, state)
        age = self._age()  # another one if something happens meanwhile
        try:
            version = await self._version(node, with_extents=state is not None)
            if state is None and ino in self._open:  # opened meanwhile
                version = await self._version(node, with_extents=True)
            state = self._open.get(ino)
            follows = state is None or await self._follows(ino, state, node, version)
        except (KeyError, OSError, StoreError):
            state = self._open.get(ino)
            if state is not None:  # gone or damaged: who has it open keeps what they have
                state.sure = False
                return await self._kept(ino, state)
            raise
        if state is None:
            if node.view in SELECTION:
                self._settle_size(ino, version.size, lasts=age == self._age() and self._is_told_of(node, version))
            return self._tell(ino, node, version, version.size)
        if not follows:
            return await self._kept(ino, state)
        told = self._tell(ino, node, version, state.shown)
        return told if state.shown == state.reader.size else await self._shown(ino, state, told)

    async def settle(self, node: Node) -> None:
        """Before a look-up is answered: if an open inode's content was replaced, move the file to another number."""
        ino = self.inode(node)
        if ino not in self._open:
            return
        try:
            version = await self._version(node, with_extents=True)
        except (KeyError, OSError, StoreError):
            return
        state = self._open.get(ino)
        if state is not None:
            with suppress(KeyError, OSError, StoreError):
                await self._follows(ino, state, node, version)

    def heirs(self, path: str) -> set[str]:
        """The threads that something was made for from a file of this name which isn't their selected rollout."""
        return self._heirs.of(path)

    def bury(self, threads: set[str]) -> None:
        """These threads are gone. Should one come back, everything is made anew, and its heirs are known again."""
        self._heirs.forget(threads)
        for thread in threads:
            self.forget(thread)

    def lasts(self, node: Node) -> bool:
        """False for a file that may become another one by a file that was never seen: it holds only now."""
        known = self._known.get(node.ino) if node.view is not None else None
        return known is None or bool(known.projection.basis)

    def is_steady(self, node: Node) -> bool:
        """True for a file that was never shown under another number."""
        return node.ino not in self._highest and node.ino not in self._epochs

    def glance(self, ino: int, node: Node) -> Announced | None:
        """Attributes that are known without computing anything; None for what has to be measured."""
        if node.kind is Kind.VIEW:
            known = None if ino in self._open else self._outline(node)
            if known is None:
                return None
            return self._tell(ino, node, known, known.size)
        if node.kind is Kind.README:
            return self._tell(ino, node, self._readme, self._readme.size)
        if node.kind is Kind.TURN_FILE:
            made = None if ino in self._open else self.turns.known(node)
            return None if made is None else self._tell(ino, node, Derived.of(made), made.size)
        if node.kind not in (Kind.STORE_FILE, Kind.ROLLOUT) or ino in self._open:
            return None
        path = node.name
        if node.kind is Kind.ROLLOUT:
            rollout = self._tree.rollout_names(node.thread)[node.name]
            if rollout.compressed:
                return None
            status = self._engine.store.state(rollout)
            if stat.S_ISREG(status.st_mode):
                version = Plain.of(rollout.path, status)
                return self._tell(ino, node, version, version.size)
            path = rollout.path
        version = Plain.of(path, self._files.shown(path))
        return self._tell(ino, node, version, version.size)

    def sizes(self, thread: str, base: int, times: tuple[int, int]) -> dict[int, int]:
        """The sizes in bytes, by slot, of the derived files of a thread that are plain: known, lasting, never shown
        under another number, and open nowhere. The kernel is told of them with these times. `base` is the number of the
        thread's folder.
        """
        outlines = self._outlined.get(thread)
        held: dict[int, bool] = {}  # by the identity of a basis: most have the same

        def holds(basis: tuple[Basis, ...]) -> bool:
            found = held.get(id(basis))
            if found is None:
                found = held[id(basis)] = self._engine.store.is_made_from(thread, basis)
            return found

        if outlines is None or not all(holds(outline.basis) for outline in outlines.values()):
            outlines = self._outlined.get(thread) if self._ask_index(thread) else None
            held.clear()
            for told in outlines.values() if outlines is not None else ():  # all but young files were compared just now
                if id(told.basis) not in held and all(one.mtime_ns != -1 for one in told.basis):
                    held[id(told.basis)] = True
        sizes: dict[int, int] = {}
        for slot, view in VIEW_SLOTS.items():
            ino = base | slot
            if ino in self._open or ino in self._highest or ino in self._epochs:
                before = self._told(ino)
                if before is not None:  # which is about to be forgotten otherwise
                    self._announced.put(ino, before)
                continue
            known = self._known.get(ino)
            outline = None if outlines is None else outlines.get(view)
            if known is not None and holds(known.projection.basis):
                sizes[slot], basis = known.size, known.projection.basis
            elif outline is not None and holds(outline.basis):
                sizes[slot], basis = outline.size, outline.basis
            else:
                continue
            self._announced.drop(ino)
            if view in SELECTION:
                self._settle_size(ino, sizes[slot], lasts=self._stays(thread, basis))
        self._together.put(base, (sizes, times))
        return sizes

    def size_at_hand(self, node: Node) -> int | None:
        """The size in bytes of a derived file that nobody has open, if nothing has happened since it was told; else
        None.
        """
        if self._unchanged is None or node.ino in self._open or not self.is_steady(node):
            return None
        more = self._sizes.settled(node.ino)
        return more - 1 if more else None

    def _settle_size(self, ino: int, size: int, *, lasts: bool) -> None:
        if lasts and self._unchanged is not None:
            self._sizes.put(ino, size + 1)
            self._sizes.settle(ino, self._sizes.age)

    def _told(self, ino: int) -> Announced | None:
        """What the kernel was told last, alone or with other files of its thread."""
        told = self._announced.get(ino)
        if told is None:
            together = self._together.get(ino & ~0xFF)
            size = None if together is None else together[0].get(ino & 0xFF)
            if together is not None and size is not None:
                told = Announced(size, *together[1])
        return told

    def _tell(self, ino: int, node: Node, version: Version, size: int) -> Announced:
        mode = version.mode if node.kind is Kind.STORE_FILE and isinstance(version, Plain) else 0o400
        told = Announced(size, *self._times(node, version), mode)
        self._announced.put(ino, told)
        return told

    def tell(self, ino: int, told: Announced) -> None:
        """Remember what the kernel was told about a folder or a link."""
        self._announced.put(ino, told)

    async def open(self, ino: int, node: Node, who: int, invalidate: Callable[[int], None]) -> tuple[int, bool]:
        """A handle for thread `who`, and whether the kernel may keep the pages that it has.

        Calls `invalidate` when the kernel's attributes no longer hold. Raises OSError, ESTALE when the file is to be
        looked up again.
        """
        for left in reversed(range(_ATTEMPTS)):
            age = self._age()  # another one if something happens meanwhile
            version = await self._version(node, with_extents=True)
            state = self._open.get(ino)
            if state is None:
                if left and self._is_behind(ino, node, version):  # at last it is as new as we can make it
                    continue
                try:
                    state = self._open[ino] = self._begin(node, version)
                except OSError as error:
                    if error.errno in (errno.ESTALE, errno.ENOENT):  # replaced since we looked
                        self._drop(node)
                        continue
                    raise
            elif not await self._follows(ino, state, node, version) and not self._may_have(state, who, node):
                raise OSError(errno.ESTALE, "The content was replaced")
            elif self._open.get(ino) is not state:  # closed by all others meanwhile
                continue
            self._retries.drop((who, node.ino))  # this walk has its answer; the next one begins anew
            lasts = age == self._age() and self._is_told_of(node, version) and self._is_kept(ino, state, version)
            return self._handle(ino, state, invalidate, age if lasts else None)
        raise OSError(errno.EIO, "The content is replaced faster than it can be opened")

    def open_now(self, ino: int, node: Node, who: int, invalidate: Callable[[int], None]) -> tuple[int, bool] | None:
        """The same for a file that nobody has open and whose content is at hand; else None, and nothing has happened.
        Errors mean the same as None.
        """
        if self.backings is not None or ino in self._open:
            return None
        packed = self._open_packed(ino, node, who, invalidate) if node.kind is Kind.VIEW else None
        if packed is not None:
            return packed
        version = self._at_hand(node, with_extents=True)
        if version is None or self._is_behind(ino, node, version):
            return None
        state = self._open[ino] = self._begin(node, version)
        self._retries.drop((who, node.ino))
        age = self._age() if self._is_told_of(node, version) else None
        return self._handle(ino, state, invalidate, age if self._is_kept(ino, state, version) else None)

    def open_again(self, ino: int, who: int) -> int | None:
        """A handle for a derived file that nobody has open, was opened since anything happened to the store, and of
        which the kernel may keep the pages; else None, and nothing has happened.
        """
        if self._unchanged is None or ino in self._open:
            return None
        mark = self._opened.settled(ino)
        if not mark:
            return None
        late = self._packs.reader(ino, mark)
        if late is None:
            version = self._full.get(ino)
            if version is None:
                return None
            state = _Open(reader(version, self._fds), time.monotonic(), handles=1)
        else:
            state = _Open(late, time.monotonic(), handles=1)
        self._open[ino] = state
        self._retries.drop((who, inodes.canonical(ino)))
        return self._numbered(ino, state)

    def _open_packed(
        self, ino: int, node: Node, who: int, invalidate: Callable[[int], None]
    ) -> tuple[int, bool] | None:
        """The same as `open_now` for a file of a thread that the index has as a whole, see `packs`."""
        base, thread = ino & ~0xFF, node.thread
        if self._unchanged is None:
            return None
        if not self._packs.is_settled(base) and not self._packs.settle(thread, base, self._staying):
            return None
        outlines = self._outlined.get(thread) or self._holding(thread)
        outline = outlines.get(node.view) if isinstance(node.view, View) else None
        if outline is None:
            return None
        mark = Derived.outlined(outline).mark
        pinned = self._packs.reader(ino, mark)
        if pinned is None or pinned.size != outline.size:
            return None
        full = self._full.get(ino)
        if full is not None and full.mark != mark:
            self._full.drop(ino)
        state = self._open[ino] = _Open(pinned, time.monotonic())
        self._retries.drop((who, node.ino))
        return self._handle(ino, state, invalidate, self._opened.age)

    def _is_behind(self, ino: int, node: Node, version: Version) -> bool:
        """True for content that was being made when more of it was announced."""
        told = self._told(ino)
        return told is not None and version.size < told.size and not self._lasts(node, version)

    def _begin(self, node: Node, version: Version) -> _Open:
        """Open an inode that has no handle."""
        now = time.monotonic()
        is_raw = self.backings is not None and node.kind in _RAW and version.size >= LARGE
        whole = whole_reader(version, self._fds) if is_raw else None
        if self.backings is not None and whole is not None:
            number = self.backings.register(whole.descriptor)
            if number is not None:
                return _Open(whole, now, backing=number)
            whole.close()
        return _Open(reader(version, self._fds), now)

    def _may_have(self, state: _Open, who: int, node: Node) -> bool:
        """True when an open may be answered with content that was replaced an instant ago.

        The kernel walks the path again once, not twice. So when content is replaced again during the second walk, the
        program gets what the file had after its open began: that is right, and better than an error that it doesn't
        know.
        """
        began = self._retries.get((who, node.ino))
        if began is not None and state.seen >= began and time.monotonic() - began < _RETRY:
            return True
        self._retries.put((who, node.ino), time.monotonic())
        return False

    def _is_kept(self, ino: int, state: _Open, version: Version) -> bool:
        """True for a version that an inode shows and that `open_again` takes."""
        return version is self._full.get(ino) and version.mark == state.reader.mark

    def _handle(self, ino: int, state: _Open, invalidate: Callable[[int], None], age: int | None) -> tuple[int, bool]:
        """With `age` the mark is settled, unless the kernel has to be told something."""
        state.handles += 1
        mark = state.reader.mark
        before = self._opened.get(ino)
        keep = before == mark
        self._opened.put(ino, mark)
        told = self._told(ino)
        if (before and not keep) or (told is not None and told.size != state.reader.size):
            invalidate(ino)
        elif age is not None:
            self._opened.settle(ino, age)
        return self._numbered(ino, state), keep

    def _age(self) -> int | None:
        """Of what is settled now; None while the store isn't watched."""
        return None if self._unchanged is None else self._opened.age

    def _is_told_of(self, node: Node, version: Version) -> bool:
        """True for a derived file of a thread that stays as it is until something happens to the store that a watch
        tells of. Not so where a database was written just now, or lies elsewhere: it may say another name, and select
        another log.
        """
        if node.kind is not Kind.VIEW or not isinstance(version, Derived):
            return False
        return self._stays(node.thread, version.projection.basis)

    def _stays(self, thread: str, basis: tuple[Basis, ...]) -> bool:
        """The same of a derived file that was made from these."""
        if not basis or thread in self._engine.store.reverted():
            return False
        return all(one.mtime_ns >= 0 and not one.path.startswith("/") for one in basis)

    def _numbered(self, ino: int, state: _Open) -> int:
        number, self._next_handle = self._next_handle, self._next_handle + 1
        self._handles[number] = _Handle(ino, state)
        return number

    async def whole(self, node: Node) -> bytes:
        """The content of a small file now. Raises OSError where it can't be given."""
        pinned = reader(await self._version(node, with_extents=True), self._fds)
        try:
            return pinned.read(0, pinned.size)
        finally:
            pinned.close()

    def backing(self, handle: int) -> int | None:
        """The number of the file that the kernel is to read for a handle; None when it is to ask us."""
        return self._handles[handle].state.backing

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
        if state.backing is not None and self.backings is not None:
            self.backings.withdraw(state.backing)
        state.reader.close()
        if state.frozen or (self._epochs and inodes.canonical(ino) in self._epochs):
            self._choose(ino)

    # Epochs

    async def _follows(self, ino: int, state: _Open, node: Node, version: Version) -> bool:
        """True when an open inode shows this version; else it is frozen, and the file moves on.

        A version that took long to make may be older than what the inode shows by now, which is no reason to freeze it.
        """
        for _ in range(_ATTEMPTS):
            if state.frozen:
                return False
            if state.reader.follow(version):
                state.seen, state.sure = time.monotonic(), True
                return True
            if self._lasts(node, version):
                break
            version = await self._version(node, with_extents=True)
        if not state.frozen:
            state.frozen = True
            self.moved(node.thread)
            if self._open.get(ino) is state:
                self._choose(ino)
        return False

    def _lasts(self, node: Node, version: Version) -> bool:
        """False for a version of which we know that it is no longer that of the file."""
        return not isinstance(version, Derived) or node.kind is not Kind.VIEW or self._holds(node, version.projection)

    def _choose(self, ino: int) -> None:
        """Find a number under which the file can be shown: the one it has while that is open, else the first one.

        Neither may be frozen.
        """
        state = self._open.get(inodes.with_epoch(ino, self._epochs.get(inodes.canonical(ino), 0)))
        if state is not None and not state.frozen:
            return
        for number in range(inodes.EPOCHS):
            state = self._open.get(inodes.with_epoch(ino, number))
            if state is None or not state.frozen:
                break
        else:
            raise OSError(errno.EMFILE, "Too many old versions of this file are open")
        if number:
            self._epochs[inodes.canonical(ino)] = number
            self._highest.put(inodes.canonical(ino), max(number, self._highest.get(inodes.canonical(ino)) or 0))
        else:
            self._epochs.pop(inodes.canonical(ino), None)

    async def _kept(self, ino: int, state: _Open) -> Announced:
        """What an open inode is that shows no file of the store any more."""
        told = self._told(ino) or Announced(0, 0, 0)
        return await self._shown(ino, state, told)

    async def _shown(self, ino: int, state: _Open, told: Announced) -> Announced:
        """What the kernel may be told of an open inode that has grown: the pages with the end that it had go before.
        Who finds too many waiting for that is told what was told before.
        """
        if state.shown != state.reader.size and self._patient < _PATIENT:
            self._patient += 1
            try:
                await self._let_grow(ino, state)
            finally:
                self._patient -= 1
        told = told._replace(size=state.shown)
        if self._open.get(ino) is state:
            self._announced.put(ino, told)
        return told

    async def _let_grow(self, ino: int, state: _Open) -> None:
        if state.growing is None:
            state.growing = trio.Lock()
        async with state.growing:
            size = state.reader.size
            if state.shown < size and state.backing is None:
                await self.drop_pages(ino)
            state.shown = size  # a file that the kernel reads by itself may also have been cut

    # Versions

    async def _version(self, node: Node, *, with_extents: bool) -> Version:
        """What the file contains now."""
        for _ in range(_MOVES):
            try:
                return await self._look(node, with_extents=with_extents)
            except (KeyError, FileNotFoundError):  # archived or compressed since we looked at the folders?
                self._engine.store.refresh(anew=True)
                if node.thread not in self._engine.store:
                    raise
        return await self._look(node, with_extents=with_extents)

    async def _look(self, node: Node, *, with_extents: bool) -> Version:
        version = self._at_hand(node, with_extents=with_extents)
        if version is not None:
            return version
        if node.kind in _SEARCHES and self._searches is not None:
            return Literal(await self._searches(node))
        full = Derived.of(await self._project(node))
        self._note(node, full)
        if full.extents is not None:
            self._keep_content(node.ino, full)
        return full

    def _at_hand(self, node: Node, *, with_extents: bool) -> Version | None:
        """What the file contains now, where that can be told without waiting."""
        if node.kind is Kind.README:
            return self._readme
        if node.kind is Kind.OPERATIONS:
            return self._journal()
        if node.kind is Kind.STORE_FILE:
            return Plain.of(node.name, self._files.shown(node.name))
        if node.kind in _SEARCHES:
            return None
        if node.kind is Kind.ROLLOUT:
            rollout = self._tree.rollout_names(node.thread)[node.name]
            if not rollout.compressed:
                return Plain.of(rollout.path, self._files.shown(rollout.path))
        full = self._full.get(node.ino) if self._unchanged is not None and self._opened.settled(node.ino) else None
        known = full or self._outline(node)
        if known is not None:
            if not with_extents or not known.given:
                return known
            full = self._filled(node.ino, known)
            if full is not None:
                return full
        # Whoever asks for the size of one derived file will ask for the others, and whoever reads one will read them.
        made = {}
        if node.kind is Kind.VIEW:
            made = self._recall(node.thread) or self._engine.project_all(node.thread)
        if made:
            self._learn(node.thread, made)
            known = self._outline(node)
            if known is None or not with_extents or not known.given:
                return known
            return self._filled(node.ino, known)
        return None

    def _recall(self, thread: str) -> dict[View, Projection]:
        """Every derived file of a small thread as the index has them, if that holds; else nothing."""
        packed = self._engine.store.packed(thread)
        outlines = self._holding(thread) if packed is not None else None
        return self._engine.store.unpack(packed, outlines) if packed is not None and outlines else {}

    def _holding(self, thread: str) -> Mapping[View, Outline]:
        """What the index told of all derived files of a thread, if all of that holds, or what it tells now."""
        outlines = self._outlined.get(thread) or {}
        bases = {id(outline.basis): outline.basis for outline in outlines.values()}
        if outlines and all(self._engine.store.is_made_from(thread, basis) for basis in bases.values()):
            return outlines
        missed = self._missed.get(thread)
        if missed is not None and time.monotonic() - missed < _ASK_AGAIN:
            return {}
        outlines = self._take_over(thread)
        if not outlines:
            self._missed.put(thread, time.monotonic())
        return outlines

    def _staying(self, thread: str) -> Mapping[View, Outline]:
        """The same if it stays so until something happens to the store; else nothing."""
        outlines = self._holding(thread)
        bases = {id(outline.basis): outline.basis for outline in outlines.values()}
        return outlines if all(self._stays(thread, basis) for basis in bases.values()) else {}

    def _filled(self, ino: int, known: Derived) -> Derived | None:
        """The same with what a reader needs, if that is at hand."""
        full = self._full.get(ino)
        if full is not None and full.signature == known.signature:
            return full
        full = self._beside.get(ino)
        if full is None or full.signature != known.signature:
            return None
        self._beside.drop(ino)
        self._keep_content(ino, full)
        return full

    def _outline(self, node: Node) -> Derived | None:
        """What is known of a derived file and holds."""
        known = self._known.get(node.ino)
        if known is not None and self._holds(node, known.projection):
            return known
        if node.kind is not Kind.VIEW:
            return None
        known = self._indexed(node)
        if known is None and self._ask_index(node.thread):
            known = self._indexed(node)
        return known

    def _indexed(self, node: Node) -> Derived | None:
        """What the index told of a derived file of a thread, if that holds."""
        outlines = self._outlined.get(node.thread)
        outline = outlines.get(node.view) if outlines is not None and isinstance(node.view, View) else None
        known = None if outline is None else Derived.outlined(outline)
        return known if known is not None and self._holds(node, known.projection) else None

    def _ask_index(self, thread: str) -> bool:
        """Take over what the index knows of a thread; False when it was asked just now."""
        now, asked = time.monotonic(), self._asked.get(thread)
        if asked is not None and now - asked < _ASK_AGAIN:
            return False
        self._asked.put(thread, now)
        return bool(self._take_over(thread))

    def _take_over(self, thread: str) -> Mapping[View, Outline]:
        """What the index says now of all derived files of a thread."""
        outlines = self._engine.store.outlines(thread)
        if outlines:
            self._outlined.put(thread, outlines)
            for basis in {id(outline.basis): outline.basis for outline in outlines.values()}.values():
                self._heirs.note(thread, basis[1:])
        return outlines

    def _learn(self, thread: str, made: Mapping[View, Projection]) -> None:
        """Keep derived files that were made together. What the index says of one is enough where it is the same."""
        shared: dict[tuple[Basis, ...], tuple[Basis, ...]] = {}  # most are made from the same files
        outlines = self._outlined.get(thread) or {}
        for node in self._tree.views(thread):
            projection = made.get(node.view) if isinstance(node.view, View) else None
            if projection is None or not isinstance(node.view, View):
                continue
            basis = shared.setdefault(projection.basis, projection.basis)
            bare = Projection(None, basis, projection.generation, projection.error)
            version = Derived(bare, projection.size, projection.extents, projection.extents is not None)
            if version.extents is not None and outlines.get(node.view) == (version.size, basis, bare.generation):
                self._known.drop(node.ino)
            else:
                self._note(node, version)
            if version.extents is not None:  # of what is never opened, nothing is worth keeping for long
                self._beside.put(node.ino, version)

    def _note(self, node: Node, version: Derived) -> None:
        if node.thread:
            self._heirs.note(node.thread, version.projection.basis[1:])
        self._known.put(node.ino, version.outline())

    def _keep_content(self, ino: int, version: Derived) -> None:
        self._full.put(ino, version)
        self._opened.lift(ino)

    def _journal(self) -> Version:
        if self._operations is None or not os.path.exists(self._operations):
            return Literal(b"")
        return Plain.of(self._operations, os.stat(self._operations))

    def _holds(self, node: Node, projection: Projection) -> bool:
        if node.kind is Kind.STORE_VIEW:
            return not self._renewals[node.ino].is_due()
        if node.kind is Kind.FAMILY:
            return self._unchanged is not None and self._unchanged.get(node.ino) == projection.generation
        if node.kind is Kind.ROLLOUT:
            return all(self._is_same(one) for one in projection.basis)
        return self._engine.store.is_current(node.thread, projection)

    def _is_same(self, basis: Basis) -> bool:
        try:
            status = self._files.stat(basis.path)
        except OSError:
            return False
        now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return now == (basis.dev, basis.ino, basis.size, basis.mtime_ns)

    async def _project(self, node: Node) -> Projection:
        if isinstance(node.view, StoreView):
            with self._renewals.setdefault(node.ino, freshness.Share()):
                return await self._engine.project_store(node.view)
        if node.kind is Kind.TURN_FILE:
            return await self.turns.file(node)
        if isinstance(node.view, FamilyView):
            unchanged = self._unchanged  # another one if something happens meanwhile
            made = await self._engine.project_family(node.thread, node.view)
            if unchanged is not None:
                unchanged.put(node.ino, made.generation)
            return made
        if isinstance(node.view, View):
            return await self._engine.project(node.thread, node.view)
        return await self._engine.project_rollout(self._tree.rollout_names(node.thread)[node.name])

    def note(self, *, watched: bool) -> None:
        """Something happened to the store, so what follows from all of it may be different; or, unless it is watched,
        may be at any moment.
        """
        self._unchanged = Recent(KNOWN) if watched else None
        self._opened.disturb()
        self._sizes.disturb()
        self._packs.disturb()

    def forget(self, thread: str) -> None:
        """Make everything about a thread anew when it is asked for."""
        self._asked.drop(thread)
        for node in self._tree.views(thread):
            self._drop(node)

    def _drop(self, node: Node) -> None:
        self._outlined.drop(node.thread)
        self._known.drop(node.ino)
        self._full.drop(node.ino)
        self._beside.drop(node.ino)
