"""From a selected rollout to the segments of its history (FORMAT 11.3).

A rollout may begin where another one was at a certain byte: `history_base` names that rollout (by *rollout* id) and
the first byte that is not inherited. Following the bases gives a chain of frozen segments. A base that is missing,
legacy, in a circle or cut past its end breaks the history as a whole: Codex has no fallback to the suffix, and
neither have we.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

from threadstore.errors import LineageError
from threadstore.names import RolloutFile, canonical_id
from threadstore.schema import is_uuid

DEEPEST = 10_000  # segments; Codex flattens chains, so real ones are short


@dataclass(frozen=True, slots=True)
class Position:
    """Where an inherited prefix ends: rollout id, first ordinal and first decoded byte that are not inherited."""

    rollout_id: str
    end_ordinal: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of one rollout that belongs to a lineage: decoded bytes `0` to `end`, None for all there is."""

    rollout: RolloutFile
    meta: dict[str, Any]
    end: int | None
    end_ordinal: int | None

    @property
    def first_ordinal(self) -> int:
        """The first ordinal that belongs to history, i.e. after the segment's own session meta."""
        base = base_of(self.meta)
        return base.end_ordinal + 1 if base else 1


def base_of(meta: dict[str, Any]) -> Position | None:
    """The `history_base` of a session meta; None without one or with one that isn't understood."""
    base = meta.get("history_base")
    if isinstance(base, list):  # the members by position: what Codex decodes, too
        base = dict(zip(_MEMBERS, base, strict=False))
    if not isinstance(base, dict):
        return None
    rollout_id, ordinal, offset = (base.get(key) for key in _MEMBERS)
    if isinstance(rollout_id, str) and is_uuid(rollout_id) and _is_count(ordinal) and _is_count(offset):
        return Position(canonical_id(rollout_id), ordinal, offset)
    return None


_MEMBERS = ("thread_id", "end_ordinal_exclusive", "end_byte_offset")


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_paginated(meta: dict[str, Any]) -> bool:
    """True for the history mode with ordinals."""
    return meta.get("history_mode") == "paginated"


def resolve(
    head: RolloutFile,
    read_meta: Callable[[RolloutFile], dict[str, Any]],
    find: Callable[[str], RolloutFile | None],
    size: Callable[[RolloutFile], int],
) -> list[Segment]:
    """The segments of a thread, oldest first.

    `read_meta` gives a rollout's session meta, `find` the rollout of an id, `size` its decoded bytes. Raises
    LineageError.
    """
    meta = read_meta(head)
    segments = [Segment(head, meta, None, None)]
    seen = {head.rollout_id}
    if not is_paginated(meta):
        return segments
    while (base := base_of(meta)) is not None:
        child = segments[-1].rollout
        if base.rollout_id in seen or len(segments) > DEEPEST:
            raise LineageError(
                "lineage_cycle",
                f"{child.path}: cycle detected: its base leads back to rollout {base.rollout_id}.",
            )
        rollout = find(base.rollout_id)
        if rollout is None:
            raise LineageError(
                "lineage_missing",
                f"{child.path}: missing source rollout {base.rollout_id}. "
                f"Restore the file rollout-…{base.rollout_id}.jsonl to get this history back.",
            )
        meta = read_meta(rollout)
        if not is_paginated(meta):
            raise LineageError("lineage_legacy", f"{child.path}: source rollout {rollout.path} is not paginated.")
        if base.end_ordinal == 0:
            raise LineageError(
                "lineage_cut", f"{child.path}: the cutoff in {rollout.path} cannot include its session metadata."
            )
        length = size(rollout)
        if base.end_offset > length:
            raise LineageError(
                "lineage_cut",
                f"{child.path}: cutoff byte offset {base.end_offset} is past the source rollout "
                f"{rollout.path} of {length} bytes. "
                "The source was truncated: restore it from a backup.",
            )
        seen.add(base.rollout_id)
        segments.append(Segment(rollout, meta, base.end_offset, base.end_ordinal))
    segments.reverse()
    return segments
