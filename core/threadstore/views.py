"""The derived files of a thread, rendered: from the results of the passes to extents and JSON (DESIGN 3).

Everything here is a pure function of what replay, scan and names have found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from threadstore.effects import Effect
from threadstore.errors import Problem, StoreError
from threadstore.extents import ExtentsBuilder
from threadstore.heads import Head
from threadstore.history import History
from threadstore.lineage import Segment, base_of
from threadstore.metas import REJECTED, agent_of, parent_of
from threadstore.names import RolloutFile
from threadstore.opened import OpenFile, OpenLineage
from threadstore.replay import Replay
from threadstore.scan import FullScan, Kind
from threadstore.turns import Place
from threadstore.turns import render as render_turn

Json = dict[str, Any]


def line(document: object) -> bytes:
    """One line of a JSONL file; what can't be encoded (a lone surrogate) becomes U+FFFD."""
    return dumps(document) + b"\n"


def dumps(document: object, *, pretty: bool = False) -> bytes:
    """JSON of a document that may hold strings cut out of damaged data."""
    option = orjson.OPT_INDENT_2 if pretty else 0
    try:
        return orjson.dumps(document, option=option)
    except orjson.JSONEncodeError:
        return orjson.dumps(_clean(document), option=option)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(str(key)): _clean(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(inner) for inner in value]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return float(value)
    return value


def page(document: object) -> bytes:
    """A JSON file for people and `jq`."""
    return dumps(document, pretty=True) + b"\n"


def problem_lines(problems: Sequence[Problem], hidden: int = 0) -> bytes:
    """The content of a `problems.jsonl`."""
    content = b"".join(line(problem.as_json()) for problem in problems)
    if hidden:
        content += line({"code": "more", "message": f"{hidden} more problems of this thread are not listed one by one"})
    return content


def full_history(scan: FullScan, effect: Effect, files: Sequence[OpenFile], builder: ExtentsBuilder) -> None:
    """Every record of the lineage in order, with what became of it. Damaged lines are named, not repeated."""
    numbers = [builder.source(file.source) for file in files]
    heads = {
        (number, effective, recovered): b"".join(
            (
                b'{"effective":',
                b"true" if effective else b"false",
                b',"recovered":true' if recovered else b"",
                b',"rollout":',
                orjson.dumps(file.rollout.rollout_id),
                b',"record":',
            )
        )
        for number, file in enumerate(files)
        for effective in (True, False)
        for recovered in (True, False)
    }
    damage = {(problem.path, problem.offset): problem for problem in scan.problems}
    for segment, offset, length, kind in zip(*scan.columns, strict=True):
        if kind == Kind.DAMAGED:
            problem = damage.get((scan.sources[segment].path, offset))
            builder.literal(line(_damaged(files[segment].rollout.rollout_id, offset, length, problem)))
        else:
            head = heads[segment, effect.effective(segment, offset, length, kind), kind == Kind.RECOVERED]
            builder.slice(numbers[segment], offset, length, prefix=head, suffix=b"}\n")


def _damaged(rollout_id: str, offset: int, length: int, problem: Problem | None) -> Json:
    return {
        "effective": False,
        "rollout": rollout_id,
        "damaged": {"offset": offset, "length": length, "code": problem.code if problem else "damaged"},
    }


def turns(scan: FullScan) -> bytes:
    """The content of `turns.jsonl`."""
    return b"".join(line(document) for _, document in _turns(scan))


def turns_dropped(scan: FullScan, start: tuple[int, int]) -> bytes:
    """The same of an older generation, for the turns that begin at a place (segment, offset) or later: these were
    dropped by a revert. `number_then` is the number that a turn had.
    """
    return b"".join(
        line(document | {"number": None, "effective": False, "why": "reverted", "number_then": document["number"]})
        for place, document in _turns(scan)
        if (place.segment, place.offset) >= start
    )


def _turns(scan: FullScan) -> Iterator[tuple[Place, Json]]:
    """The turns with the places where they begin."""
    number = 0
    for turn in scan.tracker.turns:
        effective = turn.dropped_by is None
        number += effective
        counted, usage = number if effective else None, scan.usage.turns.get(turn.turn_id)
        yield turn.start, render_turn(turn, counted, lambda at: scan.sources[at].path, usage)


def world_state(replay: Replay) -> bytes:
    """The content of `world_state.json`."""
    window = replay.window
    usage = replay.base.usage if replay.base is not None else None
    return page(
        {
            "world_state": replay.world,
            "settings": replay.settings,
            "previous_turn_settings": replay.previous,
            "reference_context": None if replay.reference is None else replay.reference.get("turn_id"),
            "context_window": {
                "number": window.number,
                "first_window_id": window.first_id,
                "previous_window_id": window.previous_id,
                "window_id": window.current_id,
            },
            "tokens": replay.tokens,
            "checkpoint_usage": usage,
        }
    )


def pending_calls(
    history: History, pending: Sequence[int], files: Sequence[OpenFile], documents: Sequence[Json]
) -> bytes:
    """The content of `pending_calls.jsonl`: calls whose effect nobody recorded."""
    lines = []
    for at, document in zip(pending, documents, strict=True):
        segment, offset = history.segments[at], history.offsets[at]
        lines.append(
            line(
                {
                    "call_id": document.get("call_id"),
                    "type": document.get("type"),
                    "name": document.get("name"),
                    "effect": "unknown",
                    "note": "no result is recorded: it may have done nothing, something or everything",
                    "arguments": document.get("arguments", document.get("input", document.get("action"))),
                    "file": files[segment].rollout.path,
                    "offset": offset,
                    "length": history.lengths[at],
                }
            )
        )
    return b"".join(lines)


