"""What a service manager hears of a mount (sd_notify(3)), by a socket of the test's own."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutfs import notify
from tests.mount.conftest import DEADLINE, Lab, children, until
from tests.mount.control_lab import PAGINATED, operations, stock, write
from tests.mount.test_control import configure


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket that listens, and its address as systemd writes it."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address.replace("@", "\0", 1))
        listening.settimeout(DEADLINE)
        yield listening, address


def told(listening: socket.socket) -> dict[str, str]:
    """The next message."""
    return dict(line.split("=", 1) for line in listening.recv(4096).decode().split("\n"))


def environment(pid: int) -> bytes:
    """What a process was started with; nothing when it has just ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.mark.parametrize("end", ["unmount", "signal"])
def test_a_mount_tells_when_it_can_be_used_and_when_it_ends(
    lab: Lab, manager: tuple[socket.socket, str], end: str
) -> None:
    """READY=1 with a status that names both folders, then nothing before STOPPING=1."""
    listening, address = manager
    thread = lab.sample.add(1)
    server = lab.mount(NOTIFY_SOCKET=address)
    ready = told(listening)
    assert os.listdir(lab.mountpoint / "threads") == [thread]
    assert ready == {"READY": "1", "STATUS": f"{lab.sample.root} is mounted on {lab.mountpoint}"}
    if end == "unmount":
        lab.unmount()
    else:
        server.send_signal(signal.SIGTERM)
    assert told(listening)["STOPPING"] == "1"
    assert server.wait(DEADLINE) == 0
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.recv(1)


def is_forgotten(server: int) -> bool:
    """No child of a server knows of the manager. Each has its parent's environment until it runs its own program."""
    return not any(b"NOTIFY_SOCKET" in environment(pid) for pid in children(server))


def test_no_child_inherits_the_socket(lab: Lab, manager: tuple[socket.socket, str]) -> None:
    """A worker, and what a worker or a summarizer would start, must not speak in the name of the mount."""
    listening, address = manager
    (thread,) = stock(lab, PAGINATED)
    seen = lab.folder / "seen"
    configure(lab, f"env > {shlex.quote(str(seen))}; echo summary")
    server = lab.mount(NOTIFY_SOCKET=address)
    told(listening)
    assert b"NOTIFY_SOCKET" in environment(server.pid)
    until(lambda: children(server.pid), "a worker starts")
    until(lambda: is_forgotten(server.pid), "no child knows of the manager")
    assert write(lab.thread(thread) / "compact", b'{"strategy":"auto"}') == 0
    until(lambda: operations(lab), "the summary is written")
    assert "PATH=" in seen.read_text()
    assert "NOTIFY_SOCKET" not in seen.read_text()
    lab.unmount()


@pytest.mark.parametrize("address", ["/nowhere/at/all", "vsock:2:1", "/" + "x" * 300, "@" + "x" * 300])
def test_nobody_listens(lab: Lab, address: str) -> None:
    """The log says so, and the mount is as good as any other."""
    lab.expected.append("The service manager can't be told ")
    thread = lab.sample.add(1)
    server = lab.mount(NOTIFY_SOCKET=address)
    assert os.listdir(lab.mountpoint / "threads") == [thread]
    lab.unmount()
    assert server.returncode == 0
    assert lab.logs().count("READY=1") == lab.logs().count("STOPPING=1") == 1


def test_without_a_manager_nothing_is_said(lab: Lab) -> None:
    """No variable, or an empty one: no line in the log (the lab looks), no system call for it."""
    notify.Manager(None).ready("nothing")
    lab.mount(NOTIFY_SOCKET="")
    lab.unmount()


def test_a_mount_in_the_background_hands_nothing_on(lab: Lab, manager: tuple[socket.socket, str]) -> None:
    """It isn't the process that the manager started, so it says nothing, and neither do its workers."""
    listening, address = manager
    lab.run("mount", lab.sample.root, lab.mountpoint, NOTIFY_SOCKET=address)
    server = lab.background_server()
    until(lambda: children(server), "a worker starts")
    until(lambda: is_forgotten(server), "no child knows of the manager")
    lab.run("umount", lab.mountpoint)
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.recv(1)


def test_a_path_cannot_forge_a_message(tmp_path: Path, manager: tuple[socket.socket, str]) -> None:
    """A newline in the name of a folder doesn't begin another line."""
    listening, address = manager
    notify.Manager(address).ready(f"{tmp_path}/a\nMAINPID=1 is mounted")
    assert told(listening) == {"READY": "1", "STATUS": f"{tmp_path}/a?MAINPID=1 is mounted"}


def test_a_second_signal_does_not_cut_the_end_short(lab: Lab) -> None:
    """systemd sends SIGTERM after an ExecStop that has unmounted: the spool is removed all the same."""
    slow = "import time, shutil, os; remove = shutil.rmtree\n"
    slow += "shutil.rmtree = lambda *a, **b: (os.kill(os.getpid(), 15), time.sleep(0.1), remove(*a, **b))"
    server = lab.mount(patch=slow)
    assert lab.spools()
    subprocess.run(["fusermount3", "-u", str(lab.mountpoint)], check=True, timeout=DEADLINE)
    assert server.wait(DEADLINE) == 0
    assert lab.spools() == []
