"""Attributes of files, folders and links, made of what the store says and never of the present time.

Backup programs compare mtime and ctime: both come from the store and are the same after a remount.  Everything
below threads/ID has the times of the thread (its last record; the change of its selected rollout file), what is about a
family those of its newest record, links in views that of the last record, their folders the newest of what is below
them, the store's files have their own, the folders above have the newest of the store's folders.  What would need a
look into a log is not computed for a listing: `glance` gives a placeholder that the kernel has to ask for again (FUSE
6.1).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from threadstore.errors import StoreError
from threadstore.projection import SELECTION
from threadstore.store import Links

from rolloutfs import freshness, readme
from rolloutfs.content import Contents
from rolloutfs.engine import FullStore
from rolloutfs.nodes import FOLDERS as TREE_FOLDERS
from rolloutfs.nodes import LINKS, TURN_FOLDERS, Kind, Node
from rolloutfs.readers import Derived, Plain, Version
from rolloutfs.shelves import SHELVES, Shelves
from rolloutfs.slots import OF_REVERTS, VIEW_SLOTS
from rolloutfs.storefiles import FOLDERS, StoreFiles
from rolloutfs.told import Announced
from rolloutfs.tree import Tree

BLOCK = 128 << 10  # bytes that programs are told to read at once
_ALWAYS_THERE = frozenset(
    {Kind.ROOT, Kind.README, Kind.MOUNT, Kind.OPERATIONS, Kind.ROOT_LINK, Kind.THREADS, Kind.STORE, Kind.SEARCH}
)
_ASKED = frozenset({Kind.SEARCH_PROBLEMS, Kind.FINDINGS, Kind.FINDING, Kind.HITS, Kind.INCOMPLETE, Kind.HINT})
_SEARCHES = _ASKED | {Kind.SEARCH, Kind.SEARCH_README}
_SHELVED = frozenset({Kind.SHELF, Kind.SHELF_LINK})
_EXACT_AT_ONCE = frozenset(
    {Kind.ROOT, Kind.ROOT_LINK, Kind.THREADS, Kind.STORE, Kind.STORE_FOLDER, Kind.TURNS_LINK, Kind.TURN_LINK}
    | {Kind.SEARCH, Kind.FINDINGS, Kind.FINDING}
    | {Kind.LINEAGE, Kind.FORKS, Kind.AGENTS, Kind.ROLLOUTS, Kind.CURRENT}  # have the times of their thread
    | TURN_FOLDERS
    | _SHELVED
)
#: What may come, go or change without an event in the store that we could tell it from.
_UNTOLD = frozenset(
    {Kind.OPERATIONS, Kind.STORE_VIEW, Kind.FORKED_FROM, Kind.PARENT, Kind.THREAD_LINK}
    | {Kind.FAMILY, Kind.FAMILY_LINK, Kind.TURN, Kind.TURN_LINK, Kind.TURN_CALLS, Kind.TURN_FILE}
    | _ASKED
    | _SHELVED
)
_OF_REVERTS = frozenset(VIEW_SLOTS[slot] for slot in OF_REVERTS)  # whose names go with the second rollout
_SUBFOLDERS = {Kind.ROOT: 3 + len(SHELVES), Kind.THREAD: 2, Kind.LINEAGE: 2}


class Attributes(NamedTuple):
    """What `stat` shows, and for how many seconds the kernel may rely on it."""

    ino: int
    mode: int
    nlink: int
    size: int
    mtime_ns: int
    ctime_ns: int
    attr_seconds: float
    entry_seconds: float


class Sheet(NamedTuple):
    """What is told of the plain derived files of a thread: its times (ns), for how many seconds the kernel may rely on
    them, and the sizes in bytes by slot. `base` is the number of the thread's folder.
    """

    base: int
    times: tuple[int, int]
    seconds: float
    sizes: Mapping[int, int]

    def attributes(self, slot: int) -> Attributes:
        """Of one of them."""
        mode, nlink = form(Kind.VIEW)
        seconds = freshness.CHANGING if VIEW_SLOTS[slot] in SELECTION else self.seconds
        return Attributes(self.base | slot, mode, nlink, self.sizes[slot], *self.times, seconds, self.seconds)


def form(kind: Kind) -> tuple[int, int]:
    """Type with permissions, and number of links, of what is made of a thread and has both by its kind."""
    if kind in TREE_FOLDERS:
        return stat.S_IFDIR | 0o700, 2 + _SUBFOLDERS.get(kind, 0)
    if kind in LINKS:
        return stat.S_IFLNK | 0o777, 1
    return stat.S_IFREG | (0o600 if kind is Kind.CONTROL else 0o400), 1


class Clock:
    """The times of nodes."""

    def __init__(
        self,
        store: FullStore,
        files: StoreFiles,
        searched: Callable[[Node], int] = lambda node: 0,
        shelves: Shelves | None = None,
    ) -> None:
        self._store = store
        self._files = files
        self._searched = searched  # the time (Unix, ns) of what lies below search/
        self._shelves = Shelves() if shelves is None else shelves
        self._began = time.time_ns()  # that of the mount

    def of_content(self, node: Node, version: Version) -> tuple[int, int]:
        """mtime and ctime (ns) of a file."""
        if node.kind is Kind.README:
            return readme.times()
        if node.kind is Kind.MOUNT:
            return self._began, self._began
        if node.kind in _SEARCHES:
            return (self._searched(node),) * 2
        if isinstance(version, Plain) and node.kind in (Kind.STORE_FILE, Kind.OPERATIONS):
            return version.mtime_ns, version.ctime_ns
        if node.kind is Kind.OPERATIONS:
            return self.of_store()
        if node.kind in (Kind.STORE_VIEW, Kind.FAMILY):
            basis = version.projection.basis if isinstance(version, Derived) else ()
            newest = max((one.mtime_ns for one in basis), default=0)
            return (newest, newest) if newest else self.of_store()
        return self.of_thread(node.thread)

    def of_node(self, node: Node) -> tuple[int, int]:
        """mtime and ctime (ns) of a folder or a link. KeyError when its thread is gone."""
        if node.kind is Kind.STORE_FOLDER:
            status = self._files.shown(node.name)
            return status.st_mtime_ns, status.st_ctime_ns
        if node.kind is Kind.SHELF_LINK:
            last = self._shelves.last(node.thread)
            return last, last
        if node.kind is Kind.SHELF and "/" in node.name:  # of a whole view that isn't known before somebody looks in
            newest = self._shelves.newest(node.name)
            return newest, newest
        if node.kind in _SEARCHES and (not node.thread or self._searched(node)):
            return (self._searched(node),) * 2
        return self.of_thread(node.thread) if node.thread else self.of_store()

    def of_thread(self, thread: str) -> tuple[int, int]:
        """The thread's own times; those of its file while its records can't be read."""
        try:
            times = self._store.times(thread)
        except (StoreError, OSError):
            try:
                status = self._files.stat(self._store.head(thread).path)
            except OSError:
                return 0, 0
            return status.st_mtime_ns, status.st_ctime_ns
        return times.mtime_ns, times.ctime_ns

    def of_store(self) -> tuple[int, int]:
        """The newest time of the folders that new rollouts are put into."""
        found = [status for top in FOLDERS for status in self._newest_chain(top)]
        if not found:
            return 0, 0
        newest = max(status.st_mtime_ns for status in found)
        return newest, newest

    def _newest_chain(self, path: str) -> Iterable[os.stat_result]:
        """A folder, its last subfolder, that one's last, …: years, months, days."""
        for _ in range(4):
            try:
                yield self._files.stat(path)
                folders = [name for name, status in self._files.entries(path) if stat.S_ISDIR(status.st_mode)]
            except OSError:
                return
            if not folders:
                return
            path = f"{path}/{folders[-1]}"


