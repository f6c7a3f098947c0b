"""Small threads as the index keeps them: where the bytes of all derived files of one lie, in one row.

Taking a row costs a thirtieth of looking into it. The kernel has the pages of what a walk read before, so a second walk
opens files and reads nothing: who opens a file of a thread whose row was looked into gets the row as it is, with the
log pinned and guarded. That is everything it takes to read exactly what was opened, whatever comes of log and index
after that.

So it is done for threads of one log, if all that isn't in the row itself comes from that log as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from threadstore.errors import StoreError
from threadstore.extents import Extents, Source
from threadstore.index import Packed
from threadstore.projection import Basis, Outline, View

from rolloutfs.engine import FullStore
from rolloutfs.fds import Guard, OpenFile, OpenFiles
from rolloutfs.lru import Recent
from rolloutfs.marks import Marks
from rolloutfs.readers import LateReader, mark_of
from rolloutfs.slots import VIEW_SLOTS
from rolloutfs.tree import Tree

ROWS: Final = 12 << 20  # bytes of rows that are kept
_LOOKED: Final = 16  # rows that were looked into, about 20 KiB each: files of a thread are read one after the other
_OTHERS: Final = 1024
_BITS: Final = 16  # of the number of pairs of threads whose rows were looked into: 2.5 MiB


@dataclass(slots=True)
class _Pack:
    """A row, and the log that it is about, both as long as nothing has happened. `pinned` need not be open any more."""

    age: int
    packed: Packed
    log: Basis
    pinned: tuple[OpenFile, Guard] | None = None

    @property
    def weight(self) -> int:
        """Bytes of memory, about."""
        return 1024 + len(self.packed.data) + len(self.packed.generations)


class Packs:
    """Rows of the index that were looked into, by the number of the thread's folder.

    Invariant: the mark of a thread is that of a row which it is done for, and of the state of the log. While it is
    settled (see `Marks`), what the row says is what the thread's derived files are.
    """

    def __init__(self, store: FullStore, tree: Tree, files: OpenFiles) -> None:
        self._store, self._tree = store, tree
        self._files = files
        self._marks = Marks(_BITS)
        self._at_hand: Recent[int, _Pack] = Recent(ROWS, lambda pack: pack.weight)
        self._looked: Recent[int, tuple[Packed, Mapping[View, Extents]]] = Recent(_LOOKED)
        self._others: Recent[int, int] = Recent(_OTHERS)  # marks of rows that it isn't done for

    def disturb(self) -> None:
        """Something happened to the store."""
        self._marks.disturb()

    def is_settled(self, base: int) -> bool:
        """True when nothing has happened since `settle`."""
        return self._marks.settled(base) != 0

    def settle(self, thread: str, base: int, holding: Callable[[str], Mapping[View, Outline]]) -> bool:
        """Look whether it can be done for a thread. `holding` gives the outlines of all its derived files, if they hold
        until something happens to the store, else nothing.
        """
        found = self._take(thread)
        pack = None if found is None else _Pack(self._marks.age, *found)
        mark = 0 if pack is None else _mark(pack)
        if pack is None or self._others.get(base) == mark:
            return False
        outlines = holding(thread)
        if not outlines or not pack.packed.fits(outlines):
            return False
        if mark != self._marks.get(base):
            extents = pack.packed.unpacked()
            if not _is_whole(extents, outlines) or not _is_of_one(extents, pack.log):
                self._others.put(base, mark)
                return False
            self._looked.put(base, (pack.packed, extents))
        self._marks.put(base, mark)
        self._marks.settle(base, self._marks.age)
        self._at_hand.put(base, pack)
        return True

    def reader(self, ino: int, mark: int) -> LateReader | None:
        """For a derived file of a thread that is settled, whose version has this mark; None when the row is no longer
        there. Raises OSError when the log was replaced or cut just now.
        """
        base, view = ino & ~0xFF, VIEW_SLOTS.get(ino & 0xFF)
        settled = self._marks.settled(base)
        if view is None or not settled:
            return None
        pack = self._at_hand.get(base)
        if pack is None or pack.age != self._marks.age:
            pack = self._pack(base, settled)
            if pack is None:
                return None
        size, generation = pack.packed.outline(view)
        if size is None:
            return None
        log = pack.log
        pack.pinned = file, guard = self._files.pin_guarded(log.path, log.dev, log.ino, log.size, pack.pinned)
        return LateReader(
            self._files, file, guard, partial(self._extents, base, pack.packed, view), (mark, size, generation)
        )

    def _pack(self, base: int, settled: int) -> _Pack | None:
        """The row of a thread, if it is the one that was looked into."""
        found = self._take(self._tree.node(base).thread)
        pack = None if found is None else _Pack(self._marks.age, *found)
        if pack is None or _mark(pack) != settled:
            self._marks.lift(base)
            return None
        self._at_hand.put(base, pack)
        return pack

    def _extents(self, base: int, packed: Packed, view: View) -> Extents:
        """Where the bytes of a file lie."""
        looked = self._looked.get(base)
        if looked is None or looked[0] is not packed:
            looked = packed, packed.unpacked()
            self._looked.put(base, looked)
        return looked[1][view]

    def _take(self, thread: str) -> tuple[Packed, Basis] | None:
        """The row of a thread as it is now, and the state of the log."""
        try:
            packed = self._store.packed(thread)
            return None if packed is None else (packed, self._store.status(self._store.head(thread)))
        except (KeyError, StoreError, OSError):
            return None


def _mark(pack: _Pack) -> int:
    return mark_of((pack.packed.digest, pack.log))


def _is_whole(extents: Mapping[View, Extents], outlines: Mapping[View, Outline]) -> bool:
    """True when all files are there in their sizes."""
    return extents.keys() == outlines.keys() and all(extents[view].size == outlines[view].size for view in extents)


def _is_of_one(extents: Mapping[View, Extents], log: Basis) -> bool:
    """True when all bytes that aren't in the row itself lie in this log."""
    source = Source(log.path, log.dev, log.ino, log.size)
    return {one for whole in extents.values() for one in whole.sources} == {source}
