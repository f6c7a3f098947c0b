"""The examples of the documents that this project was created from (`seeds/`, in Chinese).

*Chapter 10*: "persistence and recovery", file 000_0bb5cd9e83cc7cec.txt.  *The reconstruction article*: section 8.21 of
"reading Codex", file 004_3ec8a31c20e9c702.txt; the *resume chapter*: file 003_d2d336c96312237b.txt; the *compaction
article*: file 001_ccceb5937dbb3653.txt.  Each docstring names its section.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from threadstore.projection import StoreView, View

from tests.core.logs import (
    Log,
    Store,
    agent_message,
    assistant,
    call,
    content,
    context,
    dumps,
    envelope,
    output,
    thread_id,
    user,
    window_id,
)

BOTH = pytest.mark.parametrize("paginated", [False, True], ids=["legacy", "paginated"])
NOTE = user("<environment_context>\n  <cwd>/repo</cwd>\n</environment_context>")


def effective_turns(store: Store, thread: str | None = None) -> list[tuple[str, str]]:
    """Ids and statuses of the turns that count."""
    rows = store.rows(View.TURNS, thread) if thread is not None else store.rows(View.TURNS)
    return [(turn["id"], turn["status"]) for turn in rows if turn["effective"]]


# Chapter 10.3.1

FIXED = user("修复登录超时")
SUMMARY = assistant("摘要：已完成登录超时修复，测试通过")
DEPLOY = call("c1", "deploy", arguments='{"target":"staging"}')
STAGING = [
    user("发布到 staging"),
    DEPLOY,
    output("c1", "deployment succeeded"),
    assistant("staging 发布完成"),
]


def example(*, paginated: bool, literal: bool = False) -> Log:
    """The 25 records, as each mode writes them.

    In a real log what a person says is there twice: as an event for the user interface and as the item that the model
    reads (FORMAT 1, trap 14).  The chapter has one record for both in the rolled-back turn; here it is the item,
    without which the turn would have nothing that a rollback can count.  `literal` makes it the event.
    """
    log = Log(paginated)  # 1
    log.start("fix-login").said("修复登录超时", "fix-login")
    log.add("turn_context", context("model-large", "on-request", "fix-login"))
    log.world({"cwd": "/repo", "environment": "local"}, full=True)
    log.item(FIXED, assistant("已修改重试逻辑并通过测试")).complete("fix-login")  # 8
    log.compacted(
        replacement_history=[FIXED, SUMMARY],
        window_number=2,
        first_window_id=window_id(0),
        previous_window_id=window_id(1),
        window_id=window_id(2),
    )
    log.world({"cwd": "/repo", "environment": "local"}, full=True)
    log.start("deploy-staging").said("发布到 staging", "deploy-staging")
    log.add("turn_context", context("model-large", "on-request", "deploy-staging"))
    log.world({"environment": "staging"}, full=False)
    log.item(*STAGING).complete("deploy-staging")  # 19
    log.start("deploy-production")
    if literal:
        log.said("继续发布 production", "deploy-production")
    else:
        log.item(user("继续发布 production"))
    log.add("turn_context", context("model-small", "never", "deploy-production"))
    log.item(assistant("无法执行需要审批的发布")).complete("deploy-production")
    return log.roll_back(1)  # 25


@BOTH
def test_replay_of_25_records(tmp_path: Path, *, paginated: bool) -> None:
    """Chapter 10.3.1, the table of what replay gives in the end: thread, history, model, approval, world, window."""
    log = example(paginated=paginated)
    assert len(log.lines) == 25
    store = Store(tmp_path / "home", log)
    assert store.page(View.THREAD)["id"] == log.thread
    assert store.history() == [FIXED, SUMMARY, *STAGING]
    state = store.page(View.WORLD_STATE)
    assert (state["settings"]["model"], state["settings"]["approval_policy"]) == ("model-large", "on-request")
    assert state["world_state"] == {"cwd": "/repo", "environment": "staging"}
    assert state["context_window"]["number"] == 2
    assert state["context_window"]["window_id"] == window_id(2)
    assert store.rows(View.PENDING_CALLS) == []
    if not paginated:
        turns = {turn["id"]: turn["effective"] for turn in store.rows(View.TURNS) if not turn["implicit"]}
        assert turns == {"fix-login": True, "deploy-staging": True, "deploy-production": False}


def test_turn_list_of_a_paginated_thread_with_a_marker(tmp_path: Path) -> None:
    """Chapter 10.9.2: paginated threads take no rollback markers. In one that has them all the same, Codex's history
    honours the marker and its list of turns does not; ours are the same.
    """
    store = Store(tmp_path / "home", example(paginated=True))
    assert [turn for turn, _ in effective_turns(store)] == ["fix-login", "deploy-staging", "deploy-production"]


@BOTH
def test_rolled_back_turn_stays_in_the_log(tmp_path: Path, *, paginated: bool) -> None:
    """Chapter 10.3.1: the production turn "stays in the physical rollout, but not in this effective history"."""
    store = Store(tmp_path / "home", example(paginated=paginated))
    refused = [row for row in store.rows(View.FULL_HISTORY) if "无法执行" in str(row)]
    assert [row["effective"] for row in refused] == [False]
    assert len(store.rows(View.FULL_HISTORY)) == 25


@BOTH
def test_literal_25_records(tmp_path: Path, *, paginated: bool) -> None:
    """Chapter 10.3.1 written with an event but no item for the rolled-back turn: no log of Codex looks like that.

    Codex 0.171.0 was asked and drops the staging turn then, since rollback counts items; so do we.
    """
    store = Store(tmp_path / "home", example(paginated=paginated, literal=True))
    assert store.history() == [FIXED, SUMMARY]


# Chapter 10.13

EDIT = [call("edit", "apply_patch"), output("edit", "auth.toml changed")]
TESTED = [call("test"), output("test", "12 passed")]
PUBLISH = call("publish", "deploy", arguments='{"target":"test"}')
TASK = user("迁移鉴权配置，运行测试，再发布到测试环境")


def crashed(*, paginated: bool) -> Log:
    """The log as the crash leaves it: the request for publishing is out, its answer is not recorded."""
    log = Log(paginated).turn("earlier", "hello")
    log.start("migrate").add("turn_context", context(turn="migrate")).item(TASK).said("迁移", "migrate")
    return log.item(*EDIT, *TESTED, PUBLISH)


@BOTH
def test_crash_before_the_answer(tmp_path: Path, *, paginated: bool) -> None:
    """Chapter 10.13: what was done is known, the last turn is interrupted, and of publishing no result is reliable."""
    store = Store(tmp_path / "home", crashed(paginated=paginated))
    assert effective_turns(store) == [("earlier", "completed"), ("migrate", "interrupted")]
    assert store.page(View.THREAD)["status"] == "interrupted"
    (pending,) = store.rows(View.PENDING_CALLS)
    assert (pending["call_id"], pending["name"], pending["effect"]) == ("publish", "deploy", "unknown")
    assert store.history()[-1] == PUBLISH
    assert store.rows(View.MODEL_INPUT)[-1]["output"] == "aborted"


@BOTH
def test_crash_in_the_middle_of_a_line(tmp_path: Path, *, paginated: bool) -> None:
    """Chapter 10.5: a damaged line costs one record, not the history."""
    log = crashed(paginated=paginated)
    log.item(output("publish", "deployed"))
    store = Store(tmp_path / "home", log)
    whole = store.history()
    store.write(log.name, log.data[:-9])
    assert store.history() == whole[:-1]
    assert [problem["code"] for problem in store.rows(View.PROBLEMS)] == ["torn_tail"]


def test_fork_before_publishing(tmp_path: Path) -> None:
    """Chapter 10.13: a fork from before the last round has the shared past and its own future; the source is the same
    as before.
    """
    source = crashed(paginated=True)
    start = next(n for n, line in enumerate(source.lines) if b'"task_started"' in line and b'"migrate"' in line)
    child = Log(True, thread_id(2), base=source.end(start), meta={"forked_from_id": source.thread})
    child.turn("other", "try other parameters")
    store = Store(tmp_path / "home", source, child)
    before = store.history()
    assert store.history(child.thread) == [
        user("hello"),
        assistant("re: hello"),
        user("try other parameters"),
        assistant("re: try other parameters"),
    ]
    assert effective_turns(store, child.thread) == [("earlier", "completed"), ("other", "completed")]
    assert before[-1] == PUBLISH
    source.item(output("publish", "late answer"))
    store.write(source.name, source.data)
    assert [item for item in store.history(child.thread) if item.get("call_id")] == []


def test_rollback_of_the_last_round(tmp_path: Path) -> None:
    """Chapter 10.13: after a rollback the model has forgotten the round; the log has not."""
    store = Store(tmp_path / "home", crashed(paginated=False).roll_back(1))
    assert store.history() == [user("hello"), assistant("re: hello")]
    assert effective_turns(store) == [("earlier", "completed")]
    assert store.rows(View.PENDING_CALLS) == []
    assert any(row["record"]["payload"] == PUBLISH for row in store.rows(View.FULL_HISTORY))


# The reconstruction article: golden cases


@BOTH
def test_rollback_of_a_completed_turn(tmp_path: Path, *, paginated: bool) -> None:
    """Reconstruction article, golden tests, completed turn: history and settings go back together."""
    log = Log(paginated).turn("1", "one", model="a").turn("2", "two", model="b").roll_back(1)
    store = Store(tmp_path / "home", log)
    assert store.history() == [user("one"), assistant("re: one")]
    assert store.page(View.WORLD_STATE)["settings"]["model"] == "a"


@BOTH
def test_rollback_of_an_incomplete_turn(tmp_path: Path, *, paginated: bool) -> None:
    """Reconstruction article, golden tests, incomplete turn: one without an end is a segment as well."""
    log = Log(paginated).turn("1", "one", model="a").turn("2", "two", call("c"), model="b", end=False).roll_back(1)
    store = Store(tmp_path / "home", log)
    assert store.history() == [user("one"), assistant("re: one")]
    assert store.page(View.WORLD_STATE)["settings"]["model"] == "a"
    assert store.rows(View.PENDING_CALLS) == []


@BOTH
def test_rollback_passes_over_turns_without_a_user(tmp_path: Path, *, paginated: bool) -> None:
    """Reconstruction article, golden tests, non-user turn: maintenance does not use up a rollback."""
    log = Log(paginated).turn("1", "one", model="a").turn("2", "two", model="b")
    log.start("maintenance").add("turn_context", context("c", turn="maintenance")).item(NOTE).complete("maintenance")
    store = Store(tmp_path / "home", log.roll_back(1))
    assert store.history() == [user("one"), assistant("re: one")]
    assert store.page(View.WORLD_STATE)["settings"]["model"] == "a"


@BOTH
@pytest.mark.parametrize("message", [agent_message(), envelope(), envelope(trigger=False)])
def test_rollback_counts_messages_of_agents(tmp_path: Path, message: dict[str, Any], *, paginated: bool) -> None:
    """Reconstruction article, golden tests, inter-agent turn: another agent's message begins one, whatever triggers."""
    log = Log(paginated).turn("1", "one", model="a")
    log.start("2").add("turn_context", context("b", turn="2")).item(message, assistant("done")).complete("2")
    store = Store(tmp_path / "home", log)
    assert store.history()[2:] == [message, assistant("done")]
    store.write(log.name, log.roll_back(1).data)
    assert store.history() == [user("one"), assistant("re: one")]
    assert store.page(View.WORLD_STATE)["settings"]["model"] == "a"


