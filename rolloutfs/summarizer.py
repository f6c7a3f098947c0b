"""`{"strategy":"auto"}`: a program of the user's writes the summary (DESIGN 4).

`summarizer` in config.toml names it, or $ROLLOUTFS_SUMMARIZER. It gets the effective history on stdin, JSON Lines, and
writes the summary to stdout. It may take some minutes and 64 KiB; what it says on stderr is the reason when it fails.
Nothing else of ours is given to it, and nothing of what a thread contains becomes part of the command.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import trio

from rolloutfs import config
from rolloutfs.config import ConfigError
from rolloutfs.control import LARGEST, RefusedError

_SECONDS = 300.0  # that a summarizer may take unless the config says otherwise
_KEPT = 4096  # bytes of stderr that are kept, the last ones
_SAID = 500  # characters of them that are shown
_PIECE = 1 << 20  # bytes of history handed over at once


@dataclass(frozen=True, slots=True)
class Summarizer:
    """The program, and how long it may take."""

    command: tuple[str, ...]
    seconds: float = _SECONDS


def configured() -> Summarizer:
    """What the config says now. Raises RefusedError when there is no usable summarizer."""
    path = config.file()
    try:
        table = config.load()
    except ConfigError as error:
        raise RefusedError(errno.EINVAL, str(error)) from error
    value, told = _setting("summarizer", table)
    if value is None:
        raise RefusedError(
            errno.EINVAL,
            f'there is no summarizer: put a line like summarizer = ["command", "argument"] into {path}, '
            "or write the summary yourself.",
        )
    try:
        command = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise RefusedError(errno.EINVAL, f"{told} is not a command: {error}.") from error
    if not isinstance(command, list) or not command or not all(isinstance(word, str) and word for word in command):
        raise RefusedError(errno.EINVAL, f"{told} must be a command: a string, or a list of strings.")
    seconds, told = _setting("summarizer_seconds", table)
    if isinstance(seconds, str):
        with contextlib.suppress(ValueError):
            seconds = float(seconds)
    seconds = _SECONDS if seconds is None else seconds
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise RefusedError(errno.EINVAL, f"{told} must be a number above 0.")
    return Summarizer(tuple(command), float(seconds))


def _setting(name: str, table: Mapping[str, object]) -> tuple[object, str]:
    """What the environment says of it, else the config; and where that stands."""
    variable = f"ROLLOUTFS_{name.upper()}"
    text = os.environ.get(variable)
    return (text, f"${variable}") if text else (table.get(name), f"{name} in {config.file()}")


async def run(summarizer: Summarizer, read: Callable[[int, int], bytes], size: int) -> str:
    """The summary of a history of `size` bytes, which `read(offset, length)` gives. Raises RefusedError.

    The program, and what it has started, is ended when it takes too long, the caller is cancelled, or this process is
    killed.
    """
    name = summarizer.command[0]
    output, said = _Collected(LARGEST + 1), _Collected(_KEPT, keep_last=True)
    unread: list[OSError] = []
    async with _guarded() as group:
        try:
            process = await trio.lowlevel.open_process(
                list(summarizer.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                process_group=group,
            )
        except (OSError, ValueError) as error:
            raise RefusedError(errno.EINVAL, f"the summarizer {name} can't be started: {error}.") from error
        try:
            with trio.move_on_after(summarizer.seconds) as limit:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_feed, process, read, size, unread)
                    nursery.start_soon(said.collect, process.stderr)
                    await output.collect(process.stdout)
                    if output.is_full:
                        nursery.cancel_scope.cancel()
                if not output.is_full:
                    await process.wait()
        finally:
            _end(group)
            with trio.CancelScope(shield=True):
                await process.wait()
                for stream in (process.stdin, process.stdout, process.stderr):
                    if stream is not None:
                        await stream.aclose()
    if unread:
        raise RefusedError(errno.EIO, f"the history of the thread can't be read: {unread[0].strerror}.")
    reason = said.text()[-_SAID:].strip()
    if limit.cancelled_caught:
        raise RefusedError(
            errno.ETIMEDOUT, f"the summarizer {name} took longer than {summarizer.seconds:g} s. {reason}".strip()
        )
    if output.is_full:
        raise RefusedError(errno.E2BIG, f"the summarizer {name} wrote more than {LARGEST} bytes.")
    if process.returncode != 0:
        raise RefusedError(
            errno.EIO, f"the summarizer {name} failed (exit code {process.returncode}). {reason}".strip()
        )
    try:
        summary = bytes(output.data).decode().strip()
    except UnicodeDecodeError:
        raise RefusedError(errno.EIO, f"what the summarizer {name} wrote is not UTF-8 text.") from None
    if not summary:
        raise RefusedError(errno.EIO, f"the summarizer {name} wrote nothing. {reason}".strip())
    return summary


@contextlib.asynccontextmanager
async def _guarded() -> AsyncIterator[int]:
    """A group of processes that ends with this context, also when this process is killed and can't see to it: a shell,
    the first of them, waits for the end of a pipe that nobody else holds. Raises RefusedError when there is no shell.

    PR_SET_PDEATHSIG would not do: it means the thread that has started the program, which trio ends when it is idle.
    """
    reading, writing = os.pipe()
    try:
        try:
            guard = await trio.lowlevel.open_process(
                ["/bin/sh", "-c", "read -r line; kill -s KILL 0"],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                process_group=0,
            )
        except OSError as error:
            raise RefusedError(
                errno.EINVAL, f"/bin/sh, which is to end the summarizer, can't be started: {error}."
            ) from error
        finally:
            os.close(reading)
        try:
            yield guard.pid
        finally:
            _end(guard.pid)
            with trio.CancelScope(shield=True):
                await guard.wait()
    finally:
        os.close(writing)


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


async def _feed(process: trio.Process, read: Callable[[int, int], bytes], size: int, unread: list[OSError]) -> None:
    """Hand the history over. A program that doesn't read all of it is none the worse; what can't be read ends it."""
    assert process.stdin is not None
    for offset in range(0, size, _PIECE):
        try:
            piece = read(offset, _PIECE)
        except OSError as error:
            unread.append(error)
            process.kill()
            break
        try:
            await process.stdin.send_all(piece)
        except trio.BrokenResourceError:
            break
    await process.stdin.aclose()


class _Collected:
    """The first bytes of a stream, or the last ones."""

    def __init__(self, most: int, *, keep_last: bool = False) -> None:
        self.data = bytearray()
        self._most = most
        self._keep_last = keep_last

    @property
    def is_full(self) -> bool:
        """True when there is more than can be taken."""
        return not self._keep_last and len(self.data) >= self._most

    async def collect(self, stream: trio.abc.ReceiveStream | None) -> None:
        assert stream is not None
        async for piece in stream:
            self.data += piece
            if self._keep_last:
                del self.data[: -self._most]
            elif self.is_full:
                return

    def text(self) -> str:
        return bytes(self.data).decode("utf-8", "replace")
