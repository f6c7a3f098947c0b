"""What threads are called: by the state database first, then by Codex's index of names (FORMAT 2.3)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import orjson

from threadstore.errors import UnreadableError
from threadstore.files import FileIdentity, open_regular
from threadstore.filestates import FileStates
from threadstore.lines import Log, forward
from threadstore.names import SESSION_INDEX
from threadstore.projection import Basis
from threadstore.statedb import Row, StateDatabase, is_young
from threadstore.summaries import Title


class Titles:
    """The names of a store's threads."""

    def __init__(self, states: FileStates, database: StateDatabase) -> None:
        self._states = states
        self._database = database
        self._names: tuple[FileIdentity, dict[str, str]] | None = None  # of the index

    def basis(self) -> tuple[Basis, ...]:
        """The files that name threads, as they are; a time of -1 says that what is made of them holds only now."""
        database = [Basis(*entry) for entry in self._database.identity()]
        if is_young(tuple(database)):
            database = [part._replace(mtime_ns=-1) for part in database]
        return (self._states.basis(SESSION_INDEX), *database)

    def name(self, thread_id: str, row: Row | None) -> str | None:
        """What the user called a thread that has this row."""
        if row is not None and row.name:
            return row.name
        return self._index_names().get(thread_id)

    def title(self, thread_id: str) -> Title:
        """What one thread is called."""
        row = self._database.row(thread_id)
        return Title(self.name(thread_id, row), row.preview if row is not None else None)

    def all(self) -> Iterator[tuple[str, Title]]:
        """Those of all threads that have any, one by one. Nothing else is to be asked of the store meanwhile."""
        names = dict(self._index_names())
        for thread_id, name, preview in self._database.titles():
            yield thread_id, Title(name or names.pop(thread_id, None), preview)
            names.pop(thread_id, None)
        for thread_id, called in names.items():
            yield thread_id, Title(called, None)

    def _index_names(self) -> dict[str, str]:
        try:
            if not self._states.basis(SESSION_INDEX).ino:
                return {}
            descriptor = open_regular(self._states.root, SESSION_INDEX)
        except (OSError, UnreadableError):
            return {}
        log = Log(descriptor, os.fstat(descriptor).st_size)
        try:
            identity = FileIdentity.of(os.fstat(descriptor))
            if self._names is None or self._names[0] != identity:
                self._names = (identity, _read_names(log))
            return self._names[1]
        finally:
            log.close()


def _read_names(log: Log) -> dict[str, str]:
    """The last name of each thread."""
    names: dict[str, str] = {}
    for line in forward(log):
        try:
            entry = orjson.loads(line.data)
        except orjson.JSONDecodeError:
            continue  # a torn line, as in any append-only file
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and isinstance(entry.get("thread_name"), str):
            names[entry["id"].lower()] = entry["thread_name"]
    return names
