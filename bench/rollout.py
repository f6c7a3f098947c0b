"""The lines of one rollout, written as Codex 0.171.0 writes them (FORMAT 3), fast enough for gigabytes.

Payloads are bytes that are made by the caller; here they get their envelope: time, ordinal, type.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

_FLUSH = 4 << 20  # bytes
_START = 1795987906  # unix time of the first record
_STEP = 37  # milliseconds between two records


def uuid(kind: int, number: int) -> str:
    """A UUIDv7 that is the same in every run."""
    return f"01a22938-{kind:04x}-7000-8000-{number:012x}"


def rollout_name(thread: str, stamp: str = "2026-11-29T21-31-46") -> str:
    """The path of a rollout below the store."""
    year, month, day = stamp[:10].split("-")
    return f"sessions/{year}/{month}/{day}/rollout-{stamp}-{thread}.jsonl"


class RolloutWriter:
    """Appends records to a new file.

    Invariant: `size` is the length of the file once `close` was called, and `ordinal` the one of the next record.
    """

    def __init__(self, path: Path, *, paginated: bool, first_ordinal: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self.paginated = paginated
        self.ordinal = first_ordinal
        self.records = 0
        self.size = 0
        self._pending: list[bytes] = []
        self._pending_size = 0

    def __enter__(self) -> RolloutWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        os.close(self._file)

    @property
    def seconds(self) -> int:
        """Unix time of the next record."""
        return _START + self.records * _STEP // 1000

    def add(self, kind: bytes, *payload: bytes, metadata: bytes = b"") -> None:
        """Append a record; the parts of its payload are joined, `metadata` is its sibling."""
        milliseconds = self.records * _STEP
        second = milliseconds // 1000 + 21 * 3600 + 31 * 60 + 46
        day, second = 29 + second // 86400 % 2, second % 86400
        head = b'{"timestamp":"2026-11-%02dT%02d:%02d:%02d.%03dZ",' % (
            day,
            second // 3600,
            second // 60 % 60,
            second % 60,
            milliseconds % 1000,
        )
        if self.paginated:
            head += b'"ordinal":%d,' % self.ordinal
        tail = b',"metadata":' + metadata + b"}\n" if metadata else b"}\n"
        self._write(head + b'"type":"' + kind + b'","payload":', *payload, tail)
        self.ordinal += 1
        self.records += 1

    def _write(self, *parts: bytes) -> None:
        size = sum(map(len, parts))
        self._pending += parts
        self._pending_size += size
        self.size += size
        if self._pending_size >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        for part in self._pending:
            if len(part) > _FLUSH:  # an enormous line is given part by part: never join it
                break
        else:
            self._pending = [b"".join(self._pending)]
        for part in self._pending:
            view = memoryview(part)
            while view:
                view = view[os.write(self._file, view) :]
        self._pending, self._pending_size = [], 0
