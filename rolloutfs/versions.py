"""Which version a file has now: what is known of it and still holds, or what is made anew.

Two bounds on memory: projections are kept by weight, what is known about files by number.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from threadstore.projection import SELECTION, Basis, FamilyView, Projection, StoreView, View

from rolloutfs import freshness
from rolloutfs.engine import Engine
from rolloutfs.heirs import Heirs
from rolloutfs.lru import Recent
from rolloutfs.marks import Marks
from rolloutfs.nodes import Kind, Node
from rolloutfs.outlines import KNOWN, Outlines
from rolloutfs.readers import Derived, Literal, Plain, Version
from rolloutfs.slots import VIEW_SLOTS
from rolloutfs.storefiles import StoreFiles
from rolloutfs.tree import Tree
from rolloutfs.turnfolders import TurnFolders

PROJECTIONS: Final = 24 << 20  # bytes of extents kept for files that nobody has open
BESIDE: Final = 4 << 20  # bytes of those that were made together with one that was opened
_OPENED: Final = 18  # bits of the number of pairs of files of which it is remembered what was opened: 10 MiB
_MOVES = 12  # times that a thread's files may be moved while we look at them
_SEARCHES = frozenset({Kind.SEARCH_README, Kind.SEARCH_PROBLEMS, Kind.HITS, Kind.INCOMPLETE, Kind.HINT})


def _weight(version: Derived) -> int:
    """Bytes of memory, about."""
    extents, files = version.extents, 200 * len(version.projection.basis)
    if extents is None:
        return 512 + files
    return 1024 + files + extents.weight + 200 * len(extents.sources)


def _bases(version: Derived) -> int:
    """1, and as much again for each 8 files that it was made from: a thread may have any number of generations."""
    return 1 + len(version.projection.basis) // 8


class Versions:
    """What all files contain, as far as it is known and holds. `watched` is True while every change of the store is
    told by `note`.
    """

    def __init__(
        self,
        engine: Engine,
        tree: Tree,
        files: StoreFiles,
        readme: bytes,
        operations: str | None,
        searches: Callable[[Node], Awaitable[bytes]] | None,
    ) -> None:
        self._searches = searches  # what the files below search/ say
        self._engine = engine
        self._tree = tree
        self._files = files
        self.literals = {Kind.README: Literal(readme), Kind.MOUNT: Literal(b"")}
        self._operations = operations  # the path of the journal
        self.turns = TurnFolders(engine, tree)
        self._known: Recent[int, Derived] = Recent(KNOWN, _bases)
        self._full: Recent[int, Derived] = Recent(PROJECTIONS, _weight)
        self._beside: Recent[int, Derived] = Recent(BESIDE, _weight)  # what was made with them, and not opened so far
        self.heirs = Heirs()
        self.outlines = Outlines(engine.store, self.heirs)
        #: Marks of what was opened. Those of threads are settled while the store is watched, until something happens to
        #: it: the kernel needn't be told anything when they are opened again.
        self.opened = Marks(_OPENED)
        self._renewals: dict[int, freshness.Share] = {}
        # Generations of files about families since the last change, while the store is watched.
        self._unchanged: Recent[int, bytes] | None = None

    @property
    def watched(self) -> bool:
        """True while every change of the store is told."""
        return self._unchanged is not None

    async def now(self, node: Node, *, with_extents: bool) -> Version:
        """What the file contains now."""
        for _ in range(_MOVES):
            try:
                return await self._look(node, with_extents=with_extents)
            except (KeyError, FileNotFoundError):  # archived or compressed since we looked at the folders?
                self._engine.store.refresh(anew=True)
                if node.thread not in self._engine.store:
                    raise
        return await self._look(node, with_extents=with_extents)

    async def _look(self, node: Node, *, with_extents: bool) -> Version:
        version = self.at_hand(node, with_extents=with_extents)
        if version is not None:
            return version
        if node.kind in _SEARCHES and self._searches is not None:
            return Literal(await self._searches(node))
        full = Derived.of(await self._project(node))
        self._note(node, full)
        if full.extents is not None:
            self._keep_content(node.ino, full)
        return full

    def at_hand(self, node: Node, *, with_extents: bool) -> Version | None:
        """What the file contains now, where that can be told without waiting."""
        if node.kind in self.literals:
            return self.literals[node.kind]
        if node.kind is Kind.OPERATIONS:
            return self._journal()
        if node.kind is Kind.STORE_FILE:
            return Plain.of(node.name, self._files.shown(node.name))
        if node.kind in _SEARCHES:
            return None
        if node.kind is Kind.ROLLOUT:
            rollout = self._tree.rollout_names(node.thread)[node.name]
            if not rollout.compressed:
                return Plain.of(rollout.path, self._files.shown(rollout.path))
        full = self._full.get(node.ino) if self._unchanged is not None and self.opened.settled(node.ino) else None
        known = full or self.outline(node)
        if known is not None:
            if not with_extents or not known.given:
                return known
            full = self._filled(node.ino, known)
            if full is not None:
                return full
        # Whoever asks for the size of one derived file will ask for the others, and whoever reads one will read them.
        made = {}
        if node.kind is Kind.VIEW:
            made = self._recall(node.thread) or self._engine.project_all(node.thread)
        if made:
            self._learn(node.thread, made)
            known = self.outline(node)
            if known is None or not with_extents or not known.given:
                return known
            return self._filled(node.ino, known)
        return None

    def _recall(self, thread: str) -> dict[View, Projection]:
        """Every derived file of a small thread as the index has them, if that holds; else nothing."""
        packed = self._engine.store.packed(thread)
        outlines = self.outlines.holding(thread) if packed is not None else None
        return self._engine.store.unpack(packed, outlines) if packed is not None and outlines else {}

    def _filled(self, ino: int, known: Derived) -> Derived | None:
        """The same with what a reader needs, if that is at hand."""
        full = self._full.get(ino)
        if full is not None and full.signature == known.signature:
            return full
        full = self._beside.get(ino)
        if full is None or full.signature != known.signature:
            return None
        self._beside.drop(ino)
        self._keep_content(ino, full)
        return full

    def outline(self, node: Node) -> Derived | None:
        """What is known of a derived file and holds."""
        known = self._known.get(node.ino)
        if known is not None and self._holds(node, known.projection):
            return known
        if node.kind is not Kind.VIEW:
            return None
        known = self._indexed(node)
        if known is None and self.outlines.ask(node.thread):
            known = self._indexed(node)
        return known

    def _indexed(self, node: Node) -> Derived | None:
        """What the index told of a derived file of a thread, if that holds."""
        outlines = self.outlines.told(node.thread)
        outline = outlines.get(node.view) if outlines is not None and isinstance(node.view, View) else None
        known = None if outline is None else Derived.outlined(outline)
        return known if known is not None and self._holds(node, known.projection) else None

    def sizes(self, thread: str, base: int) -> dict[int, tuple[int, bool]]:
        """By slot, the sizes in bytes of those derived files of a thread of which they are known and hold. True with
        those of `SELECTION` if they stay so until something happens to the store, which is watched. `base` is the
        number of the thread's folder.
        """
        outlines = self.outlines.told(thread)
        held: dict[int, bool] = {}  # by the identity of a basis: most have the same

        def holds(basis: tuple[Basis, ...]) -> bool:
            found = held.get(id(basis))
            if found is None:
                found = held[id(basis)] = self._engine.store.is_made_from(thread, basis)
            return found

        if outlines is None or not all(holds(outline.basis) for outline in outlines.values()):
            outlines = self.outlines.told(thread) if self.outlines.ask(thread) else None
            held.clear()
            for told in outlines.values() if outlines is not None else ():  # all but young files were compared just now
                if id(told.basis) not in held and all(one.mtime_ns != -1 for one in told.basis):
                    held[id(told.basis)] = True
        found: dict[int, tuple[int, bool]] = {}
        for slot, view in VIEW_SLOTS.items():
            known = self._known.get(base | slot)
            outline = None if outlines is None else outlines.get(view)
            if known is not None and holds(known.projection.basis):
                size, basis = known.size, known.projection.basis
            elif outline is not None and holds(outline.basis):
                size, basis = outline.size, outline.basis
            else:
                continue
            found[slot] = size, view in SELECTION and self.watched and self.outlines.stays(thread, basis)
        return found

    def full(self, ino: int) -> Derived | None:
        """What was opened last, with where its bytes lie, if that is still in memory."""
        return self._full.get(ino)

    def keep_only(self, ino: int, mark: int) -> None:
        """The file was found to have the version of this mark: another one is of no use."""
        full = self._full.get(ino)
        if full is not None and full.mark != mark:
            self._full.drop(ino)

    def _learn(self, thread: str, made: Mapping[View, Projection]) -> None:
        """Keep derived files that were made together. What the index says of one is enough where it is the same."""
        shared: dict[tuple[Basis, ...], tuple[Basis, ...]] = {}  # most are made from the same files
        outlines = self.outlines.told(thread) or {}
        for node in self._tree.views(thread):
            projection = made.get(node.view) if isinstance(node.view, View) else None
            if projection is None or not isinstance(node.view, View):
                continue
            basis = shared.setdefault(projection.basis, projection.basis)
            bare = Projection(None, basis, projection.generation, projection.error)
            version = Derived(bare, projection.size, projection.extents, projection.extents is not None)
            if version.extents is not None and outlines.get(node.view) == (version.size, basis, bare.generation):
                self._known.drop(node.ino)
            else:
                self._note(node, version)
            if version.extents is not None:  # of what is never opened, nothing is worth keeping for long
                self._beside.put(node.ino, version)

    def _note(self, node: Node, version: Derived) -> None:
        if node.thread:
            self.heirs.note(node.thread, version.projection.basis[1:])
        self._known.put(node.ino, version.outline())

    def _keep_content(self, ino: int, version: Derived) -> None:
        self._full.put(ino, version)
        self.opened.lift(ino)

    def _journal(self) -> Version:
        if self._operations is None or not os.path.exists(self._operations):
            return Literal(b"")
        return Plain.of(self._operations, os.stat(self._operations))

    def lasts(self, node: Node) -> bool:
        """False for a file that may become another one by a file that was never seen: it holds only now."""
        known = self._known.get(node.ino) if node.view is not None else None
        return known is None or bool(known.projection.basis)

    def is_valid(self, node: Node, version: Version) -> bool:
        """False for a version of which we know that it is no longer that of the file."""
        return not isinstance(version, Derived) or node.kind is not Kind.VIEW or self._holds(node, version.projection)

    def stays(self, node: Node, version: Version) -> bool:
        """True for a derived file of a thread that stays as it is until something happens to the store that a watch
        tells of. Not so where a database was written just now, or lies elsewhere: it may say another name, and select
        another log.
        """
        if node.kind is not Kind.VIEW or not isinstance(version, Derived):
            return False
        return self.outlines.stays(node.thread, version.projection.basis)

    def _holds(self, node: Node, projection: Projection) -> bool:
        if node.kind is Kind.STORE_VIEW:
            return not self._renewals[node.ino].is_due()
        if node.kind is Kind.FAMILY:
            return self._unchanged is not None and self._unchanged.get(node.ino) == projection.generation
        if node.kind is Kind.ROLLOUT:
            return all(self._is_same(one) for one in projection.basis)
        return self._engine.store.is_current(node.thread, projection)

    def _is_same(self, basis: Basis) -> bool:
        try:
            status = self._files.stat(basis.path)
        except OSError:
            return False
        now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return now == (basis.dev, basis.ino, basis.size, basis.mtime_ns)

    async def _project(self, node: Node) -> Projection:
        if isinstance(node.view, StoreView):
            with self._renewals.setdefault(node.ino, freshness.Share()):
                return await self._engine.project_store(node.view)
        if node.kind is Kind.TURN_FILE:
            return await self.turns.file(node)
        if isinstance(node.view, FamilyView):
            unchanged = self._unchanged  # another one if something happens meanwhile
            made = await self._engine.project_family(node.thread, node.view)
            if unchanged is not None:
                unchanged.put(node.ino, made.generation)
            return made
        if isinstance(node.view, View):
            return await self._engine.project(node.thread, node.view)
        return await self._engine.project_rollout(self._tree.rollout_names(node.thread)[node.name])

    def note(self, *, watched: bool) -> None:
        """Something happened to the store, so what follows from all of it may be different; or, unless it is watched,
        may be at any moment.
        """
        self._unchanged = Recent(KNOWN) if watched else None
        self.opened.disturb()

    def forget(self, thread: str) -> None:
        """Make everything about a thread anew when it is asked for."""
        self.outlines.forget(thread)
        for node in self._tree.views(thread):
            self.drop(node)

    def drop(self, node: Node) -> None:
        """Make a file anew when it is asked for."""
        self.outlines.drop(node.thread)
        self._known.drop(node.ino)
        self._full.drop(node.ino)
        self._beside.drop(node.ino)
