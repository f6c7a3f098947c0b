"""A line becomes a record: what kind it is, its ordinal, and where its payload lies (FORMAT 3).

Two dialects exist. Since September 2025 a line is an *envelope*
`{"timestamp","ordinal"?,"type","payload","metadata"?}`. Before that it was *bare*: the session meta and the
response items themselves, and `{"record_type":"state"}` (FORMAT 3.13). A file is of one dialect.

A line that Codex's reader would skip is a `Skip` here, with a problem code. It is never an exception: any bytes
give one or the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import orjson

from threadstore import schema, spans
from threadstore.lines import LARGEST, Line

Json = dict[str, Any]


class Dialect(Enum):
    """How the lines of one file are dressed."""

    ENVELOPE = "envelope"
    BARE = "bare"


class Record(NamedTuple):
    """One decoded record.

    `type` is the envelope's tag (bare lines get the one that they would have today). `payload` is a decoded object;
    long strings in it are shortened when the line is condensed.
    """

    line: Line
    type: str
    payload: Json
    ordinal: int | None
    timestamp: str | None
    dialect: Dialect
    metadata: Json | None = None  # the sibling of a response item's payload (FORMAT 3.4.2)
    span: tuple[int, int] | None = None  # where the payload lies in `line.data`, when that was found on the way

    @property
    def kind(self) -> str:
        """The payload's own tag (`task_started`, `message`, …), or an empty string."""
        kind = self.payload.get("type")
        return kind if isinstance(kind, str) else ""

    def is_event(self, kind: str) -> bool:
        """True for an `event_msg` of that kind."""
        return self.type == "event_msg" and self.payload.get("type") == kind

    def payload_span(self) -> tuple[int, int]:
        """Start and end of the payload in `line.data`."""
        if self.span is not None:
            return self.span
        data = self.line.data
        if self.dialect is Dialect.BARE:
            start = len(data) - len(data.lstrip(b" \t\r"))
            return start, spans.value_end(spans.flat(data), start)
        return (None if self.line.gaps else _plain_span(data, self.payload)) or _payload_span(data)

    def file_span(self, start: int, end: int) -> tuple[int, int]:
        """Offset and length in the file of `line.data[start:end]`."""
        first = self.line.offset(start)
        return first, self.line.offset(end - 1) + 1 - first


@dataclass(frozen=True, slots=True)
class Skip:
    """A line that Codex's reader passes over.

    `code` is a problem code, or `unknown` for records of a kind that 0.171.0 does not know, which is no damage.
    `recovered` are whole records found inside the line.
    """

    line: Line
    code: str
    reason: str
    recovered: tuple[Record, ...] = ()


HEAVIEST = 64 << 20  # bytes of memory; a line that says more than fits is given up
_LARGE = 256 << 10  # bytes; a shorter line can't be so heavy
_PAYLOAD = b'"payload":'
_METADATA = b',"metadata":'
_SHORT = 2048  # bytes; looking at all of a shorter line for long integers costs less than finding its payload
_SLICED = ("response_item", "compacted")  # kinds of records of which slices are served
_LONGEST_HEAD = 160  # bytes before the payload of a line in the usual order


def _payload_span(data: bytes) -> tuple[int, int]:
    """The envelope's payload. The usual key order is tried first: it ends at the closing brace or before
    `,"metadata":`.
    """
    at = data.find(_PAYLOAD, 0, _LONGEST_HEAD)
    if at > 0 and data.startswith(b'{"timestamp":"') and data[-1:] == b"}":
        start = at + len(_PAYLOAD)
        level = spans.flat(data)
        end = spans.value_end(level, start)
        if data.startswith(_METADATA, end):
            last = spans.value_end(level, end + len(_METADATA))
        else:
            last = end
        if last + 1 == len(data):
            return start, end
    first = len(data) - len(data.lstrip(b" \t\r"))
    span = spans.member(data, first, b"payload")
    if span is None:
        raise ValueError("a record without payload was accepted")
    return span


def is_blank(line: Line) -> bool:
    """True for a line that holds no record and no damage."""
    return not line.data.strip(b" \t\r\x0b\x0c")


