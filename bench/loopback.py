"""A plain tree served by pyfuse3 as it comes: the reference for what a mount in Python costs without our request path.

    python -m bench.loopback TREE MOUNTPOINT [--loop]

With --loop it waits for requests as rolloutfs does: the least that a mount in Python can cost in that way.
Everything that can be known is known before the first request, attributes and names may be kept for ever, and reads
come straight from the files: the least that stock pyfuse3 on trio has to do.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
)

from rolloutfs import requestloop

_KEPT = 3600.0  # seconds


class Loopback(pyfuse3.Operations):
    """The tree below a folder, as it was at the start."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self._paths = [b"", os.fsencode(root)]
        self._attributes = [EntryAttributes(), _attributes(1, os.lstat(root))]
        self._children: dict[int, dict[bytes, int]] = {}
        todo = [1]
        while todo:
            parent = todo.pop()
            names = self._children[parent] = {}
            for name in sorted(os.listdir(self._paths[parent])):
                path = os.path.join(self._paths[parent], name)
                number = len(self._paths)
                self._paths.append(path)
                self._attributes.append(_attributes(number, os.lstat(path)))
                names[name] = number
                if os.path.isdir(path) and not os.path.islink(path):
                    todo.append(number)

    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> EntryAttributes:
        """Find a name."""
        number = self._children[parent_inode].get(name)
        if number is None:
            raise FUSEError(errno.ENOENT)
        return self._attributes[number]

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """Nothing is kept for the kernel."""

    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        """Attributes."""
        return self._attributes[inode]

    async def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        """The target of a link."""
        return FileNameT(os.readlink(self._paths[inode]))

    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        """A folder."""
        return FileHandleT(inode)

    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        """Names from a position on."""
        children = list(self._children[fh].items())
        for position in range(start_id, len(children)):
            name, number = children[position]
            if not pyfuse3.readdir_reply(token, FileNameT(name), self._attributes[number], position + 1):
                return

    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        """A file."""
        return FileInfo(fh=FileHandleT(os.open(self._paths[inode], os.O_RDONLY)), keep_cache=True)

    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Bytes."""
        return os.pread(fh, size, off)

    async def release(self, fh: FileHandleT) -> None:
        """Close a file."""
        os.close(fh)


def _attributes(number: int, status: os.stat_result) -> EntryAttributes:
    entry = EntryAttributes()
    entry.st_ino = InodeT(number)
    entry.entry_timeout = entry.attr_timeout = _KEPT
    entry.st_mode = ModeT(status.st_mode)
    entry.st_nlink, entry.st_uid, entry.st_gid = status.st_nlink, status.st_uid, status.st_gid
    entry.st_size, entry.st_blocks = status.st_size, (status.st_size + 511) // 512
    entry.st_mtime_ns = entry.st_atime_ns = status.st_mtime_ns
    entry.st_ctime_ns = status.st_ctime_ns
    return entry


async def _serve() -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                async for _ in signals:
                    pyfuse3.terminate()

            nursery.start_soon(end)
            await pyfuse3.main()
            nursery.cancel_scope.cancel()


def main() -> None:
    """Serve TREE on MOUNTPOINT until it is unmounted."""
    tree, mountpoint, *loop = sys.argv[1:]
    pyfuse3.init(Loopback(tree), mountpoint, {*pyfuse3.default_options, "fsname=loopback"})
    if loop:
        requestloop.enable(requestloop.Waiting())
    try:
        trio.run(_serve)
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    main()
