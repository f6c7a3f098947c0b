"""The bytes of the files: what open handles keep, and what the kernel may be told of files that are open.

Rules, and where they come from:

* An OPEN looks at the store.  If the content is not the one that was opened last, the kernel's pages are dropped.
* A handle keeps what it opened (FAULTS 28).  If the content only grew, its reader follows.  If it was *replaced*
  while handles are open, the inode is frozen, and the file moves to another number (`epochs`): the OPEN that noticed it
  is answered with ESTALE, upon which the kernel walks the path once more with fresh look-ups (`LOOKUP_REVAL` in
  fs/namei.c) and opens the new inode; the program sees nothing.
* The kernel may read a large raw file by itself (`backings`). Opens of both kinds of one inode can't coexist, so that
  is decided when it has no handle; such a handle reads what the file holds, without a guard against changes in place.
"""

from __future__ import annotations

import errno
import stat
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from threadstore.errors import StoreError
from threadstore.projection import SELECTION, View

from rolloutfs import inodes
from rolloutfs.backing import Backings
from rolloutfs.engine import Engine
from rolloutfs.epochs import Epochs
from rolloutfs.fds import OpenFiles
from rolloutfs.growing import Growth, Open, no_page, no_pages
from rolloutfs.lru import Recent
from rolloutfs.nodes import Kind, Node
from rolloutfs.packs import Packs
from rolloutfs.readers import Derived, Literal, Plain, Reader, Version, reader, whole_reader
from rolloutfs.slots import VIEW_SLOTS
from rolloutfs.storefiles import StoreFiles
from rolloutfs.told import Announced, Told
from rolloutfs.tree import Tree
from rolloutfs.versions import Versions

LARGE: Final = 1 << 20  # bytes from which a raw file is worth a backing file (FUSE 3)
_RAW = (Kind.ROLLOUT, Kind.STORE_FILE)
_RETRY = 30.0  # seconds that the kernel's second walk along a path may take, on a machine where all is slow
_ATTEMPTS = 4  # at a content that is replaced again and again while we look


class _Handle(NamedTuple):
    ino: int
    state: Open


Times = Callable[[Node, Version], tuple[int, int]]


def _no_matter(thread: str) -> None:
    """Hears of a thread of which a file has got another number."""


