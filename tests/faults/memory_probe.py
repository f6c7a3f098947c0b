"""Looks at every view of one thread and tells what that took. Run as a process of its own: `memory_probe.py STORE SPOOL
THREAD`.

The peak is VmHWM, since ru_maxrss of a child begins with its parent's. Address space is limited, so that a mistake ends
the probe and not the machine.
"""

from __future__ import annotations

import resource
import sys
import time
from hashlib import blake2b
from pathlib import Path

import orjson
from threadstore.errors import StoreError
from threadstore.extents import Slice
from threadstore.projection import Projection, View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

EDGE = 64  # bytes told of either end of a content


def peak_kib() -> int:
    """The most memory that was resident so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("no VmHWM")


def part(projection: Projection, root: str, offset: int, length: int) -> bytes:
    """Some bytes of a content."""
    extents = projection.extents
    assert extents is not None
    data = b""
    for piece in extents.plan(offset, length):
        if isinstance(piece, Slice):
            with open(Path(root) / extents.sources[piece.source].path, "rb") as file:
                file.seek(piece.offset)
                data += file.read(piece.length)
        else:
            data += piece
    return data


def main() -> None:
    """Print one JSON object."""
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    root, spool, thread = sys.argv[1:4]
    store = ThreadStore(root, Spool(spool))
    for other in store.thread_ids():  # what any look costs
        if other != thread:
            for view in View:
                store.project(other, view)
    before = peak_kib()
    views: dict[str, object] = {}
    for view in View:
        begin = time.monotonic()
        try:
            projection = store.project(thread, view)
        except StoreError as error:
            views[view.value] = {"refused": type(error).__name__, "message": error.message}
            continue
        size = projection.size
        head = part(projection, store.root, 0, EDGE)
        tail = part(projection, store.root, max(size - EDGE, 0), EDGE)
        small = part(projection, store.root, 0, size).decode() if size < 1 << 16 else None
        views[view.value] = {
            "size": size,
            "head": head.decode("utf-8", "replace"),
            "tail": tail.decode("utf-8", "replace"),
            "text": small,
            "seconds": round(time.monotonic() - begin, 2),
            "peak_mib": peak_kib() >> 10,
        }
    print(
        orjson.dumps(
            {
                "before_mib": before >> 10,
                "peak_mib": peak_kib() >> 10,
                "views": views,
                "digest": blake2b(repr(views).encode(), digest_size=8).hexdigest(),
            }
        ).decode()
    )


main()
