"""Which thread was forked from which, and which agent was spawned by which (FORMAT 15.2).

Forking and spawning are two trees: a fork shares a past, an agent has a parent. A sub-agent that was forked from
its parent appears as its agent only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from threadstore.errors import StoreError
from threadstore.filestates import FileStates
from threadstore.metas import Metas, agent_of, parent_of
from threadstore.names import RolloutFile, canonical_id, is_thread_id, safe_name
from threadstore.projection import Basis

_OWN = 1024  # threads whose own edge is remembered: a walk asks a dozen times for each


@dataclass(frozen=True, slots=True)
class Links:
    """The neighbours of a thread, as thread ids; agents with the name of their link. `root` is the thread in the store
    from which all of its family came: itself where nothing leads further.
    """

    forked_from: str | None
    parent: str | None
    forks: tuple[str, ...]
    agents: tuple[tuple[str, str], ...]
    root: str

    @property
    def are_none(self) -> bool:
        """True for a thread that is the only one of its family."""
        return not self.forks and not self.agents and self.forked_from is None and self.parent is None


class Edge(NamedTuple):
    """What one session meta says of its thread's neighbours."""

    forked_from: str | None
    parent: str | None
    nickname: str


_ALONE = Edge(None, None, "")


def edge_of(forked_from: object, parent: object, nickname: str) -> Edge:
    """The edge that recorded ids make."""
    edge = Edge(_thread_id(forked_from), _thread_id(parent), nickname)
    return _ALONE if edge.forked_from is None and edge.parent is None else edge


class Edges(NamedTuple):
    """What many session metas say, by path of the rollout: those that name neighbours, and what can't be read."""

    leading: dict[str, Edge]
    unreadable: list[str]


def _thread_id(value: object) -> str | None:
    """A recorded id as threads are known by; None when it is none, so that it never becomes part of a path."""
    text = canonical_id(value) if isinstance(value, str) else ""
    return text if is_thread_id(text) else None