class Describer:
    """Attributes of nodes. All errors of the store and the system pass."""

    def __init__(
        self,
        store: FullStore,
        files: StoreFiles,
        tree: Tree,
        contents: Contents,
        clock: Clock,
        control_size: Callable[[str, str], int] = lambda thread, file: 0,
    ) -> None:
        self.patience = freshness.Patience()
        self._control_size = control_size
        self._store = store
        self._files = files
        self._tree = tree
        self._contents = contents
        self._clock = clock

    def glance(self, node: Node) -> Attributes:
        """For a look-up or a listing: nothing is computed that needs more than the end of one log."""
        ino = self._contents.inode(node)
        if node.kind is Kind.CONTROL:
            return self._control(ino, node)
        if node.kind in _EXACT_AT_ONCE:
            return self._exact(ino, node, None)
        told = self._contents.glance(ino, node)
        if told is not None:
            return self._made(ino, node, told)
        told = self._contents.announced(ino) or Announced(0, 0, 0)
        self._contents.disturb(ino)
        return self._made(ino, node, told, freshness.UNKNOWN)

    def sheet(self, thread: str, base: int) -> Sheet:
        """The same for those derived files of a thread about which there is nothing to think, in a fraction of the
        time. `base` is the number of its folder. KeyError when the thread is gone.
        """
        times = self._clock.of_thread(thread)
        return Sheet(base, times, self.patience.seconds(times[0]), self._contents.sizes(thread, base, times))

    def sized(self, node: Node, size: int) -> Attributes:
        """Of a derived file of which the size in bytes is known. KeyError when the thread is gone."""
        told = Announced(size, *self._clock.of_thread(node.thread))
        self._contents.tell(node.ino, told)
        return self._made(node.ino, node, told)

    def exact(self, node: Node) -> Attributes:
        """Of a folder of a thread, or a link that follows from the thread alone."""
        return self._exact(self._contents.inode(node), node, None)

    async def measure(self, ino: int, node: Node, links: Links | None) -> Attributes:
        """Exact, for `stat`."""
        if node.kind is Kind.CONTROL:
            return self._control(ino, node, is_known=True)
        if node.is_folder or node.is_link:
            return self._exact(ino, node, links)
        try:
            told = await self._contents.measure(ino, node)
        except StoreError:  # it can be listed, but an open fails and says why
            told = (
                Announced(0, *self._clock.of_thread(node.thread))
                if node.thread
                else Announced(0, *self._clock.of_store())
            )
            return self._made(ino, node, told, freshness.UNKNOWN)
        if self._contents.is_passing(ino):  # the number may be that of the present content again in an instant
            return self._made(ino, node, told, freshness.UNKNOWN)
        return self._made(ino, node, told)

    def _control(self, ino: int, node: Node, *, is_known: bool = False) -> Attributes:
        """With `is_known` the thread may be gone: who has the file open reads an answer from it."""
        size = self._control_size(node.thread, node.name)
        try:
            times = self._clock.of_thread(node.thread)
        except KeyError:
            if not is_known:
                raise
            times = (0, 0)
        return self._made(ino, node, Announced(size, *times, 0o600))

    def _exact(self, ino: int, node: Node, links: Links | None) -> Attributes:
        size = len(os.fsencode(self._tree.target(node, links))) if node.is_link else 0
        told = Announced(size, *self._clock.of_node(node))
        if node.kind is not Kind.SHELF_LINK:  # of which there may be 100,000, and no placeholder
            self._contents.tell(ino, told)
        return self._made(ino, node, told)

    def _made(self, ino: int, node: Node, told: Announced, seconds: float | None = None) -> Attributes:
        kept = freshness.CHANGING if node.kind in _UNTOLD else self.patience.seconds(told.mtime_ns)
        if seconds is None:
            seconds = kept
            if node.kind in (Kind.README, Kind.MOUNT):
                seconds = freshness.FIXED
            elif node.view in SELECTION or not self._contents.lasts(node):  # a database may say something else unheard
                seconds = freshness.CHANGING
        mode, nlink = form(node.kind)
        if node.is_folder:
            nlink = self._folder_nlink(node, nlink)
        elif not node.is_link:
            mode = stat.S_IFREG | told.mode
        if node.kind in _ALWAYS_THERE:
            entry = freshness.FIXED
        else:
            stays = self._contents.is_steady(node) and node.view not in _OF_REVERTS
            entry = kept if stays else freshness.CHANGING
        return Attributes(ino, mode, nlink, told.size, told.mtime_ns, told.ctime_ns, seconds, entry)

    def _folder_nlink(self, node: Node, fixed: int) -> int:
        """2 and one for each subfolder; 1 where the store's file system doesn't count them, or counting takes long."""
        if node.kind is Kind.THREADS:
            return 2 + len(self._store.thread_ids())
        if node.kind is Kind.SHELF and "/" not in node.name:
            return 1
        if node.kind is Kind.SHELF:
            return 2 + len(self._tree.shelves.folders(node.name))
        if node.kind is Kind.STORE:
            return 2 + sum(stat.S_ISDIR(status.st_mode) for _, status in self._files.entries(""))
        if node.kind is Kind.STORE_FOLDER:
            return max(self._files.shown(node.name).st_nlink, 1)
        if node.kind in TURN_FOLDERS:
            return 1  # not counted
        return fixed
