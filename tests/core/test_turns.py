"""The list of turns of either mode, rule by rule (FORMAT 14.1, 14.2)."""

from __future__ import annotations

from pathlib import Path

import pytest
from threadstore.projection import View

from tests.core.logs import Log, Store, user


def listed(folder: Path, log: Log) -> list[tuple[str, str]]:
    """Ids and statuses of effective turns."""
    rows = Store(folder / "home", log).rows(View.TURNS)
    return [(row["id"], row["status"]) for row in rows if row["effective"]]


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ("s", "interrupted"),
        ("sc", "completed"),
        ("sa", "interrupted"),
        ("sf", "failed"),
        ("sac", "interrupted"),
        ("sca", "completed"),
        ("sfc", "failed"),
        ("scs", "completed"),
        ("c", "completed"),
        ("a", "interrupted"),
        ("ss", "interrupted"),
    ],
)
def test_first_end_of_a_paginated_turn_wins(tmp_path: Path, events: str, status: str) -> None:
    """FORMAT 14.1: any lifecycle record opens a turn, and what follows its first end changes nothing."""
    assert listed(tmp_path, ended(Log(True), events)) == [("t", status)]


@pytest.mark.parametrize(
    ("events", "turns"),
    [
        ("s", ["interrupted"]),
        ("sc", ["completed"]),
        ("sf", ["failed"]),
        ("sac", ["interrupted"]),
        ("sca", ["interrupted"]),
        ("sfc", ["completed"]),
        ("scs", ["completed", "interrupted"]),
        ("c", []),
        ("a", []),
        ("ss", ["interrupted", "interrupted"]),
    ],
)
def test_ends_of_a_legacy_turn(tmp_path: Path, events: str, turns: list[str]) -> None:
    """FORMAT 14.2: only a start opens an explicit turn, again and again; an abort counts after the end as well."""
    assert [status for _, status in listed(tmp_path, ended(Log(), events))] == turns


def ended(log: Log, events: str) -> Log:
    """A log with lifecycle records of one turn: start, complete, fail, abort."""
    for letter in events:
        if letter == "s":
            log.start("t")
        elif letter == "c":
            log.complete("t")
        elif letter == "f":
            log.event("task_complete", turn_id="t", last_agent_message=None, error={"message": "no"})
        else:
            log.event("turn_aborted", turn_id="t", reason="interrupted")
    return log


def test_paginated_items_open_no_turn(tmp_path: Path) -> None:
    """FORMAT 14.1: items of an unknown turn show nowhere; an abort without id is ignored; ends of others count."""
    log = Log(True).said("hello", "x").item(user("hello")).event("turn_aborted", turn_id=None, reason="interrupted")
    log.start("a").start("b").complete("a")
    assert listed(tmp_path, log) == [("a", "completed"), ("b", "interrupted")]


def test_implicit_turns(tmp_path: Path) -> None:
    """FORMAT 14.2: without a start the events of the user interface open turns, named after their record."""
    log = Log().item(user("one")).said("one").event("agent_message", message="1")  # records 1 to 3
    log.item(user("two")).event("custom_event").said("two")  # the event is of no known kind and does not count
    log.event("agent_reasoning", text="hm").event("turn_aborted", reason="interrupted").event(
        "agent_message", message="2"
    )
    assert listed(tmp_path, log) == [
        ("rollout-2", "completed"),
        ("rollout-5", "interrupted"),
        ("rollout-8", "completed"),
    ]


def test_checkpoints_open_empty_turns(tmp_path: Path) -> None:
    """FORMAT 14.2: the next user message joins such a turn; within an explicit turn a checkpoint opens none."""
    log = Log().compacted("S").said("one").start("a").compacted("S").complete("a").compacted("S")
    assert [turn for turn, _ in listed(tmp_path, log)] == ["rollout-1", "a", "rollout-6"]


def test_legacy_rollback_takes_turns_of_any_kind(tmp_path: Path) -> None:
    """FORMAT 14.2: the last n turns of the list, whether a person wrote in them or not; what is taken stays listed."""
    log = Log().turn("a", "one").start("b").complete("b").compacted("S").roll_back(2).turn("c", "three")
    assert [turn for turn, _ in listed(tmp_path / "two", log)] == ["a", "c"]
    rows = Store(tmp_path / "all", log).rows(View.TURNS)
    assert [(row["id"], row["why"]) for row in rows] == [
        ("a", None),
        ("b", "rolled_back"),
        ("rollout-8", "rolled_back"),
        ("c", None),
    ]
    assert [row["number"] for row in rows] == [1, None, None, 2]


def test_attached_fork_lists_its_own_turns(tmp_path: Path) -> None:
    """FORMAT 14.1: its history inherits all the same."""
    parent = Log(True, "01a22938-0000-7000-8000-000000000001").turn("a", "one")
    child = Log(True, base=parent.end(), meta={"attached_thread": True}).turn("b", "two")
    store = Store(tmp_path / "home", parent, child)
    assert [row["id"] for row in store.rows(View.TURNS)] == ["b"]
    assert store.history()[0] == user("one")


def test_inherited_context_of_a_sub_agent_is_no_turn_of_its_own(tmp_path: Path) -> None:
    """FORMAT 15.4: records below `subagent_history_start_ordinal` are history, but in no turn."""
    log = Log(True).turn("a", "one")
    start = len(log.lines)
    log = Log(True, meta={"subagent_history_start_ordinal": start}).turn("a", "one").turn("b", "two")
    store = Store(tmp_path / "home", log)
    assert [row["id"] for row in store.rows(View.TURNS)] == ["b"]
    assert store.history()[0] == user("one")
