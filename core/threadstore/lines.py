"""Bytes to lines, forward and backward, in bounded memory.

Only `\\n` ends a record (FAULTS 6). A file is read in chunks of 1 MiB, each byte once, in either direction, and a
line is handed out with its place in the file.

The hard part is a line of half a gigabyte (FAULTS 15). Nearly all of it is then the inside of a few long strings,
which nobody needs in order to know what the record is, where its payload lies and whether it is sound. So a line
longer than `LONG` is *condensed* while it is read: of every run of bytes between two quotes that is longer than
`_RUN` only the two ends are kept, and the middle is checked to be proper string content and dropped. What remains
is a small JSON text of the same structure; `gaps` tells how its positions map to the file. This needs no knowledge
of which quotes open and which close strings, so it works on chunks that come in backward, too.

A chunk may only be cut where no character and no escape sequence is torn apart. Such a place is found by looking at
a few bytes: the start of a run of backslashes always begins an escape, and so does any place with no backslash
close before it. In a run that is longer than what is looked at, the distance from its beginning decides.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

import orjson

from threadstore.files import pread_exactly
from threadstore.spans import flat

CHUNK = 1 << 20  # bytes read at once
LONG = 4 << 20  # bytes; longer lines are condensed
LARGEST = 8 << 20  # bytes; a line whose condensed form is longer is given up
_NUMBERS = 2 << 20  # bytes of a condensed line above which runs of numbers lose their middle, too
_RUN = 4 << 10  # bytes; longer runs between quotes lose their middle
_KEEP = 1 << 10  # bytes kept at either end of such a run


class Gap(NamedTuple):
    """`length` bytes of the file are missing before `data[at]`."""

    at: int
    length: int


class Line(NamedTuple):
    """One line of a file.

    `start` and `end` are byte offsets in the decoded file, without the newline. `data` is the line itself or, when
    there are `gaps`, its condensed form. `flaw` is a problem code found in a dropped part. `ended` is False for a
    last line without newline.
    """

    start: int
    end: int
    data: bytes
    ended: bool = True
    gaps: tuple[Gap, ...] = ()
    flaw: str | None = None

    def offset(self, at: int) -> int:
        """Where in the file `data[at]` lies."""
        if not self.gaps:
            return self.start + at
        last = bisect_right(self.gaps, (at, 1 << 62))
        return self.start + at + sum(gap.length for gap in self.gaps[:last])


class Log:
    """An open rollout, or the first `size` bytes of one. `bytes_read` counts what was asked of the file; `tap` is given
    what was read, after its offset.
    """

    __slots__ = ("bytes_read", "descriptor", "size", "tap")

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self.bytes_read = 0
        self.tap: Callable[[int, bytes], None] | None = None

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes at `offset`; fewer only when the file was truncated meanwhile."""
        data = pread_exactly(self.descriptor, min(length, max(self.size - offset, 0)), offset)
        self.bytes_read += len(data)
        if self.tap is not None:
            self.tap(offset, data)
        return data

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)


def forward(log: Log, start: int = 0, end: int | None = None) -> Iterator[Line]:
    """The lines between two offsets, first to last. `end` may lie inside a line, which then isn't `ended`."""
    stop = log.size if end is None else min(end, log.size)
    offset = line_start = start
    pending = b""
    long: _Condenser | None = None
    while offset < stop:
        chunk = log.read(offset, min(CHUNK, stop - offset))
        if not chunk:
            break
        offset += len(chunk)
        data = pending + chunk if pending else chunk
        at, newline = 0, data.find(b"\n", len(pending))
        while newline >= 0:
            if long is not None:
                long.append(data[at:newline])
                yield long.line(line_start, ended=True)
                long = None
            else:
                yield Line(line_start, line_start + newline - at, data[at:newline])
            at = newline + 1
            line_start = offset - len(data) + at
            newline = data.find(b"\n", at)
        pending = data[at:]
        if long is None and len(pending) > LONG:
            long = _Condenser()
        if long is not None:
            cut = last_cut(pending)
            long.append(pending[:cut])
            pending = pending[cut:]
    if long is not None:
        long.append(pending)
        yield long.line(line_start, ended=False)
    elif pending:
        yield Line(line_start, line_start + len(pending), pending, ended=False)


