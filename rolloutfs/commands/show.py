"""`rolloutfs show`: a derived file of a thread, byte for byte as a mount has it."""

from __future__ import annotations

import errno
import sys

from threadstore.projection import View
from threadstore.store import ThreadStore

from rolloutfs import places
from rolloutfs.commands.opened import opened
from rolloutfs.errors import Exit, MountError, UnprintableError
from rolloutfs.fds import OpenFiles
from rolloutfs.harmless import harmless, quoted
from rolloutfs.meant import find
from rolloutfs.readers import Derived, Reader, reader
from rolloutfs.storefiles import StoreFiles

_PIECE = 1 << 20  # bytes read at once
_ATTEMPTS = 3  # at a log that is being replaced


def show(store: str, wanted: str, file: str | None, *, mask: bool | None = None) -> None:
    """Write the content to stdout, with secrets masked in a file for people if `mask` or the settings say so. Without
    `file` it is that to which the path `wanted` leads. Raises MountError, OSError.
    """
    if file is None:
        place = places.of(wanted)
        file = (place.below if place is not None else "") or View.THREAD.value
    view = next((view for view in View if view.value == file.removeprefix("lineage/")), None)
    if view is None:
        names = ", ".join(view.value for view in View)
        raise MountError(f"A thread has no file {quoted(file)}; there are {names}.", Exit.USAGE)
    with opened(store, mask) as its:
        thread = find(its.store, wanted)
        content = _open(its.store, thread, view)
        try:
            for offset in range(0, content.size, _PIECE):
                _print(content.read(offset, _PIECE))
        finally:
            content.close()


def _print(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
    except OSError as error:
        raise UnprintableError(error.errno, error.strerror) from error


def _open(store: ThreadStore, thread: str, view: View) -> Reader:
    """The content as it is now."""
    files = OpenFiles(StoreFiles(store.root))
    for _ in range(_ATTEMPTS):
        projection = store.recall(thread, view) or store.project(thread, view)
        if projection.extents is None:
            told = projection.error or "it can't be told from what is in the store"
            raise MountError(f"{view.value} of thread {thread} can't be given: {harmless(told)}", Exit.FAILED)
        try:
            return reader(Derived.of(projection), files)
        except OSError as error:
            if error.errno not in (errno.ESTALE, errno.ENOENT):
                raise
            store.refresh()
    raise MountError(f"Thread {thread} is being replaced again and again: try later.", Exit.FAILED)