@BOTH
def test_rollback_counts_communication_records(tmp_path: Path, *, paginated: bool) -> None:
    """Reconstruction article, "segments are not cut at any role=user": a communication is a boundary, too.

    Its model-visible form is made, not stored (FORMAT 3.5).
    """
    communication = {"author": "/root/a", "recipient": "/root", "content": "do it", "trigger_turn": False}
    log = Log(paginated).turn("1", "one").start("2")
    log.add("inter_agent_communication", communication | {"other_recipients": []})
    log.item(assistant("done")).complete("2")
    store = Store(tmp_path / "home", log)
    assert store.history()[2:] == [agent_message(), assistant("done")]
    store.write(log.name, log.roll_back(1).data)
    assert store.history() == [user("one"), assistant("re: one")]


@BOTH
def test_several_rollbacks_add_up(tmp_path: Path, *, paginated: bool) -> None:
    """Reconstruction article, golden tests, several rollbacks; chapter 10.9.1: they take effect one after another."""
    log = Log(paginated)
    for name in ("one", "two", "three", "four"):
        log.turn(name, name, model=name)
    log.roll_back(1).roll_back(2)
    store = Store(tmp_path / "home", log)
    assert store.history() == [user("one"), assistant("re: one")]
    store.write(log.name, log.turn("five", "five", model="five").roll_back(1).data)
    assert store.history() == [user("one"), assistant("re: one")]
    assert store.page(View.WORLD_STATE)["settings"]["model"] == "one"


