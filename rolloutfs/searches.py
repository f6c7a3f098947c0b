"""The folder search/: queries that were looked up, their answers while they hold, and what was wrong with others.

An answer is used for a moment whatever happens, so that the look-ups of one `ls -l` see one folder; after that until
something happens to the store. One query is answered at a time, by a worker: searches take their turn, others don't
wait for them.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Final

import trio
from threadstore.search import QueryError

from rolloutfs import findings, readme
from rolloutfs.backlog import Backlog, Reached, Todo
from rolloutfs.engine import Engine
from rolloutfs.findings import Found
from rolloutfs.harmless import json_line
from rolloutfs.lru import Recent
from rolloutfs.nodes import Kind, Listing, Node
from rolloutfs.slots import SEARCH_FILES
from rolloutfs.tree import Tree

MOMENT: Final = 1.0  # seconds that an answer is used for, whatever happens
_LONGEST = 60.0  # seconds that one is used for when nothing happens
_KEPT = 16 << 20  # bytes of answers
_REFUSED = 50  # queries whose fault is remembered


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was found at a time (s, monotonic), after so many changes of the store."""

    found: Found
    asked: float
    changes: int


def _weight(answer: _Answer) -> int:
    return 1024 + len(answer.found.hits) + 300 * len(answer.found.links)


def _unknown() -> tuple[str, ...] | None:
    """Where nobody knows which threads have changed."""
    return None


class Searches:
    """What was asked below search/.

    `lagging` names the threads that changed since they were entered into the index, None when that isn't known;
    `is_watched` is true while `note` is told of every change.
    """

    def __init__(self, engine: Engine, is_watched: Callable[[], bool], zone: tzinfo = UTC) -> None:
        self._engine = engine
        self._is_watched = is_watched
        self._zone = zone  # of the days in queries
        self._answers: Recent[str, _Answer] = Recent(_KEPT, _weight)
        self._refused: Recent[str, str] = Recent(_REFUSED)
        self._refused_at = 0  # the last one (Unix, ns)
        self._changes = 0
        self._backlog = Backlog()
        self._was_lost = False  # the index that `lagging` is about was deleted and begun anew
        self._turn = trio.Lock()
        self.lagging: Callable[[], tuple[str, ...] | None] = _unknown

    def note(self, threads: set[str]) -> None:
        """Something happened to the store, and to these threads."""
        self._changes += 1
        self._backlog.note(threads)

    async def ask(self, name: str) -> Found:
        """What a query finds. Raises OSError: EINVAL for one that isn't understood."""
        answer = self._holding(name)
        if answer is None:
            self._check(name)
            async with self._turn:
                answer = self._holding(name)  # another request may have asked the same meanwhile
                if answer is None:
                    answer = await self._ask(name)
        return answer.found

    async def _ask(self, name: str) -> _Answer:
        changes = self._changes
        lagging = None if self._was_lost else self.lagging()
        own = self._backlog.todo(is_watched=self._is_watched())
        reached: Reached | None = None
        try:
            found = await self._engine.search(name, own if lagging is None else Todo(None, lagging, is_watched=True))
            reached = found.reached
            self._was_lost |= lagging is not None and reached.after is not None
        except OSError as error:
            self._refuse(name, error.strerror or str(error))
            raise
        finally:
            self._backlog.done(own, reached if lagging is None else None)
        self._refused.drop(name)
        answer = _Answer(found, time.monotonic(), changes)
        self._answers.put(name, answer)
        return answer

    def _holding(self, name: str) -> _Answer | None:
        answer = self._answers.get(name)
        if answer is None:
            return None
        age = time.monotonic() - answer.asked
        same = answer.changes == self._changes and answer.found.incomplete is None and self._is_watched()
        return answer if age < (_LONGEST if same else MOMENT) else None

    def _refuse(self, name: str, message: str) -> None:
        self._refused.put(name, message)
        self._refused_at = time.time_ns()

    def _check(self, name: str) -> None:
        try:
            if len(name) > findings.LONGEST:
                raise QueryError(f"The query has {len(name)} characters; the most is {findings.LONGEST}.")
            findings.parse(name, self._zone)
        except QueryError as error:
            self._refuse(name, error.message)
            raise OSError(errno.EINVAL, error.message) from error

    # What the tree shows

    def time(self, node: Node) -> int:
        """When what lies below search/ was changed (Unix, ns): a query's files with its newest hit, a link with the
        newest of its thread; 0 for one whose answer isn't known any more.
        """
        query = node.name.partition("\0")[0]
        answer = self._answers.get(query) if query else None
        if node.kind is Kind.FINDING:
            return 0 if answer is None else answer.found.times.get(node.thread, 0)
        if answer is not None and answer.found.newest:
            return answer.found.newest
        return max(readme.times()[0], self._refused_at if node.kind is Kind.SEARCH_PROBLEMS else 0)

    async def listing(self, tree: Tree, folder: Node) -> Listing:
        """The children of a query's folder."""
        found = await self.ask(folder.name)
        kinds = {findings.HITS: Kind.HITS}
        if found.incomplete is not None:
            kinds[findings.INCOMPLETE] = Kind.INCOMPLETE
        if found.hint is not None:
            kinds[findings.HINT] = Kind.HINT
        names = [*kinds, *(name for name, _ in found.links)]

        def node(position: int) -> Node:
            if position < len(kinds):
                kind = kinds[names[position]]
                return tree.numbered(f"{kind.name}\0{folder.name}", lambda ino: Node(ino, kind, name=folder.name))
            name, thread = found.links[position - len(kinds)]
            key, target = f"{folder.name}\0{name}", f"../../threads/{thread}"
            return tree.numbered(
                f"{Kind.FINDING.name}\0{key}", lambda ino: Node(ino, Kind.FINDING, thread, name=key, target=target)
            )

        return Listing(names, node)

    async def content(self, node: Node) -> bytes:
        """The bytes of a file below search/. KeyError when it is gone."""
        if node.kind is Kind.SEARCH_README:
            return readme.search_text()
        if node.kind is Kind.SEARCH_PROBLEMS:
            return self.problems()
        found = await self.ask(node.name)
        content = {Kind.HITS: found.hits, Kind.INCOMPLETE: found.incomplete, Kind.HINT: found.hint}[node.kind]
        if content is None:
            raise KeyError(node.name)
        return content

    def problems(self) -> bytes:
        """The queries that came to nothing, the last one at the end, each with the reason."""
        return b"".join(
            json_line({"query": name, "message": message}).encode() + b"\n" for name, message in self._refused.items()
        )

    async def look_up(self, name: str) -> None:
        """Before a name in search/ is answered: find out whether there is such a folder. Raises OSError."""
        if name not in SEARCH_FILES:
            await self.ask(name)
