"""How an item is encoded when it is sent (FORMAT 8.2, 2b).

Codex decodes items and encodes them again, field by field in a fixed order. Records that it wrote itself come out
as they lie in the log; records of other tools may lose unknown fields, gain nulls and change their order. Strings
are escaped as little as possible; numbers in free JSON (tools, arguments of a tool search) keep their spelling,
which is why values are copied from the raw text.

What a provider named `OpenAI` gets in addition (parts of the passthrough, encrypted arguments) is not part of this.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from threadstore import spans
from threadstore.items import ITEMS, PASSTHROUGH, ListOf, Sent, Shape, Struct, Tagged, is_sent_id

_ALIASES = {"compaction_summary": "compaction"}
_REMOTE = b'{"type":"input_text","text":"image content omitted because remote image URLs are not supported"}'
_AUDIO = b'{"type":"input_text","text":"audio content omitted because you do not support audio input"}'


def sent(document: dict[str, Any], raw: bytes) -> bytes | None:
    """The bytes that are sent for an item, None for one that is left out.

    `raw` is the item's text and `document` what it says.
    """
    kind = document["type"]
    if kind == "configuration_update":
        return None
    struct = ITEMS.get(kind) if isinstance(kind, str) else None
    if struct is None:
        return b'{"type":"other"}'
    if _is_plain(document, kind, struct):
        try:
            stored = orjson.dumps({key: value for key, value in document.items() if key != PASSTHROUGH})
        except TypeError:  # an integer of more than 64 bits
            stored = b""
        if stored and raw.startswith(stored[:-1]):
            return stored
    return _encode_item(kind, struct, raw)


def _is_plain(document: dict[str, Any], kind: str, struct: Struct) -> bool:
    """True when the document has the known fields in order, none hidden or null, and nothing in it needs a second
    look.
    """
    if (
        kind == "compaction_summary"
        or document.get("content") == []
        or ("id" in document and not is_sent_id(document["id"]))
    ):
        return False
    order = iter(struct.fields)
    for key, value in document.items():
        if key in ("type", PASSTHROUGH):
            continue
        field = next((field for field in order if field.name == key or field.sent is Sent.NULL), None)
        if field is None or field.name != key or field.sent is Sent.HIDDEN:
            return False
        if value is None and field.sent is not Sent.NULL:
            return False
        if field.inner is not None and not isinstance(value, str) and not _is_plain_value(value, field.inner):
            return False
    return all(field.sent is not Sent.NULL for field in order)


def _is_plain_value(value: Any, shape: Shape) -> bool:
    if value is None:
        return True
    if isinstance(shape, ListOf):
        return all(_is_plain_value(element, shape.element) for element in value)
    struct = shape.structs.get(value["type"]) if isinstance(shape, Tagged) else shape
    if struct is None or value["type"] in ("input_audio", "text") or str(value.get("image_url", "")).startswith("http"):
        return False
    names = [key for key in value if key != "type"]
    wanted = [field.name for field in struct.fields if value.get(field.name) is not None or field.sent is Sent.NULL]
    return names == wanted and (next(iter(value), "type") == "type")


def _encode_item(kind: str, struct: Struct, raw: bytes) -> bytes:
    values = _members(raw)
    if "id" in values and not is_sent_id(orjson.loads(values["id"])):
        del values["id"]
    if kind == "reasoning" and "content" in values and not _has_reasoning_text(values["content"]):
        values["content"] = b""
    return _encode_struct(_ALIASES.get(kind, kind), struct, values)


def _has_reasoning_text(raw: bytes) -> bool:
    """A content without any `reasoning_text` is left out, where an absent one is sent as null."""
    parts = orjson.loads(raw)
    return parts is None or any(part.get("type") == "reasoning_text" for part in parts)


def _members(raw: bytes) -> dict[str, bytes]:
    return {orjson.loads(b'"' + key + b'"'): raw[start:end] for key, start, end in spans.members(raw, 0)}


def _encode_struct(tag: str | None, struct: Struct, values: dict[str, bytes]) -> bytes:
    parts = [] if tag is None else [b'"type":' + orjson.dumps(tag)]
    for field in struct.fields:
        value = values.get(field.name, b"null")
        if field.sent is Sent.HIDDEN or not value:
            continue
        if value == b"null" and field.sent is Sent.MAYBE:
            continue
        encoded = compact(value) if field.inner is None else _encode_value(value, field.inner)
        parts.append(orjson.dumps(field.name) + b":" + encoded)
    return b"{" + b",".join(parts) + b"}"


def _encode_value(raw: bytes, shape: Shape) -> bytes:
    if raw[:1] not in (b"{", b"["):
        return compact(raw)
    if isinstance(shape, ListOf):
        parts = (_encode_value(raw[start:end], shape.element) for start, end in spans.elements(raw, 0))
        return b"[" + b",".join(parts) + b"]"
    values = _members(raw)
    if isinstance(shape, Struct):
        return _encode_struct(None, shape, values)
    tag = orjson.loads(values["type"])
    if tag == "input_image" and _is_remote(values.get("image_url")):
        return _REMOTE
    if tag == "input_audio":
        return _AUDIO
    struct = shape.structs.get(tag)
    return _encode_struct(tag, struct, values) if struct is not None else b'{"type":"other"}'


def _is_remote(url: bytes | None) -> bool:
    return url is not None and str(orjson.loads(url)).startswith(("http://", "https://"))


_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}:,]|[^ \t\r\n\[\]{}:,"]++', re.DOTALL)
_EXPONENT = re.compile(rb"[eE](?![+-])")


def compact(raw: bytes) -> bytes:
    """A JSON text without white space, strings escaped as little as possible, numbers spelled as they were."""
    if raw[:1] == b'"' and b"\\" not in raw:
        return raw
    return b"".join(map(_token, _TOKEN.findall(raw)))


def _token(token: bytes) -> bytes:
    if token[:1] == b'"':
        return orjson.dumps(orjson.loads(token)) if b"\\" in token else token
    if token[:1] in b"-0123456789":
        return b"0" if token == b"-0" else _EXPONENT.sub(b"e+", token).replace(b"E", b"e")
    return token
