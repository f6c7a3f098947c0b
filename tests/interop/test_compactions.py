"""Compactions by Codex and by us count the same windows: the same thread on two copies of a store, compacted by Codex
here and by us there, and then by Codex in both.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.interop.codex import Codex
from tests.interop.conftest import FRESH, MakeHome
from tests.interop.following import Json, open_store
from tests.interop.model_server import ModelServer
from tests.interop.steps import Step, by_codex, by_us

TOOL: Json = {
    "type": "function",
    "name": "lookup",
    "description": "Look something up",
    "inputSchema": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
CORPUS = ("dynamic_tools.legacy", "lite_code_mode.paginated", "world_state.paginated")
#: What our record lacks: sources of messages, which Codex keeps for its own later compactions.
OPTIONAL = {"replacement_history_metadata", "retained_context"}


def checkpoints(home: Path, thread_id: str) -> list[Json]:
    """The checkpoints in the thread's own rollouts, oldest first."""
    paths = sorted(home.rglob(f"rollout-*{thread_id}*.jsonl"))
    records = [json.loads(line) for path in paths for line in path.read_bytes().split(b"\n")[:-1]]
    return [record["payload"] for record in records if record["type"] == "compacted"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, kind) for name in FRESH for kind in ("plain", "compacted", "fork")), *((name, "") for name in CORPUS)],
)
def test_windows_are_counted_on(
    name: str, kind: str, make_home: MakeHome, fresh_threads: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """Number, predecessor and first window of each checkpoint are those that Codex gives, after ours as after its own,
    and what was used so far is known to both.
    """
    homes = [make_home(name, tmp_path / who) for who in ("codex", "us")]
    thread_id = fresh_threads[name][kind] if kind else open_store(homes[0]).thread_ids()[0]
    assert not by_us(open_store(homes[1]), Step("compact", thread_id)).refusal
    with ModelServer() as model, Codex(homes[0], model) as codex:
        assert not by_codex(codex, Step("compact", thread_id)).refusal
    ends, tools = [], []
    for home in homes:
        with ModelServer() as model, Codex(home, model) as codex:
            codex.resume(thread_id)
            codex.turn(thread_id, "a turn between")
            tools.append(model.requests[-1].get("tools"))
            codex.compact(thread_id)
        ends.append(checkpoints(home, thread_id))
    assert tools[0] == tools[1]
    assert len(ends[0]) == len(ends[1])
    theirs, ours = (found[-2] for found in ends)
    assert theirs.keys() - ours.keys() <= OPTIONAL
    assert ours.keys() <= theirs.keys()
    for found in ends:
        for earlier, later in pairwise(found):
            assert later["window_number"] == earlier["window_number"] + 1
            assert later["previous_window_id"] == earlier["window_id"]
            assert later["first_window_id"] == earlier["first_window_id"]
    for theirs, ours in zip(*ends, strict=True):
        assert ours["window_number"] == theirs["window_number"]
        settings = [end["resume_metadata"]["previous_turn_settings"] for end in (theirs, ours)]
        assert settings[0] == settings[1]
    used = [found[-1]["latest_token_usage_record"]["thread_token_usage"]["total_tokens"] for found in ends]
    assert used[0] - used[1] == 110  # what Codex asked for its first summary


@pytest.mark.parametrize("name", FRESH)
def test_tools_that_were_changed(
    name: str, make_home: MakeHome, fresh_threads: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """Tools that a thread was given later than at its start are still given to the model after a compaction."""
    home = make_home(name, tmp_path)
    store = open_store(home)
    thread_id = fresh_threads[name]["plain"]
    log = home / store.head(thread_id).path
    last = json.loads(log.read_bytes().split(b"\n")[-2])
    envelope = {"timestamp": last["timestamp"]} | ({"ordinal": last["ordinal"] + 1} if "ordinal" in last else {})
    change = {"type": "dynamic_tools_updated", "payload": {"thread_id": thread_id, "tools": [TOOL]}}
    with log.open("ab") as file:
        file.write(json.dumps(envelope | change).encode() + b"\n")
    given = []
    for _ in range(3):
        with ModelServer() as model, Codex(home, model) as codex:
            codex.resume(thread_id)
            codex.turn(thread_id, "What can you do?")
            given.append(model.requests[-1]["tools"])
        store.compact(thread_id, "A summary.")
    assert TOOL["description"] in json.dumps(given[0])
    assert given[0] == given[1] == given[2]
