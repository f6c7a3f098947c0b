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

import orjson

from threadstore import index, parts
from threadstore.incremental import BLOCKS, DOUBT
from threadstore.index import SIZES, Entry
from threadstore.names import RolloutFile
from threadstore.projection import Projection, View
from threadstore.spines import kept_of
from threadstore.store import ThreadStore
from threadstore.texts import Text
from threadstore.usage import FIELDS
from threadstore.words import by_character

log = logging.getLogger(__name__)

Json = dict[str, Any]
_SLICE = 500  # threads whose entries are compared at once
_TEXT = 300  # characters of a text that are kept
_AT_ONCE = 200  # texts that are put in at once
_STALE = 7 * 86_400  # seconds after which the index of another edition is removed
#: Errors that say nothing of the file itself.
_PASSING = frozenset(
    (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT),
    )
)
_AFTER_ALL = "~"  # comes after every thread id
_LARGE = 256 << 10  # bytes of log from which each derived file is kept by itself
_VERY_LARGE = 1 << 20  # bytes of log from which passes over it are kept
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
_TEXTS = (
    *("name", "preview", "status", "health", "history_mode", "cwd", "model", "model_provider", "created_at"),
    *("updated_at", "cli_version", "originator", "forked_from", "parent"),
)
_COUNTS = ("records", "items", "turns", "effective_turns", "checkpoints", "rollbacks", "damaged", "problems")
#: What keeps the full-text index as the texts are. `by_character` is there for who writes; reading needs none.
_TRIGGERS = (
    "CREATE TRIGGER texts_ai AFTER INSERT ON texts BEGIN "
    "INSERT INTO texts_fts (rowid, text) VALUES (new.id, by_character(new.text)); END",
    "CREATE TRIGGER texts_ad AFTER DELETE ON texts BEGIN "
    "INSERT INTO texts_fts (texts_fts, rowid, text) VALUES ('delete', old.id, by_character(old.text)); END",
)
_PROBLEM = ("code", "file", "offset", "length", "message", "consequence", "uncertain")


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
                _unlink(self.path)
            raise
        except UnicodeDecodeError as error:
            self.close()
            _unlink(self.path)
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
            _sweep(self.path)
            _create(self.path, self._store.root)
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
            rows = _rows(self._store, thread, entry, made)
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


# The schema, in terms that people know from the files of the mount


