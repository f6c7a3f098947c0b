"""Many small threads, and a store that goes on: what requests, walks and changes cost."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import stores, timing
from bench.cases import EFFECTIVE, Settings, Table, ms, ratio, store_of
from bench.rollout import rollout_name
from bench.server import MemoryWatch, Mount, command, environment, loopback, mounted
from bench.stores import WARM
from bench.thread import THREAD
from bench.timing import Sample

REQUESTS = 10_000
APPENDS = 50
_STATX, _FORCE_SYNC, _ALL = 332, 0x2000, 0x7FF  # x86-64
_LIBC = ctypes.CDLL(None, use_errno=True)

COMMANDS = {
    "`find`": "find {place}",
    "`ls -lR`": "ls -lR {place}",
    "`rsync -an`": "rsync -an {place}/ /tmp/none",
    "`grep -r`": "grep -r 'no such word' {place} || true",
    "`tar cf - | cat`": "tar cf - -C {place} . | cat",
}


def walks(folder: Path, settings: Settings) -> Table:
    """Everyday commands over many small threads."""
    rows: list[tuple[str, ...]] = []
    with store_of("small", folder, settings) as store:
        plain = folder / "plain"
        with mounted(store, folder) as mount:
            shutil.copytree(mount.path / "threads", plain, symlinks=True)
        for name, command in COMMANDS.items():
            taken: dict[str, list[float]] = {}

            def run(what: str, place: Path, command: str = command, taken: dict[str, list[float]] = taken) -> None:
                words = ["bash", "-c", command.format(place=place)]
                taken.setdefault(what, []).append(timing.quiet_command(words))

            for _ in range(settings.runs):
                run("native", plain)
                with loopback(plain, folder) as other:
                    run("stock first", other)
                    run("stock again", other)
                with mounted(store, folder) as mount:
                    run("ours first", mount.path / "threads")
                    run("ours again", mount.path / "threads")
            samples = {what: Sample(tuple(seconds)) for what, seconds in taken.items()}
            rows.append(
                (
                    name,
                    ms(samples["native"]),
                    ms(samples["stock first"]),
                    ms(samples["ours first"]),
                    ratio(samples["ours first"], samples["stock first"]),
                    ms(samples["ours again"]),
                    ratio(samples["ours again"], samples["stock again"]),
                    ratio(samples["ours again"], samples["native"]),
                )
            )
        shutil.rmtree(plain)
    return Table(
        "Walking over 2,000 threads",
        "Native: a plain copy of the tree. Stock: pyfuse3 with its own loop, serving that copy from memory "
        "(`bench/loopback.py`). The first walk of ours that asks for sizes makes every derived file.",
        ("", "native", "stock, first", "ours, first", "÷ stock", "ours, again", "÷ stock, again", "÷ native"),
        rows,
    )


def requests(folder: Path, settings: Settings) -> Table:
    """Single requests, with our way of waiting for them and with pyfuse3's own."""
    kinds: dict[str, Callable[[Mount], float]] = {"getattr": _getattr, "lookup": _lookup, "read of 4 KiB": _read}
    taken: dict[tuple[str, str], list[float]] = {}
    with store_of("checkpoints", folder, Settings(settings.runs, settings.scale * 8)) as store:
        for _ in range(settings.runs):
            for loop in ("stock", "ours"):
                with mounted(store, folder, ROLLOUTFS_REQUEST_LOOP=loop) as mount:
                    for kind, measure in kinds.items():
                        taken.setdefault((kind, loop), []).append(measure(mount))
    rows = []
    for kind in kinds:
        stock, ours = (Sample(tuple(taken[kind, loop])) for loop in ("stock", "ours"))
        rows.append((kind, *(f"{REQUESTS / one.median:,.0f}" for one in (stock, ours)), ratio(stock, ours)))
    return Table(
        "Requests a second, on one core",
        f"{REQUESTS:,} of each, of the same handlers.",
        ("", "pyfuse3's loop", "our loop", "×"),
        rows,
    )


def _getattr(mount: Mount) -> float:
    path = os.fsencode(mount.thread(THREAD) / EFFECTIVE)
    os.stat(path)
    room = ctypes.create_string_buffer(256)

    def ask() -> None:
        for _ in range(REQUESTS):
            _LIBC.syscall(_STATX, -100, path, _FORCE_SYNC, _ALL, room)

    return timing.clocked(ask)


