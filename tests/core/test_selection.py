"""What tells how a thread was selected holds only as long as the databases say so."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.conftest import CopyStore
from tests.core.reading import content


def test_a_row_that_names_a_missing_file(copy_store: CopyStore, tmp_path: Path) -> None:
    """No projection counts as current whose content would be another one now."""
    home = copy_store("simple.legacy").home
    store = ThreadStore(str(home), Spool(str(tmp_path / "spool")))
    (thread,) = store.thread_ids()
    before = {view: store.project(thread, view) for view in View}
    (database,) = home.glob("state_*.sqlite")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE threads SET rollout_path = ?", (f"{home}/sessions/rollout-gone.jsonl",))
    changed = {view for view in View if content(store, store.project(thread, view)) != content(store, before[view])}
    assert changed == {View.THREAD, View.PROBLEMS, View.LINEAGE}
    assert not any(store.is_current(thread, before[view]) for view in changed)


def test_a_row_that_is_written_again_within_one_tick(copy_store: CopyStore, tmp_path: Path) -> None:
    """Two changes of a database may bear one time and leave the same sizes: the second one is seen nevertheless."""
    home = copy_store("forks.paginated").home
    (database,) = home.glob("state_*.sqlite")
    store = ThreadStore(str(home), Spool(str(tmp_path / "spool")))
    thread = store.thread_ids()[0]
    now = time.time_ns() + 60 * 10**9  # as young as can be, however slow the machine is
    for name in ("one", "two"):
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE threads SET name = ? WHERE id = ?", (name, thread))
        os.utime(database, ns=(now, now))
        made = store.project(thread, View.THREAD)
        assert json.loads(content(store, made))["name"] == name
        assert not store.is_current(thread, made)
    os.utime(database, ns=(now - 120 * 10**9, now - 120 * 10**9))
    made = store.project(thread, View.THREAD)
    assert store.is_current(thread, made)
