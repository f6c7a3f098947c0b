"""The index: what a listing needs of every thread, kept from one mount to the next in an SQLite file outside the store.

It may lag behind the store but never leads: what it says of a thread counts only while the files that it was made
from are as they were, and the names and rollouts too. It may be deleted at any moment; then answers are computed as
if it had never been. Its tables are meant to be read by people as well (docs/sql.md).

A file belongs to one edition of this library, since another one may write the derived files differently: the edition
is a hash of the library's own code. `IndexReader` is for whoever serves requests, `indexing.Indexer` writes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import zstandard

from threadstore.extents import Extents
from threadstore.parts import KIND, joined
from threadstore.parts import Outline as Written
from threadstore.passes import unpacked
from threadstore.projection import Basis, Outline, View
from threadstore.summaries import COLUMNS as SUMMARY
from threadstore.summaries import Summary, TurnPlace, of_row
from threadstore.tallies import COLUMNS as SPENT
from threadstore.tallies import Tally, of_rows

log = logging.getLogger(__name__)

Json = dict[str, Any]

#: The column that has the size of each derived file in bytes; empty where the file can't be given.
SIZES = {view: f"{view.value.partition('.')[0]}_bytes" for view in View}
#: Stands for all derived files of a thread where these are kept together.
ALL = "*"
_GENERATION = 16  # bytes of each
_DIGEST = 16  # bytes
_PATIENCE = 0.05  # seconds to wait for a lock
_AT_ONCE = 1000  # threads that are asked for in one query
_AGAIN = 1.0  # seconds until it is looked again whether the file is the same
_LEADS = ("forked_from", "parent")
_KEPT = ("rollout", "made_from", "facts", "generations", "last_record_ns", *_LEADS, *SIZES.values())
_COLUMNS = ", ".join(("digest", *_KEPT))
_ONE = f"SELECT {_COLUMNS} FROM threads WHERE id = ?"
_TURNS = "SELECT id, number, file FROM turns WHERE thread_id = ? AND why IS NOT 'reverted' ORDER BY rowid"
_PROBLEMS = 'SELECT code, file, "offset", length, message, consequence FROM problems WHERE thread_id = ? ORDER BY rowid'
_TALLIES = f"SELECT id, turns, effective_turns, {_COLUMNS} FROM threads WHERE id BETWEEN ? AND ?"
_SPENT = f"SELECT thread_id, {', '.join(SPENT)} FROM spent WHERE thread_id BETWEEN ? AND ?"
_SOME = f"SELECT id, {_COLUMNS} FROM threads WHERE id > ? AND id < ?"
_PACKED = (
    f"SELECT data, generations, {', '.join(SIZES.values())} FROM threads JOIN extents ON thread_id = id "
    f"WHERE id = ? AND file = '{ALL}'"
)
_PLACES = {view: number for number, view in enumerate(SIZES)}


class Entry(NamedTuple):
    """What the index knows of a thread: the derived files, what they were made from, and the time of the last record
    (Unix, ns).

    `facts` is a digest of what they depend on besides the content of files; `made_from` begins with the selected
    rollout. `is_alone` is True where that one names no thread that it came from, as far as the index has been asked.
    """

    made_from: tuple[Basis, ...]
    facts: bytes
    outlines: dict[View, Outline]
    last_record_ns: int
    is_alone: bool = False


class Kept(NamedTuple):
    """What the index knows of a thread for a view: the files that it was made from and what `Spine` has, but for what
    `stat` says. `began_ns` is None where it depends on several rollouts; `created` is what the first line of the
    selected one says.
    """

    made_from: tuple[Basis, ...]
    began_ns: int | None
    created: str | None
    last_ns: int
    words: str
    branch: str | None
    cwd: str | None
    model: str | None
    is_agent: bool
    masked: str | None  # the words without what may be secret, if that is less

    def packed(self) -> bytes:
        """As bytes that tell when they were damaged. Raises TypeError for a path that is no text."""
        data = orjson.dumps((list(map(tuple, self.made_from)), *self[1:]))
        return blake2b(data, digest_size=_DIGEST).digest() + data


class Packed(NamedTuple):
    """Every derived file of a small thread, as the index keeps them: where their bytes lie, packed, and the generation
    and the size in bytes of each, None for one that can't be given.
    """

    data: bytes
    generations: bytes
    sizes: tuple[int | None, ...]

    @property
    def digest(self) -> bytes:
        """Equal for the same, bit by bit."""
        return blake2b(b"%b%b%r" % (self.data, self.generations, self.sizes), digest_size=_DIGEST).digest()

    def outline(self, view: View) -> tuple[int | None, bytes]:
        """Size and generation of one of them."""
        number = _PLACES[view]
        return self.sizes[number], self.generations[number * _GENERATION : (number + 1) * _GENERATION]

    def fits(self, outlines: Mapping[View, Outline]) -> bool:
        """True when it is about the same content, as far as these tell."""
        return all(self.outline(view) == (one.size, one.generation) for view, one in outlines.items())

    def unpacked(self) -> dict[View, Extents]:
        """Where their bytes lie; nothing when that was damaged."""
        return unpacked_together(self.data)


@cache
def edition() -> str:
    """A name for the code that makes derived files."""
    code = blake2b(digest_size=6)
    for file in sorted(Path(__file__).parent.glob("*.py")):
        code.update(file.read_bytes())
    return code.hexdigest()


def place(folder: str, root: str) -> str:
    """The index of a store, in a folder for all of them."""
    store = blake2b(os.fsencode(os.path.realpath(root)), digest_size=6).hexdigest()
    return os.path.join(folder, f"{store}-{edition()}.sqlite")


def connect(path: str) -> sqlite3.Connection:
    """Open an index that is there. Raises sqlite3.Error."""
    return sqlite3.connect(f"{Path(path).as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=_PATIENCE)


class IndexReader:
    """Answers from an index that another process may be writing, or may have removed. Never raises."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._looked = 0.0
        self._last: tuple[str, float, Entry | None] = ("", 0.0, None)  # a thread is asked for several times in a row

    def entry(self, thread_id: str) -> Entry | None:
        """What it says of a thread; None when it says nothing."""
        now = time.monotonic()
        if self._last[0] != thread_id or now > self._last[1]:
            rows = self._all(_ONE, thread_id)
            self._last = (thread_id, now + _AGAIN, _entry(rows[0]) if rows else None)
        return self._last[2]

    def summary(self, thread_id: str) -> Summary | None:
        """What a list tells of a thread; to be used with its entry."""
        rows = self._all(f"SELECT {', '.join(SUMMARY)} FROM threads WHERE id = ?", thread_id)
        return of_row(thread_id, rows[0]) if rows else None

    def kept(self, thread_ids: Sequence[str]) -> dict[str, Kept]:
        """What it says of some threads."""
        found: dict[str, Kept] = {}
        for start in range(0, len(thread_ids), _AT_ONCE):
            some = thread_ids[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            for thread_id, data in self._all(f"SELECT thread_id, data FROM spines WHERE thread_id IN ({marks})", *some):
                one = _kept(data)
                if one is not None:
                    found[thread_id] = one
        return found

    def turns(self, thread_id: str) -> list[TurnPlace]:
        """The turns of a thread, in their order; to be used with its entry."""
        return [TurnPlace(*row) for row in self._all(_TURNS, thread_id)]

    def tallies(self, first: str, last: str) -> dict[str, tuple[Entry | None, Tally]]:
        """What threads add to statistics, from one id to another; each to be used if its entry holds."""
        spent: dict[str, list[tuple[Any, ...]]] = {}
        for thread_id, *row in self._all(_SPENT, first, last):
            spent.setdefault(thread_id, []).append(tuple(row))
        return {
            thread_id: (_entry(tuple(row)), Tally(turns, effective, of_rows(spent.get(thread_id, ()))))
            for thread_id, turns, effective, *row in self._all(_TALLIES, first, last)
        }

    def problems(self, thread_id: str) -> list[Json]:
        """The lines of a thread's `problems.jsonl`; to be used with its entry."""
        names = ("code", "file", "offset", "length", "message", "consequence")
        return [dict(zip(names, row, strict=True)) for row in self._all(_PROBLEMS, thread_id)]

    def extents(self, thread_id: str, view: View) -> Extents | None:
        """Where the bytes of a derived file lie, for a thread that takes long to read; to be used with its entry."""
        rows = self._all("SELECT data FROM extents WHERE thread_id = ? AND file = ?", thread_id, view.value)
        return unpacked_extents(rows[0][0]) if rows else None

    def packed(self, thread_id: str) -> Packed | None:
        """All derived files of a small thread, which are kept together; to be used with what its entry says of them."""
        for data, generations, *sizes in self._all(_PACKED, thread_id):
            if isinstance(data, bytes) and isinstance(generations, bytes):
                return Packed(data, generations, tuple(sizes))
        return None

    def passed(self, thread_id: str, kind: str) -> bytes | None:
        """A pass over a large thread (`passes.unpacked`), which may have read less than there is now."""
        rows = self._all("SELECT data FROM passes WHERE thread_id = ? AND kind = ?", thread_id, kind)
        return rows[0][0] if rows else None

    def transcript(self, thread_id: str, generation: bytes) -> Extents | None:
        """The same of a transcript that is kept in parts, if that is of this generation."""
        outline = unpacked(self.passed(thread_id, KIND))
        if not isinstance(outline, Written) or outline.generation != generation:
            return None
        text = joined(outline, self.parts(thread_id))
        return None if text is None else Extents.of_bytes(text)

    def parts(self, thread_id: str) -> dict[bytes, bytes]:
        """The parts of the transcript of a large thread (`parts.part_of`), by their keys."""
        return dict(self._all("SELECT key, data FROM parts WHERE thread_id = ?", thread_id))

    def edges(self) -> Iterator[tuple[Basis, str | None, str | None, str]]:
        """Of all threads in it: the selected rollout as it was then, the thread that it was forked from, its parent,
        and its name as an agent.
        """
        for forked_from, parent, agent, *row in self._all(
            f"SELECT forked_from, parent, agent, {_COLUMNS} FROM threads"
        ):
            if row[0] == _digest(row[1:]):
                yield Basis(*orjson.loads(row[2])[0]), forked_from, parent, agent or "agent"

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._identity = None, None

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows that a query gives; none where it can't be asked."""
        connection = self._current()
        if connection is None:
            return []
        try:
            return connection.execute(query, values).fetchall()
        except Exception as error:  # noqa: BLE001  a damaged file makes sqlite3 raise what it doesn't document
            log.info("%s can't be read: %s", self.path, error)
            self.close()
            return []

    def _current(self) -> sqlite3.Connection | None:
        """A connection to the file that has the name now."""
        now = time.monotonic()
        if now - self._looked > _AGAIN:
            self._looked = now
            identity = identity_of(self.path)
            if identity != self._identity:
                self.close()
                if identity is not None:
                    with contextlib.suppress(Exception):
                        self._connection, self._identity = connect(self.path), identity
        return self._connection


def identity_of(path: str) -> tuple[int, int] | None:
    """Tells one file from another that took its name; None when there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def entries(connection: sqlite3.Connection, after: str, before: str) -> dict[str, Entry | None]:
    """The entries of the threads whose ids lie between two others, without derived files; None for one that can't be
    used.
    """
    return {row[0]: _entry(row[1:], outlines=False) for row in connection.execute(_SOME, (after, before))}


def _entry(row: tuple[Any, ...], *, outlines: bool = True) -> Entry | None:
    """An entry from its columns; None when they don't fit together."""
    digest, _, made_from, facts, generations, last, forked_from, parent, *sizes = row
    if digest != _digest(row[1:]):
        return None
    basis = tuple(Basis(*one) for one in orjson.loads(made_from))
    is_alone = forked_from is None and parent is None
    if not outlines:
        return Entry(basis, facts, {}, last, is_alone)
    found = {
        view: Outline(size, basis, generations[number * _GENERATION : (number + 1) * _GENERATION])
        for number, (view, size) in enumerate(zip(SIZES, sizes, strict=True))
        if size is not None
    }
    return Entry(basis, facts, found, last, is_alone)


def _kept(data: object) -> Kept | None:
    """What `Kept.packed` gave; None for anything else."""
    if not isinstance(data, bytes) or blake2b(data[_DIGEST:], digest_size=_DIGEST).digest() != data[:_DIGEST]:
        return None
    made_from, *rest = orjson.loads(data[_DIGEST:])
    return Kept(tuple(Basis(*one) for one in made_from), *rest)


def packed_extents(extents: Extents) -> bytes | None:
    """Extents as the index keeps them; None when they are about a copy that doesn't last."""
    if any(source.spooled for source in extents.sources):
        return None
    data = zstandard.compress(extents.to_bytes(), 1)
    return blake2b(data, digest_size=_DIGEST).digest() + data


def unpacked_extents(data: object) -> Extents | None:
    """The same extents; None when they were damaged."""
    if not isinstance(data, bytes) or blake2b(data[_DIGEST:], digest_size=_DIGEST).digest() != data[:_DIGEST]:
        return None
    return Extents.from_bytes(zstandard.decompress(data[_DIGEST:]))


def packed_together(extents: Mapping[View, Extents]) -> bytes | None:
    """Extents of several files as the index keeps them; None when some are about a copy that doesn't last."""
    if any(source.spooled for one in extents.values() for source in one.sources):
        return None
    parts = {view.value: one.to_bytes() for view, one in extents.items()}
    head = orjson.dumps([(name, len(part)) for name, part in parts.items()])
    data = zstandard.compress(b"".join((len(head).to_bytes(4, "little"), head, *parts.values())), 1)
    return blake2b(data, digest_size=_DIGEST).digest() + data


def unpacked_together(data: object) -> dict[View, Extents]:
    """The same extents; none when they were damaged."""
    if not isinstance(data, bytes) or blake2b(data[_DIGEST:], digest_size=_DIGEST).digest() != data[:_DIGEST]:
        return {}
    text = zstandard.decompress(data[_DIGEST:])
    at = 4 + int.from_bytes(text[:4], "little")
    found: dict[View, Extents] = {}
    for name, length in orjson.loads(text[4:at]):
        found[View(name)] = Extents.from_bytes(text[at : at + length])
        at += length
    return found


def _digest(values: Iterable[object]) -> bytes:
    """Tells that one of the columns was damaged, which SQLite doesn't notice."""
    return blake2b(repr(tuple(values)).encode(), digest_size=_DIGEST).digest()


def packed(entry: Entry, row: Mapping[str, object]) -> dict[str, object]:
    """The columns of an entry; `row` has those that people read. Raises TypeError for a path that is no text."""
    generations = b"".join(
        entry.outlines[view].generation if view in entry.outlines else bytes(_GENERATION) for view in View
    )
    sizes = {column: entry.outlines[view].size if view in entry.outlines else None for view, column in SIZES.items()}
    columns: dict[str, object] = {
        "rollout": entry.made_from[0].path,
        "made_from": orjson.dumps(list(map(tuple, entry.made_from))).decode(),
        "facts": entry.facts,
        "generations": generations,
        "last_record_ns": entry.last_record_ns,
        **{name: row[name] for name in _LEADS},
        **sizes,
    }
    return columns | {"digest": _digest(columns[name] for name in _KEPT)}
