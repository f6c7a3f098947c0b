"""FAULTS 9, 10, 17 and 18: what is wrong between the files of a lineage, and at the beginning of a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from threadstore.projection import View

from tests.faults.logs import (
    ANCESTOR,
    DERIVED,
    DRESSES,
    LEGACY,
    MODES,
    PAGINATED,
    Home,
    Log,
    Views,
    done,
    message,
    pairs,
    uuid,
)


def _parent(home: Home, *texts: str, mode: str = PAGINATED, number: int = 1, compressed: bool = False) -> Log:
    log = Log(mode, number)
    for text in texts or ("parent",):
        log.turn(text)
    home.put(log, compressed=compressed)
    return log


def _child(home: Home, base: Any, number: int = 2, *texts: str) -> Log:
    ordinal = base.get("end_ordinal_exclusive", 50) if isinstance(base, dict) else 50
    log = Log(PAGINATED, number, base=base, first_ordinal=ordinal)
    for text in texts or ("child",):
        log.turn(text)
    home.put(log)
    return log


def _broken(views: Views, code: str, path: str, *words: str) -> None:
    """What holds for every broken lineage: nothing is guessed, and what can be told is."""
    for view in DERIVED:
        sentence = views.error(view)
        assert sentence.endswith(".")
        for word in words:
            assert word in sentence
    problems = views.lines(View.PROBLEMS)
    assert code in [problem["code"] for problem in problems if problem["file"] == path]
    page = views.thread()
    assert page["health"] == "damaged"
    assert page["status"] == "damaged"
    assert page["error"]
    assert page["counts"]["effective_items"] is None
    assert views.full_items() == pairs("child")
    effective = [line["record"]["type"] for line in views.full() if line["effective"]]
    assert "response_item" not in effective
    for rollout in views.store.rollouts(views.thread_id):
        assert views.store.project_rollout(rollout).extents is not None


# 9: chains


@pytest.mark.parametrize("compressed", [False, True])
def test_chain_of_four_levels(home: Home, compressed: bool) -> None:
    """FAULTS 9: every ancestor counts up to its cut and no further; offsets are those of decoded bytes."""
    logs: list[Log] = []
    for number in range(1, 6):
        base = logs[-1].position() if logs else None
        log = Log(PAGINATED, number, base=base)
        log.turn(f"level {number}")
        logs.append(log)
    for log in logs[:-1]:
        log.turn("after the cut")  # the parent went on after the fork
    for log in logs:
        home.put(log, compressed=compressed and log is not logs[-1])
    texts = [f"level {number}" for number in range(1, 6)]
    # a child is cut where its parent was when it was forked, so the fork of a fork sees one turn a level
    views = home.read(logs[-1])
    assert views.effective() == views.sent() == pairs(*texts)
    assert views.turns() == done(*texts)
    assert views.problems() == []
    assert not views.uncertain()
    lineage = orjson.loads(views.bytes(View.LINEAGE))
    assert [segment["rollout_id"] for segment in lineage["segments"]] == [log.rollout for log in logs]


def test_archived_ancestor_is_found(home: Home) -> None:
    """FAULTS 9, FORMAT 11.3: ancestors are looked up in the archive, too."""
    parent = Log(PAGINATED, 1)
    parent.turn("parent")
    home.put(parent, archived=True)
    child = _child(home, parent.position())
    assert home.read(child).effective() == pairs("parent", "child")


def test_base_is_a_rollout_id(home: Home) -> None:
    """FORMAT trap 1: `history_base.thread_id` names a file; the newest generation of that thread is another one."""
    old = Log(PAGINATED, 1)
    old.turn("old")
    home.put(old)
    reverted = Log(PAGINATED, 1, rollout=11)
    reverted.turn("new")
    home.put(reverted, stamp="2026-11-30T10-00-00")
    child = _child(home, old.position())
    assert home.read(child).effective() == pairs("old", "child")
    assert home.read(old).effective() == pairs("new")


@pytest.mark.parametrize(
    "spelling", [str.upper, lambda x: x.replace("-", ""), lambda x: "{" + x + "}", lambda x: "urn:uuid:" + x]
)
def test_base_in_other_spellings(home: Home, spelling: Callable[[str], str]) -> None:
    """Facts C: every form of a UUID is accepted; the value is compared."""
    parent = _parent(home)
    base = parent.position()
    child = _child(home, base | {"thread_id": spelling(base["thread_id"])})
    assert home.read(child).effective() == pairs("parent", "child")


def test_base_as_a_list(home: Home) -> None:
    """Facts D: the members of a base by position are accepted."""
    parent = _parent(home)
    child = _child(home, list(parent.position().values()))
    assert home.read(child).effective() == pairs("parent", "child")


def test_missing_base(home: Home) -> None:
    """FAULTS 9: a file of the chain is not there: its id is named, nothing is made up of the rest."""
    base = {"thread_id": uuid(77), "end_ordinal_exclusive": 3, "end_byte_offset": 300}
    child = _child(home, base)
    _broken(home.read(child), "lineage_missing", _path(home, child), uuid(77), "missing source rollout")


def test_missing_grandparent(home: Home) -> None:
    """FAULTS 9: the same two levels up."""
    base = {"thread_id": uuid(77), "end_ordinal_exclusive": 3, "end_byte_offset": 300}
    parent = _child(home, base, 1, "child")
    child = _child(home, parent.position())
    _broken(home.read(child), "lineage_missing", _path(home, child), uuid(77))


def test_restored_base_heals(home: Home) -> None:
    """FAULTS 9: once the missing file is back, the answer that it is missing no longer holds."""
    parent = Log(PAGINATED, 1)
    parent.turn("parent")
    child = _child(home, parent.position())
    store = home.open()
    projections = {view: store.project(child.thread, view) for view in View}
    assert projections[View.EFFECTIVE_HISTORY].extents is None
    home.put(parent)
    store.refresh()
    assert not any(store.is_current(child.thread, projection) for projection in projections.values())
    assert Views(store, child.thread).effective() == pairs("parent", "child")


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_cycle(home: Home, levels: int) -> None:
    """FAULTS 9: a file that leads back to itself, directly or over others."""
    position = {"end_ordinal_exclusive": 3, "end_byte_offset": 100}
    logs = []
    for number in range(levels):
        base = {"thread_id": uuid(1 + (number + 1) % levels)} | position
        logs.append(_child(home, base, 1 + number))
    for log in logs:
        _broken(home.read(log), "lineage_cycle", _path(home, log), "cycle detected")


def test_cycle_above(home: Home) -> None:
    """FAULTS 9: a sound file whose ancestors go in a circle."""
    position = {"end_ordinal_exclusive": 3, "end_byte_offset": 100}
    _child(home, {"thread_id": uuid(4)} | position, 3)
    _child(home, {"thread_id": uuid(3)} | position, 4)
    child = _child(home, {"thread_id": uuid(3)} | position)
    _broken(home.read(child), "lineage_cycle", _path(home, child), "cycle detected")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("past", [1, 1 << 40, (1 << 64) - 1])
def test_cut_past_the_end(home: Home, past: int, compressed: bool) -> None:
    """FAULTS 9: the ancestor is shorter than the prefix that was taken from it."""
    parent = _parent(home, compressed=compressed)
    offset = min(len(parent.content) + past, (1 << 64) - 1)
    child = _child(home, parent.position(offset=offset))
    _broken(home.read(child), "lineage_cut", _path(home, child), "past the source rollout")


def test_cut_at_the_end_is_fine(home: Home) -> None:
    """FAULTS 9: a cut exactly at the end of the ancestor, whose last newline is missing."""
    parent = Log(PAGINATED, 1)
    parent.turn("parent")
    parent.content = parent.content[:-1]
    home.put(parent)
    child = _child(home, parent.position())
    views = home.read(child)
    assert views.effective() == pairs("parent", "child")
    assert views.problems() == []


@pytest.mark.parametrize("inside", [1, 30, -2])
def test_cut_inside_a_line(home: Home, inside: int) -> None:
    """FAULTS 9, trap 7: the cut is taken at its word; the line that it falls into is lost, as in Codex, and named
    with the part of it that is inherited.
    """
    parent = Log(PAGINATED, 1)
    parent.turn("kept")
    spot = parent.message("user", "cut")
    length = inside if inside > 0 else spot.length + inside
    base = parent.position(offset=spot.offset + length)
    parent.turn("later")
    path = home.put(parent)
    child = _child(home, base)
    views = home.read(child)
    assert views.effective() == views.sent() == pairs("kept", "child")
    assert views.turns() == done("kept", "child")
    assert views.problems() == [("lineage_inside", path, spot.offset, length)]
    assert home.read(parent).problems() == []


@pytest.mark.parametrize("shift", [0, 1])
def test_cut_before_or_after_a_newline(home: Home, shift: int) -> None:
    """FAULTS 9: with or without its newline, a line that is whole counts."""
    parent = Log(PAGINATED, 1)
    parent.turn("kept")
    base = parent.position(offset=len(parent.content) - shift)
    parent.turn("later")
    home.put(parent)
    views = home.read(_child(home, base))
    assert views.effective() == pairs("kept", "child")
    assert views.problems() == []


def test_cut_at_ordinal_zero(home: Home) -> None:
    """FORMAT 11.3: a prefix can't end before the session meta."""
    parent = _parent(home)
    child = _child(home, parent.position(ordinal=0))
    _broken(home.read(child), "lineage_cut", _path(home, child), "cannot include its session metadata")


