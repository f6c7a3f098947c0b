"""Checkpoints (`compacted` records) and the context windows that they count (FORMAT 7.1, 9.2).

A checkpoint replaces the history before it, by items that it has or, in old logs, by its summary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from threadstore import spans
from threadstore.history import Flag, Item, describe
from threadstore.items import ITEMS
from threadstore.records import Record

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """The identity of a context window: number, and ids of the first, previous and current one (UUIDv7 or None)."""

    number: int
    first_id: str | None
    previous_id: str | None
    current_id: str | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A `compacted` record: where it lies, and what it says."""

    segment: int
    offset: int
    end: int
    items: tuple[Item, ...] | None  # None: without replacement history
    message: str
    window: Window | None
    resume: Json | None
    usage: Json | None


def read_checkpoint(record: Record, segment: int, *, paginated: bool) -> Checkpoint:
    """What a `compacted` record says."""
    payload = record.payload
    resume = payload.get("resume_metadata")
    usage = payload.get("latest_token_usage_record")
    return Checkpoint(
        segment=segment,
        offset=record.line.start,
        end=record.line.end,
        items=_replacement(record, segment, paginated=paginated),
        message=payload["message"],
        window=read_window(payload),
        resume=resume if isinstance(resume, dict) else None,
        usage=usage if isinstance(usage, dict) else None,
    )


def _replacement(record: Record, segment: int, *, paginated: bool) -> tuple[Item, ...] | None:
    """The items of a replacement history, each with its own place in the file."""
    entries = record.payload.get("replacement_history")
    if not isinstance(entries, list):
        return None
    data = record.line.data
    where = spans.member(data, record.payload_span()[0], b"replacement_history")
    if where is None:
        return None
    items = []
    for entry, (start, end) in zip(entries, spans.elements(data, where[0]), strict=True):
        if entry.get("type") == "ghost_snapshot" and not paginated:
            continue
        offset, length = record.file_span(start, end)
        flags, call = describe(entry, length)
        if entry["type"] not in ITEMS:
            flags |= Flag.UNKNOWN
        items.append(Item(segment, offset, length, flags & ~Flag.LONG_OUTPUT, call))
    return tuple(items)


def read_window(payload: Json) -> Window | None:
    """The window of a checkpoint; None when it has no number. A numeric `window_id` is a number of the old kind."""
    number, current = payload.get("window_number"), payload.get("window_id")
    if isinstance(current, int) and not isinstance(current, bool):
        number, current = (current if number is None else number), None
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    return Window(number, _v7(payload.get("first_window_id")), _v7(payload.get("previous_window_id")), _v7(current))


def initial_window(meta: Json) -> Window | None:
    """The window that a thread begins with, from its session meta."""
    context = meta.get("context_window")
    current = _v7(context.get("window_id")) if isinstance(context, dict) else None
    return Window(0, current, None, current) if current is not None else None


def _v7(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) == 36 and value[14] == "7" else None
