"""Where an operation was killed the real Codex goes on: it sends what we say is remembered."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from threadstore.store import ThreadStore

from tests.interop.clones import Clones, copied_id
from tests.interop.codex import Codex
from tests.interop.conftest import EVERYTHING, MakeHome
from tests.interop.following import Following, open_store, remembered
from tests.interop.model_server import ModelServer
from tests.operations.nursery import Job, Mode, Nursery

OPERATIONS = {
    "revert_once.paginated": [("revert", "-1"), ("undo", ""), ("compact", "what was done"), ("fork", "latest")],
    "simple.legacy": [("revert", "-1"), ("compact", "what was done"), ("fork", "latest")],
}
_CLOSELY = 16  # calls that are mostly our own; most of the ones after them are SQLite's
_SAMPLE = 120 if EVERYTHING else 12  # of the calls after them
_LAST = 24  # calls, among them those that come after a database was written


def situation(store: ThreadStore, thread_id: str, child: str | None) -> tuple[object, ...]:
    """What tells one outcome of a stop from another: what is remembered, and which files are there."""
    names = [path.name for path in Path(store.root).rglob(f"*{thread_id}*")]
    kinds = Counter((name.startswith("."), name.rpartition(".")[2]) for name in names)
    return len(remembered(store, thread_id)), child is not None, tuple(sorted(kinds.items()))


def kill_everywhere(
    nursery: Nursery, home: Path, original: str, operation: tuple[str, str], first: int
) -> tuple[int, list[str]]:
    """Let the operation go through, then kill it at one call after the other, each time on a copy of its own; these
    are counted from `first`. How many copies that took, and the threads to look at: one of each situation.
    """
    store, found = open_store(home), dict[object, list[str]]()
    (report,) = nursery.run(Job(str(home), copied_id(original, first), *operation))
    assert report.status == "done", report
    rest = range(_CLOSELY, report.calls + 1)
    sample = {*range(1, min(_CLOSELY, report.calls + 1)), *rest[:: max(len(rest) // _SAMPLE, 1)]}
    numbers = sorted(sample | set(rest[-_LAST:]))
    for at, number in enumerate(numbers, 1):
        thread_id = copied_id(original, first + at)
        known = set(store.thread_ids())
        (report,) = nursery.run(Job(str(home), thread_id, *operation, mode=Mode.KILL, number=number))
        assert report.status in ("killed", "done"), report  # SQLite's calls differ from time to time
        store.refresh()
        new = [child for child in store.thread_ids() if child not in known]
        assert len(new) <= (operation[0] == "fork")
        key = (report.status, *situation(store, thread_id, new[0] if new else None))
        found.setdefault(key, [thread_id, *new])
    return len(numbers) + 1, [one for threads in found.values() for one in threads]


@pytest.mark.parametrize("name", OPERATIONS)
def test_codex_goes_on_where_we_were_killed(name: str, make_home: MakeHome, tmp_path: Path) -> None:
    """One process of Codex resumes every thread, and every child, on which an operation was killed, and runs a turn
    in it.
    """
    home = make_home(name, tmp_path)
    (original,) = open_store(home).thread_ids()
    Clones(home, len(OPERATIONS[name]) * (_CLOSELY + 2 * _SAMPLE + _LAST))
    first, threads = 1, list[str]()
    with Nursery(tmp_path) as nursery:
        for operation in OPERATIONS[name]:
            count, found = kill_everywhere(nursery, home, original, operation, first)
            assert len(found) >= 2  # as before and as after; whether a late kill still meets it varies with SQLite
            first += count
            threads += found
    with ModelServer() as model, Codex(home, model) as codex:
        following = Following(codex, open_store(home))
        for thread_id in threads:
            following.answers(thread_id)
    print(name, first - 1, "kills,", len(threads), "threads followed")
