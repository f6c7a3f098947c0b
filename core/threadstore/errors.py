"""The errors that this library raises on purpose, and the problems that it reports instead of raising.

An error says in one sentence what is wrong and what to do next.  A problem is something damaged or odd that did not
stop us: it is counted and named, with the file, the place and what follows from it (FAULTS.md lists the codes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


class StoreError(Exception):
    """Base of all errors raised on purpose; `message` is a sentence for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class LineageError(StoreError):
    """The chain of `history_base` references is broken: nothing can be rebuilt truthfully (FORMAT 11.3).

    `code` is one of `lineage_missing`, `lineage_cycle`, `lineage_cut`, `lineage_legacy`, `lineage_foreign`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TooLargeError(StoreError):
    """A file would need more memory or disk than the documented limits (FAULTS 14)."""


class UnreadableError(StoreError):
    """A file can't be opened or isn't a regular file; `errno` is the system's reason, 0 when there is none."""

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class UnwritableError(UnreadableError):
    """Something of a store may not or can't be written: a link, another user's, a full disk. `errno` is the system's
    reason; nothing was changed.
    """


@dataclass(frozen=True, slots=True)
class Problem:
    """Something damaged or odd in a store.

    `path` is relative to the store; `offset` and `length` are in decoded bytes, None when the whole file is meant.
    `consequence` says what follows from it for what we show.
    """

    code: str
    path: str
    offset: int | None
    length: int | None
    message: str
    consequence: str
    uncertain: bool = False  # the lost record could have changed what counts: a rollback, a checkpoint, settings

    def as_json(self) -> dict[str, object]:
        """One line of `problems.jsonl`."""
        return {
            "code": self.code,
            "file": self.path,
            "offset": self.offset,
            "length": self.length,
            "message": self.message,
            "consequence": self.consequence,
        }


_ADVICE = re.compile(r"[;,] (?:then )?try again(?=\.)| Nothing was changed\.")


def why(error: StoreError | OSError) -> str:
    """Why something that goes with an operation could not be done, as a sentence that asks for nothing."""
    if isinstance(error, StoreError):
        return _ADVICE.sub("", error.message)
    return f"{error.filename or 'The disk'}: {error.strerror}."


def sentence(text: str) -> str:
    """A message that follows a full stop."""
    return text[:1].upper() + text[1:]
