"""What is a fact: which records are written to a rollout (FORMAT 4).

A harness sees many events that only matter to whoever watches. What a thread is must follow from the log alone, and
nothing else belongs there. The filter works when records are appended, and again when a fork copies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threadstore.items import ITEMS, NEVER_RECORDED

_ALWAYS = frozenset(
    (
        "session_meta",
        "compacted",
        "turn_context",
        "world_state",
        "token_usage_record",
        "retained_context",
        "security_risk_score",
        "inter_agent_communication",
        "inter_agent_communication_metadata",
        "dynamic_tools_updated",
    )
)
_EVENTS = frozenset(
    (
        "token_count",
        "thread_goal_updated",
        "thread_rolled_back",
        "turn_aborted",
        "task_started",
        "task_complete",
        "thread_settings_applied",
    )
)
#: What a legacy thread needs to rebuild its turns; a paginated one has `item_completed` instead.
_LEGACY_EVENTS = frozenset(
    (
        "user_message",
        "agent_message",
        "agent_reasoning",
        "agent_reasoning_raw_content",
        "entered_review_mode",
        "exited_review_mode",
        "patch_apply_end",
        "context_compacted",
        "mcp_tool_call_end",
        "web_search_end",
        "image_generation_end",
    )
)


def is_fact(kind: str, payload: Mapping[str, Any], *, paginated: bool) -> bool:
    """True for a record that belongs into a rollout of that history mode."""
    if kind == "response_item":
        item = payload.get("type")
        return isinstance(item, str) and item in ITEMS and item not in NEVER_RECORDED
    if kind == "event_msg":
        return _is_fact_event(payload, paginated=paginated)
    return kind in _ALWAYS or (kind == "realtime_item" and paginated)


def _is_fact_event(payload: Mapping[str, Any], *, paginated: bool) -> bool:
    event = payload.get("type")
    if event == "item_completed":
        return paginated or is_legacy_item(payload)
    if event == "sub_agent_activity":
        return not paginated and payload.get("kind") != "completed"
    return event in _EVENTS or (not paginated and event in _LEGACY_EVENTS)


def is_legacy_item(payload: Mapping[str, Any]) -> bool:
    """True for the few completed items that a legacy rollout keeps."""
    item = payload.get("item")
    if not isinstance(item, Mapping):
        return False
    kind = item.get("type")
    return (
        kind in ("FunctionCallOutput", "Plan")
        or (kind == "Extension" and item.get("kind") == "clock.sleep")
        or (kind == "SubAgentActivity" and item.get("kind") == "completed")
    )
