"""Asks the store, in place when that is quick and in a worker process when it may not be.

What takes microseconds (names, heads, `stat`) is asked directly.  A projection is computed in place when the log that
it may have to read is small: sending it to a worker would cost more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol, cast

from threadstore.errors import StoreError
from threadstore.index import Packed
from threadstore.locks import writer_lock
from threadstore.masking import Mask
from threadstore.names import RolloutFile
from threadstore.neighbours import Edges
from threadstore.projection import Basis, FamilyView, Outline, Projection, StoreView, View
from threadstore.seen import Seen
from threadstore.spines import Spine, spines
from threadstore.store import Links, ThreadStore, Times
from threadstore.summaries import Title
from threadstore.turnfiles import Files

from rolloutfs import worker
from rolloutfs.backlog import Todo
from rolloutfs.control import Request
from rolloutfs.findings import Found
from rolloutfs.lending import lent
from rolloutfs.perform import Result, failure, perform
from rolloutfs.pool import InterruptedJobError, Pool
from rolloutfs.tree import Store

SMALL = 256 << 10  # bytes of log that a projection made in place may read
OPERATION_SECONDS = 30.0  # that a fork, revert or compaction may take: who asked for it can't be interrupted
SLOWEST = 1 << 20  # bytes of log a second that it may take longer: a legacy thread is copied
AT_ONCE = 20  # threads of which may be read in place what views show
FEW = 500  # rollouts whose first lines may be read in place
_PIECE = 20_000  # rollouts that a worker is asked for at once


class FullStore(Store, Protocol):
    """What is asked of a `ThreadStore` beyond the shape of the tree."""

    root: str

    def refresh(self, *, anew: bool = False) -> set[str]: ...  # noqa: D102  described in ThreadStore
    @property
    def is_scanned(self) -> bool: ...  # noqa: D102
    def reverted(self) -> set[str]: ...  # noqa: D102
    def times(self, thread_id: str) -> Times: ...  # noqa: D102
    def outlines(self, thread_id: str) -> dict[View, Outline]: ...  # noqa: D102
    def recall(self, thread_id: str, view: View) -> Projection | None: ...  # noqa: D102
    def packed(self, thread_id: str) -> Packed | None: ...  # noqa: D102
    def unpack(self, packed: Packed, outlines: Mapping[View, Outline]) -> dict[View, Projection]: ...  # noqa: D102
    def project(self, thread_id: str, view: View) -> Projection: ...  # noqa: D102
    def project_all(self, thread_id: str) -> dict[View, Projection]: ...  # noqa: D102
    def project_family(self, thread_id: str, view: FamilyView) -> Projection: ...  # noqa: D102
    def is_small_family(self, thread_id: str, most: int) -> bool: ...  # noqa: D102
    def project_turn(self, thread_id: str, name: str | None = None) -> dict[str, Files]: ...  # noqa: D102
    def project_rollout(self, rollout: RolloutFile) -> Projection: ...  # noqa: D102
    def project_store(self, view: StoreView) -> Projection: ...  # noqa: D102
    def links(self, thread_id: str) -> Links: ...  # noqa: D102
    def masks(self, view: object) -> bool: ...  # noqa: D102
    @property
    def mask(self) -> Mask | None: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102
    def state(self, rollout: RolloutFile) -> os.stat_result: ...  # noqa: D102
    def status(self, rollout: RolloutFile) -> Basis: ...  # noqa: D102
    def naming(self) -> tuple[Basis, ...]: ...  # noqa: D102
    def titles(self) -> Iterator[tuple[str, Title]]: ...  # noqa: D102
    def title(self, thread_id: str) -> Title: ...  # noqa: D102
    def unread_heads(self) -> list[RolloutFile]: ...  # noqa: D102
    def learn_edges(self, rollouts: list[RolloutFile], found: Edges) -> None: ...  # noqa: D102
    def cost(self, thread_id: str) -> int: ...  # noqa: D102
    def is_current(self, thread_id: str, projection: Projection) -> bool: ...  # noqa: D102
    def is_made_from(self, thread_id: str, basis: tuple[Basis, ...]) -> bool: ...  # noqa: D102
    def seen(self, thread_id: str) -> Seen: ...  # noqa: D102


def _only_then(_made: object) -> bool:
    """What is made of more than can be asked for quickly holds only when it was made."""
    return False


class Engine:
    """One store, and the pool for what takes long. `pool` None computes everything in place (tests)."""

    def __init__(self, store: FullStore, pool: Pool | None, small: int = SMALL) -> None:
        self.store = store
        self._pool = pool
        self._small = small

    def use(self, pool: Pool) -> None:
        """Let workers do what takes long, from now on."""
        self._pool = pool

    def is_small(self, thread: str) -> bool:
        """True for a thread that is projected in place: sending it to a worker would cost more."""
        return self._cost(thread) <= self._small

    def _cost(self, thread: str) -> int:
        try:
            return self.store.cost(thread)
        except (KeyError, OSError):  # moved since the folders were read: whoever reads it looks again
            return 1 << 30

    async def project(self, thread: str, view: View) -> Projection:
        """One derived file of a thread. What is masked is made by workers, who have loaded what that takes."""
        masked = self.store.masks(view)
        if self._pool is None or (self.is_small(thread) and not masked):
            return self.store.project(thread, view)
        recalled = None if masked else self.store.recall(thread, view)
        if recalled is not None:
            return recalled
        holds = partial(self.store.is_current, thread)
        return await self._pool.run(worker.project, thread, view, holds=holds)

    def project_all(self, thread: str) -> dict[View, Projection]:
        """Every derived file of a thread that is small; nothing of another one."""
        return self.store.project_all(thread) if self.is_small(thread) else {}

    async def project_turn(self, thread: str, turn: str) -> dict[str, Files]:
        """The files of a turn; also those of all turns where that costs little. KeyError when there is no such turn."""
        if self._pool is None or (self.is_small(thread) and self.store.mask is None):
            return self.store.project_turn(thread)
        return await self._pool.run(worker.project_turn, thread, turn, holds=_only_then)

    async def project_rollout(self, rollout: RolloutFile) -> Projection:
        """A compressed rollout, decoded into the spool."""
        if self._pool is None or self._packed(rollout) <= self._small // 8:
            return self.store.project_rollout(rollout)
        return await self._pool.run(worker.project_rollout, rollout, holds=partial(self._is_same, rollout))

    async def project_store(self, view: StoreView) -> Projection:
        """One derived file of the whole store."""
        if self._pool is None or self._is_small_store():
            return self.store.project_store(view)
        return await self._pool.run(worker.project_store, view, holds=_only_then)

    async def project_family(self, thread: str, view: FamilyView) -> Projection:
        """One derived file of the family of a root."""
        await self.links(thread)  # and thereby those of all others
        if self._pool is None or self.store.is_small_family(thread, self._small):
            return self.store.project_family(thread, view)
        return await self._pool.run(worker.project_family, thread, view, holds=_only_then)

    async def search(self, name: str, todo: Todo) -> Found:
        """What a query finds, see `findings`; never made in place, since it may take seconds."""
        if self._pool is None:
            raise OSError(errno.EAGAIN, "The mount can't search yet")
        return await self._pool.run(worker.search, name, todo)

    def has_links(self) -> bool:
        """True when the links between threads are known, or can be read in place."""
        return self._pool is None or len(self.store.unread_heads()) <= FEW

    async def links(self, thread: str) -> Links:
        """The links of a thread to others."""
        if self._pool is not None:
            unread = self.store.unread_heads()
            if len(unread) > FEW:
                for start in range(0, len(unread), _PIECE):
                    some = unread[start : start + _PIECE]
                    self.store.learn_edges(some, await self._pool.run(worker.edges, tuple(some)))
        return self.store.links(thread)

    async def spines(self, threads: tuple[str, ...], *, whole: bool) -> list[Spine | None]:
        """What views show of some threads, sorted by id."""
        if self._pool is None or (len(threads) <= AT_ONCE and all(map(self.is_small, threads))):
            return spines(cast("ThreadStore", self.store), threads, whole=whole)
        return await self._pool.run(worker.spines_of, threads, whole)

    def look(self, thread: str) -> Seen | None:
        """The state of a thread now; None for one that can't be told."""
        try:
            return self.store.seen(thread)
        except (KeyError, StoreError, OSError):
            return None

    def lock(self, thread: str) -> AbstractContextManager[int]:
        """The writer's lock of a thread. Entering it raises BusyError; it may wait, so not in the serving thread."""
        return writer_lock(self.store.root, thread)

    async def operate(
        self, thread: str, request: Request, expected: Seen | None = None, *, lock: int | None = None
    ) -> Result:
        """Do what was asked, see `perform`, and look at the store anew. `lock` is the writer's, where it is held."""
        try:
            return await self._operate(thread, request, expected, lock)
        finally:
            self.store.refresh()

    async def _operate(self, thread: str, request: Request, expected: Seen | None, lock: int | None) -> Result:
        if self._pool is None:
            return perform(cast("ThreadStore", self.store), thread, request, expected, held=lock is not None)
        seconds = OPERATION_SECONDS + self._cost(thread) / SLOWEST
        try:
            async with nullcontext() if lock is None else lent(lock) as address:
                done = await self._pool.alone(worker.operate, thread, request, expected, address, seconds=seconds)
        except InterruptedJobError as error:
            told = f"{error.strerror}; the thread is as it was before, or as it is after. Look before you repeat it."
            return failure(request, thread, error.errno or errno.EIO, told, certain=False)
        except OSError as error:
            return failure(request, thread, error.errno or errno.EIO, f"{error.strerror}.")
        if done.value is None:
            return failure(request, thread, done.code or errno.EIO, done.message)
        return done.value

    def _is_same(self, rollout: RolloutFile, made: Projection) -> bool:
        """True while the file that a copy was decoded from is as it was."""
        try:
            return all(self.store.status(rollout) == one for one in made.basis)
        except OSError:
            return False

    def _packed(self, rollout: RolloutFile) -> int:
        try:
            return os.stat(os.path.join(self.store.root, rollout.path)).st_size
        except OSError:
            return 0

    def _is_small_store(self) -> bool:
        ids = self.store.thread_ids()
        if len(ids) > FEW:
            return False
        total = 0
        for thread in ids:
            total += self.store.cost(thread)
            if total > self._small:
                return False
        return True
