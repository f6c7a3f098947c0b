"""The file of an index: its tables, in terms that people know from the files of a mount (docs/sql.md)."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from threadstore import index
from threadstore.index import SIZES
from threadstore.usage import FIELDS

_STALE = 7 * 86_400  # seconds after which the index of another edition is removed
#: Columns of a thread that are in its `thread.json`, texts and counts.
TEXTS = (
    *("name", "preview", "status", "health", "history_mode", "cwd", "model", "model_provider", "created_at"),
    *("updated_at", "cli_version", "originator", "forked_from", "parent"),
)
COUNTS = ("records", "items", "turns", "effective_turns", "checkpoints", "rollbacks", "damaged", "problems")
#: What keeps the full-text index as the texts are. `by_character` is there for who writes; reading needs none.
_TRIGGERS = (
    "CREATE TRIGGER texts_ai AFTER INSERT ON texts BEGIN "
    "INSERT INTO texts_fts (rowid, text) VALUES (new.id, by_character(new.text)); END",
    "CREATE TRIGGER texts_ad AFTER DELETE ON texts BEGIN "
    "INSERT INTO texts_fts (texts_fts, rowid, text) VALUES ('delete', old.id, by_character(old.text)); END",
)


def create(path: str, root: str) -> None:
    """An empty index, under its name only when it is whole."""
    from sqlite_utils import Database

    building = f"{path}.new"
    unlink(building)
    os.close(os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    database = Database(building)
    texts = dict.fromkeys(("id", *TEXTS, "agent", "branch", "commit_hash", "first_words"), str)
    numbers = dict.fromkeys(("archived", "is_agent", *COUNTS, "total_tokens", "own_tokens", *SIZES.values()), int)
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


def sweep(path: str) -> None:
    """Remove old indexes beside one: of its store by other editions of the library, and of stores that are gone."""
    folder, name = os.path.split(path)
    for other in os.listdir(folder):
        old = os.path.join(folder, other)
        if not other.endswith(".sqlite") or other == name:
            continue
        with contextlib.suppress(OSError):
            same = other.partition("-")[0] == name.partition("-")[0]
            if time.time() - os.stat(old).st_mtime > _STALE and (same or _is_orphaned(old)):
                unlink(old)
                os.unlink(old + ".lock")


def _is_orphaned(path: str) -> bool:
    """True for the index of a store that is no longer there."""
    try:
        with contextlib.closing(index.connect(path)) as connection:
            (root,) = connection.execute("SELECT root FROM store").fetchone()
            return not os.path.isdir(os.fsdecode(root))
    except Exception:  # noqa: BLE001  it is no index of this kind
        return False


def unlink(path: str) -> None:
    """Remove an index, with what SQLite keeps beside it."""
    for end in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + end)
