"""Families of threads: who was forked from whom and after which turn, and which agents were spawned.

A family is a tree. Its root is a thread that came from none in the store; links that lead round in a circle begin at
the smallest id in it. Every thread belongs to one family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from threadstore.errors import StoreError
from threadstore.names import RolloutFile, parse_rollout
from threadstore.neighbours import Links
from threadstore.summaries import Summary, TurnPlace
from threadstore.terminal import harmless

Json = dict[str, Any]


class Times(Protocol):
    """Of a thread."""

    @property
    def mtime_ns(self) -> int: ...  # noqa: D102  of its last record (Unix, ns)


class Store(Protocol):
    """What is asked of a `ThreadStore`."""

    def __contains__(self, thread_id: object) -> bool: ...
    def thread_ids(self) -> list[str]: ...  # noqa: D102  described in ThreadStore
    def rollouts(self, thread_id: str) -> tuple[RolloutFile, ...]: ...  # noqa: D102
    def head(self, thread_id: str) -> RolloutFile: ...  # noqa: D102
    def times(self, thread_id: str) -> Times: ...  # noqa: D102
    def links(self, thread_id: str) -> Links: ...  # noqa: D102
    def summary(self, thread_id: str) -> Summary: ...  # noqa: D102
    def turns(self, thread_id: str) -> list[TurnPlace]: ...  # noqa: D102


@dataclass(slots=True)
class Member:
    """A thread and what came from it. `how` is root, fork or agent; `boundary` the number of the last turn that a fork
    has in common with what it was made from, 0 for none, None where that isn't known. `tokens` are its own, `below`
    those of all that came from it; `summary` is None for a thread of which nothing can be told.
    """

    thread: str
    how: str
    boundary: int | None
    summary: Summary | None
    last_ns: int  # the time of its last record, 0 where it can't be told
    rollouts: tuple[RolloutFile, ...]
    head: RolloutFile | None
    below: int = 0
    children: list[Member] = field(default_factory=list)

    @property
    def is_archived(self) -> bool:
        """True for a thread whose selected rollout lies in the archive."""
        return self.head is not None and self.head.archived

    @property
    def tokens(self) -> int:
        """What it spent itself."""
        return (self.summary.own_tokens or 0) if self.summary is not None else 0

    @property
    def name(self) -> str:
        """What it is called, else its first words; they may hold anything."""
        return (self.summary.name or self.summary.preview or "") if self.summary is not None else ""


class Families:
    """The families of a store. Every thread is told of once, also where links go round in a circle."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: set[str] = set()

    def roots(self, threads: Sequence[str]) -> Iterator[str]:
        """The roots of their families, each once."""
        for thread in threads:
            if thread not in self._told:
                yield self.root_of(thread)

    def root_of(self, thread: str) -> str:
        """The thread from which all of a family came."""
        try:
            return self._store.links(thread).root
        except (KeyError, StoreError, OSError):
            return thread

    def grow(self, thread: str) -> Member:
        """A thread with all that came from it."""
        root = self._member(thread, "root", None)
        members = [root]
        self._told.add(thread)
        for member in members:  # which grows; a chain of forks may be longer than Python's stack
            for child, way in self._children(member.thread):
                if child not in self._told:
                    self._told.add(child)
                    member.children.append(self._member(child, way, member.thread))
            members += member.children
        for member in reversed(members):
            member.below = sum(child.tokens + child.below for child in member.children)
        return root

    def _member(self, thread: str, how: str, above: str | None) -> Member:
        boundary = self._boundary(thread, above) if how == "fork" and above is not None else None
        head: RolloutFile | None = None
        rollouts: tuple[RolloutFile, ...] = ()
        summary: Summary | None = None
        try:
            rollouts, head = self._store.rollouts(thread), self._store.head(thread)
            summary = self._store.summary(thread)
        except (KeyError, StoreError, OSError):
            pass  # nothing more can be told
        return Member(thread, how, boundary, summary, self._last_ns(thread), rollouts, head)

    def _last_ns(self, thread: str) -> int:
        try:
            return self._store.times(thread).mtime_ns
        except (KeyError, StoreError, OSError):
            return 0

    def _children(self, thread: str) -> list[tuple[str, str]]:
        """The forks and the agents of a thread, and which they are."""
        try:
            links = self._store.links(thread)
        except (KeyError, StoreError, OSError):
            return []
        forks = [(fork, "fork") for fork in sorted(links.forks)]
        agents = sorted((agent, "agent") for _, agent in links.agents)
        return [(child, way) for child, way in (*forks, *agents) if child in self._store]

    def _boundary(self, thread: str, above: str) -> int | None:
        """The last turn of a fork that began in another thread's log. A legacy fork copies the log, so there it is the
        last turn whose id both have, unless ids were made up for turns that no record names.
        """
        try:
            ours = self._store.turns(thread)
            if any(_is_elsewhere(turn, thread) for turn in ours):
                return max((turn.number or 0 for turn in ours if _is_elsewhere(turn, thread)), default=0)
            theirs = {turn.id for turn in self._store.turns(above)}
        except (KeyError, StoreError, OSError):
            return None
        if any(turn.id.startswith("rollout-") for turn in ours):
            return None
        return max((turn.number or 0 for turn in ours if turn.id in theirs), default=0)


