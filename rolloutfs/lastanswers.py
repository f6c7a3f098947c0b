"""The last answer of each thread: in the journal, or, while that can't be written, in memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import trio

from rolloutfs import control
from rolloutfs.journal import Journal, Mark
from rolloutfs.lru import Recent
from rolloutfs.perform import Result, with_word

log = logging.getLogger(__name__)

_KEPT = 1 << 20  # bytes of answers that the journal could not take


@dataclass(frozen=True, slots=True)
class _Unwritten:
    """An answer that could not be added to the journal, whose last line of the thread was at `mark` then; `error` is
    the last one of the thread.
    """

    line: bytes
    error: str | None
    mark: Mark | None

    @property
    def weight(self) -> int:
        """Bytes of memory, about."""
        return 1024 + len(self.line) + len(self.error or "")


class LastAnswers:
    """Invariant: `_unwritten` has the newest answer of each thread that is not in the journal, as far as there is room:
    those that were asked for last.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._unwritten: Recent[str, _Unwritten] = Recent(_KEPT, lambda one: one.weight)

    async def add(self, thread: str, payload: bytes, result: Result) -> Result:
        """Record what came of a request; with a word more when the journal doesn't have it. Is never cut short."""
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(self.journal.append, thread, payload, result.answer)
                self._unwritten.drop(thread)
            except Exception as error:  # noqa: BLE001  the operation stands, and its answer is shown all the same
                log.warning("%s can't be written: %s", self.journal.path, error)
                result = with_word(result, self.journal.unwritten(error))
                self._keep(thread, result)
        return result

    def unwritten(self, thread: str) -> bytes | None:
        """The newest answer of a thread, if the journal doesn't have it, nor a newer one from elsewhere."""
        kept = self._kept(thread)
        return None if kept is None else kept.line

    def forget_unwritten(self, thread: str) -> None:
        """There will be another answer."""
        self._unwritten.drop(thread)

    def written(self, thread: str) -> bytes | None:
        """The newest answer of a thread in the journal; None when there is none."""
        return self.journal.last(thread)

    def mark(self, thread: str) -> Mark | None:
        """Where the journal has that."""
        return self.journal.mark(thread)

    def error(self, thread: str) -> str | None:
        """Why the last request for the thread that came to nothing did; None when none has."""
        kept = self._kept(thread)
        return kept.error if kept is not None else self.journal.error(thread)

    def _kept(self, thread: str) -> _Unwritten | None:
        kept = self._unwritten.get(thread)
        return kept if kept is not None and self.journal.mark(thread) in (None, kept.mark) else None

    def _keep(self, thread: str, result: Result) -> None:
        answer = result.answer
        error = f"{answer['error']}: {answer['message']}" if answer["error"] else self.error(thread)
        self._unwritten.put(thread, _Unwritten(control.as_line(answer), error, self.journal.mark(thread)))
