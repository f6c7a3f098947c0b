"""Open control files: requests come in by write, answers go out by read, each handle on its own (DESIGN 4, FUSE 6.3).

One write is one request, and the same again is another one.  Only after a write that failed it isn't, because Python
repeats that when it closes the file, however late that is: so a handle remembers what it was asked last, and the same
bytes after an error get the same error once, unless its answer was read in between.  No program repeats a write that
succeeded.  A summary is what is written over a handle until its answer is read, or the handle is closed (see `texts`).
Blanks ask for nothing, which is refused: in `fork` and `revert` by their write, in `compact`, where a summary may go
on, when nothing else has come by the end. After a request they mean nothing.

People act on what they have seen.  So a handle knows the state that the thread was in when it was opened, and after
each answer the state that the answer is about: a request to change a thread that has changed since is refused.

After a write the position of the handle stands behind what was written, and `cat <&3` reads from there: that is the
beginning of the answer then, as well as offset 0 is.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import trio
from threadstore.errors import StoreError
from threadstore.projection import Projection, View
from threadstore.seen import Seen

from rolloutfs import control, summarizer, texts
from rolloutfs.compacting import compact_with, seen_of
from rolloutfs.control import RefusedError, Request
from rolloutfs.engine import Engine
from rolloutfs.journal import Journal, Mark
from rolloutfs.lastanswers import LastAnswers
from rolloutfs.perform import Result, failure, internal, refusal
from rolloutfs.summarizer import Summarizer
from rolloutfs.texts import Text

log = logging.getLogger(__name__)

FIRST = 1 << 48  # the numbers of these handles start here, those of other files stay below

Json = dict[str, Any]


@dataclass(slots=True)
class _Job:
    """A compaction whose summary is being written; `answer` says `running` until it is finished, `before` is where the
    journal had the thread's last line when it began. `is_over` says that another one may begin.
    """

    thread: str
    payload: bytes
    answer: Json
    before: Mark | None
    is_over: bool = False


@dataclass(slots=True)
class _Handle:
    """`payload` and `result` are the last request and what came of it; `seen` is the thread as who uses the handle
    knows it, None for any; `text` a summary that has not ended; `blank` white space, while nothing else was written;
    `refused` the first piece of a text that was refused, of which the rest may follow; `unread` says that the answer to
    the last request was not read, `repeated` that it failed and was written again; `content` is what is being read, and
    `origin` the offset at which it begins.
    """

    thread: str
    file: str
    lock: trio.Lock = field(default_factory=trio.Lock)
    payload: bytes = b""
    result: Result | None = None
    job: _Job | None = None
    seen: Seen | None = None
    text: Text | None = None
    refused: bytes | None = None
    blank: bytes = b""
    unread: bool = False
    repeated: bool = False
    content: bytes | None = None
    origin: int = 0

    @property
    def is_open_ended(self) -> bool:
        """True while something was written to which there is no answer until it ends."""
        return self.text is not None or bool(self.blank)


class ControlFiles:
    """Invariants: `_jobs` has one entry for each thread whose summary is being written, and nothing else; `ending` has
    one for each closed handle whose text is being used.
    """

    def __init__(self, engine: Engine, journal: Journal, changed: Callable[[str], None]) -> None:
        self._engine = engine
        self._last = LastAnswers(journal)
        self._changed = changed  # is told of every thread that an operation may have changed
        self._handles: dict[int, _Handle] = {}
        self._next = FIRST
        self._jobs: dict[str, _Job] = {}
        self._held: WeakValueDictionary[str, Text] = WeakValueDictionary()  # who locked a thread last
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
        unwritten = self._last.unwritten(thread)
        if unwritten is not None:
            return unwritten
        job = self._jobs.get(thread)
        if job is not None and job.before == self._last.mark(thread):
            return control.as_line(job.answer)
        return self._last.written(thread) or control.usage(file)

    def size(self, thread: str, file: str) -> int:
        """Bytes that a fresh open shows."""
        return len(self.fresh(thread, file))

    def error(self, thread: str) -> str | None:
        """Why the last request for the thread that came to nothing did; None when none has."""
        return self._last.error(thread)

    # Handles

    def open(self, thread: str, file: str, *, writable: bool = True) -> int:
        """A handle."""
        number, self._next = self._next, self._next + 1
        self._handles[number] = _Handle(thread, file, seen=self._engine.look(thread) if writable else None)
        return number

    async def sync(self, number: int) -> None:
        """Use the text that has come in now, and raise OSError with the errno of what came of it: who asks whether it
        is written is told, which nobody is who only closes.
        """
        handle = self._handles[number]
        async with handle.lock:
            if not handle.is_open_ended:
                return
            await self._end(handle)
            result = handle.result
        if result is not None and result.code:
            raise OSError(result.code, str(result.answer["message"]))

    async def release(self, number: int) -> None:
        """Close a handle. What runs in the background goes on, and a text that has come in is used."""
        handle = self._handles.pop(number)
        if not handle.is_open_ended:
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
        if handle.is_open_ended or handle.lock.locked():  # else there is nothing to wait for, which costs a turn
            async with handle.lock:
                await self._end(handle)
        handle.refused, handle.unread = None, False
        handle.payload = b""  # who has read the answer and writes the same again means it
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
            try:
                result = await self._request(handle, offset, data)
            except Exception as error:  # noqa: BLE001  an error of ours must not leave an older answer
                result = await self._broken(handle, data, error)
            if result is not None:
                handle.origin, handle.content = offset + len(data), None
        if result is not None and result.code:
            handle.origin = offset  # a write that failed doesn't move the position
            raise OSError(result.code, str(result.answer["message"]))

    # Requests

    async def _request(self, handle: _Handle, offset: int, data: bytes) -> Result | None:
        if handle.text is not None:
            return await self._continue(handle, handle.text, data)
        if handle.result is not None and handle.payload == data and _is_echo(handle.result, repeated=handle.repeated):
            handle.repeated = True
            return handle.result
        if handle.refused not in (None, data):
            return _refused(handle, RefusedError(errno.EINVAL, _REST), data)
        is_again, handle.refused = handle.refused is not None, None
        try:
            request = control.parse(handle.file, data, offset, is_whole=handle.file != "compact")
        except RefusedError as error:
            handle.refused = data if handle.file == "compact" else None
            return await self._answered(handle, data, _refused(handle, error, data))
        if request is None:
            is_blank = control.is_blank(data) and not control.is_usage(handle.file, data, offset)
            if is_blank and handle.file != "compact" and (is_again or not handle.payload):
                handle.refused = data  # what comes next may be the rest of a request that began with a blank line
                return await self._answered(handle, data, _refused(handle, RefusedError(*_BLANK), data))
            if is_blank and handle.result is None:
                handle.blank = data
            handle.origin, handle.content = offset + len(data), None
            return None
        if request.may_go_on and handle.unread:  # a text begins, or is it the rest of something?
            handle.refused = data
            return await self._answered(handle, data, refusal(request, handle.thread, errno.EINVAL, _AFTER))
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
                lock = None if text is None else text.lock
                if lock is None and not request.dry_run and request.op != "fork":
                    self._refuse_held(handle.thread)
                result = await self._engine.operate(handle.thread, request, expected, lock=lock)
        except RefusedError as error:
            result = refusal(request, handle.thread, error.code, error.message)
        except Exception as error:  # noqa: BLE001  see `perform`
            result = internal(request, handle.thread, error)
        if text is not None:
            await text.let_go()  # before anybody hears of it
        return await self._answered(handle, data, result, job)

    async def _broken(self, handle: _Handle, data: bytes, error: Exception) -> Result:
        """Answer a write that met an error of ours."""
        text, handle.text = handle.text, None
        if text is not None:
            await text.let_go()
        if handle.file == "compact":
            handle.refused = data if text is None else text.first
        request = _tried(handle.file, data if text is None else text.data)
        return await self._answered(handle, data, internal(request, handle.thread, error))

    async def _answered(self, handle: _Handle, data: bytes, result: Result, job: _Job | None = None) -> Result:
        """Remember what came of a request, and let everybody know."""
        handle.payload, handle.result, handle.job = data, result, job
        handle.blank = b""
        handle.unread, handle.repeated = not result.code, False
        if handle.seen is not None:
            handle.seen = result.seen or self._look(handle)
        if job is None:
            handle.result = result = await self._finished(handle.thread, data, result)
        return result

    def _look(self, handle: _Handle) -> Seen | None:
        try:
            return self._engine.look(handle.thread)
        except Exception:
            log.exception("The state of thread %s can't be told", handle.thread)
            return handle.seen

    # A text

    async def _begin(self, handle: _Handle, data: bytes) -> Result:
        """The first piece of a text."""
        text = Text(data)
        result = await self._prepare(handle, text, data)
        if result.code:
            return result
        handle.text, handle.payload, handle.result, handle.job = text, b"", None, None  # no answer yet
        handle.blank = b""
        if self._nursery is not None:
            self._nursery.start_soon(self._watch, handle, text)
        self._changed(handle.thread)  # who asks from now on is told when it is done
        return result

    async def _continue(self, handle: _Handle, text: Text, data: bytes) -> Result:
        """Another piece. The last one of a JSON object is the request, and its errors are those of that write."""
        result = await self._prepare(handle, text, data)
        if result.code:
            handle.text = None
            return result
        try:
            request = control.object_so_far(text.data, data)
        except RefusedError as error:
            handle.text, handle.refused = None, text.first
            await text.let_go()
            return await self._answered(handle, data, _refused(handle, error, text.data))
        if request is None:
            return result
        handle.text = None
        result = await self._use(handle, text, request)
        handle.refused = text.first if result.code else None
        return result

    async def _use(self, handle: _Handle, text: Text, request: Request) -> Result:
        """Do what all pieces together ask for."""
        if request.strategy == "auto":
            await text.let_go()
        return await self._carry_out(handle, request, text.data, text)

    async def _prepare(self, handle: _Handle, text: Text, data: bytes) -> Result:
        """Take a piece; then the text is sure to become the memory of the thread, as far as that is up to us."""
        result = Result(0, control.answer("compact", handle.thread, "running", dry_run=False))
        try:
            text.add(data)
            if control.is_dry_run(text.data):
                await text.let_go()  # who only wants to be told needs no lock
            elif text.lock is None:
                self._refuse_held(handle.thread)
                await text.hold(self._engine, handle.thread)
                self._held[handle.thread] = text
                trial = Request("compact", strategy="summary", summary="", dry_run=True)
                result = await self._engine.operate(handle.thread, trial, handle.seen, lock=text.lock)
                result = dataclasses.replace(result, answer=result.answer | {"dry_run": False})
        except RefusedError as error:
            result = _refused(handle, error, text.data)
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
            if handle.blank:
                await self._answered(handle, handle.blank, _refused(handle, RefusedError(*_BLANK), handle.blank))
            return
        tried = _tried("compact", text.data)
        ended = failure(tried, handle.thread, errno.EIO, "the mount was ended before the text was used.")
        result: Result | None = ended
        try:
            request = control.parse("compact", text.data)
            if request is not None:
                await self._use(handle, text, request)
            result = None
        except RefusedError as error:
            result = _refused(handle, error, text.data)
        except Exception as error:  # noqa: BLE001  see `perform`
            result = internal(tried, handle.thread, error)
        finally:
            await text.let_go()
            if result is not None:
                await self._answered(handle, text.data, result)

    async def _finished(self, thread: str, payload: bytes, result: Result) -> Result:
        """Let everybody know. What came of the request, with a word more when the journal doesn't have it."""
        if result.trace:
            log.error("%s of thread %s failed: %s", result.answer["op"], thread, result.trace)
        result = await self._last.add(thread, payload, result)
        self._tell(thread, result)
        return result

    def _tell(self, thread: str, result: Result) -> None:
        other = result.answer.get("thread_id")
        for one in {thread, other if isinstance(other, str) else thread}:
            try:
                self._changed(one)
            except Exception:
                log.exception("The kernel was not told that thread %s changed", one)

    # A summary from a program

    async def _start(
        self, thread: str, request: Request, payload: bytes, expected: Seen | None
    ) -> tuple[Result, _Job | None]:
        """Begin to have a summary written, if there is a program for it and a compaction would be possible now."""
        program = await trio.to_thread.run_sync(summarizer.configured)
        self._refuse_second(thread)
        trial = Request("compact", strategy="auto", summary="", dry_run=True)
        holder = Text(b"")
        try:
            if not request.dry_run:
                self._refuse_held(thread)
                await holder.hold(self._engine, thread)  # whoever has it now may still have it in the end
            result = await self._engine.operate(thread, trial, expected, lock=holder.lock)
        finally:
            await holder.let_go()
        if result.code or request.dry_run:
            return dataclasses.replace(result, answer=result.answer | {"dry_run": request.dry_run}), None
        try:
            history = await self._engine.project(thread, View.EFFECTIVE_HISTORY)
        except (KeyError, StoreError, OSError) as error:
            return failure(request, thread, errno.EIO, f"the history of the thread can't be read: {error}"), None
        self._refuse_second(thread)
        assert self._nursery is not None
        told = "The summary is being written; read a control file of the thread, or operations.jsonl, for the result."
        answer = control.answer("compact", thread, "running", message=told, dry_run=False)
        job = _Job(thread, payload, answer, self._last.mark(thread))
        self._last.forget_unwritten(thread)
        self._jobs[thread] = job
        self._nursery.start_soon(self._summarize, job, program, history)
        return Result(0, job.answer, seen=seen_of(history)), job

    def _refuse_held(self, thread: str) -> None:
        """Say who has the writer's lock of a thread, where it is another handle of ours."""
        text = self._held.get(thread)
        if text is not None and text.lock is not None:
            raise RefusedError(errno.EBUSY, _HELD.format(thread=thread))

    def _refuse_second(self, thread: str) -> None:
        job = self._jobs.get(thread)
        if job is not None and not job.is_over:
            raise RefusedError(errno.EBUSY, "a summary of this thread is being written already.")

    async def _summarize(self, job: _Job, program: Summarizer, history: Projection) -> None:
        request = Request("compact", strategy="auto")
        result = failure(request, job.thread, errno.EIO, "the mount was ended while the summary was being written.")
        try:
            result = await compact_with(self._engine, job.thread, program, history)
        except Exception as error:  # noqa: BLE001  see `perform`
            result = internal(request, job.thread, error)
        finally:
            job.is_over = True
            job.answer = (await self._finished(job.thread, job.payload, result)).answer
            if self._jobs.get(job.thread) is job:  # until it is listed: an older answer is never shown
                del self._jobs[job.thread]


_AFTER = (
    "this text comes after a request of the same handle whose answer wasn't read, so it may be the rest of that: "
    "nothing was done. Read the answer, or open the file again, before the next text."
)
_HELD = (
    "a summary for thread {thread} is being written over another handle of this mount. Close that one, or let it be "
    f"idle for {texts.IDLE:g} s, then try again."
)
_BLANK = (errno.EINVAL, "nothing but blanks was written: nothing was done.")
_REST = (
    "this comes after what was refused, so it may be the rest of it: nothing was done. "
    "Read the answer of the handle, or open the file again, before the next request."
)


def _tried(file: str, data: bytes) -> Request:
    """What stands in the answer for a request that isn't one, or isn't known yet."""
    return Request(file, dry_run=control.is_for_a_look(file, data))


def _refused(handle: _Handle, error: RefusedError, data: bytes) -> Result:
    return refusal(_tried(handle.file, data), handle.thread, error.code, error.message)


def _is_echo(result: Result, *, repeated: bool) -> bool:
    """True when the same bytes again are the repetition of a write that failed, and not another attempt."""
    return result.code != 0 and not (repeated and result.certain)
