"""What must be the same after a refusal: every byte of the logs and the index of names, every row about a thread."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.interop.codex import databases

Row = dict[str, Any]
_KEPT = ("sessions", "archived_sessions", "session_index.jsonl")


def fingerprint(home: Path) -> dict[str, str]:
    """Hashes of every file of the store and of every row. The databases' own bytes are not part of it: Codex folds
    their logs when it likes.
    """
    files = [path for name in _KEPT for path in [home / name, *(home / name).rglob("*")] if path.is_file()]
    found = {str(path.relative_to(home)): _hash(path.read_bytes()) for path in sorted(files)}
    return found | {f"row of {thread_id}": _hash(repr(row).encode()) for thread_id, row in rows(home).items()}


def rows(home: Path) -> dict[str, Row]:
    """The rows of Codex's newest table of threads, by thread id. Read only."""
    found: dict[str, Row] = {}
    for database in databases(home)[-1:]:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            found |= {row["id"]: dict(row) for row in connection.execute("SELECT * FROM threads")}
    return found


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
