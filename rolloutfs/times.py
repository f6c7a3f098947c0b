"""Times and amounts as people read them: local time, few digits."""

from __future__ import annotations

from threadstore.ids import moment
from threadstore.ids import utc as utc


def local(seconds: float | None) -> str:
    """A Unix time as local time to the minute; empty when there is none."""
    told = moment(seconds)
    return "" if told is None else told.astimezone().strftime("%Y-%m-%d %H:%M")


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
