"""`rolloutfs.notices`: a notification isn't lost on an inode that the kernel is only just getting to know."""

from __future__ import annotations

import errno

import pytest
import trio
from pyfuse3 import InodeT

from rolloutfs.notices import Notices


class Kernel:
    """Which inodes it has, and what it was told about them."""

    def __init__(self) -> None:
        self.inodes: set[int] = set()
        self.told: list[int] = []
        self.asked = 0

    def send(self, ino: InodeT) -> None:
        """A notification."""
        self.asked += 1
        if ino not in self.inodes:
            raise OSError(errno.ENOENT, "no such inode")
        self.told.append(ino)


def test_an_inode_that_is_made_later_is_told_then() -> None:
    """The answer was given, the notification came first, the inode came next."""
    kernel = Kernel()
    notices = Notices(kernel.send)
    notices.told(7)
    notices.give(7)
    notices.repeat()
    assert kernel.told == []
    kernel.inodes.add(7)
    notices.repeat()
    notices.repeat()
    assert kernel.told == [7]


def test_an_inode_that_was_never_answered_about_is_left_alone() -> None:
    """Most of what changes is unknown to the kernel: that costs one call."""
    kernel = Kernel()
    notices = Notices(kernel.send)
    notices.give(7)
    notices.repeat()
    assert kernel.asked == 1


def test_what_the_kernel_has_forgotten_is_given_up() -> None:
    """An inode that was answered about and is never made."""
    kernel = Kernel()
    notices = Notices(kernel.send)
    notices.told(7)
    notices.give(7)
    for _ in range(100):
        notices.repeat()
    assert 2 < kernel.asked < 50


def test_other_errors_are_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """And not tried again."""

    def send(_ino: InodeT) -> None:
        raise OSError(errno.EINVAL, "no")

    notices = Notices(send)
    notices.told(7)
    notices.give(7)
    assert "invalidate_inode failed" in caplog.text


async def test_it_happens_by_itself(autojump_clock: trio.testing.MockClock) -> None:
    """Also when no further request comes, since the kernel has an answer that it relies on; and again the next time."""
    kernel = Kernel()
    notices = Notices(kernel.send)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notices.run)
        for ino in (7, 8):
            notices.told(ino)
            notices.give(ino)
            await trio.sleep(0.2)
            kernel.inodes.add(ino)
            await trio.sleep(0.2)
            assert ino in kernel.told
        nursery.cancel_scope.cancel()
