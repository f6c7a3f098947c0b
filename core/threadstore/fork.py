"""Fork: a new thread from a frozen boundary (FORMAT 10).

A paginated thread is shared: the child begins with a session meta that names the rollout, ordinal and byte where
its past ends, and copies nothing. A legacy thread is copied: every record that survives, with new times of writing.
In both the source keeps its bytes; a turn that was cut in the middle is marked as interrupted in the child.

The child's file is written under a name that no reader takes for a rollout, synced, and gets its own name in one
step: it is there as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from threadstore import drafts, spans
from threadstore.boundaries import is_visible_user
from threadstore.cut import Boundary, NoSuchTurnError, RequestError, find_turn
from threadstore.folders import Folder, open_folder
from threadstore.ids import new_id
from threadstore.lineage import Position, is_paginated
from threadstore.lines import Log, forward
from threadstore.names import partial_of
from threadstore.opened import OpenLineage
from threadstore.policy import is_fact
from threadstore.recorder import Draft, Durability, Recorder, UnsettledError
from threadstore.records import Dialect, Record, decode, is_blank, loads
from threadstore.scan import FullScan

Json = dict[str, Any]

_TYPE_FIRST = re.compile(rb'\{"type":"[a-z_]+",')
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "web_search_call": "ws",
    "image_generation_call": "ig",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "compaction": "cmp",
    "context_compaction": "cmp",
    "agent_message": "amsg",
    "additional_tools": "at",
}
_REQUEST = "## My request for Codex:"  # editors put what they add before it


@dataclass(slots=True)
class Told:
    """What the events that were copied say of a thread: its first message, as lists show it, and its tokens."""

    first: str = ""
    tokens: int = 0

    def feed(self, event: Json) -> None:
        """Take the next event."""
        if event["type"] == "user_message" and not self.first:
            self.first = event["message"].rpartition(_REQUEST)[2].strip()
            if not self.first and (event.get("images") or event.get("local_images")):
                self.first = "[Image]"
        elif event["type"] == "token_count" and isinstance(event.get("info"), dict):
            self.tokens = max(event["info"]["total_token_usage"]["total_tokens"], 0)


def tokens_before(lineage: OpenLineage, segment: int, end: int) -> int | None:
    """The tokens that a thread had used at a byte of that segment; None when nothing before it says."""
    for record, number in lineage.newest_first(paginated=True):
        if not isinstance(record, Record) or number > segment or (number == segment and record.line.start >= end):
            continue
        if record.is_event("token_count") and isinstance(record.payload.get("info"), dict):
            return max(int(record.payload["info"]["total_token_usage"]["total_tokens"]), 0)
    return None


def unfinished(lineage: OpenLineage, segment: int, end: int | None) -> Json | None:
    """What started the turn that a history which ends there is in the middle of; None between turns (FORMAT 10.3).

    `end` is a byte of that segment, None for all of it. It matters for cuts at the edge of a turn as well: the turn
    before may never have ended, and a sub-agent's thread begins with a copy of its parent's in the middle of a
    turn. Outside of any turn, and in old threads, which have no records of turns, a user's message after which
    nothing ended is the middle of a turn without id.
    """
    asked, taken_back = False, 0
    ended: set[str | None] = set()
    for record, number in lineage.newest_first(paginated=is_paginated(lineage.segments[-1].meta)):
        if not isinstance(record, Record) or number > segment:
            continue
        if number == segment and end is not None and record.line.start >= end:
            continue
        if record.type == "response_item" and is_visible_user(record.payload):
            asked = asked or not (taken_back or ended)
            taken_back = max(taken_back - 1, 0)
        if record.type != "event_msg":
            continue
        if record.kind == "thread_rolled_back":
            taken_back += record.payload["num_turns"]
        elif record.kind in ("task_complete", "turn_complete", "turn_aborted"):
            ended.add(record.payload.get("turn_id"))
        elif record.kind in ("task_started", "turn_started") and not taken_back:
            if ended & {None, record.payload["turn_id"]}:
                break  # the end of another turn, such as that of a review, does not end it
            return record.payload
    return {"turn_id": None} if asked else None


def create(root: str, path: str, records: Iterator[Draft], *, ordinal: int | None, durability: Durability) -> None:
    """Write a whole new rollout at `path`, so that it is there completely or not at all.

    Raises OSError, and UnsettledError when it could be neither made safe nor taken away. A process that is stopped
    leaves at most a `.partial` file, whose name no reader takes for a rollout; some day a later operation removes it.
    """
    place, _, name = path.rpartition("/")
    with open_folder(root, place, durable=durability is Durability.FSYNC) as folder:
        folder.sweep()
        partial = partial_of(name, new_id())
        recorder = Recorder(partial, ordinal=ordinal, create=True, durability=durability, again=False, folder=folder)
        try:
            try:
                for record in records:
                    recorder.append([record])
                recorder.barrier()
            finally:
                recorder.abandon()
            folder.publish(partial, name)
        finally:
            with contextlib.suppress(OSError):  # not made at all, renamed, or it stays: a name that no reader takes
                folder.unlink(partial)
        if durability is Durability.FSYNC:
            try:
                folder.sync()
            except OSError:
                take_away(folder, name)
                raise


def take_away(folder: Folder, name: str) -> None:
    """Remove a new rollout, or a copy of one, that must not be there. Raises UnsettledError when it stays."""
    try:
        folder.unlink(name)
    except OSError as error:
        raise UnsettledError(
            f"the operation failed, and the new file {os.path.join(folder.path, name)} could not be removed again: "
            f"{error.strerror}. Remove it when the disk works, or what was asked for may turn out to be done."
        ) from error


def referenced(
    meta: Json, thread_id: str, base: Position | None, settings: Json | None, started: Json | None
) -> Iterator[Draft]:
    """The records of a paginated child."""
    yield drafts.forked_meta(meta, thread_id, base=base)
    if settings is not None:
        yield drafts.settings(settings, thread_id)
    if started is not None:
        yield from drafts.interruption(started)


def legacy_cut(boundary: Boundary, scan: FullScan) -> int | None:
    """The byte where a copy of a legacy thread ends, None for all of it (FORMAT 10.2)."""
    if boundary.kind == "latest":
        return None
    turn = find_turn(scan, boundary.turn)
    if not turn.explicit:
        raise NoSuchTurnError(
            f"turn {turn.turn_id} is not a persisted canonical turn of the thread: "
            "it has no record of its own, so it can't be a boundary."
        )
    if boundary.kind == "before":
        return turn.start.offset
    if turn.end is None and turn.status == "inProgress":
        raise RequestError(f"turn {turn.turn_id} was never ended: it can't be forked through; use latest or before.")
    later = [
        other.start.offset for other in scan.tracker.turns if other.explicit and other.start.offset > turn.start.offset
    ]
    return min(later, default=None)


def copied(
    meta: Json,
    thread_id: str,
    log: Log,
    end: int | None,
    dialect: Dialect,
    settings: Json | None,
    started: Json | None,
    told: Told,
) -> Iterator[Draft]:
    """The records of a legacy child: its own meta, then what its source has up to the cut, of which `told` takes
    note.
    """
    yield drafts.forked_meta(meta, thread_id, base=None)
    for line in forward(log, 0, end):
        if is_blank(line):
            continue
        record = decode(line, dialect)
        if isinstance(record, Record) and is_fact(record.type, record.payload, paginated=False):
            if record.type == "event_msg":
                told.feed(_whole(record, log))
            yield _copy(record, log)
    if started is not None:
        yield from drafts.interruption(started)
    if settings is not None:
        yield drafts.settings(settings, thread_id)


def _whole(record: Record, log: Log) -> Json:
    """The payload of an event, also of a user's message that is too long to be kept in memory otherwise."""
    line = record.line
    if not line.gaps or record.kind != "user_message":
        return record.payload
    payload: Json = loads(log.read(line.start, line.end - line.start))["payload"]
    return payload


