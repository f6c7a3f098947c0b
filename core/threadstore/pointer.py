"""Moving the pointer from a thread to its selected rollout (FORMAT 11.2, 11.4).

The pointer is `threads.rollout_path` in Codex's state database. It is moved by compare-and-swap on the text that
was read before, so of two processes that prepared a revert one wins and the other finds that nothing was changed.
Without a database, or without a row, the greatest file name selects; so a new rollout always gets a name that wins
that order as well, and a database that is lost later changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from urllib.parse import quote

from threadstore.errors import StoreError
from threadstore.ids import file_stamp
from threadstore.locks import BusyError
from threadstore.names import ARCHIVED, SESSIONS, RolloutFile

_STATE = re.compile(r"state_(\d+)\.sqlite")
_PATIENCE = 5.0  # seconds to wait for Codex's own transactions
#: What a new thread does not take over from the row that it is made from.
_FRESH = {
    "title": "",
    "first_user_message": "",
    "tokens_used": 0,
    "archived": 0,
    "archived_at": None,
    "is_pinned": 0,
    "thread_section_id": None,
    "section_position": None,
    "section_entered_at_ms": None,
    "attached_thread_parent_id": None,
    "agent_nickname": None,
    "agent_role": None,
    "agent_path": None,
}


class Pointer:
    """The writable side of Codex's state database. Raises StoreError; BusyError when it is locked or has changed."""

    def __init__(self, root: str) -> None:
        self._root = root

    def path_of(self, thread_id: str) -> str | None:
        """The recorded path of a thread, verbatim; None without a row or a usable database."""
        with self._transaction() as connection:
            if connection is None:
                return None
            row = connection.execute("SELECT rollout_path FROM threads WHERE id = ?", (thread_id,)).fetchone()
            return None if row is None else str(row[0])

    def swap(self, thread_id: str, expected: str, path: str) -> bool:
        """Select another rollout, if `expected` still is what the row says. False when it isn't."""
        with self._transaction() as connection:
            if connection is None:
                return False
            done = connection.execute(
                "UPDATE threads SET rollout_path = ? WHERE id = ? AND rollout_path = ?",
                (os.path.join(self._root, path), thread_id, expected),
            )
            return done.rowcount == 1

    def adopt(self, source_id: str, thread_id: str, path: str) -> None:
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
            now = time.time_ns()
            row = dict(zip(names, found, strict=True)) | {k: v for k, v in _FRESH.items() if k in names}
            row |= {"id": thread_id, "rollout_path": os.path.join(self._root, path)}
            for name in ("created_at", "updated_at", "recency_at"):
                row |= {name: now // 1_000_000_000} if name in names else {}
                row |= {name + "_ms": now // 1_000_000} if name + "_ms" in names else {}
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT OR IGNORE INTO threads ({', '.join(row)}) VALUES ({marks})", list(row.values()))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection | None]:
        """One transaction, or None when there is no database with threads in it."""
        path = self._newest()
        if path is None:
            yield None
            return
        try:
            connection = sqlite3.connect(
                f"file:{quote(path)}?mode=rw", uri=True, timeout=_PATIENCE, isolation_level=None
            )
        except sqlite3.Error as error:
            raise StoreError(f"Codex's database can't be opened: {error}.") from error
        try:
            if not _begin(connection):
                connection.close()
                yield None
                return
            yield connection
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"Codex's database can't be written: {error}.") from error
        finally:
            connection.close()

    def _newest(self) -> str | None:
        names = [name for name in os.listdir(self._root) if _STATE.fullmatch(name)]
        newest = max(names, key=lambda name: int(name[6:-7]), default=None)
        return None if newest is None else os.path.join(self._root, newest)


def _begin(connection: sqlite3.Connection) -> bool:
    """Begin a transaction; False when this is no database with threads in it.

    What can't be read now but may be there (locked, an I/O error, a full disk) must not pass for absent: the pointer
    would stay where it is while we believe that there is none.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SELECT rollout_path FROM threads LIMIT 1")
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise BusyError("Codex's database is locked by another process; try again.") from error
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
    rollouts.
    """
    stamp = max([file_stamp(), *(rollout.stamp for rollout in others)])
    year, month, day = stamp[:10].split("-")
    suffix = "" if rollout_id == thread_id else f"_{rollout_id}"
    return f"{SESSIONS}/{year}/{month}/{day}/rollout-{stamp}-{thread_id}{suffix}.jsonl"


def is_archived(path: str) -> bool:
    """True for a rollout in the archive."""
    return path.startswith(ARCHIVED + "/")
