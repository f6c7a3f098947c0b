"""The model's working memory as columns of numbers (FORMAT 7.3, 8.1, 9.2).

An item of the history is a slice of a log: which segment, where, how long. Beside that a few flags are kept, enough
to roll back turns, to find calls without results and to cut what is never sent. The texts stay in the log, so a
history of a million items is some thirty megabytes whatever their size.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from threadstore import boundaries
from threadstore.longitems import LongItem, is_long
from threadstore.records import Record, loads

Fetch = Callable[["Item"], bytes]  # the bytes of an item
Look = Callable[["Item"], LongItem]  # an item of many megabytes

MADE = 0xFFFF  # segment number of an item that was made here and lies in no log
SUMMARY_BUDGET = 20_000  # tokens of user messages that survive a compaction without replacement history (FORMAT 9.2)


class Flag:
    """What replay needs to know about an item without its text: bits of a number. (Members of an `IntFlag` take
    microseconds to be put together, and every item of a log is described.)
    """

    BOUNDARY = 1
    CONTEXT_USER = 2
    CONTEXT_DEVELOPER = 4
    VISIBLE_USER = 8
    CALL = 16
    OUTPUT = 32
    FUNCTION = 64
    CUSTOM = 128
    SEARCH = 256
    PASSTHROUGH = 512
    LONG_OUTPUT = 1024
    REWRITE = 2048
    UNKNOWN = 4096


class Item(NamedTuple):
    """One item: where it lies (segment number, offset and length in decoded bytes), what it is, a hash of its call
    id.
    """

    segment: int
    offset: int
    length: int
    flags: int
    call: int


class Shared(NamedTuple):
    """What is sent of an item whose two ends are those of the log: `head` bytes from its beginning, `middle`, and from
    the place `tail` in it `length` bytes, and its last brace.
    """

    head: int
    middle: bytes
    tail: int
    length: int


_CALLS = {
    "function_call": Flag.CALL | Flag.FUNCTION,
    "local_shell_call": Flag.CALL | Flag.FUNCTION,
    "custom_tool_call": Flag.CALL | Flag.CUSTOM,
    "tool_search_call": Flag.CALL | Flag.SEARCH,
    "function_call_output": Flag.OUTPUT | Flag.FUNCTION,
    "custom_tool_call_output": Flag.OUTPUT | Flag.CUSTOM,
    "tool_search_output": Flag.OUTPUT | Flag.SEARCH,
}


def describe(item: dict[str, Any], length: int) -> tuple[int, int]:
    """Flags (`Flag`) and call hash of a decoded item of `length` bytes. The hash is 0 for an item without call id."""
    kind = item.get("type")
    flags = call = 0
    if kind in ("message", "agent_message"):
        if boundaries.is_boundary(item):
            flags |= Flag.BOUNDARY
            if kind == "message" and item.get("role") == "user":
                flags |= Flag.VISIBLE_USER
        elif boundaries.is_contextual_user(item):
            flags |= Flag.CONTEXT_USER
        elif boundaries.is_contextual_developer(item):
            flags |= Flag.CONTEXT_DEVELOPER
    elif kind in _CALLS:
        flags |= _CALLS[kind]
        call_id = item.get("call_id")
        if isinstance(call_id, str) and not (flags & Flag.SEARCH and item.get("execution") == "server"):
            call = call_hash(flags, call_id)
        if flags & Flag.OUTPUT and not flags & Flag.SEARCH and length > 4 * 1000:
            flags |= Flag.LONG_OUTPUT
    if "internal_chat_message_metadata_passthrough" in item:
        flags |= Flag.PASSTHROUGH
    return flags, call


def call_hash(flags: int, call_id: str) -> int:
    """A number for a call id within its family of tools; never 0."""
    family = b"f" if flags & Flag.FUNCTION else b"c" if flags & Flag.CUSTOM else b"s"
    digest = blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=8, key=family).digest()
    return int.from_bytes(digest) or 1


class History:
    """A growing list of items.

    Invariant: the five columns have one entry an item; an item of segment `MADE` has its number in `made` as
    offset. Items are only ever added at the end, cut off at the end, or replaced all at once, so what was found out
    about the first ones (`verbatim`, `shortened`) holds.
    """

    __slots__ = ("budgets", "calls", "flags", "lengths", "made", "offsets", "segments", "shortened", "verbatim")

    def __init__(self) -> None:
        self.segments = array("H")
        self.offsets = array("Q")
        self.lengths = array("Q")
        self.flags = array("I")
        self.calls = array("Q")
        self.verbatim = array("Q")  # bytes of the first items that are sent as they lie; 0: it must be looked
        self.shortened: dict[int, Shared] = {}  # by number: items that are sent with other bytes in their middle
        self.made: list[bytes] = []
        self.budgets: dict[tuple[int, int], int] = {}  # (segment, offset) -> tokens that an output may have

    def __len__(self) -> int:
        return len(self.segments)

    def __iter__(self) -> Iterator[Item]:
        return map(Item, self.segments, self.offsets, self.lengths, self.flags, self.calls)

    def __getitem__(self, at: int) -> Item:
        return Item(self.segments[at], self.offsets[at], self.lengths[at], self.flags[at], self.calls[at])

    def append(self, item: Item) -> None:
        """Add one item at the end."""
        self.segments.append(item.segment)
        self.offsets.append(item.offset)
        self.lengths.append(item.length)
        self.flags.append(item.flags)
        self.calls.append(item.call)

    def make(self, document: dict[str, Any]) -> None:
        """Add an item that lies in no log."""
        data = orjson.dumps(document)
        flags, call = describe(document, len(data))
        self.append(Item(MADE, len(self.made), len(data), flags, call))
        self.made.append(data)

    def cut(self, count: int) -> None:
        """Keep the first `count` items."""
        for column in (self.segments, self.offsets, self.lengths, self.flags, self.calls, self.verbatim):
            del column[count:]
        self.shortened = {at: shared for at, shared in self.shortened.items() if at < count}

    def drop_turns(self, count: int) -> None:
        """Undo the last `count` user turns (FORMAT 8.1, steps 1 to 4)."""
        if count == 0:
            return
        starts = [at for at, flags in enumerate(self.flags) if flags & Flag.BOUNDARY]
        if not starts:
            return
        cut = starts[0] if count >= len(starts) else starts[-count]
        while cut > starts[0] and self.flags[cut - 1] & (Flag.CONTEXT_USER | Flag.CONTEXT_DEVELOPER):
            cut -= 1
        self.cut(cut)

    def summarise(self, message: str, fetch: Fetch, look: Look | None = None) -> None:
        """Replace everything by the newest user messages within the budget and a summary (FORMAT 7.3, 9.2)."""
        kept: list[Item | dict[str, Any]] = []
        left = SUMMARY_BUDGET
        for item in reversed([item for item in self if item.flags & Flag.VISIBLE_USER]):
            if left <= 0:
                break
            if look is not None and item.segment != MADE and is_long(item.length):
                survivor, cost = _long_survivor(item, look(item), left)
            else:
                raw = self.made[item.offset] if item.segment == MADE else fetch(item)
                survivor, cost = _survivor(item, loads(raw), left)
            kept.append(survivor)
            left -= cost
        made = self.made
        self.cut(0)
        for survivor in reversed(kept):
            if isinstance(survivor, Item):
                self.append(survivor)
            else:
                self.make(survivor)
        self.made = made
        text = message or "(no summary available)"
        self.make({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})


def tokens(size: int) -> int:
    """Tokens as Codex estimates them from bytes of UTF-8."""
    return (size + 3) // 4


def _survivor(item: Item, message: dict[str, Any], left: int) -> tuple[Item | dict[str, Any], int]:
    """What is kept of one user message when `left` tokens remain, and what it costs."""
    parts = message["content"]
    text = boundaries.user_text(message).encode("utf-8")
    cost = tokens(len(text))
    only_text = all(part.get("type") == "input_text" for part in parts)
    if cost <= left:
        if only_text:
            return item, cost
        return message | {"content": [part for part in parts if part.get("type") == "input_text"]}, cost
    head, note, tail = split_middle(text, left)
    texts = [part for part in (head, note, tail) if part]
    return message | {"content": [{"type": "input_text", "text": part} for part in texts]}, left


def _long_survivor(item: Item, long: LongItem, left: int) -> tuple[Item | dict[str, Any], int]:
    """The same of a message of many megabytes, which are images or a text that is cut."""
    message = long.document()
    text = boundaries.user_text(message)
    size = long.length(text)
    if tokens(size) > left:
        head, note, tail = split_middle(long.head(text, 2 * left), left, size, long.tail(text, 2 * left))
        texts = [part for part in (head, note, tail) if part]
        return message | {"content": [{"type": "input_text", "text": part} for part in texts]}, left
    if all(part.get("type") == "input_text" for part in message["content"]):
        return item, tokens(size)
    parts = [part for part in message["content"] if part.get("type") == "input_text"]
    return message | {"content": [part | {"text": long.plain(part["text"], size)} for part in parts]}, tokens(size)


def split_middle(text: bytes, budget: int, size: int | None = None, end: bytes | None = None) -> tuple[str, str, str]:
    """Head, note and tail of a text of more than `budget` tokens (FORMAT 7.6).

    Of a text that is not in memory, `text` is the beginning, `size` the number of bytes and `end` the end.
    """
    half = 2 * budget
    head = text[:half].decode("utf-8", "ignore")
    size = len(text) if size is None else size
    end = text if end is None else end
    start = len(end) - half
    while start < len(end) and end[start] & 0xC0 == 0x80:
        start += 1
    return head, f"…{tokens(size - 4 * budget)} tokens truncated…", end[start:].decode("utf-8")


def history_item(record: Record, segment: int) -> tuple[Item, int | None] | None:
    """What a record adds to the history, with the tokens that a long output may have; None when it adds nothing.

    An inter-agent communication is recorded in its model-visible form, which is made from the whole line.
    """
    line = record.line
    if record.type == "inter_agent_communication":
        return Item(segment, line.start, line.end - line.start, Flag.REWRITE | Flag.BOUNDARY, 0), None
    if record.type != "response_item" or not is_recorded(record):
        return None
    offset, length = record.file_span(*record.payload_span())
    flags, call = describe(record.payload, length)
    budget = _budget(record) if flags & Flag.LONG_OUTPUT else None
    return Item(segment, offset, length, flags, call), budget


def is_recorded(record: Record) -> bool:
    """False for response items that are never history (FORMAT 7.6)."""
    kind = record.kind
    if kind == "message":
        return record.payload.get("role") != "system" and not _is_delivery(record)
    if kind == "configuration_update":
        return bool((record.metadata or {}).get("harness_authored_configuration"))
    return kind not in ("compaction_trigger", "ghost_snapshot")


def _budget(record: Record) -> int | None:
    """Tokens that a tool output may have, where the record says so."""
    budget = (record.metadata or {}).get("fallback_token_limit_override")
    return budget if isinstance(budget, int) and budget >= 0 else None


def _is_delivery(record: Record) -> bool:
    """True for an assistant message that only notes a delivery and is not history (FORMAT 3.4.2, last paragraph)."""
    metadata = record.metadata or {}
    mark = metadata.get("delivered_assistant_message")
    if mark is None or record.payload.get("role") != "assistant":
        return False
    content = record.payload.get("content")
    passthrough = record.payload.get("internal_chat_message_metadata_passthrough")
    return (
        isinstance(mark, str)
        and (
            mark == "codex:code-mode-delivery:v1:complete" or mark.startswith("codex:code-mode-delivery:v1:incomplete:")
        )
        and isinstance(content, list)
        and [part.get("type") for part in content] == ["output_text"]
        and isinstance(passthrough, dict)
        and isinstance(passthrough.get("turn_id"), str)
        and "user_input_order" in metadata
    )
