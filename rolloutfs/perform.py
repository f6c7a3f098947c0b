"""Carries a request out with the library: the same for a mount (in a worker process) and for the command line.

Every error of the library gets its errno here (DESIGN 4).
"""

from __future__ import annotations

import errno
import os
import traceback
from dataclasses import dataclass, replace
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
    operation that was done, or tried, has left it. `trace` is that of an error of ours, for the log.
    """

    code: int
    answer: Json
    certain: bool = True
    seen: Seen | None = None
    trace: str = ""

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
        told = reason(error, _written(store, thread, request))
        return failure(request, thread, error.errno or errno.EIO, f"{told} Nothing was changed.")
    except MemoryError:
        return failure(request, thread, errno.ENOMEM, "there is not enough memory for this. Nothing was changed.")
    except Exception as error:  # noqa: BLE001  whatever it is, who asked gets an answer, and the log the trace
        return internal(request, thread, error)


def _do(store: ThreadStore, thread: str, request: Request, expected: Seen | None, *, held: bool) -> Outcome:
    dry_run = request.dry_run
    if request.op == "fork":
        return store.fork(thread, Boundary(request.kind, request.turn), dry_run=dry_run)
    if request.op == "revert":
        return store.revert(thread, request.turn, dry_run=dry_run, expected=expected, held=held)
    if request.op == "undo":
        return store.undo(thread, dry_run=dry_run, expected=expected, held=held)
    return store.compact(thread, request.summary, dry_run=dry_run, expected=expected, held=held)


def _written(store: ThreadStore, thread: str, request: Request) -> str:
    """The file that an operation writes to, for an error that names none."""
    try:
        head = store.head(thread).path if request.op == "compact" else "sessions"
    except (KeyError, StoreError, OSError):
        head = "sessions"
    return os.path.join(store.root, head)


_FULL = "Free some space there, then ask again."
_DENIED = "Ask as the user who owns the store, or look at owner and mode of that file and its folder (ls -ld)."
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: "The store is on a disk that can't be written: make it writable, or mount a copy of the store.",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EEXIST: "Somebody made it at the same time: ask again.",
    errno.ENOENT: "It was moved or removed meanwhile: look what is there, then ask again.",
    errno.EMFILE: "Too many files are open: close some programs, then ask again.",
    errno.ENFILE: "Too many files are open: close some programs, then ask again.",
    errno.EIO: "The disk may be damaged: look into the log of the kernel (dmesg).",
}


def reason(error: OSError, place: str) -> str:
    """What the system says, the file that it is about (`place` where the error names none), and what to do."""
    named = error.filename if isinstance(error.filename, str | bytes) else place
    advice = _ADVICE.get(error.errno or 0, "Ask again; if it stays, look at that file.")
    return f"{error.strerror or str(error) or 'Input/output error'}: {os.fsdecode(named)}. {advice}"


def internal(request: Request, thread: str, error: Exception) -> Result:
    """A request that met an error of ours. To be called while that is handled."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({os.path.basename(frame.filename)}:{frame.lineno})" for frame in last)
    told = (
        f"an error of rolloutfs itself, please report it: {type(error).__name__}: {error}{where}; "
        "the thread is as it was before, or as it is after. Look before you repeat it."
    )
    result = failure(request, thread, errno.EIO, told, certain=False)
    return replace(result, trace="".join(traceback.format_exception(error)))


def refusal(request: Request, thread: str, code: int, message: str) -> Result:
    """A request that was turned down."""
    return _nothing(request, thread, "refused", code, message)


def failure(request: Request, thread: str, code: int, message: str, *, certain: bool = True) -> Result:
    """A request that went wrong."""
    return _nothing(request, thread, "failed", code, message, certain=certain)


def _nothing(request: Request, thread: str, status: str, code: int, message: str, *, certain: bool = True) -> Result:
    told = control.answer(request.op, thread, status, error=code, message=message, dry_run=request.dry_run)
    return Result(code, told, certain)


def with_word(result: Result, word: str) -> Result:
    """A result whose message says something more: `word` is a sentence."""
    message = str(result.answer.get("message") or "")
    stop = "" if not message or message.endswith((".", "!", "?")) else "."
    told = f"{message}{stop} {word}".strip()
    return replace(result, answer=result.answer | {"message": told})
