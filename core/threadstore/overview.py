"""The derived files of a whole store: heads, problems, statistics (DESIGN 3)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from threadstore.catalog import Catalog, preference
from threadstore.errors import Problem
from threadstore.heads import Head, StateDatabase
from threadstore.projection import Basis
from threadstore.tallies import Sums, Tally
from threadstore.views import line, page, problem_lines


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
    for tally in tallies:
        sums.add(tally)
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
        yield Basis(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _sizes(paths: Iterable[str]) -> Iterable[int]:
    for path in paths:
        try:
            yield os.stat(path, follow_symlinks=False).st_size
        except OSError:
            continue  # gone or not ours to see since the folder was read
