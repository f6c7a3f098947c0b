"""Full-text search: what a person typed as a query, and its answers from the index, the newest first.

A query is a list of arguments, as a shell hands them over. An argument is a word, or a phrase when it has blanks in it;
one with quotation marks is taken apart first. Words are what SQLite's unicode61 tokenizer makes of them: runs of
letters and digits, without case and diacritics, so that `foo-bar` is the phrase "foo bar", and each Chinese, Japanese
or Korean character (`words`), so that these are found inside of others. All of them must occur in one text; nothing
that is typed is handed to FTS5 as syntax.

The same may be typed as one line (`parse_line`), which is taken apart at its blanks.

The index knows no time of a single text. It has that of the turn, and where an old release recorded none, the record
itself is asked.
"""

from __future__ import annotations

import os
import re
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from heapq import nlargest
from typing import NamedTuple

from threadstore import misspelt
from threadstore.errors import StoreError, UnreadableError
from threadstore.files import open_regular, pread_exactly
from threadstore.ids import utc
from threadstore.markdown import beginning
from threadstore.masking import Mask
from threadstore.texts import LONGEST
from threadstore.times import parse_time
from threadstore.words import by_character

KINDS = tuple(LONGEST)
_MOST = 64  # words of a query; FTS5 takes some 200
_SNIPPET = 24  # words of a snippet
_BEGINNING = 400  # characters of a text from which a snippet is made when no word was searched for
_BEFORE, _AFTER = 40, 120  # characters around a word in a text of another script
_COMPARED = 300  # characters of a user's text that the index keeps of a turn
_IMPLICIT = "rollout-"  # how ids of turns begin that no record opens (`turns`)
_FILTERS = ("branch", "cwd", "model", "tool", "kind", "since", "until")
_FILTER = re.compile(rf"({'|'.join(_FILTERS)}):(.*)", re.DOTALL)
_PART = re.compile(r'([a-z]+:)?"([^"]*)"(\*?)|([^\s"]+)')
_COLUMNS = {"branch": "h.branch", "model": "h.model", "tool": "t.tool"}
_RECORD_TIME = re.compile(rb'\{"timestamp":"([^"]{10,40})"')


class QueryError(StoreError):
    """A query that can't be understood."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for: an FTS5 expression (None: any text), conditions on the columns of the index with their
    values by name, and the earliest and latest time (Unix, s; the latest is excluded). `words` are what was typed for
    the expression, `hints` sentences about those that nearly are filters.
    """

    match: str | None = None
    words: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    since: float | None = None
    until: float | None = None


class Hit(NamedTuple):
    """A text that was found. `turn` is its number in `turns.jsonl`, None for one that no longer counts or isn't known;
    `effective` is False for what was rolled back or dropped by a revert. `time` (Unix, s) is that of the turn, or of
    the record; `offset` is in decoded bytes.
    """

    thread_id: str
    turn: int | None
    turn_id: str | None
    effective: bool
    kind: str
    tool: str | None
    file: str
    offset: int
    time: float | None
    snippet: str


# The query


def parse(arguments: Iterable[str], zone: tzinfo | None = None) -> Query:
    """What the arguments of a command line ask for; days are those of a zone, None: the local one. Raises
    QueryError.
    """
    query, terms, words, hints = Query(), [], [], list[str]()
    for argument in arguments:
        _check_apart(argument)
        hints += _hints(argument)
        for name, text, is_prefix in _parts(argument):
            if name is None:
                terms.append(_term(text, is_prefix=is_prefix))
                words.append(text)
            else:
                query = _filtered(query, name, text + ("*" if is_prefix else ""), zone)
    if len(terms) > _MOST:
        raise QueryError(f"The query has {len(terms)} words; the most is {_MOST}.")
    if not terms and query == Query():
        raise QueryError("The query is empty: give a word to search for.")
    return replace(query, match=" AND ".join(terms) or None, words=tuple(words), hints=tuple(hints))


def parse_line(line: str, zone: tzinfo | None = None) -> Query:
    """What one line asks for: words and filters between blanks, phrases in quotation marks. It is asked in no folder,
    so `cwd:.` says nothing. Raises QueryError.
    """
    arguments = [line] if '"' in line else line.split()
    for argument in arguments:
        for name, text, _ in _parts(argument):
            if name == "cwd" and (text in (".", "..") or text.startswith(("./", "../"))):
                raise QueryError(f"cwd:{text} means no folder here; write it as in cwd:/home/me/project.")
    return parse(arguments, zone)


