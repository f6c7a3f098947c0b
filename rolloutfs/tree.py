"""The shape of the mounted tree: which names there are, what each is, and its inode number. Pure: no FUSE in here.

    /                      README.md, operations.jsonl, threads/, views, store/; links to three of the files in store/
    /by-date/ … /archived/ folders of links into threads/, see `shelves`
    /threads/ID/           the derived files of `View`, lineage/, rollouts/; fork, revert and compact unless read-only;
                           the two about what reverts dropped are listed where there is more than one rollout
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import NamedTuple, NoReturn, Protocol

from threadstore.names import RolloutFile, parse_rollout
from threadstore.projection import FamilyView, StoreView, View
from threadstore.store import Links

from rolloutfs import inodes
from rolloutfs.shelves import SHELVES, Shelves
from rolloutfs.storefiles import StoreFiles

ROOT, README = 1, 2  # inode numbers; the first is the kernel's
_FEW = 4  # rollouts of a thread of which the right one is looked for
_GONE = 20_000  # threads that went and whose numbers are still known, about 150 bytes each


class Kind(IntEnum):
    """What a node is; decides its type, its content and where its times come from."""

    ROOT = auto()
    README = auto()
    OPERATIONS = auto()
    ROOT_LINK = auto()
    THREADS = auto()
    THREAD = auto()
    VIEW = auto()
    CONTROL = auto()
    LINEAGE = auto()
    FORKED_FROM = auto()
    PARENT = auto()
    FORKS = auto()
    AGENTS = auto()
    THREAD_LINK = auto()
    FAMILY = auto()
    FAMILY_LINK = auto()
    TURNS_LINK = auto()
    TURNS = auto()
    TURN = auto()
    TURN_LINK = auto()
    TURN_CALLS = auto()
    TURN_FILE = auto()
    ROLLOUTS = auto()
    CURRENT = auto()
    ROLLOUT = auto()
    STORE = auto()
    STORE_VIEW = auto()
    STORE_FOLDER = auto()
    STORE_FILE = auto()
    SEARCH = auto()
    SEARCH_README = auto()
    SEARCH_PROBLEMS = auto()
    FINDINGS = auto()
    FINDING = auto()
    HITS = auto()
    INCOMPLETE = auto()
    SHELF = auto()
    SHELF_LINK = auto()

    __hash__ = int.__hash__  # that of an enumeration is a Python function, called for every look into a set of kinds


FOLDERS = frozenset(
    {
        Kind.ROOT,
        Kind.THREADS,
        Kind.THREAD,
        Kind.LINEAGE,
        Kind.FORKS,
        Kind.AGENTS,
        Kind.ROLLOUTS,
        Kind.STORE,
        Kind.STORE_FOLDER,
        Kind.SEARCH,
        Kind.FINDINGS,
        Kind.TURNS,
        Kind.TURN,
        Kind.TURN_CALLS,
        Kind.SHELF,
    }
)
TURN_FOLDERS = frozenset({Kind.TURNS, Kind.TURN, Kind.TURN_CALLS})  # whose children `turnfolders` knows
OF_TURNS = TURN_FOLDERS | {Kind.TURN_LINK, Kind.TURN_FILE}  # of which a thread may have any number
LINKS = frozenset(
    {Kind.ROOT_LINK, Kind.FORKED_FROM, Kind.PARENT, Kind.THREAD_LINK, Kind.FAMILY_LINK, Kind.CURRENT}
    | {Kind.TURNS_LINK, Kind.TURN_LINK, Kind.FINDING, Kind.SHELF_LINK}
)
_NEED_LINKS = frozenset(
    {Kind.LINEAGE, Kind.FORKED_FROM, Kind.PARENT, Kind.FORKS, Kind.AGENTS, Kind.FAMILY, Kind.FAMILY_LINK}
)


class Node(NamedTuple):
    """One file, folder or link.

    `name` is that of a control file, the one below rollouts/, the path below the store or that of a folder of views,
    the view that a link is of, or a query; `target` that of a link.
    """

    ino: int
    kind: Kind
    thread: str = ""
    view: View | StoreView | FamilyView | None = None
    name: str = ""
    target: str = ""

    @property
    def is_folder(self) -> bool:
        """True for what can be listed."""
        return self.kind in FOLDERS

    @property
    def is_link(self) -> bool:
        """True for a symbolic link."""
        return self.kind in LINKS


class Store(Protocol):
    """What the tree asks of a `ThreadStore`: only what is known without reading a log."""

    def thread_ids(self) -> list[str]: ...  # noqa: D102  described in ThreadStore
    def __contains__(self, thread_id: object) -> bool: ...
    def rollouts(self, thread_id: str) -> tuple[RolloutFile, ...]: ...  # noqa: D102
    def head(self, thread_id: str) -> RolloutFile: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Listing:
    """A snapshot of a folder: the names, and how to get the node of one when it is handed out. `unlisted` are further
    children, which are found by name only.
    """

    names: Sequence[str]
    node: Callable[[int], Node]
    unlisted: Mapping[str, Node] = field(default_factory=dict)

    def find(self, name: str) -> Node:
        """The child of that name; KeyError when there is none."""
        if name in self.names:
            return self.node(self.names.index(name))
        return self.unlisted[name]


class Row(NamedTuple):
    """What is fixed of a node with a slot: see `Node`."""

    slot: int
    name: str
    kind: Kind
    view: View | FamilyView | None


class Place(NamedTuple):
    """Where the kernel knows a node: the folder, None when it doesn't know that one, and the name there."""

    folder: Node | None
    name: str
    node: Node


