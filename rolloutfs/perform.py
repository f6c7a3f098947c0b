"""Carries a request out with the library: the same for a mount (in a worker process) and for the command line.

Every error of the library gets its errno here (DESIGN 4).
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Any

from threadstore.cut import Boundary, NoSuchTurnError, RequestError
from threadstore.errors import LineageError, StoreError, UnreadableError
from threadstore.locks import BusyError
from threadstore.operations import Outcome
from threadstore.seen import Seen
from threadstore.store import ThreadStore

from rolloutfs import control
from rolloutfs.control import Request

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a request: the errno that the write fails with (0: it was done), and the answer.

    `certain` is False when nobody knows whether it was done: whoever did it was ended. `seen` is the thread as an
    operation that was done, or tried, has left it.
    """

    code: int
    answer: Json
    certain: bool = True
    seen: Seen | None = None

    @property
    def is_refused(self) -> bool:
        """True for a request that was turned down, as opposed to one that failed."""
        return bool(self.answer["status"] == "refused")


def perform(
    store: ThreadStore, thread: str, request: Request, expected: Seen | None = None, *, held: bool = False
) -> Result:
    """Do what was asked. With `expected`, only if the thread is still in that state; a fork may be made in any.

    With `held` the caller has the writer's lock of the thread.
    """
    try:
        outcome = _do(store, thread, request, expected, held=held)
        return Result(0, outcome.as_json(), seen=outcome.seen)
    except KeyError:
        return refusal(request, thread, errno.ENOENT, f"there is no thread {thread} in this store.")
    except NoSuchTurnError as error:
        return refusal(request, thread, errno.ENOENT, error.message)
    except RequestError as error:
        return refusal(request, thread, errno.EINVAL, error.message)
    except BusyError as error:
        return refusal(request, thread, errno.EBUSY, error.message)
    except UnreadableError as error:
        return failure(request, thread, error.errno or errno.EIO, error.message)
    except LineageError as error:
        return failure(request, thread, errno.EIO, error.message)
    except StoreError as error:
        return failure(request, thread, errno.EIO, error.message)
    except OSError as error:
        where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, (str, bytes)) else ""
        reason = error.strerror or str(error)
        return failure(request, thread, error.errno or errno.EIO, f"{reason}{where}. Nothing was changed.")
    except MemoryError:
        return failure(request, thread, errno.ENOMEM, "there is not enough memory for this. Nothing was changed.")


def _do(store: ThreadStore, thread: str, request: Request, expected: Seen | None, *, held: bool) -> Outcome:
    dry_run = request.dry_run
    if request.op == "fork":
        return store.fork(thread, Boundary(request.kind, request.turn), dry_run=dry_run)
    if request.op == "revert":
        return store.revert(thread, request.turn, dry_run=dry_run, expected=expected, held=held)
    if request.op == "undo":
        return store.undo(thread, dry_run=dry_run, expected=expected, held=held)
    return store.compact(thread, request.summary, dry_run=dry_run, expected=expected, held=held)


def refusal(request: Request, thread: str, code: int, message: str) -> Result:
    """A request that was turned down."""
    return _nothing(request, thread, "refused", code, message)


def failure(request: Request, thread: str, code: int, message: str, *, certain: bool = True) -> Result:
    """A request that went wrong."""
    return _nothing(request, thread, "failed", code, message, certain=certain)


def _nothing(request: Request, thread: str, status: str, code: int, message: str, *, certain: bool = True) -> Result:
    told = control.answer(request.op, thread, status, error=code, message=message, dry_run=request.dry_run)
    return Result(code, told, certain)
