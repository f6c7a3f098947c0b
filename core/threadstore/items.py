"""The response items: their fields, which values Codex 0.171.0 accepts, and how it sends them (FORMAT 3.4, 8.2).

One table serves both questions. Codex decodes an item into a struct and encodes that struct again, so a field has a
type that the reader checks, a place in the order of sending, and a rule for null and absent. All of it was measured
with the real Codex on some 1,400 variants (`tests/core/vectors`). Not modelled: structs written as positional
arrays, which the reader accepts, too, and nobody writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

Check = Callable[[Any], bool]


class Sent(Enum):
    """What becomes of a field when the item is sent."""

    NEED = "required; always sent"
    MAYBE = "sent unless null or absent"
    NULL = "always sent, null when absent"
    HIDDEN = "checked, but not sent"


class Field(NamedTuple):
    """One field of a struct; `inner` describes a value that is a struct or a list of structs."""

    name: str
    check: Check
    sent: Sent = Sent.MAYBE
    inner: Shape | None = None


class Struct:
    """Fields in the order of sending, and names of which at least one must be there."""

    __slots__ = ("_checks", "_either", "_needed", "fields")

    def __init__(self, fields: tuple[Field, ...], either: tuple[str, ...] = ()) -> None:
        self.fields = fields
        self._either = either
        self._checks = {field.name: field.check for field in fields}
        self._needed = tuple(field.name for field in fields if field.sent is Sent.NEED)

    def accepts(self, value: Any) -> bool:
        """True for an object whose known fields are all of the right type."""
        return isinstance(value, dict) and self.fault(value) is None

    def fault(self, value: Mapping[str, Any]) -> str | None:
        """The name of a field that is missing or of a wrong type."""
        checks = self._checks
        for name in self._needed:
            if value.get(name) is None and not (name in value and checks[name](None)):
                return name
        for name, given in value.items():
            if given is not None and name in checks and not checks[name](given):
                return name
        if self._either and all(value.get(name) is None for name in self._either):
            return self._either[0]
        return None


class Tagged(NamedTuple):
    """Structs told apart by `type`. `fallback` is the tag that an unknown one gets; None: it is not accepted."""

    structs: Mapping[str, Struct]
    fallback: str | None = None

    def accepts(self, value: Any) -> bool:
        """True for an object of a known tag that its struct accepts."""
        if not isinstance(value, dict):
            return False
        tag = value.get("type")
        struct = self.structs.get(tag) if isinstance(tag, str) else None
        return struct.fault(value) is None if struct is not None else self.fallback is not None and isinstance(tag, str)


class ListOf(NamedTuple):
    """A list of tagged structs."""

    element: Tagged

    def accepts(self, value: Any) -> bool:
        """True for a list of which every element is accepted."""
        return isinstance(value, list) and all(map(self.element.accepts, value))


Shape = Struct | Tagged | ListOf


def is_text(value: Any) -> bool:
    """A string."""
    return isinstance(value, str)


def is_list(value: Any) -> bool:
    """A list of anything."""
    return isinstance(value, list)


def is_texts(value: Any) -> bool:
    """A list of strings."""
    return isinstance(value, list) and all(isinstance(element, str) for element in value)


def is_flag(value: Any) -> bool:
    """A boolean."""
    return isinstance(value, bool)


def is_number(value: Any) -> bool:
    """A number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """A u64."""
    return type(value) is int and 0 <= value < 1 << 64


def is_integer(value: Any) -> bool:
    """An i64."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def is_anything(_value: Any) -> bool:
    """Any JSON value."""
    return True


def one_of(*names: str) -> Check:
    """One of some words."""
    allowed = frozenset(names)
    return lambda value: isinstance(value, str) and value in allowed


def _text(name: str, sent: Sent = Sent.NEED) -> Field:
    return Field(name, is_text, sent)


def _shape(name: str, shape: Shape, sent: Sent = Sent.NEED) -> Field:
    return Field(name, shape.accepts, sent, shape)


def _is_texts_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(inner, str) for inner in value.values())


def _is_passthrough(value: Any) -> bool:
    """The harness's metadata of an item: an object whose known members are of the right type."""
    if value == []:
        return True
    if not isinstance(value, dict):
        return isinstance(value, list) and len(value) == 1 and (value[0] is None or isinstance(value[0], str))
    turn_id, created = value.get("turn_id"), value.get("create_time")
    return (turn_id is None or isinstance(turn_id, str)) and (created is None or is_number(created))


_DETAIL = Field("detail", one_of("auto", "low", "high", "original"))
INPUT_TEXT = Struct((_text("text"),))
_IMAGE = Struct((_text("image_url", Sent.MAYBE), _text("file_id", Sent.MAYBE), _DETAIL), ("image_url", "file_id"))
_AUDIO = Struct((_text("audio_url", Sent.MAYBE), _text("file_id", Sent.MAYBE)), ("audio_url", "file_id"))
_ENCRYPTED = Struct((_text("encrypted_content"),))


def _parts(*, output_text: bool, media: bool, encrypted: bool) -> ListOf:
    structs = {"input_text": INPUT_TEXT}
    if output_text:
        structs["output_text"] = Struct((_text("text"), Field("annotations", is_list), Field("logprobs", is_list)))
    if media:
        structs |= {"input_image": _IMAGE, "input_audio": _AUDIO}
    if encrypted:
        structs["encrypted_content"] = _ENCRYPTED
    return ListOf(Tagged(structs))


