"""Which decoded lines Codex 0.171.0 accepts as records (FORMAT 3; measured with the real reader,
`tests/core/vectors`).

A record that lacks a required field, or has one of another type, is passed over by Codex as a whole, so it must not
count here either. Kinds that Codex does not know are passed over as well, but are no damage: a newer or older
release wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from threadstore.items import (
    ITEMS,
    NEVER_RECORDED,
    Check,
    is_count,
    is_flag,
    is_integer,
    is_list,
    is_text,
    one_of,
)

DEEPEST = 127  # containers that may be open at once


class Fault(NamedTuple):
    """Why a record is not accepted; `code` is a problem code, or `unknown` for a kind that is not known."""

    code: str
    reason: str


class Rule:
    """Fields of a payload: those that must be there, those that may be null or absent, those that may be absent but
    not null.
    """

    __slots__ = ("_nullable", "_others", "_required")

    def __init__(
        self,
        required: Mapping[str, Check] = MappingProxyType({}),
        optional: Mapping[str, Check] = MappingProxyType({}),
        absent_or: Mapping[str, Check] = MappingProxyType({}),
    ) -> None:
        self._required = tuple(required.items())
        self._others = {**optional, **absent_or}
        self._nullable = frozenset(optional)

    def fault(self, payload: Mapping[str, Any]) -> str | None:
        """How a payload goes against the rule, in words."""
        for key, check in self._required:
            if not check(payload.get(key)):
                return f"without a proper {key!r}"
        others = self._others
        if others:
            for key, value in payload.items():
                if key in others and not ((value is None and key in self._nullable) or others[key](value)):
                    return f"with a wrong {key!r}"
        return None


_UUID = re.compile(
    r"(?:urn:uuid:)?\{?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\}?|[0-9a-f]{32}", re.IGNORECASE
)
_AGENT_PATH = re.compile(r"/morpheus|/root(?:/(?!root(?:/|\Z))[a-z0-9_]+)*")


_LONGEST_UUID = 47  # characters


def is_uuid(value: Any) -> bool:
    """A UUID in any of the spellings that the reader takes."""
    return isinstance(value, str) and len(value) <= _LONGEST_UUID and _spells_uuid(value)


@lru_cache(1 << 10)  # every record of a turn names the same ones
def _spells_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def is_agent_path(value: Any) -> bool:
    """`/root`, `/morpheus`, or a path of names below `/root`."""
    return isinstance(value, str) and _AGENT_PATH.fullmatch(value) is not None


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _count32(value: Any) -> bool:
    return is_count(value) and value < 1 << 32


def _agent_paths(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_agent_path, value))


def _texts_or_nulls(value: Any) -> bool:
    return isinstance(value, list) and all(element is None or isinstance(element, str) for element in value)


def _error(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("message"), str)


def _cwd(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/")


_USAGE_FIELDS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens", "total_tokens")


def _usage(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    for name in _USAGE_FIELDS:
        count = value.get(name)
        if type(count) is not int or not -(1 << 63) <= count < 1 << 63:  # `is_integer`, asked more often than all else
            return False
    return True


def _info(value: Any) -> bool:
    return isinstance(value, dict) and all(_usage(value.get(n)) for n in ("total_token_usage", "last_token_usage"))


def _item_completed(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _tagged(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _filled(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)


def _settings(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("model"), str) and isinstance(value.get("cwd"), str)


def _approval(value: Any) -> bool:
    return isinstance(value, dict) or value in ("untrusted", "on-failure", "on-request", "never")


_TIMES = {"started_at": is_integer, "completed_at": is_integer, "duration_ms": is_integer}
_STARTED = Rule(
    {"turn_id": is_text},
    {"root_turn_id": is_text, "started_at": is_integer, "model_context_window": is_integer},
    {"collaboration_mode_kind": one_of("plan", "code", "custom", "default", "execute", "pair_programming")},
)
_COMPLETE = Rule(
    {"turn_id": is_text},
    {"last_agent_message": is_text, "error": _error, "time_to_first_token_ms": is_integer, **_TIMES},
)
_EVENTS: dict[str, Rule] = {
    "task_started": _STARTED,
    "turn_started": _STARTED,
    "task_complete": _COMPLETE,
    "turn_complete": _COMPLETE,
    "turn_aborted": Rule(
        {"reason": one_of("interrupted", "replaced", "review_ended", "budget_limited")}, {"turn_id": is_text, **_TIMES}
    ),
    "thread_rolled_back": Rule({"num_turns": _count32}),
    "token_count": Rule({}, {"info": _info, "rate_limits": _object}),
    "user_message": Rule(
        {"message": is_text},
        {"images": _texts_or_nulls, "audio": _texts_or_nulls},
        {"local_images": is_list, "text_elements": is_list},
    ),
    "agent_message": Rule({"message": is_text}, {"phase": one_of("commentary", "partial_answer", "final_answer")}),
    "agent_reasoning": Rule({"text": is_text}),
    "agent_reasoning_raw_content": Rule({"text": is_text}),
    "item_completed": Rule(
        {"thread_id": is_uuid, "turn_id": is_text, "item": _item_completed},
        {"started_at_ms": is_integer},
        {"completed_at_ms": is_integer},
    ),
    "thread_settings_applied": Rule({"thread_settings": _settings}, {"thread_id": is_uuid}),
    "thread_goal_updated": Rule(),
    "patch_apply_end": Rule(
        {"call_id": is_text, "stdout": is_text, "stderr": is_text, "success": is_flag},
        {},
        {"turn_id": is_text, "changes": _object},
    ),
    "mcp_tool_call_end": Rule({"call_id": is_text, "invocation": _object, "result": _object}),
    "web_search_end": Rule({"call_id": is_text, "query": is_text}),
    "image_generation_end": Rule({"call_id": is_text}),
    "context_compacted": Rule(),
    "entered_review_mode": Rule({"target": _tagged}),
    "exited_review_mode": Rule(),
    "sub_agent_activity": Rule(
        {
            "event_id": is_text,
            "agent_thread_id": is_uuid,
            "agent_path": is_agent_path,
            "kind": one_of("started", "interacted", "interrupted", "completed"),
        }
    ),
}

_RECORDS: dict[str, Rule] = {
    "dynamic_tools_updated": Rule({"thread_id": is_uuid, "tools": is_list}),
    "inter_agent_communication": Rule(
        {"author": is_agent_path, "recipient": is_agent_path, "content": is_text, "trigger_turn": is_flag},
        {"id": is_text, "encrypted_content": is_text},
        {"other_recipients": _agent_paths},
    ),
    "inter_agent_communication_metadata": Rule({"trigger_turn": is_flag}),
    "compacted": Rule(
        {"message": is_text},
        {
            "replacement_history": is_list,
            "replacement_history_metadata": is_list,
            "window_number": is_count,
            "window_id": lambda value: is_text(value) or is_count(value),
            "first_window_id": is_text,
            "previous_window_id": is_text,
            "compaction_response_id": is_text,
            "latest_token_usage_record": _object,
            "resume_metadata": _object,
            "retained_context": _object,
        },
    ),
    "turn_context": Rule(
        {"cwd": _cwd, "approval_policy": _approval, "model": is_text},
        {
            "turn_id": is_text,
            "root_turn_id": is_text,
            "comp_hash": is_text,
            "collaboration_mode": _object,
            "realtime_active": is_flag,
            "disabled_plugin_ids": is_list,
            "summary": one_of("none", "auto", "concise", "detailed"),
            "multi_agent_version": one_of("disabled", "v1", "v2"),
        },
    ),
    "token_usage_record": Rule(
        {
            "thread_id": is_uuid,
            "session_id": is_uuid,
            "turn_id": is_text,
            "root_turn_id": is_text,
            "response_id": is_text,
            "usage": _usage,
            "turn_token_usage": _usage,
            "thread_token_usage": _usage,
        }
    ),
    "world_state": Rule({"full": is_flag, "state": _object}),
    "retained_context": Rule({"type": is_text}),
    "security_risk_score": Rule({"scores": _object}),
    "realtime_item": Rule({"id": is_text}),
}


def _history_base(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and is_uuid(value.get("thread_id"))
        and is_count(value.get("end_ordinal_exclusive"))
        and is_count(value.get("end_byte_offset"))
    )


#: The fields of the session meta without which the line is not one (older releases wrote fewer: FORMAT 3.3).
_META = Rule(
    {"id": is_uuid, "timestamp": is_text, "cwd": is_text, "originator": is_text, "cli_version": is_text},
    {
        "history_base": _history_base,
        "forked_from_id": is_uuid,
        "parent_thread_id": is_uuid,
        "base_instructions": _object,
        "forked_from_ordinal_exclusive": is_count,
        "subagent_history_start_ordinal": is_count,
        "multi_agent_version": one_of("disabled", "v1", "v2"),
        "git": _object,
    },
    {
        "session_id": is_uuid,
        "account_scoped": is_flag,
        "attached_thread": is_flag,
        "history_mode": one_of("legacy", "paginated"),
    },
)

#: The sidecar of a response item. A member of a wrong type rejects the line (FORMAT 3.4.2).
_METADATA = Rule(
    {},
    {
        "fallback_token_limit_override": is_count,
        "user_input_order": is_count,
        "delivered_assistant_message": is_text,
        "compaction_model_hash": is_text,
        "history_sequence": is_count,
        "sampled_through_sequence": is_count,
        "retained_source": _filled,
        "model_search_state": one_of("unused", "search_mcp", "standalone"),
        "guardian_sources": is_list,
        "sender_user_messages": _object,
    },
    {
        "client_authored": is_flag,
        "compaction_output": is_flag,
        "inherited_user_message": is_flag,
        "harness_authored_configuration": is_flag,
    },
)


def envelope_fault(document: Mapping[str, Any]) -> Fault | None:
    """Why an envelope is not accepted, or None."""
    if not isinstance(document.get("timestamp"), str):
        return Fault("bad_record", "no timestamp")
    ordinal = document.get("ordinal")
    if ordinal is not None and not is_count(ordinal):
        return Fault("bad_record", "an ordinal that is not a whole number")
    metadata = document.get("metadata")
    if metadata is None or document.get("type") != "response_item":
        return None
    if isinstance(metadata, dict):
        return _fault(metadata, _METADATA, "the metadata", "")
    return None if metadata == [] else Fault("bad_record", "metadata that are not an object")


def payload_fault(kind: str, payload: Mapping[str, Any]) -> Fault | None:
    """Why a payload of that record type is not accepted, or None."""
    if kind == "response_item":
        return line_item_fault(payload)
    if kind == "event_msg":
        tag = _tag(payload)
        return _fault(payload, _EVENTS.get(tag), "event", tag)
    if kind == "session_meta":
        return _fault(payload, _META, "session_meta", "")
    fault = _fault(payload, _RECORDS.get(kind), "record", kind)
    if fault is None and kind == "turn_context":
        return _turn_context_fault(payload)
    if fault is None and kind == "compacted":
        return _compacted_fault(payload)
    return fault


def line_item_fault(item: Mapping[str, Any]) -> Fault | None:
    """Why a response item is not accepted as a line of its own, or None."""
    tag = _tag(item)
    if not tag:
        return Fault("bad_record", "a response item without type")
    struct = ITEMS.get(tag)
    if struct is None or tag in NEVER_RECORDED:
        return Fault("unknown", f"response item {tag!r} is never history")
    wrong = struct.fault(item)
    return None if wrong is None else _wrong(tag, wrong)


def item_fault(item: Mapping[str, Any]) -> Fault | None:
    """Why a response item of a known type does not decode, or None. One of an unknown type is no fault."""
    tag = _tag(item)
    struct = ITEMS.get(tag)
    wrong = struct.fault(item) if struct is not None else None
    return None if wrong is None else _wrong(tag, wrong)


def _wrong(tag: str, field: str) -> Fault:
    return Fault("bad_record", f"response item {tag!r} without a proper {field!r}")


def _tag(payload: Mapping[str, Any]) -> str:
    tag = payload.get("type")
    return tag if isinstance(tag, str) else ""


def _fault(payload: Mapping[str, Any], rule: Rule | None, what: str, tag: str) -> Fault | None:
    wrong = "is of no known kind" if rule is None else rule.fault(payload)
    if wrong is None:
        return None
    return Fault("unknown" if rule is None else "bad_record", f"{what} {tag!r} {wrong}" if tag else f"{what} {wrong}")


def _turn_context_fault(payload: Mapping[str, Any]) -> Fault | None:
    """FORMAT 3.8: a sandbox policy in the shape of 2025 makes the whole line unreadable for 0.171.0 (trap 37)."""
    policy, profile = payload.get("sandbox_policy"), payload.get("permission_profile")
    if isinstance(policy, dict) and "type" not in policy and isinstance(policy.get("mode"), str):
        return Fault("old_format", "a turn context in the shape of 2025, which Codex 0.171.0 does not read")
    if profile is None and policy is None:
        return Fault("bad_record", "a turn context without permission profile or sandbox policy")
    if not (profile is None or isinstance(profile, dict)) or not (policy is None or _tagged(policy)):
        return Fault("bad_record", "a turn context without a proper permission profile or sandbox policy")
    return None


def _compacted_fault(payload: Mapping[str, Any]) -> Fault | None:
    """One entry that does not decode, or sidecars of another length, reject the whole record (FORMAT 7.6)."""
    history = payload.get("replacement_history")
    sidecars = payload.get("replacement_history_metadata")
    if sidecars is not None and (history is None or len(sidecars) != len(history)):
        return Fault("bad_record", "replacement_history_metadata of another length than the history")
    for entry in history or ():
        if not isinstance(entry, dict) or "type" not in entry or item_fault(entry) is not None:
            return Fault("bad_record", "an entry of the replacement history does not decode")
    return None


def too_deep(data: bytes, document: Mapping[str, object]) -> bool:
    """True when an accepted JSON text is nested deeper than Codex's reader follows."""
    if _has_few_containers(data, document):
        return False
    level: list[object] = [document]
    for _ in range(DEEPEST):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


