"""A mount whose large raw files the kernel reads by itself (FUSE passthrough), although libfuse doesn't know of it.

libfuse before 3.17 can't say that it can, nor answer an OPEN with the number of a backing file. So mount(2) is called
here, libfuse gets a descriptor of ours as /dev/fd/N, and two of its answers pass through our hands:

    INIT   libfuse reads it from a socket; its answer is completed, and from then on N is the device itself
    OPEN   of such a file: for the moment of the answer N is the socket again (dup2), and the answer is completed

Everything else goes between libfuse and the kernel without us, so it costs nothing, and interrupts, forgotten inodes,
splice, invalidations and the end of the mount are as they always are.

Between the return of our `open` and libfuse's answer runs nothing of Python's. What we return then goes, and with it
the detour. Whoever is about to read from N asks for its end (`settle`) all the same. A notification that pyfuse3's
thread sends at that moment gets into the socket, too, and is handed on by a thread, since it may have to wait for a
request that is still to be answered.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import select
import socket
import struct
import threading
from pathlib import Path
from typing import Final

import pyfuse3
import trio
from pyfuse3 import FileHandleT, FileInfo

from rolloutfs import requestloop
from rolloutfs.backing import Backings
from rolloutfs.mounttable import SUBTYPE

log = logging.getLogger(__name__)

TESTED: Final = ("3.14.",)  # releases of libfuse
DEVICE: Final = "/dev/fuse"

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS_ADMIN: Final = 1 << 21  # linux/capability.h
_READ_ONLY, _NOSUID, _NODEV = 1, 2, 4  # MS_*, linux/mount.h
_DETACH: Final = 2  # MNT_DETACH

# linux/fuse.h
_IN = struct.Struct("=IIQQIIIHH")  # length, opcode, unique, …
_OUT = struct.Struct("=IiQ")  # length, error, unique; 0 for a notification
_INIT_FLAGS2: Final = _IN.size + 16  # offset in the request
_INIT_OUT = struct.Struct("=4I2H2I2H2I24x")  # …, flags (3), …, flags2 (10), max_stack_depth (11)
_OPEN_OUT = struct.Struct("=QIi")  # handle, flags, number of the backing file
_INIT: Final = 26
_EXTENDED: Final = 1 << 30  # FUSE_INIT_EXT
_PASSTHROUGH: Final = 1 << 5  # FUSE_PASSTHROUGH, in flags2
_OPEN_PASSTHROUGH: Final = 1 << 7  # FOPEN_PASSTHROUGH
_LARGEST: Final = (1 << 20) + 8192  # bytes of a message
_ROOM: Final = 4 << 20  # bytes in the socket
_PATIENCE = 10.0  # seconds for the kernel to greet


def obstacle() -> str | None:
    """Why there can be no such mount here; None when nothing speaks against it so far."""
    if not _capabilities() & _SYS_ADMIN:
        return "only root may do that (CAP_SYS_ADMIN), and this mount is served by another user"
    reason = requestloop.obstacle()
    if reason is None and not (version := _libfuse()).startswith(TESTED):
        reason = f"it was not tested with libfuse {version}"
    return reason


def _capabilities() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))


def _libfuse() -> str:
    """The release of the library that pyfuse3 was loaded with."""
    try:
        version = ctypes.CDLL(vars(pyfuse3)["__file__"]).fuse_pkgversion
    except (AttributeError, OSError):
        return "of an unknown release"
    version.restype = ctypes.c_char_p
    return str(version().decode())


class Door:
    """A mount of ours and the descriptor that libfuse has of it.

    Invariants: N is the device once the kernel has been greeted, but from `answer` until `settle`; `_armed` is set from
    `answer` until libfuse's answer has come.
    """

    def __init__(self, store: str, mountpoint: str, *, read_only: bool, allow_other: bool) -> None:
        """Mount. Raises OSError."""
        self._source = os.fsencode(store)
        self._place = os.fsencode(mountpoint)
        self._armed: tuple[int, int] | None = None  # handle, number of its backing file
        with contextlib.ExitStack() as stack:
            self.device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, self.device)
            self._mount(read_only=read_only, allow_other=allow_other)
            stack.callback(_LIBC.umount2, self._place, _DETACH)
            greeting = self._greeting()
            self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._ours.send(greeting)
            with contextlib.suppress(OSError):  # what there is may suffice
                self._theirs.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_SNDBUFFORCE", 32), _ROOM)
            self._libfuse = os.dup(self._theirs.fileno())  # N; pyfuse3 closes it
            stack.pop_all()
        self._is_detour, self._is_greeted = True, False
        self._buffer = bytearray(_LARGEST)
        self._first = _IN.unpack_from(greeting)[2]
        able = len(greeting) > _INIT_FLAGS2 and struct.unpack_from("=I", greeting, _INIT_FLAGS2)[0] & _PASSTHROUGH
        self.backings = Backings(self.device) if able else None  # None: the kernel can't

    def _mount(self, *, read_only: bool, allow_other: bool) -> None:
        flags = _NOSUID | _NODEV | (_READ_ONLY if read_only else 0)
        data = f"fd={self.device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},default_permissions"
        data += ",allow_other" if allow_other else ""
        if _LIBC.mount(self._source, self._place, f"fuse.{SUBTYPE}".encode(), flags, data.encode()):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def _greeting(self) -> bytes:
        """The kernel's first request."""
        poll = select.poll()
        poll.register(self.device, select.POLLIN)
        message = os.read(self.device, _LARGEST) if poll.poll(_PATIENCE * 1000) else b""
        if len(message) < _IN.size or _IN.unpack_from(message)[1] != _INIT:
            raise OSError(errno.EPROTO, os.strerror(errno.EPROTO))
        return message

    @property
    def path(self) -> str:
        """What libfuse is told to be the mountpoint."""
        return f"/dev/fd/{self._libfuse}"

    def answer(self, handle: int, number: int) -> FileInfo:
        """What an `open` must return at once, without anything between, so that the kernel reads the file itself."""
        self.settle()
        made = _Answer(fh=FileHandleT(handle), keep_cache=False)
        made.door = self
        self._armed = handle, number
        os.dup2(self._theirs.fileno(), self._libfuse, inheritable=False)
        self._is_detour = True
        return made

    def settle(self) -> bool:
        """Let N be the device. True when libfuse has yet to read the kernel's first request, from the socket."""
        if not self._is_greeted:
            self._is_greeted = True
            return True
        if self._is_detour:
            os.dup2(self.device, self._libfuse, inheritable=False)
            self._is_detour = False
            self._hand_on()
        if self.backings is not None:
            self.backings.sweep()
        return False

    def take(self) -> bool:
        """A request has come, which libfuse is to read from the device."""
        return not self.settle()

    async def attend(self) -> None:
        """Hand on what gets into the socket when nobody thinks of it any more."""
        while True:
            await trio.lowlevel.wait_readable(self._ours)
            self._hand_on()

    def _hand_on(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                length = self._ours.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
                message = bytes(self._buffer[:length])
                _, error, unique = _OUT.unpack_from(message)
                if unique == 0:
                    threading.Thread(target=self._write, args=(message,), daemon=True).start()
                elif unique == self._first:
                    self._write(message if error or self.backings is None else _able(message))
                elif self._armed is not None:
                    (handle, number), self._armed = self._armed, None
                    self._write(_backed(message, handle, number))
                else:
                    self._write(message)

    def _write(self, message: bytes) -> None:
        try:
            os.write(self.device, message)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # nobody waits for it any more, or it was unmounted
                log.exception("An answer could not be handed on")

    def close(self, *, unmount: bool) -> None:
        """Let go of everything, and take the mount away when it is still there (libfuse doesn't: it has no path)."""
        if self._is_detour and self._is_greeted:  # not in a process that never served
            self._hand_on()
        poll = select.poll()
        poll.register(self.device, 0)
        gone = any(events & select.POLLERR for _, events in poll.poll(0))
        if unmount and not gone and _LIBC.umount2(self._place, _DETACH):
            log.error("%r can't be unmounted: %s", self._place, os.strerror(ctypes.get_errno()))
        self._ours.close()
        self._theirs.close()
        os.close(self.device)


class _Answer(FileInfo):
    """pyfuse3 lets go of it right after libfuse has sent it."""

    door: Door

    def __del__(self) -> None:
        self.door.settle()


def _able(message: bytes) -> bytes:
    """libfuse's answer to INIT, with passthrough. Backing files must not be on a stacked file system themselves."""
    body = message[_OUT.size :].ljust(_INIT_OUT.size, b"\0")
    fields = list(_INIT_OUT.unpack_from(body))
    fields[3] |= _EXTENDED
    fields[10] |= _PASSTHROUGH
    fields[11] = 1
    _, _, unique = _OUT.unpack_from(message)
    return _OUT.pack(_OUT.size + _INIT_OUT.size, 0, unique) + _INIT_OUT.pack(*fields)


def _backed(message: bytes, handle: int, number: int) -> bytes:
    """libfuse's answer to an OPEN, with a backing file."""
    length, error, _ = _OUT.unpack_from(message)
    if error or length != _OUT.size + _OPEN_OUT.size or _OPEN_OUT.unpack_from(message, _OUT.size)[0] != handle:
        log.error("An answer of %d bytes came instead of that to an open", length)
        return message
    return message[: _OUT.size] + _OPEN_OUT.pack(handle, _OPEN_PASSTHROUGH, number)
