"""What the next request would carry as history (FORMAT 7.6, 8.2).

Between the history and the model Codex does a little: a call without result gets the output `aborted` right after it,
results without call are
left out, long tool outputs lose their middle, the harness's own metadata is cut off, and items are encoded anew. For
what Codex itself wrote the last
step changes nothing, so an item is still a slice of the log; only items that would be sent differently are rendered.

The base instructions, which Codex sends first, are settings and not history; they are not part of this.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import orjson

from threadstore.calls import match_calls
from threadstore.extents import ExtentsBuilder
from threadstore.history import MADE, Flag, History, Item, split_middle, tokens
from threadstore.items import is_sent_id
from threadstore.records import loads
from threadstore.wire import sent

DEFAULT_BUDGET = 12_000  # tokens of a tool output where the record doesn't say (seen with gpt-5.5)
LARGEST_RENDERED = 64 << 20  # bytes; a longer item is passed on as it lies in the log
_PASSTHROUGH = b',"internal_chat_message_metadata_passthrough":'
_NAMESPACE = uuid.UUID("90d38d3e-6a5b-4d52-bfe2-2f1e634bfac4")

Fetch = Callable[[Item], bytes]


def effective(history: History, builder: ExtentsBuilder, sources: list[int], fetch: Fetch) -> None:
    """The items of the history, byte for byte as they lie in the log, one a line."""
    for item in history:
        if item.segment == MADE:
            builder.literal(history.made[item.offset] + b"\n")
        elif item.flags & Flag.REWRITE:
            builder.literal(communication_item(fetch(item)) + b"\n")
        else:
            builder.slice(sources[item.segment], item.offset, item.length)


def model_input(history: History, builder: ExtentsBuilder, sources: list[int], fetch: Fetch) -> None:
    """The items as they are sent."""
    state = match_calls(history)
    pending = set(state.pending)
    for at, item in enumerate(history):
        if at in state.orphans:
            continue
        _add(history, item, builder, sources, fetch)
        if at in pending:
            output = aborted(_load(history, item, fetch))
            if output is not None:
                builder.literal(orjson.dumps(output) + b"\n")


def _load(history: History, item: Item, fetch: Fetch) -> dict[str, Any]:
    document: dict[str, Any] = loads(history.made[item.offset] if item.segment == MADE else fetch(item))
    return document


def _add(history: History, item: Item, builder: ExtentsBuilder, sources: list[int], fetch: Fetch) -> None:
    if item.segment == MADE:
        builder.literal(history.made[item.offset] + b"\n")
        return
    if item.length > LARGEST_RENDERED:
        builder.slice(sources[item.segment], item.offset, item.length)
        return
    raw = fetch(item)
    if item.flags & Flag.REWRITE:
        builder.literal(communication_item(raw) + b"\n")
        return
    stored = strip_passthrough(raw) if item.flags & Flag.PASSTHROUGH else raw
    document = loads(raw)
    if item.flags & Flag.LONG_OUTPUT:
        shortened = shorten(document, history.budgets.get((item.segment, item.offset), DEFAULT_BUDGET))
        wanted = sent(document, raw) if shortened is document else sent(shortened, orjson.dumps(shortened))
    else:
        wanted = sent(document, raw)
    if wanted is None:
        return
    if wanted == stored:
        tail = b"\n" if stored is raw else b"}\n"
        builder.slice(sources[item.segment], item.offset, len(stored) - (0 if stored is raw else 1), suffix=tail)
    else:
        builder.literal(wanted + b"\n")


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


def shorten(document: dict[str, Any], budget: int) -> dict[str, Any]:
    """A tool output within its budget of tokens (FORMAT 7.6)."""
    output = document.get("output")
    if isinstance(output, str):
        data = output.encode("utf-8")
        return document if len(data) <= 4 * budget else document | {"output": "".join(split_middle(data, budget))}
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
        data = text.encode("utf-8")
        if left <= 0:
            omitted += 1
        elif tokens(len(data)) <= left:
            parts.append(part)
            left -= tokens(len(data))
        else:
            parts.append(part | {"text": "".join(split_middle(data, left))})
            left = 0
    if omitted:
        parts.append({"type": "input_text", "text": f"[omitted {omitted} text items ...]"})
    return document | {"output": parts}


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
