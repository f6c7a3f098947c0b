"""`rolloutfs ls`: a table of threads, the newest first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import NamedTuple

from threadstore.errors import StoreError
from threadstore.store import ThreadStore
from threadstore.summaries import Summary

from rolloutfs.commands.opened import opened
from rolloutfs.harmless import harmless, json_line
from rolloutfs.naming import ShortIds, by_people, newest_first, summary_of
from rolloutfs.table import Column, Row, say, show
from rolloutfs.times import local, utc

_COLUMNS = (
    Column("LAST"),
    Column("THREAD"),
    Column("MODEL", gives=True),
    Column("TURNS", is_number=True),
    Column("WHERE", gives=True),
    Column("NAME", gives=True),
)
_UNREADABLE = "(can't be read: see rolloutfs check)"


class Listed(NamedTuple):
    """A thread of the list. `last` is the time of its last record (Unix, ns), 0 where it isn't known; there is no
    summary of a thread that can't be read.
    """

    thread: str
    last: int
    is_archived: bool
    summary: Summary | None


def ls(store: str, count: int, *, everything: bool, archived: bool, as_json: bool) -> None:
    """Print the newest `count` threads (0: all): those of people that are not archived, or with `archived` those that
    are, or with `everything` also those of agents, archived or not.
    """
    with opened(store) as its:
        chosen = islice(_listed(its.store, everything=everything, archived=archived), count or None)
        if as_json:
            for one in chosen:
                say(json_line(_document(one)))
            return
        found = list(chosen)
        short = ShortIds(its.store.thread_ids()).all_of(one.thread for one in found)
        if found:
            show(_COLUMNS, (_row(one, short[one.thread]) for one in found))
        else:
            some = "There are no such threads. With --all everything is listed."
            say(some if its.store.thread_ids() else f"There is no thread in {harmless(its.store.root)}.", is_error=True)


def _listed(store: ThreadStore, *, everything: bool, archived: bool) -> Iterator[Listed]:
    for last, thread in newest_first(store):
        try:
            is_archived = store.head(thread).archived
        except (KeyError, StoreError, OSError):
            is_archived = False
        right = archived == is_archived or (everything and not archived)
        if right and (everything or by_people(store, thread)):
            yield Listed(thread, last, is_archived, summary_of(store, thread))


def _document(one: Listed) -> dict[str, object]:
    known: dict[str, object] = {} if one.summary is None else asdict(one.summary)
    known.pop("is_archived", None)
    last = utc(one.last / 1e9)
    return {"thread_id": one.thread, "last_record": last, "archived": one.is_archived, **known}


def _row(one: Listed, short: str) -> Row:
    summary = one.summary
    last = local(one.last / 1e9)
    if summary is None:
        return Row((last, short, "", "", "", _UNREADABLE), one.is_archived)
    where = summary.branch or _at_home(summary.cwd or "")
    name = summary.name or summary.preview or (f"(agent {summary.agent})" if summary.agent else "")
    return Row((last, short, summary.model or "", str(summary.turns), where, name), one.is_archived)


def _at_home(folder: str) -> str:
    home = os.environ.get("HOME", "").rstrip("/")
    return f"~{folder[len(home) :]}" if home and f"{folder}/".startswith(f"{home}/") else folder
