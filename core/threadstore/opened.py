"""The files of one thread, open: every segment of its lineage as a `Log`, with what they were when they were
opened.

Everything that a projection is made from is read through here, so the list of files that it depends on is complete
by construction.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from threadstore.errors import UnreadableError
from threadstore.extents import Source
from threadstore.files import FileIdentity, open_regular, pread_exactly
from threadstore.history import Item
from threadstore.lineage import Segment
from threadstore.lines import Line, Log, backward, forward
from threadstore.longitems import LongItem
from threadstore.names import RolloutFile
from threadstore.projection import Basis
from threadstore.records import Dialect, Record, Skip, decode, decode_again, dialect_of, is_blank
from threadstore.spool import Copy, Spool

_FIRST = 1 << 10  # bytes of a first line: a session meta begins with its time and its ids
_SEAM = 1 << 9
_TICK = 50_000_000  # ns; a file may change twice within one tick of the clock that its times are taken from

Decode = Callable[[Line, Dialect], Record | Skip]


@dataclass(slots=True)
class OpenFile:
    """One open rollout: the decoded log, the file of the store that it comes from, and how slices of it are
    addressed.
    """

    rollout: RolloutFile
    log: Log
    basis: Basis
    source: Source
    damage: str | None

    def identity(self) -> bytes:
        """Tells one file from its replacement, and from another log that was written over it."""
        place = f"{self.rollout.rollout_id}:{self.source.dev}:{self.source.ino}:".encode()
        return place + first_bytes(self.log.descriptor)


def open_rollout(root: str, rollout: RolloutFile, spool: Spool) -> OpenFile:
    """Open a rollout, decoded. Raises UnreadableError, TooLargeError, FileNotFoundError."""
    descriptor = open_regular(root, rollout.path)
    try:
        identity = FileIdentity.of(os.fstat(descriptor))
        basis = Basis(rollout.path, identity.dev, identity.ino, identity.size, identity.mtime_ns)
        if not rollout.compressed:
            source = Source(rollout.path, identity.dev, identity.ino, identity.size)
            opened, descriptor = OpenFile(rollout, Log(descriptor, identity.size), basis, source, None), -1
            return opened
        copy = spool.decode(root, rollout.path)
        return OpenFile(rollout, _open_copy(copy), basis, _copy_source(copy), copy.damage)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def first_bytes(descriptor: int) -> bytes:
    """The beginning of a file's first line. A log never changes it, so another one there is another log, whatever
    the inode.
    """
    return pread_exactly(descriptor, _FIRST, 0).partition(b"\n")[0]


def _copy_source(copy: Copy) -> Source:
    return Source(copy.path, copy.dev, copy.ino, copy.size, spooled=True)


def _open_copy(copy: Copy) -> Log:
    try:
        return Log(os.open(copy.path, os.O_RDONLY | os.O_CLOEXEC), copy.size)
    except OSError as error:
        raise UnreadableError(f"the decoded copy {copy.path} is gone: read again.", error.errno or 0) from error


def _unknown(_segment: int, _line: Line) -> bool:
    """No pass has told yet which lines are records."""
    return False


class OpenLineage:
    """The open files of a lineage, oldest segment first. Close it when done.

    `decode` may remember what it decoded, for passes that follow each other over a small log. `is_sound` tells of which
    lines of which segment another pass has found that they are records: these are decoded with less effort. Of a log of
    medium size a scan leaves what it decoded in `kept`, as far as others need it; segments that it has read from their
    beginning are named in `whole` and needn't be read again while they are `as_kept`.
    """

    def __init__(self, segments: list[Segment], files: list[OpenFile]) -> None:
        self.segments = segments
        self.files = files
        self.decode: Decode = decode
        self.is_sound: Callable[[int, Line], bool] = _unknown
        self.kept: dict[int, dict[int, Record | Skip | Line]] = {}  # by segment and offset: a line if it says nothing
        self.whole: dict[int, tuple[int, ...] | None] = {}  # segments, and what `stat` said before they were read

    def begin_keeping(self, number: int, *, whole: bool) -> dict[int, Record | Skip | Line]:
        """Where a scan leaves what it decodes of a segment, oldest first; `whole` if it begins at the beginning."""
        if whole:
            self.whole[number] = self._settled(number)
        return self.kept.setdefault(number, {})

    def as_kept(self, number: int) -> bool:
        """True when what is kept of a segment is all of it, and its file the same still: by `stat`, which tells nothing
        of a file that had changed just before it was read.
        """
        before = self.whole.get(number)
        return before is not None and before == self._status(number)

    def _settled(self, number: int) -> tuple[int, ...] | None:
        status = self._status(number)
        return status if time.time_ns() - max(status[:2]) > _TICK else None

    def _status(self, number: int) -> tuple[int, ...]:
        status = os.fstat(self.files[number].log.descriptor)
        return status.st_mtime_ns, status.st_ctime_ns, status.st_size

    def again(self, segment: int, line: Line, dialect: Dialect) -> Record | Skip:
        """What a sound line holds."""
        kept = self.kept[segment].get(line.start) if segment in self.kept else None
        if isinstance(kept, Record) and kept.line == line:  # the same bytes, too
            return kept
        return decode_again(line, dialect) if self.decode is decode else self.decode(line, dialect)

    def close(self) -> None:
        """Close all descriptors."""
        for file in self.files:
            file.log.close()

    def __enter__(self) -> OpenLineage:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def identities(self) -> tuple[bytes, ...]:
        """Which files these are."""
        return tuple(file.identity() for file in self.files)

    def ends(self) -> tuple[int, ...]:
        """The decoded bytes of each segment that belong to the lineage."""
        return tuple(map(self.end_of, range(len(self.files))))

    def seam(self, number: int, end: int) -> bytes:
        """The bytes of a file before `end`: the same as long as it has only grown since it ended there."""
        start = max(end - _SEAM, 0)
        return pread_exactly(self.files[number].log.descriptor, end - start, start)

    @property
    def bytes_read(self) -> int:
        """Bytes read from logs so far."""
        return sum(file.log.bytes_read for file in self.files)

    def end_of(self, number: int) -> int:
        """The decoded bytes of a segment that belong to the lineage."""
        end = self.segments[number].end
        return self.files[number].log.size if end is None else end

    def fetch(self, item: Item) -> bytes:
        """The bytes of an item that isn't long."""
        return pread_exactly(self.files[item.segment].log.descriptor, item.length, item.offset)

    def look(self, item: Item) -> LongItem:
        """A long item."""
        return LongItem(self.files[item.segment].log, item.offset, item.length)

    def newest_first(self, *, paginated: bool) -> Iterator[tuple[Record | Skip, int]]:
        """The records of the lineage from the last one back, session metas left out, and what is known to say nothing
        to a replay; Skips where a line was passed over.

        In a paginated thread a segment ends at the first session meta met, which is its own (FORMAT 7.5).
        """
        for number in range(len(self.files) - 1, -1, -1):
            for decoded in self._last_first(number):
                if isinstance(decoded, Record) and decoded.type == "session_meta":
                    if paginated:
                        break
                    continue
                yield decoded, number

    def _last_first(self, number: int) -> Iterator[Record | Skip]:
        kept = self.kept.get(number, {})
        if self.as_kept(number):
            yield from (one for one in reversed(kept.values()) if not isinstance(one, Line))
            return
        log = self.files[number].log
        dialect = first_dialect(log)
        for line in backward(log, self.end_of(number)):
            if not is_blank(line) and kept.get(line.start) != line:
                is_sound = self.is_sound(number, line)
                yield self.again(number, line, dialect) if is_sound else self.decode(line, dialect)


def first_dialect(log: Log) -> Dialect:
    """The dialect of a file, from its first line that may be a record."""
    head = pread_exactly(log.descriptor, min(log.size, 1 << 16), 0)
    first, newline, rest = head.partition(b"\n")
    while not first.startswith(b"{") and newline:
        first, newline, rest = rest.partition(b"\n")
    if first.startswith(b"{") and b'"payload"' in first:
        return Dialect.ENVELOPE
    if newline or len(head) == log.size or not first.startswith(b"{"):
        return dialect_of(Line(0, len(first), first)) if first.startswith(b"{") else Dialect.ENVELOPE
    # A bare session meta with long instructions: the whole line tells, and is read beside the log's own count of bytes.
    lines = (line for line in forward(Log(log.descriptor, log.size)) if line.data.startswith(b"{"))
    return dialect_of(next(lines, Line(0, 0, b"")))
