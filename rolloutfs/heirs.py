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

NAMED: Final = 256  # threads that a database was asked about


class Heirs:
    """Invariant: no set in `_of` is empty, and none has a thread that was forgotten since it was noted."""

    def __init__(self, named: int = NAMED) -> None:
        self._of: dict[str, set[str]] = {}  # by the name of a rollout's file
        self._most = named
        self._named: dict[str, Recent[str, None]] = {}  # the same of what is no rollout, of which there are few

    def note(self, thread: str, basis: Iterable[Basis]) -> None:
        """Something was made for a thread from these files, besides the selected rollout."""
        for one in basis:
            if parse_rollout(one.path) is None:
                self._named.setdefault(_name(one.path), Recent(self._most)).put(thread, None)
            else:
                self._of.setdefault(_name(one.path), set()).add(thread)

    def of(self, path: str) -> set[str]:
        """The threads that a file with this path, or the one that it had before it was moved, matters to."""
        name = _name(path)
        named = self._named.get(name)
        return set(self._of.get(name, ())) if named is None else {thread for thread, _ in named.items()}

    def forget(self, threads: set[str]) -> None:
        """These threads are gone."""
        for named in self._named.values():
            for thread in threads:
                named.drop(thread)
        for name in [name for name, heirs in self._of.items() if not heirs.isdisjoint(threads)]:
            self._of[name] -= threads
            if not self._of[name]:
                del self._of[name]


def _name(path: str) -> str:
    """What a file keeps when it is archived or compressed, and has in common with its twins."""
    return path.rpartition("/")[2].removesuffix(".zst")