_MESSAGE_PARTS = _parts(output_text=True, media=True, encrypted=False)
_AGENT_PARTS = _parts(output_text=False, media=False, encrypted=True)
OUTPUT_PARTS = _parts(output_text=False, media=True, encrypted=True)


def _is_output(value: Any) -> bool:
    """A tool's result: text, or a list of parts. The object form of 2025 is not accepted."""
    return isinstance(value, str) or OUTPUT_PARTS.accepts(value)


_ID = _text("id", Sent.MAYBE)
_STATUS = _text("status", Sent.MAYBE)
_CALL_ID = _text("call_id")
_NAMESPACE = _text("namespace", Sent.MAYBE)
_SECRET = _text("encrypted_content", Sent.HIDDEN)
PASSTHROUGH = "internal_chat_message_metadata_passthrough"
_PASSTHROUGH = Field(PASSTHROUGH, _is_passthrough, Sent.HIDDEN)
_OUTPUT = Field("output", _is_output, Sent.NEED, OUTPUT_PARTS)

_SHELL_ACTION = Tagged(
    {
        "exec": Struct(
            (
                Field("command", is_texts, Sent.NEED),
                Field("timeout_ms", is_count, Sent.NULL),
                _text("working_directory", Sent.NULL),
                Field("env", _is_texts_by_name, Sent.NULL),
                _text("user", Sent.NULL),
            )
        )
    }
)
_WEB_ACTION = Tagged(
    {
        "search": Struct((_text("query", Sent.MAYBE), Field("queries", is_texts))),
        "open_page": Struct((_text("url", Sent.MAYBE),)),
        "find_in_page": Struct((_text("url", Sent.MAYBE), _text("pattern", Sent.MAYBE))),
    },
    fallback="other",
)
_SUMMARY = ListOf(Tagged({"summary_text": INPUT_TEXT}))
_REASONING = ListOf(Tagged({"reasoning_text": INPUT_TEXT, "text": INPUT_TEXT}))
_EFFORT = Struct((_text("effort"),))


def _item(*fields: Field) -> Struct:
    return Struct((*fields, _PASSTHROUGH))


ITEMS: dict[str, Struct] = {
    "message": _item(
        _STATUS,
        _ID,
        _text("role"),
        _shape("content", _MESSAGE_PARTS),
        Field("phase", one_of("commentary", "partial_answer", "final_answer")),
        _SECRET,
    ),
    "agent_message": _item(_ID, _text("author"), _text("recipient"), _shape("content", _AGENT_PARTS)),
    "reasoning": _item(
        _ID,
        _shape("summary", _SUMMARY),
        _shape("content", _REASONING, Sent.NULL),
        _text("encrypted_content", Sent.NULL),
    ),
    "local_shell_call": _item(
        _ID,
        _text("call_id", Sent.NULL),
        Field("status", one_of("completed", "in_progress", "incomplete"), Sent.NEED),
        _shape("action", _SHELL_ACTION),
        _SECRET,
    ),
    "function_call": _item(
        _STATUS,
        _ID,
        _text("name"),
        _NAMESPACE,
        _text("arguments"),
        _CALL_ID,
        Field("encrypted_function_args", is_texts, Sent.HIDDEN),
        _SECRET,
    ),
    "function_call_output": _item(_ID, _text("call_id", Sent.MAYBE), _text("name", Sent.MAYBE), _NAMESPACE, _OUTPUT),
    "custom_tool_call": _item(_ID, _STATUS, _CALL_ID, _text("name"), _NAMESPACE, _text("input"), _SECRET),
    "custom_tool_call_output": _item(_ID, _CALL_ID, _text("name", Sent.MAYBE), _OUTPUT),
    "tool_search_call": _item(
        _ID,
        _text("call_id", Sent.NULL),
        _STATUS,
        _text("execution"),
        Field("arguments", is_anything, Sent.NEED),
        _SECRET,
    ),
    "tool_search_output": _item(
        _ID, _text("call_id", Sent.NULL), _text("status"), _text("execution"), Field("tools", is_list, Sent.NEED)
    ),
    "web_search_call": _item(_ID, _STATUS, _shape("action", _WEB_ACTION, Sent.MAYBE), _SECRET),
    "image_generation_call": _item(_ID, _text("status"), _text("revised_prompt", Sent.MAYBE), _text("result"), _SECRET),
    "compaction": _item(_ID, _text("encrypted_content")),
    "context_compaction": _item(_ID, _text("encrypted_content", Sent.MAYBE)),
    "configuration_update": Struct((_shape("reasoning", _EFFORT),)),
    "additional_tools": Struct((_ID, _text("role"), Field("tools", is_list, Sent.NEED))),
    "compaction_trigger": Struct(()),
}
ITEMS["compaction_summary"] = ITEMS["compaction"]

#: Items that are known and yet never lines of a history.
NEVER_RECORDED = frozenset(("compaction_trigger", "ghost_snapshot", "other"))


def is_sent_id(value: object) -> bool:
    """Ids of another form than `<kind>_<rest>` are kept back."""
    if not isinstance(value, str):
        return False
    kind, separator, rest = value.partition("_")
    return bool(kind and separator and rest)
