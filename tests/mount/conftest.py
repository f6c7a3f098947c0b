"""Real mounts below the test's own folder, each served by a process of its own, all gone afterwards.

A server in the test's process would deadlock with the test, so it is always another one.  Clients of the mount that
could hang run under a time limit.  Every server's log is read at the end: a line that the test didn't announce
fails it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import threadstore

import rolloutfs
from rolloutfs import mounttable
from tests.tree.sample import SampleStore, sample_store
from tests.witness import Witness

DEADLINE = 30.0  # seconds; nothing here takes longer unless it is broken

#: Ways to mount that change nothing of what is shown: a run of the tests may ask for another one.
_WAYS = ("ROLLOUTFS_INDEX", "ROLLOUTFS_PASSTHROUGH", "ROLLOUTFS_REQUEST_LOOP")


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something to become true; fail when it doesn't."""
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {DEADLINE} s: {what}")
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """True when a process has ended (or waits to be reaped)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return True


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@dataclass
class Lab:
    """Everything that a test of mounts needs, in one folder."""

    folder: Path
    sample: SampleStore
    mountpoint: Path
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    witness: Witness | None = None  # of the store when it was first mounted

    edits: bool = False  # the test itself changes or removes what the store holds

    def watch(self) -> None:
        """From now on no fact of the store may be lost, nor anything in the user's home be touched."""
        if self.witness is None:
            self.witness = Witness(self.sample.root, self.folder / "home")

    def check(self) -> None:
        """Fail when one was, unless the test does such things itself."""
        if self.witness is not None and not self.edits:
            self.witness.check()

    @property
    def environment(self) -> dict[str, str]:
        """An environment in which nothing of the user's own is read or written."""
        places = {Path(module.__file__ or "").parents[1] for module in (rolloutfs, threadstore)}
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ":".join(map(str, places)),
            "HOME": str(self.folder / "home"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PYTHONWARNINGS": "error",
            **{name: os.environ[name] for name in _WAYS if name in os.environ},
        }

    def run(self, *arguments: str | Path, code: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        if arguments[0] in ("fork", "revert", "compact"):
            self.watch()
        result = subprocess.run(
            [sys.executable, "-m", "rolloutfs", *map(str, arguments)],
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=DEADLINE * 2,
            check=False,
        )
        if code is not None:
            assert result.returncode == code, result.stderr
        return result

    def client(self, script: str, *arguments: str | Path) -> subprocess.Popen[str]:
        """A Python program that uses the mount."""
        return subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def mount(self, *options: str, patch: str = "", **environment: str) -> subprocess.Popen[bytes]:
        """Serve the sample store in the foreground; returns once the mount answers. `patch` is run in the server
        first.
        """
        self.watch()
        if "--passthrough" in options:  # which pyfuse3's loop can't have
            environment.setdefault("ROLLOUTFS_REQUEST_LOOP", "ours")
        script = f"{patch}\nfrom rolloutfs.cli import main\nmain()"
        log = (self.folder / f"server-{len(self.servers)}.log").open("wb")
        with log:
            server = subprocess.Popen(
                [sys.executable, "-c", script, "mount", "-f", *options, str(self.sample.root), str(self.mountpoint)],
                env={**self.environment, **environment},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.servers.append(server)
        until(lambda: self.is_mounted() or server.poll() is not None, "the mount is in the table")
        assert server.poll() is None, self.logs()
        subprocess.run(["stat", str(self.mountpoint / "README.md")], check=True, timeout=DEADLINE, capture_output=True)
        return server

    def background(self, *options: str) -> int:
        """Mount as a user does; the server's pid."""
        self.watch()
        self.run("mount", *options, self.sample.root, self.mountpoint)
        return self.background_server()

    def background_server(self) -> int:
        """The pid of the server in the background."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if os.fsencode(self.mountpoint) in words and b"mount" in words:
                    return int(entry.name)
        raise AssertionError("there is no server")

    def is_mounted(self) -> bool:
        """True while the mount is in the kernel's table, dead or alive."""
        return mounttable.find(str(self.mountpoint)) is not None

    def unmount(self) -> None:
        """Take the mount away as a user does, and wait for its server."""
        self.run("umount", self.mountpoint)
        for server in self.servers:
            server.wait(DEADLINE)

    def thread(self, thread: str) -> Path:
        """The folder of a thread in the mount."""
        return self.mountpoint / "threads" / thread

    def logs(self) -> str:
        """All that the servers wrote."""
        files = [*self.folder.glob("server-*.log"), *self.folder.glob("state/rolloutfs/*.log")]
        return "".join(file.read_text() for file in files)

    def spools(self) -> list[Path]:
        """The folders for decoded copies that exist."""
        return list(self.folder.glob("cache/rolloutfs/spool-*"))

    def clean_up(self) -> None:
        """Leave nothing behind, whatever the test did."""
        for _ in range(4):
            if not self.is_mounted():
                break
            for flag in ("-u", "-uz"):
                if (
                    subprocess.run(
                        ["fusermount3", flag, str(self.mountpoint)], capture_output=True, check=False
                    ).returncode
                    == 0
                ):
                    break
        for server in self.servers:
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(5)
        with contextlib.suppress(AssertionError):
            os.kill(self.background_server(), signal.SIGKILL)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """An empty store and an empty mountpoint; what is mounted is unmounted afterwards."""
    folder = tmp_path.resolve()
    lab = Lab(folder, sample_store(folder / "store"), folder / "mnt")
    (folder / "home").mkdir()
    lab.mountpoint.mkdir()
    try:
        yield lab
    finally:
        lab.clean_up()
    lab.check()
    unexpected = [line for line in lab.logs().splitlines() if line and not any(text in line for text in lab.expected)]
    if lab.expected and unexpected and "Traceback" in lab.logs() and any("Traceback" in text for text in lab.expected):
        unexpected = []  # the lines of an announced traceback
    assert unexpected == [], "the server wrote lines that the test doesn't know of"