def decode(line: Line, dialect: Dialect = Dialect.ENVELOPE) -> Record | Skip:
    """What a line that isn't blank holds."""
    if line.flaw is not None:
        return Skip(line, line.flaw, _REASONS.get(line.flaw, "damaged"))
    data = line.data
    if len(data) > _LARGE and spans.weight(data) > HEAVIEST:
        return Skip(line, "too_large", f"so many values that they would take more than {HEAVIEST} bytes of memory")
    span = None
    try:
        document = _loads(data)
        if len(data) > _SHORT and isinstance(document, dict) and document.get("type") in _SLICED and not line.gaps:
            span = _plain_span(data, document.get("payload"))
        _check_numbers(data, span)
    except ValueError as error:
        return _damaged(line, str(error), dialect)
    if not isinstance(document, dict):
        return Skip(line, "bad_record", "a JSON value that is not an object")
    if schema.too_deep(data, document):
        return Skip(line, "bad_record", f"nested more than {schema.DEEPEST} levels deep")
    return _bare(line, document) if dialect is Dialect.BARE else _envelope(line, document, span)


def decode_again(line: Line, dialect: Dialect = Dialect.ENVELOPE) -> Record | Skip:
    """What a line holds that `decode` has taken for a record before: without looking at its fields once more."""
    if dialect is Dialect.BARE:
        return decode(line, dialect)
    try:
        document = _loads(line.data)
        metadata = document.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else None
        kind, payload, time = document["type"], document["payload"], document["timestamp"]
        return Record(line, kind, payload, document.get("ordinal"), time, dialect, metadata)
    except (ValueError, KeyError, AttributeError):
        return decode(line, dialect)  # of the other dialect, in a file that begins with something else; or written over


class Memo:
    """`decode` for lines that several passes take: each is decoded once, as long as this lives."""

    def __init__(self) -> None:
        self._known: dict[tuple[Line, Dialect], Record | Skip] = {}

    def decode(self, line: Line, dialect: Dialect = Dialect.ENVELOPE) -> Record | Skip:
        """As the function of this name."""
        key = (line, dialect)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = decode(line, dialect)
        return known


def loads(data: bytes) -> Any:
    """What orjson says, but for numbers that it and Codex's reader take differently. Raises ValueError."""
    document = _loads(data)
    _check_numbers(data, None)
    return document


