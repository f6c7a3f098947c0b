"""The shape of the mounted tree: which names there are, what each is, and its inode number. Pure: no FUSE in here.

    /                      README.md, operations.jsonl, threads/, views, store/; links to three of the files in store/;
                           .mount.json, which isn't listed: how this is mounted
    /by-date/ … /archived/ folders of links into threads/, see `shelves`
    /threads/ID/           the derived files of `View`, lineage/, rollouts/; fork, revert and compact unless read-only;
                           the two about what reverts dropped are there where there is more than one rollout
    /threads/ID/lineage/   lineage.json, forked_from and parent (links, absent when there is none), forks/, agents/,
                           family.txt and family.mmd (of the root of the family; in other threads links to those)
    /threads/ID/turns      a link to .turns, a folder that isn't listed; what is in it is numbered by `turnfolders`
    /threads/ID/rollouts/  every generation, decoded; `current` links to the selected one
    /store/                the store's own files, and the derived files of `StoreView`
    /search/QUERY/         what a query finds (`searches`); only README.md and problems.jsonl are listed beside them

Names of a thread's folder are fixed and numbered by a slot, so a node is found again from its inode number
alone.  The others are numbered by a key of their own (see `inodes`).

Folders below lineage/ depend on the links between threads, which may take long to find out the first time: whoever asks
for those passes them in (`needs_links`).
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from threadstore.names import RolloutFile, parse_rollout
from threadstore.projection import FamilyView
from threadstore.store import Links

from rolloutfs import inodes, slots
from rolloutfs.nodes import Kind, Listing, Node, Place, Row
from rolloutfs.shelves import Shelves
from rolloutfs.storefiles import StoreFiles

_FEW = 4  # rollouts of a thread of which the right one is looked for
_GONE = 20_000  # threads that went and whose numbers are still known, about 150 bytes each


class Store(Protocol):
    """What the tree asks of a `ThreadStore`: only what is known without reading a log."""

    def thread_ids(self) -> list[str]: ...  # noqa: D102  described in ThreadStore
    def __contains__(self, thread_id: object) -> bool: ...
    def rollouts(self, thread_id: str) -> tuple[RolloutFile, ...]: ...  # noqa: D102
    def head(self, thread_id: str) -> RolloutFile: ...  # noqa: D102


class Tree:
    """Nodes of one store. Raises KeyError for what isn't there and OSError from the store's file system."""

    def __init__(
        self,
        store: Store,
        files: StoreFiles,
        threads: inodes.ThreadNumbers | None = None,
        *,
        controls: bool = False,
        shelves: Shelves | None = None,
    ) -> None:
        self.shelves = Shelves() if shelves is None else shelves
        self._in_thread = {**slots.IN_THREAD, **(slots.CONTROLS if controls else {})}
        self._slots_in_thread = [slot for slot in self._in_thread if slot not in slots.OF_REVERTS]
        self._slot_of = {row[0]: slot for slot, row in {**self._in_thread, **slots.UNLISTED}.items()}
        #: What nearly all threads have in their folder, and in lineage/; of such ones, `Listing.names` is this object.
        self.rows_in_thread = [Row(slot, *self._in_thread[slot]) for slot in self._slots_in_thread]
        self.names_in_thread = [row.name for row in self.rows_in_thread]
        self.rows_alone = [Row(slot, *slots.IN_LINEAGE[slot]) for slot in slots.ALONE]
        self.rows_in_rollouts = [Row(slots.CURRENT, *slots.FIXED_THREAD[slots.CURRENT])]  # before the logs
        self.names_alone = [row.name for row in self.rows_alone]
        self._store = store
        self._files = files
        self._threads = threads if threads is not None else inodes.ThreadNumbers()
        self._gone: deque[str] = deque()  # threads, in the order in which they went; a thread may be back
        self._most_gone = _GONE
        self._dynamic: inodes.DynamicNumbers[Node] = inodes.DynamicNumbers(keys=_Keys(store))
        self.root = Node(slots.ROOT, Kind.ROOT)

    # From an inode number

    def node(self, ino: int) -> Node:
        """The node that has a number, in whichever epoch; KeyError for one that was never handed out."""
        ino = inodes.canonical(ino)
        digest, slot = ino >> 16, ino & 0xFF
        if slot == inodes.DYNAMIC:
            return self._dynamic.node(ino)
        if digest == 0:
            return self.root if slot == slots.ROOT else self._root_node(slot)
        thread, base = self._threads.thread(digest), inodes.compose(digest, 0)
        return self._made(thread, base, slot) if slot else Node(base, Kind.THREAD, thread)

    def bury(self, threads: set[str]) -> None:
        """These threads are gone from the store. Who has one of their files open may still ask for it: it takes many
        others until they are forgotten.
        """
        self._gone.extend(threads)
        while len(self._gone) > self._most_gone:
            thread = self._gone.popleft()
            if thread not in self._store:
                self._threads.forget(thread)

    def remember(self, node: Node) -> None:
        """The kernel has been told of a node; see `inodes.DynamicNumbers`."""
        if node.ino & 0xFF == inodes.DYNAMIC:
            self._dynamic.remember(node.ino)

    def forget(self, ino: int, lookups: int) -> None:
        """The kernel forgot a node that it had been told of `lookups` times."""
        if ino & 0xFF == inodes.DYNAMIC:
            self._dynamic.forget(ino, lookups)

    # From a name

    def lookup(self, parent: Node, name: str, links: Links | None = None) -> Node:
        """The child of a folder; KeyError when there is none."""
        if parent.kind is Kind.THREADS:
            if name not in self._store:
                raise KeyError(name)
            return self._thread_node(name, 0)
        if parent.kind is Kind.SHELF:
            return self._on_shelf(parent, name)
        if parent.kind is Kind.THREAD:
            self._store.head(parent.thread)
        if parent.kind is Kind.STORE_FOLDER or (parent.kind is Kind.STORE and name not in slots.STORE_VIEW_NAMES):
            path = f"{parent.name}/{name}" if parent.name else name
            return self._store_node(path, self._files.shown(path))
        if parent.kind is Kind.SEARCH and name not in slots.SEARCH_FILES:
            # Whoever asks made sure that it can be answered.
            return self.numbered(f"{Kind.FINDINGS.name}\0{name}", lambda ino: Node(ino, Kind.FINDINGS, name=name))
        if parent.kind is Kind.THREAD:
            slot = self._slot_of.get(name)
            if slot is None or (slot in slots.OF_REVERTS and len(self._store.rollouts(parent.thread)) < 2):
                raise KeyError(name)
            return self._made(parent.thread, parent.ino, slot)
        return self.listing(parent, links).find(name)

    def listing(self, folder: Node, links: Links | None = None) -> Listing:
        """A snapshot of a folder's children, in a stable order."""
        thread, kind = folder.thread, folder.kind
        if kind is Kind.ROOT:
            nodes = [self._root_node(slot) for slot in slots.AT_ROOT]
            unlisted = {row[0]: self._root_node(slot) for slot, row in slots.UNLISTED_AT_ROOT.items()}
            return Listing([row[0] for row in slots.AT_ROOT.values()], nodes.__getitem__, unlisted)
        if kind is Kind.THREADS:
            ids = self._store.thread_ids()
            return Listing(ids, lambda position: self._thread_node(ids[position], 0))
        if kind is Kind.THREAD:
            self._store.head(thread)  # KeyError when the thread is gone
            if len(self._store.rollouts(thread)) > 1:
                return self._fixed(
                    [self._made(thread, folder.ino, slot) for slot in self._in_thread],
                    [row[0] for row in self._in_thread.values()],
                )
            base, listed = inodes.canonical(folder.ino), self._slots_in_thread
            return Listing(self.names_in_thread, lambda position: self._made(thread, base, listed[position]))
        if kind is Kind.LINEAGE:
            return self._lineage(thread, _given(links))
        if kind is Kind.SEARCH:
            return self._fixed(
                [self._root_node(slot) for slot in slots.IN_SEARCH], [row[0] for row in slots.IN_SEARCH.values()]
            )
        if kind in (Kind.FORKS, Kind.AGENTS):
            return self._links(folder, _given(links))
        if kind is Kind.ROLLOUTS:
            return self._rollouts(thread)
        if kind is Kind.SHELF:
            return self._shelf(folder)
        if kind in (Kind.STORE, Kind.STORE_FOLDER):
            return self._store_listing(folder)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def target(self, node: Node, links: Links | None = None) -> str:
        """Where a link points to, relative to its folder; KeyError when it no longer points anywhere."""
        if node.kind is Kind.CURRENT:
            names = self.rollout_names(node.thread)
            if len(names) == 1:
                return next(iter(names))
            head = self._store.head(node.thread)
            return next((name for name, rollout in names.items() if rollout == head), head.shown)
        if node.kind is Kind.FORKED_FROM or node.kind is Kind.PARENT:
            given = _given(links)
            thread = given.forked_from if node.kind is Kind.FORKED_FROM else given.parent
            return f"../../{thread}" if thread is not None and thread in self._store else _missing(node.kind.name)
        if node.kind is Kind.SHELF_LINK:
            return self.shelves.target(node.name, node.thread)
        if node.kind is Kind.TURNS_LINK:
            return ".turns"
        if node.kind is Kind.FAMILY_LINK and isinstance(node.view, FamilyView):
            return f"../../{_given(links).root}/lineage/{node.view.value}"
        return node.target

    @property
    def threads(self) -> Node:
        """The folder of all threads."""
        return self._root_node(slots.THREADS)

    def folder(self, thread: str) -> Node:
        """The folder of a thread, which must be in the store."""
        return self._thread_node(thread, 0)

    def folders(self, thread: str) -> list[Node]:
        """The folders of a thread that have fixed names, and its own."""
        base = inodes.compose(self._threads.of(thread), 0)
        return [Node(base, Kind.THREAD, thread), *(self._made(thread, base, slot) for slot in slots.FOLDER_SLOTS)]

    def above(self, folder: Node) -> int:
        """The number of the folder that one of these is in; of another one the root's, which means nothing."""
        if folder.kind is Kind.THREAD:
            return slots.THREADS
        base = folder.ino & ~0xFF
        if folder.kind in (Kind.LINEAGE, Kind.ROLLOUTS):
            return base
        return base | slots.LINEAGE if folder.kind in (Kind.FORKS, Kind.AGENTS) else slots.ROOT

    def family(self, thread: str) -> list[Place]:
        """Everything with a fixed name in a thread's folder and in lineage/."""
        folder, lineage = self.folder(thread), self._thread_node(thread, slots.LINEAGE)
        return [
            Place(parent, row[0], self._thread_node(thread, slot))
            for parent, rows in ((folder, self._in_thread), (folder, slots.UNLISTED), (lineage, slots.IN_LINEAGE))
            for slot, row in rows.items()
        ]

    def views(self, thread: str) -> list[Node]:
        """The derived files of a thread."""
        base = inodes.compose(self._threads.of(thread), 0)
        return [self._made(thread, base, slot) for slot in slots.VIEW_SLOTS]

    def known_in_store(self, path: str) -> list[Place]:
        """The nodes under which the kernel may know a file or folder of the store, below store/."""
        folder, _, name = path.rpartition("/")
        parent = self._known(f"{Kind.STORE_FOLDER.name}\0{folder}") if folder else self._root_node(slots.STORE)
        found = (self._known(f"{kind.name}\0{path}") for kind in (Kind.STORE_FILE, Kind.STORE_FOLDER))
        return [Place(parent, name, node) for node in found if node is not None]

    def known_rollouts(self, thread: str) -> list[Place]:
        """The nodes under which the kernel may know the files below rollouts/."""
        folder = self._thread_node(thread, slots.ROLLOUTS)
        names = self.rollout_names(thread)
        found = ((name, self._known(f"{Kind.ROLLOUT.name}\0{thread}\0{name}")) for name in names)
        return [Place(folder, name, node) for name, node in found if node is not None]

    def numbered(self, key: str, make: Callable[[int], Node]) -> Node:
        """A node with a key of its own, made with the number of that."""
        return self._dynamic.number(key, make)

    def _known(self, key: str) -> Node | None:
        ino = self._dynamic.find(key)
        return None if ino is None else self._dynamic.node(ino)

    def root_nodes(self) -> list[Node]:
        """The files, folders and links in the root and the derived ones in store/."""
        return [self._root_node(slot) for slot in slots.FIXED_ROOT]

    def rollout_names(self, thread: str) -> dict[str, RolloutFile]:
        """The files below rollouts/: a name each, also when two rollouts would be called the same (FAULTS 12, 13)."""
        rollouts = self._store.rollouts(thread)
        if len(rollouts) == 1:
            return {rollouts[0].shown: rollouts[0]}
        head = self._store.head(thread)
        names: dict[str, RolloutFile] = {}
        for rollout in sorted(rollouts, key=lambda rollout: (rollout != head, rollout.path)):
            name = rollout.shown
            if name in names:
                stem = name.removesuffix(".jsonl")
                name = f"{stem}.duplicate-{inodes.digest(rollout.path):012x}.jsonl"
            names[name] = rollout
        return dict(sorted(names.items()))

    # Making nodes

    def _root_node(self, slot: int) -> Node:
        name, kind, view, target = slots.FIXED_ROOT[slot]
        return Node(slot, kind, view=view, name=name if kind is Kind.SHELF else "", target=target)

    def _thread_node(self, thread: str, slot: int) -> Node:
        base = inodes.compose(self._threads.of(thread), 0)
        return self._made(thread, base, slot) if slot else Node(base, Kind.THREAD, thread)

    def _made(self, thread: str, base: int, slot: int) -> Node:
        """A node with a fixed name in the folder of a thread, whose number is `base`, or a link to it in a view."""
        if slot in slots.SHELF_LINKS:
            return Node(base | slot, Kind.SHELF_LINK, thread, name=slots.SHELF_LINKS[slot])
        name, kind, view = slots.FIXED_THREAD[slot]
        return Node(base | slot, kind, thread, view, name if kind is Kind.CONTROL else "")

    def _store_node(self, path: str, status: os.stat_result) -> Node:
        kind = Kind.STORE_FOLDER if stat.S_ISDIR(status.st_mode) else Kind.STORE_FILE
        return self._dynamic.number(f"{kind.name}\0{path}", lambda ino: Node(ino, kind, name=path))

    def _fixed(self, nodes: Sequence[Node], names: Sequence[str]) -> Listing:
        return Listing(names, nodes.__getitem__)

    def _lineage(self, thread: str, links: Links) -> Listing:
        """The files about a family are listed where there is more of it than this one log."""
        if links.are_none and len(self._store.rollouts(thread)) == 1:
            base = inodes.compose(self._threads.of(thread), 0)
            unlisted = {row[0]: self._made(thread, base, slot) for slot, row in slots.OF_FAMILY.items()}
            return Listing(self.names_alone, lambda position: self._made(thread, base, slots.ALONE[position]), unlisted)
        shown = [slot for slot, row in slots.IN_LINEAGE.items() if self._is_there(thread, row[1], links)]
        return self._fixed(
            [self._thread_node(thread, slot) for slot in shown], [slots.IN_LINEAGE[slot][0] for slot in shown]
        )

    def _is_there(self, thread: str, kind: Kind, links: Links) -> bool:
        if kind is Kind.FORKED_FROM:
            return links.forked_from in self._store
        if kind is Kind.PARENT:
            return links.parent in self._store
        return kind not in (Kind.FAMILY, Kind.FAMILY_LINK) or (kind is Kind.FAMILY) == (links.root == thread)

    def _links(self, folder: Node, links: Links) -> Listing:
        pairs = links.agents if folder.kind is Kind.AGENTS else tuple((thread, thread) for thread in links.forks)
        targets: dict[str, str] = {}
        for name, thread in sorted(pairs):
            if thread in self._store:
                part = _safe(name)
                targets[part if part not in targets else f"{part}-{thread}"] = thread
        names = sorted(targets)

        def node(position: int) -> Node:
            name = names[position]
            key = f"{folder.kind.name}\0{folder.thread}\0{name}"
            target = f"../../../{targets[name]}"
            return self._dynamic.number(
                key, lambda ino: Node(ino, Kind.THREAD_LINK, folder.thread, name=name, target=target)
            )

        return Listing(names, node)

    def _rollouts(self, thread: str) -> Listing:
        names = ["current", *self.rollout_names(thread)]

        def node(position: int) -> Node:
            name = names[position]
            if position == 0:
                return self._thread_node(thread, slots.CURRENT)
            key = f"{Kind.ROLLOUT.name}\0{thread}\0{name}"
            return self._dynamic.number(key, lambda ino: Node(ino, Kind.ROLLOUT, thread, name=name))

        return Listing(names, node)

    def _on_shelf(self, folder: Node, name: str) -> Node:
        path = f"{folder.name}/{name}"
        if self.shelves.is_folder(path):
            return self._shelf_folder(path)
        return self._thread_node(
            self.shelves.links(folder.name).thread(name), slots.SHELF_SLOTS[folder.name.partition("/")[0]]
        )

    def _shelf_folder(self, path: str) -> Node:
        return self._dynamic.number(f"{Kind.SHELF.name}\0{path}", lambda ino: Node(ino, Kind.SHELF, name=path))

    def _shelf(self, folder: Node) -> Listing:
        folders, links = self.shelves.folders(folder.name), self.shelves.links(folder.name)
        slot = slots.SHELF_SLOTS[folder.name.partition("/")[0]]
        names, threads = [*folders, *links.listed()] if folders else links.listed(), links.threads

        def node(position: int) -> Node:
            if position < len(folders):
                return self._shelf_folder(f"{folder.name}/{folders[position]}")
            return self._thread_node(threads[position - len(folders)], slot)

        return Listing(names, node)

    def _store_listing(self, folder: Node) -> Listing:
        fixed = list(slots.IN_STORE) if folder.kind is Kind.STORE else []
        entries = self._files.entries(folder.name)
        names = [slots.IN_STORE[slot][0] for slot in fixed] + [name for name, _ in entries]

        def node(position: int) -> Node:
            if position < len(fixed):
                return self._root_node(fixed[position])
            name, status = entries[position - len(fixed)]
            return self._store_node(f"{folder.name}/{name}" if folder.name else name, status)

        return Listing(names, node)


