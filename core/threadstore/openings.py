"""What stands at the beginning of a thread's log: when it began, the first words, the branch. Reads no further."""

from __future__ import annotations

from collections.abc import Iterable

from threadstore.errors import LineageError, StoreError
from threadstore.lineages import Lineages
from threadstore.lines import forward
from threadstore.metas import Metas, agent_of
from threadstore.names import RolloutFile
from threadstore.records import Dialect, Skip, decode, dialect_of
from threadstore.scan import words_of
from threadstore.summaries import Opening

_SAID = (b"user_message", b"UserMessage")  # in the lines with the words of a person


def opening(head: RolloutFile, rollouts: Iterable[RolloutFile], lineages: Lineages, metas: Metas) -> Opening:
    """The opening of a thread. Raises StoreError and OSError."""
    meta = metas.read(head)
    git, recorded = meta.get("git"), meta.get("timestamp")
    return Opening(
        created=created(rollouts, metas) or (recorded if isinstance(recorded, str) else None),
        words=first_words(head, lineages),
        branch=git.get("branch") if isinstance(git, dict) else None,
        is_agent=agent_of(meta) is not None,
    )


def created(rollouts: Iterable[RolloutFile], metas: Metas) -> str | None:
    """When a thread began, as recorded. A revert writes a new meta with a new time; the thread began with the oldest
    rollout of its own.
    """
    oldest = min(rollouts, key=lambda rollout: (rollout.stamp, rollout.rollout_id))
    try:
        found = metas.read(oldest).get("timestamp")
    except (StoreError, OSError):
        return None  # damaged or just gone: the selected rollout says when it was written itself
    return found if isinstance(found, str) else None


def first_words(head: RolloutFile, lineages: Lineages) -> str | None:
    """What a person said first, as `thread.json` has it for a preview."""
    try:
        segments = lineages.segments(head)
    except LineageError:
        segments = lineages.alone(head)
    with lineages.open(segments) as lineage:
        for number, file in enumerate(lineage.files):
            dialect: Dialect | None = None
            for line in forward(file.log, 0, lineage.end_of(number)):
                if dialect is None and line.data[:1] == b"{":
                    dialect = dialect_of(line)
                if dialect is not Dialect.BARE and not any(mark in line.data for mark in _SAID):
                    continue
                record = decode(line, dialect or Dialect.ENVELOPE)
                words = None if isinstance(record, Skip) else words_of(record)
                if words is not None:
                    return words
    return None
