"""What is sent instead of what is stored (FORMAT 7.6, 8.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from threadstore.projection import View
from threadstore.prompt import DEFAULT_BUDGET, aborted, shorten, strip_passthrough

from tests.core.logs import Log, Store, assistant, call, dumps, output, user

Json = dict[str, Any]


def text_parts(*texts: str) -> list[Json]:
    """Parts of a tool's result."""
    return [{"type": "input_text", "text": text} for text in texts]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("a" * 8, "a" * 8),
        ("a" * 9, "aaaa…1 tokens truncated…aaaa"),
        ("ää" * 3, "ää…1 tokens truncated…ää"),
        ('"' * 8, '"' * 8),
        (text_parts("aaaa", "bbbb"), text_parts("aaaa", "bbbb")),
        (text_parts("aaaa", "b" * 12), text_parts("aaaa", "bb…2 tokens truncated…bb")),
        (text_parts("a" * 8, "b", "c"), [*text_parts("a" * 8), *text_parts("[omitted 2 text items ...]")]),
        (
            [*text_parts("a" * 8), {"type": "input_image", "image_url": "data:"}],
            [*text_parts("a" * 8), {"type": "input_image", "image_url": "data:"}],
        ),
    ],
)
def test_outputs_are_shortened_to_a_budget_of_two_tokens(given: object, sent: object) -> None:
    """FORMAT 7.6: raw bytes count, four to a token; in a list each text uses up its part, media cost nothing."""
    assert shorten({"output": given}, 2) == {"output": sent}


def test_shortening_is_not_in_the_effective_history(tmp_path: Path) -> None:
    """FORMAT 7.6: the log's bytes stay; only what is sent is cut. The record may give a budget of its own."""
    long = "x" * (4 * DEFAULT_BUDGET + 4)
    log = Log().turn("1", "one", call("a"), call("b"))
    log.item(output("a", long)).add(
        "response_item", output("b", long), metadata={"fallback_token_limit_override": 1000}
    )
    store = Store(tmp_path / "home", log)
    assert [item["output"] for item in store.history()[-2:]] == [long, long]
    first, second = (item["output"] for item in store.rows(View.MODEL_INPUT) if item["type"] == "function_call_output")
    assert first == "x" * 24000 + "…1 tokens truncated…" + "x" * 24000
    assert second == "x" * 2000 + "…11001 tokens truncated…" + "x" * 2000


@pytest.mark.parametrize(
    ("item", "made"),
    [
        (call("c"), {"type": "function_call_output", "call_id": "c", "output": "aborted"}),
        (
            {"type": "local_shell_call", "call_id": "c", "status": "completed", "action": {}},
            {"type": "function_call_output", "call_id": "c", "output": "aborted"},
        ),
        (
            {"type": "custom_tool_call", "name": "n", "input": "", "call_id": "c"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "aborted"},
        ),
        (
            {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}},
            {"type": "tool_search_output", "call_id": "c", "status": "completed", "execution": "client", "tools": []},
        ),
        ({"type": "local_shell_call", "call_id": None, "status": "completed", "action": {}}, None),
        (user("x"), None),
    ],
)
def test_output_made_for_a_call(item: Json, made: Json | None) -> None:
    """FORMAT 8.2, step 1: what each kind of call gets."""
    assert aborted(item) == made


def test_id_of_a_made_output_is_derived() -> None:
    """FORMAT 8.2, step 1: UUIDv5 of prefix and id of the call, so it is the same each time."""
    made = aborted(call("c", id="fc_1"))
    assert made is not None
    assert made["id"].startswith("fco_")
    assert made == aborted(call("c", id="fc_1"))
    assert made["id"] != (aborted(call("c", id="fc_2")) or {})["id"]


def test_made_output_follows_its_call(tmp_path: Path) -> None:
    """FORMAT 8.2, steps 1 and 2: directly after the call; a result that no call asked for is left out."""
    log = Log().turn("1", "one", call("a"), call("b"), output("b"), output("lost"), assistant("done"))
    store = Store(tmp_path / "home", log)
    assert [item.get("call_id") for item in store.rows(View.MODEL_INPUT)] == [None, "a", "a", "b", "b", None]
    assert output("lost") in store.history()


@pytest.mark.parametrize(
    ("raw", "stripped"),
    [
        (b'{"a":1,"internal_chat_message_metadata_passthrough":{"turn_id":"t"}}', b'{"a":1}'),
        (b'{"a":1}', b'{"a":1}'),
        (
            b'{"a":{"b":1,"internal_chat_message_metadata_passthrough":{}}}',
            b'{"a":{"b":1,"internal_chat_message_metadata_passthrough":{}}}',
        ),
    ],
)
def test_passthrough_is_cut_off(raw: bytes, stripped: bytes) -> None:
    """FORMAT 18.0, rule 6: the last member of an item, and only of the item itself."""
    assert strip_passthrough(raw) == stripped


def test_what_codex_wrote_is_sent_as_it_lies(tmp_path: Path) -> None:
    """FORMAT 8.2, 2b: an item in Codex's own order is a slice of the log, without the passthrough."""
    item = assistant("hello", id="msg_1") | {"internal_chat_message_metadata_passthrough": {"turn_id": "1"}}
    item = {"type": "message", "id": item["id"], "role": item["role"], "content": item["content"]}
    passthrough = {"internal_chat_message_metadata_passthrough": {"turn_id": "1"}}
    store = Store(tmp_path / "home", Log().item(item | passthrough))
    assert store.read(View.EFFECTIVE_HISTORY) == dumps(item | passthrough) + b"\n"
    assert store.read(View.MODEL_INPUT) == dumps(item) + b"\n"
    assert orjson.loads(store.read(View.MODEL_INPUT)) == item
