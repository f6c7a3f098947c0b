"""Bytes to lines, to values, to content: the lowest floor, for any input and any size of chunks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from threadstore import lines, spans
from threadstore.extents import ExtentsBuilder, Slice, Source
from threadstore.lines import Line, Log, backward, forward
from threadstore.records import Record, decode

SLOW = settings(max_examples=settings().max_examples // 3)

# Lines


@contextmanager
def opened(data: bytes) -> Iterator[Log]:
    """A log of these bytes."""
    descriptor = os.memfd_create("log")
    try:
        os.write(descriptor, data)
        yield Log(descriptor, len(data))
    finally:
        os.close(descriptor)


@contextmanager
def sizes(chunk: int, long: int = 1 << 20, run: int = 80, keep: int = 24) -> Iterator[None]:
    """Small chunks, and a small size from which lines are condensed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK", chunk)
        patch.setattr(lines, "LONG", long)
        patch.setattr(lines, "_RUN", run)
        patch.setattr(lines, "_KEEP", keep)
        yield


def plain(data: bytes) -> list[Line]:
    """The lines, by the simplest rule."""
    pieces = data.split(b"\n")
    found, at = [], 0
    for number, piece in enumerate(pieces):
        if piece or number + 1 < len(pieces):
            found.append(Line(at, at + len(piece), piece, ended=number + 1 < len(pieces)))
        at += len(piece) + 1
    return found


FEW = st.lists(st.sampled_from([b"\n", b"a", b"{", b'"', b"\\", b"\0", b"\r", "é".encode(), b"\xff"]), max_size=40)


@given(FEW.map(b"".join), st.integers(1, 9))
def test_lines_in_either_direction(data: bytes, chunk: int) -> None:
    """Forward and backward give the lines that a split at newlines gives, with their places, for any size of chunks."""
    with opened(data) as log, sizes(chunk):
        assert list(forward(log)) == plain(data)
        assert list(backward(log)) == plain(data)[::-1]


@given(FEW.map(b"".join), st.integers(1, 9), st.integers(0, 40))
def test_each_byte_is_read_once(data: bytes, chunk: int, end: int) -> None:
    """A pass over a log reads each of its bytes once; an end inside a line cuts that line."""
    for direction in (forward, backward):
        with opened(data) as log, sizes(chunk):
            found = list(direction(log, end=end))
            assert log.bytes_read == min(end, len(data))
        assert (found if direction is forward else found[::-1]) == plain(data[:end])


def pieces() -> st.SearchStrategy[str]:
    """Texts with all that JSON escapes, some of them long; runs of backslashes stay shorter than what is kept."""
    characters = st.sampled_from(["a", "é", "€", "😀", '"', "\\", "\n", "\x00", "\u2028", "\x7f", "/", " "])
    return st.one_of(
        st.lists(characters, max_size=12).map("".join),
        st.tuples(characters, st.integers(60, 400)).map(lambda pair: pair[0] * pair[1] if pair[0] != "\\" else "\\"),
        st.lists(characters, min_size=60, max_size=120).map("".join).filter(lambda text: "\\" * 4 not in text),
    )


DOCUMENTS = st.recursive(
    st.one_of(pieces(), st.integers(-9, 9), st.none(), st.lists(st.integers(-999, 1 << 53), min_size=40, max_size=60)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(pieces(), inner, max_size=3)),
    max_leaves=6,
)


def long_line(document: object, *, ascii_only: bool) -> bytes:
    """A record with a text of any content, in either style of escaping."""
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}], "more": document}
    record = {"timestamp": "2026-11-29T10:00:00.000Z", "type": "response_item", "payload": message}
    return json.dumps(record, ensure_ascii=ascii_only, separators=(",", ":")).encode()


@SLOW
@given(DOCUMENTS, st.booleans(), st.integers(30, 300), st.integers(100, 200))
def test_condensed_lines_map_to_the_file(document: object, ascii_only: bool, chunk: int, long: int) -> None:
    """A long line loses the middles of its strings; every byte that is left, and every place after it, is known."""
    line = long_line(document, ascii_only=ascii_only)
    data = b"first\n" + line + b"\nlast"
    with opened(data) as log, sizes(chunk, long):
        for found in (list(forward(log))[1], list(backward(log))[1]):
            assert (found.start, found.end, found.ended, found.flaw) == (6, 6 + len(line), True, None)
            assert len(found.data) + sum(gap.length for gap in found.gaps) == len(line)
            for at, byte in enumerate(found.data):
                assert data[found.offset(at)] == byte
            record, whole = decode(found), decode(Line(6, 6 + len(line), line))
            assert isinstance(record, Record)
            assert isinstance(whole, Record)
            assert record.file_span(*record.payload_span()) == whole.file_span(*whole.payload_span())


