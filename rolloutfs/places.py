"""Paths into mounts of ours: which mount, and the folder of which thread."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from rolloutfs import mounttable
from rolloutfs.mounttable import Mount

_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)  # a dead mount says something else


class Place(NamedTuple):
    """A path that leads into the folder of a thread: where `below` that, or "", and whether its mount is
    read-only. Paths are absolute, links resolved.
    """

    mountpoint: str
    store: str
    thread: str
    below: str
    is_read_only: bool

    @property
    def folder(self) -> str:
        """That of the thread."""
        return os.path.join(self.mountpoint, "threads", self.thread)


def of(path: str) -> Place | None:
    """Where a path leads to, also over links of views and below the thread's folder; None for any other path. Whether
    there is what an absolute one names is not looked at. Of a relative one there must be the thread's folder, and all
    of it where this is in that folder: there any name, and any slip of the keyboard, would mean that thread.
    """
    mount, names = _inside(path)
    if mount is None or mount.store is None or len(names) < 2 or names[0] != "threads":
        return None
    place = Place(mount.mountpoint, mount.store, names[1], "/".join(names[2:]), mount.is_read_only)
    if os.path.isabs(path):
        return place
    is_here = f"{os.path.realpath('.')}/".startswith(f"{place.folder}/")
    return None if _leads_nowhere(path if is_here else place.folder) else place


def mount_of(path: str) -> Mount | None:
    """The mount that a path is in, or would be; None for any other path."""
    return _inside(path)[0]


def _leads_nowhere(path: str) -> bool:
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno in _NOWHERE
    return False


def _inside(path: str) -> tuple[Mount | None, list[str]]:
    """The mount, and the names below it."""
    mounts = mounttable.ours() if path else []
    if not mounts:  # before anything is touched
        return None, []
    try:
        real = os.path.realpath(path)
    except OSError:  # the current folder is gone
        return None, []
    roots = {f"{mount.mountpoint.rstrip('/')}/": mount for mount in mounts}
    root = max((one for one in roots if f"{real}/".startswith(one)), key=len, default=None)
    return (None, []) if root is None else (roots[root], list(filter(None, real[len(root) :].split("/"))))
