"""Inodes with handles, and what the kernel may be told of the size of one that has grown.

The page with the end of a file is filled up with zeros in the kernel's cache, and a greater size makes these look like
content until the page is gone. So of an open file the pages are dropped first, and the size is told then.

What the kernel is told of a file while it hears of a change, or drops pages, it gives to who asked, and forgets. When
that happens twice, a program that knows the size meets with the end that the file had before, be it at 0. So where it
may have happened to an open file, its last page is put into the cache, which the size follows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from rolloutfs.lru import Recent
from rolloutfs.outlines import KNOWN
from rolloutfs.readers import Reader

_PAGE: Final = 4096  # bytes; the kernel's may be larger, which makes no difference
_PATIENT: Final = 24  # requests that may wait for pages to go, which wait for reads: pyfuse3 takes 99 at a time


@dataclass(slots=True)
class Open:
    """An inode with handles. `frozen`: its content is no longer that of the file. `seen`: when it last was (s,
    monotonic), `sure` that nothing was in the way of seeing it. `backing`: the number of the file that the kernel reads
    instead of asking us. `shown`: the size in bytes that the kernel may know; none of its pages was made when there
    were fewer. It grows under `growing`. `disturbed`: the kernel may have forgotten what it was told. `ensured`: the
    size in bytes that it has all the same.
    """

    reader: Reader
    seen: float
    handles: int = 0
    frozen: bool = False
    backing: int | None = None
    sure: bool = True
    shown: int = 0
    disturbed: bool = False
    ensured: int = 0
    growing: trio.Lock | None = None  # made when it is needed: few files grow while they are open

    def __post_init__(self) -> None:
        self.shown = self.reader.size

    @property
    def is_settled(self) -> bool:
        """True when the kernel was told of all that can be read, and can't have forgotten it."""
        if self.shown != self.reader.size:
            return False
        return not self.disturbed or self.ensured == self.shown or self.backing is not None


async def no_pages(ino: int) -> None:
    """Drops the pages of an inode where there is no kernel."""


async def no_page(ino: int, offset: int, content: bytes) -> None:
    """Puts a page of an inode into a cache where there is no kernel."""


class Growth:
    """Lets inodes grow in the kernel's eyes: those with handles, in `opened`. `let_go` takes a handle of one back."""

    def __init__(self, opened: Mapping[int, Open], let_go: Callable[[int, Open], None]) -> None:
        self._opened = opened
        self._let_go = let_go
        self.drop_pages: Callable[[int], Awaitable[None]] = no_pages  # all that the kernel has of an inode
        self.put_page: Callable[[int, int, bytes], Awaitable[None]] = no_page  # with the end of a file
        self._patient = 0  # requests that wait for pages to go
        self._unsure: Recent[int, bool] = Recent(KNOWN)  # files of which the kernel may not know what was announced

    def disturb(self, ino: int) -> None:
        """The kernel is told of a change of an inode, and may forget what else it is told of it just now; or was told
        no size that holds.
        """
        state = self._opened.get(ino)
        if state is None:
            self._unsure.put(ino, True)
        else:
            state.disturbed = True

    def is_settled(self, ino: int) -> bool:
        """False for an inode with handles of which there is more to do than to tell the size."""
        state = self._opened.get(ino)
        return state is None or state.is_settled

    def begin(self, ino: int, state: Open) -> None:
        """An inode has got its first handle."""
        if ino in self._unsure:
            state.disturbed = True
            self._unsure.drop(ino)

    def end(self, ino: int, state: Open) -> None:
        """An inode has lost its last handle: whoever opens it next has to know what the kernel may not."""
        if not state.is_settled:
            self._unsure.put(ino, True)

    async def let_grow(self, ino: int, state: Open) -> None:
        """See that all of an inode may be told; with too many waiting for that, what was told before stays."""
        if not state.is_settled and self._patient < _PATIENT:
            self._patient += 1
            try:
                await self._let_grow(ino, state)
            finally:
                self._patient -= 1

    async def _let_grow(self, ino: int, state: Open) -> None:
        """The inode stays open meanwhile: no page is put where another content lies by then."""
        if self._opened.get(ino) is not state:  # closed meanwhile: whoever opens it next drops what there is
            state.shown = state.reader.size
            return
        if state.growing is None:
            state.growing = trio.Lock()
        state.handles += 1
        try:
            async with state.growing:
                size, is_ours = state.reader.size, state.backing is None
                grows = state.shown < size
                if grows and is_ours:
                    await self.drop_pages(ino)
                state.shown = size  # a file that the kernel reads by itself may also have been cut
                if is_ours and state.ensured != size and (grows or state.disturbed):
                    await self._mend(ino, state, size)
        finally:
            self._let_go(ino, state)

    async def _mend(self, ino: int, state: Open, size: int) -> None:
        """Make the kernel have a size in bytes, by a page that ends there: what it is told of that it can't forget."""
        start = max(size - 1, 0) // _PAGE * _PAGE
        try:
            content = state.reader.read(start, size - start)
        except OSError:  # damaged meanwhile, as who reads it is told
            return
        if content:
            await self.put_page(ino, start, content)
        state.ensured = size
