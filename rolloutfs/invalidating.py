"""Making the kernel forget what it was told. Where a notification has to wait for a request that is still to be
answered, it isn't given by the thread that answers (FUSE 6.2).
"""

from __future__ import annotations

import errno
import logging
import os

import pyfuse3
import trio
from pyfuse3 import FileNameT, InodeT

from rolloutfs.nodes import Node

log = logging.getLogger(__name__)


def drop_attributes(ino: InodeT) -> None:
    """Make the kernel ask for attributes again. Raises OSError, ENOENT for an inode that it doesn't know."""
    pyfuse3.invalidate_inode(ino, attr_only=True)


def drop_entry(folder: Node, name: str) -> None:
    """Make the kernel look a name up again; done by a thread of pyfuse3's, since it would deadlock here (FUSE 6.2)."""
    pyfuse3.invalidate_entry_async(InodeT(folder.ino), FileNameT(os.fsencode(name)), 0, ignore_enoent=True)


def drop_names(ino: int) -> None:
    """Make the kernel forget the names in a folder. No request waits for a page of a folder, so this doesn't."""
    _forget_pages(ino)


async def drop_pages(ino: int) -> None:
    """Make the kernel forget what it has of an inode, pages included. It waits for those that are being read, so
    another thread does it while we answer the reads.
    """
    await trio.to_thread.run_sync(_forget_pages, ino, abandon_on_cancel=True)


async def put_page(ino: int, offset: int, content: bytes) -> None:
    """Put bytes into what the kernel has of an inode, whose size is at least that of their end from then on. It waits
    for pages that are being read, as `drop_pages` does.
    """
    await trio.to_thread.run_sync(_put_page, ino, offset, content, abandon_on_cancel=True)


def _put_page(ino: int, offset: int, content: bytes) -> None:
    try:
        pyfuse3.notify_store(InodeT(ino), offset, content)
    except OSError as error:
        if error.errno != errno.ENOENT:
            log.warning("notify_store failed: %s", error)


def _forget_pages(ino: int) -> None:
    try:
        pyfuse3.invalidate_inode(InodeT(ino), attr_only=False)
    except OSError as error:
        if error.errno != errno.ENOENT:
            log.warning("invalidate_inode failed: %s", error)
