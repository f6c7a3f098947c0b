"""What tells how a thread was selected holds only as long as the databases say so."""

from __future__ import annotations

import sqlite3
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
