"""The derived files of a whole store: heads, problems, statistics (DESIGN 3)."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Protocol

from threadstore.catalog import Catalog, preference
from threadstore.errors import Problem, StoreError
from threadstore.heads import Head
from threadstore.index import Entry, IndexReader
from threadstore.projection import Basis, Projection, View, rendered
from threadstore.statedb import StateDatabase
from threadstore.tallies import Sums, Tally, tally
from threadstore.views import line, page, problem_lines

_TALLIES = 50_000  # threads of which is remembered what they add to statistics, about 1 KiB each
_SLICE = 500  # threads that an index is asked for at once


class Store(Protocol):
    """What is asked of a `ThreadStore`."""

    def thread_ids(self) -> list[str]: ...  # noqa: D102  described in ThreadStore
    def project(self, thread_id: str, view: View) -> Projection: ...  # noqa: D102
    def is_current(self, thread_id: str, projection: Projection) -> bool: ...  # noqa: D102
    def is_entry_current(self, thread_id: str, entry: Entry) -> bool: ...  # noqa: D102


class Tallies:
    """What each thread adds to the statistics: from the index, else made once for as long as its files are the same."""

    def __init__(self, index: IndexReader | None) -> None:
        self._index = index
        self._known: OrderedDict[str, tuple[Projection, Tally]] = OrderedDict()

    def forget(self, thread_id: str) -> None:
        """The thread is gone."""
        self._known.pop(thread_id, None)

    def of_all(self, store: Store) -> Iterator[Tally | None]:
        """Those of all threads; None for one that can't be read."""
        ids = store.thread_ids()
        for first in range(0, len(ids), _SLICE):
            some = ids[first : first + _SLICE]
            indexed = {} if self._index is None else self._index.tallies(some[0], some[-1])
            for thread_id in some:
                entry, known = indexed.get(thread_id, (None, None))
                try:
                    holds = entry is not None and store.is_entry_current(thread_id, entry)
                    yield known if holds else self._made(store, thread_id)
                except (KeyError, StoreError, OSError):
                    yield None

    def _made(self, store: Store, thread_id: str) -> Tally:
        known = self._known.get(thread_id)
        if known is None or not store.is_current(thread_id, known[0]):
            turns = store.project(thread_id, View.TURNS)
            usage = store.project(thread_id, View.USAGE)
            known = replace(usage, extents=None), tally(rendered(turns), rendered(usage))
            self._known[thread_id] = known
            if len(self._known) > _TALLIES:
                self._known.popitem(last=False)
        return known[1]


def heads(selected: Mapping[str, Head]) -> bytes:
    """The content of `heads.jsonl`: which rollout of each thread is selected, which a restored store must know."""
    return b"".join(
        line(
            {
                "thread_id": thread_id,
                "rollout_id": head.rollout.rollout_id,
                "file": head.rollout.path,
                "selected_by": head.by,
            }
        )
        for thread_id, head in selected.items()
    )


def problems(catalog: Catalog, database: StateDatabase, selected: Mapping[str, Head]) -> bytes:
    """The content of the store's `problems.jsonl`. Damage inside rollouts is in the file of its thread."""
    found = catalog.problems()
    for thread_id in database.ids():
        if thread_id not in selected:
            message = f"the database has a row of thread {thread_id}, of which no rollout is in the store"
            found.append(Problem("index_ghost", "state database", None, None, message, "the thread is not shown"))
    if database.problem is not None:
        found.append(database.problem)
    found += [head.problem for head in selected.values() if head.problem is not None]
    return problem_lines(found)


def stats(root: str, catalog: Catalog, database: StateDatabase, tallies: Iterable[Tally | None]) -> bytes:
    """The content of `stats.json`: counts, bytes as they lie on disk, and tokens."""
    sums = Sums()
    for one in tallies:
        sums.add(one)
    rollouts = [rollout for files in catalog.threads.values() for rollout in files]
    return page(
        {
            "threads": len(catalog.threads),
            "archived_threads": sum(max(files, key=preference).archived for files in catalog.threads.values()),
            "rollouts": len(rollouts),
            "superseded_rollouts": len(rollouts) - len(catalog.threads),
            "compressed_rollouts": sum(rollout.compressed for rollout in rollouts),
            "bytes": sum(_sizes(os.path.join(root, rollout.path) for rollout in rollouts)),
            "database": bool(database.identity()) and database.problem is None,
            **sums.render(),
        }
    )


def newest(root: str, catalog: Catalog, database: StateDatabase) -> tuple[Basis, ...]:
    """What of a store changed last: a folder, rollout or database. The times of files about the whole store are
    its.
    """
    rollouts = (rollout.path for files in catalog.threads.values() for rollout in files)
    candidates = chain(catalog.folders(), rollouts, (name for name, *_ in database.identity()))
    found = max(_bases(root, candidates), key=lambda basis: basis.mtime_ns, default=None)
    return () if found is None else (found,)


def _bases(root: str, paths: Iterable[str]) -> Iterator[Basis]:
    for path in paths:
        try:
            status = os.stat(os.path.join(root, path))
        except OSError:
            continue  # gone, or not ours to see
        yield Basis.of(path, status)


def _sizes(paths: Iterable[str]) -> Iterable[int]:
    for path in paths:
        try:
            yield os.stat(path, follow_symlinks=False).st_size
        except OSError:
            continue  # gone or not ours to see since the folder was read
