"""Requests that are answered from what is at hand, without libfuse and pyfuse3 (`gate`): how they and their answers are
written. What is anything but plain is left to the handlers in `operations`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, Protocol

# linux/fuse.h; what follows the header of a request
HEADER: Final = 40  # bytes of it
_PID: Final = 32  # offset in it
_WORD, _PAIR = struct.Struct("=Q"), struct.Struct("=QQ")
_FLAGS = struct.Struct("=I")
_READ_IN = struct.Struct("=QQI")  # handle, offset, size
_OPEN_IN = struct.Struct("=I4xI")  # the end of the header, and flags
_OPEN_OUT = struct.Struct("=QII")  # handle, flags, 0
_KEEP_CACHE: Final = 1 << 1  # FOPEN_KEEP_CACHE
_LOOKUP, _FORGET, _GETATTR, _READLINK, _OPEN, _READ, _RELEASE, _BATCH_FORGET = 1, 2, 3, 5, 14, 15, 18, 42

SILENCE: Final = b"-"  # instead of an answer: none is expected


class Store(Protocol):
    """What knows the answers. None from any of them: let a handler do it, and nothing has happened. FUSEError is an
    answer, too; so is any other error a reason to let a handler do it.
    """

    def lookup_now(self, parent_inode: int, name: bytes) -> bytes | None: ...  # noqa: D102  fuse_entry_out
    def getattr_now(self, inode: int) -> bytes | None: ...  # noqa: D102  the same
    def readlink_now(self, inode: int) -> bytes | None: ...  # noqa: D102
    def open_now(self, inode: int, flags: int, pid: int) -> tuple[int, bool] | None: ...  # noqa: D102
    def read_now(self, handle: int, offset: int, size: int) -> bytes | None: ...  # noqa: D102
    def release_now(self, handle: int) -> bytes | None: ...  # noqa: D102
    def forget_now(self, inode: int, lookups: int) -> None: ...  # noqa: D102


#: Makes the answer from the inode and the message.
Answer = Callable[[int, memoryview], bytes | None]


class AtOnce:
    """Answers to requests, by their number: the name to count each under, and the function that makes the answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.table: dict[int, tuple[str, Answer]] = {
            _LOOKUP: ("lookup", self._lookup),
            _FORGET: ("forget", self._forget),  # not counted
            _GETATTR: ("getattr", self._getattr),
            _READLINK: ("readlink", self._readlink),
            _OPEN: ("open", self._open),
            _READ: ("read", self._read),
            _RELEASE: ("release", self._release),
            _BATCH_FORGET: ("forget", self._batch_forget),
        }

    def _lookup(self, inode: int, message: memoryview) -> bytes | None:
        return self._store.lookup_now(inode, bytes(message[HEADER:-1]))

    def _getattr(self, inode: int, _message: memoryview) -> bytes | None:
        entry = self._store.getattr_now(inode)
        return None if entry is None else b"".join((entry[24:32], entry[36:40], bytes(4), entry[40:]))

    def _readlink(self, inode: int, _message: memoryview) -> bytes | None:
        return self._store.readlink_now(inode)

    def _open(self, inode: int, message: memoryview) -> bytes | None:
        pid, flags = _OPEN_IN.unpack_from(message, _PID)
        opened = self._store.open_now(inode, flags, pid)
        if opened is None:
            return None
        handle, keep = opened
        return _OPEN_OUT.pack(handle, _KEEP_CACHE if keep else 0, 0)

    def _read(self, _inode: int, message: memoryview) -> bytes | None:
        return self._store.read_now(*_READ_IN.unpack_from(message, HEADER))

    def _release(self, _inode: int, message: memoryview) -> bytes | None:
        return self._store.release_now(*_WORD.unpack_from(message, HEADER))

    def _forget(self, inode: int, message: memoryview) -> bytes:
        self._store.forget_now(inode, *_WORD.unpack_from(message, HEADER))
        return SILENCE

    def _batch_forget(self, _inode: int, message: memoryview) -> bytes:
        (count,) = _FLAGS.unpack_from(message, HEADER)
        at = HEADER + _WORD.size
        for inode, lookups in _PAIR.iter_unpack(message[at : at + count * _PAIR.size]):
            self._store.forget_now(inode, lookups)
        return SILENCE
