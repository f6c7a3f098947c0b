"""Two who write the same thread: Codex and we, or several of us."""

from __future__ import annotations

import hashlib
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

_ROUNDS = 200 if EVERYTHING else 25
_RACERS = 4


def fingerprint(home: Path) -> dict[str, str]:
    """Every file of the store; of the databases only what they say of threads, since Codex folds their logs when it
    likes.
    """
    kept = ("sessions", "archived_sessions", "session_index.jsonl")
    files = [path for name in kept for path in [home / name, *(home / name).rglob("*")] if path.is_file()]
    return {str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


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
    store = open_store(home)
    racers = [
        racer(home, thread_id, operations[at % len(operations) :] + operations[: at % len(operations)])
        for at in range(_RACERS)
    ]
    forks: list[str] = []
    won = 0
    try:
        for _ in range(_ROUNDS):
            rollouts, checkpoints = generations(home, thread_id), count_checkpoints(home, thread_id)
            answers = together(racers)
            forks += [answer.split()[1] for answer in answers if answer.startswith("fork")]
            made = {answer.split()[1] for answer in answers if answer.startswith(("revert", "undo"))}
            compactions = sum(answer.startswith("compact") for answer in answers)
            won += len(made) + compactions
            assert {path.stem[-36:] for path in generations(home, thread_id) - rollouts} == made
            assert count_checkpoints(home, thread_id) == checkpoints + compactions
            store.refresh()
            assert not made or store.head(thread_id).rollout_id in made
            assert lines(store, thread_id, View.PROBLEMS) == []
    finally:
        for process in racers:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
    assert won >= _ROUNDS // 2
    assert not list(home.rglob("*.partial"))
    assert all(is_sound(path) for path in generations(home, thread_id))
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


def generations(home: Path, thread_id: str) -> set[Path]:
    """All rollouts of a thread."""
    return set(home.rglob(f"rollout-*{thread_id}*.jsonl"))


def count_checkpoints(home: Path, thread_id: str) -> int:
    """The checkpoints in all of them."""
    return sum(path.read_bytes().count(b'"type":"compacted"') for path in generations(home, thread_id))


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
