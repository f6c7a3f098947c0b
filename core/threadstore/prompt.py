"""What the next request would carry as history (FORMAT 7.6, 8.2).

Between the history and the model Codex does a little: a call without result gets the output `aborted` right after
it, results without call are left out, long tool outputs lose their middle, the harness's own metadata is cut off,
and items are encoded anew. For what Codex itself wrote the last step changes nothing, so an item is still a slice
of the log; only items that would be sent differently are rendered.

The base instructions, which Codex sends first, are settings and not history; they are not part of this.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import orjson

from threadstore.calls import match_calls
from threadstore.extents import ExtentsBuilder
from threadstore.history import MADE, Fetch, Flag, History, Item, Look, Shared, split_middle, tokens
from threadstore.items import is_sent_id
from threadstore.longitems import LongItem, is_long
from threadstore.records import loads
from threadstore.wire import sent

DEFAULT_BUDGET = 12_000  # tokens of a tool output where the record doesn't say (seen with gpt-5.5)
_SHARED = 256  # bytes at either end that make it worth while to take them from the log
_NOTE = 256  # bytes of a middle up to which it is remembered
_PASSTHROUGH = b',"internal_chat_message_metadata_passthrough":'
_NAMESPACE = uuid.UUID("90d38d3e-6a5b-4d52-bfe2-2f1e634bfac4")


def effective(history: History, builder: ExtentsBuilder, sources: list[int], fetch: Fetch, look: Look) -> None:
    """The items of the history, byte for byte as they lie in the log, one a line."""
    for item in history:
        if item.segment == MADE:
            builder.literal(history.made[item.offset] + b"\n")
        else:
            add_lying(item, builder, sources, fetch, look)


def add_lying(item: Item, builder: ExtentsBuilder, sources: list[int], fetch: Fetch, look: Look) -> None:
    """An item of a log as a line: byte for byte, but for a communication between agents, which lies in another form."""
    if item.flags & Flag.REWRITE:
        _add_communication(item, builder, sources, fetch, look)
    else:
        builder.slice(sources[item.segment], item.offset, item.length)


def model_input(history: History, builder: ExtentsBuilder, sources: list[int], fetch: Fetch, look: Look) -> None:
    """The items as they are sent."""
    state = match_calls(history)
    pending = set(state.pending)
    for at, item in enumerate(history):
        if at == len(history.verbatim):
            history.verbatim.append(0)
        if at in state.orphans:
            continue
        if item.segment == MADE:
            builder.literal(history.made[item.offset] + b"\n")
        elif history.verbatim[at]:
            _add_verbatim(item, history.verbatim[at], builder, sources)
        elif at in history.shortened:
            _add_shared(item, history.shortened[at], builder, sources)
        elif item.flags & Flag.REWRITE:
            _add_communication(item, builder, sources, fetch, look)
        elif is_long(item.length):
            _add_long(history, item, builder, sources, look)
        else:
            found = _add(history, item, builder, sources, fetch)
            if isinstance(found, int):
                history.verbatim[at] = found
            elif len(found.middle) <= _NOTE:
                history.shortened[at] = found
        if at in pending:
            output = aborted(loads(history.made[item.offset]) if item.segment == MADE else excerpt(item, fetch, look))
            if output is not None:
                builder.literal(orjson.dumps(output) + b"\n")


def excerpt(item: Item, fetch: Fetch, look: Look) -> dict[str, Any]:
    """What an item says; in a long one, notes stand for the insides of long strings."""
    if is_long(item.length):
        return look(item).excerpt()
    document: dict[str, Any] = loads(fetch(item))
    return document


def _add_communication(item: Item, builder: ExtentsBuilder, sources: list[int], fetch: Fetch, look: Look) -> None:
    if is_long(item.length):
        long = look(item)
        long.emit(communication_item(long.raw) + b"\n", sources[item.segment], builder)
    else:
        builder.literal(communication_item(fetch(item)) + b"\n")


def _add_long(history: History, item: Item, builder: ExtentsBuilder, sources: list[int], look: Look) -> None:
    long = look(item)
    document = long.document()
    wanted = None
    if item.flags & Flag.LONG_OUTPUT:
        shortened = shorten(document, _budget(history, item), long)
        wanted = None if shortened is document else sent(shortened, orjson.dumps(shortened))
    wanted = wanted or sent(document, long.raw)
    stored = strip_passthrough(long.raw) if item.flags & Flag.PASSTHROUGH else long.raw
    if wanted == long.raw:
        builder.slice(sources[item.segment], item.offset, item.length)
    elif wanted == stored:
        length = item.length - (len(long.raw) - len(stored)) - 1
        builder.slice(sources[item.segment], item.offset, length, suffix=b"}\n")
    elif wanted is not None:
        long.emit(wanted + b"\n", sources[item.segment], builder)


def _budget(history: History, item: Item) -> int:
    return history.budgets.get((item.segment, item.offset), DEFAULT_BUDGET)


def _add_verbatim(item: Item, size: int, builder: ExtentsBuilder, sources: list[int]) -> None:
    """An item of which the first bytes are sent as they lie; its last brace comes after them when they are not all."""
    whole = size == item.length
    builder.slice(sources[item.segment], item.offset, size, suffix=b"\n" if whole else b"}\n")


def _add_shared(item: Item, shared: Shared, builder: ExtentsBuilder, sources: list[int]) -> None:
    """An item that is sent with another middle."""
    source = sources[item.segment]
    builder.slice(source, item.offset, shared.head, suffix=b"")
    builder.literal(shared.middle)
    builder.slice(source, item.offset + shared.tail, shared.length, suffix=b"}\n")


def _add(history: History, item: Item, builder: ExtentsBuilder, sources: list[int], fetch: Fetch) -> int | Shared:
    """Add an item; how many of its first bytes are sent as they lie, 0 when others are sent, or its ends if it shares
    these with what is sent.
    """
    raw = fetch(item)
    stored = strip_passthrough(raw) if item.flags & Flag.PASSTHROUGH else raw
    document = loads(raw)
    shortened = shorten(document, _budget(history, item)) if item.flags & Flag.LONG_OUTPUT else document
    wanted = sent(document, raw) if shortened is document else sent(shortened, orjson.dumps(shortened))
    if wanted is None:
        return 0
    if wanted == stored:
        size = len(stored) - (0 if stored is raw else 1)
        _add_verbatim(item, size, builder, sources)
        return size
    shared = _ends(wanted, stored)
    if shared is None:
        builder.literal(wanted + b"\n")
        return 0
    _add_shared(item, shared, builder, sources)
    return shared


def _ends(wanted: bytes, stored: bytes) -> Shared | None:
    """How a line differs from what is stored, if it shares long parts with it at both ends. These are taken from the
    log: thousands of shortened tool outputs are then no megabytes of literals.
    """
    most = min(len(wanted), len(stored)) - 1  # the last brace may not be where it was
    head = _shared(lambda size: wanted[:size] == stored[:size], most)
    end, last = len(wanted) - 1, len(stored) - 1
    tail = _shared(lambda size: wanted[end - size : end] == stored[last - size : last], most - head)
    if head + tail < _SHARED:
        return None
    return Shared(head, wanted[head : end - tail], last - tail, tail)


def _shared(is_same: Callable[[int], bool], most: int) -> int:
    """The greatest size up to `most` for which it holds; it holds for all smaller ones, too."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if is_same(middle):
            least = middle
        else:
            most = middle - 1
    return least


