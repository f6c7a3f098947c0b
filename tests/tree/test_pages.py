"""Notifications that are written to the connection itself."""

from __future__ import annotations

import logging
import os
import socket
import struct

import pytest

from rolloutfs.invalidating import Pages


async def test_what_is_written() -> None:
    """As linux/fuse.h has it: length, code, 0; of an inode from 0 to the end; and a place in it with the content."""
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pages = Pages(ours.fileno())
    with kernel, ours:
        await pages.drop(77)
        assert kernel.recv(4096) == struct.pack("=IiQQqq", 40, 2, 0, 77, 0, 0)
        await pages.put(77, 8192, b"content")
        assert kernel.recv(4096) == struct.pack("=IiQQQII", 47, 4, 0, 77, 8192, 7, 0) + b"content"


async def test_an_error_is_told_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    """Who waits for it is a request, which has an answer all the same."""
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)  # of no mount: EPERM
    try:
        with caplog.at_level(logging.WARNING):
            await Pages(descriptor).drop(77)
        assert "Notification 2 about 77 failed" in caplog.text
    finally:
        os.close(descriptor)
