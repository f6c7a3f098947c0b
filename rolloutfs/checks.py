"""What is looked at before mounting, so that a refusal is a sentence that says what to do instead of a FUSE error.

A mountpoint must be an empty folder: what a mount covers can't be seen, and programs that wrote there go on
writing below it.  Mounting inside the store, or over a folder that contains it, would make the store read itself.

A server that died leaves its mountpoint *dead* (every access fails with ENOTCONN).  That is on purpose: an empty
folder in its place would make `rsync --delete` wipe a mirror.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess

from rolloutfs import identity, mounttable
from rolloutfs.errors import Exit, MountError
from rolloutfs.invocation import typed
from rolloutfs.storefiles import FOLDERS
from rolloutfs.wording import shell_word

FUSE_DEVICE = "/dev/fuse"
_DEAD = (errno.ENOTCONN, errno.ECONNABORTED)


def store_root(store: str, how: str = "rolloutfs mount STORE MOUNTPOINT") -> str:
    """The absolute path of a store with rollouts in it; `how` is how a store is named."""
    root = os.path.realpath(store)
    if not os.path.isdir(root):
        raise MountError(
            f"There is no store at {store}. Name the folder that has sessions/ in it: {how}. "
            "Without any there is a sample: rolloutfs demo",
            Exit.STORE,
        )
    if not any(os.path.isdir(os.path.join(root, name)) for name in FOLDERS):
        mounted = mounttable.find(root)
        if mounted is not None and mounted.is_ours and mounted.store is not None:
            raise MountError(f"{store} is a mount of a store: give that, {shell_word(mounted.store)}.", Exit.STORE)
        raise MountError(
            f"{store} has neither sessions/ nor archived_sessions/, so it is not a store of threads. "
            f"Name the folder that contains sessions/ (usually ~/.codex): {how}.",
            Exit.STORE,
        )
    if not os.access(root, os.R_OK | os.X_OK):
        raise MountError(f"{store} can't be read by this user. Do this as the user who owns it.", Exit.STORE)
    return root


def fuse() -> None:
    """That this user can mount FUSE file systems here at all."""
    if not os.path.exists(FUSE_DEVICE):
        raise MountError(
            f"{FUSE_DEVICE} does not exist. Load the module (modprobe fuse), "
            f"or start the container with --device {FUSE_DEVICE}.",
            Exit.FUSE,
        )
    if not identity.keeps_root() and not os.access(FUSE_DEVICE, os.R_OK | os.W_OK):
        raise MountError(
            f"This user may not open {FUSE_DEVICE}. Let an administrator run: "
            f"chmod 0666 {FUSE_DEVICE}, or mount as root.",
            Exit.FUSE,
        )
    if not identity.mounts_as_root() and shutil.which("fusermount3") is None:
        raise MountError(
            "fusermount3 is not installed, and only root can mount without it. Install it: apt install fuse3.",
            Exit.FUSE,
        )


def mountpoint(path: str, root: str, *, replace: bool = False) -> str:
    """The absolute path of a folder that can be mounted on. With `replace` a dead mount there is cleared away first."""
    place = os.path.realpath(path)
    if is_dead(place):
        if not replace:
            raise MountError(
                f"A dead mount is left at {path}: its server has ended. Clear it with\n"
                f"    {clear_command(place)}\n"
                f"(add -z when that says busy: {clear_command(place, lazy=True)}), or mount with --replace.",
                Exit.DEAD_MOUNT,
            )
        clear(place)
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        raise MountError(
            f"{path} does not exist. Make it first: mkdir -p {shell_word(path)}", Exit.MOUNTPOINT
        ) from None
    except NotADirectoryError:
        raise MountError(f"{path} is not a folder. Give an empty folder to mount on.", Exit.MOUNTPOINT) from None
    except OSError as error:
        raise MountError(
            f"{path} can't be read ({error.strerror}). Give an empty folder of your own.", Exit.MOUNTPOINT
        ) from None
    mounted = mounttable.find(place)
    if mounted is not None and mounted.is_fuse:
        what = "rolloutfs is" if mounted.is_ours else f"Another file system ({mounted.fstype}) is"
        raise MountError(
            f"{what} mounted at {path} already, and alive. Unmount it first: {clear_command(path)}"
            if mounted.is_ours
            else f"{what} mounted at {path} already. Choose another folder.",
            Exit.MOUNTPOINT,
        )
    apart(path, place, root)
    if names:
        raise MountError(
            f"{path} is not empty, and a mount would hide what is in it. Give an empty folder: "
            "mkdir an own one, for example ~/threads.",
            Exit.MOUNTPOINT,
        )
    if not identity.mounts_as_root() and not os.access(place, os.W_OK):
        raise MountError(f"{path} belongs to somebody else. Mount on a folder of your own.", Exit.MOUNTPOINT)
    return place


def apart(path: str, place: str, root: str) -> None:
    """That a place is neither in a store nor above it."""
    for folder in (root, *(os.path.realpath(os.path.join(root, name)) for name in FOLDERS)):
        if place == folder or place.startswith(folder.rstrip("/") + "/"):
            raise MountError(f"{path} lies inside the store {root}. Mount somewhere outside of it.", Exit.MOUNTPOINT)
        if folder.startswith(place.rstrip("/") + "/"):
            raise MountError(
                f"The store {root} lies inside {path}: the mount would cover it. Mount somewhere else.", Exit.MOUNTPOINT
            )


def is_dead(place: str) -> bool:
    """True for the mountpoint of a server that has ended."""
    mounted = mounttable.find(place)
    if mounted is None or not mounted.is_fuse:
        return False
    try:
        os.statvfs(place)  # unlike the answer of stat, that of statvfs is never cached
    except OSError as error:
        return error.errno in _DEAD
    return False


def clear_command(place: str, *, lazy: bool = False) -> str:
    """What a person types to take a mount away."""
    return f"{typed()} umount {'-z ' * lazy}{shell_word(place)}"


def clear(place: str) -> None:
    """Take a dead mount away, lazily when something still holds on to it."""
    for lazy in (False, True):
        if run_unmount(place, lazy=lazy) is None and not is_dead(place):
            return
    raise MountError(
        f"The dead mount at {place} can't be cleared by this user. Ask its owner or root to run: "
        f"{clear_command(place, lazy=True)}",
        Exit.DEAD_MOUNT,
    )


def run_unmount(place: str, *, lazy: bool) -> str | None:
    """Unmount with the tool that there is. None when it is done, else what the tool said."""
    if shutil.which("fusermount3") is not None:
        command = ["fusermount3", "-uz" if lazy else "-u", "--", place]
    else:
        command = ["umount", *(["-l"] if lazy else []), "--", place]
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    return None if result.returncode == 0 else result.stderr.strip() or f"{command[0]} failed"
