"""The folders of single turns: `threads/ID/turns/0007/`, with what was said, items, calls, patches and tokens.

`turns` is a link to a folder `.turns` beside it that is found by its name and not listed, as the snapshots of ZFS are:
everything in it is in other files as well, so a walk, a search or a backup of the tree leaves it out, and whoever names
`turns/` looks into it. On look-up, `last` and any number (`turns/-1`, `turns/7`) are links to a folder; they aren't
listed, so that `turns/*/usage.json` names each turn once.

All turns of a small thread are made together, those of a large one each by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from threadstore.projection import Projection, View, rendered
from threadstore.turnfiles import CALLS, Files, Turns

from rolloutfs.engine import Engine
from rolloutfs.lru import Recent
from rolloutfs.nodes import Kind, Listing, Node
from rolloutfs.tree import Tree

_KEPT: Final = 16 << 20  # bytes of extents
_LISTS: Final = 4 << 20  # bytes of the names of turns, about


class _Listed:
    """The turns of a thread, and what tells whether these are still all."""

    __slots__ = ("projection", "turns")

    def __init__(self, projection: Projection) -> None:
        self.turns = Turns.of(rendered(projection))
        self.projection = Projection(None, projection.basis, projection.generation)


def _weight(files: Files) -> int:
    return 512 + sum(512 + (one.extents.weight if one.extents is not None else 0) for one in files.values())


class TurnFolders:
    """Nodes and files below `.turns`. Raises KeyError for what isn't there, StoreError and OSError."""

    def __init__(self, engine: Engine, tree: Tree) -> None:
        self._engine = engine
        self._tree = tree
        self._lists: Recent[str, _Listed] = Recent(_LISTS, lambda listed: 256 * (1 + len(listed.turns.names)))
        self._files: Recent[tuple[str, str], Files] = Recent(_KEPT, _weight)

    async def lookup(self, folder: Node, name: str) -> Node:
        """The child of a folder."""
        if folder.kind is not Kind.TURNS:
            return (await self.listing(folder)).find(name)
        turns = await self._turns(folder.thread)
        target = turns.called(name)
        if target is None:
            raise KeyError(name)
        if target == name:
            return self._node(folder.thread, Kind.TURN, name)
        return self._node(folder.thread, Kind.TURN_LINK, name, target)

    async def listing(self, folder: Node) -> Listing:
        """A snapshot of a folder's children."""
        thread = folder.thread
        if folder.kind is Kind.TURNS:
            names = (await self._turns(thread)).names
            return Listing(names, lambda at: self._node(thread, Kind.TURN, names[at]))
        turn, _, inner = folder.name.partition("/")
        below = f"{inner}/" if inner else ""
        files = await self._made(thread, turn)
        names = [file.removeprefix(below) for file in files if file.startswith(below)]
        names = sorted(name for name in names if "/" not in name)
        if not below and any(file.startswith(f"{CALLS}/") for file in files):
            names.append(CALLS)

        def node(at: int) -> Node:
            kind = Kind.TURN_CALLS if names[at] == CALLS and not below else Kind.TURN_FILE
            return self._node(thread, kind, f"{folder.name}/{names[at]}")

        return Listing(names, node)

    async def target(self, link: Node) -> str:
        """Where a link leads now."""
        return (await self.lookup(link._replace(kind=Kind.TURNS), link.name)).target or link.name

    async def file(self, node: Node) -> Projection:
        """The content of a file."""
        turn, _, file = node.name.partition("/")
        return (await self._made(node.thread, turn))[file]

    def known(self, node: Node) -> Projection | None:
        """The content of a file if it was made and holds."""
        turn, _, file = node.name.partition("/")
        files = self._kept(node.thread, turn)
        return None if files is None else files.get(file)

    def _node(self, thread: str, kind: Kind, name: str, target: str = "") -> Node:
        target = target if kind is Kind.TURN_LINK else ""
        key = f"{kind.name}\0{thread}\0{name}"
        return self._tree.numbered(key, lambda ino: Node(ino, kind, thread, name=name, target=target))

    async def _turns(self, thread: str) -> Turns:
        known = self._lists.get(thread)
        if known is None or not self._engine.store.is_current(thread, known.projection):
            known = _Listed(await self._engine.project(thread, View.TURNS))
            self._lists.put(thread, known)
        return known.turns

    def _kept(self, thread: str, turn: str) -> Files | None:
        files = self._files.get((thread, turn))
        if files is None or not self._engine.store.is_current(thread, next(iter(files.values()))):
            return None
        return files

    async def _made(self, thread: str, turn: str) -> Mapping[str, Projection]:
        files = self._kept(thread, turn)
        if files is None:
            made = await self._engine.project_turn(thread, turn)
            for name, some in made.items():
                self._files.put((thread, name), some)
            files = made[turn]
        return files
