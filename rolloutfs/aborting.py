"""Ends the connection of a mount whose server was killed and can't go.

Dropping pages or names waits, unkillably, for a lock that a program holds while it waits for our answer. When the
server is killed just then, that thread of it stays, and with it the open device: the kernel doesn't know that nobody
will answer any more, and every program that asks waits for ever. Whoever outlives the server aborts the connection.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Final

from rolloutfs import mounttable
from rolloutfs.mounttable import Mount

_CONTROL: Final = "/sys/fs/fuse/connections/{minor}/abort"  # see fuse.rst of the kernel; the mount's owner may write it
_FORCE: Final = 1  # MNT_FORCE of umount2(2)


@dataclass(frozen=True, slots=True)
class Connection:
    """That of a mount, as the table of mounts has it."""

    mount: Mount

    @classmethod
    def of(cls, mountpoint: str) -> Connection | None:
        """The connection of what is mounted there now; None when it is nothing of ours."""
        mount = mounttable.find(mountpoint)
        return None if mount is None or not mount.is_ours else cls(mount)

    def abort(self) -> None:
        """End it, as far as we may: every request fails from now on. The mount stays, dead, until it is unmounted.
        Nothing is done where it isn't mounted any more: its device may be another one's by now.
        """
        if Connection.of(self.mount.mountpoint) != self:
            return
        try:
            minor = self.mount.device.rpartition(":")[2]
            with open(_CONTROL.format(minor=minor), "wb", buffering=0) as control:
                control.write(b"1")
        except OSError:  # not mounted there, or not ours: root can do it in another way
            ctypes.CDLL(None).umount2(os.fsencode(self.mount.mountpoint), _FORCE)
