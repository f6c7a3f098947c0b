"""What the index of a large thread costs: from nothing, and when a turn has been added."""

from __future__ import annotations

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


def index(folder: Path, settings: Settings) -> Table:
    """`rolloutfs index` of the store with a thread of a gigabyte."""
    taken: dict[str, list[float]] = {}
    read: dict[str, int] = {}
    with store_of("checkpoints", folder, settings) as store:
        log = store / rollout_name(THREAD)
        size = sum(path.stat().st_size for path in store.rglob("*.jsonl"))
        turn = last_turn(log)
        for _ in range(settings.runs):
            for path in (folder / "cache" / "rolloutfs" / "index").glob("*"):
                path.unlink()
            for what in ("from nothing", "unchanged", "one turn more"):
                if what == "one turn more":
                    with log.open("ab") as file:
                        file.write(turn)
                seconds, read[what] = _run(store, folder)
                taken.setdefault(what, []).append(seconds)
    samples = {what: Sample(tuple(seconds)) for what, seconds in taken.items()}
    start = read["unchanged"]
    rows = [(what, ms(sample), f"{max(read[what] - start, 0) / 1e6:.1f} MB") for what, sample in samples.items()]
    rows.append(("… which is", f"{size / 1e6 / samples['from nothing'].median:.0f} MB/s", ""))
    text = (
        f"{stores.RECIPES['checkpoints'].says}; {size / 1e6:,.0f} MB with the others. The turn has {len(turn):,} "
        "bytes. Read: more than a run reads that finds nothing changed, counted by the kernel."
    )
    return Table("The index of a 1 GiB thread", text, ("", "median", "read"), rows)


def last_turn(log: Path) -> bytes:
    """The records of the last turn, to be appended once more."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - (4 << 20), 0))
        lines = file.read().splitlines(keepends=True)
    start = max(number for number, line in enumerate(lines) if b'"task_started"' in line[:200])
    return b"".join(lines[start:])


def _run(store: Path, folder: Path) -> tuple[float, int]:
    """Seconds of one run, and the bytes that its process has read."""
    words = [sys.executable, "-c", _SCRIPT, *command("index", store)[3:]]
    begin = time.perf_counter()
    done = subprocess.run(words, env=environment(folder), capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - begin
    return seconds, int(done.stderr.split("rchar: ")[1].split()[0])
