"""The thin layer between pyfuse3 and the tree: numbers to nodes, nodes to replies, errors to errno.

Nothing is decided here.

What isn't defined stays at pyfuse3's default, ENOSYS, on purpose: the kernel then stops asking (flush, access;
extended attributes, too, where there are no control files).
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
    XAttrNameT,
)
from threadstore import databases
from threadstore.names import is_thread_id, parse_rollout
from threadstore.store import Links

from rolloutfs import freshness, handles, labels, listings
from rolloutfs.answers import Answers, Kept
from rolloutfs.attributes import BLOCK, Attributes, Clock, Describer
from rolloutfs.content import Contents
from rolloutfs.engine import Engine
from rolloutfs.guarding import guarded
from rolloutfs.handles import ControlFiles
from rolloutfs.journal import Journal
from rolloutfs.listings import Stream, Streams
from rolloutfs.lru import Recent
from rolloutfs.nodes import OF_TURNS, TURN_FOLDERS, Kind, Listing, Node, Place, needs_links
from rolloutfs.notices import Notices
from rolloutfs.passthrough import Door
from rolloutfs.refusing import Refusing
from rolloutfs.searches import Searches
from rolloutfs.shelves import Shelves
from rolloutfs.shelving import Shelving
from rolloutfs.slots import README, ROOT
from rolloutfs.storefiles import StoreFiles
from rolloutfs.strays import is_stray
from rolloutfs.tree import Tree
from rolloutfs.watch import Changes, Watch

log = logging.getLogger(__name__)


def _nobody(_threads: set[str]) -> None:
    """Where nobody needs to know."""


_LISTED = frozenset(
    {Kind.LINEAGE, Kind.FORKS, Kind.AGENTS, Kind.ROLLOUTS, Kind.FINDINGS}
)  # whose names come from the store
_APART = frozenset({ROOT, README})  # what is known of these doesn't depend on which threads there are
_ERROR = b"user.rolloutfs.error"  # the extended attribute of control files
_READ = frozenset({Kind.VIEW, Kind.ROLLOUT, Kind.STORE_FILE})  # what is read most
_LIVELY = 1024  # threads of which it is remembered when they changed
_LINKED = 50_000  # folders whose names follow from links that the kernel may keep the names of


class Operations(Refusing):
    """The tree of one store: everything can be read, and control files take requests unless it is read-only."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self, engine: Engine, readme: bytes, journal: Journal, *, read_only: bool = False, zone: tzinfo = UTC
    ) -> None:
        super().__init__(read_only=read_only)
        files = StoreFiles(engine.store.root)
        shelves = Shelves(zone, masked=engine.store.mask is not None)
        self._shelving = Shelving(engine, shelves, self.is_watched)
        self.searches = Searches(engine, self.is_watched, zone)
        clock = Clock(engine.store, files, self.searches.time, shelves)
        self.tree = Tree(engine.store, files, controls=not read_only, shelves=shelves)
        self.contents = Contents(
            engine, self.tree, files, readme, clock.of_content, journal.path, self.searches.content
        )
        self.controls = ControlFiles(engine, journal, self._changed)
        self._engine = engine
        self._describer = Describer(engine.store, files, self.tree, self.contents, clock, self.controls.size)
        self._rescans = freshness.Rescans(self._refresh)
        self._watch: Watch | None = None
        self._door: Door | None = None
        self.touched: Callable[[set[str]], None] = _nobody  # is told of threads that have changed
        self._answers = Answers()
        self.notices = Notices(_invalidate)
        self.contents.drop_pages, self.contents.moved = _drop_pages, self._answers.forget
        self._heads: dict[str, str] | None = None  # selected paths of the threads that have several rollouts
        self._heads_looked = freshness.Share()
        self._heads_moved = False
        self._listings: dict[int, tuple[Node, Listing]] = {}
        self._keeps_names = False
        self._streams = Streams()
        self._linked: dict[int, None] = {}  # folders whose names the kernel may have, and follow from links
        self._links_version = 0  # of the store, for which they hold
        self._stirred: Recent[str, float] = Recent(_LIVELY)  # when a thread last changed (s, monotonic)
        self._clock = clock
        self._next_listing = 1
        self._uid, self._gid = os.getuid(), os.getgid()

    # Names and attributes

    @guarded
    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> EntryAttributes:
        """Find a name in a folder."""
        parent = self._node(parent_inode)
        if is_stray(parent, name):
            raise FUSEError(errno.ENOENT)
        if self.controls.ending:
            await self.controls.settled()
        self._look(parent_inode)
        text = os.fsdecode(name)
        if parent.kind is Kind.THREADS and text not in self._engine.store and is_thread_id(text):
            self._engine.store.refresh()
        if parent.kind is Kind.SEARCH:
            await self.searches.look_up(text)
        if parent.kind in TURN_FOLDERS:
            node = await self.contents.turns.lookup(parent, text)
        elif parent.kind in _LISTED:
            node = (await self._listing(parent)).find(text)
        else:
            if parent.kind is Kind.SHELF:
                await self._links(parent)
            node = self.tree.lookup(parent, text)
        kept = self._answers.of(node)
        entry = kept.entries.get(node.ino)
        if entry is None or not entry.attr_timeout:
            await self.contents.settle(node)
            attributes = self._describer.glance(node)
            if not attributes.attr_seconds and node.kind is Kind.VIEW and self._engine.is_small(node.thread):
                attributes = await self._describer.measure(attributes.ino, node, None)  # it will be asked for at once
            entry = self._noted(kept, node, attributes)
        self.tree.remember(node)
        self.notices.told(entry.st_ino)
        return entry

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """Drop what was remembered for the kernel. Must not fail."""
        for ino, lookups in inode_list:
            self.tree.forget(ino, lookups)

    @guarded
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        """Exact attributes."""
        if self.controls.ending:
            await self.controls.settled()
        self._look(inode)
        node = self._node(inode)
        kept = self._answers.of(node)
        entry = kept.entries.get(inode)
        if entry is None or not entry.attr_timeout:
            is_shown = node.is_link or (node.kind is Kind.SHELF and "/" in node.name)
            links = await self._links(node) if is_shown else None
            entry = self._noted(kept, node, await self._describer.measure(inode, node, links))
        return entry

    @guarded
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        """The target of a link."""
        self._look(inode)
        node = self._node(inode)
        if node.kind is Kind.TURN_LINK:
            return FileNameT(os.fsencode(await self.contents.turns.target(node)))
        return FileNameT(os.fsencode(self.tree.target(node, await self._links(node))))

    # Folders

    @guarded
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        """Take a snapshot of a folder, so that a listing has every name once."""
        if self.controls.ending:
            await self.controls.settled()
        self._look(inode)
        node = self._node(inode)
        number, self._next_listing = self._next_listing, self._next_listing + 1
        self._listings[number] = node, await self._listing(node)
        return FileHandleT(number)

    @guarded
    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        """Hand out names from a position on until the kernel's buffer is full."""
        folder, listing = self._listings[fh]
        names = listing.names
        if start_id >= len(names):
            return
        self._look(folder.ino)
        kept, kind, thread = self._answers.of(folder), folder.kind, folder.thread
        for position in range(start_id, len(names)):
            try:
                node = listing.node(position)
                if node.kind is not kind or node.thread != thread:
                    kept, kind, thread = self._answers.of(node), node.kind, node.thread
                entry = kept.entries.get(node.ino)
                if entry is None or not entry.attr_timeout:
                    entry = self._noted(kept, node, self._describer.glance(node))
            except (OSError, KeyError):  # gone since the snapshot
                continue
            if not pyfuse3.readdir_reply(token, _encoded(names[position]), entry, position + 1):
                return
            self.tree.remember(node)
            self.notices.told(entry.st_ino)

    @guarded
    async def releasedir(self, fh: FileHandleT) -> None:
        """Drop a snapshot."""
        self._listings.pop(fh, None)

    # What is answered at once, see `atonce`

    def lookup_now(self, parent_inode: int, name: bytes) -> bytes | None:
        """An entry that is known."""
        parent = self._node(parent_inode)
        if self.controls.ending or parent.kind not in (Kind.THREAD, Kind.THREADS) or is_stray(parent, FileNameT(name)):
            return None
        self._look(parent_inode)
        text = os.fsdecode(name)
        if parent.kind is Kind.THREADS and text not in self._engine.store and is_thread_id(text):
            return None
        try:
            node = self.tree.lookup(parent, text)
        except KeyError:
            raise FUSEError(errno.ENOENT) from None
        entry = self._answers.of(node).packed.get(node.ino)
        if entry is not None:
            self.tree.remember(node)
            self.notices.told(node.ino)
        return entry

    def getattr_now(self, inode: int) -> bytes | None:
        """Attributes that are known."""
        if self.controls.ending:
            return None
        self._look(inode)
        return self._answers.of(self._node(inode)).packed.get(inode)

    def readlink_now(self, inode: int) -> bytes | None:
        """The target of a link that follows from one thread."""
        node = self._node(inode)
        if node.kind not in (Kind.CURRENT, Kind.TURNS_LINK, Kind.ROOT_LINK):
            return None
        self._look(inode)
        return os.fsencode(self.tree.target(node))

    def open_now(self, inode: int, flags: int, pid: int) -> tuple[int, bool] | None:
        """A handle for reading a file whose content is at hand, and whether the kernel may keep its pages."""
        node = self._node(inode)
        if self.controls.ending or node.kind not in _READ or flags & (os.O_ACCMODE | os.O_TRUNC):
            return None
        self._look(inode)
        return self.contents.open_now(inode, node, pid, self.notices.give)

    def read_now(self, handle: int, offset: int, size: int) -> bytes | None:
        """Bytes of a file that isn't a control file."""
        return None if handle >= handles.FIRST else self.contents.read(handle, offset, size)

    def release_now(self, handle: int) -> bytes | None:
        """Close a file that isn't a control file."""
        if handle >= handles.FIRST:
            return None
        self.contents.release(handle)
        return b""

    def forget_now(self, inode: int, lookups: int) -> None:
        """Drop what was remembered for the kernel."""
        self.tree.forget(inode, lookups)

    # Folders of which the kernel keeps the names, see `gate` and `listings`

    def keep_names(self) -> None:
        """From now on the kernel keeps names, and is told when they change."""
        self._keeps_names = True

    def list_now(self, inode: int, offset: int, size: int) -> bytes | None:
        """Names from an offset on, with their attributes; None when they have to be waited for."""
        self._look(inode)
        stream = self._streams.find(offset, inode)
        if stream is None:
            folder = self._node(inode)
            if self.controls.ending or not self._is_near(folder):
                return None
            links = self._engine.store.links(folder.thread) if needs_links(folder) else None
            kept = self._answers.of(folder)
            listing = kept.listings.get(inode)
            if listing is None:
                listing = kept.listings[inode] = self.tree.listing(folder, links)
            stream = self._streams.begin(folder, listing)
        return self._page(stream, listings.number_at(offset), size)

    async def list_later(self, inode: int, offset: int, size: int) -> bytes:
        """The same, after waiting."""
        if self.controls.ending:
            await self.controls.settled()
        self._look(inode)
        folder = self._node(inode)
        stream = self._streams.begin(folder, await self._listing(folder))
        stream.changed = True  # perhaps, meanwhile
        return self._page(stream, listings.number_at(offset), size)

    def _is_near(self, folder: Node) -> bool:
        """True for a folder that is listed without waiting."""
        if folder.kind in TURN_FOLDERS or folder.kind in (Kind.FINDINGS, Kind.SHELF):
            return False
        return not needs_links(folder) or self._engine.has_links()

    def _page(self, stream: Stream, start: int, size: int) -> bytes:
        """As many entries as have room; none at the end."""
        folder, listing = stream.folder, stream.listing
        names, parts = listing.names, []
        kept, kind, thread = self._answers.of(folder), folder.kind, folder.thread
        if kind is Kind.THREAD and start == 0 and self.is_watched():
            self._learn_files(thread, kept)
        for number in range(start, len(names) + listings.DOTS):
            offset = stream.position(number + 1)
            if number < listings.DOTS:
                part = listings.dot(b"." * (number + 1), folder.ino if number == 0 else self.tree.above(folder), offset)
                told = 0
            else:
                position = number - listings.DOTS
                try:
                    node = listing.node(position)
                    if node.kind is not kind or node.thread != thread:
                        kept, kind, thread = self._answers.of(node), node.kind, node.thread
                    entry = kept.packed.get(node.ino)
                    if entry is None:
                        entry = self._packed(kept, node)
                except (OSError, KeyError):  # gone since the snapshot
                    continue
                told = int.from_bytes(entry[:8], "little")
                part = listings.directory_entry(_encoded(names[position]), told, offset, entry)
            size -= len(part)
            if size < 0:
                break
            parts.append(part)
            if told:
                self.tree.remember(node)
                self.notices.told(told)
        if not parts:
            self._finish(stream)
        return b"".join(parts)

    def _learn_files(self, thread: str, kept: Kept) -> None:
        """What `_packed` would say of the derived files of a thread, where that is plain."""
        nodes = [node for node in self.tree.views(thread) if node.ino not in kept.packed]
        for told in self._describer.glance_all(thread, nodes) if nodes else ():
            kept.packed[told.ino] = listings.packed(told, self._uid, self._gid, BLOCK)

    def _packed(self, kept: Kept, node: Node) -> bytes:
        """What the kernel is told of a node in a listing; kept as `_noted` keeps it."""
        attributes = self._describer.glance(node)
        entry = listings.packed(attributes, self._uid, self._gid, BLOCK)
        if attributes.attr_seconds and self._may_keep(node, attributes):
            kept.packed[node.ino] = entry
        return entry

    def _finish(self, stream: Stream) -> None:
        """Before the end of a listing is told: see that the kernel doesn't keep names that it may not."""
        self._streams.end(stream)
        folder = stream.folder
        if stream.changed or folder.kind not in listings.KEPT or not self.is_watched() or self._is_lively(folder):
            _drop_names(folder.ino)
        elif folder.kind in listings.LINKED:
            self._linked[folder.ino] = None
            if len(self._linked) > _LINKED:
                oldest = next(iter(self._linked))
                del self._linked[oldest]
                _drop_names(oldest)

    def _is_lively(self, folder: Node) -> bool:
        """True for a folder of a thread that is being written to. Who lists it asks us, so that what comes with the
        names, sizes above all, is never older than the question.
        """
        stirred = self._stirred.get(folder.thread)
        if stirred is not None and time.monotonic() - stirred < freshness.QUIET:
            return True
        try:
            mtime, _ = self._clock.of_thread(folder.thread)
        except KeyError:  # gone meanwhile
            return True
        return self._describer.patience.seconds(mtime) < freshness.QUIET

    def _look_at_links(self) -> None:
        """Rollouts came or went: names of links between threads may be different."""
        self._links_version = self._engine.store.version
        for ino in self._linked:
            _drop_names(ino)
        self._linked.clear()

    def _forget_names(self) -> None:
        """Nobody will tell of changes any more: make the kernel forget all names that it may have kept."""
        self._look_at_links()
        for thread in self._engine.store.thread_ids():
            for node in self.tree.folders(thread):
                _drop_names(node.ino)

    # Files

    @guarded
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        """Open a file for reading, in the state that the store has now, or a control file."""
        if self.controls.ending:
            await self.controls.settled()
        node = self._node(inode)
        self._look(inode)
        if node.kind is Kind.CONTROL:
            self._engine.store.head(node.thread)  # KeyError when the thread is gone
            number = self.controls.open(node.thread, node.name, writable=bool(flags & os.O_ACCMODE))
            return FileInfo(fh=FileHandleT(number), direct_io=True, keep_cache=False)
        if flags & (os.O_ACCMODE | os.O_TRUNC):
            self._refuse(errno.EACCES)
        handle, keep = await self.contents.open(inode, node, ctx.pid, self.notices.give)
        backing = self.contents.backing(handle)
        if backing is not None and self._door is not None:
            return self._door.answer(handle, backing)
        return FileInfo(fh=FileHandleT(handle), keep_cache=keep)

    @guarded
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Bytes of an open file; fewer than asked for only at its end."""
        return await self.controls.read(fh, off, size) if fh >= handles.FIRST else self.contents.read(fh, off, size)

    @guarded
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        """A request. It is done before this returns, but for what runs in the background."""
        if fh < handles.FIRST:
            self._refuse(errno.EBADF)
        await self.controls.write(fh, off, buf)
        return len(buf)

    @guarded
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        """The end of a text, with its errors. Everything else is on the disk when its write returns."""
        if fh >= handles.FIRST:
            await self.controls.sync(fh)

    @guarded
    async def release(self, fh: FileHandleT) -> None:
        """Close a file."""
        if fh >= handles.FIRST:
            await self.controls.release(fh)
        else:
            self.contents.release(fh)

    @guarded
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        """A file system without a size of its own."""
        answer = StatvfsData()
        answer.f_bsize = answer.f_frsize = 4096
        answer.f_blocks = answer.f_bfree = answer.f_bavail = 0
        answer.f_files = len(self._engine.store.thread_ids())
        answer.f_ffree = answer.f_favail = 0
        answer.f_namemax = 255
        return answer

    @guarded
    async def setattr(
        self, inode: InodeT, attr: EntryAttributes, fields: SetattrFields, fh: FileHandleT | None, ctx: RequestContext
    ) -> EntryAttributes:
        """What programs do before or after they write a file means nothing for a control file, and changes nothing: its
        mode stays 0600, so that `cp -p` and `rsync` don't fail after the request was done. A new owner is refused.
        """
        node = self._node(inode)
        own = node.kind is Kind.CONTROL
        own = own and not (fields.update_uid and attr.st_uid != self._uid)
        own = own and not (fields.update_gid and attr.st_gid != self._gid)
        if not own:
            self._refuse(errno.EPERM)
        return self._entry(await self._describer.measure(inode, node, None))

    # Extended attributes

    @guarded
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        """Of a control file, why the last request that came to nothing did; of a thread's folder, see `labels`."""
        value = None if self._read_only or not name.startswith(labels.PREFIX) else await self._labels(inode, name)
        if value is None:
            raise FUSEError(errno.ENOSYS if self._read_only else pyfuse3.ENOATTR)
        return value

    @guarded
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        """The names that `getxattr` knows."""
        if self._read_only:
            raise FUSEError(errno.ENOSYS)
        node = self._node(inode)
        if node.kind is Kind.CONTROL:
            return [] if self.controls.error(node.thread) is None else [XAttrNameT(_ERROR)]
        return list(map(XAttrNameT, await self._labels_of(node))) if node.kind is Kind.THREAD else []

    async def _labels(self, inode: int, name: bytes) -> bytes | None:
        """The value of an attribute of ours; None when there is none."""
        node = self._node(inode)
        if node.kind is Kind.CONTROL and name == _ERROR:
            error = self.controls.error(node.thread)
            return None if error is None else error.encode("utf-8", "replace")
        if node.kind is not Kind.THREAD:
            return None
        return node.thread.encode() if name == labels.THREAD_ID else (await self._labels_of(node)).get(name)

    async def _labels_of(self, folder: Node) -> dict[bytes, bytes]:
        self._look(folder.ino)
        nodes = {node.view: node for node in self.tree.views(folder.thread)}
        return await labels.of_thread(folder.thread, lambda view: self.contents.whole(nodes[view]))

    def serve_through(self, door: Door) -> None:
        """Let the kernel read large raw files by itself, where it can."""
        self._door, self.contents.backings = door, door.backings

    # Changes of the store

    def use(self, watch: Watch) -> None:
        """Rely on a watch that tells `note` of every change, for as long as it is active."""
        self._watch = watch
        if self._engine.store.is_scanned:  # what changed between that scan and the watch was heard by nobody
            self._engine.store.refresh()
        self._answers.start()
        self._shelving.doubt()
        self.contents.note(watched=True)
        self._heads_moved = True  # note them before anything is told for long
        self._describer.patience.watched = True

    def is_watched(self) -> bool:
        """True while every change of the store is heard of."""
        return self._watch is not None and self._watch.is_active

    def _look(self, inode: int) -> None:
        """Before an answer about an inode: take note of what happened to the store until now."""
        if inode in _APART:
            return
        if self._watch is not None and self._watch.is_active:
            self._watch.drain()
            if self._heads_moved and self._heads_looked.is_due():
                self._look_at_heads()
        else:
            self._rescans.perhaps()
        if self._links_version != self._engine.store.version:
            self._look_at_links()

    def note(self, changes: Changes) -> None:
        """Something happened to the store: make the kernel ask again for what may be different now. Doesn't fail: what
        can't be taken note of ends the watch, and the store is looked at each time instead.
        """
        try:
            self._note(changes)
        except Exception:
            log.exception("%r could not be taken note of", changes)
            if self._watch is not None:
                self._watch.close()
        if self._watch is not None and not self._watch.is_active:
            self._describer.patience.watched = False
            self._answers.stop()
            self.contents.note(watched=False)
            if self._keeps_names:
                self._forget_names()

    def _note(self, changes: Changes) -> None:
        store = self._engine.store
        touched: set[str] = set()
        self._answers.note(changes)
        self._streams.note()
        self.contents.note(watched=True)
        if changes.folders or changes.everything:
            touched = self._refresh()
            self._invalidate_root()
        if changes.everything:
            touched = set(store.thread_ids())
            self._shelving.doubt()
        for path in changes.files:
            touched |= self.contents.heirs(path)
            rollout = parse_rollout(path)
            if rollout is not None:
                touched.add(rollout.thread_id)
            elif databases.is_part(path):
                self._heads_moved = True
            for place in self.tree.known_in_store(path):
                self._renew(place)
        for path in changes.folders:
            for place in self.tree.known_in_store(path):
                self._renew(place)
        self._shelving.forget(touched)
        for thread in touched:
            self._invalidate_thread(thread)
        if self._links_version != store.version:
            self._look_at_links()
        self._bury({thread for thread in touched if thread not in store})
        self._tell(touched)

    def _bury(self, gone: set[str]) -> None:
        """These threads are no longer in the store: keep no more of them than the kernel may ask for."""
        for thread in gone:
            _drop_entry(self.tree.threads, thread)
        if gone:
            self.contents.bury(gone)
            self.tree.bury(gone)

    def _tell(self, threads: set[str]) -> None:
        """Let those know who keep something of all threads."""
        self.searches.note(threads)
        self.touched(threads)

    def _refresh(self) -> set[str]:
        """Look for rollouts that came or went; their threads. What is said of these depends on which ones there are."""
        store = self._engine.store
        touched = store.refresh()
        for thread in touched:
            if thread in store:
                self.contents.forget(thread)
        if not self.is_watched():
            self._bury({thread for thread in touched if thread not in store})
        return touched

    def _look_at_heads(self) -> None:
        """The database was written: which threads go on from another rollout than before?"""
        self._heads_moved = False
        with self._heads_looked:
            now = {thread: self._engine.store.head(thread).path for thread in self._engine.store.reverted()}
        before = now if self._heads is None else self._heads
        for thread, path in now.items():
            if before.get(thread) != path:  # or it has only just got another rollout
                self._invalidate_thread(thread)
                self._tell({thread})
        self._heads = now

    def _changed(self, thread: str) -> None:
        """Make the kernel ask again for what an operation on a thread may have changed."""
        self._shelving.forget({thread})
        self._invalidate_root()
        self._invalidate_thread(thread)
        if self._links_version != self._engine.store.version:
            self._look_at_links()

    def _invalidate_root(self) -> None:
        for node in (*self.tree.root_nodes(), self.tree.root):
            for ino in self.contents.numbers(node):
                self.notices.give(ino)

    def _invalidate_thread(self, thread: str) -> None:
        self._answers.forget(thread)
        self._streams.note()
        self._stirred.put(thread, time.monotonic())
        if thread not in self._engine.store:
            return
        folder = self.tree.folder(thread)
        self.notices.give(folder.ino)
        if self._keeps_names:
            for node in self.tree.folders(thread):
                _drop_names(node.ino)
        for place in (*self.tree.known_rollouts(thread), *self.tree.family(thread)):
            self._renew(place)

    def _renew(self, place: Place) -> None:
        """Make the kernel ask again for a file; and for its name while it is open, since the number may have to change
        for who asks next.
        """
        numbers = self.contents.numbers(place.node)
        for ino in numbers:
            self.notices.give(ino)
        if place.folder is not None and any(map(self.contents.is_open, numbers)):
            _drop_entry(place.folder, place.name)

    # Translation

    def _node(self, ino: int) -> Node:
        try:
            return self.tree.node(ino)
        except KeyError:
            raise FUSEError(errno.ESTALE) from None

    async def _links(self, node: Node) -> Links | None:
        """What the tree has to be told for a node; what it shows of others is brought up to date."""
        if node.kind in (Kind.SHELF, Kind.SHELF_LINK):
            await self._shelving.ready(node.name.partition("/")[0])
        return await self._engine.links(node.thread) if needs_links(node) else None

    async def _listing(self, folder: Node) -> Listing:
        if folder.kind in TURN_FOLDERS:
            return await self.contents.turns.listing(folder)
        if folder.kind is Kind.FINDINGS:
            return await self.searches.listing(self.tree, folder)
        kept = self._answers.of(folder)
        listing = kept.listings.get(folder.ino)
        if listing is None:
            listing = kept.listings[folder.ino] = self.tree.listing(folder, await self._links(folder))
        return listing

    def _noted(self, kept: Kept, node: Node, attributes: Attributes) -> EntryAttributes:
        """An answer, kept unless something else than the store may change it: a request to a control file, the next
        moment, or the end of somebody's reading an older content of the file. Nor are those about what a thread may
        have any number of: single turns, and queries that found it.
        """
        entry = self._entry(attributes)
        if self._may_keep(node, attributes):
            kept.entries[node.ino] = entry
            if self._keeps_names and attributes.attr_seconds:
                kept.packed[node.ino] = listings.packed(attributes, self._uid, self._gid, BLOCK)
        return entry

    def _may_keep(self, node: Node, attributes: Attributes) -> bool:
        return (
            node.kind is not Kind.CONTROL
            and node.kind not in OF_TURNS
            and node.kind is not Kind.FINDING
            and attributes.ino == node.ino
            and self.contents.is_steady(node)
            and self.contents.lasts(node)
        )

    def _entry(self, attributes: Attributes) -> EntryAttributes:
        entry = EntryAttributes()
        entry.st_ino = InodeT(attributes.ino)
        entry.generation = 0
        entry.entry_timeout = attributes.entry_seconds
        entry.attr_timeout = attributes.attr_seconds
        entry.st_mode = ModeT(attributes.mode)
        entry.st_nlink = attributes.nlink
        entry.st_uid, entry.st_gid = self._uid, self._gid
        entry.st_size = attributes.size
        entry.st_blksize = BLOCK
        entry.st_blocks = (attributes.size + 511) // 512
        entry.st_atime_ns = entry.st_mtime_ns = attributes.mtime_ns
        entry.st_ctime_ns = attributes.ctime_ns
        return entry


def _encoded(name: str) -> FileNameT:
    return FileNameT(name.encode() if name.isascii() else os.fsencode(name))


def _drop_entry(folder: Node, name: str) -> None:
    """Make the kernel look a name up again; done by a thread of pyfuse3's, since it would deadlock here (FUSE 6.2)."""
    pyfuse3.invalidate_entry_async(InodeT(folder.ino), FileNameT(os.fsencode(name)), 0, ignore_enoent=True)


def _drop_names(ino: int) -> None:
    """Make the kernel forget the names in a folder. No request waits for a page of a folder, so this doesn't."""
    _forget_pages(ino)


async def _drop_pages(ino: int) -> None:
    """Make the kernel forget what it has of an inode, pages included. It waits for those that are being read, so
    another thread does it while we answer the reads.
    """
    await trio.to_thread.run_sync(_forget_pages, ino, abandon_on_cancel=True)


def _forget_pages(ino: int) -> None:
    try:
        pyfuse3.invalidate_inode(InodeT(ino), attr_only=False)
    except OSError as error:
        if error.errno != errno.ENOENT:
            log.warning("invalidate_inode failed: %s", error)


def _invalidate(ino: InodeT) -> None:
    pyfuse3.invalidate_inode(ino, attr_only=True)
