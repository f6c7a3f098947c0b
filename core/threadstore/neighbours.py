"""Which thread was forked from which, and which agent was spawned by which (FORMAT 15.2).

Forking and spawning are two trees: a fork shares a past, an agent has a parent. A sub-agent that was forked from
its parent appears as its agent only.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from threadstore.errors import StoreError
from threadstore.metas import Metas, agent_of, parent_of
from threadstore.names import RolloutFile, canonical_id, is_thread_id, safe_name


@dataclass(frozen=True, slots=True)
class Links:
    """The neighbours of a thread, as thread ids; agents with the name of their link."""

    forked_from: str | None
    parent: str | None
    forks: tuple[str, ...]
    agents: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Edge:
    """What one session meta says of its thread's neighbours."""

    forked_from: str | None
    parent: str | None
    nickname: str


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

    Invariant: `_forks` and `_agents` are made from the heads that `_heads` names; they are made anew when any head
    is another one.
    """

    def __init__(self, root: str, metas: Metas) -> None:
        self._root = root
        self._metas = metas
        self._edges: dict[tuple[str, int, int], _Edge] = {}
        self._version: object = None
        self._forks: dict[str, list[str]] = {}
        self._agents: dict[str, list[tuple[str, str]]] = {}

    def is_fresh(self, version: object) -> bool:
        """True when the trees were made for that version of the store."""
        return self._version is not None and self._version == version

    def build(self, heads: dict[str, RolloutFile], version: object) -> None:
        """Read the metas of all selected rollouts that are not known yet."""
        forks: dict[str, list[str]] = {}
        agents: dict[str, list[tuple[str, str]]] = {}
        for thread_id, rollout in heads.items():
            try:
                edge = self._edge(rollout)
            except (OSError, StoreError):
                continue  # its own problems.jsonl tells why
            if edge.parent is not None:
                agents.setdefault(edge.parent, []).append((edge.nickname, thread_id))
            elif edge.forked_from is not None:
                forks.setdefault(edge.forked_from, []).append(thread_id)
        self._forks, self._version = forks, version
        self._agents = {parent: _named(children) for parent, children in agents.items()}

    def links(self, thread_id: str, head: RolloutFile) -> Links:
        """The neighbours of a thread."""
        edge = self._edge(head)
        forks, agents = self._forks.get(thread_id, ()), self._agents.get(thread_id, ())
        return Links(edge.forked_from, edge.parent, tuple(forks), tuple(agents))

    def _edge(self, rollout: RolloutFile) -> _Edge:
        status = os.stat(os.path.join(self._root, rollout.path), follow_symlinks=False)
        key = (rollout.path, status.st_dev, status.st_ino)
        edge = self._edges.get(key)
        if edge is None:
            meta = self._metas.read(rollout)
            agent = agent_of(meta) or {}
            forked_from, parent = meta.get("forked_from_id"), parent_of(meta)
            edge = self._edges[key] = _Edge(
                _thread_id(forked_from),
                _thread_id(parent),
                str(agent.get("nickname") or agent.get("role") or "agent"),
            )
        return edge