class _Keys(inodes.Keys[Node]):
    """Of rollouts, below rollouts/ and below store/, of which there may be very many: the path of one in the store says
    what both are called.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: tuple[str, tuple[str, ...]] = ("", ())  # a rollout is asked for several times in a row

    def node(self, ino: int, key: str) -> Node | None:
        """As `inodes.Keys` says."""
        kind, _, rest = key.partition("\0")
        if kind == Kind.ROLLOUT.name:
            thread, _, name = rest.partition("\0")
            return Node(ino, Kind.ROLLOUT, thread, name=name)
        return Node(ino, Kind.STORE_FILE, name=rest) if kind == Kind.STORE_FILE.name else None

    def shared(self, key: str) -> str | None:
        """As `inodes.Keys` says."""
        kind, _, rest = key.partition("\0")
        parsed = parse_rollout(rest) if kind == Kind.STORE_FILE.name else None
        thread = rest.partition("\0")[0] if kind == Kind.ROLLOUT.name else "" if parsed is None else parsed.thread_id
        try:
            rollouts = self._store.rollouts(thread)
        except KeyError:
            return None
        return next((rollout.path for rollout in rollouts[:_FEW] if key in self.keys(rollout.path)), None)

    def keys(self, shared: str) -> tuple[str, ...]:
        """As `inodes.Keys` says."""
        if self._last[0] != shared:
            self._last = shared, self._keys(shared)
        return self._last[1]

    def _keys(self, shared: str) -> tuple[str, ...]:
        rollout = parse_rollout(shared)
        if rollout is None:
            return ()
        return (
            f"{Kind.ROLLOUT.name}\0{rollout.thread_id}\0{rollout.shown}",
            f"{Kind.STORE_FILE.name}\0{shared}",
        )


def _given(links: Links | None) -> Links:
    if links is None:
        raise TypeError("this folder needs the links of its thread")
    return links


def _missing(name: str) -> NoReturn:
    raise KeyError(name)


def _safe(name: str) -> str:
    """A guard for names from data, which `threadstore.names.safe_name` made safe already."""
    name = name.replace("/", "_").replace("\0", "_")
    name = os.fsdecode(os.fsencode(name)[:255])
    return "_" if name in ("", ".", "..") else name
