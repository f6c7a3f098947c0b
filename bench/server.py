"""A mount in a process of its own, pinned to the core that we run on, and what its processes do.

`FUSE.md` 0.2 says why: on a virtual machine a wakeup on another core costs more than a request.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted store; `pid` is its server."""

    store: Path
    path: Path
    pid: int

    def thread(self, thread: str) -> Path:
        """The folder of a thread."""
        return self.path / "threads" / thread

    def processes(self) -> list[int]:
        """The server first, then its workers."""
        return [self.pid, *_below(self.pid)]

    def bytes_read(self) -> int:
        """What all its living processes have read so far, from files of any kind."""
        total = 0
        for pid in self.processes():
            with suppress(OSError):
                text = Path(f"/proc/{pid}/io").read_text()
                total += int(text.split("rchar: ")[1].split()[0])
        return total

    def resident(self) -> int:
        """Bytes that the server has in memory now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu(self) -> float:
        """Seconds of CPU that its living processes have used so far."""
        nanoseconds = 0
        for pid in self.processes():
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    nanoseconds += int((task / "schedstat").read_text().split()[0])
        return nanoseconds / 1e9


def _below(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_below(int(child))]
    return found


def command(*arguments: str | Path) -> list[str]:
    """Our command line."""
    return [sys.executable, "-m", "rolloutfs", *map(str, arguments)]


@contextmanager
def mounted(store: Path, folder: Path, *options: str, **more: str) -> Iterator[Mount]:
    """Mount a store below `folder`, which also takes the server's cache and log; `more` for its environment. Without
    options nothing is kept from one mount to the next.
    """
    place = folder / "mnt"
    place.mkdir(exist_ok=True)
    words = command("mount", "-f", *(options or ("--no-index",)), store, place)
    with _serving(words, folder, place, "README.md", **more) as server:
        yield Mount(store, place, server)


def make_index(store: Path, folder: Path) -> None:
    """Bring the index of a store, in the cache below `folder`, up to date."""
    words = command("index", store)
    subprocess.run(words, env=environment(folder), stdout=subprocess.DEVNULL, check=True)


@contextmanager
def counting(store: Path, folder: Path, *options: str) -> Iterator[tuple[Mount, Callable[[], int]]]:
    """The same, and what tells how many requests have come since it was asked last."""
    place, report = folder / "mnt", folder / "requests"
    place.mkdir(exist_ok=True)
    words = [sys.executable, "-c", _COUNTING, str(report), "mount", "-f", *options, str(store), str(place)]
    with _serving(words, folder, place, "README.md") as server:

        def requests() -> int:
            time.sleep(0.2)  # what a program closes at its end is released a moment later
            report.unlink(missing_ok=True)
            os.kill(server, signal.SIGUSR2)
            while not report.exists():
                time.sleep(0.01)
            return int(report.read_text())

        requests()
        yield Mount(store, place, server), requests


_COUNTING = """
import os, signal, sys
from rolloutfs import cli, guarding
report = sys.argv.pop(1)
def told(*_):
    with open(report + ".new", "w") as file:
        file.write(str(guarding.REQUESTS.total()))
    guarding.REQUESTS.clear()
    os.rename(report + ".new", report)
signal.signal(signal.SIGUSR2, told)
cli.main()
"""


@contextmanager
def loopback(tree: Path, folder: Path, *options: str) -> Iterator[Mount]:
    """A plain tree, served by pyfuse3 as it comes; `options` of `bench.loopback`."""
    place = folder / "loopback"
    place.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "bench.loopback", str(tree), str(place), *options]
    with _serving(words, folder, place, ".") as server:
        yield Mount(tree, place, server)


@contextmanager
def _serving(words: list[str], folder: Path, place: Path, name: str, **more: str) -> Iterator[int]:
    """The pid of a server, ended and unmounted afterwards; `name` is in its mount."""
    server = subprocess.Popen(words, env=environment(folder) | more, stdout=subprocess.DEVNULL, cwd=folder)
    try:
        await_mount(place, name, server)
        yield server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            subprocess.run(["fusermount3", "-uz", str(place)], check=False)
            server.kill()
            server.wait()


def environment(folder: Path) -> dict[str, str]:
    """An environment of its own below a folder."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}:{ROOT / 'core'}",
        "HOME": str(folder / "home"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_STATE_HOME": str(folder / "state"),
    }


def await_mount(place: Path, name: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until a server has mounted something that answers; `name` is in it. RuntimeError when it doesn't."""
    end = time.monotonic() + PATIENCE
    while not (os.path.ismount(place) and (place / name).exists()):
        if server.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the mount did not come up (exit status {server.returncode})")
        time.sleep(0.005)


@dataclass(slots=True)
class Peaks:
    """The most memory that was resident, in bytes."""

    server: int = 0
    worker: int = 0  # the largest of all workers


@dataclass(slots=True)
class MemoryWatch:
    """Looks at the peak of every process of a mount again and again, since workers come and go."""

    mount: Mount
    peaks: Peaks = field(default_factory=Peaks)
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Peaks:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self.peaks

    def __exit__(self, *_exc: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._done.wait(0.02):
            self._look()

    def _look(self) -> None:
        server, *workers = self.mount.processes()
        self.peaks.server = max(self.peaks.server, _peak(server))
        self.peaks.worker = max([self.peaks.worker, *map(_peak, workers)])


def _peak(pid: int) -> int:
    """VmHWM of a process; 0 when it is gone."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) << 10
    return 0
