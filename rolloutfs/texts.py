"""A summary on its way into a `compact` file: in one piece, or in several, and nobody says which is the last.

bash writes the output of its own echo and printf line by line, other programs 4 KiB at a time.  No single write tells
whether more will follow; only the end of the handle does.  So a text is collected and used when no more of it can
come: when its answer is asked for, or when the last user of the handle has closed it.  By then nobody looks at errors.
Therefore the first piece already does all that can fail: it takes the writer's lock, which is kept, and the compaction
is rehearsed.  What may still go wrong is that its records can't be written.  A JSON object tells where it
ends: its last piece is the request.
"""

from __future__ import annotations

import codecs
import errno
import os
from contextlib import ExitStack

import trio
from threadstore.locks import FOLDER, BusyError

from rolloutfs.control import LARGEST, RefusedError
from rolloutfs.engine import Engine
from rolloutfs.perform import reason

IDLE = 10.0  # seconds without a further piece after which others may use the thread


class Text:
    """The pieces so far.

    Invariant: `data` is text as far as it goes (a character at its end may be cut), and no longer than a request may
    be; `first` is its first piece, which may not be in it yet; `lock` is the writer's lock of the thread while it is
    ours.
    """

    def __init__(self, first: bytes) -> None:
        self.first = first
        self.data = b""
        self.touched = trio.current_time()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._locked = ExitStack()
        self.lock: int | None = None

    def add(self, piece: bytes) -> None:
        """Take a piece. Raises RefusedError when this can't become a summary any more."""
        self.data += piece
        self.touched = trio.current_time()
        if len(self.data) > LARGEST:
            raise RefusedError(
                errno.E2BIG, f"the text has more than {LARGEST} bytes, which is the most. Nothing was done."
            )
        try:
            text = self._decoder.decode(piece)
        except UnicodeDecodeError:
            raise RefusedError(errno.EINVAL, "the text is not UTF-8. Nothing was done.") from None
        if "\0" in text:
            raise RefusedError(errno.EINVAL, "the text has NUL bytes in it. Nothing was done.")

    async def hold(self, engine: Engine, thread: str) -> None:
        """Take the writer's lock. Raises RefusedError when another process has it."""
        try:
            self.lock = await trio.to_thread.run_sync(self._locked.enter_context, engine.lock(thread))
        except BusyError as error:
            raise RefusedError(errno.EBUSY, error.message) from error
        except OSError as error:
            told = reason(error, os.path.join(engine.store.root, FOLDER))
            raise RefusedError(error.errno or errno.EIO, f"the thread can't be locked: {told}") from error

    async def let_go(self) -> None:
        """Give the lock back, if we have it."""
        if self.lock is None:
            return
        self.lock = None
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._locked.close)
