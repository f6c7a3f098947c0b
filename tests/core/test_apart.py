"""A write by a process of its own: whole although its master is killed, and with the error that it met."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from threadstore.apart import write_apart

from tests.core.test_recorder import files_end_at

_LENGTH = 64 << 20
_MASTER = f"""\
import fcntl, os, sys
from threadstore.apart import write_apart
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
write_apart(os.open(sys.argv[2], os.O_RDWR | os.O_APPEND), bytes({_LENGTH}))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that has something in it."""
    (tmp_path / "log").write_bytes(b"before\n")
    return tmp_path / "log"


def append(path: Path, data: bytes) -> tuple[int, OSError | None]:
    """What `write_apart` says of a file that is opened for it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        return write_apart(descriptor, data)
    finally:
        os.close(descriptor)


def test_a_master_that_is_killed(path: Path, tmp_path: Path) -> None:
    """All of it is there in the end, however much there was at that moment, and the lock is held until then. Who waits
    for the end of its output doesn't wait for that.
    """
    lock = tmp_path / "lock"
    for _ in range(20):
        path.write_bytes(b"before\n")
        with subprocess.Popen([sys.executable, "-c", _MASTER, lock, path], stdout=subprocess.PIPE) as master:
            while path.stat().st_size == len(b"before\n"):
                time.sleep(0.0002)
            master.kill()
            assert master.stdout is not None
            assert master.stdout.read() == b""
        was_writing = path.stat().st_size < _LENGTH
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert path.stat().st_size == len(b"before\n") + _LENGTH
        if was_writing:
            return
    pytest.fail("never killed while it wrote")


def test_what_is_written(path: Path) -> None:
    """It follows what was there; signals are let through again afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert append(path, b"one\ntwo\n") == (8, None)
    assert path.read_bytes() == b"before\none\ntwo\n"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


@pytest.mark.parametrize("room", [7, 9])
def test_an_error_is_handed_on(path: Path, room: int) -> None:
    """With the number of bytes that were written before it."""
    with files_end_at(room):
        done, error = append(path, b"one\ntwo\n")
    assert done == room - len(b"before\n") == path.stat().st_size - len(b"before\n")
    assert error is not None
    assert error.errno == errno.EFBIG


def test_who_ignores_the_end_of_processes(path: Path) -> None:
    """Then nobody tells how it ended; the file does."""
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert append(path, b"one\n") == (4, None)
        with files_end_at(9):
            done, error = append(path, b"two\n")
    finally:
        signal.signal(signal.SIGCHLD, handler)
    assert done == 0
    assert error is not None


def test_no_process_to_be_had(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error like others, and nothing is written."""

    def fail() -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(os, "fork", fail)
    done, error = append(path, b"one\n")
    assert done == 0
    assert error is not None
    assert error.errno == errno.EAGAIN
    assert path.read_bytes() == b"before\n"
