"""The zone in which views have their dates."""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rolloutfs.errors import Exit, MountError
from rolloutfs.harmless import quoted


def find(name: str) -> tzinfo:
    """The zone of a name of the IANA database. Raises MountError. UTC needs no database."""
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        told = f"{quoted(name)} is no time zone that is known here. Give a name like Europe/Berlin, or UTC."
        raise MountError(f"{told} The names come from the system's package tzdata.", Exit.USAGE) from None
