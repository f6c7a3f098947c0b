"""What an index may lack that searches bring up to date: the rest of a pass over the store, and what changed since.

A pass over a large store takes longer than anybody waits for an answer, so it goes on with the next search. While every
change is told of, a thread that was passed lacks nothing but what was told since; without a watch only a pass that one
search made as a whole says that nothing is lacking.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

_MANY: Final = 1000  # threads; when more have changed, a pass over all is better


class Todo(NamedTuple):
    """What is to be entered before a question is asked: the threads after the one named `after` ("" is all of them,
    None is none), and those that have `changed`. It is said of the index at the place `number` of those that are tried.
    """

    after: str | None = ""
    changed: tuple[str, ...] = ()
    number: int = 0
    is_watched: bool = False


class Reached(NamedTuple):
    """How far that went: `after` and `number` as in `Todo`; whether the changed ones were entered; whether the index
    lacks nothing.
    """

    after: str | None
    number: int
    entered: bool
    is_current: bool


class Backlog:
    """Told of changes by `note`; what `todo` gave has to come back to `done`, one after the other.

    Invariant: while watched, the index at `_number` lacks nothing of the threads up to `_after` (None: of all) but what
    is in `_changed`, or in what was given out.
    """

    def __init__(self) -> None:
        self._after: str | None = ""
        self._changed: set[str] = set()
        self._number = 0
        self._is_watched = False

    def note(self, threads: set[str]) -> None:
        """Threads that have changed. More than `_MANY` needn't be known, since then there will be a pass."""
        if len(self._changed) <= _MANY:
            self._changed.update(islice(threads, 2 * _MANY))

    def todo(self, *, is_watched: bool) -> Todo:
        """What is to be done before a question is asked now."""
        if is_watched != self._is_watched or len(self._changed) > _MANY or (not is_watched and self._after is None):
            self._after, self._is_watched = "", is_watched
            self._changed.clear()
        changed, self._changed = tuple(sorted(self._changed)), set()
        return Todo(self._after, changed if is_watched else (), self._number, is_watched)

    def done(self, todo: Todo, reached: Reached | None) -> None:
        """How far it went; None when that isn't known."""
        if reached is None:
            self._after = ""
            return
        self._after, self._number = reached.after, reached.number
        if not reached.entered:
            self._changed |= set(todo.changed)
