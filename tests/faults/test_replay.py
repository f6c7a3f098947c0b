"""FAULTS 19, 20, 29 and 30: what is odd about what was recorded."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from threadstore.projection import View

from tests.faults.logs import LEGACY, MODES, PAGINATED, Home, Log, done, message, pairs

# 19: calls and their results


def _call(log: Log, call_id: str, **fields: Any) -> None:
    log.item("function_call", name="shell", arguments="{}", call_id=call_id, **fields)


def _output(log: Log, call_id: str, text: str = "ok") -> None:
    log.item("function_call_output", call_id=call_id, output=text)


@pytest.mark.parametrize("mode", MODES)
def test_call_without_output(home: Home, mode: str) -> None:
    """FAULTS 19, DESIGN rule 3: its effect is unknown. The history has the call alone; what is sent has Codex's
    `aborted` directly after it; the pending call is listed with its place.
    """
    log = Log(mode)
    log.started("turn")
    log.asked("go", "turn")
    spot = log.item("function_call", name="shell", arguments='{"rm":1}', call_id="c1")
    log.message("assistant", "hm")
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == ["go", "function_call c1", "hm"]
    assert views.sent() == ["go", "function_call c1", "function_call_output c1 aborted", "hm"]
    [pending] = views.lines(View.PENDING_CALLS)
    assert (pending["call_id"], pending["effect"], pending["arguments"]) == ("c1", "unknown", '{"rm":1}')
    assert pending["file"] == path
    line = bytes(log.content)[spot.offset : spot.offset + spot.length]
    assert bytes(log.content)[pending["offset"] :][: pending["length"]] == orjson.dumps(orjson.loads(line)["payload"])
    assert views.turns() == [("turn", "interrupted")]
    assert views.problems() == []


@pytest.mark.parametrize("mode", MODES)
def test_output_without_call(home: Home, mode: str) -> None:
    """FAULTS 19: the history keeps it, what is sent doesn't have it."""
    log = Log(mode)
    log.message("user", "go")
    _output(log, "nobody")
    log.message("assistant", "hm")
    home.put(log)
    views = home.read(log)
    assert views.effective() == ["go", "function_call_output nobody ok", "hm"]
    assert views.sent() == ["go", "hm"]
    assert views.lines(View.PENDING_CALLS) == []


@pytest.mark.parametrize("mode", MODES)
def test_output_before_its_call(home: Home, mode: str) -> None:
    """FAULTS 19, FORMAT 8.2: an output anywhere answers its call."""
    log = Log(mode)
    _output(log, "c1")
    _call(log, "c1")
    home.put(log)
    views = home.read(log)
    assert views.effective() == views.sent() == ["function_call_output c1 ok", "function_call c1"]
    assert views.lines(View.PENDING_CALLS) == []


@pytest.mark.parametrize("mode", MODES)
def test_same_call_id_twice(home: Home, mode: str) -> None:
    """FAULTS 19: one output answers both calls of an id, and two outputs of one call both stay."""
    log = Log(mode)
    _call(log, "c1")
    _call(log, "c1")
    _output(log, "c1")
    _call(log, "c2")
    _output(log, "c2", "first")
    _output(log, "c2", "second")
    home.put(log)
    views = home.read(log)
    assert views.effective() == views.sent()
    assert len(views.effective()) == 6
    assert views.lines(View.PENDING_CALLS) == []


@pytest.mark.parametrize("mode", MODES)
def test_output_of_another_family(home: Home, mode: str) -> None:
    """FAULTS 19: the output of a custom tool doesn't answer a function call of the same id."""
    log = Log(mode)
    _call(log, "c1")
    log.item("custom_tool_call_output", call_id="c1", output="ok")
    home.put(log)
    views = home.read(log)
    assert views.effective() == ["function_call c1", "custom_tool_call_output c1 ok"]
    assert views.sent() == ["function_call c1", "function_call_output c1 aborted"]


@pytest.mark.parametrize("mode", MODES)
def test_lost_output_is_a_pending_call(home: Home, mode: str) -> None:
    """FAULTS 19: the result was recorded on a line that is damaged: its effect is unknown, it is not invented."""
    log = Log(mode)
    _call(log, "c1")
    spot = log.raw(log.line("response_item", {"type": "function_call_output", "call_id": "c1", "output": "ok"})[:-6])
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == ["function_call c1"]
    assert [call["call_id"] for call in views.lines(View.PENDING_CALLS)] == ["c1"]
    assert views.problems() == [("torn_tail", path, *spot)]
    assert not views.uncertain()


