"""Which of a store's state databases is the one in use, and where it lies (FORMAT 2.5).

They lie in the root of the store, unless `sqlite_home` in its config.toml or $CODEX_SQLITE_HOME names another folder
(in this order; observed with Codex 0.171.0), and any of them may be a link: SQLite keeps its other files beside the
file that it leads to. Codex numbers them by the version of their schema. The newest is in use, but not one that was
made and never filled: by a newer Codex that was stopped early, or tried once. Both sides, the one that reads and the
one that writes, ask here.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import tempfile
import tomllib
from contextlib import closing
from functools import lru_cache
from urllib.parse import quote

_STATE = re.compile(r"state_(\d+)\.sqlite", re.ASCII)
CONFIG = "config.toml"  # of Codex, in the root of the store
_SETTING, _VARIABLE = "sqlite_home", "CODEX_SQLITE_HOME"
_EMPTY, _WITHOUT_THREADS, _FILLED = 1, 0, 2


def is_database(name: str) -> bool:
    """True for the name of a state database in the root of a store."""
    return _STATE.fullmatch(name) is not None


def is_part(path: str) -> bool:
    """True for a state database and for the files that SQLite keeps beside it."""
    return is_database(path.removesuffix("-wal").removesuffix("-shm").removesuffix("-journal"))


def folder(root: str) -> str:
    """Where Codex keeps the databases of a store."""
    named = _named(os.path.join(root, CONFIG)) or os.environ.get(_VARIABLE, "")
    return named if os.path.isabs(named) and os.path.realpath(named) != os.path.realpath(root) else root


def newest(root: str) -> str | None:
    """The newest database with threads in it; without such a one, the newest with a table of threads, or else the
    newest. A name in the root, or an absolute path without links for what lies elsewhere. What is no regular file is
    never opened: a FIFO would make us wait.
    """
    place = folder(root)
    try:
        names = [name for name in os.listdir(place) if is_database(name) and _size(os.path.join(place, name))]
    except OSError:
        return None
    names.sort(key=lambda name: int(name[6:-7]), reverse=True)
    if not names:
        return None
    # the first of equals
    name = names[0] if len(names) == 1 else max(names, key=lambda name: _content(os.path.realpath(f"{place}/{name}")))
    path = os.path.join(place, name)
    return name if place == root and not os.path.islink(path) else os.path.realpath(path)


def elsewhere(root: str) -> str | None:
    """The folder of the database in use where that isn't the root of the store."""
    path = newest(root)
    return os.path.dirname(path) if path is not None and os.path.isabs(path) else None


def _named(path: str) -> str | None:
    """What a config.toml says of the folder; None where it says nothing that Codex could use."""
    try:
        status = os.stat(path)
        return _read(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=64)
def _read(path: str, *_state: int) -> str | None:
    with open(path, "rb") as file:
        try:
            named = tomllib.load(file).get(_SETTING)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            return None
    return named if isinstance(named, str) else None


def _size(path: str) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def uri(path: str, how: str) -> str:
    """What SQLite opens a file by, of a path of any bytes; `how` is a query like `mode=ro`."""
    return f"file:{quote(os.fsencode(path))}?{how}"


def _content(path: str) -> int:
    return _look(path, _size(path), _size(path + "-wal"))


@lru_cache(maxsize=64)
def _look(path: str, _state: tuple[int, ...] | None, log: tuple[int, ...] | None) -> int:
    """What is in a database, which these states of it and its log identify; nothing is made beside it."""
    found = _ask(uri(path, "mode=ro&immutable=1"))
    if found == _FILLED or log is None or log[2] == 0:
        return found
    try:
        with tempfile.TemporaryDirectory(prefix="rolloutfs-") as folder:  # what it has may all be in its log
            copy = os.path.join(folder, "state.sqlite")
            shutil.copyfile(path, copy)
            shutil.copyfile(path + "-wal", copy + "-wal")
            return _ask(uri(copy, "mode=rw"))
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
