"""A mount in use for a long time: readers of all kinds, a Codex that writes, requests, people who tidy up.

Every byte that is read is compared, nothing may fail, and what the server holds must not grow. It takes 20 seconds;
ROLLOUTFS_SOAK=3600 makes it that many, and then the real Codex writes as well. ROLLOUTFS_SOAK_SEED tries another life.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bench.rollout import rollout_name
from bench.thread import MIB, Checkpoints, Shape, write_thread
from tests.interop.codex import Codex, CodexError, binary
from tests.interop.model_server import ModelServer, Rule
from tests.mount.conftest import Lab, until
from tests.mount.control_lab import stock
from tests.mount.soak_readers import FILES, Comparer, Library, Reader, Verdict
from tests.mount.soak_vitals import PATCH, Vitals, assert_at_rest, assert_no_growth, is_watched, vitals, whereabouts
from tests.mount.soak_writers import Gate, Writers

SECONDS = float(os.environ.get("ROLLOUTFS_SOAK") or 20)
SEED = int(os.environ.get("ROLLOUTFS_SOAK_SEED") or 1)
STOCK = (
    "forks.paginated",
    "forks.legacy",
    "revert_then_turns.paginated",
    "subagents_v1.paginated",
    "compressed.legacy",
    "archived.paginated",
    "interrupted.paginated",
)
_CODEX_THREADS = 4
_RESTS = 3  # the first is when the mount is warm
_CHANGES = {"grow", "begin", "fork", "revert", "compact", "compress", "archive"}
_NAMES = 64  # that a thread has below threads/ and store/, with all its generations and the links of others
_SLOW = 60.0  # seconds of one look at a thread, upon which it is told what the server does; after LIMIT it fails
_PATIENCE = 300.0  # seconds beyond the time that was asked for


class Crew:
    """Threads that each do one thing again and again. The first error ends all of them."""

    def __init__(self) -> None:
        self.ending = threading.Event()
        self.errors: list[BaseException] = []
        self._all: list[threading.Thread] = []

    def add(self, work: Callable[[random.Random], None], pause: float) -> None:
        """Do it with `pause` seconds in between."""
        chance = random.Random(SEED * 1000 + len(self._all))

        def run() -> None:
            try:
                while not self.ending.wait(pause):
                    work(chance)
            except BaseException as error:  # noqa: BLE001 - the test raises it
                self.errors.append(error)
                self.ending.set()

        self._all.append(threading.Thread(target=run, daemon=True))
        self._all[-1].start()

    def end(self) -> None:
        """Wait for all of them; raises what went wrong first."""
        self.ending.set()
        for one in self._all:
            one.join()
        if self.errors:
            raise self.errors[0]


class RealCodex:
    """Codex at work on threads of its own in the same store."""

    def __init__(self, home: Path, folder: Path, model: ModelServer) -> None:
        self.threads: dict[str, str] = {}  # modes by id
        self.turns = 0
        self._work = folder / "work"
        self._work.mkdir()
        self._model = model
        self._codex = Codex(home, model)

    def close(self) -> None:
        """End it."""
        self._codex.close()

    def step(self, writers: Writers, chance: random.Random) -> None:
        """A new thread, a turn with a tool, a compaction, a fork or a revert."""
        with writers.gate.together():
            if len(self.threads) < _CODEX_THREADS:
                mode = chance.choice(("paginated", "legacy"))
                ident = self._codex.start(mode, self._work)
                self._turn(ident)  # it has no file before
                self._adopt(writers, ident, mode)
            ident = chance.choice(sorted(self.threads))
            kind = chance.random()
            try:
                if kind < 0.1:
                    self._codex.compact(ident)
                elif kind < 0.15 and self.threads[ident] == "paginated":
                    for turn, _ in self._codex.turns(ident)[-1:]:
                        self._codex.call("thread/revert", threadId=ident, beforeTurnId=turn)
                elif kind < 0.2 and len(self.threads) < 2 * _CODEX_THREADS:
                    self._adopt(writers, self._codex.fork(ident), self.threads[ident])
                else:
                    self._turn(ident)
            except CodexError as error:  # a thread that has no turn yet
                if "turn" not in str(error):
                    raise

    def _turn(self, ident: str) -> None:
        self.turns += 1
        text = f"turn {self.turns}"
        call = {"call": "exec_command", "arguments": {"cmd": f"seq {self.turns % 300}"}}
        self._model.rules += [
            Rule(text, [{"think": "I shall count."}, call]),
            Rule("function_call_output", [{"say": "It ran."}]),
        ]
        self._codex.turn(ident, f"said {text}")
        self._model.requests.clear()  # each has the whole history

    def _adopt(self, writers: Writers, ident: str, mode: str) -> None:
        self.threads[ident] = mode
        writers.adopt(ident, paginated=mode == "paginated", forever=True)


class Soak:
    """One mount, who uses it, and what it held whenever everybody rested."""

    def __init__(self, lab: Lab) -> None:
        self.report = lab.folder / "report.json"
        self.server = lab.mount(patch=PATCH.format(report=str(self.report)))
        until(lambda: is_watched(self.server, self.report), "the store is watched")
        root = lab.sample.root
        self.changes, self.reads, self.telling = Gate(), Gate(), threading.Lock()
        self.writers = Writers(root, lab.mountpoint, self.changes, lab.folder / "tapes")
        self.comparer = Comparer(lab.mountpoint, Library(root, lab.folder / "spool-c"))
        self.readers = [
            Reader(lab.mountpoint, Library(root, lab.folder / f"spool-{number}"), self.writers.pick)
            for number in range(3)
        ]
        self.codex: RealCodex | None = None
        self.rests: list[Vitals] = []
        self.crew = Crew()
        self.begun = time.monotonic()

    def begin(self) -> None:
        """Let everybody start."""
        for _ in range(2):
            self.crew.add(self.writers.step, 0.005)
        for reader in self.readers:
            self.crew.add(partial(self._visit, reader), 0.01)
        self.crew.add(self._compare, 0.5)

    def _visit(self, reader: Reader, chance: random.Random) -> None:
        with self.reads.together():
            slow = threading.Timer(_SLOW, self._tell)
            slow.start()
            try:
                reader.visit(chance)
            finally:
                slow.cancel()

    def _tell(self) -> None:
        with self.telling:
            print(f"A look takes more than {_SLOW:.0f} s:\n{whereabouts(self.server, self.report)}", flush=True)

    def _compare(self, chance: random.Random) -> None:
        """Some files, and all names, while nobody writes; readers go on."""
        with self.reads.together(), self.changes.alone():
            self.comparer.names()
            for _ in range(5):
                self.comparer.file(self.writers.pick(chance), chance.choice(FILES))

    def rest(self) -> None:
        """Everybody stops. Everything is compared, and what the server holds is noted."""
        with self.reads.alone(), self.changes.alone():
            for reader in self.readers:
                reader.let_go()
            self.rests.append(vitals(self.server, self.report, self._born()))
            print(f"{time.monotonic() - self.begun:.0f} s: {self.rests[-1]}", flush=True)
            assert_at_rest(self.rests[-1])
            listed = self.comparer.everything()
            assert listed == self.writers.existing()
            for reader in self.readers:
                assert reader.strange <= self.writers.ever

    def _born(self) -> int:
        """How many rollouts there ever were."""
        return len(self.writers.ever) + self.writers.done["revert"] + self.writers.done["compress"]

    def turns_of_codex(self) -> int:
        """How many turns the real one has run."""
        return self.codex.turns if self.codex is not None else 0

    def go_on(self) -> None:
        """For `SECONDS`, and until there was everything: on a slow machine that takes longer."""
        begun = time.monotonic()
        while not self.crew.ending.wait(min(SECONDS / 4, 60)):
            self.rest()
            passed = time.monotonic() - begun
            if passed >= SECONDS and len(self.rests) >= _RESTS and self.writers.done.keys() >= _CHANGES:
                return
            assert passed < SECONDS + _PATIENCE, f"only {dict(self.writers.done)} within {passed:.0f} s"

    def summary(self) -> str:
        """What was done, for who runs it for an hour."""
        verdicts = {verdict.name: sum(reader.verdicts[verdict] for reader in self.readers) for verdict in Verdict}
        reads = {kind: sum(reader.done[kind] for reader in self.readers) for kind in self.readers[0].done}
        lines = [
            f"changes {dict(self.writers.done)}; {self.turns_of_codex()} turns of Codex",
            f"reads {reads} {verdicts}; {self.comparer.compared} more alone",
        ]
        return "\n".join(lines)


@pytest.mark.slow
def test_a_long_time_of_everything(lab: Lab, tmp_path: Path) -> None:
    """No error, no stale byte, no leak."""
    stock(lab, *STOCK)
    big = Shape(3 * MIB, Checkpoints.FULL, every=MIB, tail=MIB // 2)
    write_thread(lab.sample.root / rollout_name("01a22938-0000-7000-8000-000000000001"), big)
    soak = Soak(lab)
    with ModelServer() as model:
        codex = RealCodex(lab.sample.root, lab.folder, model) if SECONDS > 60 and binary().exists() else None
        if codex is not None:
            soak.codex = codex
            soak.crew.add(partial(codex.step, soak.writers), 0.5)
        soak.begin()
        try:
            soak.go_on()
        finally:
            try:
                soak.crew.end()
            finally:
                print(soak.summary())
                if codex is not None:
                    codex.close()
    warm, *later = soak.rests[len(soak.rests) // 4 :]
    for rest in later:
        assert_no_growth(warm, rest, _NAMES * len(soak.writers.ever))
    assert sum(reader.verdicts[Verdict.EXACT] for reader in soak.readers) > 0
