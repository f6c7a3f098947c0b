"""FORMAT 7 once more, as plainly as it can be written: lists, no early stop, nothing shared with `threadstore.replay`.

The code under test reads a log backward, keeps numbers instead of items and stops as soon as it can.  This model has
all records as decoded JSON, walks through them as the page says, and builds lists of items.  Where both agree on
thousands of made-up logs, the clever one is as right as the plain one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from threadstore.boundaries import is_boundary, is_contextual_developer, is_contextual_user, is_visible_user

Json = dict[str, Any]
NEVER = object()  # "NeverSet" of FORMAT 7.2
CLEARED = object()


@dataclass
class Rebuilt:
    """What comes out."""

    history: list[Json]
    settings: Json | None
    previous: Json | None
    reference: Json | None
    world: Json | None
    window: tuple[int, str | None, str | None, str | None]
    tokens: Json | None
    bounded: bool


@dataclass
class Segment:
    """FORMAT 7.2: what belongs to one turn."""

    turn_id: str | None = None
    completed: bool = False
    counts: bool = False
    settings: Json | None = None
    reference: Any = NEVER
    worlds: list[Json] = field(default_factory=list)
    checkpoint: tuple[Json, int] | None = None
    window: tuple[int, str | None, str | None, str | None] | None = None


def window_of(payload: Json) -> tuple[int, str | None, str | None, str | None] | None:
    """A checkpoint's window; a number as id is a window number of the old kind (FORMAT 1, trap 22)."""
    number, current = payload.get("window_number"), payload.get("window_id")
    if isinstance(current, int):
        number, current = number if number is not None else current, None
    return (
        None if number is None else (number, payload.get("first_window_id"), payload.get("previous_window_id"), current)
    )


def compatible(first: str | None, second: str | None) -> bool:
    """Whether two turn ids may be of one turn."""
    return first is None or second is None or first == second


def item_of(record: Json) -> Json | None:
    """The item that a record adds to the history."""
    payload: Json = record["payload"]
    if record["type"] == "inter_agent_communication":
        content = [{"type": "input_text", "text": payload["content"]}]
        return {
            "type": "agent_message",
            "author": payload["author"],
            "recipient": payload["recipient"],
            "content": content,
        }
    if record["type"] != "response_item" or payload.get("role") == "system":
        return None
    return payload