def lineage(thread_id: str, head: Head, rollouts: Sequence[RolloutFile], opened: OpenLineage) -> bytes:
    """The content of `lineage/lineage.json`."""
    segments = opened.segments
    meta = segments[-1].meta
    parts = []
    for number, segment in enumerate(segments):
        base = base_of(segment.meta)
        parts.append(
            {
                "rollout_id": segment.rollout.rollout_id,
                "thread_id": segment.rollout.thread_id,
                "file": segment.rollout.path,
                "start_offset": 0,
                "end_offset": opened.end_of(number),
                "first_ordinal": base.end_ordinal if base else (0 if meta.get("history_mode") == "paginated" else None),
                "end_ordinal_exclusive": segment.end_ordinal,
                "frozen": number + 1 < len(segments),
            }
        )
    return page(
        {
            "thread_id": thread_id,
            "selected": {"rollout_id": head.rollout.rollout_id, "file": head.rollout.path, "by": head.by},
            "segments": parts,
            "forked_from": meta.get("forked_from_id"),
            "forked_from_ordinal_exclusive": meta.get("forked_from_ordinal_exclusive"),
            "parent": parent_of(meta),
            "generations": [
                {"rollout_id": rollout.rollout_id, "file": rollout.path, "selected": rollout == head.rollout}
                for rollout in rollouts
            ],
        }
    )


class Summary(NamedTuple):
    """What `thread.json` tells that no log of the lineage says: id, selected rollout, the user's name for the
    thread, its preview, when it began.
    """

    thread_id: str
    head: Head
    name: str | None
    preview: str | None
    created: str | None


def thread(
    summary: Summary,
    segments: Sequence[Segment],
    scan: FullScan,
    replay: Replay | None,
    problems: Sequence[Problem],
    usage: Json | None,
    error: StoreError | None,
) -> bytes:
    """The content of `thread.json`. `usage` is that of `usage.json`."""
    meta = segments[-1].meta
    effective = [turn for turn in scan.tracker.turns if turn.dropped_by is None]
    status = "damaged" if error else effective[-1].shown_status if effective else "starting"
    uncertain = [problem for problem in problems if problem.uncertain and _matters(problem, replay, scan)]
    settings = (replay.settings if replay is not None else None) or {}
    head = summary.head
    return page(
        {
            "id": summary.thread_id,
            "name": summary.name,
            "preview": summary.preview or scan.first_user,
            "status": status,
            "archived": head.rollout.archived,
            "history_mode": meta.get("history_mode") or "legacy",
            "cwd": scan.cwd,
            "git": meta.get("git"),
            "model": settings.get("model"),
            "model_provider": meta.get("model_provider"),
            "created_at": summary.created or meta.get("timestamp"),
            "updated_at": scan.last_time,
            "cli_version": meta.get("cli_version"),
            "originator": meta.get("originator"),
            "source": meta.get("source"),
            "session_id": meta.get("session_id") or meta.get("id"),
            "forked_from": meta.get("forked_from_id"),
            "parent": parent_of(meta),
            "agent": agent_of(meta),
            "identity_guessed": not meta or REJECTED in meta,
            "rollout": {"id": head.rollout.rollout_id, "file": head.rollout.path, "selected_by": head.by},
            "counts": {
                "records": scan.counts["records"],
                "items": scan.counts["items"],
                "effective_items": None if replay is None else len(replay.history),
                "turns": len(scan.tracker.turns),
                "effective_turns": len(effective),
                "checkpoints": scan.counts["checkpoints"],
                "rollbacks": scan.counts["rollbacks"],
                "damaged": scan.counts["damaged"],
                "unknown": scan.counts["unknown"],
                "problems": len(problems) + scan.hidden_problems,
                "own_tokens": ((usage or {}).get("own") or {}).get("total_tokens"),
            },
            "replay": {
                "base": _base(replay, segments),
                "uncertain": bool(uncertain),
                "because": [
                    f"{problem.path}:{problem.offset}: {problem.code}: {problem.message}" for problem in uncertain[:20]
                ],
            },
            "health": "damaged" if error else "problems" if problems else "sound",
            "error": None if error is None else error.message,
        }
    )


def _base(replay: Replay | None, segments: Sequence[Segment]) -> Json | None:
    if replay is None:
        return None
    if replay.base is None:
        return {"kind": "start", "file": segments[0].rollout.path, "offset": 0}
    return {"kind": "checkpoint", "file": segments[replay.base.segment].rollout.path, "offset": replay.base.offset}


def _matters(problem: Problem, replay: Replay | None, scan: FullScan) -> bool:
    """False for damage before the base: what lies there can't change what counts now."""
    if replay is None or replay.base is None or problem.offset is None:
        return True
    numbers = {source.path: number for number, source in enumerate(scan.sources)}
    return (numbers.get(problem.path, 0), problem.offset) > (replay.base.segment, replay.base.offset)
