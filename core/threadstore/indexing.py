"""Building the index: which threads have changed since they were entered, and what is entered of each.

One process at a time builds an index; who finds it being built leaves it alone. A thread is entered as a whole, so
a reader finds the old entry or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import time
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple

from threadstore import index
from threadstore.incremental import BLOCKS, DOUBT
from threadstore.index import Entry
from threadstore.indexfile import create, sweep, unlink
from threadstore.indexrows import rows_of
from threadstore.store import ThreadStore
from threadstore.texts import Text
from threadstore.words import by_character

log = logging.getLogger(__name__)

Json = dict[str, Any]
_SLICE = 500  # threads whose entries are compared at once
_AT_ONCE = 200  # texts that are put in at once
#: Errors that say nothing of the file itself.
_PASSING = frozenset(
    (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT),
    )
)
_AFTER_ALL = "~"  # comes after every thread id
_TABLES = (
    "texts",
    "parts",
    "passes",
    "extents",
    "problems",
    "spent",
    "turns",
    "rollouts",
    "spines",
    "threads",
)  # children first


class Progress(NamedTuple):
    """How far a pass over the store has come: `last` is the thread that it may go on after (None: it is at the end),
    `done` of `total` threads were looked at, `entered` are those that had changed.
    """

    last: str | None
    done: int
    total: int
    entered: int


class Indexer:
    """Keeps the index of one store up to date. Raises OSError and sqlite3.Error where the index can't be written."""

    def __init__(self, store: ThreadStore, path: str) -> None:
        self._store = store
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def advance(self, last: str, seconds: float) -> Progress | None:
        """Go on with a pass over all threads after the one named `last` ("" begins) for some time. None while another
        process builds this index.
        """
        with self._alone() as connection:
            if connection is None:
                return None
            return self._advance(connection, last, time.monotonic() + seconds)

    def _advance(self, connection: sqlite3.Connection, last: str, end: float) -> Progress:
        ids = self._store.thread_ids()
        doubtful = {row[0] for row in connection.execute("SELECT thread_id FROM passes WHERE kind = ?", (DOUBT,))}
        at, entered = bisect_right(ids, last), 0
        while True:
            some = ids[at : at + _SLICE]
            bound = ids[at + _SLICE] if at + _SLICE < len(ids) else _AFTER_ALL
            known = index.entries(connection, last, bound)
            for thread in some:
                entered += self._enter(connection, thread, known.pop(thread, None), doubtful=thread in doubtful)
                at, last = at + 1, thread
                if time.monotonic() >= end:
                    return Progress(thread, at, len(ids), entered)
            _remove(connection, known)  # threads that are gone
            if at >= len(ids):
                return Progress(None, at, len(ids), entered)

    def enter(self, threads: Iterable[str]) -> bool:
        """Bring the entries of some threads up to date. False while another process builds this index."""
        with self._alone() as connection:
            if connection is None:
                return False
            for thread in threads:
                if thread in self._store:
                    known = index.entries(connection, thread[:-1], thread + _AFTER_ALL).get(thread)
                    self._enter(connection, thread, known)
                else:
                    _remove(connection, [thread])
            return True

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._identity = None, None

    # The file

    @contextlib.contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection | None]:
        """A transaction on the index, locked against other builders; None when one of them has it."""
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        lock = os.open(self.path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self.close()
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # there is none where Python found it
            if code & 0xFF not in _PASSING:
                log.warning("%s can't be used (%s): the next pass builds it anew.", self.path, error)
                unlink(self.path)
            raise
        except UnicodeDecodeError as error:
            self.close()
            unlink(self.path)
            raise sqlite3.DatabaseError(f"a text is damaged: {error}") from error
        except BaseException:
            self.close()  # which takes back what was not committed
            raise
        finally:
            os.close(lock)

    def _open(self) -> sqlite3.Connection:
        identity = index.identity_of(self.path)
        if self._connection is not None and identity is not None and identity == self._identity:
            return self._connection
        self.close()
        if identity is None:
            sweep(self.path)
            create(self.path, self._store.root)
        self._connection, self._identity = index.connect(self.path), index.identity_of(self.path)
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA temp_store = MEMORY")  # else each text costs ten times its bytes in a file
        self._connection.create_function("by_character", 1, by_character, deterministic=True)
        return self._connection

    # Entries

    def _enter(
        self, connection: sqlite3.Connection, thread: str, known: Entry | None, *, doubtful: bool = False
    ) -> int:
        """Bring one entry up to date; 1 when it had to be. A thread that can't be entered is left out. One that is
        `doubtful` is compared with its logs as a whole.
        """
        connection.execute("SAVEPOINT entry")
        try:
            is_current = known is not None and self._store.is_entry_current(thread, known)
            if is_current and (not doubtful or _prove(connection, self._store, thread)):
                return 0
            said = _Texts(connection, thread)
            entry, made = self._store.make_entry(thread, said)
            rows = rows_of(self._store, thread, entry, made)
            _remove(connection, [thread], {"parts", "texts"})
            _put(connection, rows)
            _put_parts(connection, thread, self._store.packed_parts(thread) if rows["passes"] else {})
            said.put()
        except sqlite3.DatabaseError:
            raise
        except Exception as error:  # noqa: BLE001  of what can't be read its own problems.jsonl tells
            log.debug("Thread %s is not entered: %r", thread, error)
            connection.execute("ROLLBACK TO entry")
            _remove(connection, [thread])
            return int(known is not None)
        finally:
            if connection.in_transaction:
                connection.execute("RELEASE entry")
        return 1


class _Texts:
    """Puts what was said in a thread into the index while it is told."""

    def __init__(self, connection: sqlite3.Connection, thread: str) -> None:
        self._connection = connection
        self._thread = thread
        self._new: list[tuple[object, ...]] = []
        self._passed: bytes | None = None
        row = connection.execute("SELECT data FROM passes WHERE thread_id = ? AND kind = 'texts'", (thread,)).fetchone()
        self.known: bytes | None = None if row is None else row[0]

    def begin(self, *, goes_on: bool) -> None:
        """See `Hearer`."""
        if not goes_on:
            self._connection.execute("DELETE FROM texts WHERE thread_id = ?", (self._thread,))

    def take(self, text: Text) -> None:
        """See `Hearer`."""
        self._new.append((self._thread, *text))
        if len(self._new) >= _AT_ONCE:
            self._insert()

    def end(self, passed: bytes | None) -> None:
        """See `Hearer`."""
        self._insert()
        self._passed = passed

    def put(self) -> None:
        """Note how far the texts go."""
        if self._passed is not None:
            values = (self._thread, self._passed)
            self._connection.execute("INSERT OR REPLACE INTO passes VALUES (?, 'texts', ?)", values)

    def _insert(self) -> None:
        self._connection.executemany(
            "INSERT INTO texts (thread_id, file, offset, kind, tool, text, effective) VALUES (?, ?, ?, ?, ?, ?, ?)",
            self._new,
        )
        self._new.clear()


def _prove(connection: sqlite3.Connection, store: ThreadStore, thread: str) -> bool:
    """True when all that was read of a doubtful thread is as it was, which is noted."""
    blocks = store.prove(thread)
    if blocks is None:
        return False
    connection.execute("UPDATE passes SET data = ? WHERE thread_id = ? AND kind = ?", (blocks, thread, BLOCKS))
    connection.execute("DELETE FROM passes WHERE thread_id = ? AND kind = ?", (thread, DOUBT))
    return True


def _put_parts(connection: sqlite3.Connection, thread: str, made: dict[bytes, bytes]) -> None:
    """Those that are there already aren't written again: of a thread that goes on nearly all are."""
    known = dict(connection.execute("SELECT key, data FROM parts WHERE thread_id = ?", (thread,)))
    gone = [(thread, key) for key in known if key not in made]
    new = [(thread, key, data) for key, data in made.items() if known.get(key) != data]
    connection.executemany("DELETE FROM parts WHERE thread_id = ? AND key = ?", gone)
    connection.executemany("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", new)


def _remove(connection: sqlite3.Connection, threads: Iterable[str], kept: Container[str] = ()) -> None:
    """Take threads out of all tables but those that are `kept`."""
    for thread in threads:
        for table in _TABLES:
            if table not in kept:
                column = "id" if table == "threads" else "thread_id"
                connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (thread,))


def _put(connection: sqlite3.Connection, rows: dict[str, list[Json]]) -> None:
    for table, some in rows.items():
        if some:
            names = ", ".join(some[0])
            marks = ", ".join(f":{name}" for name in some[0])
            connection.executemany(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", some)
