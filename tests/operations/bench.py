"""Cases for the crash tests, fresh copies of their stores, and what may be left of one afterwards."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import zstandard
from threadstore.names import parse_rollout
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.operations.driver import run
from tests.operations.nursery import Job, Mode, Report
from tests.operations.snapshots import State, problems_of, state_of
from tests.witness import Witness

_IDS = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
Shape = list[tuple[bool, bytes, int]]


@dataclass(frozen=True, slots=True)
class Case:
    """An operation on a thread of a corpus store; `first` are operations on it before that."""

    store: str
    operation: str
    argument: str = ""
    sqlite: bool = False
    first: tuple[tuple[str, str], ...] = ()
    at_length: bool = False  # only when everything is tried

    def __str__(self) -> str:
        first = "".join(f"{operation} {argument}, " for operation, argument in self.first)
        return f"{self.store} {first}{self.operation} {self.argument}".strip() + (" with SQLite" * self.sqlite)


CASES = [
    Case("forks.paginated", "fork", "latest", sqlite=True),
    Case("forks.paginated", "fork", "through 1"),
    Case("forks.paginated", "fork", "before 2"),
    Case("forks.legacy", "fork", "latest"),
    Case("forks.legacy", "fork", "through 1", sqlite=True, at_length=True),
    Case("forks.legacy", "fork", "before -1"),
    Case("interrupted.paginated", "fork", "latest"),
    Case("archived.paginated", "fork", "latest"),
    Case("archived.legacy", "fork", "latest"),
    Case("compressed.paginated", "fork", "before -1"),
    Case("forks.paginated", "fork", "latest", first=(("revert", "-1"),)),
    Case("forks.paginated", "revert", "-1", sqlite=True),
    Case("forks.paginated", "revert", "2"),
    Case("forks.paginated", "revert", "1"),
    Case("compressed.paginated", "revert", "-1"),
    Case("forks.legacy", "revert", "-1", sqlite=True, at_length=True),
    Case("forks.legacy", "revert", "2"),
    Case("compressed.legacy", "revert", "-1"),
    Case("revert_once.paginated", "undo", sqlite=True, at_length=True),
    Case("forks.paginated", "undo", first=(("revert", "1"),)),
    Case("forks.paginated", "compact", "what was done", sqlite=True, at_length=True),
    Case("forks.paginated", "compact"),
    Case("forks.legacy", "compact", "what was done"),
    Case("forks.legacy", "compact"),
    Case("killed_torn.paginated", "compact", "what was done"),
    Case("compressed.legacy", "compact", "what was done", sqlite=True),
    Case("compressed.paginated", "compact"),
]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a store consists of, but for locks, databases and temporary files: rollouts decoded, and which of them are
    selected. Everything that is shown is made from that.
    """

    rollouts: dict[str, bytes]
    heads: dict[str, str]

    @classmethod
    def of(cls, home: Path) -> Facts:
        """As a reader finds it."""
        store = open_store(home)
        heads = {thread_id: store.head(thread_id).plain_path for thread_id in store.thread_ids()}
        paths = [path for path in home.rglob("rollout-*") if parse_rollout(str(path))]
        return cls({str(path.relative_to(home)).removesuffix(".zst"): _decoded(path) for path in paths}, heads)


