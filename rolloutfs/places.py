"""Paths into mounts of ours: which mount, and the folder of which thread."""

from __future__ import annotations

import os
from typing import NamedTuple

from rolloutfs import mounttable


class Place(NamedTuple):
    """A path that leads into the folder of a thread, and whether its mount is read-only. Paths are absolute, links
    resolved.
    """

    mountpoint: str
    store: str
    thread: str
    is_read_only: bool

    @property
    def folder(self) -> str:
        """That of the thread."""
        return os.path.join(self.mountpoint, "threads", self.thread)


def of(path: str) -> Place | None:
    """Where a path leads to, also over links of views and below the thread's folder; None for any other path. Whether
    there is such a thread is not looked at.
    """
    mounts = mounttable.ours() if path else []
    if not mounts:  # before anything is touched
        return None
    try:
        real = os.path.realpath(path)
    except OSError:  # the current folder is gone
        return None
    inside = [mount for mount in mounts if real.startswith(f"{mount.mountpoint.rstrip('/')}/threads/")]
    if not inside:
        return None
    mount = max(inside, key=lambda one: len(one.mountpoint))
    thread = real[len(mount.mountpoint.rstrip("/")) :].split("/")[2]
    if mount.store is None or not thread:
        return None
    return Place(mount.mountpoint, mount.store, thread, mount.is_read_only)
