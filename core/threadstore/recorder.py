"""Appending records to a rollout (FORMAT 5, 13).

One thread writes; callers put records into a bounded queue and wait at a *barrier* for everything before it. A new
rollout is *deferred*: no file exists before its first fact. Records that wait together are written together; the
ordinal of a record counts only when its whole line has been written.

When a write fails the file is closed, the records that were not written stay in order, and the writer opens the
file and tries once more: a line that was written in part is ended by a newline first, so that the whole record
follows on a line of its own. Where nothing but the newline was missing the record is there, and not written again.
What still fails is reported at the barrier, and tried again at the next one. Who can take back what was written asks
for no second try (`again=False`): the first error is the end, and nothing follows it.

Who is killed while he writes may leave a part of it. Where that mustn't be (`apart=True`) what waits together is handed
to a process of its own as a whole.

`flush` means handed to the operating system, as Codex does; `fsync` also survives a power cut: the file and, when
it is new, its folder are synced.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

import orjson

from threadstore.apart import write_apart
from threadstore.errors import StoreError, UnwritableError
from threadstore.files import pread_exactly, write, write_all
from threadstore.folders import Folder
from threadstore.ids import now_text
from threadstore.lines import Log, backward
from threadstore.records import Record, decode, is_blank

_QUEUE = 256  # commands that may wait
_BATCH = 1 << 20  # bytes written at once


class UnsettledError(StoreError):
    """An operation failed in the middle, and what it had written could not be taken back, or nobody can say whether it
    was done. `message` says what there may be now; `reason`, where there is one, is the error to raise once it is known
    that nothing was done.
    """

    def __init__(self, message: str, reason: StoreError | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class Durability(Enum):
    """What a barrier promises."""

    FLUSH = "flush"
    FSYNC = "fsync"


class Draft(NamedTuple):
    """A record to be written: the members after timestamp and ordinal, as JSON text."""

    body: bytes

    @classmethod
    def of(cls, kind: str, payload: Any, metadata: Any = None) -> Draft:
        """From a type, a payload and, for response items, metadata beside it."""
        body = b'"type":' + orjson.dumps(kind) + b',"payload":' + orjson.dumps(payload)
        return cls(body if metadata is None else body + b',"metadata":' + orjson.dumps(metadata))

    def line(self, timestamp: str, ordinal: int | None) -> bytes:
        """The line as it is written."""
        number = b"" if ordinal is None else b'"ordinal":%d,' % ordinal
        return b'{"timestamp":"' + timestamp.encode() + b'",' + number + self.body + b"}\n"


def next_ordinal(log: Log, path: str) -> int:
    """The ordinal after the last record that decodes. Raises StoreError where Codex couldn't go on either."""
    for line in backward(log):
        if is_blank(line):
            continue
        record = decode(line)
        if not isinstance(record, Record):
            continue
        if record.ordinal is None:
            raise StoreError(
                f"final paginated rollout record at {path} is missing an ordinal: nothing can be appended."
            )
        if record.ordinal >= (1 << 64) - 1:
            raise StoreError(f"paginated rollout record ordinal overflow at {path}: nothing can be appended.")
        return record.ordinal + 1
    raise StoreError(f"{path} does not start with session metadata: nothing can be appended.")


