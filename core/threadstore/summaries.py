"""What a list of threads tells of each: from the index while that holds, else from `thread.json` as it is made now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

Json = dict[str, Any]
LONGEST = 300  # characters of a text, as the index keeps them
COLUMNS = (
    *("name", "preview", "status", "health", "cwd", "branch", "model", "archived", "turns", "effective_turns"),
    *("created_at", "updated_at", "forked_from", "parent", "agent", "own_tokens"),
)


@dataclass(frozen=True, slots=True)
class Summary:
    """A thread on one line. Texts are cut after `LONGEST` characters and may hold anything; `turns` are those that
    count; times are RFC 3339 as recorded; `agent` is the nickname or role of a sub-agent; `own_tokens` are
    those that the thread spent itself.
    """

    thread_id: str
    name: str | None
    preview: str | None
    status: str | None
    health: str | None
    cwd: str | None
    branch: str | None
    model: str | None
    is_archived: bool
    all_turns: int
    turns: int
    created_at: str | None
    updated_at: str | None
    forked_from: str | None
    parent: str | None
    agent: str | None
    own_tokens: int | None


class Opening(NamedTuple):
    """What stands at the beginning of a thread's log: when it began (RFC 3339 as recorded), what a person said first,
    the branch, and whether no person started it.
    """

    created: str | None
    words: str | None
    branch: object
    is_agent: bool


class Title(NamedTuple):
    """What the databases call a thread: the name that it was given, and a preview of what it is about."""

    name: str | None
    preview: str | None


class TurnPlace(NamedTuple):
    """A turn: its id, its number in `turns.jsonl` (None for one that no longer counts), the file in which it begins."""

    id: str
    number: int | None
    file: str | None


def of_row(thread_id: str, row: tuple[Any, ...]) -> Summary:
    """From the `COLUMNS` of the index."""
    values = list(row)
    archived = COLUMNS.index("archived")
    values[archived] = bool(values[archived])
    return Summary(thread_id, *values)


def of_document(document: Json) -> Summary:
    """From a `thread.json`."""
    git, counts = document["git"], document["counts"]
    return Summary(
        thread_id=document["id"],
        name=as_kept(document["name"]),
        preview=as_kept(document["preview"]),
        status=as_kept(document["status"]),
        health=as_kept(document["health"]),
        cwd=as_kept(document["cwd"]),
        branch=as_kept(git.get("branch")) if isinstance(git, dict) else None,
        model=as_kept(document["model"]),
        is_archived=document["archived"],
        all_turns=counts["turns"],
        turns=counts["effective_turns"],
        created_at=as_kept(document["created_at"]),
        updated_at=as_kept(document["updated_at"]),
        forked_from=as_kept(document["forked_from"]),
        parent=as_kept(document["parent"]),
        agent=as_kept((document["agent"] or {}).get("nickname") or (document["agent"] or {}).get("role")),
        own_tokens=counts["own_tokens"],
    )


def as_kept(value: object) -> str | None:
    """As the index keeps it."""
    text = value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
    return text if text is None else text[:LONGEST]