@BOTH
def test_newest_of_several_checkpoints_is_the_base(tmp_path: Path, *, paginated: bool) -> None:
    """Reconstruction article, golden tests, several checkpoints: the newest one stands for everything before it."""
    log = Log(paginated).turn("1", "one").compacted(replacement_history=[user("first base")]).turn("2", "two")
    log.compacted(replacement_history=[user("second base")]).turn("3", "three")
    store = Store(tmp_path / "home", log)
    assert store.history() == [user("second base"), user("three"), assistant("re: three")]
    assert store.page(View.THREAD)["counts"]["checkpoints"] == 2


@BOTH
def test_base_has_to_survive(tmp_path: Path, *, paginated: bool) -> None:
    """Reconstruction article, invariants: a checkpoint inside a rolled-back turn is not the base, an older one is."""
    log = Log(paginated).turn("1", "one").compacted(replacement_history=[user("base")]).turn("2", "two")
    log.start("3").item(user("three")).said("three", "3")
    log.compacted(replacement_history=[user("lost base")]).item(assistant("re: three")).complete("3").roll_back(1)
    store = Store(tmp_path / "home", log)
    assert store.history() == [user("base"), user("two"), assistant("re: two")]


@BOTH
@pytest.mark.parametrize("count", [2, 3, 4294967295])
def test_rollback_out_of_range(tmp_path: Path, count: int, *, paginated: bool) -> None:
    """Reconstruction article, golden tests, rollback out of range: all turns go, what was before the first stays."""
    log = Log(paginated).item(NOTE).turn("1", "one", model="a").turn("2", "two", model="b").roll_back(count)
    store = Store(tmp_path / "home", log)
    assert store.history() == [NOTE]
    assert store.page(View.WORLD_STATE)["settings"] is None


