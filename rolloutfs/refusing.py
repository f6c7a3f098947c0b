"""What can't be done in a tree whose files are made by reading: names can't be made, moved or removed."""

from __future__ import annotations

import errno
from typing import NoReturn

import pyfuse3
from pyfuse3 import (
    EntryAttributes,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    RequestContext,
    XAttrNameT,
)

from rolloutfs.guarding import guarded


class Refusing(pyfuse3.Operations):
    """Says EPERM, or EROFS where nothing at all can be written."""

    def __init__(self, *, read_only: bool) -> None:
        super().__init__()
        self._read_only = read_only

    def _refuse(self, code: int) -> NoReturn:
        raise FUSEError(errno.EROFS if self._read_only else code)

    @guarded
    async def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        """Refused."""
        self._refuse(errno.EPERM)

    @guarded
    async def mkdir(self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext) -> EntryAttributes:
        """Refused."""
        self._refuse(errno.EPERM)

    @guarded
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Refused."""
        self._refuse(errno.EPERM)

    @guarded
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Refused."""
        self._refuse(errno.EPERM)

    @guarded
    async def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Refused."""
        self._refuse(errno.EPERM)

    @guarded
    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> None:
        """Refused."""
        self._refuse(errno.EPERM)

    @guarded
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Refused."""
        self._refuse(errno.EPERM)

    @guarded
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, flags: FlagT, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        """Refused."""
        self._refuse(errno.EPERM)

    @guarded
    async def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        """There are none to set."""
        self._refuse(errno.ENOTSUP)

    @guarded
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        """There are none to remove."""
        self._refuse(errno.ENOTSUP)
