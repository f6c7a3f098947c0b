"""A compaction whose summary a program writes, of the history as it is read now."""

from __future__ import annotations

import dataclasses
import errno

from threadstore.projection import Projection
from threadstore.seen import Seen

from rolloutfs import summarizer
from rolloutfs.control import RefusedError, Request
from rolloutfs.engine import Engine
from rolloutfs.fds import OpenFiles
from rolloutfs.perform import Result, failure, reason
from rolloutfs.readers import Derived, reader
from rolloutfs.storefiles import StoreFiles
from rolloutfs.summarizer import Summarizer


async def compact_with(engine: Engine, thread: str, program: Summarizer, history: Projection) -> Result:
    """Let a program write a summary of a history, and compact the thread with it if it is as it was."""
    request = Request("compact", strategy="auto")
    try:
        pages = reader(Derived.of(history), OpenFiles(StoreFiles(engine.store.root)))
    except OSError as error:
        told = reason(error, engine.store.root)
        return failure(request, thread, error.errno or errno.EIO, f"the history can't be read: {told}")
    try:
        summary = await summarizer.run(program, pages.read, pages.size)
    except RefusedError as error:
        return failure(request, thread, error.code, error.message)
    finally:
        pages.close()
    return await engine.operate(thread, dataclasses.replace(request, summary=summary), seen_of(history))


def seen_of(history: Projection) -> Seen:
    """The state of a thread that a history was made from."""
    return Seen.of(history.basis[0])
