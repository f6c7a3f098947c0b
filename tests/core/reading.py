"""Reading derived files of a store without a mount."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from threadstore.extents import Slice
from threadstore.projection import Projection, View
from threadstore.spool import Spool
from threadstore.store import ThreadStore


def content(store: ThreadStore, projection: Projection) -> bytes:
    """All bytes of a derived file, from the files that it is cut from."""
    extents = projection.extents
    assert extents is not None, projection.error
    parts = []
    for part in extents.plan(0, extents.size):
        if isinstance(part, Slice):
            with open(os.path.join(store.root, extents.sources[part.source].path), "rb") as file:
                file.seek(part.offset)
                parts.append(file.read(part.length))
        else:
            parts.append(part)
    data = b"".join(parts)
    assert len(data) == extents.size
    return data


def read_lines(home: Path, view: View, thread_id: str | None = None) -> list[dict[str, Any]]:
    """The lines of a JSONL view of one thread, the only one when none is named."""
    store = ThreadStore(str(home), Spool(str(home / ".spool")))
    if thread_id is None:
        (thread_id,) = store.thread_ids()
    data = content(store, store.project(thread_id, view))
    return [json.loads(line) for line in data.split(b"\n")[:-1]]
