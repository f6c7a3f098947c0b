"""Odd lines are taken or passed over exactly as the real Codex 0.171.0 did (tests/core/vectors)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from threadstore.history import history_item
from threadstore.lines import Line
from threadstore.projection import View
from threadstore.records import Record, decode
from threadstore.wire import sent

from tests.core.reading import read_lines

VECTORS = Path(__file__).parent / "vectors"
Json = dict[str, Any]


def vectors(name: str) -> list[Json]:
    """The cases of one file."""
    data = zstandard.ZstdDecompressor().stream_reader((VECTORS / f"{name}.jsonl.zst").read_bytes()).read()
    return [json.loads(line) for line in data.split(b"\n") if line]


def record_of(data: bytes) -> Record | None:
    """The record that a line holds, None when it is passed over."""
    decoded = decode(Line(0, len(data), data))
    return decoded if isinstance(decoded, Record) else None


def test_lines_decode_as_in_codex() -> None:
    """Every odd line counts as a record where it did in Codex, and nowhere else."""
    cases = vectors("lines")
    wrong = [case["name"] for case in cases if (record_of(case["line"].encode()) is not None) != case["decodes"]]
    assert len(cases) > 1700
    assert wrong == []


def test_items_are_sent_as_by_codex() -> None:
    """An accepted item is encoded for the model as Codex encoded it, with its fields in the same order."""
    wrong, compared = [], 0
    for case in vectors("lines"):
        record = record_of(case["line"].encode())
        if record is None or history_item(record, 0) is None or case["after"] is not None:
            continue
        start, end = record.payload_span()
        raw = sent(record.payload, record.line.data[start:end])
        compared += 1
        first = json.dumps(case["sent"][0]) if case["sent"] else None
        if (None if raw is None else json.dumps(json.loads(raw))) != first:
            wrong.append(case["name"])
    assert compared > 500
    assert wrong == []


def test_records_decode_as_in_codex() -> None:
    """The other record types need the fields that they need in Codex."""
    wrong = []
    for case in vectors("records"):
        line = json.dumps({"timestamp": "2026-11-29T21:40:00.000Z", "type": case["type"], "payload": case["payload"]})
        if (record_of(line.encode()) is not None) != case["decodes"]:
            wrong.append(case["name"])
    assert wrong == []


@pytest.mark.parametrize("number", range(len(vectors("files"))))
def test_odd_files_rebuild_as_in_codex(number: int, tmp_path: Path) -> None:
    """A whole file with odd records gives Codex's model input and, but for one case, Codex's turns."""
    case = vectors("files")[number]
    folder = tmp_path / "sessions/2026/11/29"
    folder.mkdir(parents=True)
    (folder / case["rollout"]).write_bytes(case["file"].encode("utf-8", "surrogateescape"))
    items = read_lines(tmp_path, View.MODEL_INPUT)
    probe = case["input"][len(items) :]
    assert items == case["input"][: len(items)]
    question = probe[-1]["content"][0]["text"]  # a turn that Codex compacts before asks for a summary instead
    assert question == "PROBE" or question.startswith("You are performing a CONTEXT CHECKPOINT COMPACTION")
    assert len(probe) <= 4, "what follows is the turn of the question alone"
    if case["turns"] is not None and case["name"] != "last ordinal u64max-1":  # Codex's projection overflows there
        turns = [[turn["id"], turn["status"]] for turn in read_lines(tmp_path, View.TURNS) if turn["effective"]]
        assert turns == case["turns"]


def test_a_note_of_a_delivery_is_no_history() -> None:
    """An assistant message that only notes a delivery (FORMAT 3.4.2) is not remembered; any other one is."""
    payload = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "sent"}],
        "internal_chat_message_metadata_passthrough": {"turn_id": "t"},
    }
    for mark, remembered in (
        ("codex:code-mode-delivery:v1:complete", False),
        ("codex:code-mode-delivery:v1:incomplete:2", False),
        ("codex:code-mode-delivery:v1:else", True),
    ):
        metadata = {"user_input_order": 1, "delivered_assistant_message": mark}
        line = {"timestamp": "t", "type": "response_item", "payload": payload, "metadata": metadata}
        record = record_of(json.dumps(line).encode())
        assert record is not None
        assert (history_item(record, 0) is not None) == remembered, mark
