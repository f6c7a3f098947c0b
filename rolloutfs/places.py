"""Paths into mounts of ours: which mount, and the folder of which thread."""

from __future__ import annotations

import os
from typing import NamedTuple

from rolloutfs import mounttable
from rolloutfs.mounttable import Mount


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
    there is such a thread is not looked at.
    """
    mount, names = _inside(path)
    if mount is None or mount.store is None or len(names) < 2 or names[0] != "threads":
        return None
    return Place(mount.mountpoint, mount.store, names[1], "/".join(names[2:]), mount.is_read_only)


def mount_of(path: str) -> Mount | None:
    """The mount that a path is in, or would be; None for any other path."""
    return _inside(path)[0]


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
