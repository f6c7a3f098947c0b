"""Open control files: requests come in by write, answers go out by read, each handle on its own (DESIGN 4, FUSE 6.3).

Programs write more often than people ask.  Python repeats a write that failed when it closes the file; a shell's echo
may send a text line by line.  So a handle remembers what it was asked last: the same bytes again get the same answer
and act once, and a handle takes one summary.

After a write the position of the handle stands behind what was written, and `cat <&3` reads from there: that is the
beginning of the answer then, as well as offset 0 is.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio
from threadstore.errors import StoreError
from threadstore.projection import Projection, View

from rolloutfs import control, summarizer
from rolloutfs.control import RefusedError, Request
from rolloutfs.engine import Engine
from rolloutfs.fds import OpenFiles
from rolloutfs.journal import Journal
from rolloutfs.perform import Result, failure, refusal
from rolloutfs.readers import Derived, reader
from rolloutfs.storefiles import StoreFiles
from rolloutfs.summarizer import Summarizer

log = logging.getLogger(__name__)

FIRST = 1 << 48  # the numbers of these handles start here, those of other files stay below
_ECHO = 0.25  # seconds after a failure in which the same bytes are its repetition, and not another attempt

Json = dict[str, Any]


@dataclass(slots=True)
class _Job:
    """A compaction whose summary is being written; `answer` says `running` until it is finished, `before` is what the
    journal had for the thread when it began.
    """

    thread: str
    payload: bytes
    answer: Json
    before: bytes | None


@dataclass(slots=True)
class _Handle:
    """`payload` and `result` are the last request and what came of it, `ended` when that was (s, monotonic); `text` is
    the summary that came first; `content` what is being read, and `origin` the offset at which it begins.
    """

    thread: str
    file: str
    lock: trio.Lock = field(default_factory=trio.Lock)
    payload: bytes = b""
    result: Result | None = None
    ended: float = 0.0
    job: _Job | None = None
    text: bytes | None = None
    content: bytes | None = None
    origin: int = 0


class ControlFiles:
    """Invariant: `_jobs` has one entry for each thread whose summary is being written, and nothing else."""

    def __init__(self, engine: Engine, journal: Journal, changed: Callable[[str], None]) -> None:
        self._engine = engine
        self._journal = journal
        self._changed = changed  # is told of every thread that an operation may have changed
        self._handles: dict[int, _Handle] = {}
        self._next = FIRST
        self._jobs: dict[str, _Job] = {}
        self._nursery: trio.Nursery | None = None

    def use(self, nursery: trio.Nursery) -> None:
        """Let what takes long run in this nursery."""
        self._nursery = nursery

    # What a fresh open shows

    def fresh(self, thread: str, file: str) -> bytes:
        """The answer to the last request for the thread, or how to make one."""
        last = self._journal.last(thread)
        job = self._jobs.get(thread)
        if job is not None and job.before == last:
            return control.as_line(job.answer)
        return last or control.usage(file)

    def size(self, thread: str, file: str) -> int:
        """Bytes that a fresh open shows."""
        return len(self.fresh(thread, file))

    def error(self, thread: str) -> str | None:
        """Why the last request for the thread that came to nothing did; None when none has."""
        return self._journal.error(thread)

    # Handles

    def open(self, thread: str, file: str) -> int:
        """A handle."""
        number, self._next = self._next, self._next + 1
        self._handles[number] = _Handle(thread, file)
        return number

    def release(self, number: int) -> None:
        """Close a handle. What runs in the background goes on."""
        del self._handles[number]

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Bytes of the answer to what this handle asked; if it asked nothing, of what a fresh open shows."""
        handle = self._handles[number]
        if offset < handle.origin:
            handle.origin = 0
        at = offset - handle.origin
        if at == 0 or handle.content is None:
            handle.content = self._answer(handle)
        return handle.content[at : at + length]

    def _answer(self, handle: _Handle) -> bytes:
        if handle.job is not None:
            return control.as_line(handle.job.answer)
        if handle.result is not None:
            return control.as_line(handle.result.answer)
        return self.fresh(handle.thread, handle.file)

    async def write(self, number: int, offset: int, data: bytes) -> None:
        """Do what was written. Raises OSError with the errno of a request that came to nothing."""
        handle = self._handles[number]
        async with handle.lock:
            result = await self._request(handle, offset, data)
            if result is not None:
                handle.origin, handle.content = offset + len(data), None
        if result is not None and result.code:
            handle.origin = offset  # a write that failed doesn't move the position
            raise OSError(result.code, str(result.answer["message"]))

    # Requests

    async def _request(self, handle: _Handle, offset: int, data: bytes) -> Result | None:
        if handle.result is not None and handle.payload == data and _repeats(handle.result, handle.ended):
            return handle.result
        job = None
        try:
            request = _understand(handle, offset, data)
            if request is None:
                return None
            if request.strategy == "auto":
                result, job = await self._start(handle.thread, request, data)
            else:
                result = await self._engine.operate(handle.thread, request)
        except RefusedError as error:
            result = refusal(Request(handle.file), handle.thread, error.code, error.message)
        handle.payload, handle.result, handle.ended, handle.job = data, result, time.monotonic(), job
        if job is None:
            await self._finished(handle.thread, data, result)
            handle.ended = time.monotonic()
        return result

    async def _finished(self, thread: str, payload: bytes, result: Result) -> None:
        """Let everybody know."""
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(self._journal.append, thread, payload, result.answer)
            except OSError as error:
                log.warning("%s can't be written: %s", self._journal.path, error)
        self._tell(thread, result)

    def _tell(self, thread: str, result: Result) -> None:
        other = result.answer.get("thread_id")
        for one in {thread, other if isinstance(other, str) else thread}:
            self._changed(one)

    # A summary from a program

    async def _start(self, thread: str, request: Request, payload: bytes) -> tuple[Result, _Job | None]:
        """Begin to have a summary written, if there is a program for it and a compaction would be possible now."""
        program = await trio.to_thread.run_sync(summarizer.configured)
        if thread in self._jobs:
            raise RefusedError(errno.EBUSY, "a summary of this thread is being written already.")
        trial = await self._engine.operate(thread, Request("compact", strategy="auto", summary="", dry_run=True))
        if trial.code or request.dry_run:
            return trial, None
        try:
            history = await self._engine.project(thread, View.EFFECTIVE_HISTORY)
        except (KeyError, StoreError, OSError) as error:
            return failure(request, thread, errno.EIO, f"the history of the thread can't be read: {error}"), None
        if thread in self._jobs or self._nursery is None:
            raise RefusedError(errno.EBUSY, "a summary of this thread is being written already.")
        told = "The summary is being written; read a control file of the thread, or operations.jsonl, for the result."
        answer = control.answer("compact", thread, "running", message=told, dry_run=False)
        job = _Job(thread, payload, answer, self._journal.last(thread))
        self._jobs[thread] = job
        self._nursery.start_soon(self._summarize, job, program, history)
        return Result(0, job.answer), job

    async def _summarize(self, job: _Job, program: Summarizer, history: Projection) -> None:
        request = Request("compact", strategy="auto")
        result = failure(request, job.thread, errno.EIO, "the mount was ended while the summary was being written.")
        try:
            result = await compact_with(self._engine, job.thread, program, history)
        finally:
            job.answer = result.answer
            del self._jobs[job.thread]
            await self._finished(job.thread, job.payload, result)


