"""Times and amounts as people read them: local time, few digits."""

from __future__ import annotations

from datetime import UTC, datetime


def local(seconds: float | None) -> str:
    """A Unix time as local time to the minute; empty when there is none."""
    moment = _moment(seconds)
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M")


def utc(seconds: float | None) -> str | None:
    """A Unix time as RFC 3339 in UTC, to the ms."""
    moment = _moment(seconds)
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(seconds: float | None) -> datetime | None:
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def duration(milliseconds: int | None) -> str:
    """As `44ms`, `1.2s`, `3m05s` or `2h10m`."""
    if milliseconds is None or milliseconds < 0:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def amount(number: int | None) -> str:
    """A count as `950`, `12k` or `3.4M`."""
    if number is None:
        return ""
    if abs(number) < 10_000:
        return str(number)
    return f"{number / 1000:.0f}k" if abs(number) < 1_000_000 else f"{number / 1_000_000:.1f}M"
