"""`rolloutfs tree`: families of threads, with their generations, forks and agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from threadstore.errors import StoreError
from threadstore.names import parse_rollout
from threadstore.store import ThreadStore
from threadstore.summaries import TurnPlace

from rolloutfs.commands.opened import opened
from rolloutfs.commands.times import local, utc
from rolloutfs.harmless import harmless, json_line
from rolloutfs.naming import ShortIds, find, newest_first, summary_of
from rolloutfs.table import fit, say, width

Json = dict[str, Any]


@dataclass(slots=True)
class Member:
    """A thread and what came from it. `how` is root, fork or agent; `boundary` the number of the last turn that a fork
    has in common with what it was made from, 0 for none, None where that isn't known.
    """

    thread: str
    how: str
    boundary: int | None = None
    children: list[Member] = field(default_factory=list)


def tree(store: str, wanted: str | None, *, as_json: bool) -> None:
    """Print the family of a thread, or all of them, the one that was written to last first. Raises MountError."""
    with opened(store) as its:
        families = Families(its.store)
        roots = families.roots() if wanted is None else iter([families.root_of(find(its.store, wanted))])
        short = ShortIds(its.store.thread_ids())
        for root in roots:
            member = families.member(root, "root")
            if as_json:
                for document in families.documents(member):
                    say(json_line(document))
            else:
                for line, is_dim in _lines(families, member, short):
                    say(fit(line, width()), is_dim=is_dim)


class Families:
    """The links of a store. Every thread is told of once, also where links go round in a circle."""

    def __init__(self, store: ThreadStore) -> None:
        self._store = store
        self._told: set[str] = set()

    def roots(self) -> Iterator[str]:
        """One thread of each family."""
        for _, thread in newest_first(self._store):
            if thread not in self._told:
                yield self.root_of(thread)

    def root_of(self, thread: str) -> str:
        """The thread from which all of a family came."""
        seen = {thread}
        while (above := self._above(thread)) is not None and above not in seen:
            seen.add(above)
            thread = above
        return min(seen) if above is not None else thread

    def _above(self, thread: str) -> str | None:
        """What a thread was spawned by or forked from, if that is in the store."""
        try:
            links = self._store.links(thread)
        except (KeyError, StoreError, OSError):
            return None
        above = links.parent if links.parent is not None else links.forked_from
        return above if above in self._store else None

    def member(self, thread: str, how: str, above: str | None = None) -> Member:
        """A thread with all that came from it."""
        root = Member(thread, how, self._boundary(thread, above))
        waiting = [root]
        self._told.add(thread)
        while waiting:  # a chain of forks may be longer than Python's stack
            member = waiting.pop()
            for child, way in self._below(member.thread):
                if child not in self._told:
                    self._told.add(child)
                    boundary = self._boundary(child, member.thread if way == "fork" else None)
                    member.children.append(Member(child, way, boundary))
            waiting += member.children
        return root

    def _below(self, thread: str) -> list[tuple[str, str]]:
        """The forks and the agents of a thread, and which they are."""
        try:
            links = self._store.links(thread)
        except (KeyError, StoreError, OSError):
            return []
        forks = [(fork, "fork") for fork in sorted(links.forks)]
        agents = sorted((agent, "agent") for _, agent in links.agents)
        return [(child, way) for child, way in (*forks, *agents) if child in self._store]

    def _boundary(self, thread: str, above: str | None) -> int | None:
        """The last turn of a fork that began in another thread's log. A legacy fork copies the log, so there it is the
        last turn whose id both have, unless ids were made up for turns that no record names.
        """
        if above is None:
            return None
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

    def documents(self, root: Member) -> Iterator[Json]:
        """A family as JSON, each before those that came from it. Not nested: a chain of forks may be of any length."""
        waiting: list[tuple[Member, str | None]] = [(root, None)]
        while waiting:
            member, above = waiting.pop()
            yield {"thread_id": member.thread, "above": above, "root": root.thread} | self._facts(member)
            waiting += [(child, member.thread) for child in reversed(member.children)]

    def _facts(self, member: Member) -> Json:
        generations = [
            {"rollout_id": rollout.rollout_id, "file": rollout.path, "selected": rollout == self._head(member.thread)}
            for rollout in self._store.rollouts(member.thread)
        ]
        summary = summary_of(self._store, member.thread)
        return {
            "how": member.how,
            "agent": None if summary is None else summary.agent,
            "boundary": member.boundary,
            "archived": self.is_archived(member.thread),
            "name": None if summary is None else summary.name or summary.preview,
            "turns": None if summary is None else summary.turns,
            "last_record": utc(self.last(member.thread)),
            "generations": generations,
        }

    def _head(self, thread: str) -> object:
        try:
            return self._store.head(thread)
        except (KeyError, StoreError, OSError):
            return None

    def is_archived(self, thread: str) -> bool:
        """True for a thread whose selected rollout lies in the archive."""
        return bool(getattr(self._head(thread), "archived", False))

    def last(self, thread: str) -> float:
        """The time of the last record (Unix, s), 0 where it can't be told."""
        try:
            return self._store.times(thread).mtime_ns / 1e9
        except (KeyError, StoreError, OSError):
            return 0.0

    def line(self, member: Member, short: ShortIds) -> str:
        """A thread on one line."""
        summary = summary_of(self._store, member.thread)
        words = [] if member.how == "root" else [member.how]
        if summary is not None and summary.agent:
            words.append(harmless(summary.agent))
        words.append(short.of(member.thread))
        if member.boundary is not None:
            words.append(f"after turn {member.boundary}" if member.boundary else "from the beginning")
        words.append(local(self.last(member.thread)))
        if summary is not None:
            words.append(f"{summary.turns} turn{'' if summary.turns == 1 else 's'}")
        generations = len(self._store.rollouts(member.thread))
        if generations > 1:
            words.append(f"{generations} generations")
        if self.is_archived(member.thread):
            words.append("archived")
        if summary is None:
            words.append("can't be read")
        elif summary.name or summary.preview:
            words.append(harmless(summary.name or summary.preview or ""))
        return "  ".join(filter(None, words))


def _is_elsewhere(turn: TurnPlace, thread: str) -> bool:
    rollout = None if turn.file is None else parse_rollout(turn.file)
    return rollout is not None and rollout.thread_id != thread


def _lines(families: Families, root: Member, short: ShortIds) -> Iterator[tuple[str, bool]]:
    """The lines of a tree, and which are dimmed."""
    waiting: list[tuple[Member, str, str]] = [(root, "", "")]
    while waiting:
        member, before, below = waiting.pop()
        yield before + families.line(member, short), families.is_archived(member.thread)
        waiting += reversed(_branches(member.children, below))


def _branches(children: Sequence[Member], below: str) -> list[tuple[Member, str, str]]:
    """Each child with what stands before its line, and before those below it."""
    return [
        (child, f"{below}└─ ", f"{below}   ") if child is children[-1] else (child, f"{below}├─ ", f"{below}│  ")
        for child in children
    ]
