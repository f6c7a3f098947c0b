"""A lock that is lent stays with who borrowed it, whatever becomes of who lent it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from threadstore.locks import BusyError, writer_lock

from rolloutfs.lending import borrowed, lent
from tests.mount.conftest import until

_LENDER = """\
import sys, trio
from rolloutfs.lending import lent
from threadstore.locks import writer_lock

async def main():
    with writer_lock(sys.argv[1], "it") as lock:
        async with lent(lock) as address:
            print(address[1:], flush=True)
            await trio.sleep_forever()

trio.run(main)
"""


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A folder for a store."""
    return str(tmp_path)


def is_locked(root: str) -> bool:
    """True while somebody holds the lock."""
    try:
        with writer_lock(root, "it"):
            return False
    except BusyError:
        return True


def test_the_lender_dies(root: str) -> None:
    """The lock is held until the borrower is done."""
    with subprocess.Popen([sys.executable, "-c", _LENDER, root], stdout=subprocess.PIPE, text=True) as lender:
        assert lender.stdout is not None
        address = "\0" + lender.stdout.readline().strip()
        with borrowed(address):
            lender.send_signal(signal.SIGKILL)
            lender.wait()
            assert is_locked(root)
        assert not is_locked(root)
    with pytest.raises(OSError, match="refused") as caught, borrowed(address):
        pass
    assert caught.value.errno == errno.ECONNREFUSED


async def test_the_lender_is_done_first(root: str) -> None:
    """Then the lock stays where it is, and the next one who had it removes its file."""
    lock = Path(root, "thread-writer-locks", "it.lock")
    with writer_lock(root, "it") as descriptor:
        async with lent(descriptor) as address:
            holder = borrowed(address)
            await trio.to_thread.run_sync(holder.__enter__)
    assert is_locked(root)
    assert lock.exists()
    holder.__exit__(None, None, None)
    assert not is_locked(root)
    assert not lock.exists()


async def test_an_error_comes_through(tmp_path: Path) -> None:
    """What goes wrong meanwhile is raised as it is; nobody gets the file afterwards."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(KeyError):
            async with lent(descriptor) as address:
                raise KeyError
        with pytest.raises(OSError, match="refused"), borrowed(address):
            pass
    finally:
        os.close(descriptor)


async def test_several_borrow_it(tmp_path: Path) -> None:
    """Each gets the same open file."""
    until_now = len(os.listdir("/proc/self/fd"))
    with (tmp_path / "file").open("wb") as file:
        async with lent(file.fileno()) as address:
            for _ in range(3):
                holder = borrowed(address)
                await trio.to_thread.run_sync(holder.__enter__)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                holder.__exit__(None, None, None)
    until(lambda: len(os.listdir("/proc/self/fd")) <= until_now + 1, "all descriptors are closed")
