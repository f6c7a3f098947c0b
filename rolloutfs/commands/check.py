"""`rolloutfs check`: what is wrong with a store, as its problems.jsonl files tell it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import orjson
from threadstore.errors import StoreError
from threadstore.projection import StoreView
from threadstore.store import ThreadStore

from rolloutfs.commands.opened import opened
from rolloutfs.errors import Exit
from rolloutfs.harmless import harmless, json_line
from rolloutfs.invocation import unread
from rolloutfs.table import say

Json = dict[str, Any]
_MEMBERS = ("thread_id", "file", "offset", "length", "code", "message", "consequence")


def check(store: str, *, as_json: bool) -> Exit:
    """Print the problems of the store and of each thread, also if nobody reads that to its end: they are what the code
    is about. Raises MountError.
    """
    count = 0
    with opened(store) as its:
        for problem in _problems(its.store):
            count += 1
            with unread():
                say(json_line(problem) if as_json else _sentence(problem))
        threads = len(its.store.thread_ids())
    if not as_json:
        with unread():
            say(f"{_some(threads, 'thread')}, {_some(count, 'problem')}.", is_error=count > 0)
    return Exit.PROBLEMS if count else Exit.DONE


def _problems(store: ThreadStore) -> Iterator[Json]:
    extents = store.project_store(StoreView.PROBLEMS).extents
    parts = () if extents is None else extents.plan(0, extents.size)
    content = b"".join(part for part in parts if isinstance(part, bytes))
    told: set[tuple[object, object, object]] = set()
    for line in content.split(b"\n")[:-1]:
        problem = _whole(None, orjson.loads(line))
        told.add(_key(problem))
        yield problem
    for thread in store.thread_ids():
        for problem in _of_thread(store, thread):
            if _key(problem) not in told:  # those about files are told by both
                yield problem


def _of_thread(store: ThreadStore, thread: str) -> Iterator[Json]:
    try:
        found = store.problems(thread)
    except KeyError:
        return  # it went away since we looked
    except (StoreError, OSError) as error:
        code = "no_permission" if getattr(error, "errno", 0) == errno.EACCES else "unreadable"
        told = error.message if isinstance(error, StoreError) else str(error)
        path = max(store.rollouts(thread), key=lambda rollout: (rollout.stamp, rollout.rollout_id)).path
        found = [{"code": code, "file": path, "message": told, "consequence": "nothing of the thread can be shown"}]
    for problem in found:
        yield _whole(thread, problem)


def _whole(thread: str | None, problem: Json) -> Json:
    return {key: problem.get(key) for key in _MEMBERS} | {"thread_id": thread}


def _key(problem: Json) -> tuple[object, object, object]:
    return problem["code"], problem["file"], problem["offset"]


def _sentence(problem: Json) -> str:
    """As compilers write it: file:offset: code: message; consequence."""
    place = problem["file"] or f"thread {problem['thread_id']}"
    if problem["offset"] is not None:
        place = f"{place}:{problem['offset']}"
    told = f"{place}: {problem['code']}: {problem['message']}"
    return harmless(f"{told}; {problem['consequence']}" if problem["consequence"] else told)


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
