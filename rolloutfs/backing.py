"""Files that the kernel reads by itself for who reads a file of the mount, each known to it by a number.

The kernel wants one number for an inode, shared by all its handles: a second one is refused with EIO. It keeps the file
open until the number is withdrawn, and reads it with the rights of who registered it. All this needs CAP_SYS_ADMIN, and
Linux 6.9.

A file is registered from a private copy of its mount that is `noatime`, since reading changes nothing in a store, and
the kernel opens it for each reader with the reader's own flags.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import struct
from typing import Final

log = logging.getLogger(__name__)

_LIBC = ctypes.CDLL(None, use_errno=True)
_REGISTER: Final = 0x4010E501  # FUSE_DEV_IOC_BACKING_OPEN, linux/fuse.h
_WITHDRAW: Final = 0x4004E502  # FUSE_DEV_IOC_BACKING_CLOSE
_OPEN_TREE, _MOUNT_SETATTR = 428, 442  # the same numbers on all architectures that Python runs on, but Alpha
_CLONE: Final = 1  # OPEN_TREE_CLONE, linux/mount.h
_EMPTY_PATH: Final = 0x1000  # AT_EMPTY_PATH
_QUIET: Final = struct.pack("=4Q", 0x11, 0x70, 0, 0)  # struct mount_attr: set RDONLY and NOATIME, clear _ATIME
_NEVER = (errno.EPERM, errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS)  # for any file of this mount


class Backings:
    """The numbers of one connection to the kernel."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._refused: set[int] = set()  # errno of what was told already
        self._ended: list[int] = []

    def register(self, descriptor: int) -> int | None:
        """A number for a regular file that is open, or None when the kernel doesn't want to read it by itself."""
        if self._refused.intersection(_NEVER):
            return None
        try:
            quiet = _quietly(descriptor)
            try:
                return int(fcntl.ioctl(self._device, _REGISTER, bytearray(struct.pack("=iIQ", quiet, 0, 0))))
            finally:
                os.close(quiet)  # the kernel has its own reference
        except OSError as error:
            code = error.errno or errno.EIO
            if code not in self._refused:
                self._refused.add(code)
                which = "No file is" if code in _NEVER else "Some files are not"
                log.warning("%s passed through: %s.", which, os.strerror(code))
            return None

    def withdraw(self, number: int) -> None:
        """Let the kernel close a file, at the next `sweep`: it takes 0.1 ms, for which nobody's close need wait."""
        self._ended.append(number)

    def sweep(self) -> None:
        """Do what was put off."""
        while self._ended:
            number = self._ended.pop()
            try:
                fcntl.ioctl(self._device, _WITHDRAW, bytearray(struct.pack("=I", number)))
            except OSError as error:  # with the connection the numbers end, too
                log.debug("Number %d could not be withdrawn: %s", number, error)


def _quietly(descriptor: int) -> int:
    """The same file in a mount of its own, in which nothing is written and access times stay."""
    tree = _call(_OPEN_TREE, descriptor, b"", _EMPTY_PATH | _CLONE | os.O_CLOEXEC)
    try:
        _call(_MOUNT_SETATTR, tree, b"", _EMPTY_PATH, _QUIET, len(_QUIET))
    except OSError:
        os.close(tree)
        raise
    return tree


def _call(number: int, *arguments: int | bytes) -> int:
    done = int(_LIBC.syscall(ctypes.c_long(number), *arguments))
    if done < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return done
