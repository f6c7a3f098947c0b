"""What reverts dropped from a thread (`dropped.md`, `dropped_turns.jsonl`): the ends of its older generations.

A revert of a paginated thread begins a new rollout at some byte of an older one, so what it dropped is the end of an
older *generation* that the current history doesn't have. Generations may share bytes: each byte is told once, with the
newest generation that had it, which is the one that the revert ended. A legacy thread has one rollout; what was rolled
back there stays in its own files, marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from threadstore import transcript, views
from threadstore.effects import Effect
from threadstore.extents import ExtentsBuilder
from threadstore.lineage import Segment
from threadstore.markdown import fenced, word
from threadstore.opened import OpenLineage
from threadstore.outline import Place, position
from threadstore.projection import Basis
from threadstore.replaying import replay_lineage
from threadstore.scan import FullScan, Kind

Counted = dict[str, int]  # by rollout id: the decoded bytes of it that a newer generation has

_TITLE: Final = (
    "# Dropped by reverts\n\n*Made from the older logs of the thread by rolloutfs. Turns have the numbers that they "
    "had then. Times are UTC; what lies in a block is quoted.*\n\n"
)
_TOLD: Final = frozenset((Kind.ITEM, Kind.CHECKPOINT, Kind.ROLLBACK, Kind.DAMAGED))


@dataclass(frozen=True, slots=True)
class End:
    """The end of a generation: from the first place that no newer generation has. `shut` says why the generation can't
    be read; it has no segments then.
    """

    path: str
    segments: tuple[Segment, ...]
    start: Place
    shut: str | None = None


@dataclass(frozen=True, slots=True)
class Ends:
    """All ends, the oldest generation first, and the files that they follow from besides the current lineage. `lasts`
    is False where a file that was never seen may tell more.
    """

    ends: tuple[End, ...]
    basis: tuple[Basis, ...]
    lasts: bool

    def mark(self) -> str:
        """Another one when anything was dropped since, or a file was changed."""
        return repr([self.basis, [(end.path, end.start) for end in self.ends]])


def note(generation: OpenLineage, counted: Counted) -> None:
    """What this generation has wasn't dropped with an older one."""
    for number, file in enumerate(generation.files):
        known = counted.get(file.rollout.rollout_id, 0)
        counted[file.rollout.rollout_id] = max(known, generation.end_of(number))


def start_of(generation: OpenLineage, counted: Counted) -> Place | None:
    """The first place of a generation that no newer one has; None when there is none."""
    for number, file in enumerate(generation.files):
        known = counted.get(file.rollout.rollout_id, 0)
        if known < generation.end_of(number):
            return number, known
    return None


def turns(end: End, scan: FullScan) -> bytes:
    """The lines of the turns that were dropped with the end of a generation."""
    return views.turns_dropped(scan, end.start)


class Text:
    """The content of `dropped.md`. `marks` are digests of what is in `builder`, one for each piece after the title."""

    def __init__(self) -> None:
        self.builder = ExtentsBuilder()
        self.marks: list[bytes] = []

    def add(self, end: End, scan: FullScan, lineage: OpenLineage, most: int) -> None:
        """Add the end of a generation, about `most` bytes of it; nothing if nothing was said or done there."""
        kinds = scan.columns[3]
        if turns(end, scan) or any(kinds[at] in _TOLD for at in range(position(scan, end.start), len(kinds))):
            self._begin()
            effect = Effect(scan, replay_lineage(lineage, state=False))
            self.marks.append(transcript.write_end(scan, effect, lineage, self.builder, end.start, most))

    def say(self, path: str, shut: str) -> None:
        """Say that a generation can't be read."""
        self._begin()
        told = f"# Not readable\n\n*`{word(path)}`*\n\n".encode() + fenced(shut)
        self.builder.literal(told)
        self.marks.append(told)

    def _begin(self) -> None:
        if not self.marks:
            self.builder.literal(_TITLE.encode())
