"""What is measured. Each function takes a folder to work in, makes its stores there and gives a table.

Everything runs on one core (FUSE 0.2). "first" is on a fresh mount, so the kernel has nothing of it; the log itself is
in the page cache for the mount and for its reference alike.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import zstandard
from threadstore.projection import View

from bench import stores, timing
from bench.reads import reads_of
from bench.rollout import rollout_name
from bench.server import MemoryWatch, Mount, Peaks, make_index, mounted
from bench.stores import WARM
from bench.thread import MIB, THREAD
from bench.timing import Sample

EFFECTIVE = View.EFFECTIVE_HISTORY.value
READ_WHOLE = (View.EFFECTIVE_HISTORY, View.MODEL_INPUT, View.FULL_HISTORY, View.TURNS, View.PROBLEMS, View.THREAD)


@dataclass(frozen=True, slots=True)
class Table:
    """A heading, what to know, the head of the columns and the rows."""

    title: str
    text: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    runs: int | None = None  # where that isn't what was asked for


@dataclass(frozen=True, slots=True)
class Settings:
    """How often each case is run, and by what sizes are divided (1 for the published figures)."""

    runs: int = 5
    scale: int = 1


Case = Callable[[Path, Settings], Table]


@contextmanager
def store_of(name: str, folder: Path, settings: Settings) -> Iterator[Path]:
    """A store of that name, gone afterwards: the large ones would not fit on a disk together."""
    root = folder / "store"
    try:
        yield stores.make(name, root, settings.scale)
    finally:
        shutil.rmtree(root)


def ms(sample: Sample) -> str:
    """The median in milliseconds, with its spread."""
    return f"{sample.median * 1e3:.1f} ms ± {sample.spread / 2:.0%}"


def ratio(sample: Sample, reference: Sample) -> str:
    """One median as a multiple of another."""
    return f"{sample.median / reference.median:.2f}"


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"


def first_byte_of(path: Path) -> float:
    """Seconds until the first byte of a file has come."""

    def look() -> None:
        with path.open("rb", buffering=0) as file:
            file.read(1)

    return timing.clocked(look)


def first_byte(folder: Path, settings: Settings) -> Table:
    """`effective_history.jsonl` of the thread of a gigabyte, and what its log costs natively."""
    with store_of("checkpoints", folder, settings) as store:
        rollout = store / rollout_name(THREAD)
        reads = reads_of(store, folder / "spool", THREAD, View.EFFECTIVE_HISTORY)
        plain = folder / "plain"
        with mounted(store, folder) as mount:
            shutil.copyfile(mount.thread(THREAD) / EFFECTIVE, plain)
        process_bytes = _read_by_processes(store, folder)

        def cold() -> float:
            with mounted(store, folder) as mount:
                return first_byte_of(mount.thread(THREAD) / EFFECTIVE)

        def warm() -> float:
            with mounted(store, folder) as mount:
                first_byte_of(mount.thread(WARM) / EFFECTIVE)
                return first_byte_of(mount.thread(THREAD) / EFFECTIVE)

        def again() -> float:
            with mounted(store, folder) as mount:
                first_byte_of(mount.thread(THREAD) / EFFECTIVE)
                return first_byte_of(mount.thread(THREAD) / EFFECTIVE)

        def indexed() -> float:
            with mounted(store, folder, "--index") as mount:
                return first_byte_of(mount.thread(THREAD) / EFFECTIVE)

        make_index(store, folder)
        worker = "import rolloutfs.worker"
        samples = timing.in_turns(
            settings.runs,
            {
                "tail": lambda: timing.command(["tail", "-c", reads.total, rollout]),
                "cold": cold,
                "warm": warm,
                "again": again,
                "indexed": indexed,
                "plain": lambda: timing.command(["cat", plain]),
                "python": lambda: timing.quiet_command([sys.executable, "-c", worker]),
            },
        )
        size = plain.stat().st_size
        plain.unlink()
    tail = samples["tail"]
    rows = [
        ("first byte, no worker process yet", ms(samples["cold"]), ratio(samples["cold"], tail)),
        ("first byte, a worker process runs", ms(samples["warm"]), ratio(samples["warm"], tail)),
        ("first byte, opened a second time", ms(samples["again"]), ratio(samples["again"], tail)),
        ("first byte, with an index", ms(samples["indexed"]), ratio(samples["indexed"], tail)),
        (f"native: `tail -c {reads.total}` of the log, whole", ms(tail), "1"),
        (f"native: `cat` of a plain file of {_mb(size)}", ms(samples["plain"]), ratio(samples["plain"], tail)),
        ("starting a Python with what a worker imports", ms(samples["python"]), ratio(samples["python"], tail)),
    ]
    text = (
        f"{stores.RECIPES['checkpoints'].says}. Of the log {_mb(reads.total)} are read, each byte "
        f"{_times(reads.most)}: the end up to the last checkpoint. Counted by the kernel for all processes of the "
        f"mount, with what Python reads to start a worker: {_mb(process_bytes)}."
    )
    return Table("First byte of a 1 GiB thread's effective history", text, ("", "median", "÷ tail"), rows)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _read_by_processes(store: Path, folder: Path) -> int:
    with mounted(store, folder) as mount:
        before = mount.bytes_read()
        first_byte_of(mount.thread(THREAD) / EFFECTIVE)
        return mount.bytes_read() - before


_AGAIN = 3


def sequential(folder: Path, settings: Settings) -> Table:
    """Reading whole files."""
    rows = []
    with store_of("checkpoints", folder, settings) as store:
        for name, inside in (("effective_history.jsonl", EFFECTIVE), ("the raw rollout", "rollouts/current")):
            plain = folder / "plain"
            with mounted(store, folder) as mount:
                shutil.copyfile(mount.thread(THREAD) / inside, plain)
            first, again = [], []
            native = []
            for _ in range(settings.runs):
                native.append(timing.command(["cat", plain]))
                with mounted(store, folder) as mount:
                    file = mount.thread(THREAD) / inside
                    first_byte_of(file)  # so that the replay is not part of it
                    first.append(timing.command(["cat", file]))
                    again += [timing.command(["cat", file]) for _ in range(_AGAIN)]
            size = plain.stat().st_size
            plain.unlink()
            reference = Sample(tuple(native))
            rows += [
                (f"{name}, {_mb(size)}: {when}", f"{size / sample.median / 1e6:.0f} MB/s", ratio(reference, sample))
                for when, sample in (("first", Sample(tuple(first))), ("again", Sample(tuple(again))))
            ]
            rows.append((f"{name}: native", f"{size / reference.median / 1e6:.0f} MB/s", "1"))
    return Table(
        "Reading from one end to the other",
        f"`cat` into a pipe; the third column is the part of the native speed. Again: {_AGAIN} times after the first, "
        "in the same mount; the first of these also marks all pages as used again, which is done once.",
        ("", "speed", "× native"),
        rows,
    )


def scans(folder: Path, settings: Settings) -> Table:
    """Whole logs: what needs every record, and what needs every record from the end."""
    rows = []
    for name, view in (
        ("checkpoints", View.TURNS),
        ("legacy", View.TURNS),
        ("none", View.EFFECTIVE_HISTORY),
        ("none", View.FULL_HISTORY),
        ("zst", View.EFFECTIVE_HISTORY),
    ):
        with store_of(name, folder, settings) as store:
            size = _decoded_size(store)
            reads = reads_of(store, folder / "spool", THREAD, view)
            shutil.rmtree(folder / "spool", ignore_errors=True)
            log = next(store.glob(f"sessions/*/*/*/*{THREAD}.jsonl*"))

            def scan(store: Path = store, view: View = view) -> float:
                with mounted(store, folder) as mount:
                    first_byte_of(mount.thread(WARM) / EFFECTIVE)
                    return first_byte_of(mount.thread(THREAD) / view.value)

            samples = timing.in_turns(
                settings.runs, {"scan": scan, "cat": functools.partial(timing.command, ["cat", log])}
            )
            rows.append(
                (
                    f"`{view.value}`: {name}",
                    f"{samples['scan'].median:.2f} s ± {samples['scan'].spread / 2:.0%}",
                    f"{size / samples['scan'].median / 1e6:.0f} MB/s",
                    _times(reads.most),
                    ratio(samples["scan"], samples["cat"]),
                )
            )
    return Table(
        "Scans of a whole log",
        "Time to the first byte when a worker process runs; MB of the (decoded) log a second. `full_history.jsonl` is "
        "made from two passes, one from either end.",
        ("", "median", "speed", "a byte is read", "÷ `cat` of the log"),
        rows,
    )


def _decoded_size(store: Path) -> int:
    plain = store / rollout_name(THREAD)
    if plain.exists():
        return plain.stat().st_size
    with plain.with_name(plain.name + ".zst").open("rb") as packed:
        reader = zstandard.ZstdDecompressor().stream_reader(packed)
        return sum(len(chunk) for chunk in iter(lambda: reader.read(MIB), b""))


def memory(folder: Path, settings: Settings) -> Table:
    """The most that was resident in any process while everything of a thread is read."""
    rows = []
    for name, recipe in stores.RECIPES.items():
        with store_of(name, folder, settings) as store, mounted(store, folder) as mount:
            peaks = read_everything(mount)
        rows.append((recipe.says, f"{peaks.server / MIB:.0f} MiB", f"{peaks.worker / MIB:.0f} MiB"))
    read = ", ".join(f"`{view.value}`" for view in READ_WHOLE)
    text = (
        f"Read whole, one after the other: {read} and the raw rollout of the large thread; for the small ones, `find`."
    )
    return Table("Resident memory", text, ("store", "server, peak", "worker, peak"), rows)


def read_everything(mount: Mount, views: tuple[View, ...] = READ_WHOLE) -> Peaks:
    """Read all of the large thread, or walk over the small ones; what the processes of the mount took meanwhile."""
    with MemoryWatch(mount) as peaks:
        folder = mount.thread(THREAD)
        if folder.exists():
            for name in (*(view.value for view in views), "rollouts/current"):
                timing.quiet_command(["cat", folder / name])
        else:
            timing.quiet_command(["find", mount.path, "-size", "+1"])
    return peaks


def pin() -> int:
    """Stay on one core from now on, with everything that is started; its number."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core