@BOTH
def test_contextual_messages_do_not_use_up_a_rollback(tmp_path: Path, *, paginated: bool) -> None:
    """Reconstruction article, table of faults, row 1: a contextual message is no turn."""
    log = Log(paginated).turn("1", "one").turn("2", "two", NOTE, assistant("re: two")).roll_back(1)
    assert Store(tmp_path / "home", log).history() == [user("one"), assistant("re: one")]


def test_a_checkpoint_alone_does_not_stop_the_scan(tmp_path: Path) -> None:
    """Reconstruction article, "early stop needs several facts": settings older than the checkpoint are still found."""
    log = Log().turn("1", "one", model="a").start("2").compacted(replacement_history=[user("base")]).complete("2")
    store = Store(tmp_path / "home", log)
    state = store.page(View.WORLD_STATE)
    assert state["settings"]["model"] == "a"
    assert state["reference_context"] is None, "a checkpoint clears what the next context is compared with"


def test_settings_of_a_cut_turn_come_from_the_checkpoint(tmp_path: Path) -> None:
    """Reconstruction article, table of faults, row 2: a turn of which only the end is read gives no settings."""
    previous = {"model": "before", "comp_hash": None, "realtime_active": None}
    resume = {
        "multi_agent_version": None,
        "last_started_turn_id": "1",
        "previous_turn_settings": previous,
    }
    log = Log().start("1").item(user("one"))
    log.compacted(replacement_history=[user("base")], window_number=1, resume_metadata=resume)
    log.add("turn_context", context("half", turn="1")).item(user("more"))
    state = Store(tmp_path / "home", log).page(View.WORLD_STATE)
    assert state["settings"] is None
    assert state["previous_turn_settings"] == previous


@BOTH
def test_checkpoint_without_replacement_history(tmp_path: Path, *, paginated: bool) -> None:
    """Reconstruction article, table of faults, row 4, and the resume chapter, "legacy compaction": user messages and
    the summary are what is left, and the reference context is gone.
    """
    log = Log(paginated).item(NOTE).turn("1", "one", model="a").turn("2", "two", model="b").compacted("the summary")
    log.turn("3", "three", model="c")
    store = Store(tmp_path / "home", log)
    assert store.history() == [
        user("one"),
        user("two"),
        user("the summary"),
        user("three"),
        assistant("re: three"),
    ]
    state = store.page(View.WORLD_STATE)
    assert (state["settings"]["model"], state["reference_context"]) == ("c", None)


