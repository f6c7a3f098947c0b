"""What the nodes of the mounted tree are: the kinds of files, folders and links, and what is known of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import NamedTuple

from threadstore.projection import FamilyView, StoreView, View


class Kind(IntEnum):
    """What a node is; decides its type, its content and where its times come from."""

    ROOT = auto()
    README = auto()
    MOUNT = auto()
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
    HINT = auto()
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


def needs_links(node: Node) -> bool:
    """True when the children or the target of a node depend on `Links`."""
    return node.kind in _NEED_LINKS
