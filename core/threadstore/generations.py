"""The older generations of a thread, which no longer count: what was spent in them, and what reverts dropped of them.

They seldom change, so what was found in one is remembered for as long as its files are as they were.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress

from threadstore import dropped, reverts, transcript
from threadstore.errors import LineageError, StoreError, TooLargeError, UnreadableError
from threadstore.extents import Extents
from threadstore.heads import Subject
from threadstore.lineage import is_paginated
from threadstore.lineages import Lineages
from threadstore.metas import Metas
from threadstore.opened import OpenLineage
from threadstore.projection import Basis, digest
from threadstore.scanning import scan_lineage
from threadstore.texts import Text, texts_of
from threadstore.usage import Spent, add

_KEPT = 1000  # generations of which is known what was spent in them, and which turns were dropped


class Generations:
    """Those of the threads of a store. Raises StoreError and OSError."""

    def __init__(self, lineages: Lineages, metas: Metas) -> None:
        self._lineages = lineages
        self._metas = metas
        self._spent: OrderedDict[object, Spent] = OrderedDict()
        self._turns: OrderedDict[object, bytes] = OrderedDict()  # lines of turns by the end of a generation

    def spent(self, subject: Subject, lineage: OpenLineage) -> Spent:
        """What the thread spent in generations, or ends of them, that the current lineage doesn't have."""
        counted = {file.rollout.rollout_id: lineage.end_of(number) for number, file in enumerate(lineage.files)}
        found: Spent = {}
        for rollout in subject.rollouts:
            if rollout == subject.head.rollout:
                continue
            with (
                suppress(StoreError, FileNotFoundError),
                self._lineages.open(self._lineages.segments(rollout)) as generation,
            ):
                key = (tuple(file.basis for file in generation.files), tuple(sorted(counted.items())))
                known = self._spent.get(key)
                if known is None:
                    known = self._spent[key] = reverts.spent_beside(generation, subject.thread_id, counted)
                    while len(self._spent) > _KEPT:
                        self._spent.popitem(last=False)
                add(found, known)
                reverts.note(generation, subject.thread_id, counted)
        return found

    def ends(self, subject: Subject, lineage: OpenLineage) -> dropped.Ends:
        """The ends of generations that the current lineage doesn't have. Opens files, and reads none of them."""
        if len(subject.rollouts) == 1:
            return dropped.Ends((), (), lasts=True)
        counted: dropped.Counted = {}
        dropped.note(lineage, counted)
        found: list[dropped.End] = []
        basis: dict[Basis, None] = {}
        lasts = True
        for rollout in sorted(subject.rollouts, key=lambda one: (one.stamp, one.rollout_id), reverse=True):
            if rollout.rollout_id == subject.head.rollout.rollout_id:
                continue
            if self._lineages.find(rollout.rollout_id) != rollout:
                continue  # a twin that nobody takes
            try:
                meta = self._metas.read(rollout)
                try:
                    segments = self._lineages.segments(rollout)
                except LineageError:
                    if not is_paginated(meta):
                        raise
                    segments, lasts = self._lineages.alone(rollout), False  # its own file, at least
                if not is_paginated(meta):
                    continue
                with self._lineages.open(segments) as generation:
                    start = dropped.start_of(generation, counted)
                    dropped.note(generation, counted)
                    basis |= dict.fromkeys(file.basis for file in generation.files)
            except FileNotFoundError:
                lasts = False  # it was taken away just now
            except (LineageError, UnreadableError, TooLargeError) as error:
                lasts = False
                found.append(dropped.End(rollout.path, (), (0, 0), error.message))
            else:
                if start is not None:
                    found.append(dropped.End(rollout.path, tuple(segments), start))
        own = {file.basis for file in lineage.files}
        return dropped.Ends(tuple(reversed(found)), tuple(one for one in basis if one not in own), lasts)

    def dropped_turns(self, ends: dropped.Ends) -> bytes:
        """The lines of the turns in the ends of generations."""
        return b"".join(self._turns_of(end) for end in ends.ends)

    def _turns_of(self, end: dropped.End) -> bytes:
        if end.shut is not None:
            return b""
        with self._lineages.open(list(end.segments)) as generation:
            key = (tuple(file.basis for file in generation.files), end.start)
            known = self._turns.get(key)
            if known is None:
                known = self._turns[key] = dropped.turns(end, scan_lineage(generation))
                while len(self._turns) > _KEPT:
                    self._turns.popitem(last=False)
            return known

    def dropped_text(self, ends: dropped.Ends) -> tuple[Extents, bytes]:
        """The content of `dropped.md`, and its generation."""
        text, most = dropped.Text(), transcript.LARGEST // max(len(ends.ends), 1)
        for end in ends.ends:
            if end.shut is not None:
                text.say(end.path, end.shut)
                continue
            with self._lineages.open(list(end.segments)) as generation:
                text.add(end, scan_lineage(generation), generation, most)
        return text.builder.build(), digest(*text.marks)

    def texts(self, subject: Subject, ends: dropped.Ends) -> Iterator[Text]:
        """What was said there."""
        for end in ends.ends:
            if end.shut is None:
                with self._lineages.open(list(end.segments)) as generation:
                    for text in texts_of(generation, subject.thread_id, end.start):
                        yield text._replace(effective=False)
