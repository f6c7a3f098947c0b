"""What a store means: every thread's model input and effective turns, to tell one state of it from another."""

from __future__ import annotations

import json
from pathlib import Path

from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.core.reading import content

State = dict[str, tuple[bytes, tuple[str, ...]]]


def state_of(home: Path) -> State:
    """Model input and effective turns by thread id."""
    store = ThreadStore(str(home), Spool(str(home) + ".spool"))
    return {
        thread_id: (read(store, thread_id, View.MODEL_INPUT), turns_of(store, thread_id))
        for thread_id in store.thread_ids()
    }


def read(store: ThreadStore, thread_id: str, view: View) -> bytes:
    """The bytes of a derived file."""
    return content(store, store.project(thread_id, view))


def turns_of(store: ThreadStore, thread_id: str) -> tuple[str, ...]:
    """The ids of the turns that count."""
    rows = map(json.loads, read(store, thread_id, View.TURNS).split(b"\n")[:-1])
    return tuple(row["id"] for row in rows if row["effective"])


def problems_of(home: Path) -> list[str]:
    """The codes of everything that is wrong in the store's threads."""
    store = ThreadStore(str(home), Spool(str(home) + ".spool"))
    lines = [
        line for thread_id in store.thread_ids() for line in read(store, thread_id, View.PROBLEMS).split(b"\n")[:-1]
    ]
    return [json.loads(line)["code"] for line in lines]
