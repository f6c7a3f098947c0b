"""Who changes the store of the soak test: Codex as it writes, people who tidy up, requests to control files.

Every change is a step behind a `Gate`, so that a comparison can have the store to itself. A rollout only ever grows,
is moved, compressed or deleted, as with Codex: nothing that was read of it may turn out to be wrong later.
"""

from __future__ import annotations

import errno
import json
import os
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import zstandard
from threadstore.lines import Log
from threadstore.locks import BusyError, writer_lock
from threadstore.recorder import Draft, next_ordinal
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.corpus_store import copy_home, store_folders
from tests.operations.model import turn

MOST = 12  # threads beside those of the start; beyond that one is deleted before another is made
_HOT = 4
DAY = "sessions/2026/11/30"
#: Logs of the corpus that new threads are written after, line by line.
TAPES = (
    "tools.paginated",
    "tools.legacy",
    "compact_twice.paginated",
    "compact_auto.legacy",
    "images.paginated",
    "world_state.paginated",
)
_REFUSALS = (errno.EINVAL, errno.ENOENT, errno.EBUSY)  # what a request may be answered when it makes no sense now
_STAMP = "2026-11-30T10-00-00"

Json = dict[str, Any]


class Gate:
    """Many may be inside at once, or one alone.

    Invariant: whoever is `alone` is the only one inside. Who waits to be alone lets nobody in any more.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._waiting = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside with others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, and nobody else is."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._waiting = 1
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._waiting = 0
                self._changed.notify_all()


@dataclass
class Thread:
    """A thread that is written. `rest` is what follows in the log it is written after; `torn` says that the last line
    has only its beginning yet. `writer` holds Codex's lock while it isn't empty. `turn` keeps two steps apart.
    """

    ident: str
    paginated: bool
    rest: bytes = b""
    torn: bool = False
    parent: str = ""
    forever: bool = True  # it is never deleted
    writer: ExitStack = field(default_factory=ExitStack)
    is_held: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)


class Writers:
    """The threads of one store, and the steps that change them.

    Invariant: `threads` has every thread that exists, `ever` every one that ever did; both are changed under `_names`.
    """

    def __init__(self, root: Path, mountpoint: Path, gate: Gate, scratch: Path) -> None:
        self.root = root
        self.gate = gate
        self.done: Counter[str] = Counter()
        self._mount = mountpoint / "threads"
        self._spool = Spool(str(scratch / "spool"))
        self._names = threading.Lock()
        self._numbers = count(1)
        self._turns = count(1)
        self.threads = {ident: self._found(ident) for ident in self._store().thread_ids()}
        self.ever = set(self.threads)
        self._tapes = [_tape(name, scratch / name) for name in TAPES]

    def pick(self, chance: random.Random) -> str:
        """A thread that exists, or did an instant ago; often one of the newest, so that readers meet writers."""
        with self._names:
            threads = list(self.threads)
        return chance.choice(threads[-_HOT:] if chance.random() < 0.6 else threads)

    def existing(self) -> set[str]:
        """The threads that exist now."""
        with self._names:
            return set(self.threads)

    def adopt(self, ident: str, *, paginated: bool, rest: bytes = b"", parent: str = "", forever: bool = False) -> None:
        """Take note of a thread that was made."""
        with self._names:
            self.threads[ident] = Thread(ident, paginated, rest, parent=parent, forever=forever)
            self.ever.add(ident)

    def step(self, chance: random.Random) -> None:
        """One change."""
        with self.gate.together():
            thread = self.threads.get(self.pick(chance))
            if thread is None or not thread.turn.acquire(blocking=False):
                return
            try:
                if thread.ident in self.threads:
                    kind = chance.choices([*_WEIGHTS], [*_WEIGHTS.values()])[0]
                    if getattr(self, kind)(thread, chance):
                        self.done[kind] += 1
            finally:
                thread.turn.release()

    # Codex writes

    def grow(self, thread: Thread, chance: random.Random) -> bool:
        """A line, some lines, or a piece of one; with the writer's lock, which may be kept."""
        head = self._head(thread.ident)
        if head.parts[-2] == "archived_sessions" or not self._hold(thread):
            return False
        path = self._plain(head)
        data = thread.rest or self._turn(thread, path)
        whole = data.find(b"\n") + 1
        if chance.random() < 0.3:
            length = chance.randrange(1, whole + 1)
        elif chance.random() < 0.3:
            length = data.rfind(b"\n", 0, 20_000) + 1 or whole
        else:
            length = whole
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, data[:length])
        finally:
            os.close(descriptor)
        thread.rest, thread.torn = data[length:], data[length - 1 : length] != b"\n"
        if not thread.torn and chance.random() < 0.5:
            self._let_go(thread)
        return True

    def begin(self, thread: Thread, chance: random.Random) -> bool:
        """A new thread; one that nobody needs any more is deleted when there are many."""
        if self._are_many():
            return self.delete(thread, chance)
        tape, old, paginated = chance.choice(self._tapes)
        number = next(self._numbers)
        ident = f"01a2{number:04x}-50a4-7000-8000-{number:012x}"
        data = tape.replace(old, ident.encode())
        first = data.find(b"\n") + 1
        path = self.root / DAY / f"rollout-{_STAMP}-{ident}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[:first])
        self.adopt(ident, paginated=paginated, rest=data[first:])
        return True

    # People and Codex tidy up

    def archive(self, thread: Thread, chance: random.Random) -> bool:
        """All files of a thread go to the archive, or come back."""
        if not self._hold(thread) or thread.torn:
            return False
        back = any(path.parts[-2] == "archived_sessions" for path in self._files(thread.ident))
        folder = self.root / (DAY if back else "archived_sessions")
        folder.mkdir(parents=True, exist_ok=True)
        for path in self._files(thread.ident):
            path.rename(folder / path.name)
        head = self._head(thread.ident)
        self._update("UPDATE threads SET rollout_path = ?, archived = ? WHERE id = ?", head, not back, thread.ident)
        self._let_go(thread)
        return True

    def compress(self, thread: Thread, chance: random.Random) -> bool:
        """A rollout of a thread is compressed, whether it is in force or not."""
        if not self._hold(thread) or thread.torn:
            return False
        path = chance.choice(self._files(thread.ident))
        if path.suffix != ".zst":
            _replace(path, path.with_name(path.name + ".zst"), zstandard.compress(path.read_bytes()))
        self._let_go(thread)
        return True

    def name(self, thread: Thread, chance: random.Random) -> bool:
        """A thread gets a name."""
        entry = {"id": thread.ident, "thread_name": f"name {chance.randrange(1000)}", "updated_at": "2026-11-30"}
        with (self.root / "session_index.jsonl").open("a") as index:
            index.write(json.dumps(entry) + "\n")
        self._update("UPDATE threads SET name = ? WHERE id = ?", entry["thread_name"], thread.ident)
        return True

    def delete(self, thread: Thread, chance: random.Random) -> bool:
        """A thread goes for good, unless another one needs it."""
        needed = {other.parent for other in list(self.threads.values())}
        if thread.forever or thread.ident in needed or not self._hold(thread):
            return False
        for path in self._files(thread.ident):
            path.unlink()
        self._update("DELETE FROM threads WHERE id = ?", thread.ident)
        with self._names:
            del self.threads[thread.ident]
        self._let_go(thread)
        return True

    # Requests to control files

    def fork(self, thread: Thread, chance: random.Random) -> bool:
        """A new thread, which is there at once."""
        if self._are_many():
            return self.delete(thread, chance)
        request = chance.choice(["latest", f"before -{chance.randint(1, 3)}", f"through {chance.randint(1, 3)}"])
        done = self._ask(thread, "fork", request)
        if done is None:
            return False
        child = done["thread_id"]
        assert child in os.listdir(self._mount)
        os.stat(self._mount / child / "turns.jsonl")
        self.adopt(child, paginated=thread.paginated, parent=thread.ident)  # from now on others may delete it
        return True

    def revert(self, thread: Thread, chance: random.Random) -> bool:
        """A thread goes back by some turns, or the last revert is taken back."""
        return self._change(thread, "revert", "undo" if chance.random() < 0.3 else f"before -{chance.randint(1, 3)}")

    def compact(self, thread: Thread, chance: random.Random) -> bool:
        """A checkpoint."""
        text = chance.choice(['{"strategy":"recent"}', "What was done:\neverything.\n"])
        return self._change(thread, "compact", text)

    def rehearse(self, thread: Thread, chance: random.Random) -> bool:
        """Requests that are only told of, and nonsense."""
        requests = [
            ("fork", "dry-run latest"),
            ("revert", "dry-run before -1"),
            ("compact", "dry-run x"),
            ("fork", "?"),
        ]
        self._ask(thread, *chance.choice(requests))
        return True

    def _are_many(self) -> bool:
        return sum(not thread.forever for thread in list(self.threads.values())) >= MOST

    def _change(self, thread: Thread, file: str, request: str) -> bool:
        if self._ask(thread, file, request) is None:
            return False
        assert not thread.is_held, "a thread was changed while its writer had it"
        thread.rest = b""  # its ordinals are no longer those of the log that it was written after
        return True

    def _ask(self, thread: Thread, file: str, request: str) -> Json | None:
        """What a request is answered; None when it is refused."""
        descriptor = os.open(self._mount / thread.ident / file, os.O_RDWR)
        try:
            os.write(descriptor, request.encode())
            answer: Json = json.loads(os.pread(descriptor, 1 << 20, 0))
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            return None
        finally:
            os.close(descriptor)
        refused = answer["error"]  # what is only to be told has no error in its write
        assert refused in (None, *(errno.errorcode[one] for one in _REFUSALS)), answer
        return None if refused else answer

    # The store

    def _store(self) -> ThreadStore:
        return ThreadStore(str(self.root), self._spool)

    def _found(self, ident: str) -> Thread:
        meta = json.loads(_decoded(self._head(ident)).partition(b"\n")[0])
        return Thread(ident, meta.get("payload", {}).get("history_mode") == "paginated")

    def _head(self, ident: str) -> Path:
        return self.root / self._store().head(ident).path

    def _files(self, ident: str) -> list[Path]:
        return sorted(path for path in self.root.rglob(f"rollout-*{ident}*") if path.name[28:64] == ident)

    def _plain(self, path: Path) -> Path:
        """A rollout, decompressed as Codex does before it appends."""
        if path.suffix != ".zst":
            return path
        _replace(path, path.with_suffix(""), _decoded(path))
        return path.with_suffix("")

    def _turn(self, thread: Thread, path: Path) -> bytes:
        """The lines of a turn that fits the end of a log."""
        drafts = turn(thread.ident, next(self._turns), paginated=thread.paginated)
        start = 0
        if thread.paginated:
            with path.open("rb") as file:
                start = next_ordinal(Log(file.fileno(), path.stat().st_size), str(path))
        lines = [_line(draft, start + at if thread.paginated else None) for at, draft in enumerate(drafts)]
        return b"".join(lines if _ends_whole(path) else [b"\n", *lines])

    def _hold(self, thread: Thread) -> bool:
        """Have the writer's lock of a thread; False when another one has it."""
        if not thread.is_held:
            try:
                thread.writer.enter_context(writer_lock(str(self.root), thread.ident))
            except BusyError:
                return False
            thread.is_held = True
        return True

    def _let_go(self, thread: Thread) -> None:
        thread.is_held = False
        thread.writer.close()

    def _update(self, statement: str, *values: object) -> None:
        for database in self.root.glob("state_*.sqlite"):
            with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
                connection.execute(statement, [str(one) if isinstance(one, Path) else one for one in values])


_WEIGHTS = {
    "grow": 60,
    "begin": 5,
    "archive": 2,
    "compress": 3,
    "name": 2,
    "delete": 1,
    "fork": 5,
    "revert": 5,
    "compact": 3,
    "rehearse": 3,
}


def _tape(name: str, scratch: Path) -> tuple[bytes, bytes, bool]:
    """A log of the corpus, its thread's id and whether it is paginated."""
    copy_home(store_folders()[name], scratch)
    (path,) = scratch.rglob("rollout-*.jsonl")
    return path.read_bytes(), path.name[28:64].encode(), name.endswith("paginated")


def _decoded(path: Path) -> bytes:
    data = path.read_bytes()
    return zstandard.ZstdDecompressor().decompressobj().decompress(data) if path.suffix == ".zst" else data


def _line(draft: Draft, ordinal: int | None) -> bytes:
    return draft.line("2026-11-30T10:00:00.000Z", ordinal)


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _replace(old: Path, new: Path, data: bytes) -> None:
    """Another form of a file takes its place; for an instant there are both."""
    fresh = new.with_name(f"{new.name}.tmp")
    fresh.write_bytes(data)
    fresh.rename(new)
    old.unlink()
