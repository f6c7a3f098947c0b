"""Tells the kernel to ask for attributes again, also of an inode that it is only just getting to know.

The kernel makes an inode when the program that looked it up goes on, which may be a while after our answer. A
notification in between finds no inode, and the kernel would rely on the answer for as long as that said. So where one
found nothing although an answer about the inode was given lately, it is given again a little later.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable
from typing import Final

import trio
from pyfuse3 import InodeT

log = logging.getLogger(__name__)

_LATELY: Final = 4096  # answers
_PAUSE: Final = 0.05  # seconds until a notification that found nothing is given again
_TIMES: Final = 20  # that it is


class Notices:
    """`send` notifies about an inode, attributes only: a full invalidation from the serving thread would deadlock (FUSE
    6.2). It raises OSError, ENOENT for an inode that the kernel doesn't know.
    """

    def __init__(self, send: Callable[[InodeT], None]) -> None:
        self._send = send
        self._young: set[int] = set()
        self._old: set[int] = set()
        self._unheard: dict[int, int] = {}  # how often they are to be given again
        self._wanted = trio.Event()

    def told(self, ino: int) -> None:
        """The kernel may make this inode now."""
        self._young.add(ino)
        if len(self._young) >= _LATELY:
            self._old, self._young = self._young, set()

    def told_all(self, inos: Iterable[int]) -> None:
        """The kernel may make these inodes now."""
        self._young.update(inos)
        if len(self._young) >= _LATELY:
            self._old, self._young = self._young, set()

    def give(self, ino: int) -> None:
        """What the kernel was told about an inode no longer holds."""
        if not self._found(ino) and (ino in self._young or ino in self._old):
            self._unheard[ino] = _TIMES
            self._wanted.set()

    async def run(self) -> None:
        """Give again what found nothing."""
        while True:
            await self._wanted.wait()
            await trio.sleep(_PAUSE)
            self.repeat()

    def repeat(self) -> None:
        """Give each of them once more."""
        self._unheard = {ino: left - 1 for ino, left in self._unheard.items() if not self._found(ino) and left > 1}
        if not self._unheard:
            self._wanted = trio.Event()

    def _found(self, ino: int) -> bool:
        try:
            self._send(InodeT(ino))
        except OSError as error:
            if error.errno != errno.ENOENT:
                log.warning("invalidate_inode failed: %s", error)
                return True
            return False
        return True
