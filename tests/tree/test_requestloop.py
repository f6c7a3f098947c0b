"""How pyfuse3 waits for requests: left alone where we don't know it, and other tasks get their turn where we do."""

from __future__ import annotations

import os

import pyfuse3
import pytest
import trio
import trio.lowlevel
import trio.testing

from rolloutfs import requestloop
from rolloutfs.requestloop import BUDGET, Waiting


@pytest.fixture(autouse=True)
def _own_loop() -> object:
    """pyfuse3 gets its own loop back."""
    yield
    requestloop.disable()


def seen() -> object:
    """What pyfuse3 takes for trio."""
    return vars(pyfuse3)["trio"]


def test_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On request, on another release, and when somebody else has replaced its loop."""
    with monkeypatch.context() as patch:
        patch.setenv(requestloop.SWITCH, "stock")
        assert not requestloop.enable(Waiting())
    with monkeypatch.context() as patch:
        patch.setattr(pyfuse3, "__version__", "4.0.0")
        assert not requestloop.enable(Waiting())
    assert seen() is trio
    with monkeypatch.context() as patch:
        patch.setattr(pyfuse3, "trio", object())
        assert not requestloop.enable(Waiting())


def test_everything_else_is_trio() -> None:
    """What pyfuse3 uses besides waiting is trio's."""
    assert requestloop.enable(Waiting())
    ours = vars(pyfuse3)["trio"]
    assert ours.open_nursery is trio.open_nursery
    assert ours.ClosedResourceError is trio.ClosedResourceError
    assert ours.lowlevel.current_task is trio.lowlevel.current_task
    assert ours.lowlevel.notify_closing is trio.lowlevel.notify_closing


async def test_other_tasks_get_their_turn() -> None:
    """Although there is always a request, a task that sleeps wakes up; and a silent descriptor is waited for."""
    requestloop.enable(Waiting())
    lowlevel = vars(pyfuse3)["trio"].lowlevel
    reading, writing = os.pipe()
    woke = False

    async def sleep() -> None:
        nonlocal woke
        await trio.lowlevel.checkpoint()
        woke = True

    try:
        os.write(writing, b"x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleep)
            for _ in range(BUDGET + 2):
                await lowlevel.wait_readable(reading)
        assert woke
        os.read(reading, 1)
        with trio.move_on_after(0.05) as scope:
            await lowlevel.wait_readable(reading)
        assert scope.cancelled_caught
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_handler_that_waits_is_not_held_up() -> None:
    """While a handler waits for something, the loop doesn't block for the next request."""
    waiting = Waiting()
    waiting.handlers = 1
    requestloop.enable(waiting)
    lowlevel = vars(pyfuse3)["trio"].lowlevel
    reading, writing = os.pipe()
    done = trio.Event()
    try:
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:

                async def handler() -> None:
                    await trio.sleep(0.01)
                    done.set()

                nursery.start_soon(handler)
                nursery.start_soon(lowlevel.wait_readable, reading)
                await done.wait()
                nursery.cancel_scope.cancel()
    finally:
        os.close(reading)
        os.close(writing)


class _Device:
    """A pipe; `settled` counts how often it was asked to be what pyfuse3 reads. It answers each `x` itself."""

    def __init__(self) -> None:
        self.device, self.writing = os.pipe()
        self.settled = 0

    def settle(self) -> bool:
        self.settled += 1
        return self.settled == 1

    def take(self) -> bool:
        return os.read(self.device, 1) != b"x"


async def test_a_device_is_waited_for_instead() -> None:
    """Whatever descriptor pyfuse3 has; it is settled before the wait, may answer by itself, and its end wakes who
    waits.
    """
    device = _Device()
    assert requestloop.enable(Waiting(), device)
    lowlevel = vars(pyfuse3)["trio"].lowlevel
    try:
        await lowlevel.wait_readable(-1)  # there is something at once
        assert device.settled == 1
        os.write(device.writing, b"xxy")
        await lowlevel.wait_readable(-1)
        assert device.settled == 2
        ended = False

        async def wait() -> None:
            nonlocal ended
            with pytest.raises(trio.ClosedResourceError):
                await lowlevel.wait_readable(-1)
            ended = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            lowlevel.notify_closing(-1)
        assert ended
    finally:
        os.close(device.device)
        os.close(device.writing)


async def test_the_lock_lets_in_one_after_the_other() -> None:
    """As `trio.Lock` does for the tasks of pyfuse3."""
    lock = requestloop._Lock()
    inside: list[str] = []

    async def enter(name: str) -> None:
        async with lock:
            inside.append(f"{name} in")
            await trio.lowlevel.checkpoint()
            inside.append(f"{name} out")

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(enter, name)
    assert [entry.split()[1] for entry in inside] == ["in", "out"] * 3
