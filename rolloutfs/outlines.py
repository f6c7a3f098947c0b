"""What the index knows of the derived files of threads, asked at most once for each, and whether it holds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from threadstore.projection import Basis, Outline, View

from rolloutfs.engine import FullStore
from rolloutfs.heirs import Heirs
from rolloutfs.lru import Recent

KNOWN: Final = 4096  # files whose size is remembered, about 1.5 KiB each
OUTLINED: Final = 512  # threads of which the sizes of all derived files are remembered, about 4 KiB each
_ASK_AGAIN = 2.0  # seconds until the index may know more of a thread


def _all_bases(outlines: Mapping[View, Outline]) -> int:
    """The same, of the most that one of them was made from."""
    return 1 + max(len(outline.basis) for outline in outlines.values()) // 8


class Outlines:
    """Sizes and generations of all derived files, by thread."""

    def __init__(self, store: FullStore, heirs: Heirs) -> None:
        self._store = store
        self._heirs = heirs
        self._outlined: Recent[str, Mapping[View, Outline]] = Recent(OUTLINED, _all_bases)
        self._asked: Recent[str, float] = Recent(KNOWN)  # when the index was asked for a thread (s, monotonic)
        self._missed: Recent[str, float] = Recent(KNOWN)  # when it knew nothing of one (s, monotonic)

    def told(self, thread: str) -> Mapping[View, Outline] | None:
        """What the index told last, which need not hold any more."""
        return self._outlined.get(thread)

    def holding(self, thread: str) -> Mapping[View, Outline]:
        """What the index told of all derived files of a thread, if all of that holds, or what it tells now."""
        outlines = self._outlined.get(thread) or {}
        bases = {id(outline.basis): outline.basis for outline in outlines.values()}
        if outlines and all(self._store.is_made_from(thread, basis) for basis in bases.values()):
            return outlines
        missed = self._missed.get(thread)
        if missed is not None and time.monotonic() - missed < _ASK_AGAIN:
            return {}
        outlines = self._take_over(thread)
        if not outlines:
            self._missed.put(thread, time.monotonic())
        return outlines

    def staying(self, thread: str) -> Mapping[View, Outline]:
        """The same if it stays so until something happens to the store; else nothing."""
        outlines = self.holding(thread)
        bases = {id(outline.basis): outline.basis for outline in outlines.values()}
        return outlines if all(self.stays(thread, basis) for basis in bases.values()) else {}

    def stays(self, thread: str, basis: tuple[Basis, ...]) -> bool:
        """The same of a derived file that was made from these."""
        if not basis or thread in self._store.reverted():
            return False
        return all(one.mtime_ns >= 0 and not one.path.startswith("/") for one in basis)

    def ask(self, thread: str) -> bool:
        """Take over what the index knows of a thread; False when it was asked just now."""
        now, asked = time.monotonic(), self._asked.get(thread)
        if asked is not None and now - asked < _ASK_AGAIN:
            return False
        self._asked.put(thread, now)
        return bool(self._take_over(thread))

    def _take_over(self, thread: str) -> Mapping[View, Outline]:
        """What the index says now of all derived files of a thread."""
        outlines = self._store.outlines(thread)
        if outlines:
            self._outlined.put(thread, outlines)
            for basis in {id(outline.basis): outline.basis for outline in outlines.values()}.values():
                self._heirs.note(thread, basis[1:])
        return outlines

    def forget(self, thread: str) -> None:
        """Ask again at once."""
        self._asked.drop(thread)

    def drop(self, thread: str) -> None:
        """What was told is of no use."""
        self._outlined.drop(thread)
