"""`rolloutfs fork`, `revert` and `compact`: what a write to a control file does, without a mount."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import trio
from threadstore.errors import StoreError
from threadstore.locks import BusyError, writer_lock
from threadstore.projection import Projection, View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import checks, control, journal, logs, spoolfolder, summarizer
from rolloutfs.compacting import compact_with
from rolloutfs.control import RefusedError, Request
from rolloutfs.engine import Engine
from rolloutfs.errors import Exit, MountError
from rolloutfs.invocation import let_go_of_stdout
from rolloutfs.journal import Journal
from rolloutfs.meant import UnnamedError, find
from rolloutfs.perform import Result, failure, internal, perform, refusal, with_word
from rolloutfs.summarizer import Summarizer

log = logging.getLogger(__name__)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HOW = "give it as --store STORE, or in $CODEX_HOME"


class _StoppedError(BaseException):
    """A signal asked for the end; it is no error that anything on the way should handle."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def operate(
    store: str, file: str, wanted: str, payload: bytes, say: Callable[[str], None], *, dry_run: bool = False
) -> None:
    """Do what `payload` asks of a thread, or with `dry_run` only tell, and say the answer. Raises MountError when it
    came to nothing.
    """
    logs.to_terminal()
    root = checks.store_root(store, _HOW)
    with _stoppable() as stop_no_more:
        spool = spoolfolder.make(root, os.path.join(root, "sessions"), os.path.join(root, "archived_sessions"))
        try:
            threads = ThreadStore(root, Spool(spool.path))
            thread, result = _result(threads, file, wanted, payload, dry_run=dry_run)
        except StoreError as error:
            raise MountError(error.message, Exit.STORE) from error
        except _StoppedError as error:
            thread, result = wanted, _stopped(Request(file, dry_run=dry_run), wanted, error)
        finally:
            stop_no_more()
            spool.remove()
        result = _record(root, thread, payload, result)
        untold = _say(result, say)
    if result.code:
        raise MountError(str(result.answer["message"]), _exit_code(result))
    if untold is not None:
        raise untold


def _say(result: Result, say: Callable[[str], None]) -> MountError | None:
    """Print the answer. Gives an error that tells the most important of it when that can't be done, so that nobody asks
    again for what was done.
    """
    try:
        say(control.as_line(result.answer).decode().rstrip("\n"))
    except OSError as error:
        let_go_of_stdout()
        answer = result.answer
        what = f"{answer['op']} of thread {answer['source_thread_id']}"
        if answer["dry_run"]:
            told = f"the {what} was a dry run: nothing was done."
        elif answer["op"] == "fork":
            told = f"the {what} was done: the new thread is {answer['thread_id']}. Don't ask again for it."
        else:
            told = f"the {what} was done. Don't ask again for it."
        return MountError(f"{told} The answer could not be printed: {error.strerror}.", Exit.UNTOLD)
    return None


def _exit_code(result: Result) -> Exit:
    if result.trace:
        return Exit.INTERNAL
    if result.code == errno.EINTR:
        return Exit.INTERRUPTED
    return Exit.REFUSED if result.is_refused else Exit.FAILED


def _result(threads: ThreadStore, file: str, wanted: str, payload: bytes, *, dry_run: bool) -> tuple[str, Result]:
    thread = wanted
    request = Request(file, dry_run=dry_run or control.is_for_a_look(file, payload))
    try:
        thread = find(threads, wanted)
        parsed = control.parse(file, payload)
        if parsed is None:
            raise RefusedError(errno.EINVAL, "there is nothing in the request.")
        request = replace(parsed, dry_run=dry_run or parsed.dry_run)
        if request.strategy == "auto":
            return thread, _with_summary(threads, thread, request)
        return thread, perform(threads, thread, request)
    except UnnamedError as error:
        return thread, refusal(request, thread, error.errno, error.message)
    except RefusedError as error:
        return thread, refusal(Request(file, dry_run=request.dry_run), thread, error.code, error.message)
    except _StoppedError as error:
        return thread, _stopped(request, thread, error)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001  see `perform`
        return thread, internal(request, thread, error)


# Signals


@contextlib.contextmanager
def _stoppable() -> Iterator[Callable[[], None]]:
    """Let signals end what is being done, as _StoppedError, but for those that are ignored already; what is handed out
    makes them mean nothing, so that cleaning up is not stopped.
    """
    before = {one: signal.getsignal(one) for one in _SIGNALS}
    heard = [one for one, handler in before.items() if handler is not signal.SIG_IGN]

    def stop_no_more() -> None:
        for one in heard:
            signal.signal(one, signal.SIG_IGN)

    def stop(number: int, frame: object) -> None:
        stop_no_more()
        raise _StoppedError(number)

    for one in heard:
        signal.signal(one, stop)
    try:
        yield stop_no_more
    finally:
        for one in heard:
            signal.signal(one, before[one])


def _stopped(request: Request, thread: str, error: _StoppedError) -> Result:
    told = f"interrupted by {signal.Signals(error.number).name}"
    if request.strategy == "auto":
        return failure(
            request, thread, errno.EINTR, f"{told} while the summary was being written: nothing was changed."
        )
    told = f"{told}; the thread is as it was before, or as it is after. Look before you repeat it."
    return failure(request, thread, errno.EINTR, told, certain=False)


def _with_summary(threads: ThreadStore, thread: str, request: Request) -> Result:
    program = summarizer.configured()
    trial = Request("compact", strategy="auto", summary="", dry_run=True)
    if request.dry_run:
        return perform(threads, thread, trial)
    try:
        with writer_lock(threads.root, thread):  # whoever has it now may still have it in the end
            result = perform(threads, thread, trial, held=True)
    except BusyError as error:
        raise RefusedError(errno.EBUSY, error.message) from error
    if result.code:
        return replace(result, answer=result.answer | {"dry_run": False})
    try:
        history = threads.project(thread, View.EFFECTIVE_HISTORY)
    except (StoreError, OSError) as error:
        return failure(request, thread, errno.EIO, f"the history of the thread can't be read: {error}")
    return trio.run(_summarized, Engine(threads, None), thread, program, history)


async def _summarized(engine: Engine, thread: str, program: Summarizer, history: Projection) -> Result:
    """Wait for the program, or for a signal, which ends it."""
    found: list[Result] = []
    stopped = _StoppedError(signal.SIGTERM)

    async def summarize(scope: trio.CancelScope) -> None:
        found.append(await compact_with(engine, thread, program, history))
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(summarize, nursery.cancel_scope)
        heard = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
        if heard:
            with trio.open_signal_receiver(*heard) as signals:
                async for number in signals:
                    stopped.number = number
                    nursery.cancel_scope.cancel()
    return found[0] if found else _stopped(Request("compact", strategy="auto"), thread, stopped)


def _record(root: str, thread: str, payload: bytes, result: Result) -> Result:
    """Add it to operations.jsonl; with a word more in the answer when that can't be."""
    path = journal.place(root)
    try:
        if path is None:
            raise OSError(errno.EPERM, "the state folder lies inside the store")
        Journal(path).append(thread, payload, result.answer)
    except OSError as error:
        log.warning("The operation can't be recorded in operations.jsonl: %s", error)
        return with_word(result, Journal(path or "$XDG_STATE_HOME").unwritten(error))
    return result
