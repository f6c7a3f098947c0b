"""Listings without OPENDIR: the kernel's requests are read here first, and those for folders are answered here.

pyfuse3 can't tell the kernel that it may keep the names of a folder, nor, of a READDIR, which folder it is about when
there was no OPENDIR. So after the mount libfuse's descriptor of the device is copied, and requests are read from the
copy:

    OPENDIR      ENOSYS, once: from then on the kernel opens folders by itself and keeps their names (FOPEN_CACHE_DIR)
    READDIRPLUS  answered, see `listings`
    plain ones   answered, too, see `atonce`: on the way through libfuse they would cost twice as much
    others       put into a socket, which takes the place of libfuse's descriptor until they were read from it

Between that and the first line of a handler runs nothing of Python's, so answers go to the device itself. What libfuse
answers alone (INIT, what nobody handles) gets into the socket and is handed on before the next request is read. A
message that is too long for the socket goes through a file in memory in the same way.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import trio
from pyfuse3 import FUSEError
from threadstore.errors import StoreError

from rolloutfs.atonce import HEADER, SILENCE, Answer, AtOnce, Store
from rolloutfs.guarding import REQUESTS, WAITING
from rolloutfs.worker import code_of

log = logging.getLogger(__name__)

# linux/fuse.h
_IN = struct.Struct("=IIQQ")  # length, opcode, unique, inode, …
_OUT = struct.Struct("=IiQ")  # length, error, unique
_READ_IN = struct.Struct("=QQI")  # handle, offset, size, …; behind the header of a request
_OPENDIR, _READDIRPLUS = 27, 44
_LARGEST: Final = (1 << 20) + 8192  # bytes of a message
_ROOM: Final = 4 << 20  # bytes in the socket, where we may
_NOBODY: Final = frozenset({errno.ENOENT, errno.EINTR, errno.EAGAIN})  # a request was taken back, or none is there
_DEVICE: Final = os.makedev(10, 229)  # /dev/fuse
_FIRST_DESCRIPTORS: Final = 256  # of which one is that of a new mount


class Folders(Store, Protocol):
    """Who knows what is in a folder. Both raise what `code_of` takes."""

    def list_now(self, inode: int, offset: int, size: int) -> bytes | None:
        """The answer to a READDIRPLUS; None when it has to be waited for."""

    def list_later(self, inode: int, offset: int, size: int) -> Coroutine[Any, Any, bytes]:
        """The same."""


def devices() -> set[int]:
    """The descriptors of this process that are connections to the kernel. /proc doesn't tell who serves for another
    user.
    """
    found = set()
    for number in range(_FIRST_DESCRIPTORS):
        with contextlib.suppress(OSError):
            if os.fstat(number).st_rdev == _DEVICE:
                found.add(number)
    return found


class Gate:
    """A `requestloop.Device`. Invariant: libfuse's descriptor is the device, but from `_forward` until `settle`."""

    def __init__(self, descriptor: int, folders: Folders) -> None:
        """Stand before libfuse, whose descriptor this is."""
        self._libfuse = descriptor
        self._folders = folders
        self._table = AtOnce(folders).table
        self.device = os.dup(descriptor)
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(OSError):  # what there is will do
            self._ours.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_SNDBUFFORCE", 32), _ROOM)
        self._buffer = bytearray(_LARGEST)
        self._into = [self._buffer]
        self._view = memoryview(self._buffer)
        self._poll = select.poll()
        self._poll.register(self._ours, select.POLLIN)
        self._is_detour = False
        self._long = 0  # bytes of the message in the file that stands for the device
        self._start: Callable[..., None] | None = None

    def use(self, nursery: trio.Nursery) -> None:
        """Let what has to be waited for run in this nursery."""
        self._start = nursery.start_soon

    def take(self) -> bool:
        """Read a request, and answer it if it is about a folder. True when libfuse can read one."""
        if self._is_detour:
            self.settle()
        try:
            length = os.readv(self.device, self._into)
        except OSError as error:
            return error.errno not in _NOBODY  # libfuse meets the same error, and knows what to do
        _, opcode, unique, inode = _IN.unpack_from(self._buffer)
        if opcode == _READDIRPLUS:
            _, offset, size = _READ_IN.unpack_from(self._buffer, HEADER)
            self._list(unique, inode, offset, size)
            return False
        if opcode == _OPENDIR:
            self._answer(unique, errno.ENOSYS)
            return False
        plain = self._table.get(opcode)
        if plain is not None and self._is_answered(*plain, unique, inode, self._view[:length]):
            return False
        self._forward(self._view[:length])
        return True

    def _is_answered(self, name: str, answer: Answer, unique: int, inode: int, message: memoryview) -> bool:
        """Answer a request if that is plain."""
        try:
            data = answer(inode, message)
        except FUSEError as error:
            self._answer(unique, error.errno)
        except Exception as error:  # noqa: BLE001  the handler meets it, too, and knows what to do
            log.debug("%s of %d is not plain: %r", name, inode, error)
            return False
        else:
            if data is None:
                return False
            if data is SILENCE:
                return True
            self._write([_OUT.pack(_OUT.size + len(data), 0, unique), data])
        REQUESTS[name] += 1
        return True

    def settle(self) -> bool:
        """Let libfuse's descriptor be the device. Never is there anything to be read by libfuse then."""
        if self._is_detour:
            self._is_detour = False
            left = [os.pread(self._libfuse, _LARGEST, self._long)] if self._long else []
            self._long = 0
            os.dup2(self.device, self._libfuse, inheritable=False)
            while self._poll.poll(0):
                left.append(self._ours.recv(_LARGEST))
            for message in filter(None, left):
                self._hand_on(message)
        return False

    def _forward(self, message: memoryview) -> None:
        try:
            self._ours.send(message, socket.MSG_DONTWAIT)
            os.dup2(self._theirs.fileno(), self._libfuse, inheritable=False)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS, errno.EAGAIN):
                raise
            file = os.memfd_create("request")
            os.write(file, message)
            os.lseek(file, 0, os.SEEK_SET)
            os.dup2(file, self._libfuse, inheritable=False)
            os.close(file)
            self._long = len(message)
        self._is_detour = True

    def _hand_on(self, message: bytes) -> None:
        """What libfuse, or a thread of pyfuse3's, has written in the meantime. A notification may have to wait for a
        request that is still to be answered.
        """
        _, _, unique = _OUT.unpack_from(message)
        if unique == 0:
            threading.Thread(target=self._write, args=([message],), daemon=True).start()
        else:
            self._write([message])

    def _list(self, unique: int, inode: int, offset: int, size: int) -> None:
        REQUESTS["readdir"] += 1
        try:
            data = self._folders.list_now(inode, offset, size)
        except Exception as error:  # noqa: BLE001  see `guarding`
            self._refuse(unique, inode, error)
            return
        if data is not None:
            self._answer(unique, 0, data)
        elif self._start is None:
            self._answer(unique, errno.EAGAIN)
        else:
            self._start(self._list_later, unique, inode, offset, size)

    async def _list_later(self, unique: int, inode: int, offset: int, size: int) -> None:
        WAITING.handlers += 1
        try:
            data = await self._folders.list_later(inode, offset, size)
        except Exception as error:  # noqa: BLE001  see `guarding`
            self._refuse(unique, inode, error)
        except BaseException:  # the end of the mount: a request that is never answered would stay
            self._answer(unique, errno.EIO)
            raise
        else:
            self._answer(unique, 0, data)
        finally:
            WAITING.handlers -= 1

    def _refuse(self, unique: int, inode: int, error: Exception) -> None:
        code = error.errno if isinstance(error, FUSEError) else code_of(error)
        if isinstance(error, (StoreError, OSError, KeyError, FUSEError)):
            log.debug("The folder %d can't be listed: %r", inode, error)
        else:
            log.error("Listing the folder %d failed", inode, exc_info=error)
        self._answer(unique, code)

    def _answer(self, unique: int, code: int, data: bytes = b"") -> None:
        self._write([_OUT.pack(_OUT.size + len(data), -code, unique), data])

    def _write(self, parts: list[bytes]) -> None:
        try:
            os.writev(self.device, parts)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # nobody waits for it any more, or it was unmounted
                log.exception("An answer could not be given")

    def close(self) -> None:
        """Let go of everything but libfuse's descriptor."""
        self.settle()
        self._ours.close()
        self._theirs.close()
        nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nothing, self.device, inheritable=False)  # the number stays taken: a thread may be about to write to it
        os.close(nothing)
