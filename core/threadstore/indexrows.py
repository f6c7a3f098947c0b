"""What the tables of an index have of one thread: its rows, made from its derived files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from threadstore import index, parts
from threadstore.index import Entry
from threadstore.indexfile import COUNTS, TEXTS
from threadstore.names import RolloutFile
from threadstore.projection import Projection, View, rendered
from threadstore.spines import kept_of
from threadstore.store import ThreadStore
from threadstore.summaries import as_kept
from threadstore.usage import FIELDS

Json = dict[str, Any]
_LARGE = 256 << 10  # bytes of log from which each derived file is kept by itself
_VERY_LARGE = 1 << 20  # bytes of log from which passes over it are kept
_PROBLEM = ("code", "file", "offset", "length", "message", "consequence", "uncertain")


def rows_of(store: ThreadStore, thread: str, entry: Entry, made: dict[View, Projection]) -> dict[str, list[Json]]:
    """The rows of one thread by table, parents first."""
    document, usage = _document(made, View.THREAD), _document(made, View.USAGE)
    opening = store.opening(thread)
    git = document["git"] if isinstance(document["git"], dict) else {}
    row = {
        "id": thread,
        **{key: as_kept(document[key]) for key in TEXTS},
        "branch": as_kept(git.get("branch")),
        "commit_hash": as_kept(git.get("commit_hash")),
        "agent": as_kept((document["agent"] or {}).get("nickname") or (document["agent"] or {}).get("role")),
        "first_words": as_kept(opening.words),
        "archived": document["archived"],
        "is_agent": document["agent"] is not None,
        **{key: document["counts"][key] for key in COUNTS},
        "total_tokens": _tokens(usage["total"]),
        "own_tokens": _tokens(usage["own"]),
    }
    row |= index.packed(entry, row)
    spine = kept_of(store, thread, opening, entry, (row["cwd"], row["model"]))
    size = sum(source.size for source in entry.made_from)
    passes = store.packed_passes(thread) if size > _VERY_LARGE else {}
    return {
        "threads": [row],
        "spines": [{"thread_id": thread, "data": spine.packed()}],
        "extents": [*_extents(thread, made, in_parts=parts.KIND in passes)]
        if size > _LARGE
        else [*_together(thread, entry, made)],
        "passes": [{"thread_id": thread, "kind": kind, "data": data} for kind, data in passes.items()],
        "rollouts": [_rollout(store, thread, entry, one) for one in store.rollouts(thread)],
        "turns": [_turn(thread, one) for view in (View.TURNS, View.DROPPED_TURNS) for one in _lines(made, view)],
        "spent": [_spent(thread, one) for one in usage["spent"]],
        "problems": [_problem(thread, one) for one in _lines(made, View.PROBLEMS)],
    }


def _extents(thread: str, made: dict[View, Projection], *, in_parts: bool) -> Iterator[Json]:
    for view, projection in made.items():
        if view is View.TRANSCRIPT and in_parts:
            continue
        data = None if projection.extents is None else index.packed_extents(projection.extents)
        if data is not None:
            yield {"thread_id": thread, "file": view.value, "data": data}


def _together(thread: str, entry: Entry, made: dict[View, Projection]) -> Iterator[Json]:
    """Of a small thread all together: who reads one reads the others."""
    together = {view: made[view].extents for view in entry.outlines}
    data = index.packed_together({view: extents for view, extents in together.items() if extents is not None})
    if data is not None:
        yield {"thread_id": thread, "file": index.ALL, "data": data}


def _document(made: dict[View, Projection], view: View) -> Json:
    document: Json = orjson.loads(rendered(made[view]))
    return document


def _lines(made: dict[View, Projection], view: View) -> Iterator[Json]:
    return map(orjson.loads, rendered(made[view]).splitlines())


def _rollout(store: ThreadStore, thread: str, entry: Entry, rollout: RolloutFile) -> Json:
    status = store.status(rollout)
    return {
        "path": rollout.path,
        "id": rollout.rollout_id,
        "thread_id": thread,
        "archived": rollout.archived,
        "compressed": rollout.compressed,
        "selected": rollout.path == entry.made_from[0].path,
        "device": _signed(status.dev),
        "inode": _signed(status.ino),
        "bytes": status.size,
        "mtime_ns": status.mtime_ns,
    }


def _signed(number: int) -> int:
    """As SQLite's integers are."""
    return number if number < 1 << 63 else number - (1 << 64)


def _turn(thread: str, turn: Json) -> Json:
    usage, start = turn["usage"], turn["start"] or {}
    row = {key: turn[key] for key in ("number", "id", "status", "effective", "why")}
    row |= {key: as_kept(turn[key]) for key in ("user", "model", "error")}
    row |= {key: _integer(turn[key]) for key in ("started_at", "completed_at", "duration_ms")}
    place = {"file": start.get("file"), "offset": start.get("offset")}
    return {"thread_id": thread, **row, "total_tokens": _tokens(usage), **place}


def _spent(thread: str, row: Json) -> Json:
    return {"thread_id": thread, "day": row["day"], "model": row["model"], **{name: row[name] for name in FIELDS}}


def _tokens(usage: Json | None) -> int | None:
    return _integer((usage or {}).get("total_tokens"))


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None


def _problem(thread: str, problem: Json) -> Json:
    return {"thread_id": thread} | {key: problem.get(key) for key in _PROBLEM}
