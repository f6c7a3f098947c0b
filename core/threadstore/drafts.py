"""The records that operations write: session metas, settings, interruptions, checkpoints (FORMAT 3, 9.5, 10.3,
10.4, 11.2).
"""

from __future__ import annotations

from typing import Any

from threadstore.ids import new_id, now_text
from threadstore.lineage import Position
from threadstore.recorder import Draft

Json = dict[str, Any]

#: Members of a session meta in the order in which Codex writes them.
_ORDER = (
    "account_scoped",
    "creator_user_id",
    "creator_account_id",
    "session_id",
    "id",
    "forked_from_id",
    "attached_thread",
    "forked_from_ordinal_exclusive",
    "parent_thread_id",
    "timestamp",
    "cwd",
    "runtime_workspace_roots",
    "originator",
    "cli_version",
    "source",
    "thread_source",
    "agent_nickname",
    "agent_role",
    "agent_path",
    "model_provider",
    "base_instructions",
    "dynamic_tools",
    "selected_capability_roots",
    "memory_mode",
    "history_mode",
    "history_base",
    "subagent_history_start_ordinal",
    "multi_agent_version",
    "context_window",
    "git",
)
#: A member that Codex passes over: the rollout that was selected before. The order of names alone would also count one
#: that was written but never selected, since its writer was killed between the two.
PREVIOUS = "rolloutfs_previous"
_ABORTED = (
    "The user interrupted the previous turn on purpose. "
    "Any running unified exec processes may still be running in the background. "
    "If any tools/commands were aborted, they may have partially executed."
)


def _ordered(meta: Json) -> Json:
    known = {key: meta[key] for key in _ORDER if key in meta}
    return known | {key: value for key, value in meta.items() if key not in known}


def _based(meta: Json, base: Position | None) -> Json:
    meta = {key: value for key, value in meta.items() if key != "history_base"}
    if base is not None:
        meta["history_base"] = {
            "thread_id": base.rollout_id,
            "end_ordinal_exclusive": base.end_ordinal,
            "end_byte_offset": base.end_offset,
        }
    return meta


def forked_meta(source: Json, thread_id: str, *, base: Position | None) -> Draft:
    """The session meta of a fork: the source's, with an identity of its own and no place in a tree of agents."""
    dropped = (
        "forked_from_ordinal_exclusive",
        "parent_thread_id",
        "agent_nickname",
        "agent_role",
        "agent_path",
        "agent_type",
        "thread_source",
        "attached_thread",
        "subagent_history_start_ordinal",
        "instructions",
        PREVIOUS,
    )
    meta = _based({key: value for key, value in source.items() if key not in dropped}, base)
    meta |= {"id": thread_id, "session_id": thread_id, "forked_from_id": source["id"], "timestamp": now_text()}
    if base is not None:
        meta["forked_from_ordinal_exclusive"] = base.end_ordinal
    if isinstance(meta.get("source"), dict):
        meta["source"] = fork_source(meta)
    meta["context_window"] = {"window_id": new_id()}
    meta.setdefault("history_mode", "legacy")  # what its absence means
    return Draft.of("session_meta", _ordered(meta))


def fork_source(source: Json) -> str | None:
    """Where a fork comes from: as its source, but a fork of an agent's thread is no agent's; None if nobody says."""
    recorded = source.get("source")
    return "cli" if isinstance(recorded, dict) else recorded


def reverted_meta(source: Json, base: Position | None, previous: str) -> Draft:
    """The session meta of a thread's next generation. A cut in what a fork had inherited lowers its fork point."""
    meta = _based(source, base) | {"timestamp": now_text(), PREVIOUS: previous}
    forked = meta.get("forked_from_ordinal_exclusive")
    if isinstance(forked, int):
        meta["forked_from_ordinal_exclusive"] = min(forked, base.end_ordinal if base is not None else 0)
    return Draft.of("session_meta", _ordered(meta))


def settings(payload: Json, thread_id: str) -> Draft:
    """The settings of a thread, as its newest record of them says."""
    return Draft.of("event_msg", payload | {"thread_id": thread_id})


def interruption(started: Json) -> list[Draft]:
    """What ends a turn that is cut in the middle, made from the record that started it (FORMAT 10.3)."""
    text = f"<turn_aborted>\n{_ABORTED}\n</turn_aborted>"
    message: Json = {
        "type": "message",
        "id": f"msg_{new_id()}",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
        "internal_chat_message_metadata_passthrough": {"content_item_kinds": ["generic.turn_aborted"]},
    }
    event: Json = {"type": "turn_aborted"}
    event |= {key: started[key] for key in ("root_turn_id", "turn_id") if key in started}
    event |= {"reason": "interrupted"} | {key: started[key] for key in ("started_at",) if key in started}
    return [Draft.of("response_item", message), Draft.of("event_msg", event)]


def rollback(turns: int) -> Draft:
    """The marker of a legacy thread that takes back its last turns."""
    return Draft.of("event_msg", {"type": "thread_rolled_back", "num_turns": turns})
