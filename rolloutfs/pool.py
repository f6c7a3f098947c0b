"""Jobs in worker processes, for requests that wait: a few at a time, the same one only once, and never without an
answer.

A worker that dies (killed, out of memory) fails the jobs that it had with EIO and is replaced for the next one. When
the mount ends, jobs that still run are cut off, which kills their workers: an unmount doesn't wait for a replay.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar, cast

import trio
import trio_parallel

from rolloutfs import worker

WORKERS = 2
_CALM = 0.3  # seconds without a request until a worker is started that nobody waits for
_PATIENCE = 5.0  # seconds that work which nobody waits for makes way for jobs
_GRACE = 5.0  # seconds that an idle worker gets to end by itself

log = logging.getLogger(__name__)

R = TypeVar("R")


class InterruptedJobError(OSError):
    """A worker was ended in the middle of a job that changes something: it was done, or it wasn't."""


class _Job:
    """A job that runs. Invariant: `done` is set exactly when `answer` is final."""

    __slots__ = ("answer", "done")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: worker.Answer[Any] = worker.Answer(None, errno.EIO, "The computation was cut off")


class Pool:
    """Runs functions of `worker` for one place; see `open_pool`."""

    def __init__(self, place: worker.Place, context: trio_parallel.WorkerContext) -> None:
        self._place = place
        self._context = context
        self._limiter = trio.CapacityLimiter(WORKERS)
        self._changing = trio.CapacityLimiter(WORKERS)  # so that what changes something doesn't wait for replays
        self._jobs: dict[Hashable, _Job] = {}
        self._scopes: set[trio.CancelScope] = set()
        self._warm: trio.Event | None = None  # set when the first worker has started
        self._wanted = trio.Event()  # set when somebody waits for it
        self._closed = False

    async def run(
        self,
        function: Callable[..., worker.Answer[R]],
        *args: Hashable,
        holds: Callable[[R], bool] = lambda _value: True,
    ) -> R:
        """The value of `function(place, *args)`. Raises what `Answer.unwrap` raises.

        A job that runs already may have begun before what its caller knows of has happened. If what comes of it no
        longer `holds`, it is done again, once for all who found it so: that one began after they had asked.
        """
        key = (function, args)
        job = self._jobs.get(key)
        if job is not None:
            await job.done.wait()
            value = cast("worker.Answer[R]", job.answer).unwrap()
            if holds(value):
                return value
            job = self._jobs.get(key)
        if job is not None:
            await job.done.wait()
        else:
            job = self._jobs[key] = _Job()
            try:
                await self._work(job, function, args)
            finally:
                del self._jobs[key]
                job.done.set()
        return cast("worker.Answer[R]", job.answer).unwrap()

    async def calm(self) -> None:
        """Wait while jobs are at work, but no longer than `_PATIENCE` seconds: for work that nobody waits for."""
        with trio.move_on_after(_PATIENCE):
            while self._jobs:
                await next(iter(self._jobs.values())).done.wait()

    async def _work(self, job: _Job, function: Callable[..., worker.Answer[Any]], args: tuple[Hashable, ...]) -> None:
        if self._closed:
            return
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await self._started()
                job.answer = await self._context.run_sync(
                    function, self._place, *args, kill_on_cancel=True, limiter=self._limiter
                )
            except (trio_parallel.BrokenWorkerError, trio.BrokenResourceError) as error:
                log.warning("A worker process died while it computed %s%r: %s", function.__name__, args, error)
                job.answer = worker.Answer(None, errno.EIO, "The process that computed this died")
            finally:
                self._scopes.discard(scope)

    async def alone(self, function: Callable[..., worker.Answer[R]], *args: object, seconds: float) -> worker.Answer[R]:
        """A job that changes something: done for each caller anew, and ended when it takes too long.

        Raises InterruptedJobError.
        """
        if self._closed:
            raise OSError(errno.EIO, "The mount is being ended: nothing was done")
        with trio.move_on_after(seconds) as scope:
            self._scopes.add(scope)
            try:
                await self._started()
                return cast(
                    "worker.Answer[R]",
                    await self._context.run_sync(
                        function, self._place, *args, kill_on_cancel=True, limiter=self._changing
                    ),
                )
            except (trio_parallel.BrokenWorkerError, trio.BrokenResourceError) as error:
                log.warning("A worker process died while it did %s%r: %s", function.__name__, args[:1], error)
                raise InterruptedJobError(errno.EIO, "the process that did this died") from error
            finally:
                self._scopes.discard(scope)
        if self._closed:
            raise InterruptedJobError(errno.EIO, "the mount was ended meanwhile")
        log.warning("%s%r was cut off after %g s", function.__name__, args[:1], seconds)
        raise InterruptedJobError(errno.ETIMEDOUT, f"this took longer than {seconds:g} s and was cut off")

    async def warm(
        self, requests: Callable[[], int], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Start a worker before it is needed, but not while the mount itself starts or is busy, by the number of
        `requests` so far: that takes as much as a walk over 250 threads. Jobs that come meanwhile wait for it rather
        than start another one.
        """
        self._warm = trio.Event()
        task_status.started()
        before = -1
        while before != requests() and not self._wanted.is_set():
            before = requests()
            with trio.move_on_after(_CALM):
                await self._wanted.wait()
        try:
            await self._context.run_sync(worker.nothing, self._place, kill_on_cancel=True)
        except Exception:  # whoever needs a worker will be told
            log.warning("No worker process could be started ahead of need.", exc_info=True)
        finally:
            self._warm.set()

    async def _started(self) -> None:
        self._wanted.set()
        if self._warm is not None:
            await self._warm.wait()

    def close(self) -> None:
        """Cut off what runs, and refuse what comes."""
        self._closed = True
        for scope in tuple(self._scopes):
            scope.cancel()


@asynccontextmanager
async def open_pool(
    place: worker.Place, mountpoint: str | None = None, niceness: int = worker.WAITED_FOR
) -> AsyncIterator[Pool]:
    """A pool whose workers end with this context; none is started before it is needed. They look after the mount."""
    try:
        async with trio_parallel.open_worker_context(
            init=partial(worker.begin, os.getpid(), mountpoint, niceness), retire=worker.is_spent, grace_period=_GRACE
        ) as context:
            pool = Pool(place, context)
            try:
                yield pool
            finally:
                pool.close()
    except trio_parallel.BrokenWorkerError as error:  # only says that a worker had to be killed at the end
        log.info("A worker process did not end by itself: %s", error)
