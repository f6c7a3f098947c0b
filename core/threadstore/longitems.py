"""Items of many megabytes, worked with although they are never in memory as a whole (FAULTS 15).

A long item is read as `lines` reads a long line: condensed, without the insides of its long strings. Where bytes
are missing a *mark* is put, a word that doesn't occur in the item. So the text can be parsed, looked at and encoded
anew like that of any item, and a mark moves along with the string that it stands in. In the end marks become slices
of the log again. Where the length or the ends of a string are wanted, as for cutting a tool's output, they are read
from the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import orjson

from threadstore.extents import ExtentsBuilder
from threadstore.lines import LONG, Log, first_cut, forward, last_cut, run_before
from threadstore.records import loads
from threadstore.spans import flat

_PART = 1 << 20  # bytes of a gap that are decoded at once
_ESCAPE = 6  # bytes in the log for a byte of text, at most


def is_long(length: int) -> bool:
    """True for an item of so many bytes that it is to be looked at in this way."""
    return length > LONG


class LongItem:
    """One item of a log.

    Invariant: `raw` is the item's text with mark number k where the bytes of `_gaps[k]` (offset and length in the
    file) are missing.
    """

    def __init__(self, log: Log, offset: int, length: int) -> None:
        self._log = log
        (line,) = forward(log, offset, offset + length)
        word = blake2b(line.data, digest_size=12).hexdigest().encode()
        self._mark = re.compile(rb"<%b:(\d+)>" % word)
        self._text_mark = re.compile(self._mark.pattern.decode())
        self._gaps: list[tuple[int, int]] = []
        self._lengths: dict[int, int] = {}  # bytes of text in a gap
        parts: list[bytes] = []
        done = missing = 0
        for number, gap in enumerate(line.gaps):
            parts += (line.data[done : gap.at], b"<%b:%d>" % (word, number))
            self._gaps.append((offset + gap.at + missing, gap.length))
            done, missing = gap.at, missing + gap.length
        parts.append(line.data[done:])
        self.raw = b"".join(parts)

    def document(self) -> dict[str, Any]:
        """What the item says, with marks in its long strings."""
        document: dict[str, Any] = loads(self.raw)
        return document

    def excerpt(self) -> dict[str, Any]:
        """What the item says, with notes in its long strings of how much is left out."""
        level = flat(self.raw)
        parts: list[bytes] = []
        done = first = 0  # what is in `parts`; the gap that a string's first mark stands for
        marks = list(self._mark.finditer(level))
        for mark, after in zip(marks, [*marks[1:], None], strict=True):
            if after is not None and b'"' not in level[mark.end() : after.start()]:
                continue  # there are more in the same string
            last, begin = int(mark[1]), marks[first].start()
            missing = sum(self._gaps[last]) - self._gaps[first][0]
            parts += (self.raw[done:begin], f"…{missing} bytes…".encode())
            done, first = mark.end(), last + 1
        parts.append(self.raw[done:])
        document: dict[str, Any] = loads(b"".join(parts))
        return document

    def length(self, text: str) -> int:
        """Bytes in UTF-8 of a text of the document."""
        return sum(len(part) if isinstance(part, bytes) else self._length(part) for part in self._parts(text))

    def _length(self, gap: int) -> int:
        known = self._lengths.get(gap)
        if known is None:
            known = self._lengths[gap] = sum(map(len, self._decoded(gap)))
        return known

    def head(self, text: str, most: int) -> bytes:
        """The first `most` bytes of a text, or a few more."""
        found = b""
        for part in self._parts(text):
            if len(found) >= most:
                break
            found += part if isinstance(part, bytes) else b"".join(self._decoded(part, most - len(found)))
        return found

    def tail(self, text: str, most: int) -> bytes:
        """The last `most` bytes of a text, or a few more."""
        found = b""
        for part in reversed(list(self._parts(text))):
            if len(found) >= most:
                break
            found = (part if isinstance(part, bytes) else self._last(part, most - len(found))) + found
        return found

    def plain(self, text: str, most: int) -> str:
        """A text with its gaps filled, of which `most` bytes are enough."""
        return self.head(text, most)[:most].decode("utf-8", "ignore")

    def emit(self, rendered: bytes, source: int, builder: ExtentsBuilder) -> None:
        """Add a text made from `raw` or from the document to some content, with slices of the log for its marks."""
        done = 0
        for match in self._mark.finditer(rendered):
            builder.literal(rendered[done : match.start()])
            builder.slice(source, *self._gaps[int(match[1])], suffix=b"")
            done = match.end()
        builder.literal(rendered[done:])

    def _parts(self, text: str) -> Iterator[bytes | int]:
        """Bytes of text and numbers of gaps, in order."""
        for number, part in enumerate(self._text_mark.split(text)):
            yield int(part) if number % 2 else part.encode("utf-8")

    def _decoded(self, gap: int, most: int | None = None) -> Iterator[bytes]:
        """The text in a gap, part by part; parts that make up its first `most` bytes are enough."""
        offset, length = self._gaps[gap]
        end = offset + (length if most is None else min(length, most * _ESCAPE + 64))
        whole = end == offset + length
        while offset < end:
            part = self._log.read(offset, min(_PART, end - offset))
            if offset + len(part) < end or not whole:
                part = part[: last_cut(part)]
            if not part:
                break
            yield _unescape(part)
            offset += len(part)

    def _last(self, gap: int, most: int) -> bytes:
        offset, length = self._gaps[gap]
        size = min(length, most * _ESCAPE + 64)
        start = offset + length - size
        part = self._log.read(start, size)
        cut = first_cut(part)
        if cut is None:  # in a run of backslashes
            cut = (start - run_before(self._log, start, offset)) % 2
        return _unescape(part if size == length else part[cut:])


def _unescape(content: bytes) -> bytes:
    text: str = orjson.loads(b'"' + content + b'"')
    return text.encode("utf-8")
