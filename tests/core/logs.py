"""Stores made by hand: log lines as Codex writes them, and what our library reads from them.

`Log` collects the records of one rollout in *legacy* or *paginated* dress: the same facts, as one mode or the other
writes them.  `Store` puts rollouts into a folder and reads derived files back as bytes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from threadstore.extents import Slice
from threadstore.projection import Projection, View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

Json = dict[str, Any]
THREAD = "01a22938-0000-7000-8000-00000000000a"
CWD = "/repo"


def thread_id(number: int) -> str:
    """A thread or rollout id."""
    return f"01a22938-0000-7000-8000-{number:012x}"


def window_id(number: int) -> str:
    """A UUIDv7 of a context window."""
    return f"01a22938-1111-7000-8000-{number:012x}"


def dumps(document: object) -> bytes:
    """JSON as Codex writes it: compact, UTF-8."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def user(text: str, **more: Any) -> Json:
    """What a person said, as an item."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]} | more


def developer(*texts: str) -> Json:
    """What the harness said, as an item."""
    return {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": text} for text in texts],
    }


def assistant(text: str, **more: Any) -> Json:
    """What the model said, as an item."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]} | more


def call(call_id: str, name: str = "shell", **more: Any) -> Json:
    """A tool call."""
    return {"type": "function_call", "name": name, "arguments": "{}", "call_id": call_id} | more


def output(call_id: str, text: str = "ok") -> Json:
    """A tool's result."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def envelope(author: str = "/root/a", recipient: str = "/root", *, trigger: bool = True) -> Json:
    """An inter-agent communication in the older form: an assistant message that holds its JSON."""
    return assistant(
        dumps(
            {
                "author": author,
                "recipient": recipient,
                "other_recipients": [],
                "content": "do it",
                "trigger_turn": trigger,
            }
        ).decode()
    )


def agent_message(text: str = "do it") -> Json:
    """An inter-agent communication as an item of its own."""
    return {
        "type": "agent_message",
        "author": "/root/a",
        "recipient": "/root",
        "content": [{"type": "input_text", "text": text}],
    }


def context(model: str = "m", approval: str = "on-request", turn: str | None = None) -> Json:
    """A turn context."""
    document = {
        "cwd": CWD,
        "approval_policy": approval,
        "sandbox_policy": {"type": "danger-full-access"},
        "model": model,
        "summary": "auto",
    }
    return document if turn is None else {"turn_id": turn} | document


@dataclass
class Log:
    """The records of one rollout, in the dress of one history mode."""

    paginated: bool = False
    thread: str = THREAD
    rollout: str = ""
    base: tuple[str, int, int] | None = None  # rollout id, first ordinal and first byte that are not inherited
    meta: Json = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)
    first_ordinal: int = 0

    def __post_init__(self) -> None:
        self.rollout = self.rollout or self.thread
        meta: Json = {
            "id": self.thread,
            "timestamp": "2026-11-29T10:00:00.000Z",
            "cwd": CWD,
            "originator": "test",
            "cli_version": "0.171.0",
            "source": "vscode",
            "model_provider": "mock",
            "history_mode": "paginated" if self.paginated else "legacy",
        }
        if self.base is not None:
            rollout, ordinal, offset = self.base
            self.first_ordinal = ordinal
            meta["history_base"] = {
                "thread_id": rollout,
                "end_ordinal_exclusive": ordinal,
                "end_byte_offset": offset,
            }
        self.add("session_meta", meta | self.meta)

    def add(self, kind: str, payload: Json, **sibling: Any) -> Log:
        """Append a record."""
        number = len(self.lines)
        line: Json = {"timestamp": f"2026-11-29T10:{number // 60 % 60:02}:{number % 60:02}.000Z"}
        if self.paginated:
            line["ordinal"] = self.first_ordinal + number
        self.lines.append(dumps(line | {"type": kind, "payload": payload} | sibling) + b"\n")
        return self

    def event(self, kind: str, **fields: Any) -> Log:
        """Append an event."""
        return self.add("event_msg", {"type": kind} | fields)

    def item(self, *items: Json) -> Log:
        """Append items."""
        for item in items:
            self.add("response_item", item)
        return self

    def start(self, turn: str) -> Log:
        """A turn begins."""
        return self.event("task_started", turn_id=turn, model_context_window=None)

    def complete(self, turn: str) -> Log:
        """A turn ends."""
        return self.event("task_complete", turn_id=turn, last_agent_message=None)

    def said(self, text: str, turn: str = "t") -> Log:
        """The event beside a person's message, which each mode writes in its own way (FORMAT 4.3)."""
        if self.paginated:
            content = [{"type": "text", "text": text, "text_elements": []}]
            item = {"type": "UserMessage", "id": "i", "content": content}
            return self.event("item_completed", thread_id=self.thread, turn_id=turn, item=item, completed_at_ms=0)
        return self.event("user_message", message=text, images=[])

    def world(self, state: Json, *, full: bool) -> Log:
        """A world state, full or a patch."""
        return self.add("world_state", {"full": full, "state": state})

    def turn(self, turn: str, text: str, *items: Json, model: str | None = None, end: bool = True) -> Log:
        """A whole turn: a person's text and what followed."""
        self.start(turn)
        if model is not None:
            self.add("turn_context", context(model, turn=turn))
        self.item(user(text)).said(text, turn)
        self.item(*(items or (assistant(f"re: {text}"),)))
        return self.complete(turn) if end else self

    def compacted(self, message: str = "", **fields: Any) -> Log:
        """A checkpoint; without `replacement_history` one of the old kind."""
        return self.add("compacted", {"message": message} | fields)

    def roll_back(self, turns: int) -> Log:
        """The marker that undoes turns."""
        return self.event("thread_rolled_back", num_turns=turns)

    @property
    def data(self) -> bytes:
        """The file."""
        return b"".join(self.lines)

    def offset(self, number: int) -> int:
        """Where line `number` begins."""
        return sum(map(len, self.lines[:number]))

    @property
    def name(self) -> str:
        """The file's name."""
        return rollout_name(self.thread, self.rollout)

    def end(self, lines: int | None = None) -> tuple[str, int, int]:
        """The position after the first `lines` lines, as a `base` of another log."""
        count = len(self.lines) if lines is None else lines
        return self.rollout, self.first_ordinal + count, self.offset(count)


