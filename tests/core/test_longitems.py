"""Items that are looked at without being in memory give the same bytes as items that are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from threadstore import lines, longitems
from threadstore.projection import View

from tests.core import logs
from tests.core.logs import CWD, Log, Store, assistant, call, user

PASSTHROUGH = {"internal_chat_message_metadata_passthrough": {"turn_id": "t"}}
WORDS = 'größer → 日本語 😀 "quoted" \\ tab\t line\n' * 3000
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64," + "QUJD" * 40_000, "detail": "auto"}
TEXT = {"type": "input_text", "text": WORDS}

ITEMS: dict[str, list[dict[str, Any]]] = {
    "image": [user("see") | {"content": [{"type": "input_text", "text": "see"}, IMAGE]} | PASSTHROUGH],
    "remote image": [user("see") | {"content": [TEXT, IMAGE | {"image_url": "https://" + "x" * 90_000}]}],
    "hidden id": [assistant(WORDS) | {"id": "nothing"}],
    "output": [call("c"), logs.output("c", WORDS) | PASSTHROUGH],
    "output of parts": [call("c"), {"type": "function_call_output", "call_id": "c", "output": [TEXT, IMAGE, TEXT]}],
    "pending call": [call("c") | {"arguments": WORDS}],
    "odd order": [{"role": "assistant", "content": [{"text": WORDS, "type": "output_text"}], "type": "message"}],
}


def read(folder: Path, log: Log, view: View, monkeypatch: pytest.MonkeyPatch, long: int) -> bytes:
    """A derived file when lines and items of more than `long` bytes are not kept in memory."""
    with monkeypatch.context() as patch:
        patch.setattr(lines, "LONG", long)
        patch.setattr(longitems, "LONG", long)
        patch.setattr(lines, "CHUNK", 16 << 10)
        return Store(folder, log).read(view)


@pytest.mark.parametrize("view", [View.MODEL_INPUT, View.EFFECTIVE_HISTORY, View.FULL_HISTORY, View.PROBLEMS])
@pytest.mark.parametrize("name", ITEMS)
def test_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, view: View) -> None:
    """A long item is stripped, cut and encoded anew like any other one."""
    log = Log(paginated=True).turn("t", "hello", *ITEMS[name])
    whole = read(tmp_path / "whole", log, view, monkeypatch, 1 << 30)
    assert read(tmp_path / "long", log, view, monkeypatch, 32 << 10) == whole


@pytest.mark.parametrize("budget", [10, 5000, 1 << 20])
def test_same_cut_for_any_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    """The budget that a record names is kept to."""
    log = Log(paginated=True).start("t").item(user("hello"), call("c"))
    log.add("response_item", logs.output("c", WORDS), metadata={"fallback_token_limit_override": budget}).complete("t")
    whole = read(tmp_path / "whole", log, View.MODEL_INPUT, monkeypatch, 1 << 30)
    assert read(tmp_path / "long", log, View.MODEL_INPUT, monkeypatch, 32 << 10) == whole


@pytest.mark.parametrize(
    "content",
    [[TEXT], [{"type": "input_text", "text": "short"}, IMAGE], [TEXT, IMAGE], [TEXT | {"text": WORDS[:20_000]}, IMAGE]],
)
def test_same_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: list[dict[str, Any]]) -> None:
    """A long message survives a compaction of the old kind like any other one (FORMAT 9.2)."""
    log = Log().turn("t", "first").item(user("") | {"content": content}).compacted("done").turn("u", "second")
    whole = read(tmp_path / "whole", log, View.EFFECTIVE_HISTORY, monkeypatch, 1 << 30)
    assert read(tmp_path / "long", log, View.EFFECTIVE_HISTORY, monkeypatch, 32 << 10) == whole


def test_long_communication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message between agents is shown in the form that the model sees, however long it is."""
    payload = {
        "author": "/root",
        "recipient": "/root/a",
        "other_recipients": [],
        "content": WORDS,
        "trigger_turn": True,
    }
    log = Log(paginated=True).start("t").add("inter_agent_communication", payload).complete("t")
    whole = read(tmp_path / "whole", log, View.EFFECTIVE_HISTORY, monkeypatch, 1 << 30)
    assert json.loads(whole)["content"] == [TEXT]
    assert read(tmp_path / "long", log, View.EFFECTIVE_HISTORY, monkeypatch, 32 << 10) == whole


def test_long_pending_call_is_an_excerpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of pending calls says how much of an argument it leaves out."""
    log = Log(paginated=True).turn("t", "hello", call("c") | {"arguments": "x" * 500_000})
    (row,) = read(tmp_path, log, View.PENDING_CALLS, monkeypatch, 32 << 10).splitlines()
    assert len(row) < 100_000
    assert " bytes…" in json.loads(row)["arguments"]


def test_numbers_between_strings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long line of numbers is condensed nowhere, and one bracket too many in it is seen."""
    numbers = ",".join(map(str, range(20_000)))
    for inside, problems in ((numbers, 0), (numbers.replace(",12345,", ",[12345,"), 1)):
        log = Log(paginated=True).start("t")
        tool = json.dumps({"type": "additional_tools", "role": "x", "tools": ["@"], "cwd": CWD})
        line = log.add("response_item", json.loads(tool)).lines.pop().replace(b'"@"', inside.encode())
        log.lines.append(line)
        found = read(tmp_path / str(problems), log, View.PROBLEMS, monkeypatch, 32 << 10)
        assert found.count(b"\n") == problems
