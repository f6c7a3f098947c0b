"""Which bytes of a log are read for an answer, and how often."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from threadstore.lines import Log
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore


@dataclass(frozen=True, slots=True)
class Reads:
    """Bytes that were asked of logs, and how often the byte that was asked for most often was."""

    total: int
    most: int


def reads_of(store: Path, spool: Path, thread: str, view: View) -> Reads:
    """Make a derived file from scratch and count."""
    found: list[tuple[tuple[int, int], int, int]] = []
    genuine = Log.read

    def counted(log: Log, offset: int, length: int) -> bytes:
        data = genuine(log, offset, length)
        found.append((_identity(log), offset, len(data)))
        return data

    opened = ThreadStore(str(store), Spool(str(spool)))
    opened.links(thread)  # so that the session metas are known
    with mock.patch.object(Log, "read", counted):
        opened.project(thread, view)
    return Reads(sum(length for _, _, length in found), _most(found))


def _identity(log: Log) -> tuple[int, int]:
    status = os.fstat(log.descriptor)
    return status.st_dev, status.st_ino


def _most(reads: list[tuple[tuple[int, int], int, int]]) -> int:
    most = 0
    for file in {identity for identity, _, _ in reads}:
        edges: Counter[int] = Counter()
        for identity, offset, length in reads:
            if identity == file and length:
                edges[offset] += 1
                edges[offset + length] -= 1
        depth = 0
        for at in sorted(edges):
            depth += edges[at]
            most = max(most, depth)
    return most