def _loads(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if "infinity" not in str(error):
            raise
        return _exactly(data)


def _plain_span(data: bytes, payload: object) -> tuple[int, int] | None:
    """Where the payload lies, if it is spelled as orjson would spell it, and so as Codex does. None: not found.

    Spelling it and comparing is many times faster than looking for its end. An equal text has nothing that the
    document doesn't show, such as an integer that became a float.
    """
    at = data.find(_PAYLOAD, 0, _LONGEST_HEAD)
    if at < 0 or not isinstance(payload, dict):
        return None
    try:
        text = orjson.dumps(payload)
    except orjson.JSONEncodeError:  # nested too deeply
        return None
    start = at + len(_PAYLOAD)
    return (start, start + len(text)) if data.startswith(text, start) else None


def _check_numbers(data: bytes, plain: tuple[int, int] | None) -> None:
    """Raise ValueError for an integer that Codex's reader refuses; there is none between `plain`."""
    looked_at = data if plain is None else data[: plain[0]] + data[plain[1] :]
    if schema.may_have_long_integer(looked_at):
        _exactly(data)


def _exactly(data: bytes) -> Any:
    """The same with a parser that shows the digits of integers."""

    def integer(digits: str) -> int:
        if schema.is_integer_refused(digits):
            raise ValueError(f"the integer {digits[:40]} is out of range")
        return int(digits) if len(digits) < 64 else 0

    def constant(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(data, parse_int=integer, parse_constant=constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


_REASONS = {
    "nul_run": "a run of NUL bytes",
    "bad_utf8": "bytes that are not UTF-8",
    "bad_record": "not a JSON text",
    "too_large": f"more than {LARGEST} bytes even without the insides of its strings",
}


def _envelope(line: Line, document: Json, span: tuple[int, int] | None = None) -> Record | Skip:
    kind, payload = document.get("type"), document.get("payload")
    if not isinstance(kind, str) or not isinstance(payload, dict):
        return Skip(line, "bad_record", "no type or no payload")
    fault = schema.envelope_fault(document) or schema.payload_fault(kind, payload)
    if fault is not None:
        return Skip(line, fault.code, fault.reason)
    time, ordinal, metadata = document.get("timestamp"), document.get("ordinal"), document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else None
    return Record(line, kind, payload, ordinal, time, Dialect.ENVELOPE, metadata, span)


def _bare(line: Line, document: Json) -> Record | Skip:
    """A line of mid 2025; unknown ones were passed over by the reader of that time."""
    if document.get("record_type") == "state":
        return Record(line, "state", document, None, None, Dialect.BARE)
    kind = document.get("type")
    if isinstance(kind, str):
        fault = schema.payload_fault("response_item", document)
        if fault is not None:
            return Skip(line, fault.code, fault.reason)
        return Record(line, "response_item", document, None, None, Dialect.BARE)
    if is_bare_meta(document):
        return Record(line, "session_meta", document, None, document.get("timestamp"), Dialect.BARE)
    return Skip(line, "unknown", "a record of no known kind")


def is_bare_meta(document: object) -> bool:
    """True for the first line of a rollout of mid 2025."""
    return (
        isinstance(document, dict)
        and "type" not in document
        and isinstance(document.get("id"), str)
        and isinstance(document.get("timestamp"), str)
    )


def dialect_of(line: Line) -> Dialect:
    """The dialect of a file whose first sound line this is."""
    try:
        document = orjson.loads(line.data)
    except orjson.JSONDecodeError:
        return Dialect.ENVELOPE
    if not isinstance(document, dict) or "payload" in document:
        return Dialect.ENVELOPE
    return Dialect.BARE if is_bare_meta(document) or "record_type" in document else Dialect.ENVELOPE


RECORD_START = b'{"timestamp":'
_CUT = "unexpected end of data"  # what orjson says of a text that is the beginning of another one
_LEAST_EFFORT = 1 << 20  # bytes that may be looked at to find records in a damaged line, however short it is


def _damaged(line: Line, message: str, dialect: Dialect) -> Skip:
    """Say what is wrong with a line that is no JSON text, and find whole records in it."""
    data = line.data
    recovered = _recover(line, dialect)
    if b"\0" in data:
        return Skip(line, "nul_run", "a run of NUL bytes", recovered)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Skip(line, "bad_utf8", f"bytes that are not UTF-8, {error.start} bytes into the line", recovered)
    if recovered:
        return Skip(line, "spliced", "more on one line than one record", recovered)
    if not line.ended or message.startswith(_CUT):
        return Skip(line, "torn_tail", "the line was cut short")
    return Skip(line, "bad_record", f"not a JSON text: {message}")


def _recover(line: Line, dialect: Dialect) -> tuple[Record, ...]:
    """Whole records inside a damaged line, in order."""
    if line.gaps or dialect is Dialect.BARE:
        return ()
    data = line.data
    level = spans.flat(data)
    found: list[Record] = []
    at = data.find(RECORD_START)
    effort = max(2 * len(data), _LEAST_EFFORT)  # every place where a record may begin costs a look at all that follows
    while at >= 0 and effort > 0:
        try:
            end = spans.value_end(level, at)
        except ValueError:
            end = len(data)
        effort -= end - at
        piece = Line(line.start + at, line.start + end, data[at:end])
        record = _decode_piece(piece)
        if record is not None:
            found.append(record)
            at = data.find(RECORD_START, end)
        else:
            at = data.find(RECORD_START, at + 1)
    return tuple(found)


def _decode_piece(piece: Line) -> Record | None:
    try:
        document = loads(piece.data)
    except ValueError:
        return None
    if not isinstance(document, dict) or schema.too_deep(piece.data, document):
        return None
    record = _envelope(piece, document)
    return record if isinstance(record, Record) else None
