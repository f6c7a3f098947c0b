"""What an index costs: of a large thread, from nothing and when a turn has been added, and of many small ones."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

from bench import stores
from bench.cases import Settings, Table, ms, store_of
from bench.rollout import rollout_name
from bench.server import command, environment
from bench.thread import THREAD
from bench.timing import Sample

_SCRIPT = """\
import sys
from rolloutfs.cli import main
try:
    main()
finally:
    print(open("/proc/self/io").read(), file=sys.stderr)
"""


_LARGE = ("from nothing", "unchanged", "one turn more", "unchanged, after one turn more")


def index(folder: Path, settings: Settings) -> Table:
    """`rolloutfs index`, each time in a new process."""
    taken: dict[str, list[float]] = {}
    worked: dict[str, list[float]] = {}
    read: dict[str, int] = {}

    def run(what: str) -> None:
        seconds, cpu, read[what] = _run(store, folder)
        taken.setdefault(what, []).append(seconds)
        worked.setdefault(what, []).append(cpu)

    with store_of("checkpoints", folder, settings) as store:
        log = store / rollout_name(THREAD)
        size = sum(path.stat().st_size for path in store.rglob("*.jsonl"))
        turn = last_turn(log)
        for _ in range(settings.runs):
            _forget(folder)
            for what in _LARGE:
                if what == "one turn more":
                    with log.open("ab") as file:
                        file.write(turn)
                run(what)
    with store_of("small", folder, settings) as store:
        count = stores.SMALL_THREADS // settings.scale
        for _ in range(settings.runs):
            _forget(folder)
            for what in ("small threads, from nothing", "small threads, unchanged"):
                run(what)
    cpu = {what: Sample(tuple(seconds)) for what, seconds in worked.items()}
    start = min(read.values())
    speeds = {
        "from nothing": f"{size / 1e6 / cpu['from nothing'].median:.0f} MB/s",
        "small threads, from nothing": f"{count / cpu['small threads, from nothing'].median:,.0f} threads/s",
    }
    rows = [
        (what, ms(Sample(tuple(seconds))), ms(cpu[what]), speeds.get(what, ""), f"{(read[what] - start) / 1e6:.1f} MB")
        for what, seconds in taken.items()
    ]
    text = (
        f"{stores.RECIPES['checkpoints'].says}; {size / 1e6:,.0f} MB with the others, of which one is a fork that "
        f"inherits all of it, so that it is read for two threads. The turn has {len(turn):,} bytes. The run after it "
        f"compares the whole log once with what was read of it. Beside it {count:,} threads of a few kilobytes. Each "
        "run is a new process. Speed: by seconds of its CPU. Read: more than by the run that reads least, counted by "
        "the kernel, the index itself included."
    )
    return Table("The index of a 1 GiB thread", text, ("", "median", "CPU", "speed", "read"), rows)


def _forget(folder: Path) -> None:
    for path in (folder / "cache" / "rolloutfs" / "index").glob("*"):
        path.unlink()


def last_turn(log: Path) -> bytes:
    """The records of the last turn, to be appended once more."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - (4 << 20), 0))
        lines = file.read().splitlines(keepends=True)
    start = max(number for number, line in enumerate(lines) if b'"task_started"' in line[:200])
    return b"".join(lines[start:])


def _run(store: Path, folder: Path) -> tuple[float, float, int]:
    """Seconds of one run, and those of its CPU; the bytes that its process has read."""
    words = [sys.executable, "-c", _SCRIPT, *command("index", store)[3:]]
    before, begin = _cpu(), time.perf_counter()
    done = subprocess.run(words, env=environment(folder), capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - begin
    return seconds, _cpu() - before, int(done.stderr.split("rchar: ")[1].split()[0])


def _cpu() -> float:
    """Seconds of CPU that the processes took that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
