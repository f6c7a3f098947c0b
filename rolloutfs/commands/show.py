"""`rolloutfs show`: a derived file of a thread, of its family or of a turn, byte for byte as a mount has it."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

from threadstore.projection import FamilyView, Projection, View, rendered
from threadstore.store import ThreadStore
from threadstore.turnfiles import Turns

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
_TURNS = "turns"


def show(store: str, wanted: str, file: str | None, *, mask: bool | None = None) -> None:
    """Write the content to stdout, with secrets masked in a file for people if `mask` or the settings say so. Without
    `file` it is that to which the path `wanted` leads. Raises MountError, OSError.
    """
    if file is None:
        place = places.of(wanted)
        file = (place.below if place is not None else "") or View.THREAD.value
    make = _maker(file)
    with opened(store, mask) as its:
        content = _open(its.store, find(its.store, wanted), file, make)
        try:
            for offset in range(0, content.size, _PIECE):
                _print(content.read(offset, _PIECE))
        finally:
            content.close()


def _maker(file: str) -> Callable[[ThreadStore, str], Projection]:
    """What makes the file of that name of a thread. Raises MountError when no thread has one."""
    name = file.removeprefix("lineage/")
    for view in View:
        if view.value == name:
            return lambda store, thread: store.recall(thread, view) or store.project(thread, view)
    for family in FamilyView:
        if family.value == name:
            return lambda store, thread: store.project_family(store.links(thread).root, family)
    folder, _, below = file.removeprefix(".").partition("/")
    turn, _, rest = below.partition("/")
    if folder == _TURNS and rest:
        return lambda store, thread: _of_turn(store, thread, turn, rest)
    if folder == _TURNS and turn:
        told = f"{_TURNS}/{turn} is a folder: name a file in it, such as {_TURNS}/{turn}/user.md."
        raise MountError(harmless(told), Exit.USAGE)
    names = ", ".join((*(view.value for view in View), *(family.value for family in FamilyView)))
    raise MountError(
        f"A thread has no file {quoted(file)}; there are {names}, and of turns such as turns/last/user.md.", Exit.USAGE
    )


def _of_turn(store: ThreadStore, thread: str, name: str, file: str) -> Projection:
    """A file of a turn. Raises MountError when there is none."""
    turns = Turns.of(rendered(store.recall(thread, View.TURNS) or store.project(thread, View.TURNS)))
    turn = turns.called(name)
    if turn is None:
        raise MountError(f"Thread {thread} has no turn {quoted(name)}: rolloutfs log lists them.", Exit.REFUSED)
    files = store.project_turn(thread, turn)[turn]
    if file not in files:
        told = f"Turn {turn} of thread {thread} has no file {quoted(file)}; there are {harmless(', '.join(files))}."
        raise MountError(told, Exit.REFUSED)
    return files[file]


def _print(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
    except OSError as error:
        raise UnprintableError(error.errno, error.strerror) from error


def _open(store: ThreadStore, thread: str, file: str, make: Callable[[ThreadStore, str], Projection]) -> Reader:
    """The content as it is now."""
    files = OpenFiles(StoreFiles(store.root))
    for _ in range(_ATTEMPTS):
        projection = make(store, thread)
        if projection.extents is None:
            told = projection.error or "it can't be told from what is in the store"
            raise MountError(f"{file} of thread {thread} can't be given: {harmless(told)}", Exit.FAILED)
        try:
            return reader(Derived.of(projection), files)
        except OSError as error:
            if error.errno not in (errno.ESTALE, errno.ENOENT):
                raise
            store.refresh()
    raise MountError(f"Thread {thread} is being replaced again and again: try later.", Exit.FAILED)
