"""Copies of a store's threads under new ids, put into the store beside them.

An operation can be tried on a thread only once, and a Codex takes longer to start than to look at a thread. So a test
makes one home with many
copies of the same threads. Ids have a fixed length: byte offsets in the copies stay what they were.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import zstandard

_NAME = re.compile(r"rollout-[0-9T-]{19}-([0-9a-f-]{36})(?:_([0-9a-f-]{36}))?\.jsonl(?:\.zst)?")


def copied_id(identity: str, number: int) -> str:
    """The id that a thread or rollout has in a copy."""
    return f"{identity[:-3]}{int(identity[-3:], 16) ^ number:03x}"


class Clones:
    """The threads of `home`, copied `count` times: numbers 1 to `count`; 0 are the originals."""

    def __init__(self, home: Path, count: int) -> None:
        self.home = home
        self.thread_ids = sorted({found[1] for path in _rollouts(home) if (found := _NAME.fullmatch(path.name))})
        self._ids = {part for path in _rollouts(home) for part in re.findall(r"[0-9a-f-]{36}", path.name[28:])}
        contents = {path: _read(path) for path in _rollouts(home)}
        index = home / "session_index.jsonl"
        names = index.read_bytes() if index.exists() else None
        for number in range(1, count + 1):
            for path, data in contents.items():
                target = home / self._replace(str(path.relative_to(home)), number)
                changed = self._replace(data.decode("utf-8", "surrogateescape"), number)
                _write(target, changed.encode("utf-8", "surrogateescape"))
            if names is not None:
                with index.open("ab") as file:
                    file.write(self._replace(names.decode(), number).encode())
        for database in (*home.glob("state_*.sqlite"), *home.glob("thread_history_*.sqlite")):
            self._copy_rows(database, count)

    def name(self, text: str, number: int) -> str:
        """Text about a copy as it would be about the original."""
        return re.sub(
            r"[0-9a-f]{8}-[0-9a-f-]{27}",
            lambda found: next((one for one in self._ids if copied_id(one, number) == found[0]), found[0]),
            text,
        )

    def _replace(self, text: str, number: int) -> str:
        pattern = "|".join(map(re.escape, self._ids))
        return re.sub(pattern, lambda found: copied_id(found[0], number), text)

    def _copy_rows(self, database: Path, count: int) -> None:
        with closing(sqlite3.connect(database)) as connection:
            tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                for row in connection.execute(f'SELECT * FROM "{table}"').fetchall():
                    if any(isinstance(value, str) and self._replace(value, 1) != value for value in row):
                        marks = ", ".join("?" * len(row))
                        copies = [self._row(row, number) for number in range(1, count + 1)]
                        connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', copies)
            connection.commit()

    def _row(self, row: tuple[object, ...], number: int) -> tuple[object, ...]:
        return tuple(self._replace(value, number) if isinstance(value, str) else value for value in row)


def _rollouts(home: Path) -> list[Path]:
    return sorted(path for path in home.rglob("rollout-*") if _NAME.fullmatch(path.name))


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    return zstandard.ZstdDecompressor().decompressobj().decompress(data) if path.suffix == ".zst" else data


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.compress(data) if path.suffix == ".zst" else data)
