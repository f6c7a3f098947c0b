"""`rolloutfs path`: the folder of a thread in a mount that is there now."""

from __future__ import annotations

import contextlib
import os
import threading

import click

from rolloutfs import mounttable
from rolloutfs.commands.opened import opened
from rolloutfs.errors import Exit, MountError
from rolloutfs.harmless import harmless
from rolloutfs.naming import begins, begun, find
from rolloutfs.serving import PATIENCE


def path(store: str, wanted: str | None, mountpoint: str | None) -> None:
    """Print the folder. Raises MountError."""
    listings = {place: ids for place in _places(mountpoint) if (ids := _threads(place)) is not None}
    if not listings:
        raise MountError("No mount of rolloutfs answers here: see rolloutfs status.", Exit.MOUNTPOINT)
    thread = _beginning(listings, wanted) if wanted else None
    if thread is None:
        thread = _in_store(store, wanted)
    for place, ids in listings.items():
        if begins(ids, thread):
            click.echo(os.fsencode(os.path.join(place, "threads", thread)))
            return
    told = f"Thread {thread} is in no mount: {harmless(', '.join(listings))} {_SHOW[len(listings) > 1]} another store."
    raise MountError(told, Exit.REFUSED)


_SHOW = ("shows", "show")


def _places(mountpoint: str | None) -> list[str]:
    """The mounts that are looked into, the newest first."""
    with open("/proc/self/mountinfo", "rb") as file:
        mounts = [mount.mountpoint for mount in reversed(mounttable.parse(file.read())) if mount.is_ours]
    if mountpoint is None:
        if not mounts:
            raise MountError("Nothing is mounted by rolloutfs: rolloutfs mount ~/threads", Exit.MOUNTPOINT)
        return mounts
    place = os.path.abspath(mountpoint)
    folder, name = os.path.split(place)
    place = os.path.join(os.path.realpath(folder), name)
    if place not in mounts:
        raise MountError(
            f"{harmless(mountpoint)} is no mountpoint of rolloutfs: see rolloutfs status.", Exit.MOUNTPOINT
        )
    return [place]


def _threads(place: str) -> list[str] | None:
    """The threads of a mount; None when it doesn't answer. Asked by a thread, which may have to be left."""
    answer: list[list[str]] = []

    def ask() -> None:
        with contextlib.suppress(OSError):  # dead, or somebody else's
            answer.append(sorted(os.listdir(os.path.join(place, "threads"))))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE * 10)  # a large store is read only now
    return answer[0] if answer else None


def _beginning(listings: dict[str, list[str]], wanted: str) -> str | None:
    """The thread whose id begins so, in any of the mounts; None when there is none."""
    return begun(sorted({thread for ids in listings.values() for thread in begins(ids, wanted.lower())}), wanted)


def _in_store(store: str, wanted: str | None) -> str:
    with opened(store) as its:
        return find(its.store, wanted)