# The slots of what is always there. Never renumber them: inode numbers must stay.
_AT_ROOT: dict[int, tuple[str, Kind, StoreView | None, str]] = {
    README: ("README.md", Kind.README, None, ""),
    3: ("threads", Kind.THREADS, None, ""),
    4: ("store", Kind.STORE, None, ""),
    5: ("problems.jsonl", Kind.ROOT_LINK, None, "store/problems.jsonl"),
    6: ("stats.json", Kind.ROOT_LINK, None, "store/stats.json"),
    7: ("operations.jsonl", Kind.OPERATIONS, None, ""),
    8: ("lineage.mmd", Kind.ROOT_LINK, None, "store/lineage.mmd"),
    64: ("search", Kind.SEARCH, None, ""),
    **{72 + number: (name, Kind.SHELF, None, "") for number, name in enumerate(SHELVES)},
}
_IN_SEARCH: dict[int, tuple[str, Kind, StoreView | None, str]] = {
    65: ("README.md", Kind.SEARCH_README, None, ""),
    66: ("problems.jsonl", Kind.SEARCH_PROBLEMS, None, ""),
}
SEARCH_FILES = frozenset(row[0] for row in _IN_SEARCH.values())
_IN_STORE: dict[int, tuple[str, Kind, StoreView | None, str]] = {
    16: (StoreView.HEADS.value, Kind.STORE_VIEW, StoreView.HEADS, ""),
    17: (StoreView.PROBLEMS.value, Kind.STORE_VIEW, StoreView.PROBLEMS, ""),
    18: (StoreView.STATS.value, Kind.STORE_VIEW, StoreView.STATS, ""),
    19: (StoreView.LINEAGE.value, Kind.STORE_VIEW, StoreView.LINEAGE, ""),
}
_IN_THREAD: dict[int, tuple[str, Kind, View | None]] = {
    1: (View.EFFECTIVE_HISTORY.value, Kind.VIEW, View.EFFECTIVE_HISTORY),
    2: (View.MODEL_INPUT.value, Kind.VIEW, View.MODEL_INPUT),
    3: (View.FULL_HISTORY.value, Kind.VIEW, View.FULL_HISTORY),
    4: (View.WORLD_STATE.value, Kind.VIEW, View.WORLD_STATE),
    5: (View.THREAD.value, Kind.VIEW, View.THREAD),
    6: (View.TURNS.value, Kind.VIEW, View.TURNS),
    7: (View.PENDING_CALLS.value, Kind.VIEW, View.PENDING_CALLS),
    8: (View.USAGE.value, Kind.VIEW, View.USAGE),
    9: (View.PROBLEMS.value, Kind.VIEW, View.PROBLEMS),
    10: (View.TRANSCRIPT.value, Kind.VIEW, View.TRANSCRIPT),
    11: (View.DROPPED.value, Kind.VIEW, View.DROPPED),
    12: (View.DROPPED_TURNS.value, Kind.VIEW, View.DROPPED_TURNS),
    16: ("lineage", Kind.LINEAGE, None),
    17: ("rollouts", Kind.ROLLOUTS, None),
    21: ("turns", Kind.TURNS_LINK, None),
}
_OF_REVERTS = frozenset((11, 12))  # are listed where a thread has several rollouts, and found everywhere
_UNLISTED: dict[int, tuple[str, Kind, View | None]] = {22: (".turns", Kind.TURNS, None)}

