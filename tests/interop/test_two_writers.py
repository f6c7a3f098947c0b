"""Two who write the same thread: Codex and we, or several of us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from threadstore.cut import Boundary
from threadstore.lines import Line
from threadstore.locks import BusyError, writer_lock
from threadstore.operations import Outcome
from threadstore.projection import View
from threadstore.records import Record, decode

from tests.interop.codex import CHECKOUT, Codex, CodexError
from tests.interop.conftest import EVERYTHING, FRESH, MakeHome
from tests.interop.following import Following, lines, open_store, remembered
from tests.interop.model_server import ModelServer
from tests.interop.untouched import fingerprint
from tests.witness import Witness

_ROUNDS = 200 if EVERYTHING else 15
_RACERS = 4


@pytest.mark.parametrize("name", FRESH)
def test_codex_has_the_thread(
    name: str, make_home: MakeHome, fresh_threads: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """While Codex has a thread, revert, undo and compact are refused as busy and change nothing; a fork works and goes
    on.
    """
    home = make_home(name, tmp_path)
    thread_id = fresh_threads[name]["plain"]
    store = open_store(home)
    with ModelServer() as model, Codex(home, model) as codex:
        following = Following(codex, store)
        codex.resume(thread_id)
        following.turn(thread_id, "before we came")
        before, memory = fingerprint(home), remembered(store, thread_id)
        refused: list[Callable[[], Outcome]] = [
            lambda: store.revert(thread_id, "-1"),
            lambda: store.undo(thread_id),
            lambda: store.compact(thread_id, "A summary."),
            lambda: store.compact(thread_id, None),
        ]
        for operation in refused:
            with pytest.raises(BusyError, match="active writer"):
                operation()
        assert fingerprint(home) == before
        child = store.fork(thread_id, Boundary("latest")).thread_id
        assert remembered(store, child) == memory
        assert {path: digest for path, digest in fingerprint(home).items() if path in before} == before
        following.goes_on(child)
        following.turn(thread_id, "after we came")


@pytest.mark.parametrize("name", FRESH)
def test_we_have_the_thread(
    name: str, make_home: MakeHome, fresh_threads: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """While we hold a thread's lock Codex does not open it; when we have let go it does."""
    home = make_home(name, tmp_path)
    thread_id = fresh_threads[name]["plain"]
    store = open_store(home)
    with ModelServer() as model, Codex(home, model) as codex:
        with writer_lock(str(home), thread_id):
            with pytest.raises(CodexError, match="already has an active writer"):
                codex.resume(thread_id)
            with pytest.raises(BusyError):
                store.compact(thread_id, "A summary.")
        store.compact(thread_id, "A summary.")
        Following(codex, store).goes_on(thread_id)


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("fresh.paginated", ("revert", "undo")),
        ("fresh.paginated", ("compact",)),
        ("fresh.paginated", ("compact", "revert", "fork")),
        ("fresh.legacy", ("compact", "fork")),
        ("fresh.legacy", ("revert", "fork")),
        ("fresh.legacy", ("revert", "compact")),
    ],
)
def test_races(
    name: str,
    operations: tuple[str, ...],
    make_home: MakeHome,
    fresh_threads: dict[str, dict[str, str]],
    tmp_path: Path,
) -> None:
    """Of four processes that work on one thread at once, those that are told of success changed it, one after the
    other; the others changed nothing.
    """
    home = make_home(name, tmp_path)
    thread_id = fresh_threads[name]["plain"]
    if name == "fresh.legacy" and "revert" in operations:  # each revert takes a turn, and nothing gives it back
        with ModelServer() as model, Codex(home, model) as codex:
            codex.resume(thread_id)
            for number in range(2 * _ROUNDS):
                codex.turn(thread_id, f"turn {number} more")
    store = open_store(home)
    racers = [
        racer(home, thread_id, operations[at % len(operations) :] + operations[: at % len(operations)])
        for at in range(_RACERS)
    ]
    witness = Witness(home)  # the racers' own processes have none
    forks: list[str] = []
    won = 0
    try:
        for _ in range(_ROUNDS):
            before, contents = fingerprint(home), rollouts(home)
            answers = [answer.split() for answer in together(racers)]
            forked = [answer[1] for answer in answers if answer[0] == "fork"]
            reverted = [answer[1] for answer in answers if answer[0] in ("revert", "undo")]
            compacted = [answer[1] for answer in answers if answer[0] == "compact"]
            forks += forked
            won += len(reverted) + len(compacted)
            new = rollouts(home)
            # What the winners were told is all that happened: new files, and whole records after what there was
            made = forked + (reverted if name == "fresh.paginated" else [])
            assert sorted(path.stem[-36:] for path in new.keys() - contents.keys()) == sorted(made)
            assert all(new[path].startswith(data) for path, data in contents.items())
            added = {path: new[path][len(data) :] for path, data in contents.items() if new[path] != data}
            assert all(thread_id in path.name for path in added)
            written = added | {path: new[path] for path in new.keys() - contents.keys() if thread_id in path.name}
            assert events(written, "compacted") == events(written, "task_complete") == len(compacted)
            assert events(added, "thread_rolled_back") == (len(reverted) if name == "fresh.legacy" else 0)
            if not forked + reverted + compacted:
                assert fingerprint(home) == before
            store.refresh()
            assert name == "fresh.legacy" or not reverted or store.head(thread_id).rollout_id in reverted
            assert lines(store, thread_id, View.PROBLEMS) == []
    finally:
        for process in racers:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
    witness.check()
    assert won >= _ROUNDS // 2
    assert not list(home.rglob("*.partial"))
    assert all(is_sound(path) for path in home.rglob(f"rollout-*{thread_id}*.jsonl"))
    with ModelServer() as model, Codex(home, model) as codex:
        following = Following(codex, store)
        for one in [thread_id, *forks[:3]]:
            following.goes_on(one)


def racer(home: Path, thread_id: str, operations: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """A process that waits for its turn."""
    paths = os.pathsep.join((str(CHECKOUT / "core"), str(CHECKOUT)))
    command = [sys.executable, str(Path(__file__).with_name("racer.py")), str(home), thread_id, *operations]
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def together(racers: list[subprocess.Popen[bytes]]) -> list[str]:
    """Let all of them do their next operation at the same time; what they say."""
    for process in racers:
        assert process.stdin is not None
        process.stdin.write(b"\n")
    for process in racers:
        assert process.stdin is not None
        process.stdin.flush()
    answers = []
    for process in racers:
        assert process.stdout is not None
        answers.append(process.stdout.readline().decode().strip())
    assert all(answers)
    return answers


def rollouts(home: Path) -> dict[Path, bytes]:
    """All rollouts of the store, with their bytes."""
    return {path: path.read_bytes() for path in home.rglob("rollout-*.jsonl*")}


def events(added: dict[Path, bytes], kind: str) -> int:
    """How many records of a type, or events of a type, were added."""
    found = [json.loads(line) for data in added.values() for line in data.split(b"\n")[:-1]]
    return sum(kind in (record["type"], record["payload"].get("type")) for record in found)


def is_sound(path: Path) -> bool:
    """Every line is a record, and the ordinals of a paginated rollout follow each other."""
    log = path.read_bytes().split(b"\n")
    ordinals = [ordinal for line in log[:-1] if (ordinal := json.loads(line).get("ordinal")) is not None]
    whole = all(isinstance(decode(Line(0, len(line), line)), Record) for line in log[:-1])
    return (
        whole and log[-1] == b"" and ordinals == list(range(ordinals[0], ordinals[0] + len(log) - 1))
        if ordinals
        else whole
    )
