"""Which of a store's state databases is the one in use (FORMAT 2.5).

Codex numbers them by the version of their schema. The newest is in use, but not one that was made and never filled:
by a newer Codex that was stopped early, or tried once. Both sides, the one that reads and the one that writes, ask
here.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import tempfile
from contextlib import closing
from functools import lru_cache
from urllib.parse import quote

_STATE = re.compile(r"state_(\d+)\.sqlite", re.ASCII)
_EMPTY, _WITHOUT_THREADS, _FILLED = 1, 0, 2


def is_database(name: str) -> bool:
    """True for the name of a state database in the root of a store."""
    return _STATE.fullmatch(name) is not None


def is_part(path: str) -> bool:
    """True for a state database and for the files that SQLite keeps beside it."""
    return is_database(path.removesuffix("-wal").removesuffix("-shm").removesuffix("-journal"))


def newest(root: str) -> str | None:
    """The name of the newest database with threads in it; without such a one, the newest with a table of threads, or
    else the newest. What is no regular file is never opened: a FIFO would make us wait.
    """
    try:
        names = [name for name in os.listdir(root) if is_database(name) and _size(os.path.join(root, name))]
    except OSError:
        return None
    names.sort(key=lambda name: int(name[6:-7]), reverse=True)
    if len(names) < 2:
        return names[0] if names else None
    return max(names, key=lambda name: _content(os.path.join(root, name)))  # the first of equals


def _size(path: str) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _content(path: str) -> int:
    return _look(path, _size(path), _size(path + "-wal"))


@lru_cache(maxsize=64)
def _look(path: str, _state: tuple[int, ...] | None, log: tuple[int, ...] | None) -> int:
    """What is in a database, which these states of it and its log identify; nothing is made beside it."""
    found = _ask(f"file:{quote(path)}?mode=ro&immutable=1")
    if found == _FILLED or log is None or log[2] == 0:
        return found
    try:
        with tempfile.TemporaryDirectory(prefix="rolloutfs-") as folder:  # what it has may all be in its log
            copy = os.path.join(folder, "state.sqlite")
            shutil.copyfile(path, copy)
            shutil.copyfile(path + "-wal", copy + "-wal")
            return _ask(f"file:{quote(copy)}?mode=rw")
    except OSError:
        return _FILLED


def _ask(uri: str) -> int:
    """What can't be read may be the one in use: it must not pass for empty, and is reported by who opens it."""
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            row = connection.execute("SELECT rollout_path FROM threads LIMIT 1").fetchone()
    except sqlite3.DatabaseError as error:
        text = str(error)
        return _WITHOUT_THREADS if "no such" in text or "not a database" in text or "malformed" in text else _FILLED
    return _EMPTY if row is None else _FILLED
