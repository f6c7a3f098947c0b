"""Moving the pointer from a thread to its selected rollout (FORMAT 11.2, 11.4).

The pointer is `threads.rollout_path` in Codex's state database. It is moved by compare-and-swap on the text that
was read before, so of two processes that prepared a revert one wins and the other finds that nothing was changed.
Without a database, or without a row, the greatest file name selects; so a new rollout always gets a name that wins
that order as well, and a database that is lost later changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson

from threadstore import databases
from threadstore.apart import write_apart
from threadstore.errors import StoreError, UnwritableError
from threadstore.folders import open_folder
from threadstore.ids import file_stamp, now_text
from threadstore.locks import BusyError
from threadstore.names import ARCHIVED, SESSION_INDEX, SESSIONS, RolloutFile
from threadstore.recorder import UnsettledError

_PATIENCE = 5.0  # seconds to wait for Codex's own transactions
_PAUSE = 0.005
_ROOM = 128 << 10  # bytes that a transaction needs beside the database, for its log and the index of that
#: What a new thread does not take over from the row that it is made from.
_FRESH: dict[str, Any] = {
    "archived": 0,
    "archived_at": None,
    "is_pinned": 0,
    "thread_section_id": None,
    "section_position": None,
    "section_entered_at_ms": None,
    "attached_thread_parent_id": None,
    "thread_source": None,
    "agent_nickname": None,
    "agent_role": None,
    "agent_path": None,
}


@dataclass(frozen=True, slots=True)
class Listing:
    """What a list says of a fork. `first` is the first message in its own file, empty when there is none; `preview` is
    None where that of the source is kept.
    """

    preview: str | None
    first: str
    tokens: int
    meta: dict[str, Any]  # its session meta, or that of its source as far as it is taken over


class Pointer:
    """The writable side of Codex's state database. Raises StoreError: BusyError when it is locked or has changed,
    UnsettledError when a transaction failed at its end, so that it may or may not have happened.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def path_of(self, thread_id: str) -> str | None:
        """The recorded path of a thread, verbatim; None without a row or a usable database."""
        with self._transaction() as connection:
            if connection is None:
                return None
            row = connection.execute("SELECT rollout_path FROM threads WHERE id = ?", (thread_id,)).fetchone()
            return None if row is None else str(row[0])

    def path_at_rest(self, thread_id: str) -> str | None:
        """As `path_of`, but opens the database without writing beside it, which a full disk does not allow. Raises
        StoreError when it is in use, or has a log that only a writer could fold in.
        """
        path = self._newest()
        if path is None:
            return None
        try:
            before = _at_rest(path)
            with contextlib.closing(
                sqlite3.connect(databases.uri(path, "mode=ro&immutable=1"), uri=True)
            ) as connection:
                row = connection.execute("SELECT rollout_path FROM threads WHERE id = ?", (thread_id,)).fetchone()
            if before is None or _at_rest(path) != before:
                raise BusyError(f"Codex's database {path} is in use.")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"Codex's database {path} can't be read: {error}.") from error
        return None if row is None else str(row[0])

    def swap(self, thread_id: str, expected: str, path: str, tokens: int | None) -> bool:
        """Select another rollout, if `expected` still is what the row says. False when it isn't.

        The row says as well that the thread changed now and, when that is known, how many tokens it has used.
        """
        with self._transaction() as connection:
            if connection is None:
                return False
            changes: dict[str, Any] = {"rollout_path": os.path.join(self._root, path)}
            changes |= {} if tokens is None else {"tokens_used": tokens}
            return _update(connection, changes | _now("updated_at"), "id = ? AND rollout_path = ?", thread_id, expected)

    def touch(self, thread_id: str, *names: str) -> None:
        """Note in the row, if there is one, that it is now; `names` are `updated_at` and `recency_at`."""
        with self._transaction() as connection:
            if connection is not None:
                _update(connection, _now(*names), "id = ?", thread_id)

    def adopt(self, source_id: str, thread_id: str, path: str, listing: Listing) -> None:
        """Give a forked thread a row made from that of its source, so that it is listed with its name and preview.

        Without a database or a row of the source nothing is done: Codex makes a row when it first opens the thread.
        """
        with self._transaction() as connection:
            if connection is None:
                return
            cursor = connection.execute("SELECT * FROM threads WHERE id = ?", (source_id,))
            found = cursor.fetchone()
            if found is None:
                return
            names = [column[0] for column in cursor.description]
            source = dict(zip(names, found, strict=True))
            row = _FRESH | _now("created_at", "updated_at", "recency_at") | _shown(source, listing)
            row |= {"id": thread_id, "rollout_path": os.path.join(self._root, path)}
            row = source | {name: value for name, value in row.items() if name in names}
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT OR IGNORE INTO threads ({_quoted(row)}) VALUES ({marks})", list(row.values()))

    def name(self, thread_id: str, name: str) -> None:
        """Note the name of a legacy thread where it outlives the database: in the index of names (FORMAT 2.3)."""
        entry = {"id": thread_id, "thread_name": name, "updated_at": now_text()}
        with open_folder(self._root, "") as folder:
            lock = folder.open(f"{SESSION_INDEX}.lock", os.O_RDWR | os.O_CREAT)
            try:
                _lock(lock)
                index = folder.open(SESSION_INDEX, os.O_RDWR | os.O_CREAT | os.O_APPEND)
                try:
                    size = os.fstat(index).st_size
                    torn = size > 0 and os.pread(index, 1, size - 1) != b"\n"
                    _, error = write_apart(index, b"\n" * torn + orjson.dumps(entry) + b"\n")
                    if error is not None:
                        raise error
                finally:
                    os.close(index)
            finally:
                os.close(lock)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection | None]:
        """One transaction, or None when there is no database with threads in it."""
        path = self._newest()
        if path is None:
            yield None
            return
        _need_room(path)
        try:
            connection = sqlite3.connect(
                databases.uri(path, "mode=rw"), uri=True, timeout=_PATIENCE, isolation_level=None
            )
        except sqlite3.Error as error:
            raise _explain(error, path, "opened") from error
        try:
            if not _begin(connection, path):
                connection.close()
                yield None
                return
            yield connection
            _commit(connection, path)
        except sqlite3.Error as error:
            raise _explain(error, path, "written") from error
        finally:
            connection.close()

    def _newest(self) -> str | None:
        name = databases.newest(self._root)
        return None if name is None else os.path.join(self._root, name)


