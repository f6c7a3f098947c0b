"""Which decoded objects Codex 0.171.0 accepts as records (FORMAT 3; the requirements were tried with the real reader).

A record that lacks a required field, or has one of another type, is passed over by Codex as a whole, so it must not
count here either.
Kinds that Codex does not know are passed over as well, but are no damage: a newer or older release wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

DEEPEST = 127  # levels of nesting that the reader accepts


class Fault(NamedTuple):
    """Why a payload is not accepted; `code` is `bad_record`, or `unknown` for a kind that is not known."""

    code: str
    reason: str


Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _count32(value: Any) -> bool:
    return _count(value) and value < 1 << 32


def _anything(_value: Any) -> bool:
    return True


_CONTENT: dict[str, dict[str, Check]] = {
    "input_text": {"text": _text},
    "output_text": {"text": _text},
    "input_image": {},
    "input_audio": {},
    "encrypted_content": {"encrypted_content": _text},
}


def _content(value: Any) -> bool:
    """A list of content items, each of a known type."""
    if not isinstance(value, list):
        return False
    for item in value:
        if not isinstance(item, dict):
            return False
        required = _CONTENT.get(item.get("type", ""))
        if required is None or not all(check(item.get(key)) for key, check in required.items()):
            return False
    return True


def _output(value: Any) -> bool:
    """A tool's result: text, or a list of content items. The object form of 2025 is not accepted."""
    return isinstance(value, str) or _content(value)


_ITEMS: dict[str, dict[str, Check]] = {
    "message": {"role": _text, "content": _content},
    "agent_message": {"author": _text, "recipient": _text, "content": _content},
    "reasoning": {"summary": _list},
    "local_shell_call": {"status": _text, "action": _object},
    "function_call": {"name": _text, "arguments": _text, "call_id": _text},
    "function_call_output": {"output": _output, "call_id": _maybe(_text)},
    "custom_tool_call": {"name": _text, "input": _text, "call_id": _text},
    "custom_tool_call_output": {"output": _output, "call_id": _maybe(_text)},
    "tool_search_call": {"execution": _text, "arguments": _anything},
    "tool_search_output": {"status": _text, "execution": _text, "tools": _list},
    "web_search_call": {},
    "image_generation_call": {"status": _text, "result": _text},
    "compaction": {"encrypted_content": _text},
    "compaction_summary": {"encrypted_content": _text},
    "context_compaction": {},
    "configuration_update": {"reasoning": _object},
    "additional_tools": {"tools": _list},
    "compaction_trigger": {},
    "ghost_snapshot": {},
}

_EVENTS: dict[str, dict[str, Check]] = {
    "task_started": {"turn_id": _text},
    "turn_started": {"turn_id": _text},
    "task_complete": {"turn_id": _text},
    "turn_complete": {"turn_id": _text},
    "turn_aborted": {"turn_id": _maybe(_text), "reason": _text},
    "thread_rolled_back": {"num_turns": _count32},
    "token_count": {"info": _maybe(_object)},
    "user_message": {"message": _text},
    "agent_message": {"message": _text},
    "agent_reasoning": {"text": _text},
    "agent_reasoning_raw_content": {"text": _text},
    "item_completed": {"turn_id": _text, "item": _object},
    "thread_settings_applied": {"thread_settings": _object},
    "thread_goal_updated": {},
    "patch_apply_end": {"call_id": _text},
    "mcp_tool_call_end": {"call_id": _text},
    "web_search_end": {"call_id": _text},
    "image_generation_end": {"call_id": _text},
    "context_compacted": {},
    "entered_review_mode": {},
    "exited_review_mode": {},
    "sub_agent_activity": {},
    "exec_command_end": {"call_id": _text},
}