def _create(path: str, root: str) -> None:
    """An empty index, under its name only when it is whole."""
    from sqlite_utils import Database

    building = f"{path}.new"
    _unlink(building)
    os.close(os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    database = Database(building)
    texts = dict.fromkeys(("id", *_TEXTS, "agent", "branch", "commit_hash", "first_words"), str)
    numbers = dict.fromkeys(("archived", "is_agent", *_COUNTS, "total_tokens", "own_tokens", *SIZES.values()), int)
    inner = {
        "rollout": str,
        "last_record_ns": int,
        "made_from": str,
        "facts": bytes,
        "generations": bytes,
        "digest": bytes,
    }
    columns: dict[str, Any] = texts | numbers | inner
    database.table("store").insert({"root": os.fsencode(root), "edition": index.edition()})
    database.table("threads").create(columns, pk="id")
    database.table("rollouts").create(
        {"path": str, "id": str, "thread_id": str, "archived": int, "compressed": int, "selected": int}
        | {"device": int, "inode": int, "bytes": int, "mtime_ns": int},
        pk="path",
        foreign_keys=[("thread_id", "threads", "id")],
    )
    database.table("turns").create(
        {"thread_id": str, "number": int, "id": str, "status": str, "effective": int, "why": str, "user": str}
        | {"model": str}
        | {"started_at": int, "completed_at": int, "duration_ms": int, "error": str, "total_tokens": int}
        | {"file": str, "offset": int},
        foreign_keys=[("thread_id", "threads", "id")],
    )
    database.table("problems").create(
        {"thread_id": str, "code": str, "file": str, "offset": int, "length": int, "message": str}
        | {"consequence": str, "uncertain": int},
        foreign_keys=[("thread_id", "threads", "id")],
    )
    database.table("spent").create(
        {"thread_id": str, "day": str, "model": str, **dict.fromkeys(FIELDS, int)},
        foreign_keys=[("thread_id", "threads", "id")],
    )
    database.execute("CREATE TABLE spines (thread_id TEXT PRIMARY KEY REFERENCES threads(id), data BLOB) WITHOUT ROWID")
    database.table("extents").create(
        {"thread_id": str, "file": str, "data": bytes},
        pk=("thread_id", "file"),
        foreign_keys=[("thread_id", "threads", "id")],
    )
    database.table("passes").create(
        {"thread_id": str, "kind": str, "data": bytes},
        pk=("thread_id", "kind"),
        foreign_keys=[("thread_id", "threads", "id")],
    )
    database.table("parts").create(
        {"thread_id": str, "key": bytes, "data": bytes},
        pk=("thread_id", "key"),
        foreign_keys=[("thread_id", "threads", "id")],
    )
    database.table("texts").create(
        {"id": int, "thread_id": str, "file": str, "offset": int, "kind": str, "tool": str, "text": str}
        | {"effective": int},
        pk="id",
        foreign_keys=[("thread_id", "threads", "id")],
    )
    database.table("texts").enable_fts(["text"], tokenize="unicode61 remove_diacritics 2")
    for trigger in _TRIGGERS:
        database.execute(trigger)
    for table in ("rollouts", "turns", "spent", "problems", "texts"):
        database.table(table).create_index(["thread_id"])
    for column in ("updated_at", "cwd", "forked_from", "parent"):
        database.table("threads").create_index([column])
    database.enable_wal()
    database.close()
    os.rename(building, path)


def _sweep(path: str) -> None:
    """Remove old indexes: of this store by other editions of the library, and of stores that are gone."""
    folder, name = os.path.split(path)
    for other in os.listdir(folder):
        old = os.path.join(folder, other)
        if not other.endswith(".sqlite") or other == name:
            continue
        with contextlib.suppress(OSError):
            same = other.partition("-")[0] == name.partition("-")[0]
            if time.time() - os.stat(old).st_mtime > _STALE and (same or _is_orphaned(old)):
                _unlink(old)
                os.unlink(old + ".lock")


def _is_orphaned(path: str) -> bool:
    """True for the index of a store that is no longer there."""
    try:
        with contextlib.closing(index.connect(path)) as connection:
            (root,) = connection.execute("SELECT root FROM store").fetchone()
            return not os.path.isdir(os.fsdecode(root))
    except Exception:  # noqa: BLE001  it is no index of this kind
        return False


def _unlink(path: str) -> None:
    for end in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + end)


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


def _rows(store: ThreadStore, thread: str, entry: Entry, made: dict[View, Projection]) -> dict[str, list[Json]]:
    """The rows of one thread by table, parents first."""
    document, usage = _document(made, View.THREAD), _document(made, View.USAGE)
    opening = store.opening(thread)
    git = document["git"] if isinstance(document["git"], dict) else {}
    row = {
        "id": thread,
        **{key: _text(document[key]) for key in _TEXTS},
        "branch": _text(git.get("branch")),
        "commit_hash": _text(git.get("commit_hash")),
        "agent": _text((document["agent"] or {}).get("nickname") or (document["agent"] or {}).get("role")),
        "first_words": _text(opening.words),
        "archived": document["archived"],
        "is_agent": document["agent"] is not None,
        **{key: document["counts"][key] for key in _COUNTS},
        "total_tokens": _tokens(usage["total"]),
        "own_tokens": _tokens(usage["own"]),
    }
    row |= index.packed(entry, row)
    spine = kept_of(store, thread, opening, entry, (row["cwd"], row["model"]))
    size = sum(source.size for source in entry.made_from)
    passes = store.packed_passes(thread) if size > _VERY_LARGE else {}
    return {
        "threads": [row],
        "spines": [{"thread_id": thread, "data": spine.packed()}],
        "extents": [*_extents(thread, made, in_parts=parts.KIND in passes)]
        if size > _LARGE
        else [*_together(thread, entry, made)],
        "passes": [{"thread_id": thread, "kind": kind, "data": data} for kind, data in passes.items()],
        "rollouts": [_rollout(store, thread, entry, one) for one in store.rollouts(thread)],
        "turns": [_turn(thread, one) for view in (View.TURNS, View.DROPPED_TURNS) for one in _lines(made, view)],
        "spent": [_spent(thread, one) for one in usage["spent"]],
        "problems": [_problem(thread, one) for one in _lines(made, View.PROBLEMS)],
    }