def _named(agents: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Link name and thread id of one thread's agents, from nickname and thread id. The name ends in the last part
    of the id, or in all of it where two would have the same name.
    """
    names = [f"{safe_name(nickname)}-{thread_id[-8:]}" for nickname, thread_id in agents]
    counts = Counter(names)
    return [
        (name if counts[name] == 1 else f"{name[:-8]}{thread_id}", thread_id)
        for name, (_, thread_id) in zip(names, agents, strict=True)
    ]


class Neighbours:
    """Both trees of a store.

    Invariant: `_edges` has every edge of the rollouts in `_read` that leads anywhere; the trees are made from them for
    the version `_version` of the catalog.
    """

    def __init__(self, metas: Metas, states: FileStates) -> None:
        self._metas = metas
        self._states = states
        self._own: OrderedDict[str, tuple[Basis, Edge]] = OrderedDict()
        self._read: set[str] = set()  # paths of rollouts
        self._edges: dict[str, Edge] = {}
        self._version = 0
        self._forks: dict[str, list[str]] = {}
        self._agents: dict[str, list[tuple[str, str]]] = {}
        self._above: dict[str, str] = {}  # what a thread came from, if that is in the store
        self._roots: dict[str, str] = {}  # as far as anybody asked

    def is_fresh(self, version: int) -> bool:
        """True when the trees were made for that version of the catalog."""
        return self._version == version

    def unread(self, heads: Iterable[RolloutFile]) -> list[RolloutFile]:
        """Those whose session metas have not been read yet."""
        return [rollout for rollout in heads if rollout.path not in self._read]

    def look(self, rollouts: Iterable[RolloutFile], known: Mapping[Basis, Edge] = MappingProxyType({})) -> Edges:
        """Read the session metas of rollouts; `known` are edges that an index has of files as they were."""
        found = Edges({}, [])
        for rollout in rollouts:
            try:
                edge = known.get(self._states.basis(rollout.path)) if known else None
                edge = self._edge(rollout) if edge is None else edge
            except (OSError, StoreError):  # its own problems.jsonl tells why
                found.unreadable.append(rollout.path)
                continue
            if edge != _ALONE:
                found.leading[rollout.path] = edge
        return found

    def learn(self, rollouts: Iterable[RolloutFile], found: Edges) -> None:
        """Take over what was found in the metas of these rollouts, here or in another process."""
        self._edges.update(found.leading)
        self._read.update(rollout.path for rollout in rollouts)
        self._read.difference_update(found.unreadable)

    def arrange(self, heads: Mapping[str, RolloutFile], version: int) -> None:
        """Make the trees of the selected rollouts, all of which were read."""
        there = 0
        forks: dict[str, list[str]] = {}
        agents: dict[str, list[tuple[str, str]]] = {}
        for thread_id, rollout in heads.items():
            there += rollout.path in self._read
            edge = self._edges.get(rollout.path)
            if edge is None:
                continue
            if edge.parent is not None:
                agents.setdefault(edge.parent, []).append((edge.nickname, thread_id))
            elif edge.forked_from is not None:
                forks.setdefault(edge.forked_from, []).append(thread_id)
        if there < len(self._read) or self._edges.keys() - self._read:  # a set of 100,000 paths only if it is needed
            paths = {rollout.path for rollout in heads.values()}
            self._read &= paths
            self._edges = {path: edge for path, edge in self._edges.items() if path in paths}
        self._forks, self._version = forks, version
        self._agents = {parent: _named(children) for parent, children in agents.items()}
        below = {parent: [child for _, child in children] for parent, children in agents.items()}
        self._above = {
            child: above
            for trees in (forks, below)
            for above, children in trees.items()
            for child in children
            if above in heads
        }
        self._roots = {}

    def links(self, thread_id: str, head: RolloutFile, is_alone: Callable[[Basis], bool]) -> Links:
        """The neighbours of a thread. What its own meta says is looked up in the file, unless `is_alone` knows of that
        file as it is that its meta leads nowhere.
        """
        edge = self._own_edge(head, is_alone)
        forks, agents = self._forks.get(thread_id, ()), self._agents.get(thread_id, ())
        return Links(edge.forked_from, edge.parent, tuple(forks), tuple(agents), self._root(thread_id))

    def _root(self, thread_id: str) -> str:
        """The thread that a family begins with; in a circle the smallest."""
        if thread_id not in self._above:
            return thread_id
        on_the_way: dict[str, None] = {}
        at: str | None = thread_id
        while at is not None and at not in self._roots and at not in on_the_way:
            on_the_way[at] = None
            at = self._above.get(at)
        root = next(reversed(on_the_way), thread_id) if at is None else self._roots.get(at)
        if root is None:  # a circle begins at `at`
            met = list(on_the_way)
            root = min(met[met.index(str(at)) :])
        self._roots.update(dict.fromkeys(on_the_way, root))
        return root

    def _own_edge(self, rollout: RolloutFile, is_alone: Callable[[Basis], bool]) -> Edge:
        """What the meta says now; read again when the file changed."""
        basis = self._states.basis(rollout.path)
        known = self._own.get(rollout.path)
        if known is not None and known[0] == basis:
            return known[1]
        edge = _ALONE if is_alone(basis) else self._edge(rollout)
        self._own[rollout.path] = basis, edge
        if len(self._own) > _OWN:
            self._own.popitem(last=False)
        return edge

    def _edge(self, rollout: RolloutFile) -> Edge:
        meta = self._metas.read(rollout)
        forked_from, parent = _thread_id(meta.get("forked_from_id")), _thread_id(parent_of(meta))
        if forked_from is None and parent is None:
            return _ALONE
        agent = agent_of(meta) or {}
        return Edge(forked_from, parent, str(agent.get("nickname") or agent.get("role") or "agent"))
