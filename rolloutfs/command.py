"""`rolloutfs fork`, `revert` and `compact`: what a write to a control file does, without a mount."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable

import trio
from threadstore.errors import StoreError
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import checks, control, journal, logs, spoolfolder, summarizer
from rolloutfs.control import RefusedError, Request
from rolloutfs.engine import Engine
from rolloutfs.errors import Exit, MountError
from rolloutfs.handles import compact_with
from rolloutfs.journal import Journal
from rolloutfs.perform import Result, failure, perform, refusal

log = logging.getLogger(__name__)


def operate(store: str, file: str, wanted: str, payload: bytes, say: Callable[[str], None]) -> None:
    """Do what `payload` asks of a thread, and say the answer. Raises MountError when it came to nothing."""
    logs.to_terminal()
    root = checks.store_root(store)
    spool = spoolfolder.make(os.path.join(root, "sessions"), os.path.join(root, "archived_sessions"))
    try:
        threads = ThreadStore(root, Spool(spool.path))
        thread, result = _result(threads, file, wanted, payload)
    except StoreError as error:
        raise MountError(error.message, Exit.STORE) from error
    finally:
        spool.remove()
    _record(root, thread, payload, result)
    say(control.as_line(result.answer).decode().rstrip("\n"))
    if result.code:
        raise MountError(str(result.answer["message"]), Exit.REFUSED if result.is_refused else Exit.FAILED)


def _result(threads: ThreadStore, file: str, wanted: str, payload: bytes) -> tuple[str, Result]:
    thread = wanted
    try:
        thread = find(threads, wanted)
        request = control.parse(file, payload)
        if request is None:
            raise RefusedError(errno.EINVAL, "there is nothing in the request.")
        if request.strategy == "auto":
            return thread, trio.run(_with_summary, threads, thread, request)
        return thread, perform(threads, thread, request)
    except RefusedError as error:
        return thread, refusal(Request(file), thread, error.code, error.message)


def find(threads: ThreadStore, wanted: str) -> str:
    """The id of a thread from its beginning. Raises RefusedError."""
    found = [thread for thread in threads.thread_ids() if thread.startswith(wanted.lower())] if wanted else []
    if wanted.lower() in found:
        return wanted.lower()
    if len(found) > 1:
        raise RefusedError(errno.EINVAL, f"{wanted} is the beginning of {len(found)} thread ids: give more of it.")
    if not found:
        raise RefusedError(errno.ENOENT, f"there is no thread {wanted!r} in {threads.root}.")
    return found[0]


async def _with_summary(threads: ThreadStore, thread: str, request: Request) -> Result:
    program = summarizer.configured()
    trial = perform(threads, thread, Request("compact", strategy="auto", summary="", dry_run=True))
    if trial.code or request.dry_run:
        return trial
    try:
        history = threads.project(thread, View.EFFECTIVE_HISTORY)
    except (StoreError, OSError) as error:
        return failure(request, thread, errno.EIO, f"the history of the thread can't be read: {error}")
    return await compact_with(Engine(threads, None), thread, program, history)


def _record(root: str, thread: str, payload: bytes, result: Result) -> None:
    path = journal.place(root)
    try:
        if path is None:
            raise OSError(errno.EPERM, "the state folder lies inside the store")
        Journal(path).append(thread, payload, result.answer)
    except OSError as error:
        log.warning("The operation can't be recorded in operations.jsonl: %s", error)
