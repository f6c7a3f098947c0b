"""Logs that Hypothesis makes up: a small grammar of records, from well-formed turns to records in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from threadstore.boundaries import SUMMARY_PREFIX

from tests.core.logs import (
    Log,
    agent_message,
    assistant,
    call,
    context,
    developer,
    envelope,
    output,
    user,
    window_id,
)

Json = dict[str, Any]
Step = Callable[[Log], object]

TURNS = st.sampled_from(["a", "b", "c"])
MODELS = st.sampled_from(["small", "large"])
CALLS = st.sampled_from(["c1", "c2", "c3"])

ITEMS: st.SearchStrategy[Json] = st.one_of(
    st.sampled_from(["one", "two", "drei"]).map(user),
    st.just(user("<environment_context>x</environment_context>")),
    st.just(user(SUMMARY_PREFIX + "\nbefore")),
    st.just(developer("<permissions instructions>x")),
    st.just(developer("plain")),
    st.sampled_from(["yes", "no"]).map(assistant),
    st.just(agent_message()),
    st.builds(lambda trigger: envelope(trigger=trigger), st.booleans()),
    CALLS.map(call),
    CALLS.map(output),
    st.just({"type": "message", "role": "system", "content": [{"type": "input_text", "text": "s"}]}),
    st.just({"type": "reasoning", "summary": [], "content": None, "encrypted_content": None}),
)
STATES = st.dictionaries(
    st.sampled_from(["cwd", "env"]),
    st.one_of(
        st.none(), st.integers(0, 9), st.dictionaries(st.sampled_from(["x", "y"]), st.none() | st.integers(0, 9))
    ),
    max_size=2,
)
RESUME = st.one_of(
    st.none(),
    st.just({}),
    st.builds(
        lambda model: {
            "multi_agent_version": None,
            "last_started_turn_id": None,
            "previous_turn_settings": {"model": model, "comp_hash": None, "realtime_active": None},
        },
        MODELS,
    ),
)


@st.composite
def checkpoints(draw: st.DrawFn) -> Json:
    """The payload of a `compacted` record."""
    payload: Json = {"message": draw(st.sampled_from(["", "short", SUMMARY_PREFIX + "\nlong"]))}
    if draw(st.integers(0, 3)):
        payload["replacement_history"] = draw(st.lists(ITEMS, max_size=3))
    kind = draw(st.sampled_from(["none", "number", "both", "old"]))
    if kind in ("number", "both"):
        payload["window_number"] = draw(st.integers(0, 5))
    if kind == "both":
        payload |= {"first_window_id": window_id(0), "previous_window_id": None, "window_id": window_id(1)}
    if kind == "old":
        payload["window_id"] = draw(st.integers(0, 5))
    resume = draw(st.none() | RESUME)
    return payload if resume is None else payload | {"resume_metadata": resume}


def _communication(trigger: bool) -> Json:
    return {
        "author": "/root/a",
        "recipient": "/root",
        "other_recipients": [],
        "content": "do it",
        "trigger_turn": trigger,
    }


def token_info(total: int | None) -> Json | None:
    """What a `token_count` event tells; None stands for one that tells only of rate limits."""
    if total is None:
        return None
    names = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")
    usage = dict.fromkeys(names, 0) | {"total_tokens": total}
    return {"total_token_usage": usage, "last_token_usage": usage, "model_context_window": 100}


#: One record of any kind, wherever it comes.
RECORDS: st.SearchStrategy[Step] = st.one_of(
    ITEMS.map(lambda item: lambda log: log.item(item)),
    TURNS.map(lambda turn: lambda log: log.start(turn)),
    TURNS.map(lambda turn: lambda log: log.complete(turn)),
    (TURNS | st.none()).map(lambda turn: lambda log: log.event("turn_aborted", turn_id=turn, reason="interrupted")),
    st.just(lambda log: log.said("hello", "a")),
    st.just(lambda log: log.event("user_message", message="hello")),
    st.builds(
        lambda model, turn: lambda log: log.add("turn_context", context(model, turn=turn)), MODELS, TURNS | st.none()
    ),
    st.builds(lambda state, full: lambda log: log.world(state, full=full), STATES, st.booleans()),
    st.integers(0, 3).map(lambda count: lambda log: log.roll_back(count)),
    checkpoints().map(lambda payload: lambda log: log.add("compacted", payload)),
    (st.none() | st.integers(1, 99)).map(lambda total: lambda log: log.event("token_count", info=token_info(total))),
    st.booleans().map(lambda trigger: lambda log: log.add("inter_agent_communication", _communication(trigger))),
    st.just(lambda log: log.event("thread_settings_applied", thread_settings={"model": "m", "cwd": "/repo/sub"})),
    st.just(lambda log: log.event("agent_message", message="yes")),
)


@st.composite
def whole_turns(draw: st.DrawFn) -> Step:
    """A turn as Codex writes one: completed, aborted or cut off, with a user or without."""
    turn = draw(TURNS)
    model = draw(MODELS | st.none())
    text = draw(st.sampled_from(["one", "two", None]))
    items = draw(st.lists(ITEMS, max_size=3))
    checkpoint = draw(st.none() | checkpoints())
    before, after = (draw(st.none() | st.tuples(STATES, st.booleans())) for _ in range(2))
    counted = draw(st.booleans())
    end = draw(st.sampled_from(["complete", "complete", "abort", "none"]))

    def write(log: Log) -> None:
        log.start(turn)
        if model is not None:
            log.add("turn_context", context(model, turn=turn))
        if before is not None:
            log.world(before[0], full=before[1])
        if text is not None:
            log.item(user(text)).said(text, turn)
        log.item(*items)
        if checkpoint is not None:
            log.add("compacted", checkpoint)
        if after is not None:
            log.world(after[0], full=after[1])
        if counted:
            log.event("token_count", info=token_info(len(log.lines)))
        if end == "complete":
            log.complete(turn)
        elif end == "abort":
            log.event("turn_aborted", turn_id=turn, reason="interrupted")

    return write


STEPS = st.lists(st.one_of(whole_turns(), RECORDS), max_size=8)


@st.composite
def tails(draw: st.DrawFn) -> Step:
    """What lets a replay stop early: a checkpoint and a turn. One part may be missing, which makes it read on."""
    checkpoint: Json = {"message": "", "replacement_history": draw(st.lists(ITEMS, max_size=2))}
    parts = ("start", "world", "tokens", "context", "user", "complete", "window")
    missing = draw(st.sampled_from([None, *parts]))
    has = {part: part != missing for part in parts}
    if has["window"]:
        checkpoint |= draw(st.sampled_from([{"window_number": 9}, {"window_id": 8}]))
    before = draw(st.none() | st.tuples(STATES, st.booleans()))
    patch = draw(STATES)
    replaced = draw(st.sampled_from([None, None, 0, "of the old kind"]))
    undone = draw(st.lists(whole_turns(), max_size=1)) if draw(st.booleans()) else None

    def write(log: Log) -> None:
        if has["start"]:
            log.start("k")
        if before is not None:
            log.world(before[0], full=before[1])
        if isinstance(replaced, str):
            log.compacted(replaced)
        elif replaced is not None:
            log.roll_back(replaced)
        log.add("compacted", checkpoint)
        if has["world"]:
            log.world({"cwd": 1, "env": {"x": 1}}, full=True)
        log.complete("k").start("l")
        if has["context"]:
            log.add("turn_context", context("tail", turn="l"))
        if has["user"]:
            log.item(user("tail"))
        log.world(patch, full=False)
        if has["tokens"]:
            log.event("token_count", info=token_info(1))
        if has["complete"]:
            log.complete("l")
        if undone is not None:
            for step in undone:
                step(log)
            log.roll_back(1)

    return write


@st.composite
def logs(draw: st.DrawFn, *, paginated: bool | None = None) -> Log:
    """A rollout of either mode. Every third one is legacy and ends in such a tail."""
    tail = paginated is None and draw(st.integers(0, 2)) == 0
    mode = draw(st.booleans()) and not tail if paginated is None else paginated
    meta = draw(st.sampled_from([{}, {"context_window": {"window_id": window_id(7)}}]))
    log = Log(mode, meta=meta)
    for step in draw(st.lists(whole_turns(), min_size=1, max_size=3) if tail else STEPS):
        step(log)
    if tail:
        draw(tails())(log)
    return log