class Recorder:
    """Writes one rollout. Close it; `close` is a barrier, too.

    Invariant: `_pending` holds the records that are not known to be in the file, oldest first; only the writing
    thread touches it, the file and `_ordinal`.
    """

    def __init__(
        self,
        path: str,
        *,
        ordinal: int | None,
        create: bool,
        durability: Durability = Durability.FSYNC,
        again: bool = True,
        apart: bool = False,
        folder: Folder | None = None,
    ) -> None:
        """`path` is a name in `folder`, where one is given; it must stay open as long as the recorder."""
        self._path = path
        self._folder = folder
        self._ordinal = ordinal
        self._create = create
        self._durability = durability
        self._again = again
        self._apart = apart
        self.handed = b""  # what was handed over apart, or may have been, with the newline before it
        self._pending: deque[Draft] = deque()
        self._descriptor = -1
        self._unended = False  # the last record lacks nothing but its newline
        self._unsynced = False  # something was written since the last fsync
        self._is_new = False  # the file was made here, and its folder was not synced yet
        self._lost: Exception | None = None  # what was handed over may not be on the disk
        self._commands: queue.Queue[list[Draft] | _Barrier | None] = queue.Queue(_QUEUE)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def append(self, drafts: Iterable[Draft]) -> None:
        """Queue records; waits when the queue is full."""
        self._commands.put(list(drafts))

    def barrier(self) -> None:
        """Wait until everything appended so far is in the file. Raises OSError or UnwritableError when it isn't; it is
        kept and tried again next time. Any other error is one of ours, and the end.
        """
        barrier = _Barrier()
        self._commands.put(barrier)
        barrier.done.wait()
        if barrier.error is not None:
            raise barrier.error

    def close(self) -> None:
        """A barrier, then the end. After an error the recorder stays open, so that it can be closed again."""
        self.barrier()
        self._commands.put(None)
        self._thread.join()

    def abandon(self) -> None:
        """End without writing what is left."""
        self._commands.put(None)
        self._thread.join()

    # In the writing thread

    def _run(self) -> None:
        while (command := self._commands.get()) is not None:
            try:
                if isinstance(command, _Barrier):
                    command.error = self._settle() or self._sync()
                else:
                    self._pending.extend(command)
                    if len(self._pending) >= _QUEUE:
                        self._settle()  # keeps memory bounded; an error is met again at the barrier
            except Exception as error:  # noqa: BLE001  whoever waits at a barrier would wait forever
                self._lost = error
                if isinstance(command, _Barrier):
                    command.error = error
            if isinstance(command, _Barrier):
                command.done.set()
        self._forget()

    def _settle(self) -> Exception | None:
        """Write what is pending, trying twice where that was asked for; not after a failed fsync, which can't be made
        good.
        """
        for attempt in (1, 2):
            try:
                if self._lost is None:
                    self._write_pending()
                break
            except (OSError, UnwritableError) as error:
                self._forget()
                if not self._again:
                    self._lost = error
                elif attempt == 2:
                    return error
        if self._lost is not None and not self._again:
            self._pending.clear()  # it will never be written
        return self._lost

    def _write_pending(self) -> None:
        if self._pending or self._unended:
            self._open()
        while self._pending:
            batch = self._batch(sys.maxsize if self._apart else _BATCH)
            self.handed += batch if self._apart else b""
            done, error = (write_apart if self._apart else write)(self._descriptor, batch)
            self._unsynced = self._unsynced or done > 0
            self._unended = done > 0 and batch[done : done + 1] == b"\n"
            self._take(batch[:done].count(b"\n") + self._unended)
            if error is not None:
                raise error

    def _sync(self) -> OSError | None:
        """Make what was written survive a power cut, if that was asked for."""
        if self._durability is not Durability.FSYNC or not self._unsynced:
            return None
        try:
            os.fsync(self._descriptor)
            if self._is_new:
                self._sync_folder()
        except OSError as error:
            self._lost = error  # a second fsync would succeed without having written anything
            return error
        self._unsynced = self._is_new = False
        return None

    def _batch(self, limit: int) -> bytes:
        """The lines of what is pending, up to some bytes: one write makes them visible together."""
        lines: list[bytes] = []
        size = 0
        for draft in self._pending:
            ordinal = None if self._ordinal is None else self._ordinal + len(lines)
            lines.append(draft.line(now_text(), ordinal))
            size += len(lines[-1])
            if size > limit:
                break
        return b"".join(lines)

    def _take(self, count: int) -> None:
        """The oldest `count` records are in the file."""
        for _ in range(count):
            self._pending.popleft()
        if self._ordinal is not None:
            self._ordinal += count

    def _open(self) -> None:
        """Open for append, ending a line that was cut."""
        if self._descriptor >= 0:
            return
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_EXCL if self._create else 0)
        if self._folder is not None:
            self._descriptor = self._folder.open(self._path, flags)
        else:
            self._descriptor = os.open(self._path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._is_new = self._is_new or self._create
        self._create = False
        size = os.fstat(self._descriptor).st_size
        if size and pread_exactly(self._descriptor, 1, size - 1) != b"\n":
            self.handed += b"\n" if self._apart else b""
            write_all(self._descriptor, b"\n")
            self._unsynced = True
        self._unended = False

    def _sync_folder(self) -> None:
        if self._folder is not None:
            self._folder.sync()
        else:
            sync_folder(os.path.dirname(self._path))

    def _forget(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _Barrier:
    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: Exception | None = None


def sync_folder(path: str) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
