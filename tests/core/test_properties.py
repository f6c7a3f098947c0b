"""What holds for every log: replay, rollback, growth and forks, on logs that Hypothesis makes up."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from threadstore import lineages, parts
from threadstore.checkpoints import initial_window
from threadstore.errors import StoreError
from threadstore.history import MADE, Item
from threadstore.lines import Line
from threadstore.projection import View
from threadstore.prompt import communication_item
from threadstore.records import Record, decode
from threadstore.replay import Replay, ReverseScan

from tests.core.logs import Log, Store, call, content, open_store, output, thread_id, user
from tests.core.model import Rebuilt, rebuild
from tests.core.threads import STEPS, logs, token_info

Json = dict[str, Any]
ON_DISK = settings(max_examples=settings().max_examples // 6)  # an example takes some milliseconds
REWRITTEN = b'"type":"inter_agent_communication"'


@dataclass
class Result:
    """A replay and how many records it took."""

    replay: Replay
    fed: int
    history: list[Json]


def replayed(log: Log, *, state: bool = True, exhaustive: bool = False) -> Result:
    """Replay a log from memory."""
    scan = ReverseScan(paginated=log.paginated, state=state, exhaustive=exhaustive)
    data = log.data
    fed = 0
    for number in range(len(log.lines) - 1, 0, -1):
        start = log.offset(number)
        record = decode(Line(start, start + len(log.lines[number]) - 1, log.lines[number][:-1]))
        assert isinstance(record, Record), log.lines[number]
        fed += 1
        if scan.feed(record, 0):
            break

    def fetch(item: Item) -> bytes:
        return data[item.offset : item.offset + item.length]

    replay = scan.result(initial_window(json.loads(log.lines[0])["payload"]), fetch)
    history = []
    for item in replay.history:
        raw = replay.history.made[item.offset] if item.segment == MADE else fetch(item)
        history.append(json.loads(communication_item(raw) if REWRITTEN in raw else raw))
    return Result(replay, fed, history)


def modelled(log: Log) -> Rebuilt:
    """The same by the plain model."""
    records = [json.loads(line) for line in log.lines]
    window = records[0]["payload"].get("context_window", {}).get("window_id")
    return rebuild(records[1:], paginated=log.paginated, initial=window)


@given(logs())
def test_replay_is_the_plain_algorithm(log: Log) -> None:
    """FORMAT 7: what the scan finds from the tail is what the page says, written out in full (tests/core/model.py)."""
    ours, model = replayed(log), modelled(log)
    event("bounded" if model.bounded else "stopped early" if ours.fed + 1 < len(log.lines) else "read to the start")
    found = ours.replay
    window = found.window
    assert ours.history == model.history
    assert found.settings == model.settings
    assert found.previous == model.previous
    assert found.reference == model.reference
    assert found.world == model.world
    assert (window.number, window.first_id, window.previous_id, window.current_id) == model.window
    assert found.tokens == model.tokens


@given(logs())
def test_early_stop_is_exhaustive_replay(log: Log) -> None:
    """Reading on to the first record changes nothing.

    When the newest checkpoint is complete, FORMAT 7.1 lets nothing older count, though it might say more (settings of a
    turn that the checkpoint cuts, say); so only the history is compared then, and the rest with the model above.
    """
    early, full = replayed(log), replayed(log, exhaustive=True)
    assert early.history == full.history
    assert early.replay.ops == full.replay.ops
    assert early.replay.base == full.replay.base
    assert list(early.replay.history) == list(full.replay.history)
    if not modelled(log).bounded:
        wanted = replace(
            full.replay,
            history=early.replay.history,
            checkpoints=early.replay.checkpoints,
            complete=early.replay.complete,
        )
        assert early.replay == wanted


@given(logs())
def test_history_alone_needs_no_more(log: Log) -> None:
    """A replay for the history only may stop sooner, and has the same history."""
    alone, whole = replayed(log, state=False), replayed(log)
    assert alone.fed <= whole.fed
    assert alone.history == whole.history
    assert (alone.replay.base, alone.replay.ops) == (whole.replay.base, whole.replay.ops)


def test_a_complete_checkpoint_bounds_the_scan() -> None:
    """FORMAT 7.1: of a long log with a complete checkpoint only the tail is read."""
    log = Log(True)
    for number in range(50):
        log.turn(str(number), "x", model="m")
    log.compacted(replacement_history=[], window_number=1).turn("last", "y")
    assert replayed(log).fed == replayed(log, state=False).fed == 6


def test_an_incomplete_checkpoint_bounds_the_scan_with_the_next_turn() -> None:
    """FORMAT 7.2: without step A the scan stops as soon as base, settings, world, window and tokens are known."""
    log = Log().world({"a": 1}, full=True)
    for number in range(50):
        log.turn(str(number), "x", model="m")
    log.start("c").compacted(replacement_history=[], window_number=1).world({"a": 1}, full=True).complete("c")
    log.event("token_count", info=token_info(1)).turn("last", "y", model="n")
    assert replayed(log).fed < 20
    assert replayed(log).history[0]["content"][0]["text"] == "y"


@given(logs(), st.integers(0, 4), st.integers(0, 4))
def test_rollbacks_add_up(log: Log, first: int, second: int) -> None:
    """Undoing a turns and then b is undoing a + b."""
    twice, once = copy.deepcopy(log), copy.deepcopy(log)
    twice.roll_back(first).roll_back(second)
    once.roll_back(first + second)
    ours, wanted = replayed(twice), replayed(once)
    assert ours.history == wanted.history
    assert replace(ours.replay, history=wanted.replay.history, ops=()) == replace(wanted.replay, ops=())


@given(logs())
def test_rollback_of_nothing(log: Log) -> None:
    """Undoing no turn changes nothing."""
    wanted = replayed(log).history
    log.roll_back(0)
    assert replayed(log).history == wanted


# On disk


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for one example."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def answers(store: Any, thread: str) -> dict[View, bytes | str]:
    """Every derived file of a thread."""
    found: dict[View, bytes | str] = {}
    for view in View:
        projection = store.project(thread, view)
        found[view] = projection.error if projection.extents is None else content(store, projection)
    return found


@ON_DISK
@given(logs(), st.lists(st.floats(0, 1), min_size=1, max_size=2), st.booleans())
def test_growing_is_as_from_scratch(log: Log, cuts: list[float], at_lines: bool) -> None:
    """A log that was read when it ended at any line or byte, also in its session meta, gives the same files when it has
    grown as one that is read for the first time.
    """
    data = log.data
    places = [int(cut * len(data)) for cut in cuts]
    if at_lines:
        places = [data.find(b"\n", place) + 1 for place in places]
    check_growth(log, places)


def check_growth(log: Log, places: list[int]) -> None:
    """Read a log whenever it ends at one of these places, in one process and in a new one each time."""
    data = log.data
    passes: dict[str, bytes] = {}  # as another process left them
    texts: dict[bytes, bytes] = {}
    with folder() as root, patch.object(lineages, "_REMEMBERED", -1), patch.object(parts, "STRETCH", 300):
        store = Store(root / "home")
        path = store.write(log.name, b"")
        done = 0
        for place in sorted({*places, len(data)}):
            with open(path, "ab") as file:
                file.write(data[done:place])
            done = place
            store.store.refresh()
            wanted = answers(open_store(root / "home"), log.thread)
            assert answers(store.store, log.thread) == wanted
            other = open_store(root / "home")
            other._passes.remembered = lambda _thread, kind, known=passes: known.get(kind)
            other._passes.parts = {log.thread: texts}.__getitem__
            assert answers(other, log.thread) == wanted
            for view, projection in other.project_all(log.thread).items():  # which tells what the passes have read
                assert projection.extents is None or content(other, projection) == wanted[view]
            passes, texts = other.packed_passes(log.thread), other.packed_parts(log.thread)


@pytest.mark.parametrize("paginated", [False, True], ids=["legacy", "paginated"])
@pytest.mark.parametrize("shift", [0, -1, -9], ids=["after a newline", "before it", "within a line"])
def test_growing_line_by_line(shift: int, *, paginated: bool) -> None:
    """The same for one log with a bit of everything, read at each of its lines."""
    log = Log(paginated).turn("1", "one", call("a"), output("a"), model="m").world({"cwd": "/"}, full=True)
    log.turn("2", "two", call("b")).roll_back(1).turn("3", "three").compacted(replacement_history=[user("base")])
    log.turn("4", "four", call("c"), end=False).event("turn_aborted", turn_id="4", reason="interrupted")
    log.compacted("of the old kind").turn("5", "five")
    check_growth(log, [log.offset(number) + shift for number in range(1, len(log.lines) + 1)])


@ON_DISK
@given(logs(paginated=True), st.data())
def test_a_fork_has_exactly_the_prefix(parent: Log, data: st.DataObject) -> None:
    """A fork at any record, and a fork of that fork, are the same as one log with the inherited records in it."""
    first = data.draw(st.integers(1, len(parent.lines)), label="lines inherited from the parent")
    child = Log(True, thread_id(1), base=parent.end(first))
    for step in data.draw(STEPS):
        step(child)
    second = data.draw(st.integers(1, len(child.lines)), label="lines inherited from the child")
    grandchild = Log(True, thread_id(2), base=child.end(second))
    for step in data.draw(STEPS):
        step(grandchild)
    joined = Log(True, thread_id(3))
    joined.lines += parent.lines[1:first] + child.lines[1:second] + grandchild.lines[1:]
    with folder() as root:
        store = Store(root / "home", parent, child, grandchild, joined)
        for view in (View.EFFECTIVE_HISTORY, View.MODEL_INPUT):
            assert store.read(view, grandchild.thread) == store.read(view, joined.thread)
        turns = [
            [(turn["id"], turn["status"]) for turn in store.rows(View.TURNS, thread)]
            for thread in (grandchild.thread, joined.thread)
        ]
        assert turns[0] == turns[1]
        ours, alone = (store.page(View.WORLD_STATE, thread) for thread in (grandchild.thread, joined.thread))
        assert {**ours, "tokens": None} == {**alone, "tokens": None}


@ON_DISK
@given(logs(), st.sampled_from(list(View)), st.data())
def test_every_slice_is_that_of_the_whole(log: Log, view: View, data: st.DataObject) -> None:
    """A read at any offset of any length gives the bytes that the whole file has there."""
    with folder() as root:
        store = Store(root / "home", log)
        projection = store.store.project(log.thread, view)
        assume(projection.extents is not None)
        whole = content(store.store, projection)
        offset = data.draw(st.integers(0, len(whole) + 1))
        length = data.draw(st.integers(0, len(whole) + 1))
        assert content(store.store, projection, offset, length) == whole[offset : offset + length]


@ON_DISK
@given(logs())
def test_full_history_agrees_with_the_effective_one(log: Log) -> None:
    """Every record is in full_history.jsonl, in order, and no item is called effective that the history hasn't got."""
    with folder() as root:
        store = Store(root / "home", log)
        rows = store.rows(View.FULL_HISTORY)
        assert [row["record"] for row in rows] == [json.loads(line) for line in log.lines]
        remembered = store.history()
        effective = [
            row["record"]["payload"] for row in rows if row["effective"] and row["record"]["type"] == "response_item"
        ]
        assert all(item in remembered for item in effective)


def test_errors_are_ours() -> None:
    """A store that is none says so."""
    with folder() as root, pytest.raises(StoreError, match="sessions"):
        open_store(root / "nothing")
