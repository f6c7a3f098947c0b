"""What is mounted where, from /proc/self/mountinfo; nothing in here touches a mount."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

SUBTYPE = "rolloutfs"
_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the table. The source of a mount of ours is the path of its store; `device` is major:minor, `number`
    that of the mount, which another one may get when it is gone. One that `is_read_only` was made or remounted so.
    """

    mountpoint: str
    fstype: str
    source: str
    device: str = ""
    number: str = ""
    is_read_only: bool = False

    @property
    def is_fuse(self) -> bool:
        """True for every FUSE file system."""
        return self.fstype in ("fuse", "fuseblk") or self.fstype.startswith("fuse.")

    @property
    def is_ours(self) -> bool:
        """True for a rolloutfs mount."""
        return self.fstype == f"fuse.{SUBTYPE}"

    @property
    def store(self) -> str | None:
        """The store that a mount of ours shows, links resolved; None where an older version has made it."""
        return self.source if self.is_ours and os.path.isabs(self.source) else None


def parse(table: bytes) -> list[Mount]:
    """The lines of a mountinfo file (see proc(5)), oldest first."""
    mounts = []
    for line in table.split(b"\n"):
        fields = line.split(b" ")
        if b"-" not in fields or len(fields) < fields.index(b"-") + 3:
            continue
        after = fields.index(b"-")
        where, fstype, source = map(_text, (fields[4], fields[after + 1], fields[after + 2]))
        device, number = map(_text, (fields[2], fields[0]))
        mounts.append(Mount(where, fstype, source, device, number, b"ro" in fields[5].split(b",")))
    return mounts


def ours() -> list[Mount]:
    """The mounts of ours that are on top where they lie, oldest first."""
    with open("/proc/self/mountinfo", "rb") as file:
        top = {mount.mountpoint: mount for mount in parse(file.read())}
    return [mount for mount in top.values() if mount.is_ours]


def find(mountpoint: str) -> Mount | None:
    """What is mounted on top at a path (absolute, links resolved), or None."""
    with open("/proc/self/mountinfo", "rb") as file:
        table = file.read()
    return next((mount for mount in reversed(parse(table)) if mount.mountpoint == mountpoint), None)


def filesystem(path: str) -> str:
    """The type of the file system that a path lies on; empty when it can't be told."""
    try:
        device = os.stat(path).st_dev
        with open("/proc/self/mountinfo", "rb") as file:
            table = file.read()
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}".encode()
    for line in table.split(b"\n"):
        fields = line.split(b" ")
        if len(fields) > 6 and fields[2] == wanted and b"-" in fields:
            return _text(fields[fields.index(b"-") + 1])
    return ""


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))