def _lookup(mount: Mount) -> float:
    paths = [str(mount.thread(THREAD) / f"nothing-{number}") for number in range(REQUESTS)]
    return timing.clocked(lambda: [os.access(path, 0) for path in paths])


def _read(mount: Mount) -> float:
    file = os.open(mount.thread(THREAD) / "rollouts" / "current", os.O_RDONLY)
    try:
        pages = os.fstat(file).st_size // 4096
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        chance = random.Random(5)
        places = chance.sample(range(pages), min(REQUESTS, pages))
        seconds = timing.clocked(lambda: [os.pread(file, 4096, place * 4096) for place in places])
        return seconds * REQUESTS / len(places)
    finally:
        os.close(file)


def live(folder: Path, settings: Settings) -> Table:
    """How long until a line that was appended can be seen."""
    waits: list[float] = []
    with store_of("checkpoints", folder, Settings(settings.runs, settings.scale * 64)) as store:
        log = store / rollout_name(WARM)
        line = log.read_bytes().splitlines(keepends=True)[-1]
        with mounted(store, folder) as mount:
            shown = mount.thread(WARM) / "rollouts" / "current"
            for _ in range(APPENDS):
                size = shown.stat().st_size
                time.sleep(0.05)
                with log.open("ab") as file:
                    file.write(line)
                start = time.perf_counter()
                while shown.stat().st_size == size:
                    time.sleep(0.001)
                waits.append(time.perf_counter() - start)
    waits.sort()
    rows = [(name, f"{waits[int(share * (len(waits) - 1))] * 1e3:.1f} ms") for name, share in _SHARES]
    return Table(
        "From an append to its being seen",
        f"{APPENDS} lines appended to a watched thread whose attributes the kernel may keep; `stat` every millisecond.",
        ("", "after"),
        rows,
    )


_SHARES = (("median", 0.5), ("90 %", 0.9), ("slowest", 1.0))


def huge(folder: Path, settings: Settings) -> Table:
    """A store of 100,000 threads: mounting it, listing it, and what a walk leaves in memory."""
    mounts, first, again, walk = [], [], [], []
    with store_of("huge", folder, settings) as store:
        count = stores.HUGE_THREADS // settings.scale
        for _ in range(settings.runs):
            with _background(store, folder) as (seconds, place):
                mounts.append(seconds)
                first.append(_count(place, count))
                again.append(_count(place, count))
        with mounted(store, folder) as mount, MemoryWatch(mount) as peaks:
            walk.append(timing.quiet_command(["find", mount.path / "threads"]))
    rows = [
        ("`rolloutfs mount` returns", ms(Sample(tuple(mounts)))),
        ("`ls threads | wc -l`: first", ms(Sample(tuple(first)))),
        ("`ls threads | wc -l`: again", ms(Sample(tuple(again)))),
        ("`find threads`, all of it", f"{walk[0]:.1f} s"),
        ("resident in the serving process after that, at its peak", f"{peaks.server / (1 << 20):.0f} MiB"),
    ]
    return Table(
        f"{count:,} threads",
        "Nothing of the store is kept from one mount to the next.",
        ("", "median"),
        rows,
    )


def _count(place: Path, expected: int) -> float:
    start = time.perf_counter()
    listed = subprocess.run(["bash", "-c", f"ls {place}/threads | wc -l"], capture_output=True, check=True).stdout
    seconds = time.perf_counter() - start
    assert int(listed) == expected, listed
    return seconds


@contextmanager
def _background(store: Path, folder: Path) -> Iterator[tuple[float, Path]]:
    """Mount as a user does: the seconds until the command returns, and the place."""
    place = folder / "mnt"
    place.mkdir(exist_ok=True)
    with ExitStack() as stack:
        start = time.perf_counter()
        subprocess.run(command("mount", store, place), env=environment(folder), stdout=subprocess.DEVNULL, check=True)
        stack.callback(subprocess.run, ["fusermount3", "-uz", str(place)], check=True)
        yield time.perf_counter() - start, place
