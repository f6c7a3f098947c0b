"""A cheaper way for pyfuse3 to wait for its next request.

trio needs about 25 µs for one turn of its loop (epoll, scheduling, a lock), several times what a request costs. While
requests keep coming, `enable` lets pyfuse3 wait for the next one in poll(2) itself and gives trio a turn only every
`BUDGET` requests, or after `IDLE` ms without any, or at once while a handler waits for something else.

pyfuse3 looks trio up in its module global `trio`, which its own asyncio mode replaces as well; nothing else of it is
touched. On a release that this was not tested with, pyfuse3 stays as it is.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from typing import Any, Final, Protocol

import pyfuse3
import trio

log = logging.getLogger(__name__)

TESTED: Final = ("3.5.",)  # releases of pyfuse3
BUDGET: Final = 64  # requests after which trio's other tasks get their turn
IDLE: Final = 2  # ms to wait for a request before trio does
SWITCH: Final = "ROLLOUTFS_REQUEST_LOOP"  # in the environment; "stock" leaves pyfuse3 alone

_GLOBAL = "trio"  # the name in pyfuse3 under which it finds trio; its type hints don't show it


class Device(Protocol):
    """What requests come from, where pyfuse3's own descriptor is at times something else (`passthrough`, `gate`)."""

    device: int

    def settle(self) -> bool:
        """Make it the device before it is read. True when there is something to be read at once."""

    def take(self) -> bool:
        """A request has come. True when pyfuse3 is to read one, False when it was answered without it."""


class Waiting:
    """How many handlers have begun and not ended. Invariant: more than the one that runs means that others wait. Each
    calls `begin` before anything else.
    """

    __slots__ = ("begin", "handlers")

    def __init__(self) -> None:
        self.handlers = 0
        self.begin: Callable[[], object] = _nothing


def _nothing() -> None:
    """Where a beginning means nothing."""


class _Lock:
    """What pyfuse3 needs of `trio.Lock`: entering a free one costs no turn of the loop."""

    __slots__ = ("_held", "_lot")

    def __init__(self) -> None:
        self._held = False
        self._lot = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> None:
        while self._held:
            await self._lot.park()
        self._held = True

    async def __aexit__(self, *_: object) -> None:
        self._held = False
        if self._lot:
            self._lot.unpark()


class _Lowlevel:
    """`trio.lowlevel` with another `wait_readable`."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._poll = select.poll()
        self._descriptor = -1
        self._left = BUDGET

    async def wait_readable(self, descriptor: int) -> None:
        """Return when a request can be read."""
        if not self._comes(descriptor):
            await self._wait(descriptor)

    def _comes(self, descriptor: int) -> bool:
        """True when a request can be read and it isn't the turn of trio's other tasks."""
        if self._left <= 0 or descriptor != self._descriptor:
            return False
        self._left -= 1
        return bool(self._poll.poll(0 if self._waiting.handlers else IDLE))

    async def _wait(self, descriptor: int) -> None:
        """Return when a request can be read, after a turn of trio's other tasks."""
        if descriptor != self._descriptor:
            self._poll.register(descriptor, select.POLLIN)
            self._descriptor = descriptor
        if self._left <= 0:
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._left = BUDGET
            if self._poll.poll(0):
                return
        self._left = BUDGET
        await trio.lowlevel.wait_readable(descriptor)

    def __getattr__(self, name: str) -> Any:
        return getattr(trio.lowlevel, name)


class _AtDevice(_Lowlevel):
    """Waits for the device, whatever pyfuse3 takes for it."""

    def __init__(self, waiting: Waiting, device: Device) -> None:
        super().__init__(waiting)
        self._device = device

    async def wait_readable(self, descriptor: int) -> None:
        """Return when a request can be read, by pyfuse3's descriptor, too."""
        if self._device.settle():
            return
        device = self._device
        while True:
            if not self._comes(device.device):
                await self._wait(device.device)
            if device.take():
                return

    def notify_closing(self, descriptor: int) -> None:
        """Wake who waits."""
        trio.lowlevel.notify_closing(self._device.device)


class _Trio:
    """`trio` as pyfuse3 sees it."""

    Lock = _Lock

    def __init__(self, waiting: Waiting, device: Device | None) -> None:
        self.lowlevel = _Lowlevel(waiting) if device is None else _AtDevice(waiting, device)

    def __getattr__(self, name: str) -> Any:
        return getattr(trio, name)


def obstacle() -> str | None:
    """Why pyfuse3 must keep its own loop; None when it needn't."""
    if os.environ.get(SWITCH) == "stock":
        return f"${SWITCH} is stock"
    release = getattr(pyfuse3, "__version__", "of an unknown release")
    if not release.startswith(TESTED) or getattr(pyfuse3, _GLOBAL, None) is not trio:
        return f"it was not tested with pyfuse3 {release}"
    return None


def enable(waiting: Waiting, device: Device | None = None) -> bool:
    """Make pyfuse3 wait in this way from now on, before its `main` runs. False when it is left as it is."""
    reason = obstacle()
    if reason is not None:
        log.info("pyfuse3 keeps its own request loop: %s.", reason)
        return False
    setattr(pyfuse3, _GLOBAL, _Trio(waiting, device))
    return True


def disable() -> None:
    """Give pyfuse3 its own loop back."""
    setattr(pyfuse3, _GLOBAL, trio)
