"""The scan of an open lineage: from its beginning, or going on with the records that were added."""

from __future__ import annotations

from threadstore.lines import Line, Log, forward
from threadstore.opened import Decode, OpenLineage, first_dialect
from threadstore.passes import Digester
from threadstore.records import Dialect, Record, Skip, decode, is_blank
from threadstore.replay import is_silent
from threadstore.scan import FullScan, Source
from threadstore.texts import Listener


def scan_lineage(lineage: OpenLineage) -> FullScan:
    """Everything that happened in a generation that isn't written to any more."""
    scan = FullScan(sources_of(lineage))
    for number, file in enumerate(lineage.files):
        scan.begin(number)
        for line in forward(file.log, 0, lineage.end_of(number)):
            scan.line(line, lineage.decode)
    return scan


def scan_on(
    scan: FullScan,
    lineage: OpenLineage,
    first: int,
    *,
    listener: Listener | None = None,
    digester: Digester | None = None,
    keep: bool = False,
) -> int | None:
    """Feed a scan what it hasn't read of the segments from number `first` on. The `listener` hears of the records, the
    `digester` of files that are read from their beginning; with `keep` what is decoded is left in the lineage.

    Where the scan may go on in the last file; None when the last line lacks only its newline, so that it may yet
    become another one.
    """
    fresh = first == 0 and scan.is_new
    if listener is not None:
        listener.begin((first, scan.offset))
    settled = True
    for number in range(first, len(lineage.files)):
        if fresh or number > first:
            scan.begin(number)
        log = lineage.files[number].log
        take = _keeping(lineage, number, whole=scan.offset == 0) if keep else lineage.decode
        if digester is not None and scan.offset == 0:
            digester.listen(lineage.files[number])
        for line in forward(log, scan.offset, lineage.end_of(number)):
            may_grow = not line.ended and number == len(lineage.files) - 1
            if may_grow and not is_blank(line) and not _is_whole(line, log):
                break  # it may still be being written
            found = scan.line(line, take)
            if listener is not None and isinstance(found, Record):
                listener.record(found, number)
            settled = line.ended  # what lacks its newline may yet become another line
    return scan.offset if settled else None


def sources_of(lineage: OpenLineage) -> list[Source]:
    """What a scan has to know of the segments."""
    leaf = lineage.segments[-1]
    return [
        Source(
            segment.rollout.path,
            segment.meta,
            own=segment is leaf,
            of_thread=segment.rollout.thread_id == leaf.rollout.thread_id,
        )
        for segment in lineage.segments
    ]


def _keeping(lineage: OpenLineage, segment: int, *, whole: bool) -> Decode:
    """Decodes the lines of a segment, `whole` from its beginning, and leaves in the lineage what others need of them:
    what was decoded, or lines that say nothing.
    """
    kept, decode = lineage.begin_keeping(segment, whole=whole), lineage.decode

    def take(line: Line, dialect: Dialect) -> Record | Skip:
        decoded = decode(line, dialect)
        kept[line.start] = line if isinstance(decoded, Record) and is_silent(decoded) else decoded
        return decoded

    return take


def _is_whole(line: Line, log: Log) -> bool:
    """True for a last line without newline that is a record nevertheless: only its newline was lost."""
    return isinstance(decode(line, first_dialect(log)), Record)
