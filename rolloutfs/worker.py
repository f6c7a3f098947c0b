"""What runs in a worker process: replaying, decoding and operations, at low priority, away from the process
that answers the kernel.

A worker keeps its `ThreadStore` between jobs.  It ends with the serving process, however that ends: a thread
waits for the parent's pidfd.  (PR_SET_PDEATHSIG would not do: it fires when the *thread* that started us ends.)  One
that was killed but can't go is helped (see `aborting`).

Results travel as `Answer`, never as an exception: not every exception survives pickling, and one that doesn't would
take the worker down.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Generic, TypeVar

from threadstore.errors import StoreError, UnreadableError
from threadstore.index import IndexReader
from threadstore.indexing import Indexer, Progress
from threadstore.masking import Masker, MaskingError
from threadstore.names import RolloutFile
from threadstore.neighbours import Edges
from threadstore.projection import FamilyView, Projection, StoreView, View
from threadstore.seen import Seen
from threadstore.spines import Spine, spines
from threadstore.spool import Spool
from threadstore.store import ThreadStore
from threadstore.turnfiles import Files

from rolloutfs import findings
from rolloutfs.aborting import Connection
from rolloutfs.backlog import Todo
from rolloutfs.control import Request
from rolloutfs.findings import Found
from rolloutfs.lending import borrowed
from rolloutfs.perform import Result, perform

#: Niceness of a worker that somebody waits for, and of one that builds the index. The serving process comes first;
#: beside one busy program these get a quarter of a core, and a thirtieth.
WAITED_FOR, UNNOTICED = 5, 15
GROWTH = (
    100 << 20
)  # bytes resident; a worker that keeps more of its jobs than this, beside the store itself, is replaced
_FILES = 4096
_LOOK = 1.0  # seconds between looks at a parent that may be dead without being gone
_PRIVATE_INDEX = "search.sqlite"  # in the spool, where there is no other index
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # numbers of mallopt(3)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Place:
    """The store, the spool and the index that a job is about, and the zone of dates. Whether secrets are masked, and
    where what that takes is kept once it was compiled.
    """

    root: str
    spool: str
    index: str | None = None
    zone: tzinfo = UTC
    mask: bool = False
    patterns: str | None = None


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """The result of a job, or the errno and the sentence that a request is answered with."""

    value: R | None
    code: int = 0
    message: str = ""

    def unwrap(self) -> R:
        """The value; raises OSError, KeyError for ENOENT."""
        if self.code == errno.ENOENT:
            raise KeyError(self.message)
        if self.code or self.value is None:
            raise OSError(self.code or errno.EIO, self.message)
        return self.value


def code_of(error: Exception) -> int:
    """The errno that an error of the library or the system is answered with."""
    if isinstance(error, KeyError):
        return errno.ENOENT
    if isinstance(error, UnreadableError):
        return error.errno or errno.EIO
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    return errno.EIO


@dataclass(frozen=True, slots=True)
class Indexed:
    """How far indexing has come; without `progress` another process is at it, or some threads are done."""

    progress: Progress | None
    is_done: bool = False


_stores: dict[Place, ThreadStore] = {}
_indexers: dict[Place, Indexer] = {}
_empty = [0]  # bytes resident with the store alone


def _run(place: Place, job: Callable[[ThreadStore], R]) -> Answer[R]:
    try:
        store = _stores.get(place)
        if store is None:
            index = None if place.index is None else IndexReader(place.index)
            mask = _masker(place) if place.mask else None
            store = _stores[place] = ThreadStore(place.root, Spool(place.spool), index=index, mask=mask)
            _empty[0] = _resident()
        else:
            store.refresh()
        return Answer(job(store))
    except (StoreError, KeyError, OSError) as error:
        return Answer(None, code_of(error), str(error))
    except sqlite3.Error as error:  # of an index
        return Answer(None, errno.EIO, str(error))
    except MemoryError:
        return Answer(None, errno.ENOMEM, "There is not enough memory to compute this")


def _masker(place: Place) -> Masker:
    """What masks, loaded now: it is no growth of this process. Where that fails, a job that needs it says so."""
    masker = Masker(place.patterns)
    with contextlib.suppress(MaskingError):
        masker.load()
    return masker


def project(place: Place, thread: str, view: View) -> Answer[Projection]:
    """`ThreadStore.project`; what is masked may be in the index as it was before."""

    def job(store: ThreadStore) -> Projection:
        recalled = store.recall(thread, view) if store.masks(view) else None
        return store.project(thread, view) if recalled is None else recalled

    return _run(place, job)


def project_family(place: Place, thread: str, view: FamilyView) -> Answer[Projection]:
    """`ThreadStore.project_family`."""
    return _run(place, lambda store: store.project_family(thread, view))


def project_turn(place: Place, thread: str, turn: str) -> Answer[dict[str, Files]]:
    """`ThreadStore.project_turn`."""
    return _run(place, lambda store: store.project_turn(thread, turn))


def project_rollout(place: Place, rollout: RolloutFile) -> Answer[Projection]:
    """`ThreadStore.project_rollout`."""
    return _run(place, lambda store: store.project_rollout(rollout))


def project_store(place: Place, view: StoreView) -> Answer[Projection]:
    """`ThreadStore.project_store`."""
    return _run(place, lambda store: store.project_store(view))


def edges(place: Place, rollouts: tuple[RolloutFile, ...]) -> Answer[Edges]:
    """`ThreadStore.edges`."""
    return _run(place, lambda store: store.edges(list(rollouts)))


def spines_of(place: Place, threads: tuple[str, ...], whole: bool) -> Answer[list[Spine | None]]:
    """`spines`."""
    return _run(place, lambda store: spines(store, threads, whole=whole))


def index_all(place: Place, last: str, seconds: float) -> Answer[Indexed]:
    """`Indexer.advance`."""
    return _run(place, lambda store: Indexed(_indexer(place, store).advance(last, seconds)))


def index_some(place: Place, threads: tuple[str, ...]) -> Answer[Indexed]:
    """`Indexer.enter`."""
    return _run(place, lambda store: Indexed(None, is_done=_indexer(place, store).enter(threads)))


def _indexer(place: Place, store: ThreadStore) -> Indexer:
    indexer = _indexers.get(place)
    if indexer is None:
        assert place.index is not None
        indexer = _indexers[place] = Indexer(store, place.index)
    return indexer


def search(place: Place, name: str, todo: Todo) -> Answer[Found]:
    """`findings.find`, in the index of the user's cache; else in one that lies in the spool while the mount lasts."""
    paths = [os.path.join(place.spool, _PRIVATE_INDEX)]
    if place.index is not None:
        paths.insert(0, place.index)
    return _run(place, lambda store: findings.find(store, paths, name, todo, place.zone))