@pytest.mark.parametrize("mode", MODES)
def test_pending_call_in_the_prefix(home: Home, mode: str) -> None:
    """FAULTS 19: calls without result before a checkpoint are gone with what it replaced."""
    log = Log(mode)
    _call(log, "c1")
    log.checkpoint("summary")
    home.put(log)
    views = home.read(log)
    assert views.sent() == ["summary"]
    assert views.lines(View.PENDING_CALLS) == []


# 20: unfinished turns, two writers


@pytest.mark.parametrize("mode", MODES)
def test_unfinished_turn_then_continue(home: Home, mode: str) -> None:
    """FAULTS 20, FORMAT 14: nothing tells of the interruption but the missing end: interrupted, never running."""
    log = Log(mode)
    log.turn("one", end=False)
    log.turn("continue")
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == pairs("one", "continue")
    assert views.turns() == [("turn-one", "interrupted"), ("turn-continue", "completed")]
    assert path
    assert views.problems() == []
    assert views.thread()["status"] == "completed"


@pytest.mark.parametrize("mode", MODES)
def test_last_turn_unfinished(home: Home, mode: str) -> None:
    """FAULTS 20: an idle thread whose last turn has no end."""
    log = Log(mode)
    log.turn("one", None, end=False)
    home.put(log)
    assert home.read(log).turns() == [("turn-one", "interrupted")]
    assert home.read(log).thread()["status"] == "interrupted"


@pytest.mark.parametrize("mode", MODES)
def test_two_writers(home: Home, mode: str) -> None:
    """FAULTS 20: two processes wrote one log: the records count in file order, and it is listed once per turn that goes
    on after another one has begun.
    """
    log = Log(mode)
    log.started("a")
    log.asked("from a", "a")
    log.started("b")
    log.asked("from b", "b")
    log.message("assistant", "to a")
    spot = log.completed("a")
    log.message("assistant", "to b")
    log.completed("b")
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == ["from a", "from b", "to a", "to b"]
    assert views.turns() == [("a", "completed"), ("b", "completed")]
    found = [problem for problem in views.problems() if not problem[0].startswith("ordinal")]
    assert found == [("two_writers", path, *spot)]


def test_two_writers_with_the_same_ordinals(home: Home) -> None:
    """FAULTS 8, 20: both writers count on from the same place."""
    log = Log(PAGINATED)
    log.started("a")
    start = log.ordinal
    log.started("b")
    log.ordinal = start
    spot = log.asked("from a", "a")
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == ["from a"]
    assert ("ordinal_backwards", path, *spot) in views.problems()


# 29: the same message twice


@pytest.mark.parametrize("mode", MODES)
def test_message_and_event_are_one_turn(home: Home, mode: str) -> None:
    """FAULTS 29, trap 14: the item and the event of one message: one message in the history, one turn, one text."""
    log = Log(mode)
    log.turn("one")
    log.turn("two")
    home.put(log)
    views = home.read(log)
    assert views.effective() == pairs("one", "two")
    turns = views.lines(View.TURNS)
    assert [turn["user"] for turn in turns] == ["one", "two"]
    assert views.thread()["counts"]["turns"] == 2


def test_events_without_lifecycle(home: Home) -> None:
    """FAULTS 29, FORMAT 14.2: in old legacy logs the event opens the turn, the item doesn't."""
    log = Log(LEGACY)
    for text in ("one", "two"):
        log.asked(text, "")
        log.message("assistant", f"re: {text}")
        log.event("agent_message", message=f"re: {text}")
    home.put(log)
    views = home.read(log)
    assert views.effective() == pairs("one", "two")
    assert views.turns() == [("rollout-2", "completed"), ("rollout-6", "completed")]


def test_rollback_counts_a_message_once(home: Home) -> None:
    """FAULTS 29: a rollback of one takes one message and not its twin."""
    for mode in MODES:
        log = Log(mode, 1 + MODES.index(mode))
        log.turn("one")
        log.turn("two")
        log.rolled_back(1)
        home.put(log)
        assert home.read(log).effective() == pairs("one")