class Bench:
    """One case: a store with a single thread that every run gets a fresh copy of."""

    def __init__(self, case: Case, store: Path, folder: Path) -> None:
        self.case = case
        self.home = folder / "home"
        original = folder / "original"
        shutil.copytree(store, original)
        heads = Facts.of(original).heads
        archived = [thread_id for thread_id, path in heads.items() if path.startswith("archived")]
        self.thread_id = archived[0] if archived else next(iter(heads))
        self._leave_only(original)
        for operation, argument in case.first:
            run(str(original), self.thread_id, operation, argument)
        shutil.rmtree(original / "thread-writer-locks", ignore_errors=True)
        self._files = {path.relative_to(original): path.read_bytes() for path in original.rglob("*") if path.is_file()}
        self.fresh()
        self.facts = Facts.of(self.home)
        self.rows = rows_of(self.home)
        self.before = state_of(self.home)
        self.problems = set(problems_of(self.home))
        self.after: Shape = []
        self.retried: set[frozenset[str]] = set()  # what was left where a retry succeeded
        self.expected = Report("")  # of a run that nothing happens to

    def _leave_only(self, home: Path) -> None:
        """Take the other threads away: every look at the store is quick then."""
        for path in home.rglob("rollout-*"):
            if self.thread_id not in path.name:
                path.unlink()
        for database in home.glob("state_*.sqlite"):
            with closing(sqlite3.connect(database)) as connection:
                connection.execute("DELETE FROM threads WHERE id != ?", (self.thread_id,))
                connection.commit()

    def fresh(self) -> str:
        """A copy to work on."""
        for folder in (self.home, Path(f"{self.home}.spool")):
            shutil.rmtree(folder, ignore_errors=True)
        for path, data in self._files.items():
            target = self.home / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        self._witness = Witness(self.home)
        return str(self.home)

    def look(self) -> Facts:
        """The store as it is now; whatever happened, no fact is lost and nothing outside was touched."""
        self._witness.check()
        return Facts.of(self.home)

    def job(self, mode: Mode = Mode.COUNT, number: int = 0, error: int = 0) -> Job:
        """The operation on the copy."""
        return self.other(self.case.operation, self.case.argument, mode, number, error)

    def other(self, operation: str, argument: str, mode: Mode = Mode.COUNT, number: int = 0, error: int = 0) -> Job:
        """Another operation on the same thread."""
        return Job(str(self.home), self.thread_id, operation, argument, mode, number, error)

    def is_before(self, now: Facts) -> bool:
        """True when nothing has happened: what is selected, and every file that was there, is as it was, or is shown
        as it was.
        """
        if now.heads == self.facts.heads and now.rollouts.items() >= self.facts.rollouts.items():
            return True
        return self.shape() == shape_of(self.before, self.before)

    def is_untouched(self, now: Facts) -> bool:
        """True when no file and no row of the database differs, and none has been added."""
        return now == self.facts and rows_of(self.home) == self.rows

    def new_problems(self) -> set[str]:
        """What is wrong now, and was not before."""
        return set(problems_of(self.home)) - self.problems

    def shape(self) -> Shape:
        """What the store means, without the ids and times that differ from run to run."""
        return shape_of(state_of(self.home), self.before)

    def leftovers(self, now: Facts) -> set[str]:
        """The kinds of files that nobody needs."""
        found = set()
        for path in self.home.rglob("*"):
            relative = path.relative_to(self.home)
            if relative not in self._files and path.name not in _LOCKS and not path.is_dir():
                found |= {_kind(path, str(relative), now)} - {""}
        return found


_LOCKS = (".coordination.lock", "session_index.jsonl.lock", "session_index.jsonl")  # these stay


def _kind(path: Path, relative: str, now: Facts) -> str:
    """What sort of leftover a file is; empty for a rollout that is selected."""
    if path.name.startswith(".rollout-") and path.name.endswith(".partial"):
        return "partial"
    if path.name.endswith((".sqlite-wal", ".sqlite-shm")):
        return "database log"
    if path.parent.name == "thread-writer-locks":
        return "lock"
    if parse_rollout(relative) is None:
        return relative
    if path.with_name(path.name + ".zst").exists():
        return "twin"
    return "" if relative in now.heads.values() else "unselected rollout"


def shape_of(state: State, before: State) -> Shape:
    """For each thread: was it there before, its model input without ids, how many turns count."""
    return sorted(
        (thread_id in before, _IDS.sub(b"*", model_input), len(turns))
        for thread_id, (model_input, turns) in state.items()
    )


def rows_of(home: Path) -> list[tuple[object, ...]]:
    """The rows of threads, as a process that may write finds them."""
    rows: list[tuple[object, ...]] = []
    for database in home.glob("state_*.sqlite"):
        with closing(sqlite3.connect(database)) as connection:
            rows += connection.execute("SELECT * FROM threads ORDER BY id").fetchall()
    return rows


def open_store(home: Path) -> ThreadStore:
    """The store as it is now."""
    return ThreadStore(str(home), Spool(f"{home}.spool"))


def _decoded(path: Path) -> bytes:
    data = path.read_bytes()
    return zstandard.ZstdDecompressor().decompressobj().decompress(data) if path.suffix == ".zst" else data