def _is_elsewhere(turn: TurnPlace, thread: str) -> bool:
    rollout = None if turn.file is None else parse_rollout(turn.file)
    return rollout is not None and rollout.thread_id != thread


def walk(root: Member) -> Iterator[tuple[Member, Member | None]]:
    """All members of a family with the one that each came from, which is told of before it."""
    waiting: list[tuple[Member, Member | None]] = [(root, None)]
    while waiting:
        member, above = waiting.pop()
        yield member, above
        waiting += [(child, member) for child in reversed(member.children)]


def where(member: Member) -> str:
    """Where a fork begins, in words."""
    if member.boundary is None:
        return ""
    return f"after turn {member.boundary}" if member.boundary else "from the beginning"


class Style(NamedTuple):
    """How ids, times (Unix, ns) and amounts of tokens are written."""

    id: Callable[[str], str]
    time: Callable[[int], str]
    amount: Callable[[int], str]


def lines(root: Member, style: Style) -> Iterator[tuple[str, bool]]:
    """A family as a tree for a terminal, harmless; and which lines are of archived threads."""
    waiting: list[tuple[Member, str, str]] = [(root, "", "")]
    while waiting:
        member, before, below = waiting.pop()
        yield before + _line(member, style), member.is_archived
        waiting += reversed(_branches(member.children, below))


def _line(member: Member, style: Style) -> str:
    words = [] if member.how == "root" else [member.how]
    summary = member.summary
    if summary is not None and summary.agent:
        words.append(harmless(summary.agent))
    words += [style.id(member.thread), where(member), style.time(member.last_ns)]
    if summary is not None:
        words.append(f"{summary.turns} turn{'' if summary.turns == 1 else 's'}")
    if member.tokens or member.below:
        below = f" ({style.amount(member.tokens + member.below)} with all below)" if member.below else ""
        words.append(f"{style.amount(member.tokens)} tokens{below}")
    if len(member.rollouts) > 1:
        words.append(f"{len(member.rollouts)} generations")
    if member.is_archived:
        words.append("archived")
    words.append("can't be read" if summary is None else harmless(member.name))
    return "  ".join(filter(None, words))


def _branches(children: Sequence[Member], below: str) -> list[tuple[Member, str, str]]:
    """Each child with what stands before its line, and before those below it."""
    return [
        (child, f"{below}└─ ", f"{below}   ") if child is children[-1] else (child, f"{below}├─ ", f"{below}│  ")
        for child in children
    ]