def _parts(argument: str) -> Iterable[tuple[str | None, str, bool]]:
    """Filter, text and whether it is the beginning of a word, for each part of an argument."""
    if argument.count('"') % 2:
        raise QueryError(f"A quotation mark in {argument!r} has no partner.")
    if '"' not in argument:
        yield _part(argument)
        return
    for found in _PART.finditer(argument):
        prefix, quoted, star, plain = found.groups()
        name = (prefix or "").removesuffix(":")
        if plain is not None:
            yield _part(plain)
        elif name in _FILTERS:
            yield name, quoted, bool(star)
        else:
            if prefix:
                yield None, name, False
            yield None, quoted, bool(star)


def _check_apart(argument: str) -> None:
    """Raise QueryError for several filters in one argument: the value of the first would be all that follows it."""
    parts = argument.split()
    if '"' not in argument and all(map(_FILTER.fullmatch, parts)) and len(parts) > 1:
        raise QueryError(f"{argument!r} was given as one argument: give {' and '.join(parts)} apart, without quotes.")


def _hints(argument: str) -> Iterable[str]:
    """What is to be said about an argument's words that nearly are filters, but for what stands in quotation marks."""
    parts = [part[0] for part in _PART.finditer(argument)] if '"' in argument else [argument]
    for word in parts:
        name = misspelt.meant(word, _FILTERS)
        if name is not None:
            yield misspelt.hint(word, name)


def _part(text: str) -> tuple[str | None, str, bool]:
    found = _FILTER.fullmatch(text)
    name, value = (None, text) if found is None else (found[1], found[2])
    return name, value.removesuffix("*"), value.endswith("*")


def _term(text: str, *, is_prefix: bool) -> str:
    """A word or phrase as FTS5 wants it."""
    if not any(map(str.isalnum, text)):
        raise QueryError(f"{text + '*' * is_prefix!r} has no letter or digit in it that could be searched for.")
    clean = text.replace("\0", " ").encode("utf-8", "replace").decode()
    return f'"{by_character(clean)}"' + " *" * is_prefix


def _filtered(query: Query, name: str, value: str, zone: tzinfo | None) -> Query:
    """The query with a filter more."""
    if not value.strip("*"):
        raise QueryError(f"{name}: needs a value, as in {_EXAMPLES[name]}.")
    if name == "since":
        return replace(query, since=_midnight(name, value, zone)[0])
    if name == "until":
        return replace(query, until=_midnight(name, value, zone)[1])
    key = f"v{len(query.values)}"
    if name == "kind":
        if value not in KINDS:
            raise QueryError(f"{value!r} is no kind of text; there are {', '.join(KINDS)}.")
        condition = f"t.kind = :{key}"
    elif name == "cwd":
        value = _folder(value)
        condition = f"(h.cwd = :{key} OR substr(h.cwd, 1, length(:{key}) + 1) = :{key} || '/')"
    elif value.endswith("*"):
        value = value[:-1]
        condition = f"substr({_COLUMNS[name]}, 1, length(:{key})) = :{key}"
    else:
        condition = f"{_COLUMNS[name]} = :{key}"
    value = value.replace("\0", " ").encode("utf-8", "replace").decode()
    return replace(query, where=(*query.where, condition), values=(*query.values, (key, value)))


_EXAMPLES = {
    "branch": "branch:main",
    "cwd": "cwd:~/project",
    "model": "model:gpt-5*",
    "tool": "tool:apply_patch",
    "kind": "kind:user",
    "since": "since:2026-11-01",
    "until": "until:2026-11-30",
}


def _midnight(name: str, value: str, zone: tzinfo | None) -> tuple[float, float]:
    """When a day of a zone begins and ends (Unix, s)."""
    try:
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value, re.ASCII):
            day = datetime.fromisoformat(value)
            first, last = (
                one.astimezone() if zone is None else one.replace(tzinfo=zone) for one in (day, day + timedelta(days=1))
            )
            return first.timestamp(), last.timestamp()
    except (ValueError, OverflowError):
        pass
    raise QueryError(f"{name}:{value} names no day; write it as in {_EXAMPLES[name]}.")


