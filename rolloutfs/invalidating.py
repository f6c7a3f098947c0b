"""Making the kernel forget what it was told. Where a notification has to wait for a request that is still to be
answered, it isn't given by the thread that answers (FUSE 6.2).
"""

from __future__ import annotations

import errno
import logging
import os
import struct

import pyfuse3
import trio
from pyfuse3 import FileNameT, InodeT

from rolloutfs.nodes import Node

log = logging.getLogger(__name__)

# linux/fuse.h
_OUT = struct.Struct("=IiQ")  # length, code of the notification, 0
_INODE = struct.Struct("=Q")
_WHOLE = struct.Struct("=Qqq")  # inode, offset, length: 0 for all
_PLACE = struct.Struct("=QQII")  # inode, offset, length, 0; then the content
_INVAL_INODE, _STORE = 2, 4


def drop_attributes(ino: InodeT) -> None:
    """Make the kernel ask for attributes again. Raises OSError, ENOENT for an inode that it doesn't know."""
    pyfuse3.invalidate_inode(ino, attr_only=True)


def drop_entry(folder: Node, name: str) -> None:
    """Make the kernel look a name up again; done by a thread of pyfuse3's, since it would deadlock here (FUSE 6.2)."""
    pyfuse3.invalidate_entry_async(InodeT(folder.ino), FileNameT(os.fsencode(name)), 0, ignore_enoent=True)


def drop_names(ino: int) -> None:
    """Make the kernel forget the names in a folder. No request waits for a page of a folder, so this doesn't."""
    _forget_pages(ino)


class Pages:
    """What the kernel has of an inode's content. `device` is a descriptor of the connection to write to; None where
    that is pyfuse3's. While libfuse's own leads elsewhere (`gate`), what a thread writes to it arrives later than the
    thread knows.

    Both wait for pages that are being read, so another thread does it while we answer the reads.
    """

    def __init__(self, device: int | None = None) -> None:
        self._device = device

    async def drop(self, ino: int) -> None:
        """Make the kernel forget what it has of an inode, pages included."""
        await trio.to_thread.run_sync(self._drop, ino, abandon_on_cancel=True)

    async def put(self, ino: int, offset: int, content: bytes) -> None:
        """Put bytes into what the kernel has of an inode, whose size is at least that of their end from then on."""
        await trio.to_thread.run_sync(self._put, ino, offset, content, abandon_on_cancel=True)

    def _drop(self, ino: int) -> None:
        if self._device is None:
            _forget_pages(ino)
        else:
            self._notify(_INVAL_INODE, _WHOLE.pack(ino, 0, 0))

    def _put(self, ino: int, offset: int, content: bytes) -> None:
        if self._device is not None:
            self._notify(_STORE, _PLACE.pack(ino, offset, len(content), 0), content)
            return
        try:
            pyfuse3.notify_store(InodeT(ino), offset, content)
        except OSError as error:
            if error.errno != errno.ENOENT:
                log.warning("notify_store failed: %s", error)

    def _notify(self, code: int, *parts: bytes) -> None:
        assert self._device is not None
        try:
            os.writev(self._device, [_OUT.pack(_OUT.size + sum(map(len, parts)), code, 0), *parts])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # it isn't known to the kernel, or all has ended
                log.warning("Notification %d about %d failed: %s", code, _INODE.unpack_from(parts[0])[0], error)


def _forget_pages(ino: int) -> None:
    try:
        pyfuse3.invalidate_inode(InodeT(ino), attr_only=False)
    except OSError as error:
        if error.errno != errno.ENOENT:
            log.warning("invalidate_inode failed: %s", error)