_CONTROLS: dict[int, tuple[str, Kind, View | None]] = {
    18: ("fork", Kind.CONTROL, None),
    19: ("revert", Kind.CONTROL, None),
    20: ("compact", Kind.CONTROL, None),
}
_IN_LINEAGE: dict[int, tuple[str, Kind, View | FamilyView | None]] = {
    32: (View.LINEAGE.value, Kind.VIEW, View.LINEAGE),
    33: ("forked_from", Kind.FORKED_FROM, None),
    34: ("parent", Kind.PARENT, None),
    35: ("forks", Kind.FORKS, None),
    36: ("agents", Kind.AGENTS, None),
    37: (FamilyView.TEXT.value, Kind.FAMILY, FamilyView.TEXT),
    38: (FamilyView.MERMAID.value, Kind.FAMILY, FamilyView.MERMAID),
    39: (FamilyView.TEXT.value, Kind.FAMILY_LINK, FamilyView.TEXT),
    40: (FamilyView.MERMAID.value, Kind.FAMILY_LINK, FamilyView.MERMAID),
}
#: The derived files of a thread by their slots.
VIEW_SLOTS: Mapping[int, View] = {
    slot: row[2] for slot, row in {**_IN_THREAD, **_IN_LINEAGE}.items() if isinstance(row[2], View)
}
_ALONE = (32, 35, 36)  # what lineage/ lists of a thread that has neither relatives nor a second log
_OF_FAMILY = {slot: row for slot, row in _IN_LINEAGE.items() if row[1] is Kind.FAMILY}
CURRENT = 48
_SHELF_LINKS = {72 + number: name for number, name in enumerate(SHELVES)}  # slots of a thread: it is once on a shelf
_SHELF_SLOTS = {name: slot for slot, name in _SHELF_LINKS.items()}
_THREADS, _STORE = 3, 4
TURNS = 21  # the slot of a link
_LINEAGE, _ROLLOUTS = 16, 17
_FIXED_ROOT = {**_AT_ROOT, **_IN_STORE, **_IN_SEARCH}
_FIXED_THREAD = {**_IN_THREAD, **_UNLISTED, **_CONTROLS, **_IN_LINEAGE, CURRENT: ("current", Kind.CURRENT, None)}
_FOLDER_SLOTS = tuple(
    slot for slot, row in _FIXED_THREAD.items() if row[1] in (Kind.LINEAGE, Kind.ROLLOUTS, Kind.FORKS, Kind.AGENTS)
)


