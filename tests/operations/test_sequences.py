"""Every sequence of up to three operations on a small thread does what a plain model of them does.

The model knows turns by number and what a person said in each. A revert goes back to what was said before a turn,
an undo to the generation before, a fork leaves its source alone, a compaction keeps what was said, and a refused
request changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from threadstore.cut import Boundary, NoSuchTurnError, RequestError
from threadstore.lines import Log
from threadstore.projection import View
from threadstore.recorder import Draft, Durability, Recorder, next_ordinal
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.operations.snapshots import problems_of, read, turns_of

THREAD = "01a22938-0000-7000-8000-00000000000a"
OPERATIONS = ("fork latest", "fork before 2", "revert -1", "revert 2", "undo", "compact", "turn")
Json = dict[str, Any]


@dataclass
class Model:
    """What should hold of one thread: for each turn what was said before it, and all that is said now."""

    before: list[list[str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def copy(self) -> Model:
        """The same at another place."""
        return Model([list(said) for said in self.before], list(self.said))

    def turn(self, text: str | None) -> None:
        """A turn, in which a person said something or (a compaction) nothing."""
        self.before.append(list(self.said))
        if text is not None:
            self.said.append(text)

    def cut(self, number: int) -> Model:
        """Back to before a turn, counted from 1 or from the end."""
        at = number - 1 if number > 0 else len(self.before) + number
        return Model([list(said) for said in self.before[:at]], list(self.before[at]))


def turn(number: int, *, paginated: bool) -> list[Draft]:
    """The records of a turn as Codex writes them."""
    turn_id, text = f"turn-{number:04}", f"said {number}"
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"answer {number}"}]}
    shown: Json = {"type": "user_message", "message": text}
    if paginated:
        shown = {"type": "item_completed", "thread_id": THREAD, "turn_id": turn_id, "completed_at_ms": 0}
        shown["item"] = {"type": "UserMessage", "id": "x", "content": [{"type": "text", "text": text}]}
    return [
        Draft.of("event_msg", {"type": "task_started", "turn_id": turn_id}),
        Draft.of("response_item", item),
        Draft.of("event_msg", shown),
        Draft.of("response_item", answer),
        Draft.of("event_msg", {"type": "task_complete", "turn_id": turn_id}),
    ]


class Life:
    """A store with one thread, and the model of each of its generations."""

    def __init__(self, home: Path, *, paginated: bool) -> None:
        self.home, self.paginated, self.count = home, paginated, 0
        folder = home / "sessions/2026/01/01"
        folder.mkdir(parents=True)
        meta = {"id": THREAD, "timestamp": "t", "cwd": "/repo", "originator": "x", "cli_version": "0.171.0"}
        meta["history_mode"] = "paginated" if paginated else "legacy"
        path = folder / f"rollout-2026-01-01T00-00-00-{THREAD}.jsonl"
        self._write(path, [Draft.of("session_meta", meta)], create=True)
        self.generations = [Model()]
        for _ in range(3):
            self.do("turn")

    @property
    def store(self) -> ThreadStore:
        """The store as it is now."""
        return ThreadStore(str(self.home), Spool(f"{self.home}.spool"))

    def _write(self, path: Path, records: list[Draft], *, create: bool = False) -> None:
        ordinal = 0 if self.paginated else None
        if self.paginated and not create:
            with path.open("rb") as file:
                ordinal = next_ordinal(Log(file.fileno(), path.stat().st_size), str(path))
        recorder = Recorder(str(path), ordinal=ordinal, create=create, durability=Durability.FLUSH)
        recorder.append(records)
        recorder.close()

    def do(self, operation: str) -> None:
        """An operation, on the thread and on the model."""
        store, now = self.store, self.generations[-1]
        name, _, argument = operation.partition(" ")
        try:
            if name == "turn":
                self.count += 1
                self._write(self.home / store.head(THREAD).path, turn(self.count, paginated=self.paginated))
                now.turn(f"said {self.count}")
            elif name == "fork":
                kind, _, which = argument.partition(" ")
                outcome = store.fork(THREAD, Boundary(kind, which))
                expected = now if kind == "latest" else now.cut(int(which))
                self.check(expected, outcome.thread_id)
            elif name == "revert":
                store.revert(THREAD, argument)
                self.generations.append(now.cut(int(argument)))
            elif name == "undo":
                store.undo(THREAD)
                self.generations.append(self.generations[-2].copy())
            else:
                store.compact(THREAD, "the summary")
                now.turn(None)
        except NoSuchTurnError:
            assert argument.split()[-1].lstrip("-") > str(len(now.before))
        except RequestError:
            assert not self.paginated or (name == "undo" and len(self.generations) == 1)
        self.check(self.generations[-1], THREAD)

    def check(self, model: Model, thread_id: str) -> None:
        """The thread is what the model says."""
        store = self.store
        items = [json.loads(line) for line in read(store, thread_id, View.MODEL_INPUT).split(b"\n")[:-1]]
        texts = [item["content"][0]["text"] for item in items if item.get("role") == "user"]
        assert [text for text in texts if text.startswith("said ")] == model.said
        assert len(turns_of(store, thread_id)) == len(model.before)


@pytest.mark.parametrize("paginated", [True, False], ids=["paginated", "legacy"])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_every_sequence(length: int, paginated: bool, tmp_path: Path) -> None:
    """After each step of each sequence the thread, and each fork of it, is what the model says; nothing is damaged."""
    for number, sequence in enumerate(product(OPERATIONS, repeat=length)):
        life = Life(tmp_path / str(number), paginated=paginated)
        for operation in sequence:
            life.do(operation)
        assert problems_of(life.home) == [], sequence
