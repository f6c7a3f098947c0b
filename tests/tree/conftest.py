"""A small store, and the tree over it, without a mount."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from threadstore.spool import Spool
from threadstore.store import Links, ThreadStore

from rolloutfs.attributes import Clock
from rolloutfs.content import Contents
from rolloutfs.engine import Engine
from rolloutfs.nodes import Node, needs_links
from rolloutfs.storefiles import StoreFiles
from rolloutfs.tree import Tree
from tests.tree.sample import SampleStore, sample_store


@dataclass(frozen=True, slots=True)
class Planted:
    """A tree with all its parts."""

    sample: SampleStore
    store: ThreadStore
    tree: Tree
    contents: Contents

    def walk(self, path: str) -> Node:
        """The node at a path."""
        node = self.tree.root
        for part in path.split("/"):
            node = self.tree.lookup(node, part, self.links(node))
        return node

    def names(self, path: str) -> list[str]:
        """The names in a folder."""
        node = self.walk(path) if path else self.tree.root
        return list(self.tree.listing(node, self.links(node)).names)

    def links(self, node: Node) -> Links | None:
        """What the tree has to be told for a node."""
        return self.store.links(node.thread) if needs_links(node) else None

    async def open(self, path: str) -> int:
        """A handle of a file, looked up afresh as the kernel does after ESTALE."""
        node = self.walk(path)
        handle, _ = await self.contents.open(self.contents.inode(node), node, 1, lambda ino: None)
        return handle

    async def read(self, path: str) -> bytes:
        """The content of a file."""
        handle = await self.open(path)
        try:
            return self.contents.read(handle, 0, 1 << 30)
        finally:
            self.contents.release(handle)


@pytest.fixture
def sample(tmp_path: Path) -> SampleStore:
    """An empty store that the test fills."""
    return sample_store(tmp_path / "store")


@pytest.fixture
def plant(sample: SampleStore, tmp_path: Path) -> object:
    """A function that gives the tree over `sample` as it is now."""

    def make() -> Planted:
        spool = tmp_path / "spool"
        spool.mkdir(exist_ok=True)
        store = ThreadStore(str(sample.root), Spool(str(spool)))
        files = StoreFiles(store.root)
        tree = Tree(store, files)
        contents = Contents(Engine(store, None), tree, files, b"readme", Clock(store, files).of_content)
        return Planted(sample, store, tree, contents)

    return make
