"""Session metas: who a rollout is (FORMAT 3.2, 11.3; FAULTS 10).

The first session meta of a file that decodes gives its identity. Files without one exist, and files whose meta
Codex would not accept; both are shown, marked as what they are. A meta never changes once written, so it is
remembered by the identity of its file.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import NamedTuple

from threadstore.files import open_regular
from threadstore.filestates import FileStates
from threadstore.lines import Log, forward
from threadstore.names import RolloutFile
from threadstore.opened import first_bytes, first_dialect, open_rollout
from threadstore.projection import Basis
from threadstore.records import Json, Skip, decode, is_blank, loads
from threadstore.spool import Spool

REJECTED = "rolloutfs:rejected"  # key of a meta that Codex would not accept: the reason
_LONG = ("base_instructions", "dynamic_tools", "instructions")  # texts that nobody here needs
_MOST = 512  # metas that are remembered, some KiB each
_SEARCHED = 8 << 20  # bytes of a file in which a meta is looked for


class _Known(NamedTuple):
    """A meta, the file that it was read from and how its first line begins."""

    basis: Basis
    first: bytes
    meta: Json

    def is_of(self, basis: Basis, first: bytes) -> bool:
        """True for the same log, which may have grown."""
        return (self.basis.dev, self.basis.ino, self.first) == (basis.dev, basis.ino, first)


class Metas:
    """Reads the session metas of a store's rollouts."""

    def __init__(self, states: FileStates, spool: Spool) -> None:
        self._root = states.root
        self._states = states
        self._spool = spool
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def read(self, rollout: RolloutFile) -> Json:
        """A rollout's session meta without its long texts; empty when the file has none."""
        known = self._known.get(rollout.path)
        if known is not None and known.basis == self._states.basis(rollout.path):
            self._known.move_to_end(rollout.path)
            return known.meta
        descriptor = open_regular(self._root, rollout.path)
        status = os.fstat(descriptor)
        log = Log(descriptor, status.st_size)
        try:
            basis = Basis.of(rollout.path, status)
            first = first_bytes(descriptor)
            if known is not None and known.is_of(basis, first):
                meta = known.meta
            else:
                meta = self._read_compressed(rollout) if rollout.compressed else read_meta(log)
        finally:
            log.close()
        if meta:
            self._known[rollout.path] = _Known(basis, first, meta)
            self._known.move_to_end(rollout.path)
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        return meta

    def _read_compressed(self, rollout: RolloutFile) -> Json:
        opened = open_rollout(self._root, rollout, self._spool)
        try:
            return read_meta(opened.log)
        finally:
            opened.log.close()


def read_meta(log: Log) -> Json:
    """The first session meta that decodes, or one before it that does not, with the reason under `REJECTED`."""
    dialect = first_dialect(log)
    rejected: Json | None = None
    for line in forward(log, 0, min(log.size, _SEARCHED)):
        if is_blank(line):
            continue
        decoded = decode(line, dialect)
        if isinstance(decoded, Skip):
            rejected = rejected or _rejected(decoded)
        elif decoded.type == "session_meta":
            return rejected or _short(decoded.payload)
    return rejected or {}


def _rejected(skip: Skip) -> Json | None:
    """What a session meta says that Codex does not accept; None for any other line."""
    if skip.code != "bad_record":
        return None
    try:
        document = loads(skip.line.data)
    except ValueError:
        return None
    payload = document.get("payload") if isinstance(document, dict) and document.get("type") == "session_meta" else None
    if not isinstance(payload, dict) or not isinstance(payload.get("id"), str):
        return None
    return _short(payload) | {REJECTED: skip.reason}


def _short(meta: Json) -> Json:
    return {key: value for key, value in meta.items() if key not in _LONG}


def parent_of(meta: Json) -> str | None:
    """The thread that spawned this one as a sub-agent (FORMAT 15.2)."""
    parent = meta.get("parent_thread_id")
    if isinstance(parent, str):
        return parent
    parent = spawn_of(meta).get("parent_thread_id")
    return parent if isinstance(parent, str) else None


def spawn_of(meta: Json) -> Json:
    """The `thread_spawn` part of a session source."""
    source = meta.get("source")
    agent = source.get("subagent") if isinstance(source, dict) else None
    spawn = agent.get("thread_spawn") if isinstance(agent, dict) else None
    return spawn if isinstance(spawn, dict) else {}


def agent_of(meta: Json) -> Json | None:
    """Nickname, role and path of a sub-agent; None for a thread that isn't one."""
    spawn = spawn_of(meta)
    source = meta.get("source")
    if parent_of(meta) is None and not (isinstance(source, dict) and "subagent" in source):
        return None
    return {
        "nickname": meta.get("agent_nickname") or spawn.get("agent_nickname"),
        "role": meta.get("agent_role") or meta.get("agent_type") or spawn.get("agent_role") or spawn.get("agent_type"),
        "path": meta.get("agent_path") or spawn.get("agent_path"),
    }


def read_whole_meta(log: Log) -> Json:
    """The session meta with all its texts, as an operation needs it; empty when there is none that Codex accepts.

    The bare one of mid 2025 is none: Codex 0.171.0 finds no thread in such a file, and what was appended or made from
    it would be read by nobody.
    """
    for line in forward(log, 0, min(log.size, _SEARCHED)):
        decoded = None if is_blank(line) else decode(line)
        if decoded is not None:
            return decoded.payload if not isinstance(decoded, Skip) and decoded.type == "session_meta" else {}
    return {}
