"""Whose mount it is when root asks for it, as mount(8) does for a line of /etc/fstab.

Only a process whose user is the `user_id` of a FUSE mount may look into it, root included, and what it writes belongs
to that user. So a mount of root's would hide the threads from their owner; its cache would lie in root's home; and root
would parse files that a user can write. Hence the serving process is the owner of the store, from before it reads the
first byte. One step needs root: mounting on a folder that isn't the user's, and `allow_other` without a line in
/etc/fuse.conf. Root's id is kept, as the saved user id, for that step alone.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rolloutfs.errors import Exit, MountError

_FOREIGN = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "CODEX_HOME")

_NO_GROUP = 65534  # for who has no entry: any other number may be a group of somebody else's
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # mount(8) hands on none


@dataclass(frozen=True, slots=True)
class Identity:
    """A user; one without an entry in passwd(5) has its number for a name, no group to speak of, and no home."""

    uid: int
    gid: int
    name: str
    home: str = "/nonexistent"


def find(who: str | None, store: str) -> Identity:
    """The user of a name or a number; without one the owner of the store, or whoever asks when that isn't root.

    Raises MountError when there is no such user, or when it isn't root who asks for somebody else.
    """
    own = os.geteuid()
    if who is None:
        return _of_number(_owner(store) if own == 0 else own)
    try:
        identity = _of_number(int(who)) if who.isascii() and who.isdigit() else _of_entry(pwd.getpwnam(who))
    except (KeyError, OverflowError):
        raise MountError(f"There is no user {who}.", Exit.USAGE) from None
    if own not in (0, identity.uid):
        raise MountError(f"Only root may mount as {who}. Leave uid= and user= away.", Exit.USAGE)
    return identity


def become(identity: Identity) -> None:
    """Be that user in all but the saved user id, and in the environment: mount(8) empties that, mount.fuse3 puts root's
    home into it, and root's own folders are nobody else's. Only root may become somebody else.
    """
    if os.geteuid() != identity.uid:
        if identity.name == str(identity.uid):
            os.setgroups([identity.gid])
        else:
            os.initgroups(identity.name, identity.gid)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, 0)
        for name in ("HOME", *_FOREIGN):
            os.environ.pop(name, None)
    home = os.environ.get("HOME")
    if home is None or _owner(home) != identity.uid:
        os.environ["HOME"] = identity.home
    os.environ.update(USER=identity.name, LOGNAME=identity.name)
    os.environ.setdefault("PATH", _PATH)


def keeps_root() -> bool:
    """True after `become` until the mount is made."""
    _, effective, saved = os.getresuid()
    return effective != 0 and saved == 0


def mounts_as_root() -> bool:
    """True when root makes the mount, whoever serves it."""
    return os.geteuid() == 0 or keeps_root()


@contextmanager
def while_mounting() -> Iterator[None]:
    """Be root, for the last time, where `become` has kept it. The real user id, which FUSE takes, stays the user's."""
    if not keeps_root():
        yield
        return
    real = os.getuid()
    os.seteuid(0)
    try:
        yield
    finally:
        os.setresuid(real, real, real)


def _owner(path: str) -> int:
    try:
        return os.stat(path).st_uid
    except OSError:  # it is for others to say what is wrong with it
        return 0


def _of_number(uid: int) -> Identity:
    try:
        return _of_entry(pwd.getpwuid(uid))
    except KeyError:
        return Identity(uid, _NO_GROUP, str(uid))


def _of_entry(entry: pwd.struct_passwd) -> Identity:
    return Identity(entry.pw_uid, entry.pw_gid, entry.pw_name, entry.pw_dir)
