"""A plain model of a thread, and turns as Codex writes them.

The model knows turns by number and what a person said in each. A revert goes back to what was said before a turn,
an undo to the generation before, a fork leaves its source alone, a compaction keeps what was said, and a refused
request changes nothing. What an operation says of dropped turns are those that counted before and don't after it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from threadstore.lines import Log
from threadstore.recorder import Draft, Durability, Recorder, next_ordinal

Json = dict[str, Any]
_NUMBERS = count()


@dataclass(frozen=True)
class Turn:
    """Which one it is, how many things were said before it, whether it has ended, and whether it is a compaction."""

    number: int
    before: int
    ended: bool = True
    compaction: bool = False


@dataclass
class Model:
    """What should hold of one thread: its turns, and all that is said in it now."""

    turns: list[Turn] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def copy(self) -> Model:
        """The same at another place."""
        return Model(list(self.turns), list(self.said))

    def turn(self, text: str | None, *, ended: bool = True) -> None:
        """A turn, in which a person said something or (a compaction) nothing."""
        self.turns.append(Turn(next(_NUMBERS), len(self.said), ended, text is None))
        if text is not None:
            self.said.append(text)

    def index(self, number: int) -> int | None:
        """The place of a turn that is counted from 1, or from the end; None when there is no such turn."""
        at = number - 1 if number > 0 else len(self.turns) + number
        return at if number and 0 <= at < len(self.turns) else None

    def cut(self, number: int, *, through: bool = False) -> Model:
        """Back to before, or through, a turn."""
        at = self.index(number)
        assert at is not None
        at += through
        return Model(self.turns[:at], self.said[: self.turns[at].before] if at < len(self.turns) else list(self.said))

    def dropped(self, after: Model) -> list[int]:
        """The places of the turns that no longer count when it has become `after`."""
        left = {turn.number for turn in after.turns}
        return [at for at, turn in enumerate(self.turns) if turn.number not in left]

    def interrupted(self) -> Model:
        """A fork of it: a turn that hasn't ended is ended there."""
        return Model([*self.turns[:-1], *(replace(turn, ended=True) for turn in self.turns[-1:])], list(self.said))


def meta(thread_id: str, *, paginated: bool) -> Json:
    """The payload of a session meta."""
    return {
        "id": thread_id,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "cwd": "/repo",
        "originator": "x",
        "cli_version": "0.171.0",
        "history_mode": "paginated" if paginated else "legacy",
    }


def turn(thread_id: str, number: int, *, paginated: bool, ended: bool = True) -> list[Draft]:
    """The records of a turn as Codex writes them."""
    turn_id, text = f"turn-{number:04}", f"said {number}"
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"answer {number}"}]}
    shown: Json = {"type": "user_message", "message": text}
    if paginated:
        shown = {"type": "item_completed", "thread_id": thread_id, "turn_id": turn_id, "completed_at_ms": 0}
        shown["item"] = {"type": "UserMessage", "id": "x", "content": [{"type": "text", "text": text}]}
    records = [
        Draft.of("event_msg", {"type": "task_started", "turn_id": turn_id}),
        Draft.of("response_item", item),
        Draft.of("event_msg", shown),
        Draft.of("response_item", answer),
        Draft.of("event_msg", {"type": "task_complete", "turn_id": turn_id}),
    ]
    return records if ended else records[:-1]


def append(path: Path, records: list[Draft], *, paginated: bool, create: bool = False) -> None:
    """Write records into a rollout."""
    ordinal = 0 if paginated else None
    if paginated and not create:
        with path.open("rb") as file:
            ordinal = next_ordinal(Log(file.fileno(), path.stat().st_size), str(path))
    recorder = Recorder(str(path), ordinal=ordinal, create=create, durability=Durability.FLUSH)
    recorder.append(records)
    recorder.close()


def said(model_input: bytes) -> list[str]:
    """What a person said, of all that the model is given."""
    items = [json.loads(line) for line in model_input.split(b"\n")[:-1]]
    texts = [item["content"][0]["text"] for item in items if item.get("role") == "user"]
    return [text for text in texts if text.startswith("said ")]