@pytest.mark.parametrize("ordinal", [1, 2, 9999])
def test_ordinal_of_a_cut_is_not_looked_at(home: Home, ordinal: int) -> None:
    """FORMAT trap 7: only the byte offset counts."""
    parent = _parent(home)
    views = home.read(_child(home, parent.position(ordinal=ordinal)))
    assert views.effective() == pairs("parent", "child")


def test_legacy_base(home: Home) -> None:
    """FAULTS 9: only paginated files can be inherited from."""
    parent = _parent(home, mode=LEGACY)
    child = _child(home, parent.position(ordinal=3))
    _broken(home.read(child), "lineage_legacy", _path(home, child), "not paginated")


def test_base_without_meta(home: Home) -> None:
    """FAULTS 9: an ancestor that can't be told to be paginated."""
    parent = Log(PAGINATED, 1, meta=False)
    parent.turn("parent")
    home.put(parent)
    child = _child(home, parent.position())
    _broken(home.read(child), "lineage_legacy", _path(home, child))


@pytest.mark.parametrize(
    "base",
    [
        "text",
        [],
        {},
        7,
        True,
        {"thread_id": uuid(1), "end_ordinal_exclusive": 3},
        {"thread_id": uuid(1), "end_byte_offset": 300},
        {"end_ordinal_exclusive": 3, "end_byte_offset": 300},
        {"thread_id": uuid(1), "end_ordinal_exclusive": -3, "end_byte_offset": 300},
        {"thread_id": uuid(1), "end_ordinal_exclusive": 3, "end_byte_offset": -300},
        {"thread_id": uuid(1), "end_ordinal_exclusive": 3.0, "end_byte_offset": 300},
        {"thread_id": uuid(1), "end_ordinal_exclusive": "3", "end_byte_offset": 300},
        {"thread_id": uuid(1), "end_ordinal_exclusive": 3, "end_byte_offset": "300"},
        {"thread_id": uuid(1), "end_ordinal_exclusive": True, "end_byte_offset": 300},
        {"thread_id": "../../etc/passwd", "end_ordinal_exclusive": 3, "end_byte_offset": 300},
        {"thread_id": 7, "end_ordinal_exclusive": 3, "end_byte_offset": 300},
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_base_of_wrong_types(home: Home, base: Any, mode: str) -> None:
    """FAULTS 9, facts D: such a base makes the session meta undecodable for Codex, which then refuses the thread in
    either mode. What was inherited can't be told, so the thread without it would be a guess served as a fact:
    nothing derived is given, and the meta's line is named.
    """
    _parent(home)
    child = Log(mode, 2, base=None, first_ordinal=0, meta=False)
    spot = child.meta(history_base=base)
    child.turn("child")
    path = home.put(child)
    views = home.read(child)
    for view in DERIVED:
        assert views.error(view).endswith(".")
    assert ("lineage_base", path, None, None) in views.problems()
    assert ("bad_record", path, *spot) in views.problems()
    assert views.thread()["health"] == "damaged"
    assert views.full_items() == pairs("child")


def test_legacy_threads_ignore_a_proper_base(home: Home) -> None:
    """Facts D: in a legacy thread a base that is missing is ignored, and it is no problem."""
    log = Log(LEGACY, 2)
    log.content.clear()
    log.meta(history_base={"thread_id": uuid(77), "end_ordinal_exclusive": 3, "end_byte_offset": 300})
    log.turn("child")
    home.put(log)
    views = home.read(log)
    assert views.effective() == pairs("child")
    assert views.turns() == done("child")
    assert views.problems() == []


def _path(home: Home, log: Log) -> str:
    return f"sessions/2026/11/29/{home.name(log)}"


# 10: session metas


def test_copied_fork_has_two_metas(home: Home) -> None:
    """FAULTS 10, traps 10 and 27: own meta first, the parent's second: identity is the first; this is as it should
    be.
    """
    parent = Log(LEGACY, 1)
    parent.turn("parent")
    home.put(parent)
    fork = Log(LEGACY, 2, forked_from_id=parent.thread)
    fork.content += parent.content
    fork.turn("fork")
    home.put(fork)
    views = home.read(fork)
    page = views.thread()
    assert (page["id"], page["forked_from"]) == (fork.thread, parent.thread)
    assert views.effective() == pairs("parent", "fork")
    assert views.turns() == done("parent", "fork")
    assert views.problems() == []
    assert views.store.links(parent.thread).forks == (fork.thread,)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_second_meta_in_the_middle(home: Home, mode: str, own: bool) -> None:
    """FAULTS 10, facts D: a later meta is no identity. In a legacy thread it changes nothing; in a paginated one
    everything before it vanishes from the model's input, while the turn list keeps all turns.
    """
    log = Log(mode)
    log.turn("one")
    spot = log.meta() if own else log.meta(id=uuid(55), session_id=uuid(55), cwd="/elsewhere")
    log.turn("two")
    path = home.put(log)
    views = home.read(log)
    visible = pairs("one", "two") if mode == LEGACY else pairs("two")
    assert views.effective() == views.sent() == visible
    assert views.turns() == done("one", "two")
    assert views.problems() == [("meta_second", path, *spot)]
    page = views.thread()
    assert (page["id"], page["cwd"]) == (log.thread, "/repo")


@pytest.mark.parametrize("mode", MODES)
def test_second_meta_of_unknown_mode_is_damage(home: Home, mode: str) -> None:
    """Facts D: an undecodable later meta is passed over; the history before it stays."""
    log = Log(mode)
    log.turn("one")
    spot = log.meta(history_mode="quantum")
    log.turn("two")
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == pairs("one", "two")
    assert views.problems() == [("bad_record", path, *spot)]


@pytest.mark.parametrize("mode", MODES)
def test_no_meta_at_all(home: Home, mode: str) -> None:
    """FAULTS 10: a headerless file is listed under the id in its name, marked as guessed."""
    log = Log(mode, meta=False)
    log.turn("one")
    path = home.put(log)
    views = home.read(log)
    page = views.thread()
    assert page["id"] == log.thread
    assert page["identity_guessed"] is True
    assert page["health"] != "sound"
    assert ("meta_missing", path, 0, None) in views.problems()
    assert [code for code in views.codes() if code != "meta_missing"] == []
    assert views.effective() == pairs("one")
    assert views.turns() == done("one")


@pytest.mark.parametrize("mode", MODES)
def test_meta_on_line_three(home: Home, mode: str) -> None:
    """FAULTS 10: what can't be decoded before the meta doesn't matter to readers (facts D); identity is the first
    meta.
    """
    log = Log(mode, meta=False)
    first = log.raw(b"garbage")
    second = log.raw(b'{"a":1}')
    log.meta()
    log.turn("one")
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == pairs("one")
    assert views.turns() == done("one")
    page = views.thread()
    assert page["identity_guessed"] is False
    assert page["history_mode"] == mode
    assert [problem for problem in views.problems() if problem[0] == "bad_record"] == [
        ("bad_record", path, *first),
        ("bad_record", path, *second),
    ]
    assert "meta_late" in views.codes()


@pytest.mark.parametrize("mode", MODES)
def test_meta_after_a_record(home: Home, mode: str) -> None:
    """FAULTS 10, facts D: Codex can't read a thread with a decodable record before its meta. We take the meta and
    say so.
    """
    log = Log(mode, meta=False)
    log.message("user", "early")
    spot = log.meta()
    log.turn("one")
    path = home.put(log)
    views = home.read(log)
    assert ("meta_late", path, *spot) in views.problems()
    assert views.thread()["cwd"] == "/repo"
    assert views.turns() == done("one")


@pytest.mark.parametrize("field", ["id", "timestamp", "cwd", "originator", "cli_version"])
@pytest.mark.parametrize("mode", MODES)
def test_meta_without_a_required_field(home: Home, mode: str, field: str) -> None:
    """FAULTS 10, facts D: Codex refuses a thread whose meta lacks one of these. We use what can be read of it, and
    say so: `meta_rejected` when the meta still has an id, else the file is headerless.
    """
    log = Log(mode, meta=False)
    spot = log.meta(**{field: None})
    log.turn("one")
    path = home.put(log)
    views = home.read(log)
    assert ("bad_record", path, *spot) in views.problems()
    assert ("meta_missing" if field == "id" else "meta_rejected") in views.codes()
    page = views.thread()
    assert page["identity_guessed"] is True
    assert page["history_mode"] == (mode if field != "id" else LEGACY)
    assert views.effective() == pairs("one")


@pytest.mark.parametrize("value", ["quantum", "Legacy", ""])
def test_unknown_history_mode(home: Home, value: str) -> None:
    """FAULTS 10, trap 11: an unknown mode in the first meta is fatal to Codex; we don't guess what it would mean."""
    log = Log(LEGACY, history_mode=value)
    log.turn("child")
    path = home.put(log)
    views = home.read(log)
    _broken(views, "meta_mode", path, repr(value))


def test_absent_history_mode_is_legacy(home: Home) -> None:
    """Facts D: without the field a thread is legacy, whatever its ordinals."""
    log = Log(PAGINATED, meta=False)
    log.meta(history_mode=None)
    log.turn("one")
    home.put(log)
    views = home.read(log)
    assert views.effective() == pairs("one")
    assert views.thread()["history_mode"] == "legacy"
    assert views.problems() == []


def test_meta_of_another_thread(home: Home) -> None:
    """FAULTS 10, facts D: id and name disagree (a copied, renamed file): shown under its name, told."""
    log = Log(LEGACY, meta=False)
    log.meta(id=uuid(55), session_id=uuid(55))
    log.turn("one")
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == pairs("one")
    assert [problem[:2] for problem in views.problems()] == [("meta_foreign", path)]


@pytest.mark.parametrize("spelling", [str.upper, lambda x: x.replace("-", "")])
def test_meta_id_in_other_spellings(home: Home, spelling: Callable[[str], str]) -> None:
    """Facts C, D: every form of a UUID is the same id."""
    log = Log(LEGACY, meta=False)
    log.meta(id=spelling(log.thread))
    log.turn("one")
    home.put(log)
    assert home.read(log).problems() == []


# 17, 18: rollbacks and checkpoints at the seams of a lineage


def test_rollback_into_the_prefix(home: Home) -> None:
    """FAULTS 17: a rollback in a fork reaches into the inherited prefix; the parent is untouched. The turn list of
    a paginated thread never changes by it (facts C2).
    """
    parent = _parent(home, "one", "two")
    child = Log(PAGINATED, 2, base=parent.position())
    child.turn("three")
    child.rolled_back(2)
    child.turn("four")
    home.put(child)
    views = home.read(child)
    assert views.effective() == views.sent() == pairs("one", "four")
    assert views.turns() == done("one", "two", "three", "four")
    assert home.read(parent).effective() == pairs("one", "two")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [3, 4, 4294967295])
def test_rollback_of_more_than_there_is(home: Home, mode: str, count: int) -> None:
    """FAULTS 17: too large a count drops all user turns, twice too; what came before the first one stays."""
    log = Log(mode)
    log.message("developer", "<permissions instructions>rules</permissions instructions>")
    for text in ("one", "two", "three"):
        log.turn(text)
    log.rolled_back(count)
    log.rolled_back(count)
    log.turn("four")
    home.put(log)
    views = home.read(log)
    assert views.effective()[1:] == pairs("four")
    assert views.effective()[0].startswith("<permissions")
    assert views.turns() == (done("four") if mode == LEGACY else done("one", "two", "three", "four"))
    assert views.all_turns() == done("one", "two", "three", "four")
    assert views.problems() == []


@pytest.mark.parametrize("mode", MODES)
def test_rollbacks_add_up(home: Home, mode: str) -> None:
    """FAULTS 17: two rollbacks of one are a rollback of two; 0 does nothing."""
    log = Log(mode)
    for text in ("one", "two", "three"):
        log.turn(text)
    for count in (1, 0, 1):
        log.rolled_back(count)
    home.put(log)
    assert home.read(log).effective() == pairs("one")


@pytest.mark.parametrize("mode", MODES)
def test_rollback_over_a_complete_checkpoint(home: Home, mode: str) -> None:
    """FAULTS 17, FORMAT 7.1: the newest checkpoint is complete, so it stays the base even when a rollback covers
    its turn; the rollback then works inside of it, and can empty it.
    """
    log = Log(mode)
    log.turn("one")
    log.turn("two")
    log.checkpoint("kept one", "kept two")
    log.turn("three")
    log.rolled_back(3)
    log.turn("four")
    home.put(log)
    assert home.read(log).effective() == pairs("four")


@pytest.mark.parametrize("mode", MODES)
def test_rollback_over_an_incomplete_checkpoint(home: Home, mode: str) -> None:
    """FAULTS 17, FORMAT 7.2: a checkpoint without window number inside a rolled-back turn is undone with it."""
    log = Log(mode)
    log.turn("one")
    log.started("turn-two")
    log.asked("two", "turn-two")
    log.checkpoint("summary", complete=False)
    log.completed("turn-two")
    log.rolled_back(1)
    log.turn("three")
    home.put(log)
    assert home.read(log).effective() == pairs("one", "three")


CHECKPOINTS: dict[str, tuple[Callable[[Log], object], list[str]]] = {
    "empty": (lambda log: log.checkpoint(), []),
    "larger than what it replaces": (
        lambda log: log.checkpoint(*(f"{n}" * 1000 for n in range(5))),
        [f"{n}" * 1000 for n in range(5)],
    ),
    "two in a row": (lambda log: (log.checkpoint("first"), log.checkpoint("second")), ["second"]),
    "empty, then one": (lambda log: (log.checkpoint(), log.checkpoint("second")), ["second"]),
    "with null history": (lambda log: log.checkpoint(replacement_history=None, message="summary"), ["one", "summary"]),
    "with nothing said": (lambda log: log.checkpoint(replacement_history=None), ["one", "(no summary available)"]),
}


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CHECKPOINTS.items()])
def test_odd_checkpoints(home: Home, case: tuple[Callable[[Log], object], list[str]], dress: str) -> None:
    """FAULTS 18: `[]` is a checkpoint and not the absence of one (trap 19)."""
    make, kept = case
    log = Log(LEGACY if dress == LEGACY else PAGINATED)
    log.turn("one")
    make(log)
    log.turn("two")
    home.put(log)
    texts = ["two"]
    if dress == ANCESTOR:
        log = _child(home, log.position())
        texts.append("child")
    views = home.read(log)
    assert views.made() == views.sent() == [*kept, *pairs(*texts)]
    assert views.problems() == []


