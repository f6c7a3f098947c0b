"""The lock of a thread, lent to the worker that writes for us.

The serving process may hold the writer's lock while a text comes in, and a worker then does the work. A lock belongs to
an open file, so the worker is given that open file itself: if the server dies, the lock stays with who is writing.
"""

from __future__ import annotations

import array
import errno
import os
import secrets
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import trio

_PATIENCE = 10.0  # seconds that a worker waits for a server that is alive


@asynccontextmanager
async def lent(descriptor: int) -> AsyncIterator[str]:
    """An address at which processes of the same user get the open file. Raises OSError."""
    address = f"\0rolloutfs-{secrets.token_hex(16)}"  # of no file: nothing to be left behind
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        await listener.bind(address)
        listener.listen()
        failed: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_hand_out, listener, descriptor)
            try:
                yield address
            except Exception as error:  # noqa: BLE001  raised below: a nursery would make a group of it
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed


async def _hand_out(listener: trio.socket.SocketType, descriptor: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    while True:
        connection, _ = await listener.accept()
        with connection, suppress(OSError):
            _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid == os.geteuid():
                await connection.sendmsg([b"."], rights)


@contextmanager
def borrowed(address: str) -> Iterator[None]:
    """Have the open file, too. Raises OSError when it isn't to be had: who lent it may not hold it any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(address)
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise OSError(errno.EIO, "The lock of the thread was not handed over")
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
