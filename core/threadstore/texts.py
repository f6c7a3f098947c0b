"""What was said in a thread, as text to be searched: messages, reasoning, calls of tools and what these gave.

A text is that of one record. Long ones keep their beginning: what is searched for in the output of a build is an error
message of its first pages, and all of it stays in the log, whose place is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import orjson

from threadstore.boundaries import is_visible_user
from threadstore.lines import forward
from threadstore.opened import OpenLineage, first_dialect
from threadstore.records import Record, is_blank

Json = dict[str, Any]
#: Characters by kind of text.
LONGEST = dict.fromkeys(("user", "assistant", "summary"), 1 << 16) | dict.fromkeys(
    ("reasoning", "call", "output"), 1 << 12
)

_CALLS = frozenset(("function_call", "custom_tool_call", "local_shell_call", "tool_search_call"))
_OUTPUTS = frozenset(("function_call_output", "custom_tool_call_output", "tool_search_output"))


class Text(NamedTuple):
    """A text: the file and the byte offset of its record, who said it, the tool it is about, and what it says (at most
    `LONGEST` characters of its kind). `effective` is False for what was dropped by a revert.
    """

    file: str
    offset: int
    kind: str
    tool: str | None
    text: str
    effective: bool = True


def texts_of(lineage: OpenLineage, thread_id: str, start: tuple[int, int]) -> Iterator[Text]:
    """The texts of a lineage from a place (segment, offset) on that lie in rollouts of the thread itself."""
    for number in range(start[0], len(lineage.files)):
        file = lineage.files[number]
        if file.rollout.thread_id != thread_id:
            continue
        dialect = first_dialect(file.log)
        for line in forward(file.log, start[1] if number == start[0] else 0, lineage.end_of(number)):
            record = None if is_blank(line) else lineage.decode(line, dialect)
            text = text_of(record, file.rollout.path) if isinstance(record, Record) else None
            if text is not None:
                yield text


def text_of(record: Record, file: str) -> Text | None:
    """What a record says, if it says anything that people look for."""
    tool: str | None
    text: object
    kind, tool, text = "summary", None, record.payload.get("message")
    if record.type == "response_item":
        kind, tool, text = _of_item(record.payload)
    elif record.type != "compacted":
        return None
    if not isinstance(text, str) or not text.strip():
        return None
    return Text(file, record.line.start, kind, tool, _clean(text[: LONGEST[kind]]))


def _clean(text: str) -> str:
    """SQLite ends a text at a NUL, and stores no lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _of_item(item: Json) -> tuple[str, str | None, object]:
    """Kind, tool and text of an item; the text is None where there is nothing to search."""
    kind = item.get("type")
    if kind == "message":
        role = item.get("role")
        if role == "assistant" or (role == "user" and is_visible_user(item)):
            return str(role), None, _joined(item.get("content"))
    elif kind == "reasoning":
        return "reasoning", None, _joined(item.get("summary"))
    elif kind in _CALLS:
        return "call", _name(item), _plain(item.get("arguments") or item.get("input") or item.get("action"))
    elif kind in _OUTPUTS:
        return "output", None, _plain(item.get("output") or item.get("tools"))
    return "output", None, None


def _name(item: Json) -> str | None:
    name = item.get("name")
    if isinstance(name, str):
        return name
    return {"local_shell_call": "local_shell", "tool_search_call": "tool_search"}.get(str(item.get("type")))


def _joined(parts: object) -> str:
    """The texts of a list of parts, one after the other."""
    if not isinstance(parts, list):
        return ""
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _plain(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and (text := _joined(value)):
        return text
    return orjson.dumps(value).decode()


class Hearer(Protocol):
    """Who wants to know what was said in a thread, and has heard some of it before: `known` is what `end` gave then."""

    known: bytes | None

    def begin(self, *, goes_on: bool) -> None:
        """What follows comes after what was heard before, or else replaces it."""

    def take(self, text: Text) -> None:
        """The next text."""

    def end(self, passed: bytes | None) -> None:
        """That was all. None for a small log, which is read anew."""


class Listener:
    """Tells a hearer what was said in the records of a scan, if that begins at the place `start`."""

    def __init__(self, thread_id: str, lineage: OpenLineage, hearer: Hearer, start: tuple[int, int]) -> None:
        self.start = start
        self.has_heard = False
        self._hearer = hearer
        self._paths = [
            file.rollout.path if file.rollout.thread_id == thread_id else None for file in lineage.files
        ]  # of the thread's own rollouts

    def begin(self, place: tuple[int, int]) -> None:
        """A scan begins at that place."""
        self.has_heard = place == self.start

    def record(self, record: Record, number: int) -> None:
        """A record of the file of that number."""
        path = self._paths[number]
        text = text_of(record, path) if self.has_heard and path is not None else None
        if text is not None:
            self._hearer.take(text)