def _copy(record: Record, log: Log) -> Draft:
    """A record as it lies in the log, but for its time; an item without id gets one."""
    line = record.line
    data = line.data if not line.gaps else log.read(line.start, line.end - line.start)
    start, end = record._replace(line=line._replace(data=data, gaps=())).payload_span()
    payload = data[start:end]
    if record.type == "response_item" and record.payload.get("id") is None and record.kind in _PREFIXES:
        payload = _with_id(payload, f"{_PREFIXES[record.kind]}_{new_id()}")
    body = b'"type":' + orjson.dumps(record.type) + b',"payload":' + payload
    if record.metadata is not None and record.type == "response_item":
        metadata = spans.member(data, len(data) - len(data.lstrip()), b"metadata")
        if metadata is not None:
            body += b',"metadata":' + data[metadata[0] : metadata[1]]
    return Draft(body)


def _with_id(payload: bytes, item_id: str) -> bytes:
    head = _TYPE_FIRST.match(payload)
    if head is not None and b'"id"' not in payload and b"\\u" not in payload:  # as Codex writes it; no key is escaped
        return payload[: head.end()] + b'"id":' + orjson.dumps(item_id) + b"," + payload[head.end() :]
    parts = []
    for key, start, end in spans.members(payload, 0):
        if key == b"id":
            continue
        parts.append(b'"' + key + b'":' + payload[start:end])
        if key == b"type":
            parts.append(b'"id":' + orjson.dumps(item_id))
    return b"{" + b",".join(parts) + b"}"
