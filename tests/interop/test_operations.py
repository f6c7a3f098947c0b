"""After every operation of ours the real Codex goes on with the thread, and we read what it makes of it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from threadstore.cut import NoSuchTurnError, RequestError
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.core.reading import content
from tests.corpus_store import store_folders
from tests.interop.cases import CASES, Case, at_turns, turn_ids
from tests.interop.clones import Clones, copied_id
from tests.interop.codex import KINDS, Codex, databases
from tests.interop.conftest import EVERYTHING, FRESH, MakeHome
from tests.interop.following import Following, lines, open_store
from tests.interop.model_server import ModelServer

Json = dict[str, Any]
UNMOVED = ("created_at", "created_at_ms", "name", "title", "preview", "first_user_message")  # as far as there are any
WAYS = ("present", "deleted", "stale")
#: Codex 0.171.0 can't read these, or they hold no thread with a turn.
UNREADABLE = ("old_0.20.0_basic", "old_0.20.0_autocompact")
#: What a part of the corpus adds to the fresh stores.
CHOSEN = (
    "compact_auto.legacy",
    "compact_last.paginated",
    "compact_remote.paginated",
    "dynamic_tools.legacy",
    "failed_turn.paginated",
    "images.paginated",
    "killed_torn.paginated",
    "lite_code_mode.legacy",
    "lite_code_mode.paginated",
    "old_0.100.0_basic_autocompact",
    "old_0.47.0_basic",
    "old_0.80.0_basic_autocompact",
    "revert_forked.paginated",
    "steer.paginated",
    "subagents_v1.paginated",
    "subagents_v2.legacy",
    "world_state.paginated",
)
_WORKERS = 3  # threads of a store that are followed at the same time
_THOROUGH = 6  # of a part, every so many-th thread is followed through forks and reverts of Codex's own


@dataclass(frozen=True, slots=True)
class Done:
    """An operation that was carried out: on which thread, and which thread to look at."""

    label: str
    kind: str
    source: str
    result: str


def worlds() -> Iterator[tuple[str, str]]:
    """Stores and ways; of the chosen part each store is taken in one way."""
    stores = [name for name in store_folders() if name not in UNREADABLE] if EVERYTHING else list(CHOSEN)
    for number, name in enumerate([*FRESH, *stores]):
        for way in WAYS if EVERYTHING or name in FRESH else WAYS[number % 3 :][:1]:
            yield name, way


def share_of(name: str) -> int:
    """One in how many cases is carried out in each way; with everything, each one on a fresh store, and on a store of
    the corpus each one in one of the ways.
    """
    return 1 if EVERYTHING and name in FRESH else len(WAYS)


def cases_of(store: ThreadStore, thread_id: str, number: int, share: int) -> list[Case]:
    """The cases for a thread; only one in `share`, others for each `number`."""
    cases = [*CASES, *at_turns(store, thread_id)] if turn_ids(store, thread_id) else [*CASES]
    return [case for at, case in enumerate(cases) if (at + number) % share == 0]


def about(store: ThreadStore, thread_id: str) -> tuple[Any, ...]:
    """What an operation on a thread must never move: when it was created, and its name."""
    store.refresh()
    shown = json.loads(content(store, store.project(thread_id, View.THREAD)))
    rows: list[Any] = []
    for database in databases(Path(store.root)):
        with closing(sqlite3.connect(database)) as connection:
            there = {row[1] for row in connection.execute("PRAGMA table_info(threads)")}
            columns = ", ".join(name for name in UNMOVED if name in there)
            rows += connection.execute(f"SELECT {columns} FROM threads WHERE id = ?", (thread_id,)).fetchall()
    return shown["created_at"], shown["name"], rows


def carry_out(store: ThreadStore, todo: dict[str, list[Case]]) -> tuple[list[Done], list[str]]:
    """Each case on a copy of its thread; what was done, and what is wrong with it."""
    done, wrong = [], []
    for original, cases in todo.items():
        for number, case in enumerate(cases, 1):
            thread_id = copied_id(original, number)
            before = about(store, thread_id)
            try:
                result = case.operate(store, thread_id)
            except (RequestError, NoSuchTurnError):
                continue  # it means nothing here, such as a second revert of the only turn
            label = f"{original} {case.name}"
            done.append(Done(label, case.kind, thread_id, result))
            if about(store, thread_id) != before:
                wrong.append(f"{label}: {about(store, thread_id)} was {before}")
    return done, wrong


def chosen(done: list[Done]) -> Iterator[int]:
    """Which of them are followed through forks and reverts of Codex's own: with everything, one of each kind of
    operation, on another thread each time where there are several.
    """
    if not EVERYTHING:
        yield from range(0, len(done), _THOROUGH)
        return
    kinds: dict[str, list[int]] = {}
    for at, one in enumerate(done):
        kinds.setdefault(one.kind, []).append(at)
    for number, places in enumerate(kinds.values()):
        yield places[number % len(places)]


def follow(codex: Codex, scratch: Path, done: list[Done], *, ordered: bool) -> list[str]:
    """Let Codex go on with every thread; what is wrong."""
    thorough = set(chosen(done))

    def work(worker: int) -> list[str]:
        wrong = []
        store = ThreadStore(str(codex.home), Spool(str(scratch / f"spool-{worker}")))
        following = Following(codex, store, ordered=ordered)
        for at, one in list(enumerate(done))[worker::_WORKERS]:
            try:
                if at in thorough:
                    following.goes_on(one.result)
                else:
                    following.answers(one.result)
            except Exception:  # noqa: BLE001 - whatever it is, the others are looked at too
                wrong.append(f"{one.label}: {traceback.format_exc()}")
        return wrong

    with ThreadPoolExecutor(_WORKERS) as pool:
        return [line for wrong in pool.map(work, range(_WORKERS)) for line in wrong]


def has_words(store: ThreadStore, thread_id: str, way: str) -> bool:
    """True for a thread in which a person said something that counts. Without its database Codex does not look for that
    in what a thread inherits: its own forks, too, are in no list then before their first turn.
    """
    own = {rollout.path for rollout in store.rollouts(thread_id)}
    return any(
        turn["user"] and (way == "present" or turn["start"]["file"] in own)
        for turn in lines(store, thread_id, View.TURNS)
        if turn["effective"]
    )


def unlisted(codex: Codex, store: ThreadStore, originals: list[str], done: list[Done], way: str) -> list[str]:
    """What is wrong with Codex's lists of threads. A thread in which nobody said anything is in none before its first
    turn.
    """
    files = {thread["id"] for thread in codex.listed(sourceKinds=KINDS)}
    rows = Counter(thread["id"] for thread in codex.known())
    listed = files | set(rows)
    hidden = {thread_id[:-3] for thread_id in store.thread_ids() if thread_id not in listed and thread_id in originals}
    wrong = [
        f"{one.label}: {one.result} is not listed"
        for one in done
        if one.result not in listed and has_words(store, one.result, way) and one.result[:-3] not in hidden
    ]
    wrong += [f"{thread_id} is listed {count} times" for thread_id, count in rows.items() if count > 1]
    return wrong + [f"{thread_id} is listed, but is no thread" for thread_id in listed if thread_id not in store]


@pytest.mark.parametrize(("name", "way"), list(worlds()))
def test_codex_goes_on(name: str, way: str, make_home: MakeHome, tmp_path: Path) -> None:
    """Codex resumes every thread that we forked, reverted or compacted, sends what our model_input.jsonl says, and
    lists it once.

    The turn of a review runs inside another one. Which comes first Codex itself turns round in a fork of its own that
    is cut behind them.
    """
    home = make_home(name, tmp_path)
    if way == "deleted":
        for database in home.glob("*.sqlite*"):
            database.unlink()
    store = open_store(home)
    originals = store.thread_ids()
    todo = {
        thread_id: cases_of(store, thread_id, number + WAYS.index(way), share_of(name))
        for number, thread_id in enumerate(originals if name in FRESH or EVERYTHING else originals[:3])
    }
    Clones(home, max(map(len, todo.values())))
    kept = tmp_path / "kept"
    kept.mkdir()
    for database in home.glob("*.sqlite*"):
        shutil.copy(database, kept)
    store = open_store(home)
    done, wrong = carry_out(store, todo)
    assert done
    if way == "stale":  # somebody puts a database back that knows nothing of all this
        for database in kept.iterdir():
            shutil.copy(database, home)
    with ModelServer() as model, Codex(home, model) as codex:
        wrong += unlisted(codex, store, originals, done, way)
        wrong += follow(codex, tmp_path, done, ordered=not name.startswith("review."))
    if wrong:
        pytest.fail("\n".join(wrong))
