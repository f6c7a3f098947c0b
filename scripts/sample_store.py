"""Builds the demo's Codex home: several corpus stores merged into one.

    .venv/bin/python -m scripts.sample_store DESTINATION

Files are copied as they are and the rows of the databases are put together.  `rollout_path` keeps pointing to where the
stores once were, as in every store that was moved.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.corpus_store import BUNDLED, copy_home

STORES = (
    "tools.paginated",
    "forks.paginated",
    "fork_of_fork.legacy",
    "revert_then_turns.paginated",
    "compact_manual.paginated",
    "subagents_v1.paginated",
    "world_state.paginated",
    "interrupted.paginated",
    "killed_torn.paginated",
    "compressed.paginated",
    "named.legacy",
    "archived.paginated",
    "old_0.47.0_basic",
)
DATABASE = "state_5.sqlite"
MERGED_TABLES = ("threads", "thread_spawn_edges")


def _columns(db: sqlite3.Connection, schema: str, table: str) -> set[str]:
    return {row[0] for row in db.execute("select name from pragma_table_info(?, ?)", (table, schema))}


def merge_database(source: Path, target: Path) -> None:
    """Adds the rows of `source` to `target`, as far as both know their columns."""
    with closing(sqlite3.connect(target)) as db:
        db.execute("attach ? as other", (str(source),))
        for table in MERGED_TABLES:
            columns = ", ".join(sorted(_columns(db, "main", table) & _columns(db, "other", table)))
            db.execute(f"insert into main.{table} ({columns}) select {columns} from other.{table}")
        db.commit()


def merge_home(source: Path, target: Path) -> None:
    """Adds the files of one Codex home to another; no rollout is in both."""
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        merged = target / path.relative_to(source)
        if path.name == DATABASE and merged.exists():
            merge_database(path, merged)
        elif path.name == "session_index.jsonl" and merged.exists():
            merged.write_bytes(merged.read_bytes() + path.read_bytes())
        elif merged.exists():
            raise FileExistsError(f"{merged} is in two of the sample's stores.")
        else:
            merged.parent.mkdir(parents=True, exist_ok=True)
            path.replace(merged)


def build(destination: Path) -> None:
    """Makes the sample store at `destination`, which must not exist."""
    destination.mkdir(parents=True)
    with TemporaryDirectory(dir=destination.parent) as scratch:
        for name in STORES:
            merge_home(copy_home(BUNDLED / name, Path(scratch) / name), destination)


def main(arguments: list[str]) -> int:
    """Builds the store at the path given."""
    if len(arguments) != 1:
        print("usage: python -m scripts.sample_store DESTINATION", file=sys.stderr)
        return 2
    build(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