# Chapter 10.14: failure modes, as far as reading goes. The rows on writers and on operations are not here.


def test_more_than_the_chat_is_rebuilt(tmp_path: Path) -> None:
    """Chapter 10.14, row 1 (only the text is kept): tools, permissions and the state of compaction are rebuilt."""
    state = Store(tmp_path / "home", example(paginated=False)).page(View.WORLD_STATE)
    assert all(state[key] for key in ("world_state", "settings", "context_window"))


def test_events_that_are_no_facts_change_nothing(tmp_path: Path) -> None:
    """Chapter 10.14, row 2 (every event is kept): deltas and progress in a log are passed over, and are no damage."""
    log = Log().start("1").item(user("one")).said("one")
    plain = Store(tmp_path / "plain", log)
    wanted = [plain.history(), effective_turns(plain)]
    log.event("agent_message_delta", delta="re:").event("exec_command_output_delta", call_id="c", chunk="AA==")
    log.event("mcp_startup_update", server="s").add("future_record", {"x": 1})
    noisy = Store(tmp_path / "noisy", log)
    assert [noisy.history(), effective_turns(noisy)] == wanted
    assert noisy.rows(View.PROBLEMS) == []
    assert noisy.page(View.THREAD)["counts"]["unknown"] == 4


@BOTH
def test_a_call_without_result_is_neither_failed_nor_run_again(tmp_path: Path, *, paginated: bool) -> None:
    """Chapter 10.14, row 3 (dangling tools are run again): listed as unknown, and nothing is made up in the history."""
    log = Log(paginated).turn("1", "one", call("c"), assistant("it hangs")).turn("2", "two")
    store = Store(tmp_path / "home", log)
    assert [row["effect"] for row in store.rows(View.PENDING_CALLS)] == ["unknown"]
    assert not any(item["type"] == "function_call_output" for item in store.history())
    sent = store.rows(View.MODEL_INPUT)
    assert [item["type"] for item in sent[1:3]] == ["function_call", "function_call_output"]


@BOTH
def test_waiters_do_not_come_back(tmp_path: Path, *, paginated: bool) -> None:
    """Chapter 10.14, row 4 (futures are stored): a turn that waited for an approval is interrupted, not running."""
    log = Log(paginated).turn("1", "one", call("c"), end=False).event("exec_approval_request", call_id="c")
    store = Store(tmp_path / "home", log)
    assert store.page(View.THREAD)["status"] == "interrupted"
    assert store.rows(View.PROBLEMS) == []


