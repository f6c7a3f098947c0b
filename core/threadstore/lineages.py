"""From a rollout to the open files of its history: its chain of segments is looked up in the catalog, then opened."""

from __future__ import annotations

from threadstore.catalog import Catalog
from threadstore.errors import LineageError, TooLargeError, UnreadableError
from threadstore.lineage import Segment, base_of, resolve
from threadstore.metas import REJECTED, Metas
from threadstore.names import RolloutFile
from threadstore.opened import OpenLineage, open_rollout
from threadstore.projection import Basis
from threadstore.records import Json, Memo
from threadstore.spool import Spool

_REMEMBERED = 1 << 20  # bytes: of up to so many what was decoded is kept, above it passes


def is_large(lineage: OpenLineage) -> bool:
    """True for a lineage of which passes are kept for other processes, and not what was decoded."""
    return sum(lineage.ends()) > _REMEMBERED


class Lineages:
    """Those of a store. Raises StoreError and OSError."""

    def __init__(self, root: str, spool: Spool, catalog: Catalog, metas: Metas) -> None:
        self._root = root
        self.spool = spool
        self._catalog = catalog
        self._metas = metas
        self._memo: tuple[tuple[Basis, ...], Memo] = ((), Memo())  # what was decoded last, and of which files

    def segments(self, head: RolloutFile) -> list[Segment]:
        """The lineage of a rollout. Raises LineageError."""
        meta = self._metas.read(head)
        mode = meta.get("history_mode", "legacy")
        if mode not in ("legacy", "paginated"):
            message = f"{head.path}: unknown history mode {mode!r}. A newer release of rolloutfs may know it."
            raise LineageError("meta_mode", message)
        if REJECTED in meta and meta.get("history_base") is not None and base_of(meta) is None:
            raise LineageError("lineage_base", f"{head.path}: its history_base is damaged, so its past can't be found.")
        if not meta and self._is_undecodable(head):
            raise LineageError("zstd_corrupt", f"{head.path}: nothing of it can be decoded. Restore it from a backup.")
        return resolve(head, self._ancestor, self.find, self._decoded_size)

    def alone(self, head: RolloutFile) -> list[Segment]:
        """A rollout without what it inherits: what there is to be told when its lineage is broken."""
        return [Segment(head, self._metas.read(head), None, None)]

    def find(self, rollout_id: str) -> RolloutFile | None:
        """The file that is taken for a rollout; None when there is none."""
        files = self._catalog.of_rollout(rollout_id)
        return files[-1] if files else None

    def open(self, segments: list[Segment]) -> OpenLineage:
        """The open files of a lineage; close it."""
        lineage = OpenLineage(segments, [])
        try:
            for segment in segments:
                lineage.files.append(open_rollout(self._root, segment.rollout, self.spool))
        except BaseException:
            lineage.close()
            raise
        return lineage

    def open_thread(self, head: RolloutFile) -> OpenLineage:
        """The open files of the lineage of a rollout, of which lines are decoded once if they are small; close it."""
        lineage = self.open(self.segments(head))
        if not is_large(lineage):
            lineage.decode = self._memo_of(lineage).decode
        return lineage

    def _memo_of(self, lineage: OpenLineage) -> Memo:
        """What was decoded last, if it was of the same files."""
        basis = tuple(file.basis for file in lineage.files)
        if self._memo[0] != basis:
            self._memo = (basis, Memo())
        return self._memo[1]

    def _is_undecodable(self, head: RolloutFile) -> bool:
        if not head.compressed:
            return False
        opened = open_rollout(self._root, head, self.spool)
        opened.log.close()
        return opened.damage == "corrupt" and opened.log.size == 0

    def _ancestor(self, rollout: RolloutFile) -> Json:
        """The meta of a file of a lineage, which is broken when that can't be read."""
        try:
            return self._metas.read(rollout)
        except (UnreadableError, TooLargeError) as error:
            raise LineageError("lineage_unreadable", f"{rollout.path} is needed: {error.message}") from error

    def _decoded_size(self, rollout: RolloutFile) -> int:
        opened = open_rollout(self._root, rollout, self.spool)
        opened.log.close()
        return opened.log.size