_RECORDS: dict[str, dict[str, Check]] = {
    "dynamic_tools_updated": {"tools": _list},
    "inter_agent_communication": {"author": _text, "recipient": _text, "content": _text, "trigger_turn": _flag},
    "inter_agent_communication_metadata": {"trigger_turn": _flag},
    "compacted": {"message": _text},
    "turn_context": {"cwd": _text, "approval_policy": _anything, "model": _text},
    "token_usage_record": {"usage": _object},
    "world_state": {"full": _flag, "state": _object},
    "retained_context": {"type": _text},
    "security_risk_score": {"scores": _object},
    "realtime_item": {},
}

#: The fields of the session meta without which the line is not one (older releases wrote fewer: FORMAT 3.3).
_META: dict[str, Check] = {"id": _text, "timestamp": _text, "cwd": _text, "originator": _text, "cli_version": _text}


def envelope_fault(document: Mapping[str, Any], _data: bytes) -> Fault | None:
    """Why an envelope is not accepted, or None."""
    if not isinstance(document.get("timestamp"), str):
        return Fault("bad_record", "no timestamp")
    ordinal = document.get("ordinal")
    if ordinal is not None and not _count(ordinal):
        return Fault("bad_record", "an ordinal that is not a number")
    return None


def payload_fault(kind: str, payload: Mapping[str, Any]) -> Fault | None:
    """Why a payload of that record type is not accepted, or None."""
    if kind == "response_item":
        return item_fault(payload)
    if kind == "event_msg":
        return _fault(payload, _EVENTS.get(_tag(payload)), f"event {_tag(payload)!r}")
    if kind == "session_meta":
        return _fault(payload, _META, "session_meta")
    fault = _fault(payload, _RECORDS.get(kind), kind)
    if fault is None and kind == "turn_context":
        return _turn_context_fault(payload)
    if fault is None and kind == "compacted":
        return _compacted_fault(payload)
    return fault


def item_fault(item: Mapping[str, Any]) -> Fault | None:
    """Why a response item is not accepted as a line of its own, or None."""
    tag = _tag(item)
    if not tag:
        return Fault("bad_record", "a response item without type")
    return _fault(item, _ITEMS.get(tag), f"response item {tag!r}")


def _tag(payload: Mapping[str, Any]) -> str:
    tag = payload.get("type")
    return tag if isinstance(tag, str) else ""


def _fault(payload: Mapping[str, Any], required: Mapping[str, Check] | None, name: str) -> Fault | None:
    if required is None:
        return Fault("unknown", f"{name} is of no known kind")
    for key, check in required.items():
        if not check(payload.get(key)):
            return Fault("bad_record", f"{name} without a proper {key!r}")
    return None


def _turn_context_fault(payload: Mapping[str, Any]) -> Fault | None:
    """FORMAT 3.8: a sandbox policy in the shape of 2025 makes the whole line unreadable for 0.171.0 (trap 37)."""
    policy = payload.get("sandbox_policy")
    if payload.get("permission_profile") is None and not (
        isinstance(policy, dict) and isinstance(policy.get("type"), str)
    ):
        return Fault("old_format", "a turn context in the shape of 2025, which Codex 0.171.0 does not read")
    return None


def _compacted_fault(payload: Mapping[str, Any]) -> Fault | None:
    """One entry that does not decode, or sidecars of another length, reject the whole record (FORMAT 7.6)."""
    history = payload.get("replacement_history")
    if history is None:
        return None
    if not isinstance(history, list):
        return Fault("bad_record", "a replacement history that is not a list")
    for entry in history:
        fault = item_fault(entry) if isinstance(entry, dict) else Fault("bad_record", "")
        if fault is not None and fault.code != "unknown":
            return Fault("bad_record", "an entry of the replacement history does not decode")
    sidecars = payload.get("replacement_history_metadata")
    if sidecars is not None and (not isinstance(sidecars, list) or len(sidecars) != len(history)):
        return Fault("bad_record", "replacement_history_metadata of another length than the history")
    return None


def too_deep(data: bytes, document: object) -> bool:
    """True when an accepted JSON text is nested deeper than Codex's reader follows."""
    if data.count(b"{") + data.count(b"[") <= DEEPEST:
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
