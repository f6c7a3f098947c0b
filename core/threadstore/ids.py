"""New ids and times as Codex writes them (FORMAT 2.1, 3)."""

from __future__ import annotations

import os
import time
import uuid
from datetime import UTC, datetime, tzinfo


def new_id() -> str:
    """A UUIDv7: its beginning is the time in ms, so ids made later sort later."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 7 << 76  # version
    value = value & ~(0x3 << 62) | 2 << 62  # variant
    return str(uuid.UUID(int=value))


def now_text() -> str:
    """The time in UTC with three digits and `Z`."""
    return _text(datetime.now(UTC))


def utc(seconds: float | None) -> str | None:
    """A Unix time in the same form; None when there is none, or none that a calendar has."""
    told = moment(seconds)
    return None if told is None else _text(told)


def moment(seconds: float | None, zone: tzinfo = UTC) -> datetime | None:
    """A Unix time as a zone has it; None for 0 and for what no calendar has."""
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(seconds, zone)
    except (ValueError, OverflowError, OSError):
        return None


def _text(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def file_stamp() -> str:
    """The local time, as names of rollouts have it."""
    return time.strftime("%Y-%m-%dT%H-%M-%S")