def nothing(place: Place) -> Answer[bool]:
    """Open the store, so that the next job needn't."""
    return _run(place, lambda store: bool(store.refresh()) or True)


def operate(place: Place, thread: str, request: Request, expected: Seen | None, lock: str | None) -> Answer[Result]:
    """`perform`; `lock` is where the writer's lock is to be had, if the serving process holds it."""

    def job(store: ThreadStore) -> Result:
        with contextlib.nullcontext() if lock is None else borrowed(lock):
            return perform(store, thread, request, expected, held=lock is not None)

    return _run(place, job)


def begin(parent: int, mountpoint: str | None = None, niceness: int = WAITED_FOR) -> None:
    """Set a new worker process up; `parent` is the pid of the serving process, `mountpoint` where that serves."""
    os.nice(niceness)
    os.chdir("/")
    _keep_memory()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < _FILES else _FILES, hard))
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(0)
    if os.getppid() != parent:  # it ended, and its number was given away
        os._exit(0)
    connection = None if mountpoint is None else Connection.of(mountpoint)
    threading.Thread(target=_end_with, args=(watched, parent, connection), daemon=True).start()


def _keep_memory() -> None:
    """Let the C library reuse large blocks instead of giving them back after each line of a log."""
    with contextlib.suppress(AttributeError):  # a C library without mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        mallopt(_M_TRIM_THRESHOLD, 128 << 20)


def _end_with(pidfd: int, parent: int, connection: Connection | None) -> None:
    while not select.select([pidfd], [], [], _LOOK)[0]:
        if _lingers(parent):
            if connection is not None:
                connection.abort()
            break
    os._exit(0)


def _lingers(pid: int) -> bool:
    """True for a process that has ended but for threads that can't: the kernel tells of its end only after them."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"Z", b"X")
    except FileNotFoundError:
        return True


def is_spent() -> bool:
    """True when a worker should be replaced after this job, so that one huge thread doesn't occupy memory for ever.

    What a large store needs for its names alone doesn't count: the next worker would need it again.
    """
    return _resident() > _empty[0] + GROWTH


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[1])
    return pages * resource.getpagesize()