async def compact_with(engine: Engine, thread: str, program: Summarizer, history: Projection) -> Result:
    """Let a program write a summary of a history, and compact the thread with it if it is as it was."""
    request = Request("compact", strategy="auto")
    try:
        pages = reader(Derived.of(history), OpenFiles(StoreFiles(engine.store.root)))
    except OSError as error:
        return failure(request, thread, error.errno or errno.EIO, f"the history can't be read: {error.strerror}.")
    try:
        summary = await summarizer.run(program, pages.read, pages.size)
    except RefusedError as error:
        return failure(request, thread, error.code, error.message)
    finally:
        pages.close()
    since = dataclasses.replace(history, extents=None)
    return await engine.operate(thread, dataclasses.replace(request, summary=summary), since)


def _understand(handle: _Handle, offset: int, data: bytes) -> Request | None:
    """The request in a write, None for nothing. Raises RefusedError."""
    if handle.file != "compact":
        return control.parse(handle.file, data, offset)
    try:
        request = control.parse("compact", data, offset)
    except RefusedError:
        if handle.text is None:
            handle.text = data
        raise
    if request is None or request.strategy != "summary":
        return request
    if handle.text is not None and handle.text != data:
        raise RefusedError(
            errno.EINVAL,
            "a handle takes one summary, and one write is one summary: the text came in several pieces, or after a "
            "request that was refused. What came first was not changed by this. Write it at once: cat FILE > compact.",
        )
    handle.text = data
    return request


def _repeats(result: Result, ended: float) -> bool:
    """True when the same bytes again mean the same request again, and not another one."""
    return result.code == 0 or not result.certain or time.monotonic() - ended < _ECHO
