"""`rolloutfs path`: the folder of a thread in a mount that is there now."""

from __future__ import annotations

import contextlib
import os
import re
import threading

import click

from rolloutfs import mounttable, places
from rolloutfs.commands.opened import opened
from rolloutfs.errors import Exit, MountError
from rolloutfs.harmless import harmless, quoted
from rolloutfs.meant import begun, find, store_of
from rolloutfs.mounttable import Mount
from rolloutfs.naming import begins
from rolloutfs.serving import PATIENCE
from rolloutfs.wording import shell_word

_LONG = PATIENCE * 10  # seconds for a mount that reads a large store only now
_ID = re.compile(r"[0-9A-Fa-f-]{4,36}")  # of an id, or of its beginning


def path(store: str | None, wanted: str | None, mountpoint: str | None) -> None:
    """Print the folder, in the oldest mount of the store that answers; without a store that of the mountpoint is meant,
    else the one that `store_of` tells. What is a path into a mount is looked for there. Raises MountError.
    """
    inside = places.of(wanted or "") if store is None and mountpoint is None else None
    mounts = _mounts(mountpoint if inside is None else inside.mountpoint)
    its = mounts[0].store if mountpoint is not None and store is None else None
    root = its or os.path.realpath(store_of(store, wanted))
    wanted = wanted if inside is None else inside.thread
    own = [mount for mount in mounts if mount.store == root]
    listings = {mount.mountpoint: ids for mount in own if (ids := _threads(mount.mountpoint, _LONG)) is not None}
    if own and not listings:
        raise MountError(f"No mount of {harmless(root)} answers: see rolloutfs status.", Exit.MOUNTPOINT)
    others = [mount for mount in mounts if mount.store != root]
    thread = _beginning(root, listings, wanted) if wanted else None
    if thread is None:
        _refuse_what_others_have(root, others, wanted)
        if not own:
            how = f"rolloutfs mount {shell_word(root)} FOLDER"
            told = f"No mount shows {harmless(root)}: {_shown(others)}. Mount it: {harmless(how)}"
            if store is None:
                told += "; or say which one is meant: --store STORE"
            raise MountError(told, Exit.REFUSED)
        thread = _in_store(root, wanted)
    for place, ids in listings.items():
        if begins(ids, thread):
            click.echo(os.fsencode(os.path.join(place, "threads", thread)))
            return
    raise MountError(f"Thread {thread} is not in {harmless(', '.join(listings))} yet: try again.", Exit.REFUSED)


def _mounts(mountpoint: str | None) -> list[Mount]:
    """The mounts that are looked into, the oldest first; never none."""
    mounts = mounttable.ours()
    if mountpoint is None:
        if not mounts:
            raise MountError("Nothing is mounted by rolloutfs: rolloutfs mount ~/threads", Exit.MOUNTPOINT)
        return mounts
    folder, name = os.path.split(os.path.abspath(mountpoint))
    place = os.path.join(os.path.realpath(folder), name)
    for mount in mounts:
        if mount.mountpoint == place:
            return [mount]
    raise MountError(f"{harmless(mountpoint)} is no mountpoint of rolloutfs: see rolloutfs status.", Exit.MOUNTPOINT)


def _refuse_what_others_have(root: str, others: list[Mount], wanted: str | None) -> None:
    """Raise when the beginning of an id is that of a thread of another store, which may be an old copy of this one."""
    if not wanted or not _ID.fullmatch(wanted):
        return
    having = [mount for mount in others if begins(_threads(mount.mountpoint, PATIENCE) or [], wanted.lower())]
    if having:
        told = f"{quoted(wanted)} is in no mount of {harmless(root)}, but {_shown(having)}: give its store as --store."
        raise MountError(told, Exit.REFUSED)


def _shown(mounts: list[Mount]) -> str:
    return ", ".join(f"{harmless(one.mountpoint)} shows {harmless(one.store or 'another store')}" for one in mounts)


def _threads(place: str, patience: float) -> list[str] | None:
    """The threads of a mount; None when it doesn't answer. Asked by a thread, which may have to be left."""
    answer: list[list[str]] = []

    def ask() -> None:
        with contextlib.suppress(OSError):  # dead, or somebody else's
            answer.append(sorted(os.listdir(os.path.join(place, "threads"))))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    return answer[0] if answer else None


def _beginning(root: str, listings: dict[str, list[str]], wanted: str) -> str | None:
    """The thread whose id begins so, in any of the mounts; None when there is none."""
    found = sorted({thread for ids in listings.values() for thread in begins(ids, wanted.lower())})
    if len(found) < 2:
        return found[0] if found else None
    with opened(root) as its:
        return begun(its.store, found, wanted)


def _in_store(store: str, wanted: str | None) -> str:
    with opened(store) as its:
        return find(its.store, wanted)
