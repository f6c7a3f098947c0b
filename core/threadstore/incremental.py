"""Passes over the logs of threads, each going on where the last one stopped when a log has only grown, so that
following a live thread costs its new bytes.

The *replay* reads from the end and stops early; the histories and the world state come from it. The *scan* reads
everything from the beginning; turns, usage, counts and problems come from it. The third kind writes a transcript in
parts. The results for the last few threads are kept; of large logs also those of another process, once it is proven
that they are of the same bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from threadstore import transcript
from threadstore.effects import Effect
from threadstore.extents import Extents, ExtentsBuilder
from threadstore.lineages import is_large
from threadstore.opened import OpenLineage
from threadstore.parts import KIND as WRITTEN
from threadstore.parts import Part, Parts
from threadstore.passes import Blocks, Digester, Pass, packed, unpacked
from threadstore.projection import Basis
from threadstore.replay import Replay
from threadstore.replaying import continued, extended, replay_lineage, whole_lines
from threadstore.scan import FullScan
from threadstore.scanning import scan_on, sources_of
from threadstore.texts import Listener

KINDS = ("scan", "history", "state")  # of passes
BLOCKS = "blocks"  # of what all of them have read
DOUBT = "doubt"  # is kept of a thread as long as these are doubtful
_KEPT = 4  # threads whose passes are kept
_UNPACKED = 8 << 20  # bytes of text in parts of transcripts that needn't be packed: most are never asked for again


class Passes:
    """See the module text. Raises StoreError and OSError."""

    def __init__(self) -> None:
        self.remembered: Callable[[str, str], bytes | None] | None = None  # packed ones of another process
        self.parts: Callable[[str], dict[bytes, bytes]] = lambda _thread: {}  # of transcripts, of another process
        self._kept: OrderedDict[tuple[str, str], object] = OrderedDict()  # passes by thread and kind
        self._blocks: dict[str, Blocks] = {}  # what passes over large logs of this process have read
        self._digester = Digester()
        self._proven: tuple[tuple[Basis, ...], bool] = ((), False)
        self._disproven: set[str] = set()  # threads of which the passes of another process are worth nothing

    # What they find

    def history(self, thread_id: str, lineage: OpenLineage) -> Replay:
        """The replay that histories need, going on from the last one where nothing but items was added."""
        return self._replay(thread_id, lineage, state=False)

    def state(self, thread_id: str, lineage: OpenLineage) -> Replay:
        """The replay that tells settings, world state and window, too, going on where whole turns were added."""
        return self._replay(thread_id, lineage, state=True)

    def _replay(self, thread_id: str, lineage: OpenLineage, *, state: bool) -> Replay:
        kind = "state" if state else "history"
        known: tuple[Pass, Replay] | None = self._recall(thread_id, kind, lineage)
        now = Pass.over(lineage)
        replay = None
        if known is not None and _may_go_on(known[0], now, lineage):
            go_on = continued if state else extended
            replay = go_on(known[1], lineage, known[0].consumed or 0)
        if replay is None:
            replay = replay_lineage(lineage, state=state)
        now.consumed = whole_lines(lineage.files[-1].log)
        self._keep(thread_id, kind, (now, replay))
        return replay

    def scan(
        self, thread_id: str, lineage: OpenLineage, listener: Listener | None = None, *, keep: bool = False
    ) -> FullScan:
        """Everything that happened, going on from the last time where that is possible. With `keep` what is decoded is
        left in the lineage.
        """
        known: tuple[Pass, FullScan] | None = self._recall(thread_id, "scan", lineage)
        now = Pass.over(lineage)
        sources = sources_of(lineage)  # the meta of a file that was just begun may have come since
        if known is not None and _may_go_on(known[0], now, lineage) and known[1].sources == sources:
            scan, first = known[1], len(lineage.files) - 1
        else:
            scan, first = FullScan(sources), 0
        is_kept = listener is not None and self.remembered is not None and is_large(lineage)
        digester = self._digester if is_kept else None
        now.consumed = scan_on(scan, lineage, first, listener=listener, digester=digester, keep=keep)
        self._keep(thread_id, "scan", (now, scan))
        return scan

    def transcript(self, thread_id: str, lineage: OpenLineage, scan: FullScan, effect: Effect) -> tuple[Extents, bytes]:
        """The transcript and its generation, of a large log from the parts that were written before."""
        builder = ExtentsBuilder()
        if not is_large(lineage):
            generation = transcript.write(scan, effect, lineage, builder).generation
            return builder.build(), generation
        before = self._recall(thread_id, WRITTEN, lineage)
        now = Pass.over(lineage)
        known: Mapping[bytes, bytes | Part] = {}
        if before is not None and _may_go_on(before.passed, now, lineage):
            known = before.found if isinstance(before, Parts) else self.parts(thread_id)
        written = transcript.write(scan, effect, lineage, builder, known)
        now.consumed = whole_lines(lineage.files[-1].log)
        new = {part.key: part for part in written.new}
        parts = {key: new[key] if key in new else known[key] for key in written.order}
        self._keep(thread_id, WRITTEN, Parts(now, written.generation, written.order, parts))
        self._pack()
        return builder.build(), written.generation

    def _pack(self) -> None:
        """Of the transcripts that are kept, pack what is more than `_UNPACKED`, the newest last."""
        left = _UNPACKED
        for parts in reversed(self._kept.values()):
            if isinstance(parts, Parts):
                left -= parts.weight()
                if left < 0:
                    parts.packed()

    # What is known of earlier ones

    def _recall(self, thread_id: str, kind: str, lineage: OpenLineage) -> Any:
        """What is known of the last pass of a kind; it is taken, since going on changes it."""
        known = self._kept.pop((thread_id, kind), None)
        if known is None and self.remembered is not None and is_large(lineage):
            data = self.remembered(thread_id, kind)
            known = unpacked(data) if data is not None and self.is_proven(thread_id, lineage) else None
        return known

    def _keep(self, thread_id: str, kind: str, found: object) -> None:
        self._kept[thread_id, kind] = found
        while len(self._kept) > _KEPT * (len(KINDS) + 1):
            self._kept.popitem(last=False)

    def packed_passes(self, thread_id: str) -> dict[str, bytes]:
        """The passes over a thread that were made last, to be `remembered` in another process."""
        found: dict[str, object] = {kind: self._kept.get((thread_id, kind)) for kind in KINDS}
        found[BLOCKS] = blocks = self._blocks.get(thread_id)
        found[DOUBT] = True if blocks is not None and blocks.doubtful else None
        parts = self._kept.get((thread_id, WRITTEN))
        found[WRITTEN] = parts.outline() if isinstance(parts, Parts) else None
        return {kind: packed(one) for kind, one in found.items() if one is not None}

    def packed_parts(self, thread_id: str) -> dict[bytes, bytes]:
        """The parts of the transcript that was made last of a large log, by their keys."""
        parts = self._kept.get((thread_id, WRITTEN))
        return parts.packed() if isinstance(parts, Parts) else {}

    # Whether these were of the same bytes

    def note_read(self, thread_id: str, lineage: OpenLineage) -> None:
        """All of a large log has been read by this process."""
        if self.remembered is not None and is_large(lineage):
            self._blocks[thread_id] = Blocks.over(lineage, self._blocks.get(thread_id), self._digester)
            self._disproven.discard(thread_id)

    def is_proven(self, thread_id: str, lineage: OpenLineage) -> bool:
        """True when the files still begin with what passes of another process have read, as far as that is compared
        before going on (`Blocks`), or with what this one has read.
        """
        if thread_id in self._blocks:
            return True
        if thread_id in self._disproven:
            return False
        basis = tuple(file.basis for file in lineage.files)
        if self._proven[0] != basis:
            proven = self._compare(thread_id, lineage, whole=False)
            self._proven = (basis, proven is not None)
            if proven is not None:
                self._blocks[thread_id] = proven
        return self._proven[1]

    def _compare(self, thread_id: str, lineage: OpenLineage, *, whole: bool) -> Blocks | None:
        data = None if self.remembered is None else self.remembered(thread_id, BLOCKS)
        blocks = None if data is None else unpacked(data)
        return blocks.proven(lineage, whole=whole) if isinstance(blocks, Blocks) else None

    def prove(self, thread_id: str, lineage: OpenLineage) -> bytes | None:
        """Compare all that passes of another process have read of a thread with what is there: packed blocks that are
        not doubtful any more. None when it is something else, and then nothing of it is used again.
        """
        blocks = self._compare(thread_id, lineage, whole=True)
        if blocks is None:
            self._forget(thread_id)
            return None
        self._blocks[thread_id] = blocks
        return packed(blocks)

    def _forget(self, thread_id: str) -> None:
        """The passes over a thread are worth nothing."""
        for kind in (*KINDS, WRITTEN):
            self._kept.pop((thread_id, kind), None)
        self._blocks.pop(thread_id, None)
        self._disproven.add(thread_id)


def _may_go_on(before: Pass, now: Pass, lineage: OpenLineage) -> bool:
    """True when a pass may take in what was added. A small log is read anew unless nothing has changed: what was
    written over in its middle is then seen, whatever was appended since.
    """
    if before.consumed is None or not (is_large(lineage) or before.is_of(now)):
        return False
    return before.continues(now, lineage)