def rebuild(records: list[Json], *, paginated: bool, initial: str | None = None) -> Rebuilt:
    """Rebuild a thread from its records, oldest first, without session metas."""
    newest = max((at for at, record in enumerate(records) if record["type"] == "compacted"), default=None)
    checkpoints = sum(record["type"] == "compacted" for record in records)
    numbered = all(window_of(record["payload"]) for record in records if record["type"] == "compacted")
    base = window = resume = None
    if newest is not None:  # step A
        payload = records[newest]["payload"]
        complete = payload.get("replacement_history") is not None and window_of(payload) is not None
        if complete and (paginated or payload.get("resume_metadata") is not None):
            base, window, resume = (payload, -1), window_of(payload), payload.get("resume_metadata")
            records = records[newest + 1 :]
    bounded = base is not None

    # Step B
    pending = 0
    settings: Json | None = None
    reference: Any = NEVER
    worlds: list[Json] = []
    segment: Segment | None = None

    def finish() -> None:
        nonlocal pending, base, window, settings, reference, segment, worlds
        done, segment = segment, None
        if done is None:
            return
        if pending > 0:
            pending -= done.counts
            return
        base = base or done.checkpoint
        window = window or done.window
        worlds = worlds + done.worlds
        newest_first = [
            world["type"] if world["type"] == "compacted" else world["payload"]["full"] for world in done.worlds
        ]
        newer = newest_first[: newest_first.index("compacted")] if "compacted" in newest_first else newest_first
        baseline = done.counts or True in newer
        if settings is None and baseline:
            settings = done.settings
        if reference is NEVER and (baseline or done.reference is CLEARED):
            reference = done.reference

    for at in range(len(records) - 1, -1, -1):
        record = records[at]
        payload = record["payload"]
        kind = payload.get("type") if record["type"] == "event_msg" else record["type"]
        if kind == "thread_rolled_back":
            pending += payload["num_turns"]
            continue
        if kind == "task_started":
            if segment is not None and compatible(segment.turn_id, payload["turn_id"]):
                finish()
            continue
        if kind == "turn_aborted" and segment is None and payload.get("turn_id") is None:
            continue
        if kind not in (
            "compacted",
            "task_complete",
            "turn_aborted",
            "user_message",
            "turn_context",
            "world_state",
            "response_item",
            "inter_agent_communication",
        ):
            continue
        segment = segment or Segment()
        if kind == "compacted":
            segment.worlds.append(record)
            segment.window = segment.window or window_of(payload)
            if segment.reference is NEVER:
                segment.reference = CLEARED
            if segment.checkpoint is None and payload.get("replacement_history") is not None:
                segment.checkpoint = (payload, at)
        elif kind in ("task_complete", "turn_aborted"):
            segment.completed = segment.completed or kind == "task_complete"
            segment.turn_id = segment.turn_id or payload.get("turn_id")
        elif kind == "turn_context":
            segment.turn_id = segment.turn_id or payload.get("turn_id")
            if compatible(segment.turn_id, payload.get("turn_id")):
                segment.settings = payload
                if segment.reference is NEVER:
                    segment.reference = payload
        elif kind == "world_state":
            segment.worlds.append(record)
        else:
            segment.counts = segment.counts or kind != "response_item" or is_boundary(payload)
    if segment is not None and resume is not None and not segment.completed:
        segment.settings = None
    finish()

    # Step C
    history: list[Json] = list(base[0]["replacement_history"]) if base is not None else []
    summarised = False
    for record in records[base[1] + 1 if base is not None else 0 :]:
        payload = record["payload"]
        item = item_of(record)
        if item is not None:
            history.append(item)
        elif record["type"] == "compacted" and payload.get("replacement_history") is None:
            history = [item for item in history if is_visible_user(item)] + [summary(payload["message"])]
            summarised = True
        elif payload.get("type") == "thread_rolled_back":
            history = drop(history, payload["num_turns"])
    keys = ("model", "comp_hash", "realtime_active")
    previous = {key: settings.get(key) for key in keys} if settings is not None else None
    infos = [record["payload"]["info"] for record in records if record["payload"].get("type") == "token_count"]
    if window is None:
        window = (0, initial, None, initial) if initial is not None and numbered else (checkpoints, None, None, None)
    return Rebuilt(
        history=history,
        settings=settings,
        previous=previous or (resume or {}).get("previous_turn_settings"),
        reference=None if summarised or reference in (NEVER, CLEARED) else reference,
        world=fold(reversed(worlds)),
        window=window,
        tokens=next((info for info in reversed(infos) if info is not None), None),
        bounded=bounded,
    )


def summary(message: str) -> Json:
    """The message that a checkpoint of the old kind becomes."""
    text = message or "(no summary available)"
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def drop(history: list[Json], count: int) -> list[Json]:
    """FORMAT 8.1, steps 1 to 4."""
    starts = [at for at, item in enumerate(history) if is_boundary(item)]
    if count == 0 or not starts:
        return history
    cut = starts[0] if count >= len(starts) else starts[len(starts) - count]
    while cut > starts[0] and (is_contextual_developer(history[cut - 1]) or is_contextual_user(history[cut - 1])):
        cut -= 1
    return history[:cut]


def fold(records: Iterable[Json]) -> Json | None:
    """World states and checkpoints, oldest first, as one state."""
    state: Json | None = None
    for record in records:
        payload = record["payload"]
        if record["type"] == "compacted":
            state = None
        elif payload["full"]:
            state = payload["state"]
        elif state is not None:
            state = patched(state, payload["state"])
    return state


def patched(state: Any, patch: Any) -> Any:
    """RFC 7386, as its appendix has it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(state) if isinstance(state, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), value)
    return result