@SLOW
@given(st.lists(pieces(), min_size=12, max_size=40).map("".join), st.integers(30, 300), st.data())
def test_damage_in_a_long_line_is_seen(text: str, chunk: int, data: st.DataObject) -> None:
    """A damaged byte makes a condensed line unreadable exactly when it makes the whole line unreadable."""
    assume("\\" * 4 not in text)
    line = bytearray(long_line(text, ascii_only=False))
    at = data.draw(st.integers(0, len(line) - 1))
    line[at] = data.draw(st.sampled_from(b'\x00\xff"\\{}u,\t\xc3'))
    assume(b"\n" not in line)
    whole = decode(Line(0, len(line), bytes(line)))
    with opened(bytes(line)) as log, sizes(chunk, 100):
        for direction in (forward, backward):
            (found,) = direction(log)
            assert isinstance(decode(found), Record) == isinstance(whole, Record)


def test_memory_of_a_long_line() -> None:
    """Of a line of 24 MiB hardly more than its structure is kept."""
    line = long_line("x" * (24 << 20), ascii_only=False)
    with opened(line) as log:
        for direction in (forward, backward):
            (found,) = direction(log)
            assert len(found.data) < 1 << 20
            assert (found.start, found.end, found.flaw) == (0, len(line), None)
            assert isinstance(decode(found), Record)


# Values

JSON = st.recursive(
    st.one_of(
        st.text(max_size=5), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.none(), st.booleans()
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=12,
)
STYLES: list[dict[str, Any]] = [{}, {"indent": 1}, {"separators": (",", ":")}, {"separators": (" , ", " : ")}]


@SLOW
@given(st.lists(JSON, max_size=4), st.sampled_from(STYLES), st.booleans())
def test_elements_are_where_a_parser_finds_them(
    document: list[object], style: dict[str, Any], ascii_only: bool
) -> None:
    """Each element of an array is the slice that decodes to it."""
    data = json.dumps(document, ensure_ascii=ascii_only, **style).encode()
    assert [json.loads(data[start:end]) for start, end in spans.elements(data, 0)] == document
    for start, end in spans.elements(data, 0):
        assert data[start:end] == data[start:end].strip()


@SLOW
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.sampled_from(STYLES), st.booleans())
def test_members_are_where_a_parser_finds_them(
    document: dict[str, object], style: dict[str, Any], ascii_only: bool
) -> None:
    """Each member of an object is the slice that decodes to it; it is found by its key, however that is escaped."""
    data = json.dumps(document, ensure_ascii=ascii_only, **style).encode()
    found = {json.loads(b'"' + key + b'"'): json.loads(data[start:end]) for key, start, end in spans.members(data, 0)}
    assert found == document
    for key, value in document.items():
        span = spans.member(data, 0, key.encode())
        assert span is not None
        assert json.loads(data[slice(*span)]) == value
    assert spans.member(data, 0, b"absent") is None


def test_last_of_two_members_counts() -> None:
    """A key that occurs twice has its last value, as orjson has it."""
    assert spans.member(b'{"a":1,"a":2}', 0, b"a") == (11, 12)


@given(st.binary(max_size=30) | FEW.map(b"".join))
@example(b"[")
@example(b'{"a":')
def test_spans_of_anything_end(data: bytes) -> None:
    """On bytes that are no JSON the search ends, with places inside them or with ValueError."""
    for walk in (spans.elements, spans.members):
        try:
            found = [triple[-2:] for triple in walk(data, 0)]
        except ValueError:
            continue
        assert all(0 <= start <= end <= len(data) for start, end in found)


# Content

PIECES = st.lists(
    st.tuples(
        st.sampled_from(["literal", "slice"]),
        st.integers(0, 20),
        st.integers(0, 12),
        st.sampled_from([b"", b"[", b'{"record":']),
        st.sampled_from([b"", b"\n", b"}\n"]),
    ),
    max_size=80,
)


@given(PIECES, st.data())
def test_plan_is_a_slice_of_the_rendered_bytes(
    pieces: list[tuple[str, int, int, bytes, bytes]], data: st.DataObject
) -> None:
    """What is planned for any offset and length is what the whole content has there."""
    files = [bytes(range(65, 97)), bytes(range(97, 129))]
    builder = ExtentsBuilder()
    numbers = [builder.source(Source(f"file{number}", 1, number, 32)) for number in range(2)]
    rendered = b""
    for kind, offset, length, prefix, suffix in pieces:
        if kind == "literal":
            builder.literal(files[0][offset : offset + length])
            rendered += files[0][offset : offset + length]
        else:
            number = offset % 2
            builder.slice(numbers[number], offset, length, prefix, suffix)
            rendered += prefix + files[number][offset : offset + length] + suffix
    extents = builder.build()
    assert extents.size == len(rendered)
    offset = data.draw(st.integers(0, len(rendered) + 2))
    length = data.draw(st.integers(0, len(rendered) + 2))
    parts = [
        files[part.source][part.offset : part.offset + part.length] if isinstance(part, Slice) else part
        for part in extents.plan(offset, length)
    ]
    assert b"".join(parts) == rendered[offset : offset + length]
    assert all(parts), "nothing empty is asked for"


def test_built_content_does_not_change() -> None:
    """What was built stays as it is while pieces are added."""
    builder = ExtentsBuilder()
    builder.literal(b"one")
    first = builder.build()
    builder.literal(b"two")
    assert b"".join(part for part in first.plan(0, 99) if isinstance(part, bytes)) == b"one"
    assert builder.build().size == 6
