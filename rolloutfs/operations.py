"""The thin layer between pyfuse3 and the tree: numbers to nodes, nodes to replies, errors to errno.

Nothing is decided here.

What isn't defined stays at pyfuse3's default, ENOSYS, on purpose: the kernel then stops asking (flush, access;
extended attributes, too, where there are no control files).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from datetime import UTC, tzinfo

import pyfuse3
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
from threadstore.names import is_thread_id
from threadstore.store import Links

from rolloutfs import handles, labels
from rolloutfs.answers import Answers, Kept
from rolloutfs.attributes import BLOCK, Attributes, Clock, Describer
from rolloutfs.content import Contents
from rolloutfs.engine import Engine
from rolloutfs.following import Following
from rolloutfs.guarding import guarded
from rolloutfs.handles import ControlFiles
from rolloutfs.invalidating import Pages, drop_attributes
from rolloutfs.journal import Journal
from rolloutfs.nodes import TURN_FOLDERS, Kind, Listing, Node, needs_links
from rolloutfs.notices import Notices
from rolloutfs.passthrough import Door
from rolloutfs.refusing import Refusing
from rolloutfs.searches import Searches
from rolloutfs.shelves import Shelves
from rolloutfs.shelving import Shelving
from rolloutfs.shortcuts import Parts, Shortcuts
from rolloutfs.storefiles import StoreFiles
from rolloutfs.strays import is_stray
from rolloutfs.tree import Tree

_LISTED = frozenset(
    {Kind.LINEAGE, Kind.FORKS, Kind.AGENTS, Kind.ROLLOUTS, Kind.FINDINGS}
)  # whose names come from the store
_ERROR = b"user.rolloutfs.error"  # the extended attribute of control files


class Operations(Refusing):
    """The tree of one store: everything can be read, and control files take requests unless it is read-only."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self,
        engine: Engine,
        readme: bytes,
        journal: Journal,
        *,
        read_only: bool = False,
        xattrs: bool = True,
        zone: tzinfo = UTC,
    ) -> None:
        super().__init__(read_only=read_only)
        self._has_xattrs = xattrs
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
        self._door: Door | None = None
        self._answers = Answers()
        self.notices = Notices(self._drop_attributes)
        self.reach(Pages())
        self.contents.moved = self._answers.forget
        self._listings: dict[int, tuple[Node, Listing]] = {}
        self._next_listing = 1
        parts = Parts(
            *(engine, self.tree, self.contents, self.controls),
            *(clock, self._describer, self._answers, self.notices),
        )
        self.shortcuts = Shortcuts(parts, self)
        self.following = Following(parts, self.shortcuts, self._shelving, self.searches)
        self.look = self.following.look  # asked at each request
        self._uid, self._gid = os.getuid(), os.getgid()

    # Names and attributes

    @guarded
    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> EntryAttributes:
        """Find a name in a folder."""
        parent = self.shortcuts.node(parent_inode)
        if is_stray(parent, name):
            raise FUSEError(errno.ENOENT)
        if self.controls.ending:
            await self.controls.settled()
        self.look(parent_inode)
        text = os.fsdecode(name)
        if parent.kind is Kind.THREADS and text not in self._engine.store and is_thread_id(text):
            self._engine.store.refresh()
        if parent.kind is Kind.SEARCH:
            await self.searches.look_up(text)
        if parent.kind in TURN_FOLDERS:
            node = await self.contents.turns.lookup(parent, text)
        elif parent.kind in _LISTED:
            node = (await self.listing(parent)).find(text)
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
        self.look(inode)
        node = self.shortcuts.node(inode)
        kept = self._answers.of(node)
        entry = kept.entries.get(inode)
        if entry is None or not entry.attr_timeout or not self.contents.is_settled(inode):
            is_shown = node.is_link or (node.kind is Kind.SHELF and "/" in node.name)
            links = await self._links(node) if is_shown else None
            entry = self._noted(kept, node, await self._describer.measure(inode, node, links))
        return entry

    @guarded
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        """The target of a link."""
        self.look(inode)
        node = self.shortcuts.node(inode)
        if node.kind is Kind.TURN_LINK:
            return FileNameT(os.fsencode(await self.contents.turns.target(node)))
        return FileNameT(os.fsencode(self.tree.target(node, await self._links(node))))

    # Folders

    @guarded
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        """Take a snapshot of a folder, so that a listing has every name once."""
        if self.controls.ending:
            await self.controls.settled()
        self.look(inode)
        node = self.shortcuts.node(inode)
        number, self._next_listing = self._next_listing, self._next_listing + 1
        self._listings[number] = node, await self.listing(node)
        return FileHandleT(number)

    @guarded
    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        """Hand out names from a position on until the kernel's buffer is full."""
        folder, listing = self._listings[fh]
        names = listing.names
        if start_id >= len(names):
            return
        self.look(folder.ino)
        kept, kind, thread = self._answers.of(folder), folder.kind, folder.thread
        for position in range(start_id, len(names)):
            try:
                node = listing.node(position)
                if node.kind is not kind or node.thread != thread:
                    kept, kind, thread = self._answers.of(node), node.kind, node.thread
                entry = kept.entries.get(node.ino)
                if self.contents.is_open(self.contents.inode(node)):  # its number may be about to change
                    entry = self._entry(self._describer.glance(node)._replace(entry_seconds=0.0))
                elif entry is None or not entry.attr_timeout:
                    entry = self._noted(kept, node, self._describer.glance(node))
            except (OSError, KeyError):  # gone since the snapshot
                continue
            if not pyfuse3.readdir_reply(token, FileNameT(os.fsencode(names[position])), entry, position + 1):
                return
            self.tree.remember(node)
            self.notices.told(entry.st_ino)

    @guarded
    async def releasedir(self, fh: FileHandleT) -> None:
        """Drop a snapshot."""
        self._listings.pop(fh, None)

    # Files

    @guarded
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        """Open a file for reading, in the state that the store has now, or a control file."""
        if self.controls.ending:
            await self.controls.settled()
        node = self.shortcuts.node(inode)
        self.look(inode)
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
        node = self.shortcuts.node(inode)
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
        if not self._has_xattrs:
            raise FUSEError(errno.ENOSYS)
        value = await self._labels(inode, name) if name.startswith(labels.PREFIX) else None
        if value is None:
            raise FUSEError(pyfuse3.ENOATTR)
        return value

    @guarded
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        """The names that `getxattr` knows."""
        if not self._has_xattrs:
            raise FUSEError(errno.ENOSYS)
        node = self.shortcuts.node(inode)
        if node.kind is Kind.CONTROL:
            return [] if self.controls.error(node.thread) is None else [XAttrNameT(_ERROR)]
        return list(map(XAttrNameT, await self._labels_of(node))) if node.kind is Kind.THREAD else []

    async def _labels(self, inode: int, name: bytes) -> bytes | None:
        """The value of an attribute of ours; None when there is none."""
        node = self.shortcuts.node(inode)
        if node.kind is Kind.CONTROL and name == _ERROR:
            error = self.controls.error(node.thread)
            return None if error is None else error.encode("utf-8", "replace")
        if node.kind is not Kind.THREAD:
            return None
        return node.thread.encode() if name == labels.THREAD_ID else (await self._labels_of(node)).get(name)

    async def _labels_of(self, folder: Node) -> dict[bytes, bytes]:
        self.look(folder.ino)
        nodes = {node.view: node for node in self.tree.views(folder.thread)}
        return await labels.of_thread(folder.thread, lambda view: self.contents.whole(nodes[view]))

    def reach(self, pages: Pages) -> None:
        """Drop and put the kernel's pages by these."""
        self.contents.reach(pages.drop, pages.put)

    def serve_through(self, door: Door) -> None:
        """Let the kernel read large raw files by itself, where it can."""
        self._door, self.contents.backings = door, door.backings

    # The store

    def is_watched(self) -> bool:
        """True while every change of the store is heard of."""
        return self.following.is_watched()

    def _changed(self, thread: str) -> None:
        """An operation may have changed a thread."""
        self.following.changed(thread)

    def _drop_attributes(self, ino: InodeT) -> None:
        """Make the kernel ask for attributes again, and take note that it may forget others. Raises OSError."""
        drop_attributes(ino)
        self.contents.disturb(ino)

    # Translation

    async def _links(self, node: Node) -> Links | None:
        """What the tree has to be told for a node; what it shows of others is brought up to date."""
        if node.kind in (Kind.SHELF, Kind.SHELF_LINK):
            await self._shelving.ready(node.name.partition("/")[0])
        return await self._engine.links(node.thread) if needs_links(node) else None

    async def listing(self, folder: Node) -> Listing:
        """The children of a folder."""
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
        """An answer, kept while it holds."""
        entry = self._entry(attributes)
        if self.shortcuts.may_keep(node, attributes):
            kept.entries[node.ino] = entry
            self.shortcuts.keep(kept, node, attributes)
        return entry

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