def backward(log: Log, end: int | None = None, start: int = 0) -> Iterator[Line]:
    """The same lines, last to first."""
    stop = log.size if end is None else min(end, log.size)
    offset = stop
    pending = b""
    long: _Condenser | None = None
    line_end = stop  # where the line that is being collected ends
    ended = False  # by a newline; the first one that we meet may be the cut tail
    begun = False  # anything after the last newline seen
    run = stop  # where a run of backslashes begins, once that was looked for
    while offset > start:
        size = min(CHUNK, offset - start)
        chunk = log.read(offset - size, size)
        if len(chunk) < size:  # truncated under us: what is gone is gone
            chunk = chunk.ljust(size, b"\0")
        offset -= size
        data = chunk + pending if pending else chunk
        right = len(data)
        newline = data.rfind(b"\n", 0, size)
        while newline >= 0:
            piece = data[newline + 1 : right]
            if long is not None:
                long.prepend(piece)
                yield long.line(offset + newline + 1, ended=ended)
                long = None
            elif piece or begun or ended:
                yield Line(offset + newline + 1, line_end, piece, ended=ended)
            line_end, ended, begun, right = offset + newline, True, False, newline
            newline = data.rfind(b"\n", 0, newline)
        pending = data[:right]
        begun = begun or bool(pending)
        if long is None and len(pending) > LONG:
            long = _Condenser()
        if long is not None:
            cut = first_cut(pending)
            if cut is None:  # in a run of backslashes: it counts where that begins
                run = run if run <= offset else run_before(log, offset, start)
                cut = (offset - run) % 2
            long.prepend(pending[cut:])
            pending = pending[:cut]
    if long is not None:
        long.prepend(pending)
        yield long.line(start, ended=ended)
    elif pending or ended:
        yield Line(start, line_end, pending, ended=ended)


class _Condenser:
    """Collects the parts of one long line, in either direction; see the module text."""

    __slots__ = ("_flaw", "_kept", "_parts", "_raw")

    def __init__(self) -> None:
        self._parts: list[tuple[bytes, list[Gap], list[int]]] = []
        self._flaw: str | None = None
        self._raw = 0
        self._kept = 0

    def append(self, part: bytes) -> None:
        self._parts += map(self._condense, _pieces(part))

    def prepend(self, part: bytes) -> None:
        self._parts[:0] = map(self._condense, _pieces(part))

    def _condense(self, part: bytes) -> tuple[bytes, list[Gap], list[int]]:
        self._raw += len(part)
        if self._kept > LARGEST:
            return b"", [Gap(0, len(part))], []
        kept, gaps, doubtful, flaw = condense(part, numbers=self._kept < _NUMBERS)
        self._flaw = self._flaw or flaw
        self._kept += len(kept)
        if self._kept > LARGEST:
            self._flaw = "too_large"
            return b"", [Gap(0, len(part))], []
        return kept, gaps, doubtful

    def line(self, start: int, *, ended: bool) -> Line:
        """The whole line, which begins at `start` in the file."""
        data: list[bytes] = []
        gaps: list[Gap] = []
        doubtful: list[int] = []
        at = 0
        for kept, inner, doubts in self._parts:
            doubtful += [at + doubt for doubt in doubts]
            for gap in inner:
                where = at + gap.at
                if gaps and gaps[-1].at == where:
                    gaps[-1] = Gap(where, gaps[-1].length + gap.length)
                else:
                    gaps.append(Gap(where, gap.length))
            data.append(kept)
            at += len(kept)
        whole = b"".join(data)
        flaw = self._flaw or ("too_large" if any(_outside_strings(whole, doubtful)) else None)
        return Line(start, start + self._raw, whole, ended, tuple(gaps), flaw)


def _outside_strings(data: bytes, places: list[int]) -> Iterator[bool]:
    """For each place, in order, whether it lies between strings: an even number of quotes precedes it."""
    level = flat(data) if places else b""
    quotes = done = 0
    for place in places:
        quotes += level.count(b'"', done, place)
        done = place
        yield quotes % 2 == 0


def _pieces(part: bytes) -> Iterator[bytes]:
    """A part in pieces of a chunk: the first part has all that came before a line was known to be long."""
    at = 0
    while len(part) - at > 2 * CHUNK:
        cut = last_cut(part[at : at + CHUNK])
        yield part[at : at + cut]
        at += cut
    yield part[at:] if at else part


