"""When the last record of a thread was written, which is the time of its files.

It stands at the end of the selected rollout. What was found there is remembered for as long as `stat` says the same.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from dataclasses import dataclass

from threadstore.files import open_regular, pread_exactly
from threadstore.filestates import FileStates
from threadstore.heads import Heads
from threadstore.index import IndexReader
from threadstore.names import RolloutFile
from threadstore.projection import Basis
from threadstore.times import parse_time

_MOST = 8192  # threads whose times are remembered, about 200 bytes each
_TIME = struct.Struct("<QQQqq")  # device, inode, size and mtime of the file, time of the last record
_TAILS = (4 << 10, 64 << 10)  # bytes at the end of a log in which the last time is looked for


@dataclass(frozen=True, slots=True)
class Times:
    """Unix times in ns: of the last record, and the ctime of the selected rollout's file."""

    mtime_ns: int
    ctime_ns: int


class Mtimes:
    """Those of the threads of a store. Raises StoreError, KeyError and OSError."""

    def __init__(self, heads: Heads, states: FileStates, index: IndexReader | None) -> None:
        self._heads = heads
        self._states = states
        self._index = index
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._latest: tuple[os.stat_result, Times] | None = None  # a walk asks for a thread again and again

    def times(self, thread_id: str) -> Times:
        """The times of a thread."""
        rollout = self._heads[thread_id]
        status = self._states.lstat(rollout.path)
        if self._latest is None or self._latest[0] is not status:
            self._latest = status, self._times_of(thread_id, rollout, status)
        return self._latest[1]

    def _times_of(self, thread_id: str, rollout: RolloutFile, status: os.stat_result) -> Times:
        packed = self._known.get(thread_id)
        if packed is not None:
            dev, ino, size, mtime_ns, last = _TIME.unpack(packed)
            if (dev, ino, size, mtime_ns) == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns):
                return Times(last, status.st_ctime_ns)
        entry = None if self._index is None else self._index.entry(thread_id)
        if entry is not None and entry.made_from[0] == Basis.of(rollout.path, status):
            self.remember(thread_id, entry.made_from[0], entry.last_record_ns)
            return Times(entry.last_record_ns, status.st_ctime_ns)
        descriptor = open_regular(self._states.root, rollout.path)
        try:
            now = os.fstat(descriptor)
            found = None if rollout.compressed else _last_time(descriptor, now.st_size)
        finally:
            os.close(descriptor)
        last = now.st_mtime_ns if found is None else found
        self.remember(thread_id, Basis.of(rollout.path, now), last)
        return Times(last, now.st_ctime_ns)

    def remember(self, thread_id: str, file: Basis, last: int) -> None:
        """The time of the last record, for as long as the selected rollout is as it was."""
        self._known[thread_id] = _TIME.pack(*file[1:], last)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def forget(self, thread_id: str) -> None:
        """The thread is gone."""
        self._known.pop(thread_id, None)


def _last_time(descriptor: int, size: int) -> int | None:
    """The time of the last record that has one, in ns."""
    for length in _TAILS:
        start = max(size - length, 0)
        tail = pread_exactly(descriptor, size - start, start)
        at = len(tail)
        while (at := tail.rfind(b'{"timestamp":"', 0, at)) >= 0:
            if start == 0 if at == 0 else tail[at - 1] == 0x0A:
                parsed = parse_time(tail[at + 14 : at + 54].partition(b'"')[0])
                if parsed is not None:
                    return parsed
        if start == 0:
            break
    return None