class Contents:
    """State of all files.

    Invariant: every inode in `_open` has at least one handle and a reader that is closed when the last one goes.
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
        """`operations` is the path of the journal; `searches` tells what the files below search/ say."""
        self._engine = engine
        self._tree = tree
        self._files = files
        self.backings: Backings | None = None  # where the kernel may read files by itself
        self._times = times
        self.moved: Callable[[str], None] = _no_matter
        self._fds = OpenFiles(files)
        self._versions = Versions(engine, tree, files, readme, operations, searches)
        self._outlines, self._opened = self._versions.outlines, self._versions.opened
        self._packs = Packs(engine.store, tree, self._fds)
        self._told = Told()
        self._epochs = Epochs(self._is_frozen)
        # What others ask, as it is: a walk does so many times for each thread.
        self.turns, self.lasts = self._versions.turns, self._versions.lasts
        self.inode, self.numbers, self.is_steady = self._epochs.inode, self._epochs.numbers, self._epochs.is_steady
        self.tell = self._told.put  # of a folder or a link
        self._retries: Recent[tuple[int, int], float] = Recent(256)
        self._open: dict[int, Open] = {}
        self._growth = Growth(self._open, self._let_go)
        self.disturb, self.is_settled = self._growth.disturb, self._growth.is_settled
        self._handles: dict[int, _Handle] = {}
        self._next_handle = 1

    # What the kernel is told

    def reach(
        self,
        drop_pages: Callable[[int], Awaitable[None]] = no_pages,
        put_page: Callable[[int, int, bytes], Awaitable[None]] = no_page,
    ) -> None:
        """Let these make the kernel forget all pages that it has of an inode, and take one of it: number, offset in the
        file, content.
        """
        self._growth.drop_pages, self._growth.put_page = drop_pages, put_page

    def say_how(self, told: bytes) -> None:
        """What .mount.json says, before anybody can ask."""
        self._versions.literals[Kind.MOUNT] = Literal(told)

    def announced(self, ino: int) -> Announced | None:
        """What the kernel was told last, if we remember it; of an open inode, its size in any case."""
        told, state = self._told.get(ino), self._open.get(ino)
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
            version = await self._versions.now(node, with_extents=state is not None)
            if state is None and ino in self._open:  # opened meanwhile
                version = await self._versions.now(node, with_extents=True)
            state = self._open.get(ino)
            follows = state is None or await self._follows(ino, state, node, version)
        except (KeyError, OSError, StoreError):
            state = self._open.get(ino)
            if state is not None:  # gone or damaged: who has it open keeps what they have
                state.sure = False
                return await self._kept(ino, state)
            raise
        if state is None:
            lasts = node.view in SELECTION and age is not None and age == self._age()
            if lasts and self._versions.stays(node, version):
                self._told.settle_size(ino, version.size)
            return self._tell(ino, node, version, version.size)
        if not follows:
            return await self._kept(ino, state)
        told = self._tell(ino, node, version, state.shown)
        return told if state.is_settled else await self._shown(ino, state, told)

    async def settle(self, node: Node) -> None:
        """Before a look-up is answered: if an open inode's content was replaced, move the file to another number."""
        ino = self.inode(node)
        if ino not in self._open:
            return
        try:
            version = await self._versions.now(node, with_extents=True)
        except (KeyError, OSError, StoreError):
            return
        state = self._open.get(ino)
        if state is not None:
            with suppress(KeyError, OSError, StoreError):
                await self._follows(ino, state, node, version)

    def glance(self, ino: int, node: Node) -> Announced | None:
        """Attributes that are known without computing anything; None for what has to be measured."""
        if node.kind is Kind.VIEW:
            known = None if ino in self._open else self._versions.outline(node)
            if known is None:
                return None
            return self._tell(ino, node, known, known.size)
        literal = self._versions.literals.get(node.kind)
        if literal is not None:
            return self._tell(ino, node, literal, literal.size)
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
        sizes: dict[int, int] = {}
        found = self._versions.sizes(thread, base)
        for slot in VIEW_SLOTS:
            ino = base | slot
            if ino in self._open or not self._epochs.is_own(ino):
                self._told.keep(ino)
                continue
            if slot in found:
                sizes[slot], lasts = found[slot]
                if lasts:
                    self._told.settle_size(ino, sizes[slot])
        self._told.put_together(base, sizes, times)
        return sizes

    def size_at_hand(self, node: Node) -> int | None:
        """The size in bytes of a derived file that nobody has open, if nothing has happened since it was told; else
        None.
        """
        if not self._versions.watched or node.ino in self._open or not self.is_steady(node):
            return None
        return self._told.settled_size(node.ino)

    def _tell(self, ino: int, node: Node, version: Version, size: int) -> Announced:
        mode = version.mode if node.kind is Kind.STORE_FILE and isinstance(version, Plain) else 0o400
        told = Announced(size, *self._times(node, version), mode)
        self._told.put(ino, told)
        return told

    async def open(self, ino: int, node: Node, who: int, invalidate: Callable[[int], None]) -> tuple[int, bool]:
        """A handle for thread `who`, and whether the kernel may keep the pages that it has.

        Calls `invalidate` when the kernel's attributes no longer hold. Raises OSError, ESTALE when the file is to be
        looked up again.
        """
        for left in reversed(range(_ATTEMPTS)):
            age = self._age()  # another one if something happens meanwhile
            version = await self._versions.now(node, with_extents=True)
            state = self._open.get(ino)
            if state is None:
                if left and self._is_behind(ino, node, version):  # at last it is as new as we can make it
                    continue
                try:
                    state = self._begin(ino, node, version)
                except OSError as error:
                    if error.errno in (errno.ESTALE, errno.ENOENT):  # replaced since we looked
                        self._versions.drop(node)
                        continue
                    raise
            elif not await self._follows(ino, state, node, version) and not self._may_have(state, who, node):
                raise OSError(errno.ESTALE, "The content was replaced")
            elif self._open.get(ino) is not state:  # closed by all others meanwhile
                continue
            self._retries.drop((who, node.ino))  # this walk has its answer; the next one begins anew
            lasts = age == self._age() and self._versions.stays(node, version) and self._is_kept(ino, state, version)
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
        version = self._versions.at_hand(node, with_extents=True)
        if version is None or self._is_behind(ino, node, version):
            return None
        state = self._begin(ino, node, version)
        self._retries.drop((who, node.ino))
        age = self._age() if self._versions.stays(node, version) else None
        return self._handle(ino, state, invalidate, age if self._is_kept(ino, state, version) else None)

    def open_again(self, ino: int, who: int) -> int | None:
        """A handle for a derived file that nobody has open, was opened since anything happened to the store, and of
        which the kernel may keep the pages; else None, and nothing has happened.
        """
        if not self._versions.watched or ino in self._open:
            return None
        mark = self._opened.settled(ino)
        if not mark:
            return None
        pinned: Reader | None = self._packs.reader(ino, mark)
        if pinned is None:
            version = self._versions.full(ino)
            if version is None:
                return None
            pinned = reader(version, self._fds)
        state = self._opening(ino, Open(pinned, time.monotonic(), handles=1))
        self._retries.drop((who, inodes.canonical(ino)))
        return self._numbered(ino, state)

    def _open_packed(
        self, ino: int, node: Node, who: int, invalidate: Callable[[int], None]
    ) -> tuple[int, bool] | None:
        """The same as `open_now` for a file of a thread that the index has as a whole, see `packs`."""
        base, thread = ino & ~0xFF, node.thread
        if not self._versions.watched:
            return None
        if not self._packs.is_settled(base) and not self._packs.settle(thread, base, self._outlines.staying):
            return None
        outlines = self._outlines.told(thread) or self._outlines.holding(thread)
        outline = outlines.get(node.view) if isinstance(node.view, View) else None
        if outline is None:
            return None
        mark = Derived.outlined(outline).mark
        pinned = self._packs.reader(ino, mark)
        if pinned is None:
            return None
        if pinned.size != outline.size:
            pinned.close()
            return None
        self._versions.keep_only(ino, mark)
        state = self._opening(ino, Open(pinned, time.monotonic()))
        self._retries.drop((who, node.ino))
        return self._handle(ino, state, invalidate, self._opened.age)

    def _is_behind(self, ino: int, node: Node, version: Version) -> bool:
        """True for content that was being made when more of it was announced."""
        told = self._told.get(ino)
        return told is not None and version.size < told.size and not self._versions.is_valid(node, version)

    def _opening(self, ino: int, state: Open) -> Open:
        """Take note of an inode that had no handle."""
        self._open[ino] = state
        self._growth.begin(ino, state)
        return state

    def _begin(self, ino: int, node: Node, version: Version) -> Open:
        """Open an inode that has no handle."""
        now = time.monotonic()
        is_raw = self.backings is not None and node.kind in _RAW and version.size >= LARGE
        whole = whole_reader(version, self._fds) if is_raw else None
        if self.backings is not None and whole is not None:
            number = self.backings.register(whole.descriptor)
            if number is not None:
                return self._opening(ino, Open(whole, now, backing=number))
            whole.close()
        return self._opening(ino, Open(reader(version, self._fds), now))

    def _may_have(self, state: Open, who: int, node: Node) -> bool:
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

    def _is_kept(self, ino: int, state: Open, version: Version) -> bool:
        """True for a version that an inode shows and that `open_again` takes."""
        return version is self._versions.full(ino) and version.mark == state.reader.mark

    def _handle(self, ino: int, state: Open, invalidate: Callable[[int], None], age: int | None) -> tuple[int, bool]:
        """With `age` the mark is settled, unless the kernel has to be told something."""
        state.handles += 1
        mark = state.reader.mark
        before = self._opened.get(ino)
        keep = before == mark
        self._opened.put(ino, mark)
        told = self._told.get(ino)
        if (before and not keep) or (told is not None and told.size != state.reader.size):
            invalidate(ino)
        elif age is not None:
            self._opened.settle(ino, age)
        return self._numbered(ino, state), keep

    def _age(self) -> int | None:
        """Of what is settled now; None while the store isn't watched."""
        return None if not self._versions.watched else self._opened.age

    def _numbered(self, ino: int, state: Open) -> int:
        number, self._next_handle = self._next_handle, self._next_handle + 1
        self._handles[number] = _Handle(ino, state)
        return number

    async def whole(self, node: Node) -> bytes:
        """The content of a small file now. Raises OSError where it can't be given."""
        pinned = reader(await self._versions.now(node, with_extents=True), self._fds)
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
        self._let_go(closed.ino, closed.state)

    def _let_go(self, ino: int, state: Open) -> None:
        state.handles -= 1
        if state.handles:
            return
        del self._open[ino]
        self._growth.end(ino, state)
        if state.backing is not None and self.backings is not None:
            self.backings.withdraw(state.backing)
        state.reader.close()
        if state.frozen or self._epochs.is_moved(ino):
            self._epochs.choose(ino)

    # Content that changes while it is open

    def _is_frozen(self, ino: int) -> bool | None:
        state = self._open.get(ino)
        return None if state is None else state.frozen

    async def _follows(self, ino: int, state: Open, node: Node, version: Version) -> bool:
        """True when an open inode shows this version; else it is frozen, and the file moves on.

        A version that took long to make may be older than what the inode shows by now, which is no reason to freeze it.
        """
        for _ in range(_ATTEMPTS):
            if state.frozen:
                return False
            if state.reader.follow(version):
                state.seen, state.sure = time.monotonic(), True
                return True
            if self._versions.is_valid(node, version):
                break
            version = await self._versions.now(node, with_extents=True)
        if not state.frozen:
            state.frozen = True
            self.moved(node.thread)
            if self._open.get(ino) is state:
                self._epochs.choose(ino)
        return False

    async def _kept(self, ino: int, state: Open) -> Announced:
        """What an open inode is that shows no file of the store any more."""
        return await self._shown(ino, state, self._told.get(ino) or Announced(0, 0, 0))

    async def _shown(self, ino: int, state: Open, told: Announced) -> Announced:
        """What the kernel may be told of an open inode that may have grown, or of which it may have forgotten what it
        was told.
        """
        await self._growth.let_grow(ino, state)
        told = told._replace(size=state.shown)
        if self._open.get(ino) is state:
            self._told.put(ino, told)
        return told

    # What happens to the store

    def note(self, *, watched: bool) -> None:
        """Something happened to the store, so what follows from all of it may be different; or, unless it is watched,
        may be at any moment.
        """
        self._versions.note(watched=watched)
        self._told.disturb()
        self._packs.disturb()

    def close_deleted(self) -> None:
        """Files may have gone from the store: don't keep those open that nobody reads."""
        self._fds.close_deleted()

    def forget(self, thread: str) -> None:
        """Make everything about a thread anew when it is asked for."""
        self._versions.forget(thread)

    def heirs(self, path: str) -> set[str]:
        """The threads that something was made for from a file of this name which isn't their selected rollout."""
        return self._versions.heirs.of(path)

    def bury(self, threads: set[str]) -> None:
        """These threads are gone. Should one come back, everything is made anew, and its heirs are known again."""
        self._versions.heirs.forget(threads)
        for thread in threads:
            self.forget(thread)