_ANYWHERE = b"0123456789+-.,:[]{} \t\reEtrufalsn"  # what a valid JSON text has outside strings, too


def condense(part: bytes, *, numbers: bool = True) -> tuple[bytes, list[Gap], list[int], str | None]:
    """A part of a line without the middles of its long runs.

    What is kept, the gaps in it, the places of doubtful gaps, a problem code or None. A run of numbers and brackets
    may lie in a string or between two; only the whole line can tell. It is kept when `numbers` is true, else it
    leaves a doubtful gap: between strings nothing can be left out.
    """
    kept: list[bytes] = []
    gaps: list[Gap] = []
    doubtful: list[int] = []
    flaw: str | None = None
    level = flat(part)
    at = end = size = done = 0
    while at < len(part):  # a run is long enough to be met by steps of half its length
        start = level.rfind(b'"', end, at) + 1 or end
        end = level.find(b'"', at)
        end = len(part) if end < 0 else end
        if end - start > _RUN:
            left = start + last_cut(part[start : start + _KEEP])
            cut = first_cut(part[end - _KEEP : end])
            right = end - _KEEP + cut if cut is not None else _between_pairs(part, end - _KEEP)
            middle = part[left:right]
            structure = _may_be_structure(middle)
            if structure and numbers:
                at = end + _RUN // 2
                continue
            flaw = _flaw_of(middle) or flaw
            kept.append(part[done:left])
            size += left - done
            gaps.append(Gap(size, right - left))
            if structure:
                doubtful.append(size)
            done = right
        at = end + _RUN // 2
    kept.append(part[done:])
    return b"".join(kept), gaps, doubtful, flaw


def _may_be_structure(run: bytes) -> bool:
    """True for numbers and brackets, which may lie between two strings."""
    return not run[:64].translate(None, _ANYWHERE) and not run.translate(None, _ANYWHERE)


def _flaw_of(content: bytes) -> str | None:
    """What is wrong with a piece of a string."""
    try:
        orjson.loads(b'"' + content + b'"')
    except orjson.JSONDecodeError:
        if b"\0" in content:
            return "nul_run"
        try:
            content.decode("utf-8")
        except UnicodeDecodeError:
            return "bad_utf8"
        return "bad_record"
    return None


_ESCAPE = 6  # bytes of the longest escape, \uXXXX
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]..\Z", re.DOTALL)


def _is_safe(data: bytes, at: int) -> bool:
    """No character, no escape and no pair of surrogate escapes is torn by a cut before `data[at]`."""
    if data[at] & 0xC0 == 0x80:
        return False
    if data[at] == 0x5C:  # a backslash that begins its run begins an escape
        return data[at - 1] != 0x5C and _HIGH_SURROGATE.search(data, at - _ESCAPE, at) is None
    return b"\\" not in data[at - _ESCAPE : at]


_SEARCHED = 1024  # bytes in which a place to cut is looked for: there is one but in a run of backslashes or of damage


def last_cut(data: bytes) -> int:
    """The last place, or nearly, where `data` may be cut, which begins at such a place."""
    for at in range(len(data) - 1, max(len(data) - _SEARCHED, _ESCAPE), -1):
        if _is_safe(data, at):
            return at
    return _between_pairs(data, max(len(data) - _ESCAPE - 2, 0))


def first_cut(data: bytes) -> int | None:
    """The first place, or nearly, where `data` may be cut; None when that can't be told without what comes before."""
    for at in range(_ESCAPE, min(len(data), _SEARCHED)):
        if _is_safe(data, at):
            return at
    return None


def _between_pairs(data: bytes, at: int) -> int:
    """`at`, or the place after it if that would tear apart a pair of a run of backslashes."""
    return at + (at - len(data[:at].rstrip(b"\\"))) % 2


def run_before(log: Log, offset: int, start: int) -> int:
    """Where the run of backslashes begins that ends at `offset`; not before `start`."""
    while offset > start:
        size = min(CHUNK, offset - start)
        left = len(log.read(offset - size, size).rstrip(b"\\"))
        if left:
            return offset - size + left
        offset -= size
    return start
