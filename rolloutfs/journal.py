"""`operations.jsonl`: one line for every operation on a store, by whichever mount or command, in the XDG state folder.

It is the only memory of past answers: a mount looks into it for what is shown by a fresh open of a control file, so
two mounts of one store, the command line, and a remount agree.  Lines are only ever appended, each by one write with
O_APPEND under a lock; whoever finds the last one cut ends it first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import platformdirs

from rolloutfs import control
from rolloutfs.lru import Recent

NAME = "operations.jsonl"
_PATIENCE = 2.0  # seconds to wait for the lock; then the write, which is one system call, goes ahead without
_PAUSE = 0.005
_PIECE = 1 << 20  # bytes read at once
_LOOKED_AT = 64 << 20  # bytes at the end of a journal in which past answers are looked for
_THREADS = 16_384  # whose last answers are found
_OWN = ("time", "thread", "request")  # members of a line that are not the answer's

Json = dict[str, Any]
Mark = tuple[int, int, int]  # device, inode, offset


def place(root: str, avoid: str | None = None) -> str | None:
    """Where the journal of a store lies. None when that would be below `avoid`, or inside the store, which only has
    what Codex and operations on threads put there.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(root)).strip("-.")[:60] or "store"
    key = blake2b(os.fsencode(os.path.realpath(root)), digest_size=8).hexdigest()
    path = Path(platformdirs.user_state_dir("rolloutfs")) / "operations" / f"{name}-{key}.jsonl"
    for folder in (avoid, root, os.path.join(root, "sessions"), os.path.join(root, "archived_sessions")):
        if folder is not None and f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(folder)}/"):
            return None
    return str(path)


def is_usable(path: str) -> bool:
    """True when a journal can be kept there; makes the folder."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    except OSError:
        return False
    return os.access(path if os.path.lexists(path) else os.path.dirname(path), os.W_OK)


@dataclass(slots=True)
class _Span:
    offset: int
    length: int


class Journal:
    """The journal of one store.

    Invariant: `_last` and `_failed` tell where the last line, and the last line with an error, of each of the latest
    threads lie among the first `_seen` bytes of the file `_identity`, which had `_size` bytes when we looked.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._last: Recent[str, _Span] = Recent(_THREADS)
        self._failed: Recent[str, _Span] = Recent(_THREADS)
        self._identity: tuple[int, int] | None = None
        self._seen = self._size = 0

    # Writing

    def append(self, thread: str, request: bytes, answer: Json) -> None:
        """Add a line. Raises OSError."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = control.as_line({"time": now, "thread": thread, "request": control.shown(request), **answer})
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            with _locked(descriptor):
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line
                while line:
                    line = line[os.write(descriptor, line) :]
        finally:
            os.close(descriptor)

    def unwritten(self, error: Exception) -> str:
        """What an answer says when it could not be added."""
        why = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
        return f"The file operations.jsonl could not be written ({self.path}: {why}): this answer is not in it."

    # Reading

    def mark(self, thread: str) -> Mark | None:
        """Where the last line of a thread lies: another one once there is a newer line; None when there is none."""
        span = self._last.get(thread) if self._is_caught_up() else None
        return None if span is None or self._identity is None else (*self._identity, span.offset)

    def last(self, thread: str) -> bytes | None:
        """The answer to the last finished request for a thread, a line of JSON; None when there is none."""
        line = self._line(self._last, thread)
        if line is None:
            return None
        return control.as_line({key: value for key, value in line.items() if key not in _OWN})

    def error(self, thread: str) -> str | None:
        """Why the last request for a thread that came to nothing did."""
        line = self._line(self._failed, thread)
        return None if line is None else f"{line['error']}: {line.get('message')}"

    def _line(self, spans: Recent[str, _Span], thread: str) -> Json | None:
        if not self._is_caught_up() or thread not in spans:
            return None
        with self._open() as descriptor:
            span = spans.get(thread) if descriptor is not None else None
            if descriptor is None or span is None:
                return None
            try:
                line = _load(os.pread(descriptor, span.length, span.offset))
            except OSError:
                return None
            return line if line is not None and line["thread"] == thread else None

    def _is_caught_up(self) -> bool:
        """True when all lines have been looked at, for which the file is opened only if it has changed. False when it
        can't be read.
        """
        try:
            status = os.lstat(self.path)
        except OSError:
            return False
        if (status.st_dev, status.st_ino) == self._identity and status.st_size == self._size:
            return True
        with self._open() as descriptor:
            return descriptor is not None

    @contextlib.contextmanager
    def _open(self) -> Iterator[int | None]:
        """The file, with all of its lines looked at; None when it can't be read."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            yield None
            return
        try:
            try:
                self._catch_up(descriptor)
                read: int | None = descriptor
            except OSError:
                read = None
            yield read
        finally:
            os.close(descriptor)

    def _catch_up(self, descriptor: int) -> None:
        """Look at the lines that were added since the last time."""
        status = os.fstat(descriptor)
        if self._identity != (status.st_dev, status.st_ino) or status.st_size < self._seen:
            self._identity = (status.st_dev, status.st_ino)
            self._last.clear()
            self._failed.clear()
            self._seen = max(status.st_size - _LOOKED_AT, 0)
        rest = b""
        at = self._seen
        while at < status.st_size:
            piece = os.pread(descriptor, _PIECE, at)
            if not piece:
                break
            at += len(piece)
            *whole, rest = (rest + piece).split(b"\n")
            for data in whole:
                self._note(self._seen, data)
                self._seen += len(data) + 1
        self._size = status.st_size

    def _note(self, offset: int, data: bytes) -> None:
        line = _load(data)
        if line is None:
            return
        self._last.put(line["thread"], _Span(offset, len(data)))
        if line.get("error"):
            self._failed.put(line["thread"], _Span(offset, len(data)))


def _load(data: bytes) -> Json | None:
    """A line that is whole, else None."""
    try:
        line = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return line if isinstance(line, dict) and control.is_answer(line) and isinstance(line.get("thread"), str) else None


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:  # held by somebody, or a file system without locks
            time.sleep(_PAUSE)
    yield  # closing the descriptor lets go of the lock
