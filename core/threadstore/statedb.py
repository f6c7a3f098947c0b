"""Codex's own database of threads, read without a trace (FORMAT 2.5, 11.4; FAULTS 26).

`threads.rollout_path` names the selected rollout of a thread; after a revert nothing else does. The database
belongs to Codex, which may be writing it now, so we never open it in a way that creates or touches files beside it:
an idle one (no write-ahead log) is opened as immutable, a busy one is copied together with its log to a private
folder and the copy is opened. A copy is taken only when both files stood still meanwhile.

The database may be absent, corrupt, stale, or name files of another machine. It is asked first because Codex asks
it first; it is never needed.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from threadstore import databases
from threadstore.errors import Problem
from threadstore.filestates import FileStates
from threadstore.summaries import LONGEST

_COLUMNS = (
    "rollout_path",
    "history_mode",
    "archived",
    "name",
    "title",
    "preview",
    "first_user_message",
    "agent_nickname",
    "agent_role",
    "agent_path",
    "attached_thread_parent_id",
)
_ATTEMPTS = 5
RESOLUTION = 50_000_000  # ns within which two changes of a file may bear one mtime


@dataclass(frozen=True, slots=True)
class Row:
    """What the database says of one thread; None where it says nothing or has no such column."""

    rollout_path: str
    history_mode: str | None
    archived: bool
    name: str | None
    title: str | None
    preview: str | None
    first_user_message: str | None
    agent_nickname: str | None
    agent_role: str | None
    agent_path: str | None
    attached_thread_parent_id: str | None


Identity = tuple[tuple[str, int, int, int, int], ...]


class StateDatabase:
    """Read-only view of `state_*.sqlite`.

    Invariant: `_connection` shows the files as they were when `_identity` was taken; None when there is no usable
    database.
    """

    def __init__(self, files: FileStates, scratch: str) -> None:
        self._root = files.root
        self._files = files
        self._system = FileStates(files.root)
        self._scratch = scratch
        self._databases: tuple[list[str], list[str]] = ([], [])  # names in the root, and those of databases among them
        self._place: tuple[tuple[object, ...], str] | None = None  # what is known of the config, and what it says
        self._looked: tuple[int, Identity] | None = None  # what was found when so much had happened
        self._identity: Identity | None = None
        self._is_young = False  # the files may have been written again without a sign of it
        self._connection: sqlite3.Connection | None = None
        self._copy: str | None = None
        self._columns: list[str] = []
        self.problem: Problem | None = None

    def identity(self) -> Identity:
        """What `stat` says of the database and its log; changes whenever a row may have changed."""
        return self._identity_in(self._files)

    def _identity_in(self, files: FileStates) -> Identity:
        changes = files.changes
        if changes is not None and self._looked is not None and self._looked[0] == changes:
            return self._looked[1]
        name = self._newest(files)
        identity = () if name is None else tuple(_stat(files, name + suffix) for suffix in ("", "-wal"))
        if changes is not None:
            self._looked = (changes, identity) if self._is_heard_of(files, name) else None
        return identity

    def _is_heard_of(self, files: FileStates, name: str | None) -> bool:
        """True where whoever hears of changes in the root hears of every one to the database in use: not where a name
        leads elsewhere.
        """
        if self._folder(files) != self._root or len(self._databases[1]) > 1:
            return False
        return not self._databases[1] if name is None else not os.path.isabs(name)

    def _is_still(self, identity: Identity | None) -> bool:
        """Ask the system, whatever is remembered: nothing was changed while we were reading."""
        return self._identity_in(self._system) == identity

    def row(self, thread_id: str) -> Row | None:
        """The row of a thread, None without one and without a usable database."""
        for attempt in range(_ATTEMPTS):
            self._refresh(self._system if attempt else self._files)
            if self._connection is None:
                return None
            try:
                found = self._connection.execute(
                    f"SELECT {', '.join(self._columns)} FROM threads WHERE id = ?", (thread_id,)
                ).fetchone()
            except sqlite3.Error as error:
                if self._is_still(self._identity):
                    self._fail(str(error))
                    return None
                continue
            if self._copy is not None or self._is_still(self._identity):
                return None if found is None else self._row(found)
        return None

    def ids(self) -> list[str]:
        """The ids of all threads that have a row."""
        self._refresh(self._files)
        if self._connection is None:
            return []
        try:
            return [str(row[0]) for row in self._connection.execute("SELECT id FROM threads ORDER BY id")]
        except sqlite3.Error as error:
            self._fail(str(error))
            return []

    def titles(self) -> Iterator[tuple[str, str | None, str | None]]:
        """Id, name and preview (cut) of all threads that have either. What changes meanwhile may be missing: the next
        `identity` tells.
        """
        self._refresh(self._files)
        some = [name for name in ("name", "preview") if name in self._columns]
        if self._connection is None or not some:
            return
        name, preview = (f"substr({one}, 1, {LONGEST})" if one in some else "NULL" for one in ("name", "preview"))
        wanted = " OR ".join(f"{one} <> ''" for one in some)
        try:
            for row in self._connection.execute(f"SELECT id, {name}, {preview} FROM threads WHERE {wanted}"):
                yield str(row[0]), _text(row[1]), _text(row[2])
        except sqlite3.Error as error:
            if self._is_still(self._identity):
                self._fail(str(error))

    def close(self) -> None:
        """Forget the connection and remove the private copy."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)
            self._copy = None

    def _row(self, found: tuple[object, ...]) -> Row:
        values = dict(zip(self._columns, found, strict=True))
        texts = {key: value if isinstance(value, str) else None for key, value in values.items()}
        return Row(
            rollout_path=texts.get("rollout_path") or "",
            archived=bool(values.get("archived")),
            **{key: texts.get(key) for key in _COLUMNS if key not in ("rollout_path", "archived")},
        )

    def _newest(self, files: FileStates) -> str | None:
        """The database in use: a name in the root, or an absolute path."""
        try:
            names = files.names()
        except OSError:
            return None
        if self._folder(files) != self._root:
            return databases.newest(self._root)
        if names is not self._databases[0]:
            self._databases = names, [name for name in names if databases.is_database(name)]
        found = self._databases[1]
        if len(found) == 1 and _stat(files, found[0])[2]:
            return found[0]
        return databases.newest(self._root) if found else None

    def _folder(self, files: FileStates) -> str:
        """Where the databases lie; looked for again when the config has changed."""
        config = _stat(files, databases.CONFIG)
        if self._place is None or self._place[0] != config:
            self._place = config, databases.folder(self._root)
        return self._place[1]

    def _refresh(self, files: FileStates) -> None:
        identity = self._identity_in(files)
        if identity == self._identity and not self._is_young:
            return
        self.close()
        self._identity, self.problem = identity, None
        self._is_young = is_young(identity)
        if not identity:
            return
        name, log = identity[0][0], identity[1]
        try:
            if log[3] == 0:
                self._open(os.path.join(self._root, name))
            else:
                self._open_copy(name)
        except (OSError, sqlite3.Error) as error:
            self._fail(str(error))

    def _open(self, path: str) -> None:
        connection = sqlite3.connect(databases.uri(path, "mode=ro&immutable=1"), uri=True, check_same_thread=False)
        self._connection = connection
        present = {str(row[1]) for row in connection.execute("PRAGMA table_info(threads)")}
        if "rollout_path" not in present:
            raise sqlite3.DatabaseError("it has no table of threads")
        self._columns = [column for column in _COLUMNS if column in present]

    def _open_copy(self, name: str) -> None:
        """Copy database and log while they stand still, and fold the log into the copy."""
        os.makedirs(self._scratch, mode=0o700, exist_ok=True)
        self._copy = tempfile.mkdtemp(prefix="state-", dir=self._scratch)
        target = os.path.join(self._copy, "state.sqlite")
        for _ in range(_ATTEMPTS):
            before = self._identity_in(self._system)
            self._is_young = is_young(before)
            shutil.copyfile(os.path.join(self._root, name), target)
            if before[1][3]:
                shutil.copyfile(os.path.join(self._root, name + "-wal"), target + "-wal")
            if self._is_still(before):
                self._identity = before
                break
        with closing(sqlite3.connect(target)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode=DELETE")
        self._open(target)

    def _fail(self, reason: str) -> None:
        name = self._identity[0][0] if self._identity else "state database"
        self.close()
        self.problem = Problem(
            "index_corrupt",
            name,
            None,
            None,
            f"the database can't be read: {reason}",
            "threads are selected by file names, as Codex does without a database; "
            "names of paginated threads are not known",
        )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def is_young(identity: Identity) -> bool:
    """True for files that were changed so lately that the next change may bear the same time. A log of a database is
    written over from its beginning, so its size tells nothing.
    """
    now = time.time_ns()
    return any(now - mtime_ns < RESOLUTION for _, _, _, _, mtime_ns in identity)


def _stat(files: FileStates, name: str) -> tuple[str, int, int, int, int]:
    """Name, device, inode, size, mtime; zeros for what is no regular file. Of what lies elsewhere nobody hears."""
    try:
        status = os.lstat(name) if os.path.isabs(name) else files.lstat(name)
    except OSError:
        return name, 0, 0, 0, 0
    if not stat.S_ISREG(status.st_mode):
        return name, 0, 0, 0, 0
    return name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
