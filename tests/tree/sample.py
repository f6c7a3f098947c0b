"""Small stores written by the tests themselves, in the legacy form of a rollout (FORMAT 3)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

DAY = "sessions/2026/11/29"


def thread_id(number: int) -> str:
    """The id of the numbered thread."""
    return f"01a22938-0000-7000-8000-{number:012x}"


def line(kind: str, payload: dict[str, Any], second: int = 0) -> bytes:
    """One record."""
    stamp = f"2026-11-29T21:{second // 60 % 60:02}:{second % 60:02}.000Z"
    return orjson.dumps({"timestamp": stamp, "type": kind, "payload": payload}) + b"\n"


def message(text: str, role: str = "user", second: int = 0) -> bytes:
    """One message of a conversation."""
    kind = "input_text" if role == "user" else "output_text"
    return line("response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}, second)


def meta(thread: str, **more: Any) -> bytes:
    """The first record of a rollout."""
    payload = {"id": thread, "timestamp": "2026-11-29T21:00:00.000Z", "cwd": "/repo", "originator": "test", **more}
    return line("session_meta", {"cli_version": "0.171.0", "source": "cli", **payload})


@dataclass(frozen=True, slots=True)
class SampleStore:
    """A store below a folder of the test."""

    root: Path

    def path(self, thread: str, folder: str = DAY, suffix: str = ".jsonl") -> Path:
        """Where the rollout of a thread lies."""
        return self.root / folder / f"rollout-2026-11-29T21-00-00-{thread}{suffix}"

    def add(self, number: int, *texts: str, folder: str = DAY, **more: Any) -> str:
        """Write a thread with one message a text; its id."""
        thread = thread_id(number)
        path = self.path(thread, folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            meta(thread, **more) + b"".join(message(text, second=at) for at, text in enumerate(texts or ("hello",)))
        )
        return thread

    def append(self, thread: str, *texts: str) -> None:
        """Let a thread go on."""
        with self.path(thread).open("ab") as file:
            for text in texts:
                file.write(message(text, second=100))

    def replace(self, thread: str, *texts: str) -> None:
        """Put another file in the place of a thread's rollout, as a program that saves does: rename over it."""
        path = self.path(thread)
        fresh = path.with_name("fresh.tmp")
        fresh.write_bytes(meta(thread) + b"".join(message(text) for text in texts))
        os.rename(fresh, path)


def sample_store(root: Path) -> SampleStore:
    """An empty store."""
    (root / DAY).mkdir(parents=True)
    return SampleStore(root)