_SHORT = 1024  # bytes; in a longer text, containers are counted in what it says: there are fewer of them than bytes


def _has_few_containers(data: bytes, document: Mapping[str, object]) -> bool:
    """True when there are no more containers than may lie in each other."""
    if len(data) < _SHORT:
        return data.count(b"{") + data.count(b"[") <= DEEPEST
    found: list[Any] = [document]
    for container in found:  # which grows meanwhile
        for inner in container.values() if type(container) is dict else container:
            kind = type(inner)
            if kind is dict or kind is list:
                found.append(inner)
        if len(found) > DEEPEST:
            return False
    return True


_DIGITS_AS_ZEROS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_LONG_RUN = b"0" * 19
_LONG_NUMBER = re.compile(rb"[:\[,][ \t]*-?[0-9]{19,}")


def may_have_long_integer(data: bytes) -> bool:
    """True when a text may hold an integer of 19 digits or more; cheap for text without runs of so many digits."""
    return _LONG_RUN in data.translate(_DIGITS_AS_ZEROS) and _LONG_NUMBER.search(data) is not None


def is_integer_refused(digits: str) -> bool:
    """The reader takes integers of 64 bits and, oddly, those of more than 128, but none between."""
    value = int(digits) if len(digits) < 64 else 1 << 200
    return -(1 << 127) <= value < -(1 << 63) or 1 << 64 <= value < 1 << 128