@BOTH
def test_reading_changes_no_byte(tmp_path: Path, *, paginated: bool) -> None:
    """Chapter 10.14, rows 5 and 7 (snapshots replace history, rollback is taken for undo): files are left alone."""
    workspace = tmp_path / "repo"
    workspace.mkdir()
    (workspace / "auth.toml").write_text("changed")
    log = Log(paginated, meta={"cwd": str(workspace)}).turn("1", "one").roll_back(1)
    store = Store(tmp_path / "home", log)

    def state() -> list[tuple[str, int, str]]:
        return [
            (str(path), path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
            for path in sorted(tmp_path.rglob("*"))
            if path.is_file()
        ]

    before = state()
    for view in View:
        store.read(view)
    assert state() == before


@pytest.mark.parametrize("database", [b"", b"no database", b"SQLite format 3\0" + bytes(4000)])
def test_a_broken_database_loses_no_thread(tmp_path: Path, database: bytes) -> None:
    """Chapter 10.14, row 6 (SQLite is taken for the truth): damaged or empty, it changes no answer, and is named."""
    log = example(paginated=True)
    plain, broken = Store(tmp_path / "plain", log), Store(tmp_path / "broken", log)
    broken.write("state_5.sqlite", database)
    for view in View:
        assert broken.read(view) == plain.read(view)
    problems = content(broken.store, broken.store.project_store(StoreView.PROBLEMS))
    assert b"index_corrupt" in problems


def test_a_fork_from_within_a_call_is_coherent(tmp_path: Path) -> None:
    """Chapter 10.14, row 8 (a fork anywhere): cut between call and result, or inside a line, it stays well-formed."""
    source = Log(True).turn("1", "one", call("c"), output("c"), assistant("done"))
    at = next(n for n, line in enumerate(source.lines) if b"function_call_output" in line)
    rollout, ordinal, offset = source.end(at)
    between = Log(True, thread_id(2), base=(rollout, ordinal, offset))
    inside = Log(True, thread_id(3), base=(rollout, ordinal + 1, offset + 40))
    store = Store(tmp_path / "home", source, between, inside)
    for child in (between, inside):
        assert store.history(child.thread) == [user("one"), call("c")]
        assert [row["call_id"] for row in store.rows(View.PENDING_CALLS, child.thread)] == ["c"]
        assert [item["type"] for item in store.rows(View.MODEL_INPUT, child.thread)][-1] == "function_call_output"
        assert effective_turns(store, child.thread) == [("1", "interrupted")]


@BOTH
def test_a_checkpoint_without_state_gives_no_state(tmp_path: Path, *, paginated: bool) -> None:
    """Chapter 10.14, row 9 (a checkpoint is only a summary): patches without a full state are not guessed at."""
    log = Log(paginated).turn("1", "one").world({"cwd": "/repo"}, full=True)
    log.compacted(replacement_history=[user("base")]).world({"environment": "staging"}, full=False)
    assert Store(tmp_path / "home", log).page(View.WORLD_STATE)["world_state"] is None


def test_old_names_are_read(tmp_path: Path) -> None:
    """Chapter 10.14, row 10 (formats change): aliases, absent fields and numbers that became ids are understood."""
    log = Log(meta={"history_mode": None})
    log.lines[0] = log.lines[0].replace(b',"history_mode":null', b"").replace(b',"source":"vscode"', b"")
    log.event("turn_started", turn_id="1").item(user("one")).said("one").event("turn_complete", turn_id="1")
    log.compacted(replacement_history=[user("base")], window_id=7)
    store = Store(tmp_path / "home", log)
    assert store.history() == [user("base")]
    assert effective_turns(store) == [("1", "completed"), ("rollout-5", "completed")]
    assert store.page(View.WORLD_STATE)["context_window"]["number"] == 7
    assert store.page(View.THREAD)["history_mode"] == "legacy"
    assert dumps(user("one")) in store.read(View.FULL_HISTORY)


def test_logs_without_envelopes_are_read(tmp_path: Path) -> None:
    """Chapter 10.14, row 10: the lines of mid 2025, whose session meta may be longer than what is read at first."""
    log = Log()
    meta = {"id": log.thread, "timestamp": "2025-06-01T10:00:00.000Z", "instructions": "x" * 100_000}
    store = Store(tmp_path / "home")
    store.write(log.name, b"".join(dumps(line) + b"\n" for line in (meta, user("one"), {"record_type": "state"})))
    assert store.history() == [user("one")]
    assert store.page(View.THREAD)["identity_guessed"] is False


# The compaction article


def test_checkpoint_adds_and_erases_nothing(tmp_path: Path) -> None:
    """Compaction article, "writing a checkpoint, not rewriting the past": the log before it is all still there."""
    log = Log(True).turn("1", "one").compacted(replacement_history=[user("base")], window_number=1)
    store = Store(tmp_path / "home", log)
    assert store.history() == [user("base")]
    assert [row["record"]["type"] for row in store.rows(View.FULL_HISTORY)][-1] == "compacted"
    assert any(row["record"]["payload"] == user("one") for row in store.rows(View.FULL_HISTORY))


def test_revert_changes_the_rollout_and_not_the_thread(tmp_path: Path) -> None:
    """Compaction article, "the thread stays, its lineage changes": same thread id, shared prefix, old file kept."""
    source = Log(True).turn("1", "one").turn("2", "two")
    start = next(n for n, line in enumerate(source.lines) if b'"task_started"' in line and b'"2"' in line)
    revert = Log(True, rollout=thread_id(99), base=source.end(start))
    revert.turn("3", "three")
    store = Store(tmp_path / "home", source, revert)
    assert store.store.thread_ids() == [source.thread]
    assert store.history() == [user("one"), assistant("re: one"), user("three"), assistant("re: three")]
    assert [rollout.rollout_id for rollout in store.store.rollouts(source.thread)] == [source.thread, thread_id(99)]
