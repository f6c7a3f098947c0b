"""Which threads something was made for from a file that isn't their selected rollout: they are told of its changes.

What is forgotten here is told to nobody, so it lasts as long as the thread. Only of the threads that a database or the
file of names was asked about are the latest enough: that has to be asked for again after a second in any case, since
those may say something else unheard (see `attributes`), and no answer is kept beyond a change of them (`answers`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from threadstore.names import parse_rollout
from threadstore.projection import Basis

from rolloutfs.lru import Recent

NAMED: Final = 1024  # threads that databases were asked about


class Heirs:
    """Invariant: no set in `_of` is empty, and none has a thread that was forgotten since it was noted."""

    def __init__(self, named: int = NAMED) -> None:
        self._of: dict[str, set[str]] = {}  # by the name of a rollout's file
        self._named: Recent[str, None] = Recent(named)

    def note(self, thread: str, basis: Iterable[Basis]) -> None:
        """Something was made for a thread from these files, besides the selected rollout."""
        for one in basis:
            if parse_rollout(one.path) is None:
                self._named.put(thread, None)
            else:
                self._of.setdefault(_name(one.path), set()).add(thread)

    def of(self, path: str) -> set[str]:
        """The threads that a file with this path, or the one that it had before it was moved, matters to."""
        if parse_rollout(path) is None:
            return {thread for thread, _ in self._named.items()}
        return set(self._of.get(_name(path), ()))

    def forget(self, threads: set[str]) -> None:
        """These threads are gone."""
        for thread in threads:
            self._named.drop(thread)
        for name in [name for name, heirs in self._of.items() if not heirs.isdisjoint(threads)]:
            self._of[name] -= threads
            if not self._of[name]:
                del self._of[name]


def _name(path: str) -> str:
    """What a file keeps when it is archived or compressed, and has in common with its twins."""
    return path.rpartition("/")[2].removesuffix(".zst")
