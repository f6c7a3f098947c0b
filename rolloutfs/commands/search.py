"""`rolloutfs search`: bring the index up to date, then ask it."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing

import click
from threadstore import index
from threadstore import search as searching
from threadstore.errors import StoreError
from threadstore.index import IndexReader
from threadstore.indexing import Indexer
from threadstore.search import Hit, Query, QueryError
from threadstore.spool import Spool
from threadstore.store import ThreadStore
from threadstore.summaries import LONGEST

from rolloutfs import building
from rolloutfs.commands.opened import Opened, opened
from rolloutfs.errors import Exit, MountError
from rolloutfs.harmless import harmless, json_line
from rolloutfs.naming import ShortIds, name_of
from rolloutfs.table import Column, Row, say, show
from rolloutfs.times import local

log = logging.getLogger(__name__)

_NAMED = 10  # threads that are told by their names where nothing was found

_COLUMNS = (
    Column("TIME"),
    Column("THREAD"),
    Column("TURN", is_number=True),
    Column("KIND"),
    Column("TEXT", gives=True),
)


def search(store: str, words: Sequence[str], count: int, *, as_json: bool, mask: bool | None = None) -> None:
    """Print the newest `count` texts (0: all) in which all words occur, with secrets masked if `mask` or the settings
    say so. Raises MountError.
    """
    try:
        query = searching.parse(words)
    except QueryError as error:
        raise MountError(harmless(error.message), Exit.USAGE) from error
    for hint in query.hints:
        click.echo(f"rolloutfs: {harmless(hint)}", err=True)
    with opened(store, mask) as its:
        hits = _hits(its, query, count)
        if as_json:
            for hit in hits:
                say(json_line(searching.document(hit)))
        elif hits:
            short = ShortIds(its.store.thread_ids()).all_of(iter(hit.thread_id for hit in hits))
            show(_COLUMNS, (_row(hit, short) for hit in hits))
        if not hits:
            say("Nothing was found.", is_error=True)
            for line in _called_so(its.store, query):
                say(line, is_error=True)


def _called_so(store: ThreadStore, query: Query) -> Iterator[str]:
    """Names aren't searched, since nobody has said them; but who remembers one may have meant it."""
    words = [word.casefold() for word in query.words]
    if not words or query.where:
        return
    ids = store.thread_ids()
    named = ((thread, name) for thread in ids if (name := name_of(store, thread)) is not None)
    found = [(thread, name) for thread, name in named if all(word in name.casefold() for word in words)]
    if found:
        yield "Names are not searched, but these threads are called so:"
    short = ShortIds(ids).all_of(thread for thread, _ in found[-_NAMED:])
    for thread, name in reversed(found[-_NAMED:]):
        yield f"  {short[thread]}  {harmless(name[:LONGEST])}"


def _hits(its: Opened, query: Query, count: int) -> list[Hit]:
    """From the index; where that can't be written, from one that is made for this question alone."""
    root = its.store.root
    if its.index_path is not None:
        for _ in range(2):  # one that is found to be damaged is removed, and made anew
            try:
                return _ask(its.store, its.index_path, query, count)
            except MountError:
                raise
            except Exception as error:  # noqa: BLE001  a damaged file makes sqlite3 raise what it doesn't document
                log.info("%s can't be used: %s", its.index_path, error)
    path = os.path.join(its.scratch, "search.sqlite")
    try:
        store = ThreadStore(root, Spool(its.scratch), index=IndexReader(path), mask=its.store.mask)
        return _ask(store, path, query, count)
    except (sqlite3.Error, OSError) as error:
        raise MountError(f"The texts can't be searched: {harmless(str(error))}.", Exit.FAILED) from error


def _ask(store: ThreadStore, path: str, query: Query, count: int) -> list[Hit]:
    try:
        with closing(Indexer(store, path)) as indexer:
            _, total = building.catch_up(indexer)
    except StoreError as error:
        raise MountError(harmless(error.message), Exit.STORE) from error
    with contextlib.closing(index.connect(path)) as connection:
        hits = searching.search(connection, store.root, query, count, store.mask) if total else []
        missing = total - searching.indexed_threads(connection)
    if missing > 0:
        told = f"{missing} of {total} threads can't be read as a whole, so they were not searched: see rolloutfs check."
        click.echo(f"rolloutfs: {told}", err=True)
    return hits


def _row(hit: Hit, short: dict[str, str]) -> Row:
    kind = hit.kind if hit.tool is None else f"{hit.kind} {hit.tool}"
    number = "dropped" if not hit.effective else "" if hit.turn is None else str(hit.turn)
    return Row((local(hit.time), short[hit.thread_id], number, kind, hit.snippet), not hit.effective)
