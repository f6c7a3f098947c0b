"""The first byte of `transcript.md` of a thread of 10 MB: with and without an index, and after one more turn."""

from __future__ import annotations

import os
from pathlib import Path

from threadstore.projection import View

from bench import stores, timing
from bench.cases import Settings, Table, first_byte_of, ms, ratio, store_of
from bench.indexes import last_turn
from bench.rollout import rollout_name
from bench.server import Mount, make_index, mounted
from bench.stores import WARM
from bench.thread import THREAD

_STORE = "middling"
_FILE = View.TRANSCRIPT.value


def transcript(folder: Path, settings: Settings) -> Table:
    """Opening the transcript, and what `cat` of the log takes in the same run."""
    with store_of(_STORE, folder, settings) as store:
        log = store / rollout_name(THREAD)
        size = log.stat().st_size
        turn, other = last_turn(log), last_turn(store / rollout_name(WARM))

        def opened(mount: Mount, thread: str = THREAD) -> float:
            return first_byte_of(mount.thread(thread) / _FILE)

        def cold(option: str) -> float:
            with mounted(store, folder, option) as mount:
                return opened(mount)

        def indexed() -> float:
            make_index(store, folder)
            return cold("--index")

        def warm() -> float:
            with mounted(store, folder) as mount:
                opened(mount, WARM)
                return opened(mount)

        def grown(option: str) -> float:
            make_index(store, folder)
            with mounted(store, folder, option) as mount:
                _append(store / rollout_name(WARM), other)  # which the index hasn't got, so a worker is asked
                opened(mount, WARM)
                opened(mount)
                _append(log, turn)
                seconds = opened(mount)
            os.truncate(log, size)
            return seconds

        samples = timing.in_turns(
            settings.runs,
            {
                "cat": lambda: timing.command(["cat", log]),
                "indexed": indexed,
                "grown, indexed": lambda: grown("--index"),
                "grown": lambda: grown("--no-index"),
                "warm": warm,
                "cold": lambda: cold("--no-index"),
            },
        )
    names = {
        "indexed": "in the index, new server",
        "grown, indexed": "one turn more than in the index, a worker process runs",
        "grown": "without an index, one turn more than it had when it was opened before",
        "warm": "without an index, opened first, a worker process runs",
        "cold": "without an index, opened first, no worker process yet",
        "cat": "native: `cat` of the log",
    }
    rows = [(says, ms(samples[name]), ratio(samples[name], samples["cat"])) for name, says in names.items()]
    text = f"{stores.RECIPES[_STORE].says}: {size / 1e6:.2f} MB. The turn has {len(turn):,} bytes."
    return Table("First byte of a 10 MB thread's transcript", text, ("", "median", "÷ cat"), rows)


def _append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)