def _folder(value: str) -> str:
    """A recorded folder as it is typed; what begins with a dot or a tilde is one of this machine."""
    if value.startswith(("~", "./", "../")) or value in (".", ".."):
        value = os.path.abspath(os.path.expanduser(value))
    return value.rstrip("/")


# The answers


def document(hit: Hit) -> dict[str, object]:
    """A hit as JSON has it, with its time as text."""
    return {**hit._asdict(), "time": utc(hit.time)}


class _Turn(NamedTuple):
    offset: int
    number: int | None
    id: str
    user: str | None
    started_at: int | None
    effective: int


_Row = tuple[int, str, str, int, str, str | None, int]  # text, thread, file, offset, kind, tool, effective


class _Found(NamedTuple):
    """A text before it is known whether it is shown."""

    time: float
    file: str
    offset: int
    text_id: int
    thread_id: str
    kind: str
    tool: str | None
    turn: _Turn | None
    effective: bool


def search(connection: sqlite3.Connection, root: str, query: Query, count: int, mask: Mask | None = None) -> list[Hit]:
    """The newest `count` texts (0: all) that a query finds in an index; `root` is the store. Snippets are those of
    masked texts if there is a `mask`. Raises sqlite3.Error.
    """
    clock = _Clock(connection, root)
    found = (one for one in map(clock.timed, _rows(connection, query)) if _is_between(one, query))
    chosen = nlargest(count, found) if count else sorted(found, reverse=True)
    return [_hit(connection, query, one, mask) for one in chosen]


class Some(NamedTuple):
    """The newest hits, and whether there are more than was looked at."""

    hits: list[Hit]
    is_cut: bool


def search_some(
    connection: sqlite3.Connection, root: str, query: Query, count: int, most: int, mask: Mask | None = None
) -> Some:
    """The same in bounded time and memory: of what the words find, `most` texts of the threads that went on last are
    looked at, and of these the newest `count` are given. Raises sqlite3.Error.
    """
    clock = _Clock(connection, root)
    rows = _rows(connection, query, most + 1)
    found = [one for one in map(clock.timed, rows[:most]) if _is_between(one, query)]
    hits = [_hit(connection, query, one, mask) for one in nlargest(count, found)]
    return Some(hits, len(rows) > most or len(found) > count)


def _rows(connection: sqlite3.Connection, query: Query, most: int | None = None) -> list[_Row]:
    tables = "texts t JOIN threads h ON h.id = t.thread_id"
    where, values = list(query.where), dict(query.values)
    if query.match is not None:
        tables = f"texts_fts JOIN texts t ON t.id = texts_fts.rowid {tables.removeprefix('texts t')}"
        where.append("texts_fts MATCH :match")
        values["match"] = query.match
    condition = f" WHERE {' AND '.join(where)}" if where else ""
    select = f"SELECT t.id, t.thread_id, t.file, t.offset, t.kind, t.tool, t.effective FROM {tables}{condition}"
    if most is not None:
        select += f" ORDER BY h.last_record_ns DESC, t.id DESC LIMIT {most}"
    return connection.execute(select, values).fetchall()


def _is_between(found: _Found, query: Query) -> bool:
    early = query.since is not None and found.time < query.since
    return not early and (query.until is None or found.time < query.until)


def _hit(connection: sqlite3.Connection, query: Query, found: _Found, mask: Mask | None) -> Hit:
    turn = found.turn
    snippet = _snippet(connection, query, found.text_id)
    return Hit(
        found.thread_id,
        None if turn is None else turn.number,
        None if turn is None else turn.id,
        found.effective and (turn is None or bool(turn.effective)),
        found.kind,
        found.tool,
        found.file,
        found.offset,
        found.time or None,
        snippet if mask is None else _masked(connection, query, found, snippet, mask),
    )


def _masked(connection: sqlite3.Connection, query: Query, found: _Found, snippet: str, mask: Mask) -> str:
    """A snippet without secrets. A piece of a key looks like nothing, so the text is masked, as far as it is whole."""
    (text,) = connection.execute("SELECT text FROM texts WHERE id = ?", (found.text_id,)).fetchone()
    whole = text if len(text) < LONGEST[found.kind] else beginning(text)
    masked = mask(whole.encode()).decode()
    if masked == text:
        return snippet
    return masked[:_BEGINNING] if query.match is None else _around(masked, query.words)


