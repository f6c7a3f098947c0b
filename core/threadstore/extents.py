"""Content as extents: slices of log files between short literals.

A derived file such as `effective_history.jsonl` is mostly bytes that lie in a rollout already.  Instead of rendering
it, we keep one *piece* a line: a prefix literal, a slice of a source file, a suffix literal.  A thread of a gigabyte
is then a few numbers a line, its exact size is a sum, and a read is a `pread` of the log.

Prefixes and suffixes repeat (`"\\n"`, `}\\n`), so each distinct pair is kept once and a piece names it by number.  The
columns are arrays of machine integers: about 24 bytes a piece, and cheap to send to another process.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import orjson

_STRIDE = 16  # pieces between two remembered start offsets
_LITERAL = 0xFFFF  # value of the source column for a slice of the literal pool


@dataclass(frozen=True, slots=True)
class Source:
    """One file that slices are cut from.

    `path` is relative to the store, or absolute for a private spool file.  `dev` and `ino` identify the file that the
    offsets were taken from: whoever opens it must compare them, since a replaced file has other bytes.  `limit` is the
    number of bytes that were there, `spooled` says that the file is a decoded copy outside the store.
    """

    path: str
    dev: int
    ino: int
    limit: int
    spooled: bool = False


class Slice(NamedTuple):
    """`length` bytes at `offset` of source number `source`."""

    source: int
    offset: int
    length: int


class Extents:
    """An immutable list of pieces; see the module text.

    Invariant: the four columns have one entry a piece, and `_marks[k]` is the content offset at which piece `k *
    _STRIDE` starts.
    """

    __slots__ = ("_length", "_marks", "_offset", "_source", "_style", "pool", "size", "sources", "styles")

    def __init__(
        self,
        sources: tuple[Source, ...],
        styles: tuple[tuple[bytes, bytes], ...],
        columns: tuple[array[int], array[int], array[int], array[int]],
        pool: bytes,
    ) -> None:
        self.sources = sources
        self.styles = styles
        self._style, self._source, self._offset, self._length = columns
        self.pool = pool
        around = [len(prefix) + len(suffix) for prefix, suffix in styles]
        marks = array("Q")
        size = 0
        for number, (style, length) in enumerate(zip(self._style, self._length, strict=True)):
            if number % _STRIDE == 0:
                marks.append(size)
            size += around[style] + length
        self._marks = marks
        self.size = size

    @property
    def weight(self) -> int:
        """Bytes of memory that this takes, roughly."""
        return 24 * len(self._style) + len(self.pool) + 64 * len(self.styles)

    @classmethod
    def of_bytes(cls, content: bytes) -> Extents:
        """Content that lies in memory as a whole."""
        builder = ExtentsBuilder()
        builder.literal(content)
        return builder.build()

    @classmethod
    def of_source(cls, source: Source, length: int) -> Extents:
        """The first `length` bytes of one file."""
        builder = ExtentsBuilder()
        builder.slice(builder.source(source), 0, length, suffix=b"")
        return builder.build()

    def to_bytes(self) -> bytes:
        """Everything, to be kept; `from_bytes` reads it."""
        head = (
            [[source.path, source.dev, source.ino, source.limit] for source in self.sources],
            [[prefix.decode("latin-1"), suffix.decode("latin-1")] for prefix, suffix in self.styles],
            len(self._style),
        )
        text = orjson.dumps(head)
        columns = (self._style, self._source, self._offset, self._length)
        return b"".join((len(text).to_bytes(8, "little"), text, *(column.tobytes() for column in columns), self.pool))

    @classmethod
    def from_bytes(cls, data: bytes) -> Extents:
        """What `to_bytes` gave on a machine of the same kind. Raises ValueError for anything else."""
        at = 8 + int.from_bytes(data[:8], "little")
        sources, styles, count = orjson.loads(data[8:at])
        columns = (array("I"), array("H"), array("Q"), array("Q"))
        for column in columns:
            column.frombytes(data[at : at + count * column.itemsize])
            at += count * column.itemsize
        if any(len(column) != count for column in columns):
            raise ValueError("the columns are cut short")
        return cls(
            tuple(Source(*source) for source in sources),
            tuple((prefix.encode("latin-1"), suffix.encode("latin-1")) for prefix, suffix in styles),
            columns,
            data[at:],
        )

    def plan(self, offset: int, length: int) -> Iterator[bytes | Slice]:
        """What to join to get `length` bytes of content from `offset`, in order; cut at the end of the content."""
        end = min(offset + length, self.size)
        if offset >= end:
            return
        mark = bisect_right(self._marks, offset) - 1
        at = self._marks[mark]
        for piece in range(mark * _STRIDE, len(self._style)):
            prefix, suffix = self.styles[self._style[piece]]
            body = self._length[piece]
            stop = at + len(prefix) + body + len(suffix)
            if stop > offset:
                if at >= end:
                    return
                if at < offset or stop > end:
                    yield from self._part(piece, prefix, suffix, max(offset - at, 0), end - at)
                else:  # all of it, as most are
                    if prefix:
                        yield prefix
                    if body:
                        begin, source = self._offset[piece], self._source[piece]
                        yield self.pool[begin : begin + body] if source == _LITERAL else Slice(source, begin, body)
                    if suffix:
                        yield suffix
            at = stop

    def _part(self, piece: int, prefix: bytes, suffix: bytes, start: int, stop: int) -> Iterator[bytes | Slice]:
        """The bytes `start` to `stop` of one piece, counted from its first byte."""
        head, body = len(prefix), self._length[piece]
        if start < head:
            yield prefix[start:stop]
        begin, end = max(start - head, 0), min(stop - head, body)
        if begin < end:
            offset = self._offset[piece]
            if self._source[piece] == _LITERAL:
                yield self.pool[offset + begin : offset + end]
            else:
                yield Slice(self._source[piece], offset + begin, end - begin)
        begin, end = max(start - head - body, 0), stop - head - body
        if begin < end and begin < len(suffix):
            yield suffix[begin:end]


class ExtentsBuilder:
    """Collects pieces; `build` may be called repeatedly while pieces are still being added."""

    __slots__ = ("_columns", "_pool", "_source_numbers", "_sources", "_style_numbers", "_styles")

    def __init__(self) -> None:
        self._columns = (array("I"), array("H"), array("Q"), array("Q"))
        self._pool = bytearray()
        self._sources: list[Source] = []
        self._source_numbers: dict[Source, int] = {}
        self._styles: list[tuple[bytes, bytes]] = []
        self._style_numbers: dict[tuple[bytes, bytes], int] = {}

    def source(self, source: Source) -> int:
        """The number of a source file, added when it is new."""
        number = self._source_numbers.get(source)
        if number is None:
            number = self._source_numbers[source] = len(self._sources)
            self._sources.append(source)
        return number

    def slice(self, source: int, offset: int, length: int, prefix: bytes = b"", suffix: bytes = b"\n") -> None:
        """Add a slice of a source between two literals."""
        self._add(source, offset, length, prefix, suffix)

    def literal(self, content: bytes) -> None:
        """Add bytes that lie in no file."""
        self._add(_LITERAL, len(self._pool), len(content), b"", b"")
        self._pool += content

    def _add(self, source: int, offset: int, length: int, prefix: bytes, suffix: bytes) -> None:
        style = (prefix, suffix)
        number = self._style_numbers.get(style)
        if number is None:
            number = self._style_numbers[style] = len(self._styles)
            self._styles.append(style)
        styles, sources, offsets, lengths = self._columns
        styles.append(number)
        sources.append(source)
        offsets.append(offset)
        lengths.append(length)

    def build(self) -> Extents:
        """The pieces added so far, as content that no longer changes."""
        styles, sources, offsets, lengths = self._columns
        columns = (styles[:], sources[:], offsets[:], lengths[:])
        return Extents(tuple(self._sources), tuple(self._styles), columns, bytes(self._pool))
