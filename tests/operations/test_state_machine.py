"""Long lives of a store: whatever is done to its threads, by us, by Codex and by accidents, in whatever order, each is
what a plain model says.

Forks become threads that are worked on as well. After every step all threads are compared with their models, nothing
is damaged that wasn't damaged on purpose, no byte of a log that was there has changed, and a thread keeps its name and
the time of its creation.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from threadstore.cut import Boundary, NoSuchTurnError, RequestError
from threadstore.errors import StoreError
from threadstore.names import parse_rollout
from threadstore.operations import Outcome
from threadstore.projection import View
from threadstore.recorder import Draft
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.operations.model import Model, append, meta, said, turn
from tests.operations.snapshots import read, turns_of

_MOST = 4  # threads
_LONG = 25  # steps of a life
_COLUMNS = (
    "id TEXT PRIMARY KEY, rollout_path TEXT, history_mode TEXT, archived INTEGER, name TEXT, title TEXT, preview TEXT, "
    "first_user_message TEXT, tokens_used INTEGER, updated_at INTEGER, updated_at_ms INTEGER"
)
_TORN = b'{"timestamp":"2026-01-01T00:00:00.000Z","type":"response_item","payload":{"type":"mess'

#: Which thread, turn, kind: rules take any number, and what it means depends on what there is.
ANY = st.integers(0, 1 << 16)
TURN = st.sampled_from([-3, -2, -1, 1, 2, 3, 4, 9])
ACCIDENTS = (
    "codex_dies",
    "a_newline_is_lost",
    "codex_archives",
    "codex_compresses",
    "make_database",
    "lose_database",
    "database_is_stale",
)


@dataclass
class Thread:
    """A thread as it should be: the model of each of its generations by the name of its rollout, oldest first."""

    paginated: bool
    generations: dict[str, Model]
    head: str
    archived: bool = False
    torn: bool = False  # a line of it, or of what it is made from, was cut on purpose
    facts: list[object] = field(default_factory=list)  # what never changes, once it was seen

    @property
    def model(self) -> Model:
        """What it is now."""
        return self.generations[self.head]

    @property
    def newest(self) -> str:
        """The generation that counts without a database: names order by time and id."""
        return max(self.generations)


class Store(RuleBasedStateMachine):
    """The steps of a life."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="life-"))
        self.home = self.folder / "home"
        self.threads: dict[str, Thread] = {}
        self.bytes: dict[str, bytes] = {}  # of each rollout, by name
        self.count = 0
        self.warm: ThreadStore | None = None

    def teardown(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.folder)

    # What there is

    @initialize(kinds=st.lists(st.booleans(), min_size=1, max_size=2), sqlite=st.booleans())
    def begin(self, kinds: list[bool], sqlite: bool) -> None:
        """A store with a thread or two, each with three turns and a name."""
        folder = self.home / "sessions" / "2026" / "01" / "01"
        folder.mkdir(parents=True)
        for number, paginated in enumerate(kinds):
            thread_id = f"01a22938-0000-7000-8000-00000000000{number + 1}"
            name = f"rollout-2026-01-01T00-00-00-{thread_id}.jsonl"
            records = [Draft.of("session_meta", meta(thread_id, paginated=paginated))]
            append(folder / name, records, paginated=paginated, create=True)
            self.threads[thread_id] = Thread(paginated, {name: Model()}, name)
            with (self.home / "session_index.jsonl").open("a") as index:
                index.write(json.dumps({"id": thread_id, "thread_name": f"name {number}", "updated_at": "t"}) + "\n")
            for _ in range(3):
                self._turn(thread_id)
        self.warm = ThreadStore(str(self.home), Spool(str(self.folder / "warm")))
        if sqlite:
            self.make_database()
        self.bytes = self._bytes()

    def _files(self) -> dict[str, Path]:
        """Every rollout, by its name without .zst."""
        found = {}
        for path in self.home.rglob("rollout-*"):
            name = path.name.removesuffix(".zst")
            assert name not in found
            found[name] = path
        return found

    def _bytes(self) -> dict[str, bytes]:
        return {
            name: zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
            if path.suffix == ".zst"
            else path.read_bytes()
            for name, path in self._files().items()
        }

    def _pick(self, number: int) -> tuple[str, Thread]:
        thread_id = sorted(self.threads)[number % len(self.threads)]
        return thread_id, self.threads[thread_id]

    def _store(self, number: int) -> ThreadStore:
        """One that was there all the time, or one that has seen nothing yet."""
        assert self.warm is not None
        return self.warm if number % 2 else self._cold()

    def _cold(self) -> ThreadStore:
        return ThreadStore(str(self.home), Spool(str(self.folder / "cold")))

    # Codex

    def _turn(self, thread_id: str, *, ended: bool = True) -> None:
        thread = self.threads[thread_id]
        self.count += 1
        path = self._plain(thread.head)
        append(path, turn(thread_id, self.count, paginated=thread.paginated, ended=ended), paginated=thread.paginated)
        thread.model.turn(f"said {self.count}", ended=ended)

    def _plain(self, name: str) -> Path:
        """The file of a rollout, decompressed as Codex does before it appends."""
        path = self._files()[name]
        if path.suffix == ".zst":
            plain = path.with_suffix("")
            plain.write_bytes(self._bytes()[name])
            path.unlink()
            path = plain
        return path

    @rule(which=ANY, ended=st.sampled_from([True, True, True, False]))
    def codex_appends(self, which: int, ended: bool) -> None:
        """A turn, which may not have ended yet."""
        thread_id, thread = self._pick(which)
        if not thread.archived:
            self._turn(thread_id, ended=ended)
            self._moved(thread.head)

    # Accidents, and what Codex does now and then

    @rule(kind=st.sampled_from(ACCIDENTS), which=ANY, number=ANY)
    def something_happens(self, kind: str, which: int, number: int) -> None:
        """One of them."""
        getattr(self, kind)(which, number)

    def codex_dies(self, which: int, number: int) -> None:
        """Its last line has no end."""
        _, thread = self._pick(which)
        if not thread.archived:
            path = self._plain(thread.head)
            data = path.read_bytes()
            if data.endswith(b"\n"):
                path.write_bytes(data + _TORN[: 1 + number % len(_TORN)])
                thread.torn = True
                self._moved(thread.head)

    def a_newline_is_lost(self, which: int, number: int) -> None:
        """The last line of a turn is whole, but for that."""
        thread_id, thread = self._pick(which)
        if not thread.archived:
            self._turn(thread_id)
            path = self._plain(thread.head)
            path.write_bytes(path.read_bytes()[:-1])
            self._moved(thread.head)

    def codex_archives(self, which: int, number: int) -> None:
        """All files of the thread go to another folder, or come back."""
        thread_id, thread = self._pick(which)
        for name, path in self._files().items():
            if name in thread.generations:
                stamp = name[8:18].split("-")
                folder = self.home.joinpath("sessions", *stamp) if thread.archived else self.home / "archived_sessions"
                folder.mkdir(parents=True, exist_ok=True)
                path.rename(folder / path.name)
        thread.archived = not thread.archived
        self._point(thread_id, str(self._files()[thread.head]))

    def codex_compresses(self, which: int, number: int) -> None:
        """A rollout, whether it is in force or not."""
        _, thread = self._pick(which)
        path = self._files()[sorted(thread.generations)[number % len(thread.generations)]]
        if path.suffix != ".zst":
            path.with_name(path.name + ".zst").write_bytes(zstandard.compress(path.read_bytes()))
            path.unlink()

    # The database

    def _databases(self) -> list[Path]:
        return list(self.home.glob("state_*.sqlite"))

    def _point(self, thread_id: str, path: str) -> None:
        for database in self._databases():
            with closing(sqlite3.connect(database)) as connection, connection:
                connection.execute("UPDATE threads SET rollout_path = ? WHERE id = ?", (path, thread_id))

    def _rows(self) -> dict[str, str]:
        for database in self._databases():
            with closing(sqlite3.connect(database)) as connection:
                return dict(connection.execute("SELECT id, rollout_path FROM threads").fetchall())
        return {}

    def make_database(self, which: int = 0, number: int = 0) -> None:
        """Codex makes a new one from the files."""
        if self._databases():
            return
        with closing(sqlite3.connect(self.home / "state_5.sqlite")) as connection, connection:
            connection.execute(f"CREATE TABLE threads ({_COLUMNS})")
            for thread_id, thread in self.threads.items():
                thread.head = thread.newest
                mode = "paginated" if thread.paginated else "legacy"
                row = (thread_id, str(self._files()[thread.head]), mode, 0, None, "", "", "", 0, 0, 0)
                connection.execute("INSERT INTO threads VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def lose_database(self, which: int, number: int) -> None:
        """The greatest names count from now on."""
        for database in self._databases():
            database.unlink()
        for thread in self.threads.values():
            thread.head = thread.newest

    def database_is_stale(self, which: int, number: int) -> None:
        """It is that of a backup, or of another machine: an old generation, a file that isn't there, another folder."""
        thread_id, thread = self._pick(which)
        if thread_id not in self._rows():
            return
        kind = ("older", "moved", "gone")[number % 3]
        if kind == "older":
            thread.head = sorted(thread.generations)[number // 3 % len(thread.generations)]
            self._point(thread_id, str(self._files()[thread.head]))
        elif kind == "moved":
            self._point(thread_id, f"/elsewhere/.codex/sessions/2026/01/01/{thread.head}")
        else:
            thread.head = thread.newest
            self._point(
                thread_id, f"{self.home}/sessions/2026/01/01/rollout-2026-01-01T00-00-00-{thread_id[:-1]}f.jsonl"
            )

    # Operations

    def _moved(self, *names: str, new: int = 0) -> None:
        """Those files may have grown, and so many are new; no other byte is another one."""
        now = self._bytes()
        for name, data in self.bytes.items():
            assert now[name] == data or (name in names and now[name].startswith(data)), name
        assert len(now) == len(self.bytes) + new
        self.bytes = now

    def _try(
        self,
        error: type[StoreError] | None,
        after: Model | None,
        operation: object,
        *arguments: object,
        **more: object,
    ) -> Outcome | None:
        """Do it, and be told which turns `after` hasn't; with `error` it must be refused, and nothing changes."""
        assert callable(operation)
        if error is None:
            assert after is not None
            thread_id = str(arguments[0])
            turns = turns_of(self._cold(), thread_id)
            outcome = operation(*arguments, **more)
            assert isinstance(outcome, Outcome)
            assert outcome.dropped_turns == [turns[at] for at in self.threads[thread_id].model.dropped(after)]
            return outcome
        before = {path: path.read_bytes() for path in self.home.rglob("*") if path.is_file()}
        with pytest.raises(error):
            operation(*arguments, **more)
        now = {path: path.read_bytes() for path in self.home.rglob("*") if path.is_file()}
        assert {path: now[path] for path in now if path.suffix != ".lock"} == {
            path: before[path] for path in before if path.suffix != ".lock"
        }
        return None

    @rule(
        which=ANY, kind=st.sampled_from(["latest", "before", "through"]), number=TURN, store=ANY, dry_run=st.booleans()
    )
    def fork(self, which: int, kind: str, number: int, store: int, dry_run: bool) -> None:
        """A new thread; any can be forked."""
        if len(self.threads) >= _MOST:
            dry_run = True
        thread_id, thread = self._pick(which)
        error: type[StoreError] | None = None
        at = thread.model.index(number)
        if kind != "latest" and at is None:
            error = NoSuchTurnError
        elif kind == "through" and at is not None and not thread.model.turns[at].ended:
            error = RequestError
        boundary = Boundary(kind, "" if kind == "latest" else str(number))
        model = thread.model
        if kind != "latest" and at is not None:
            model = model.cut(number, through=kind == "through")
        outcome = self._try(error, model, self._store(store).fork, thread_id, boundary, dry_run=dry_run)
        if outcome is None or dry_run:
            self._moved()
            return
        self._moved(new=1)
        assert outcome.rollout is not None
        name = Path(outcome.rollout).name
        child = Thread(thread.paginated, {name: model.interrupted()}, name, torn=thread.torn)
        self.threads[outcome.thread_id] = child

    @rule(which=ANY, number=TURN, store=ANY, dry_run=st.sampled_from([False, False, True]))
    def revert(self, which: int, number: int, store: int, dry_run: bool) -> None:
        """A thread goes back; a legacy one not beyond its last checkpoint."""
        thread_id, thread = self._pick(which)
        at = thread.model.index(number)
        error: type[StoreError] | None = None
        if thread.archived:
            error = RequestError
        elif at is None:
            error = NoSuchTurnError
        elif not thread.paginated and any(turn.compaction for turn in thread.model.turns[at:]):
            error = RequestError
        after = None if at is None else thread.model.cut(number)
        outcome = self._try(error, after, self._store(store).revert, thread_id, str(number), dry_run=dry_run)
        if outcome is None or after is None or dry_run:
            self._moved()
        elif thread.paginated:
            self._next(thread_id, thread, outcome, after)
        else:
            self._moved(thread.head)
            thread.generations[thread.head] = after

    @rule(which=ANY, store=ANY, dry_run=st.sampled_from([False, False, True]))
    def undo(self, which: int, store: int, dry_run: bool) -> None:
        """The generation before goes on."""
        thread_id, thread = self._pick(which)
        older = [name for name in sorted(thread.generations) if name < thread.head]
        error = RequestError if thread.archived or not thread.paginated or not older else None
        after = thread.generations[older[-1]].copy() if older else None
        outcome = self._try(error, after, self._store(store).undo, thread_id, dry_run=dry_run)
        if outcome is None or after is None or dry_run:
            self._moved()
        else:
            self._next(thread_id, thread, outcome, after)

    def _next(self, thread_id: str, thread: Thread, outcome: Outcome, model: Model) -> None:
        self._moved(new=1)
        assert outcome.rollout is not None
        name = Path(outcome.rollout).name
        assert name > thread.newest
        rows = self._rows()
        if thread_id in rows:
            assert rows[thread_id] == str(self.home / outcome.rollout)
        thread.generations[name], thread.head = model, name

    @rule(
        which=ANY,
        summary=st.sampled_from(["the summary", None]),
        store=ANY,
        dry_run=st.sampled_from([False, False, True]),
    )
    def compact(self, which: int, summary: str | None, store: int, dry_run: bool) -> None:
        """A turn in which nothing is said."""
        thread_id, thread = self._pick(which)
        error = RequestError if thread.archived else None
        outcome = self._try(error, thread.model, self._store(store).compact, thread_id, summary, dry_run=dry_run)
        if outcome is None or dry_run:
            self._moved()
        else:
            self._moved(thread.head)
            thread.model.turn(None)
            assert outcome.rollout == str(self._files()[thread.head].relative_to(self.home))

    # What always holds

    @invariant()
    def every_thread_is_what_its_model_says(self) -> None:
        """Read by somebody who has seen nothing before."""
        if not self.threads:
            return
        store = self._cold()
        assert set(store.thread_ids()) == set(self.threads)
        for thread_id, thread in self.threads.items():
            assert store.head(thread_id).plain_path.rpartition("/")[2] == thread.head
            assert said(read(store, thread_id, View.MODEL_INPUT)) == thread.model.said
            assert len(turns_of(store, thread_id)) == len(thread.model.turns)
            problems = {json.loads(line)["code"] for line in read(store, thread_id, View.PROBLEMS).split(b"\n")[:-1]}
            assert problems <= {"index_ghost"} | ({"torn_tail", "bad_json", "torn_line"} if thread.torn else set())
            page = json.loads(read(store, thread_id, View.THREAD))
            facts = [page["created_at"], page["name"]]
            thread.facts = thread.facts or facts
            assert facts == thread.facts

    @invariant()
    def who_was_there_all_the_time_sees_the_same(self) -> None:
        """One thread a step."""
        if not self.threads or self.warm is None:
            return
        self.warm.refresh()
        thread_id, thread = self._pick(self.count + len(self.bytes))
        assert said(read(self.warm, thread_id, View.MODEL_INPUT)) == thread.model.said
        assert read(self.warm, thread_id, View.TURNS) == read(self._cold(), thread_id, View.TURNS)

    @invariant()
    def every_line_is_whole(self) -> None:
        """Ordinals of paginated rollouts go up by one; no file of ours is left behind."""
        for name, data in self.bytes.items():
            rollout = parse_rollout(name)
            assert rollout is not None
            if self.threads and self.threads[rollout.thread_id].paginated:
                ordinals = [json.loads(line)["ordinal"] for line in data.split(b"\n") if _is_record(line)]
                assert ordinals == list(range(ordinals[0], ordinals[0] + len(ordinals)))
        assert list(self.home.rglob("*.partial")) == []
        locks = self.home / "thread-writer-locks"
        assert not locks.exists() or os.listdir(locks) == [".coordination.lock"]


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def test_a_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any life. LIFE_STEPS=10000 tries that many steps, --hypothesis-seed other ones."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    steps = int(os.environ.get("LIFE_STEPS") or 1000)
    few = settings(
        max_examples=max(steps // _LONG, 1),
        stateful_step_count=_LONG,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[
            Phase.explicit,
            Phase.reuse,
            Phase.generate,
        ],  # a life is short enough to be read, shrinking takes minutes
    )
    run_state_machine_as_test(Store, settings=few)