def _need_room(path: str) -> None:
    """Raise before SQLite makes its files beside a database for which there is no room, and leaves them there."""
    if not os.path.exists(path + "-shm") and _room(path) < _ROOM:
        raise _full(path)


def _room(path: str) -> int:
    """Bytes that can be written beside a file."""
    status = os.statvfs(os.path.dirname(path))
    return status.f_frsize * (status.f_bfree if os.geteuid() == 0 else status.f_bavail)


def _is_full(path: str) -> bool:
    """True when nothing more can be written beside a file: SQLite calls that an I/O error where its log is concerned.

    Only trying tells of a quota.
    """
    try:
        if _room(path) < _ROOM:
            return True
        descriptor = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _ROOM)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def _full(path: str) -> UnwritableError:
    return UnwritableError(
        f"the disk is full: Codex's database {path} can't be written. Make room there, then try again. "
        "Nothing was changed.",
        errno.ENOSPC,
    )


def _explain(error: sqlite3.Error, path: str, what: str) -> StoreError:
    """The error of SQLite with the file that it is about, and with the system's reason where that can be told."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _is_full(path)):
        return _full(path)
    if code == sqlite3.SQLITE_READONLY or (code == sqlite3.SQLITE_CANTOPEN and not os.access(path, os.W_OK)):
        return UnwritableError(
            f"Codex's database {path} may not be written: {error}. Make the file and its folder writable for the owner "
            "of the store, then try again. Nothing was changed.",
            errno.EACCES,
        )
    return StoreError(f"Codex's database {path} can't be {what}: {error}.")


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BusyError("the index of names is locked by another process.") from None
            time.sleep(_PAUSE)
        else:
            return


def _shown(source: dict[str, Any], listing: Listing) -> dict[str, Any]:
    """What the row of a fork shows, as Codex 0.171.0 writes it. A copy has messages of its own, and their name."""
    shown: dict[str, Any] = {"title": "", "first_user_message": listing.first, "tokens_used": listing.tokens}
    shown |= {} if listing.preview is None else {"preview": listing.preview}
    meta, git = listing.meta, listing.meta.get("git") or {}
    shown |= {name: meta[name] for name in ("cwd", "source", "originator") if isinstance(meta.get(name), str)}
    shown["memory_mode"] = meta.get("memory_mode") or "enabled"
    for name, key in (("git_sha", "commit_hash"), ("git_branch", "branch"), ("git_origin_url", "repository_url")):
        shown[name] = git.get(key)
    if source.get("history_mode") != "paginated":
        named = source.get("title") not in ("", source.get("first_user_message"))
        shown["title"] = source["title"] if named else listing.first
    return shown


def _now(*names: str) -> dict[str, Any]:
    """Columns of times, in seconds and in milliseconds, that say now."""
    now = time.time_ns() // 1_000_000
    return dict.fromkeys(names, now // 1000) | {f"{name}_ms": now for name in names}


def _update(connection: sqlite3.Connection, changes: dict[str, Any], where: str, *values: str) -> bool:
    """Change columns of a row, those that this database has; True when there was such a row."""
    names = {str(column[1]) for column in connection.execute("PRAGMA table_info(threads)")}
    changes = {name: value for name, value in changes.items() if name in names}
    settings = ", ".join(f"{name} = ?" for name in changes)
    done = connection.execute(f"UPDATE threads SET {settings} WHERE {where}", [*changes.values(), *values])
    return done.rowcount == 1


def _quoted(names: Iterable[str]) -> str:
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)


def _at_rest(path: str) -> tuple[int, int, int] | None:
    """What identifies the content of a database that has no log; None when it has one."""
    if os.path.exists(path + "-wal") and os.stat(path + "-wal").st_size:
        return None
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _commit(connection: sqlite3.Connection, path: str) -> None:
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        message = f"Codex's database {path} failed while it was being written: {error}."
        raise UnsettledError(message, _explain(error, path, "written")) from error


def _begin(connection: sqlite3.Connection, path: str) -> bool:
    """Begin a transaction; False when this is no database with threads in it.

    What can't be read now but may be there (locked, an I/O error, a full disk) must not pass for absent: the pointer
    would stay where it is while we believe that there is none.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SELECT rollout_path FROM threads LIMIT 1")
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise BusyError(f"Codex's database {path} is locked by another process; try again.") from error
        if "no such" in str(error):
            return False
        raise
    except sqlite3.DatabaseError as error:
        if "not a database" in str(error) or "malformed" in str(error):
            return False
        raise
    return True


def new_path(thread_id: str, rollout_id: str, others: tuple[RolloutFile, ...]) -> str:
    """Where a new rollout goes: today's folder, and a name that wins the order of names among the thread's
    rollouts, also of those that were made in the same instant, or before the clock was set back.
    """
    stamp = max([file_stamp(), *(rollout.stamp for rollout in others)])
    if any((rollout.stamp, rollout.rollout_id) >= (stamp, rollout_id) for rollout in others):
        stamp = _next_second(stamp)
    year, month, day = stamp[:10].split("-")
    suffix = "" if rollout_id == thread_id else f"_{rollout_id}"
    return f"{SESSIONS}/{year}/{month}/{day}/rollout-{stamp}-{thread_id}{suffix}.jsonl"


def _next_second(stamp: str) -> str:
    with contextlib.suppress(ValueError, OverflowError):  # no time of any calendar: only digits are sure
        moment = datetime.fromisoformat(f"{stamp[:10]} {stamp[11:].replace('-', ':')}") + timedelta(seconds=1)
        return moment.isoformat(timespec="seconds").replace(":", "-")
    return stamp


def is_archived(path: str) -> bool:
    """True for a rollout in the archive."""
    return path.startswith(ARCHIVED + "/")