def _extents(thread: str, made: dict[View, Projection], *, in_parts: bool) -> Iterator[Json]:
    for view, projection in made.items():
        if view is View.TRANSCRIPT and in_parts:
            continue
        data = None if projection.extents is None else index.packed_extents(projection.extents)
        if data is not None:
            yield {"thread_id": thread, "file": view.value, "data": data}


def _together(thread: str, entry: Entry, made: dict[View, Projection]) -> Iterator[Json]:
    """Of a small thread all together: who reads one reads the others."""
    together = {view: made[view].extents for view in entry.outlines}
    data = index.packed_together({view: extents for view, extents in together.items() if extents is not None})
    if data is not None:
        yield {"thread_id": thread, "file": index.ALL, "data": data}


def _document(made: dict[View, Projection], view: View) -> Json:
    document: Json = orjson.loads(_content(made[view]))
    return document


def _lines(made: dict[View, Projection], view: View) -> Iterator[Json]:
    return map(orjson.loads, _content(made[view]).splitlines())


def _content(projection: Projection) -> bytes:
    """The bytes of a file that was rendered, so that none of them lie in a log."""
    extents = projection.extents
    parts = () if extents is None else extents.plan(0, extents.size)
    return b"".join(part for part in parts if isinstance(part, bytes))


def _text(value: object) -> str | None:
    text = value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
    return text if text is None else text[:_TEXT]


def _rollout(store: ThreadStore, thread: str, entry: Entry, rollout: RolloutFile) -> Json:
    status = store.status(rollout)
    return {
        "path": rollout.path,
        "id": rollout.rollout_id,
        "thread_id": thread,
        "archived": rollout.archived,
        "compressed": rollout.compressed,
        "selected": rollout.path == entry.made_from[0].path,
        "device": _signed(status.dev),
        "inode": _signed(status.ino),
        "bytes": status.size,
        "mtime_ns": status.mtime_ns,
    }


def _signed(number: int) -> int:
    """As SQLite's integers are."""
    return number if number < 1 << 63 else number - (1 << 64)


def _turn(thread: str, turn: Json) -> Json:
    usage, start = turn["usage"], turn["start"] or {}
    row = {key: turn[key] for key in ("number", "id", "status", "effective", "why")}
    row |= {key: _text(turn[key]) for key in ("user", "model", "error")}
    row |= {key: _integer(turn[key]) for key in ("started_at", "completed_at", "duration_ms")}
    place = {"file": start.get("file"), "offset": start.get("offset")}
    return {"thread_id": thread, **row, "total_tokens": _tokens(usage), **place}


def _spent(thread: str, row: Json) -> Json:
    return {"thread_id": thread, "day": row["day"], "model": row["model"], **{name: row[name] for name in FIELDS}}


def _tokens(usage: Json | None) -> int | None:
    return _integer((usage or {}).get("total_tokens"))


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None


def _problem(thread: str, problem: Json) -> Json:
    return {"thread_id": thread} | {key: problem.get(key) for key in _PROBLEM}
