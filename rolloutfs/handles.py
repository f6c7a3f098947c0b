"""Open control files: requests come in by write, answers go out by read, each handle on its own (DESIGN 4, FUSE 6.3).

Programs write more often than people ask.  Python repeats a write that failed when it closes the file.  So a handle
remembers what it was asked last: the same bytes again get the same answer and act once.  A summary is what is written
over a handle until its answer is read, or the handle is closed (see `texts`).

People act on what they have seen.  So a handle knows the state that the thread was in when it was opened, and after
each answer the state that the answer is about: a request to change a thread that has changed since is refused.

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
from threadstore.seen import Seen

from rolloutfs import control, summarizer, texts
from rolloutfs.control import RefusedError, Request
from rolloutfs.engine import Engine
from rolloutfs.fds import OpenFiles
from rolloutfs.journal import Journal
from rolloutfs.perform import Result, failure, refusal
from rolloutfs.readers import Derived, reader
from rolloutfs.storefiles import StoreFiles
from rolloutfs.summarizer import Summarizer
from rolloutfs.texts import Text

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
    """`payload` and `result` are the last request and what came of it, `ended` when that was (s, monotonic); `seen` is
    the thread as who uses the handle knows it, None for any; `text` a summary that has not ended; `refused` the first
    piece of one that was refused, of which the rest may follow; `content` what is being read, and `origin` the offset
    at which it begins.
    """

    thread: str
    file: str
    lock: trio.Lock = field(default_factory=trio.Lock)
    payload: bytes = b""
    result: Result | None = None
    ended: float = 0.0
    job: _Job | None = None
    seen: Seen | None = None
    text: Text | None = None
    refused: bytes | None = None
    content: bytes | None = None
    origin: int = 0


class ControlFiles:
    """Invariants: `_jobs` has one entry for each thread whose summary is being written, and nothing else; `ending` has
    one for each closed handle whose text is being used.
    """

    def __init__(self, engine: Engine, journal: Journal, changed: Callable[[str], None]) -> None:
        self._engine = engine
        self._journal = journal
        self._changed = changed  # is told of every thread that an operation may have changed
        self._handles: dict[int, _Handle] = {}
        self._next = FIRST
        self._jobs: dict[str, _Job] = {}
        self.ending: set[trio.Event] = set()
        self._nursery: trio.Nursery | None = None

    def use(self, nursery: trio.Nursery) -> None:
        """Let what takes long run in this nursery."""
        self._nursery = nursery

    async def settled(self) -> None:
        """Wait until what closed handles have asked for is done: who closed one may rely on it."""
        for done in tuple(self.ending):
            await done.wait()

    async def finish(self) -> None:
        """At the end of a mount: use what was not closed, or whose end the kernel never told us of."""
        for number in tuple(self._handles):
            await self.release(number)
        await self.settled()

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

    def open(self, thread: str, file: str, *, writable: bool = True) -> int:
        """A handle."""
        number, self._next = self._next, self._next + 1
        self._handles[number] = _Handle(thread, file, seen=self._engine.look(thread) if writable else None)
        return number

    async def release(self, number: int) -> None:
        """Close a handle. What runs in the background goes on, and a text that has come in is used."""
        handle = self._handles.pop(number)
        if handle.text is None:
            return
        done = trio.Event()
        self.ending.add(done)
        if self._nursery is None:
            await self._close(handle, done)
        else:
            self._nursery.start_soon(self._close, handle, done)

    async def _close(self, handle: _Handle, done: trio.Event) -> None:
        try:
            async with handle.lock:
                await self._end(handle)
        except Exception:
            log.exception("A summary for thread %s was lost", handle.thread)
        finally:
            self.ending.discard(done)
            done.set()

    async def read(self, number: int, offset: int, length: int) -> bytes:
        """Bytes of the answer to what this handle asked; if it asked nothing, of what a fresh open shows."""
        handle = self._handles[number]
        async with handle.lock:
            await self._end(handle)
            handle.refused = None
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
        if handle.text is not None:
            return await self._continue(handle, handle.text, data)
        again = handle.result is not None and handle.payload == data
        if handle.result is not None and again and _repeats(handle.result, handle.ended):
            return handle.result
        if handle.refused not in (None, data):
            return refusal(Request(handle.file), handle.thread, errno.EINVAL, _REST)
        handle.refused = None
        try:
            request = control.parse(handle.file, data, offset, is_whole=handle.file != "compact")
            if request is None:
                return None
        except RefusedError as error:
            handle.refused = data if handle.file == "compact" else None
            return await self._answered(handle, data, _refused(handle, error))
        if request.may_go_on:
            return await self._begin(handle, data)
        return await self._carry_out(handle, request, data)

    async def _carry_out(self, handle: _Handle, request: Request, data: bytes, text: Text | None = None) -> Result:
        """Do what was asked, if the thread is as it was seen. Who only wants to be told is told of any state."""
        job = None
        expected = None if request.dry_run else handle.seen
        try:
            if request.strategy == "auto":
                result, job = await self._start(handle.thread, request, data, expected)
            else:
                held = text is not None and text.is_held
                result = await self._engine.operate(handle.thread, request, expected, held=held)
        except RefusedError as error:
            result = _refused(handle, error)
        if text is not None:
            await text.let_go()  # before anybody hears of it
        return await self._answered(handle, data, result, job)

    async def _answered(self, handle: _Handle, data: bytes, result: Result, job: _Job | None = None) -> Result:
        """Remember what came of a request, and let everybody know."""
        handle.payload, handle.result, handle.ended, handle.job = data, result, time.monotonic(), job
        if handle.seen is not None:
            handle.seen = result.seen or self._engine.look(handle.thread)
        if job is None:
            await self._finished(handle.thread, data, result)
            handle.ended = time.monotonic()
        return result

    # A text

    async def _begin(self, handle: _Handle, data: bytes) -> Result:
        """The first piece of a text."""
        text = Text(data)
        result = await self._prepare(handle, text, data)
        if result.code:
            return result
        handle.text, handle.payload, handle.result, handle.job = text, b"", None, None
        if self._nursery is not None:
            self._nursery.start_soon(self._watch, handle, text)
        self._changed(handle.thread)  # who asks from now on is told when it is done
        return result

    async def _continue(self, handle: _Handle, text: Text, data: bytes) -> Result:
        """Another piece."""
        result = await self._prepare(handle, text, data)
        if result.code:
            handle.text = None
        return result

    async def _prepare(self, handle: _Handle, text: Text, data: bytes) -> Result:
        """Take a piece; then the text is sure to become the memory of the thread, as far as that is up to us."""
        result = Result(0, control.answer("compact", handle.thread, "running", dry_run=False))
        try:
            text.add(data)
            if not text.is_held:
                await text.hold(self._engine, handle.thread)
                trial = Request("compact", strategy="summary", summary="", dry_run=True)
                result = await self._engine.operate(handle.thread, trial, handle.seen, held=True)
                result = dataclasses.replace(result, answer=result.answer | {"dry_run": False})
        except RefusedError as error:
            result = _refused(handle, error)
        except BaseException:
            await text.let_go()
            raise
        if result.code:
            await text.let_go()
            handle.refused = text.first
            return await self._answered(handle, data, result)
        return result

    async def _watch(self, handle: _Handle, text: Text) -> None:
        """Let others use the thread while nothing comes: who types a text may take their time."""
        while handle.text is text:
            await trio.sleep(texts.IDLE / 10)
            async with handle.lock:
                if handle.text is text and trio.current_time() - text.touched > texts.IDLE:
                    await text.let_go()

    async def _end(self, handle: _Handle) -> None:
        """Use the text that has come in, if there is one."""
        text, handle.text = handle.text, None
        if text is None:
            return
        ended = failure(Request("compact"), handle.thread, errno.EIO, "the mount was ended before the text was used.")
        result: Result | None = ended
        try:
            request = control.parse("compact", text.data)
            if request is not None and request.strategy == "auto":
                await text.let_go()
            if request is not None:
                done = await self._carry_out(handle, request, text.data, text)
                handle.payload = handle.payload if done.code else b""  # the same again is another text
            result = None
        except RefusedError as error:
            result = _refused(handle, error)
        finally:
            await text.let_go()
            if result is not None:
                await self._answered(handle, text.data, result)

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

    async def _start(
        self, thread: str, request: Request, payload: bytes, expected: Seen | None
    ) -> tuple[Result, _Job | None]:
        """Begin to have a summary written, if there is a program for it and a compaction would be possible now."""
        program = await trio.to_thread.run_sync(summarizer.configured)
        if thread in self._jobs:
            raise RefusedError(errno.EBUSY, "a summary of this thread is being written already.")
        trial = Request("compact", strategy="auto", summary="", dry_run=True)
        result = await self._engine.operate(thread, trial, expected)
        if result.code or request.dry_run:
            return dataclasses.replace(result, answer=result.answer | {"dry_run": request.dry_run}), None
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
        return Result(0, job.answer, seen=_seen(history)), job

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
    return await engine.operate(thread, dataclasses.replace(request, summary=summary), _seen(history))


def _seen(history: Projection) -> Seen:
    """The state of a thread that a history was made from."""
    return Seen.of(history.basis[0])


_REST = (
    "this comes after a text that was refused, so it may be the rest of it: nothing was done. "
    "Read the answer of the handle, or open the file again, before the next request."
)


def _refused(handle: _Handle, error: RefusedError) -> Result:
    return refusal(Request(handle.file), handle.thread, error.code, error.message)


def _repeats(result: Result, ended: float) -> bool:
    """True when the same bytes again mean the same request again, and not another one."""
    return result.code == 0 or not result.certain or time.monotonic() - ended < _ECHO
