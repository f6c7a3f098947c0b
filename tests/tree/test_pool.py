"""Jobs for workers, with a context that only counts: the real one is tested on a mount (tests/mount/test_life.py)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
import trio.testing
import trio_parallel

from rolloutfs import worker
from rolloutfs.pool import Pool

PLACE = worker.Place("/store", "/spool")


class FakeContext:
    """Answers each job when it is told to, and counts them."""

    def __init__(self) -> None:
        self.jobs = 0
        self.release = trio.Event()
        self.error: Exception | None = None

    async def run_sync(self, function: Callable[..., object], *args: object, **_: object) -> object:
        """Stands for `WorkerContext.run_sync`."""
        self.jobs += 1
        await self.release.wait()
        if self.error is not None:
            raise self.error
        return function(*args)


def answer(place: worker.Place, number: int) -> worker.Answer[int]:
    """A job."""
    assert place == PLACE
    return worker.Answer(number * 2) if number else worker.Answer(None, errno.EACCES, "forbidden")


def pool_of(context: FakeContext) -> Pool:
    """A pool over a fake context."""
    return Pool(PLACE, cast("trio_parallel.WorkerContext", context))


async def test_the_same_job_is_done_once_for_all_who_wait(autojump_clock: Any) -> None:
    """Ten requests for one content cost one computation, another content another one."""
    context = FakeContext()
    pool = pool_of(context)
    results: list[int] = []

    async def ask(number: int) -> None:
        results.append(await pool.run(answer, number))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask, 1)
        nursery.start_soon(ask, 2)
        await trio.testing.wait_all_tasks_blocked()
        context.release.set()
    assert sorted(results) == [2] * 10 + [4]
    assert context.jobs == 2
    assert await pool.run(answer, 1) == 2
    assert context.jobs == 3


@pytest.mark.parametrize("lasts", [True, False])
async def test_a_job_that_began_before_is_only_for_who_can_use_it(autojump_clock: Any, lasts: bool) -> None:
    """A log that has grown while one was projected: who asked after that gets what is made later, all of them the same
    and once. Nothing is made twice of a log that is as it was.
    """
    context = FakeContext()
    pool = pool_of(context)
    results: list[tuple[int, int]] = []

    async def ask(name: int) -> None:
        value = await pool.run(answer, 1, holds=lambda _value: lasts)
        results.append((name, value))

    async with trio.open_nursery() as nursery:
        for name in range(4):
            nursery.start_soon(ask, name)
            await trio.testing.wait_all_tasks_blocked()
        first, context.release = context.release, trio.Event()
        first.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(name for name, _ in results) == ([0, 1, 2, 3] if lasts else [0])
        context.release.set()
    assert sorted(results) == [(name, 2) for name in range(4)]
    assert context.jobs == (1 if lasts else 2)


async def test_errors_keep_their_errno() -> None:
    """What the library or the system said reaches the request."""
    context = FakeContext()
    context.release.set()
    with pytest.raises(OSError, match="forbidden") as caught:
        await pool_of(context).run(answer, 0)
    assert caught.value.errno == errno.EACCES


async def test_a_worker_that_dies_is_an_input_output_error() -> None:
    """EIO for what was in flight; the next job is tried again."""
    context = FakeContext()
    context.error = trio_parallel.BrokenWorkerError("died")
    context.release.set()
    pool = pool_of(context)
    with pytest.raises(OSError, match="died") as caught:
        await pool.run(answer, 1)
    assert caught.value.errno == errno.EIO
    context.error = None
    assert await pool.run(answer, 1) == 2


async def test_closing_answers_what_waits() -> None:
    """At the unmount no request is left without a reply."""
    context = FakeContext()
    pool = pool_of(context)
    codes: list[int | None] = []

    async def ask() -> None:
        with pytest.raises(OSError, match="cut off") as caught:
            await pool.run(answer, 1)
        codes.append(caught.value.errno)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        pool.close()
    assert codes == [errno.EIO, errno.EIO]


async def test_what_nobody_waits_for_makes_way(autojump_clock: Any) -> None:
    """It begins when no job is at work, also of several in a row, but doesn't wait for ever."""
    context = FakeContext()
    pool = pool_of(context)
    order: list[int] = []

    async def ask(*numbers: int) -> None:
        for number in numbers:
            order.append(await pool.run(answer, number))

    async def behind(number: int) -> None:
        await pool.calm()
        order.append(await pool.run(answer, number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 1, 2, 3)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(behind, 4)
        await trio.testing.wait_all_tasks_blocked()
        context.release.set()
    assert order == [2, 4, 6, 8]

    context.release = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 1)
        nursery.start_soon(behind, 2)
        await trio.sleep(60)
        assert context.jobs == 4 + 2
        context.release.set()


@pytest.mark.parametrize("waits", [False, True])
async def test_a_worker_ahead_of_need_is_started_when_nobody_asks(autojump_clock: Any, waits: bool) -> None:
    """Not while requests keep coming, unless somebody waits for it."""
    context = FakeContext()
    pool = pool_of(context)
    end = trio.current_time() + 10

    def requests() -> int:
        return int(min(trio.current_time(), end) * 1000)

    async with trio.open_nursery() as nursery:
        await nursery.start(pool.warm, requests)
        await trio.sleep(5)
        assert context.jobs == 0
        if waits:
            nursery.start_soon(pool.run, answer, 1)
            await trio.testing.wait_all_tasks_blocked()
            assert context.jobs == 1
        await trio.sleep(10)
        assert context.jobs == 1
        context.release.set()
