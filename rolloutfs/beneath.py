"""openat2(2): open a path below a folder without following a link in any part of it, in one system call.

Python doesn't have it, and Linux before 5.6 and some sandboxes don't either; `IS_AVAILABLE` says whether it is there.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

_OPENAT2: Final = 437  # the same number on all architectures
_NO_SYMLINKS, _BENEATH = 0x04, 0x08  # RESOLVE_*, linux/openat2.h
_LIBC = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(path: str, flags: int, place: int) -> int:
    """A descriptor of `path`, relative to the folder `place`. OSError, ELOOP where there is a link."""
    how = _How(flags, 0, _NO_SYMLINKS | _BENEATH)
    while True:
        found = _LIBC.syscall(_OPENAT2, place, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if found >= 0:
            return int(found)
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), path)


def _is_available() -> bool:
    place = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(open_beneath(".", os.O_PATH | os.O_CLOEXEC, place))
    except OSError:
        return False
    finally:
        os.close(place)
    return True


IS_AVAILABLE: Final = _is_available()