def counted(log: Log, total: int, **more: int) -> Log:
    """A `token_count` event with a running total."""
    usage = {"input_tokens": total - 10, "cached_input_tokens": 0, "output_tokens": 10}
    usage |= {"reasoning_output_tokens": 0, "total_tokens": total} | more
    return log.event("token_count", info={"total_token_usage": usage, "last_token_usage": usage})


def rollout_name(thread: str, rollout: str = "", stamp: str = "2026-11-29T10-00-00") -> str:
    """The path of a rollout below the store."""
    suffix = "" if rollout in ("", thread) else f"_{rollout}"
    return f"sessions/2026/11/29/rollout-{stamp}-{thread}{suffix}.jsonl"


class Store:
    """A store in a folder of the test, and what our library reads from it."""

    def __init__(self, folder: Path, *logs: Log) -> None:
        self.root = folder
        (folder / "sessions").mkdir(parents=True, exist_ok=True)
        for log in logs:
            self.write(log.name, log.data)
        self.store = open_store(folder)

    def write(self, name: str, data: bytes) -> Path:
        """Put a file into the store."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def read(self, view: View, thread: str = THREAD) -> bytes:
        """The content of a derived file."""
        self.store.refresh()
        return content(self.store, self.store.project(thread, view))

    def page(self, view: View, thread: str = THREAD) -> Any:
        """A derived JSON file, decoded."""
        return json.loads(self.read(view, thread))

    def rows(self, view: View, thread: str = THREAD) -> list[Any]:
        """A derived JSONL file, decoded."""
        return [json.loads(line) for line in self.read(view, thread).split(b"\n")[:-1]]

    def history(self, thread: str = THREAD) -> list[Any]:
        """The effective history, decoded."""
        return self.rows(View.EFFECTIVE_HISTORY, thread)


def open_store(root: Path) -> ThreadStore:
    """Our library on a store; decoded copies go into a folder beside it."""
    return ThreadStore(str(root), Spool(f"{root}.spool"))


def content(store: ThreadStore, projection: Projection, offset: int = 0, length: int | None = None) -> bytes:
    """The bytes of a projection, joined as whoever serves it would."""
    assert projection.extents is not None, projection.error
    wanted = projection.size if length is None else length
    parts = []
    for part in projection.extents.plan(offset, wanted):
        if isinstance(part, Slice):
            source = projection.extents.sources[part.source]
            with open(os.path.join(store.root, source.path), "rb") as file:
                file.seek(part.offset)
                parts.append(file.read(part.length))
        else:
            parts.append(part)
    joined = b"".join(parts)
    assert len(joined) == max(min(wanted, projection.size - offset), 0)
    return joined
