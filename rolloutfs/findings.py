"""What a folder below search/ holds: links to the threads that a query finds, and its hits; made in a worker.

The query is the folder's name, as one would type it into a search box: `flaky test` has both words, `"flaky test"` the
phrase. A name can't hold a slash, so `%2F` stands for one.

The answer is that of `rolloutfs search`, within bounds: on the time that is spent on bringing the index up to date and
on asking it, and on what is given. Where a bound was reached, or a thread can't be read, `incomplete.json` says so;
where a word looks like a filter that was misspelt, `hint.json` does. They are there only then.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, tzinfo
from typing import NamedTuple

from threadstore import index
from threadstore import search as searching
from threadstore.errors import StoreError
from threadstore.indexing import Indexer
from threadstore.search import Hit, Query
from threadstore.secrets import without_secrets
from threadstore.spines import Spine, spines
from threadstore.store import ThreadStore
from threadstore.summaries import Title

from rolloutfs.backlog import Reached, Todo
from rolloutfs.control import as_line
from rolloutfs.harmless import harmless, json_line
from rolloutfs.linknames import Names, label, moment, timed

log = logging.getLogger(__name__)

HITS, INCOMPLETE, HINT = "hits.jsonl", "incomplete.json", "hint.json"
LONGEST = 1000  # characters of a query; the kernel takes names of up to 1024 bytes
_THREADS = 999  # links in a folder
_MOST = 5_000  # hits that are given
_TEXTS = 50_000  # texts that are looked at: a common word in a large store has more
_CATCH_UP = 5.0  # seconds for the index to be brought up to date
_ASK = 10.0  # seconds for the question itself
_STEP = 0.5  # seconds of one step of indexing: others may take their turn
_TURN = 0.02  # seconds until it is tried again while another process builds the index
_OPCODES = 10_000  # of SQLite's machine between two looks at the clock

_SLASH = re.compile("%2[Ff]")


class Found(NamedTuple):
    """The files of a folder. `links` are names and threads, the thread with the newest hit first; `newest` is the time
    of that (Unix, ns), 0 where there is none, and `times` are those of each thread's newest hit.
    """

    links: tuple[tuple[str, str], ...]
    hits: bytes
    incomplete: bytes | None
    hint: bytes | None
    newest: int
    times: dict[str, int]
    reached: Reached


class _Reach(NamedTuple):
    """How much of the store was searched: threads in it, those that are not in the index, and whether all that changed
    was entered.
    """

    threads: int
    missing: int
    is_current: bool


def parse(name: str, zone: tzinfo = UTC) -> Query:
    """What the name of a folder asks for; days are those of the zone. Raises QueryError."""
    return searching.parse_line(_SLASH.sub("/", name), zone)


def find(store: ThreadStore, paths: Sequence[str], name: str, todo: Todo, zone: tzinfo = UTC) -> Found:
    """Ask the index at the first of `paths` that can be written, after `todo` was done as far as there is time. Days
    are those of the zone.

    Raises QueryError, OSError: ETIMEDOUT when the question takes too long.
    """
    query = parse(name, zone)
    reason: Exception | None = None
    for number, path in enumerate(paths):
        for _ in range(2):  # one that is found to be damaged is removed, and made anew
            try:
                mine = todo if number == todo.number else Todo(number=number)
                return _find(store, path, query, mine, zone)
            except TimeoutError:
                raise
            except Exception as error:  # noqa: BLE001  a damaged file makes sqlite3 raise what it doesn't document
                log.info("%s can't be used: %s", path, error)
                reason = error
    raise OSError(errno.EIO, f"The texts can't be searched: {reason}")


def _find(store: ThreadStore, path: str, query: Query, todo: Todo, zone: tzinfo) -> Found:
    with closing(Indexer(store, path)) as indexer:
        reached = _catch_up(indexer, todo)
    threads = len(store.thread_ids())
    with closing(index.connect(path)) as connection:
        end = time.monotonic() + _ASK
        connection.set_progress_handler(lambda: time.monotonic() > end, _OPCODES)
        try:
            some = searching.search_some(connection, store.root, query, _MOST, _TEXTS, store.mask)
            found = list(dict.fromkeys(hit.thread_id for hit in some.hits))[:_THREADS]
            reach = _Reach(threads, threads - searching.indexed_threads(connection), reached.is_current)
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise TimeoutError(errno.ETIMEDOUT, f"this took longer than {_ASK:g} s: ask for less") from error
            raise
    names = _names(store, found, zone)
    hits = [hit for hit in some.hits if hit.thread_id in names]
    is_cut = some.is_cut or len(hits) < len(some.hits)
    lacks = _incomplete(reach, len(hits) if is_cut else None)
    times: dict[str, int] = {}
    for hit in hits:  # the newest first
        times.setdefault(hit.thread_id, round((hit.time or 0) * 1000) * 1_000_000)
    links = tuple((names[thread], thread) for thread in times)
    newest = next(iter(times.values()), 0)
    return Found(links, b"".join(map(_line, hits)), lacks, _hint(query), newest, times, reached)


def _catch_up(indexer: Indexer, todo: Todo) -> Reached:
    """Enter what is lacking, as far as there is time for it."""
    end = time.monotonic() + _CATCH_UP
    begin = "" if todo.after is None and not os.path.exists(indexer.path) else todo.after
    after, entered = begin, not todo.changed
    while (after is not None or not entered) and (left := end - time.monotonic()) > 0:
        if after is not None:
            progress = indexer.advance(after, min(left, _STEP))
            after = after if progress is None else progress.last
            is_refused = progress is None
        else:
            entered = indexer.enter(todo.changed)
            is_refused = not entered
        if is_refused:  # another process is at it; it takes turns
            time.sleep(_TURN)
    is_whole = after is None and entered
    return Reached(after, todo.number, entered, is_whole and (todo.is_watched or begin == ""))


def _names(store: ThreadStore, threads: list[str], zone: tzinfo) -> dict[str, str]:
    """What the links to some threads are called, as in recent/; those that are gone are left out."""
    ids = sorted(threads)
    known = {thread: spine for thread, spine in zip(ids, spines(store, ids, whole=False), strict=True) if spine}

    def wanted(thread: str) -> tuple[str, bool]:
        return timed(moment(known[thread].began_ns, zone), words[thread]), False

    words = {thread: _words(store, thread, spine) for thread, spine in known.items()}
    names = Names(known, wanted)
    return dict(zip(names.threads, names, strict=True))


def _words(store: ThreadStore, thread: str, spine: Spine) -> str:
    """What a thread is called: its name, or the words that it began with, as views have it."""
    try:
        title = store.title(thread)
    except (KeyError, StoreError, OSError):
        return spine.words
    if store.mask is not None:
        title = Title(without_secrets(title.name or ""), without_secrets(title.preview or ""))
    called = label(title)
    return spine.words if called is None else called.text


def _line(hit: Hit) -> bytes:
    return json_line(searching.document(hit)).encode() + b"\n"


def _hint(query: Query) -> bytes | None:
    """What may have been meant otherwise; None for most queries."""
    return as_line({"because": [harmless(hint) for hint in query.hints]}) if query.hints else None


def _incomplete(reach: _Reach, given: int | None) -> bytes | None:
    """What the answer lacks, in words; None when it lacks nothing. `given` is how many hits were given of more."""
    told = []
    if given is not None:
        told.append(f"there are more hits than the newest {given}: ask for less")
    if not reach.is_current:
        told.append("the index doesn't have all that was said yet: look again in a moment")
    elif reach.missing > 0:
        told.append(f"{reach.missing} of {reach.threads} threads can't be read as a whole: see their problems.jsonl")
    if not told:
        return None
    return as_line({"threads": reach.threads, "not_searched": max(reach.missing, 0), "because": told})
