"""`rolloutfs umount`: takes a mount of ours away, alive or dead, and says what holds it when that can't be."""

from __future__ import annotations

import os

from rolloutfs import checks, mounttable
from rolloutfs.errors import Exit, MountError
from rolloutfs.wording import shell_word


def umount(path: str, *, lazy: bool = False) -> None:
    """Unmount; with `lazy` at once for new users, and for those who have files open when they close them."""
    place = os.path.realpath(path)
    mounted = mounttable.find(place)
    if mounted is None:
        raise MountError(f"Nothing is mounted at {path}.", Exit.MOUNTPOINT)
    if not mounted.is_ours:
        raise MountError(
            f"What is mounted at {path} ({mounted.fstype}) is not rolloutfs: it is left alone.", Exit.MOUNTPOINT
        )
    said = checks.run_unmount(place, lazy=lazy)
    if said is None:
        return
    quoted = shell_word(path)
    if "busy" in said:
        raise MountError(
            f"{path} is in use: a program has a file or its working folder in there (fuser -vm {quoted} shows which). "
            f"Close it and try again, or detach the mount now: rolloutfs umount -z {quoted}",
            Exit.BUSY,
        )
    raise MountError(f"{path} was not unmounted: {said}", Exit.MOUNTPOINT)
