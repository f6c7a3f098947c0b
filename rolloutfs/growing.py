"""Inodes with handles, and what the kernel may be told of the size of one that has grown.

The page with the end of a file is filled up with zeros in the kernel's cache, and a greater size makes these look like
content until the page is gone. So of an open file the pages are dropped first, and the size is told then.

What the kernel is told of a file while it hears of a change, or drops pages, it gives to who asked, and forgets. When
that happens twice, a program that knows the size meets with the end that the file had before, be it at 0. So where it
may have happened to an open file, its last page is put into the cache, which the size follows (`_mend`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

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


async def _no_pages(ino: int) -> None:
    """Drops the pages of an inode where there is no kernel."""


async def _no_page(ino: int, offset: int, content: bytes) -> None:
    """Puts a page of an inode into a cache where there is no kernel."""


class Growth:
    """Lets open inodes grow in the kernel's eyes."""

    def __init__(self, is_open: Callable[[int, Open], bool], let_go: Callable[[int, Open], None]) -> None:
        """`is_open` says whether an inode is still open in that way; `let_go` ends what a handle more has begun."""
        self.drop_pages: Callable[[int], Awaitable[None]] = _no_pages  # all that the kernel has of an inode
        self.put_page: Callable[[int, int, bytes], Awaitable[None]] = _no_page  # with the end of a file
        self._is_open = is_open
        self._let_go = let_go
        self._patient = 0  # requests that wait for pages to go

    async def let_grow(self, ino: int, state: Open) -> None:
        """See that all of an inode may be told: the pages with the end that it had go before. With too many waiting for
        that, what was told before stays.
        """
        if not state.is_settled and self._patient < _PATIENT:
            self._patient += 1
            try:
                await self._let_grow(ino, state)
            finally:
                self._patient -= 1

    async def _let_grow(self, ino: int, state: Open) -> None:
        """The inode stays open meanwhile: no page is put where another content lies by then."""
        if not self._is_open(ino, state):  # closed meanwhile: whoever opens it next drops what there is
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