def needs_links(node: Node) -> bool:
    """True when the children or the target of a node depend on `Links`."""
    return node.kind in _NEED_LINKS


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
        self._in_thread = {**_IN_THREAD, **(_CONTROLS if controls else {})}
        self._slots_in_thread = [slot for slot in self._in_thread if slot not in _OF_REVERTS]
        self._slot_of = {row[0]: slot for slot, row in {**self._in_thread, **_UNLISTED}.items()}
        #: What nearly all threads have in their folder, and in lineage/; of such ones, `Listing.names` is this object.
        self.rows_in_thread = [Row(slot, *self._in_thread[slot]) for slot in self._slots_in_thread]
        self.names_in_thread = [row.name for row in self.rows_in_thread]
        self.rows_alone = [Row(slot, *_IN_LINEAGE[slot]) for slot in _ALONE]
        self.rows_in_rollouts = [Row(CURRENT, *_FIXED_THREAD[CURRENT])]  # before the logs
        self.names_alone = [row.name for row in self.rows_alone]
        self._store = store
        self._files = files
        self._threads = threads if threads is not None else inodes.ThreadNumbers()
        self._gone: deque[str] = deque()  # threads, in the order in which they went; a thread may be back
        self._most_gone = _GONE
        self._dynamic: inodes.DynamicNumbers[Node] = inodes.DynamicNumbers(keys=_Keys(store))
        self.root = Node(ROOT, Kind.ROOT)

    # From an inode number

    def node(self, ino: int) -> Node:
        """The node that has a number, in whichever epoch; KeyError for one that was never handed out."""
        ino = inodes.canonical(ino)
        digest, slot = ino >> 16, ino & 0xFF
        if slot == inodes.DYNAMIC:
            return self._dynamic.node(ino)
        if digest == 0:
            return self.root if slot == ROOT else self._root_node(slot)
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
        if parent.kind is Kind.STORE_FOLDER or (parent.kind is Kind.STORE and name not in _STORE_VIEW_NAMES):
            path = f"{parent.name}/{name}" if parent.name else name
            return self._store_node(path, self._files.shown(path))
        if parent.kind is Kind.SEARCH and name not in SEARCH_FILES:
            # Whoever asks made sure that it can be answered.
            return self.numbered(f"{Kind.FINDINGS.name}\0{name}", lambda ino: Node(ino, Kind.FINDINGS, name=name))
        if parent.kind is Kind.THREAD:
            slot = self._slot_of.get(name)
            return _missing(name) if slot is None else self._made(parent.thread, parent.ino, slot)
        return self.listing(parent, links).find(name)

    def listing(self, folder: Node, links: Links | None = None) -> Listing:
        """A snapshot of a folder's children, in a stable order."""
        thread, kind = folder.thread, folder.kind
        if kind is Kind.ROOT:
            return self._fixed([self._root_node(slot) for slot in _AT_ROOT], [row[0] for row in _AT_ROOT.values()])
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
            base, slots = inodes.canonical(folder.ino), self._slots_in_thread
            return Listing(self.names_in_thread, lambda position: self._made(thread, base, slots[position]))
        if kind is Kind.LINEAGE:
            return self._lineage(thread, _given(links))
        if kind is Kind.SEARCH:
            return self._fixed([self._root_node(slot) for slot in _IN_SEARCH], [row[0] for row in _IN_SEARCH.values()])
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
        return self._root_node(_THREADS)

    def folder(self, thread: str) -> Node:
        """The folder of a thread, which must be in the store."""
        return self._thread_node(thread, 0)

    def folders(self, thread: str) -> list[Node]:
        """The folders of a thread that have fixed names, and its own."""
        base = inodes.compose(self._threads.of(thread), 0)
        return [Node(base, Kind.THREAD, thread), *(self._made(thread, base, slot) for slot in _FOLDER_SLOTS)]

    def above(self, folder: Node) -> int:
        """The number of the folder that one of these is in; of another one the root's, which means nothing."""
        if folder.kind is Kind.THREAD:
            return _THREADS
        base = folder.ino & ~0xFF
        if folder.kind in (Kind.LINEAGE, Kind.ROLLOUTS):
            return base
        return base | _LINEAGE if folder.kind in (Kind.FORKS, Kind.AGENTS) else ROOT

    def family(self, thread: str) -> list[Place]:
        """Everything with a fixed name in a thread's folder and in lineage/."""
        folder, lineage = self.folder(thread), self._thread_node(thread, _LINEAGE)
        return [
            Place(parent, row[0], self._thread_node(thread, slot))
            for parent, rows in ((folder, self._in_thread), (folder, _UNLISTED), (lineage, _IN_LINEAGE))
            for slot, row in rows.items()
        ]

    def views(self, thread: str) -> list[Node]:
        """The derived files of a thread."""
        base = inodes.compose(self._threads.of(thread), 0)
        return [self._made(thread, base, slot) for slot in VIEW_SLOTS]

    def known_in_store(self, path: str) -> list[Place]:
        """The nodes under which the kernel may know a file or folder of the store, below store/."""
        folder, _, name = path.rpartition("/")
        parent = self._known(f"{Kind.STORE_FOLDER.name}\0{folder}") if folder else self._root_node(_STORE)
        found = (self._known(f"{kind.name}\0{path}") for kind in (Kind.STORE_FILE, Kind.STORE_FOLDER))
        return [Place(parent, name, node) for node in found if node is not None]

    def known_rollouts(self, thread: str) -> list[Place]:
        """The nodes under which the kernel may know the files below rollouts/."""
        folder = self._thread_node(thread, _ROLLOUTS)
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
        return [self._root_node(slot) for slot in _FIXED_ROOT]

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
        name, kind, view, target = _FIXED_ROOT[slot]
        return Node(slot, kind, view=view, name=name if kind is Kind.SHELF else "", target=target)

    def _thread_node(self, thread: str, slot: int) -> Node:
        base = inodes.compose(self._threads.of(thread), 0)
        return self._made(thread, base, slot) if slot else Node(base, Kind.THREAD, thread)

    def _made(self, thread: str, base: int, slot: int) -> Node:
        """A node with a fixed name in the folder of a thread, whose number is `base`, or a link to it in a view."""
        if slot in _SHELF_LINKS:
            return Node(base | slot, Kind.SHELF_LINK, thread, name=_SHELF_LINKS[slot])
        name, kind, view = _FIXED_THREAD[slot]
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
            unlisted = {row[0]: self._made(thread, base, slot) for slot, row in _OF_FAMILY.items()}
            return Listing(self.names_alone, lambda position: self._made(thread, base, _ALONE[position]), unlisted)
        slots = [slot for slot, row in _IN_LINEAGE.items() if self._is_there(thread, row[1], links)]
        return self._fixed(
            [self._thread_node(thread, slot) for slot in slots], [_IN_LINEAGE[slot][0] for slot in slots]
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
                return self._thread_node(thread, CURRENT)
            key = f"{Kind.ROLLOUT.name}\0{thread}\0{name}"
            return self._dynamic.number(key, lambda ino: Node(ino, Kind.ROLLOUT, thread, name=name))

        return Listing(names, node)

    def _on_shelf(self, folder: Node, name: str) -> Node:
        path = f"{folder.name}/{name}"
        if self.shelves.is_folder(path):
            return self._shelf_folder(path)
        return self._thread_node(
            self.shelves.links(folder.name).thread(name), _SHELF_SLOTS[folder.name.partition("/")[0]]
        )

    def _shelf_folder(self, path: str) -> Node:
        return self._dynamic.number(f"{Kind.SHELF.name}\0{path}", lambda ino: Node(ino, Kind.SHELF, name=path))

    def _shelf(self, folder: Node) -> Listing:
        folders, links = self.shelves.folders(folder.name), self.shelves.links(folder.name)
        slot = _SHELF_SLOTS[folder.name.partition("/")[0]]
        names, threads = [*folders, *links.listed()] if folders else links.listed(), links.threads

        def node(position: int) -> Node:
            if position < len(folders):
                return self._shelf_folder(f"{folder.name}/{folders[position]}")
            return self._thread_node(threads[position - len(folders)], slot)

        return Listing(names, node)

    def _store_listing(self, folder: Node) -> Listing:
        fixed = list(_IN_STORE) if folder.kind is Kind.STORE else []
        entries = self._files.entries(folder.name)
        names = [_IN_STORE[slot][0] for slot in fixed] + [name for name, _ in entries]

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


_STORE_VIEW_NAMES = frozenset(row[0] for row in _IN_STORE.values())


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
