"""Every sequence of up to three operations on a small thread does what a plain model of them does.

The model is that of `tests/operations/model.py`; `test_state_machine.py` tries longer sequences on several threads.
"""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest
from threadstore.cut import Boundary, NoSuchTurnError, RequestError
from threadstore.projection import View
from threadstore.recorder import Draft
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.operations.model import Model, append, meta, said, turn
from tests.operations.snapshots import problems_of, read, turns_of

THREAD = "01a22938-0000-7000-8000-00000000000a"
OPERATIONS = ("fork latest", "fork before 2", "revert -1", "revert 2", "undo", "compact", "turn")


class Life:
    """A store with one thread, and the model of each of its generations."""

    def __init__(self, home: Path, *, paginated: bool) -> None:
        self.home, self.paginated, self.count = home, paginated, 0
        folder = home / "sessions/2026/01/01"
        folder.mkdir(parents=True)
        path = folder / f"rollout-2026-01-01T00-00-00-{THREAD}.jsonl"
        append(path, [Draft.of("session_meta", meta(THREAD, paginated=paginated))], paginated=paginated, create=True)
        self.generations = [Model()]
        for _ in range(3):
            self.do("turn")

    @property
    def store(self) -> ThreadStore:
        """The store as it is now."""
        return ThreadStore(str(self.home), Spool(f"{self.home}.spool"))

    def do(self, operation: str) -> None:
        """An operation, on the thread and on the model."""
        store, now = self.store, self.generations[-1]
        name, _, argument = operation.partition(" ")
        turns, after, outcome = turns_of(store, THREAD) if name != "turn" else (), now, None
        try:
            if name == "turn":
                self.count += 1
                records = turn(THREAD, self.count, paginated=self.paginated)
                append(self.home / store.head(THREAD).path, records, paginated=self.paginated)
                now.turn(f"said {self.count}")
            elif name == "fork":
                kind, _, which = argument.partition(" ")
                outcome = store.fork(THREAD, Boundary(kind, which))
                after = now if kind == "latest" else now.cut(int(which))
                self.check(after, outcome.thread_id)
            elif name == "revert":
                outcome = store.revert(THREAD, argument)
                after = now.cut(int(argument))
                self.generations.append(after)
            elif name == "undo":
                outcome = store.undo(THREAD)
                after = self.generations[-2].copy()
                self.generations.append(after)
            else:
                outcome = store.compact(THREAD, "the summary")
                now.turn(None)
        except NoSuchTurnError:
            assert argument.split()[-1].lstrip("-") > str(len(now.turns))
        except RequestError:
            assert not self.paginated or (name == "undo" and len(self.generations) == 1)
        if outcome is not None:
            assert outcome.dropped_turns == [turns[at] for at in now.dropped(after)]
        self.check(self.generations[-1], THREAD)

    def check(self, model: Model, thread_id: str) -> None:
        """The thread is what the model says."""
        store = self.store
        assert said(read(store, thread_id, View.MODEL_INPUT)) == model.said
        assert len(turns_of(store, thread_id)) == len(model.turns)


@pytest.mark.parametrize("paginated", [True, False], ids=["paginated", "legacy"])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_every_sequence(length: int, paginated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step of each sequence the thread, and each fork of it, is what the model says; nothing is damaged."""
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: None
    )  # nothing here depends on it, and it takes most of the time
    for number, sequence in enumerate(product(OPERATIONS, repeat=length)):
        life = Life(tmp_path / str(number) / "home", paginated=paginated)
        for operation in sequence:
            life.do(operation)
        assert problems_of(life.home) == [], sequence
