"""Inodes with handles, and what the kernel may be told of the size of one that has grown.

The page with the end of a file is filled up with zeros in the kernel's cache, and a greater size makes these look like
content until the page is gone. So of an open file the pages are dropped first, and the size is told then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from rolloutfs.readers import Reader

_PATIENT: Final = 24  # requests that may wait for pages to go, which wait for reads: pyfuse3 takes 99 at a time


@dataclass(slots=True)
class Open:
    """An inode with handles. `frozen`: its content is no longer that of the file. `seen`: when it last was (s,
    monotonic), `sure` that nothing was in the way of seeing it. `backing`: the number of the file that the kernel reads
    instead of asking us. `shown`: the size in bytes that the kernel may know; none of its pages was made when there
    were fewer. It grows under `growing`.
    """

    reader: Reader
    seen: float
    handles: int = 0
    frozen: bool = False
    backing: int | None = None
    sure: bool = True
    shown: int = 0
    growing: trio.Lock | None = None  # made when it is needed: few files grow while they are open

    def __post_init__(self) -> None:
        self.shown = self.reader.size


async def _no_pages(ino: int) -> None:
    """Drops the pages of an inode where there is no kernel."""


class Growth:
    """Lets open inodes grow in the kernel's eyes."""

    def __init__(self) -> None:
        self.drop_pages: Callable[[int], Awaitable[None]] = _no_pages  # all that the kernel has of an inode
        self._patient = 0  # requests that wait for pages to go

    async def let_grow(self, ino: int, state: Open) -> None:
        """See that all of an inode may be told; with too many waiting for that, what was told before stays."""
        if state.shown != state.reader.size and self._patient < _PATIENT:
            self._patient += 1
            try:
                await self._let_grow(ino, state)
            finally:
                self._patient -= 1

    async def _let_grow(self, ino: int, state: Open) -> None:
        if state.growing is None:
            state.growing = trio.Lock()
        async with state.growing:
            size = state.reader.size
            if state.shown < size and state.backing is None:
                await self.drop_pages(ino)
            state.shown = size  # a file that the kernel reads by itself may also have been cut