def _snippet(connection: sqlite3.Connection, query: Query, text_id: int) -> str:
    """The words around what was found; the beginning of the text when no word was searched for."""
    if query.match is None:
        ask = f"SELECT substr(text, 1, {_BEGINNING}) FROM texts WHERE id = :id"
    else:
        ask = (
            f"SELECT snippet(texts_fts, 0, '', '', '…', {_SNIPPET}) FROM texts_fts "
            "WHERE texts_fts MATCH :match AND rowid = :id"
        )
    row = connection.execute(ask, {"id": text_id, "match": query.match}).fetchone()
    found = "" if row is None else str(row[0])
    if query.match is None or found.isascii():
        return found
    (text,) = connection.execute("SELECT text FROM texts WHERE id = ?", (text_id,)).fetchone()
    return found if by_character(text) == text else _around(text, query.words)


def _around(text: str, words: tuple[str, ...]) -> str:
    """The same for a text whose words FTS5 can't count: it has some that are characters."""
    lower = text.lower()
    at = min((at for word in words if (at := lower.find(word.lower())) >= 0), default=0)
    start, end = max(at - _BEFORE, 0), at + _AFTER
    return "…" * (start > 0) + text[start:end] + "…" * (end < len(text))


class _Clock:
    """Finds the turn and the time of texts; remembers the turns of each thread."""

    def __init__(self, connection: sqlite3.Connection, root: str) -> None:
        self._connection = connection
        self._root = root
        self._turns: dict[str, dict[str, list[_Turn]]] = {}  # by thread and file, in the order of offsets
        self._created: dict[str, float] = {}

    def timed(self, row: _Row) -> _Found:
        """A row of texts with its turn and time; the time is 0 where nobody knows it."""
        text_id, thread, file, offset, kind, tool, effective = row
        turn = self._turn(text_id, thread, file, offset, kind)
        if turn is not None and turn.started_at is not None:
            at = float(turn.started_at)
        else:
            at = record_time(self._root, file, offset) or self._created_at(thread)
        return _Found(at, file, offset, text_id, thread, kind, tool, turn, bool(effective))

    def _turn(self, text_id: int, thread: str, file: str, offset: int, kind: str) -> _Turn | None:
        turns = self._of(thread).get(file, [])
        at = bisect_right(turns, offset, key=lambda turn: turn.offset)
        # Where no record opens a turn, the event that does comes after the message that it is about.
        if kind == "user" and at < len(turns) and turns[at].id.startswith(_IMPLICIT):
            (text,) = self._connection.execute("SELECT text FROM texts WHERE id = ?", (text_id,)).fetchone()
            if turns[at].user == text[:_COMPARED]:
                return turns[at]
        return turns[at - 1] if at else None

    def _of(self, thread: str) -> dict[str, list[_Turn]]:
        if thread not in self._turns:
            turns = self._turns[thread] = {}
            ask = (
                'SELECT file, "offset", number, id, user, started_at, effective FROM turns WHERE thread_id = ? '
                'ORDER BY "offset"'
            )
            for file, *turn in self._connection.execute(ask, (thread,)):
                if file is not None and turn[0] is not None:
                    turns.setdefault(file, []).append(_Turn(*turn))
        return self._turns[thread]

    def _created_at(self, thread: str) -> float:
        if thread not in self._created:
            row = self._connection.execute("SELECT created_at FROM threads WHERE id = ?", (thread,)).fetchone()
            created = parse_time(str(row[0]).encode("ascii", "replace")) if row and row[0] else None
            self._created[thread] = (created or 0) / 1e9
        return self._created[thread]


def record_time(root: str, file: str, offset: int) -> float | None:
    """The time of a record (Unix, s); None for one that has none, or lies in a compressed file."""
    if file.endswith(".zst"):
        return None
    try:
        descriptor = open_regular(root, file)
    except (OSError, UnreadableError):
        return None
    try:
        found = _RECORD_TIME.match(pread_exactly(descriptor, 64, offset))
    finally:
        os.close(descriptor)
    at = None if found is None else parse_time(found[1])
    return None if at is None else at / 1e9


def indexed_threads(connection: sqlite3.Connection) -> int:
    """How many threads an index knows. Raises sqlite3.Error."""
    (count,) = connection.execute("SELECT count(*) FROM threads").fetchone()
    return int(count)
