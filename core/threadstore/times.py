"""Times of records."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: bytes) -> int | None:
    """Unix time in ns of an RFC 3339 time, UTC where it names no zone; None when it isn't one."""
    try:
        moment = datetime.fromisoformat(text.decode("ascii"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = int((moment.replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    nanoseconds = seconds * 1_000_000_000 + moment.microsecond * 1000
    return nanoseconds if -(1 << 63) <= nanoseconds < 1 << 63 else None  # what a file's time can hold: 1678 to 2262
