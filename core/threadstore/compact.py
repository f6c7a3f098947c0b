"""Compact: a checkpoint with a summary as the model's new memory (FORMAT 9).

What is appended is what Codex appends for a manual compaction: a turn of its own with the `compacted` record in it,
then the world state as a full snapshot and the turn context, so that history and settings go on from the same base.
The replacement history follows the rules of local compaction: the newest user messages within 20,000 tokens, the
context that Codex had put in before the last of them, and the summary at the end. Nothing is deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from threadstore.boundaries import SUMMARY_PREFIX, is_contextual_user, texts, user_text
from threadstore.history import MADE, SUMMARY_BUDGET, Flag, History, Item, split_middle, tokens
from threadstore.ids import new_id
from threadstore.lineage import is_paginated
from threadstore.opened import OpenLineage
from threadstore.recorder import Draft
from threadstore.records import Record, loads
from threadstore.replay import Replay

Json = dict[str, Any]
_STALE_CONTEXT = ("<turn_aborted>", "<subagent_notification>", "<user_shell_command>")


def replacement(history: History, fetch: Callable[[Item], bytes], summary: str | None) -> list[Json]:
    """The items of a replacement history. Without `summary` only messages are kept."""
    messages: list[Json] = []
    context: list[Json] = []
    for item in history:
        if item.flags & (Flag.VISIBLE_USER | Flag.CONTEXT_USER | Flag.CONTEXT_DEVELOPER):
            document = loads(history.made[item.offset] if item.segment == MADE else fetch(item))
            if item.flags & Flag.VISIBLE_USER:
                messages.append(document)
            elif _is_initial_context(document):
                context.append(document)
    kept = within_budget(messages, SUMMARY_BUDGET)
    items = [*kept[:-1], *context, *kept[-1:]]
    if summary is not None:
        items.append(_summary(summary))
    return [item if item.get("id") else _with_id(item) for item in items]


def _with_id(item: Json) -> Json:
    return {"type": item["type"], "id": f"msg_{new_id()}"} | {k: v for k, v in item.items() if k not in ("type", "id")}


def _is_initial_context(document: Json) -> bool:
    """True for permissions, environment and instructions; notices of what happened once are left behind."""
    if document.get("role") == "developer":
        return True
    return is_contextual_user(document) and not any(
        text.lstrip().startswith(_STALE_CONTEXT) for text in texts(document)
    )


def within_budget(messages: list[Json], budget: int) -> list[Json]:
    """The newest messages within a number of tokens, oldest first; the one that doesn't fit loses its middle
    (FORMAT 9.2).
    """
    kept: list[Json] = []
    left = budget
    for message in reversed(messages):
        if left <= 0:
            break
        text = user_text(message).encode("utf-8", "replace")
        cost = tokens(len(text))
        if cost <= left:
            parts = [part for part in message["content"] if part.get("type") == "input_text"]
            kept.append(message if len(parts) == len(message["content"]) else message | {"content": parts})
            left -= cost
            continue
        parts = [{"type": "input_text", "text": part} for part in split_middle(text, left) if part]
        kept.append(message | {"content": parts})
        break
    return kept[::-1]


def _summary(text: str) -> Json:
    body = text if text.startswith(SUMMARY_PREFIX) else f"{SUMMARY_PREFIX}\n{text}"
    return {
        "type": "message",
        "id": f"msg_{new_id()}",
        "role": "user",
        "content": [{"type": "input_text", "text": body}],
        "internal_chat_message_metadata_passthrough": {"content_item_kinds": ["compaction.summary"]},
    }


def checkpoint(
    replay: Replay, items: list[Json], summary: str | None, meta: Json, taken: Carried, *, paginated: bool
) -> Iterator[Draft]:
    """The records of a compaction."""
    thread_id = meta["id"]
    turn_id = new_id()
    now = int(time.time())
    window = replay.window
    current = window.current_id or new_id()
    yield Draft.of(
        "event_msg",
        {
            "type": "task_started",
            "turn_id": turn_id,
            "root_turn_id": turn_id,
            "started_at": now,
            "model_context_window": None,
            "collaboration_mode_kind": "default",
        },
    )
    message = (
        "" if summary is None else summary if summary.startswith(SUMMARY_PREFIX) else f"{SUMMARY_PREFIX}\n{summary}"
    )
    resume: Json = {
        "multi_agent_version": meta.get("multi_agent_version"),
        "last_started_turn_id": turn_id,
        "previous_turn_settings": _previous(replay),
    }
    if taken.tools is not None:
        resume["dynamic_tools"] = taken.tools
    yield Draft.of(
        "compacted",
        {
            "message": message,
            "replacement_history": items,
            "window_number": window.number + 1,
            "first_window_id": window.first_id or current,
            "previous_window_id": current,
            "window_id": new_id(),
            "compaction_response_id": None,
            "latest_token_usage_record": taken.usage,
            "resume_metadata": resume,
        },
    )
    if replay.world is not None:
        yield Draft.of("world_state", {"full": True, "state": replay.world})
    if replay.settings is not None:
        yield Draft.of("turn_context", replay.settings | {"turn_id": turn_id, "root_turn_id": turn_id})
    if replay.tokens is not None:
        yield Draft.of("event_msg", _count(replay.tokens, items))
    if paginated:
        item = {"type": "ContextCompaction", "id": new_id()}
        done = {"type": "item_completed", "thread_id": thread_id, "turn_id": turn_id, "item": item}
        yield Draft.of("event_msg", done | {"completed_at_ms": time.time_ns() // 1_000_000})
    else:
        yield Draft.of("event_msg", {"type": "context_compacted"})
    end = {
        "type": "task_complete",
        "turn_id": turn_id,
        "last_agent_message": None,
        "started_at": now,
        "completed_at": now,
    }
    yield Draft.of("event_msg", end)


@dataclass(frozen=True, slots=True)
class Carried:
    """What a checkpoint takes along, since nothing older is read afterwards: the newest record of tokens, and of tools
    that were given to the thread later than in its session meta. None where there is none.
    """

    usage: Json | None
    tools: Json | None


def carried(lineage: OpenLineage) -> Carried:
    """What is to be taken along; the last checkpoint says what lies before it."""
    usage: Json | None = None
    tools: Json | None = None
    for record, _ in lineage.newest_first(paginated=is_paginated(lineage.segments[-1].meta)):
        if not isinstance(record, Record):
            continue
        if record.type == "token_usage_record":
            usage = usage or record.payload
        elif record.type == "dynamic_tools_updated":
            tools = tools or record.payload
        elif record.type == "compacted":
            resume = record.payload.get("resume_metadata") or {}
            return Carried(
                usage or record.payload.get("latest_token_usage_record"), tools or resume.get("dynamic_tools")
            )
    return Carried(usage, tools)


def _count(info: Json, items: list[Json]) -> Json:
    """The totals as they were, and how full the context is now: an estimate, as Codex makes one."""
    size = sum(tokens(len(Draft.of("response_item", item).body)) for item in items)
    last = dict.fromkeys(info["last_token_usage"], 0) | {"total_tokens": size}
    return {"type": "token_count", "info": info | {"last_token_usage": last}, "rate_limits": None}


def _previous(replay: Replay) -> Json | None:
    previous = replay.previous
    if previous is None or previous.get("model") is None:
        return None
    return {key: value for key, value in previous.items() if value is not None or key == "comp_hash"}
