"""How long an answer may be relied on: the one place for that policy.

The kernel keeps attributes and names for the times below. While the store is watched it is told of every change, and
the times are only a net below that; else a change is seen after that long at the latest. An OPEN sees it at once either
way. Without a watch our own view of which rollouts exist is renewed as often as it can be without costing more than a
few percent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

CHANGING: Final = 1.0  # seconds; what may change without our being told
LIVE: Final = 5.0  # seconds; what is watched and was changed within the last `_QUIET_AFTER`
QUIET: Final = 3600.0  # seconds; what is watched and older
FIXED: Final = 3600.0  # seconds; the names that are always there
UNKNOWN: Final = 0.0  # the attributes are a placeholder: ask again before using them
_QUIET_AFTER = 3600 * 1_000_000_000  # ns
_SHARE = 20  # what is done again and again may take 1/20 of the time


class Patience:
    """Says how long the kernel may keep what it is told of a file or folder."""

    __slots__ = ("_clock", "watched")

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self.watched = False  # while this is true, `Operations` invalidates what changes

    def seconds(self, mtime_ns: int) -> float:
        """For what was last changed at this time (Unix, ns)."""
        if not self.watched:
            return CHANGING
        return QUIET if self._clock() - mtime_ns > _QUIET_AFTER else LIVE


class Share:
    """When something that takes time is due again: used as a context manager around doing it.

    Invariant: what is done only when it is due takes at most `1 / _SHARE` of the time that passes.
    """

    __slots__ = ("_clock", "_due", "_start")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = self._start = 0.0

    def is_due(self) -> bool:
        """True when it may be done again."""
        return self._clock() >= self._due

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *_: object) -> None:
        end = self._clock()
        self._due = end + (end - self._start) * _SHARE


class Rescans:
    """Calls `rescan` when it is due."""

    def __init__(self, rescan: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._rescan = rescan
        self._share = Share(clock)

    def perhaps(self) -> None:
        """Rescan unless it was done just now."""
        if self._share.is_due():
            with self._share:
                self._rescan()