REJECTED: dict[str, dict[str, Any]] = {
    "a broken entry": {"replacement_history": [message("user", "x"), {"type": "message", "role": "user"}]},
    "null as entry": {"replacement_history": [None]},
    "not a list": {"replacement_history": {}},
    "sidecars of another length": {"replacement_history_metadata": []},
    "no message": {"message": None},
    "text as window number": {"window_number": "3"},
    "negative window number": {"window_number": -1},
    "list as resume metadata": {"resume_metadata": []},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fields", [pytest.param(fields, id=name) for name, fields in REJECTED.items()])
def test_rejected_checkpoint_leaves_the_history(home: Home, fields: dict[str, Any], mode: str) -> None:
    """FAULTS 18, facts C2: Codex passes over the record; the older history stands, and the loss of a checkpoint is
    told.
    """
    log = Log(mode)
    log.turn("one")
    spot = log.checkpoint("summary", **fields)
    log.turn("two")
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == views.sent() == pairs("one", "two")
    assert views.problems() == [("bad_record", path, *spot)]
    assert views.uncertain()


@pytest.mark.parametrize("mode", MODES)
def test_damage_before_a_complete_checkpoint_is_certain(home: Home, mode: str) -> None:
    """What a checkpoint has replaced can't matter any more: the damage is named, the replay is certain."""
    log = Log(mode)
    log.turn("one")
    spot = log.raw(b"anything")
    log.checkpoint("summary")
    log.turn("two")
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == ["summary", *pairs("two")]
    assert views.problems() == [("bad_record", path, *spot)]
    assert not views.uncertain()


@pytest.mark.parametrize("mode", MODES)
def test_damage_after_the_checkpoint_is_not(home: Home, mode: str) -> None:
    """The same damage behind the checkpoint could have been a rollback of it."""
    log = Log(mode)
    log.turn("one")
    log.checkpoint("summary")
    log.raw(b"anything")
    log.turn("two")
    path = home.put(log)
    page = home.read(log).thread()
    assert page["replay"]["uncertain"]
    assert path in page["replay"]["because"][0]
