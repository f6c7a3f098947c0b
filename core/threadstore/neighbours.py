"""Which thread was forked from which, and which agent was spawned by which (FORMAT 15.2).

Forking and spawning are two trees: a fork shares a past, an agent has a parent. A sub-agent that was forked from its
parent appears as its agent only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from threadstore.errors import StoreError
from threadstore.metas import Metas, agent_of, parent_of
from threadstore.names import RolloutFile, safe_name


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


class Neighbours:
    """Both trees of a store.

    Invariant: `_forks` and `_agents` are made from the heads that `_heads` names; they are made anew when any head is
    another one.
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
                agents.setdefault(edge.parent, []).append((f"{safe_name(edge.nickname)}-{thread_id[-8:]}", thread_id))
            elif edge.forked_from is not None:
                forks.setdefault(edge.forked_from, []).append(thread_id)
        self._forks, self._agents, self._version = forks, agents, version

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
                forked_from.lower() if isinstance(forked_from, str) else None,
                parent.lower() if parent is not None else None,
                str(agent.get("nickname") or agent.get("role") or "agent"),
            )
        return edge