def strip_passthrough(raw: bytes) -> bytes:
    """An item without the harness's metadata, which is its last member (FORMAT 18.0, rule 6)."""
    at = raw.rfind(_PASSTHROUGH)
    if at < 0 or not raw.endswith(b"}}"):
        return raw
    try:
        orjson.loads(raw[at + len(_PASSTHROUGH) : -1])
    except orjson.JSONDecodeError:
        return raw
    return raw[:at] + b"}"


def aborted(call: dict[str, Any]) -> dict[str, Any] | None:
    """The output that Codex makes for a call without one; None for calls that get none."""
    kind, call_id = call.get("type"), call.get("call_id")
    prefix = {
        "function_call": "fco",
        "local_shell_call": "fco",
        "custom_tool_call": "ctco",
        "tool_search_call": "tso",
    }.get(str(kind))
    if prefix is None or not isinstance(call_id, str):
        return None
    kinds = {"fco": "function_call_output", "ctco": "custom_tool_call_output", "tso": "tool_search_output"}
    output: dict[str, Any] = {"type": kinds[prefix]}
    item_id = call.get("id")
    if isinstance(item_id, str) and item_id:
        output["id"] = f"{prefix}_{uuid.uuid5(_NAMESPACE, f'{prefix}:{item_id}')}"
    output["call_id"] = call_id
    if prefix == "tso":
        return output | {"status": "completed", "execution": "client", "tools": []}
    return output | {"output": "aborted"}


def shorten(document: dict[str, Any], budget: int, long: LongItem | None = None) -> dict[str, Any]:
    """A tool output within its budget of tokens (FORMAT 7.6); `long` when it is the document of a long item."""
    output = document.get("output")
    if isinstance(output, str):
        if _size(output, long) <= 4 * budget:
            return document
        return document | {"output": _without_middle(output, budget, long)}
    if not isinstance(output, list):
        return document
    parts: list[Any] = []
    omitted = 0
    left = budget
    for part in output:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "input_text" else None
        if not isinstance(text, str):
            parts.append(part)
            continue
        if left <= 0:
            omitted += 1
        elif (cost := tokens(_size(text, long))) <= left:
            parts.append(part)
            left -= cost
        else:
            parts.append(part | {"text": _without_middle(text, left, long)})
            left = 0
    if omitted:
        parts.append({"type": "input_text", "text": f"[omitted {omitted} text items ...]"})
    return document | {"output": parts}


def _size(text: str, long: LongItem | None) -> int:
    return len(text.encode("utf-8")) if long is None else long.length(text)


def _without_middle(text: str, budget: int, long: LongItem | None) -> str:
    if long is None:
        return "".join(split_middle(text.encode("utf-8"), budget))
    half = 2 * budget
    return "".join(split_middle(long.head(text, half), budget, long.length(text), long.tail(text, half)))


def communication_item(line: bytes) -> bytes:
    """The model-visible form of an inter-agent communication record (FORMAT 3.5)."""
    payload = orjson.loads(line)["payload"]
    encrypted = payload.get("encrypted_content")
    if encrypted is None:
        content = [{"type": "input_text", "text": payload["content"]}]
    else:
        header = (
            f"Message Type: {'NEW_TASK' if payload['trigger_turn'] else 'MESSAGE'}\n"
            f"Task name: {payload['recipient']}\nSender: {payload['author']}\nPayload:\n"
        )
        content = [
            {"type": "input_text", "text": header},
            {"type": "encrypted_content", "encrypted_content": encrypted},
        ]
    item: dict[str, Any] = {"type": "agent_message"}
    if is_sent_id(payload.get("id")):
        item["id"] = payload["id"]
    return orjson.dumps(item | {"author": payload["author"], "recipient": payload["recipient"], "content": content})
