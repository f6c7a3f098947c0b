"""Requests that are answered from what is at hand: the answers as the kernel reads them, made without a handler.

`atonce` and `gate` know how requests are written, `listings` how listings are. What is anything but plain is left to
the handlers in `operations`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyfuse3 import FileNameT, FUSEError
from threadstore.names import is_thread_id

from rolloutfs import freshness, handles, listings
from rolloutfs.answers import Answers, Kept
from rolloutfs.attributes import BLOCK, Attributes, Clock, Describer, Sheet
from rolloutfs.content import Contents
from rolloutfs.engine import Engine
from rolloutfs.handles import ControlFiles
from rolloutfs.invalidating import drop_names
from rolloutfs.listings import Layout, Stream, Streams
from rolloutfs.lru import Recent
from rolloutfs.nodes import OF_TURNS, TURN_FOLDERS, Kind, Listing, Node, needs_links
from rolloutfs.notices import Notices
from rolloutfs.numbered import Numbered
from rolloutfs.slots import CURRENT, FIXED_THREAD, OF_REVERTS, TURNS, VIEW_SLOTS
from rolloutfs.strays import is_stray
from rolloutfs.tree import Tree

_READ: Final = frozenset({Kind.VIEW, Kind.ROLLOUT, Kind.STORE_FILE})  # what is read most
#: What has the times of its thread and follows from that alone.
_OF_THREAD: Final = frozenset({Kind.THREAD, Kind.ROLLOUTS, Kind.LINEAGE, Kind.FORKS, Kind.AGENTS})
_LIVELY: Final = 1024  # threads of which it is remembered when they changed
_NONE: Final = frozenset[int]()
_LINKED: Final = 200_000  # threads that the kernel may keep names of which follow from links, 16 bytes each
_BITS: Final = {
    slot: 1 << number
    for number, slot in enumerate(slot for slot, row in FIXED_THREAD.items() if row[1] in listings.LINKED)
}


@dataclass(frozen=True, slots=True)
class Parts:
    """What answers are made of."""

    engine: Engine
    tree: Tree
    contents: Contents
    controls: ControlFiles
    clock: Clock
    describer: Describer
    answers: Answers
    notices: Notices


class Looking(Protocol):
    """Who knows what happens to the store."""

    def look(self, inode: int) -> None:
        """Before an answer about an inode: take note of what happened to the store until now."""

    def is_watched(self) -> bool:
        """True while every change of the store is heard of."""

    def listing(self, folder: Node) -> Coroutine[Any, Any, Listing]:
        """The children of a folder, waited for."""


class Shortcuts:
    """A `gate.Folders`. Invariant: `_linked` has every folder whose names follow from links and may be the kernel's, as
    bits of `_BITS` by the number of its thread's folder; they hold for the version `_links_version` of the store.
    """

    def __init__(self, parts: Parts, looking: Looking) -> None:
        self._parts = parts
        self._engine, self._tree, self._contents = parts.engine, parts.tree, parts.contents
        self._controls, self._clock, self._describer = parts.controls, parts.clock, parts.describer
        self._answers, self._notices = parts.answers, parts.notices
        self._looking = looking
        self._streams = Streams()
        self._stirred: Recent[str, float] = Recent(_LIVELY)  # when a thread last changed (s, monotonic)
        self._linked = Numbered[int]()
        self._links_version = 0
        self._keeps_names = False
        self._uid, self._gid = os.getuid(), os.getgid()
        tree, links = parts.tree, {TURNS: len(parts.tree.target(Node(0, Kind.TURNS_LINK)))}
        shapes = (tree.rows_in_thread, tree.rows_alone, tree.rows_in_rollouts, ())
        self._controls_in = [(row.slot, row.name) for row in tree.rows_in_thread if row.kind is Kind.CONTROL]
        self._in_thread, self._alone, self._current, self._empty = (
            Layout(rows, links, self._uid, self._gid, BLOCK) for rows in shapes
        )
        self._views_in = {id(one): VIEW_SLOTS.keys() & {*one.slots} for one in (self._in_thread, self._alone)}

    def node(self, ino: int) -> Node:
        """The node of a number that the kernel knows."""
        try:
            return self._tree.node(ino)
        except KeyError:
            raise FUSEError(errno.ESTALE) from None

    # Single requests, see `atonce`

    def lookup_now(self, parent_inode: int, name: bytes) -> bytes | None:
        """An entry that is known."""
        parent = self.node(parent_inode)
        if self._controls.ending or parent.kind not in (Kind.THREAD, Kind.THREADS) or is_stray(parent, FileNameT(name)):
            return None
        self._looking.look(parent_inode)
        text = os.fsdecode(name)
        if parent.kind is Kind.THREADS and text not in self._engine.store and is_thread_id(text):
            return None
        try:
            node = self._tree.lookup(parent, text)
        except KeyError:
            raise FUSEError(errno.ENOENT) from None
        entry = self._at_hand(self._answers.of(node), node)
        if entry is not None:
            self._tree.remember(node)
            self._notices.told(node.ino)
        return entry

    def getattr_now(self, inode: int) -> bytes | None:
        """Attributes that are known."""
        if self._controls.ending:
            return None
        self._looking.look(inode)
        node = self.node(inode)
        if node.ino != inode or not self._contents.is_settled(inode):
            return None
        return self._at_hand(self._answers.of(node), node)

    def _at_hand(self, kept: Kept, node: Node) -> bytes | None:
        """What is told of a node of which nobody has another content open; None when it has to be found out."""
        entry = kept.packed.get(node.ino)
        if entry is None and node.kind in _OF_THREAD:
            entry = self._packed(kept, node, self._describer.exact(node))
        elif entry is None and self._is_in(kept.sheet, node):
            entry = self._packed(kept, node)
        elif entry is None and node.kind is Kind.VIEW:
            size = self._contents.size_at_hand(node)
            entry = None if size is None else self._packed(kept, node, self._describer.sized(node, size))
        return entry

    def _is_in(self, sheet: Sheet | None, node: Node) -> bool:
        slot = node.ino & 0xFF
        return sheet is not None and node.kind is Kind.VIEW and slot in sheet.sizes and slot not in OF_REVERTS

    def readlink_now(self, inode: int) -> bytes | None:
        """The target of a link that follows from one thread."""
        node = self.node(inode)
        if node.kind not in (Kind.CURRENT, Kind.TURNS_LINK, Kind.ROOT_LINK):
            return None
        self._looking.look(inode)
        return os.fsencode(self._tree.target(node))

    def open_now(self, inode: int, flags: int, pid: int) -> tuple[int, bool] | None:
        """A handle for reading a file whose content is at hand, and whether the kernel may keep its pages."""
        if self._controls.ending or flags & (os.O_ACCMODE | os.O_TRUNC):
            return None
        self._looking.look(inode)
        again = self._contents.open_again(inode, pid)
        if again is not None:
            return again, True
        node = self.node(inode)
        if node.kind not in _READ:
            return None
        return self._contents.open_now(inode, node, pid, self._notices.give)

    def read_now(self, handle: int, offset: int, size: int) -> bytes | None:
        """Bytes of a file that isn't a control file."""
        return None if handle >= handles.FIRST else self._contents.read(handle, offset, size)

    def release_now(self, handle: int) -> bytes | None:
        """Close a file that isn't a control file."""
        if handle >= handles.FIRST:
            return None
        self._contents.release(handle)
        return b""

    def forget_now(self, inode: int, lookups: int) -> None:
        """Drop what was remembered for the kernel."""
        self._tree.forget(inode, lookups)

    # Folders of which the kernel keeps the names, see `gate` and `listings`

    def keep_names(self) -> None:
        """From now on the kernel keeps names, and is told when they change."""
        self._keeps_names = True

    def list_now(self, inode: int, offset: int, size: int) -> bytes | None:
        """Names from an offset on, with their attributes; None when they have to be waited for."""
        self._looking.look(inode)
        stream = self._streams.find(offset, inode)
        if stream is not None and listings.number_at(offset) == len(stream.listing.names) + listings.DOTS:
            self._finish(stream)
            return b""
        if stream is None:
            folder = self.node(inode)
            if self._controls.ending or not self._is_near(folder):
                return None
            kept = self._answers.of(folder)
            links = kept.links
            if links is None and needs_links(folder):
                links = kept.links = self._engine.store.links(folder.thread)
            listing = kept.listings.get(inode)
            if listing is None:
                listing = kept.listings[inode] = self._tree.listing(folder, links)
            stream = self._streams.begin(folder, listing)
        return self._page(stream, listings.number_at(offset), size)

    async def list_later(self, inode: int, offset: int, size: int) -> bytes:
        """The same, after waiting."""
        if self._controls.ending:
            await self._controls.settled()
        self._looking.look(inode)
        folder = self.node(inode)
        stream = self._streams.begin(folder, await self._looking.listing(folder))
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
        if start == 0 and kind in _OF_THREAD and self._looking.is_watched():
            page = self._whole(stream, size)
            if page is not None:
                return page
        for number in range(start, len(names) + listings.DOTS):
            offset = stream.position(number + 1)
            told = 0
            if number < listings.DOTS:
                which = folder.ino if number == 0 else self._tree.above(folder)
                part = listings.bare(b"." * (number + 1), which, offset)
            elif folder.kind is Kind.THREADS:  # of which there may be 100,000: who wants to know more asks for each
                name = os.fsencode(names[number - listings.DOTS])
                part = listings.bare(name, listing.node(number - listings.DOTS).ino, offset)
            else:
                position = number - listings.DOTS
                try:
                    node = listing.node(position)
                    if node.kind is not kind or node.thread != thread:
                        kept, kind, thread = self._answers.of(node), node.kind, node.thread
                    entry = None if self._is_open(node) else kept.packed.get(node.ino) or self._packed(kept, node)
                except (OSError, KeyError):  # gone since the snapshot
                    continue
                name = os.fsencode(names[position])
                if entry is None:  # its number may be about to change: a look-up finds that out
                    part = listings.bare(name, self._contents.inode(node), offset, listings.FILE)
                else:
                    told = int.from_bytes(entry[:8], "little")
                    part = listings.directory_entry(name, told, offset, entry)
            size -= len(part)
            if size < 0:
                break
            parts.append(part)
            if told:
                self._tree.remember(node)
                self._notices.told(told)
        if not parts:
            self._finish(stream)
        return b"".join(parts)

    def _whole(self, stream: Stream, size: int) -> bytes | None:
        """All of a folder that is as nearly all are, has room, and has nothing that would have to be thought about."""
        folder, names = stream.folder, stream.listing.names
        base, more = folder.ino & ~0xFF, {}
        if folder.kind is Kind.THREAD:
            layout = self._in_thread if names is self._tree.names_in_thread else None
            more = {slot: self._controls.size(folder.thread, name) for slot, name in self._controls_in}
        elif folder.kind is Kind.LINEAGE:
            layout = self._alone if names is self._tree.names_alone else None
        elif folder.kind is Kind.ROLLOUTS:
            return self._one_log(stream, size) if len(names) == 1 + len(self._current.slots) else None
        else:
            layout = None if names else self._empty
        if layout is None or layout.size > size:
            return None
        try:
            sheet = self._sheet(folder.thread, base)
        except KeyError:  # gone since the snapshot
            return None
        if not self._views_in.get(id(layout), _NONE) <= sheet.sizes.keys():
            return None
        self._notices.told_all([base | slot for slot in layout.slots])
        return layout.page(stream, self._tree.above(folder), sheet, more)

    def _one_log(self, stream: Stream, size: int) -> bytes | None:
        """The same of rollouts/ where there is one log."""
        folder, listing = stream.folder, stream.listing
        own, base = self._answers.own(folder.thread), folder.ino & ~0xFF
        try:
            node = listing.node(1)
            if self._is_open(node):
                return None
            entry = own.packed.get(node.ino) or self._packed(own, node)
            sheet = self._sheet(folder.thread, base)
        except (OSError, KeyError):  # gone since the snapshot
            return None
        told = int.from_bytes(entry[:8], "little")
        name, offset = os.fsencode(listing.names[1]), stream.position(len(listing.names) + listings.DOTS)
        page = self._current.page(stream, self._tree.above(folder), sheet, {CURRENT: len(name)})
        page += listings.directory_entry(name, told, offset, entry)
        if len(page) > size:
            return None
        self._tree.remember(node)
        self._notices.told_all((base | CURRENT, told))
        return page

    def _is_open(self, node: Node) -> bool:
        return self._contents.is_open(self._contents.inode(node))

    def _sheet(self, thread: str, base: int) -> Sheet:
        own = self._answers.own(thread)
        if own.sheet is None:
            own.sheet = self._describer.sheet(thread, base)
        return own.sheet

    def _packed(self, kept: Kept, node: Node, attributes: Attributes | None = None) -> bytes:
        """What the kernel is told of a node, in a listing unless its attributes are given; kept as `keep` says."""
        if attributes is None:
            sheet = kept.sheet if self._is_in(kept.sheet, node) else None
            attributes = self._describer.glance(node) if sheet is None else sheet.attributes(node.ino & 0xFF)
        entry = listings.packed(attributes, self._uid, self._gid, BLOCK)
        if attributes.attr_seconds and self.may_keep(node, attributes):
            kept.packed[node.ino] = entry
        return entry

    def _finish(self, stream: Stream) -> None:
        """Before the end of a listing is told: see that the kernel doesn't keep names that it may not."""
        self._streams.end(stream)
        folder = stream.folder
        is_kept = not stream.changed and folder.kind in listings.KEPT and self._looking.is_watched()
        if not is_kept or self._is_lively(folder):
            drop_names(folder.ino)
        elif folder.kind in listings.LINKED:
            base = folder.ino & ~0xFF
            self._linked.put(base, (self._linked.get(base) or 0) | _BITS[folder.ino & 0xFF])
            if len(self._linked) > _LINKED:
                self._drop_linked()

    def _is_lively(self, folder: Node) -> bool:
        """True for a folder of a thread that is being written to. Who lists it asks us, so that what comes with the
        names, sizes above all, is never older than the question.
        """
        stirred = self._stirred.get(folder.thread)
        if stirred is not None and time.monotonic() - stirred < freshness.QUIET:
            return True
        sheet = self._answers.own(folder.thread).sheet
        if sheet is not None:
            return sheet.seconds < freshness.QUIET
        try:
            mtime, _ = self._clock.of_thread(folder.thread)
        except KeyError:  # gone meanwhile
            return True
        return self._describer.patience.seconds(mtime) < freshness.QUIET

    # What is kept, here and by the kernel

    def may_keep(self, node: Node, attributes: Attributes) -> bool:
        """True unless something else than the store may change an answer: a request to a control file, the next
        moment, or the end of somebody's reading an older content of the file. Nor are those kept about what a thread
        may have any number of: single turns, and queries that found it.
        """
        return (
            node.kind is not Kind.CONTROL
            and node.kind not in OF_TURNS
            and node.kind is not Kind.FINDING
            and attributes.ino == node.ino
            and self._contents.is_steady(node)
            and self._contents.lasts(node)
        )

    def keep(self, kept: Kept, node: Node, attributes: Attributes) -> None:
        """Keep what a handler answered and `may_keep` allows."""
        if self._keeps_names and attributes.attr_seconds:
            kept.packed[node.ino] = listings.packed(attributes, self._uid, self._gid, BLOCK)

    def note(self) -> None:
        """Something happened to the store."""
        self._streams.note()

    def stir(self, thread: str) -> None:
        """Something happened to a thread."""
        self._streams.note()
        self._stirred.put(thread, time.monotonic())

    def drop_names(self, thread: str) -> None:
        """Make the kernel forget the names in the folders of a thread that is in the store."""
        if self._keeps_names:
            for node in self._tree.folders(thread):
                drop_names(node.ino)

    def look_at_links(self) -> None:
        """If rollouts came or went, names of links between threads may be different."""
        if self._links_version != self._engine.store.version:
            self._links_version = self._engine.store.version
            self._drop_linked()

    def _drop_linked(self) -> None:
        for base, bits in self._linked.items():
            for slot, bit in _BITS.items():
                if bits & bit:
                    drop_names(base | slot)
        self._linked = Numbered()

    def forget_names(self) -> None:
        """Nobody will tell of changes any more: make the kernel forget all names that it may have kept."""
        if self._keeps_names:
            self._linked = Numbered()
            for thread in self._engine.store.thread_ids():
                self.drop_names(thread)