# 30: files of 2025 and of other tools

ID = Log().thread


def _bare(home: Home, *documents: Any, first: Any = None) -> tuple[str, bytes]:
    meta = {"id": ID, "timestamp": "2025-06-01T10:00:00.000Z", "instructions": None} if first is None else first
    data = b"".join(orjson.dumps(document) + b"\n" for document in (meta, *documents))
    path = f"sessions/2025/06/01/rollout-2025-06-01T10-00-00-{ID}.jsonl"
    return home.put_bytes(path, data), data


def test_bare_lines_of_2025(home: Home) -> None:
    """FAULTS 30, FORMAT 3.13: session meta, items and states without envelope: shown, though Codex itself cannot (trap
    36).
    """
    items = [message("user", "one"), message("assistant", "re: one"), {"type": "reasoning", "summary": []}]
    path, _ = _bare(home, {"record_type": "state"}, *items[:1], {"record_type": "state"}, *items[1:])
    views = home.read(ID)
    assert views.bytes(View.EFFECTIVE_HISTORY) == b"".join(orjson.dumps(item) + b"\n" for item in items)
    assert views.codes() == ["old_format"]
    [problem] = views.problems()
    assert problem[:2] == ("old_format", path)
    page = views.thread()
    assert (page["id"], page["history_mode"], page["identity_guessed"]) == (ID, "legacy", False)
    assert page["preview"] == "one"
    assert len(views.full()) == 6


def test_bare_line_that_is_damaged(home: Home) -> None:
    """FAULTS 30: damage is found there as everywhere."""
    path, data = _bare(home, message("user", "one"))
    home.put_bytes(path, data + b"rubbish\n" + orjson.dumps(message("assistant", "two")) + b"\n")
    views = home.read(ID)
    assert views.effective() == ["one", "two"]
    assert ("bad_record", path, len(data), 7) in views.problems()


def test_turn_context_of_2025(home: Home) -> None:
    """FAULTS 30, trap 37: `sandbox_policy` in its old shape: the line is lost for Codex; the items count."""
    log = Log(LEGACY)
    fields = {"cwd": "/repo", "approval_policy": "never", "model": "m", "summary": "auto"}
    spot = log.record("turn_context", fields | {"sandbox_policy": {"mode": "read-only"}})
    log.turn("one")
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == pairs("one")
    assert views.problems() == [("old_format", path, *spot)]


@pytest.mark.parametrize("mode", MODES)
def test_without_turn_context(home: Home, mode: str) -> None:
    """FAULTS 30: other tools write no turn context: then there are no settings, and nothing is made up."""
    log = Log(mode)
    log.message("user", "one")
    log.message("assistant", "re: one")
    home.put(log)
    views = home.read(log)
    assert views.effective() == views.sent() == pairs("one")
    assert orjson.loads(views.bytes(View.WORLD_STATE))["settings"] is None
    assert views.thread()["model"] is None
    assert views.problems() == []


@pytest.mark.parametrize("mode", MODES)
def test_records_of_unknown_kinds(home: Home, mode: str) -> None:
    """FAULTS 30: what a newer release or another tool added is shown in the full history, is no damage and never
    effective.
    """
    log = Log(mode)
    log.turn("one")
    log.record("hologram", {"x": 1})
    log.event("telepathy", x=1)
    log.item("brain_wave", x=1)
    log.turn("two")
    home.put(log)
    views = home.read(log)
    assert views.effective() == pairs("one", "two")
    assert views.turns() == done("one", "two")
    assert views.problems() == []
    assert views.thread()["counts"]["unknown"] == 3
    odd = [line for line in views.full() if line["record"]["type"] == "hologram"]
    assert [line["effective"] for line in odd] == [False]


def test_envelope_of_mid_2025(home: Home) -> None:
    """FAULTS 30, FORMAT 3.3: the meta of September 2025 has few fields; 0.171 still loads it."""
    log = Log(LEGACY, meta=False)
    fields = {"id": log.thread, "timestamp": "2025-09-15T10:00:00.000Z", "cwd": "/repo"}
    log.record("session_meta", fields | {"originator": "codex_cli_rs", "cli_version": "0.36.0", "instructions": None})
    log.turn("one")
    home.put(log)
    views = home.read(log)
    assert views.effective() == pairs("one")
    assert views.problems() == []
