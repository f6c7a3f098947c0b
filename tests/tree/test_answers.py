"""`rolloutfs.answers`: what was answered is kept until something happens that may change it."""

from __future__ import annotations

import pytest
from pyfuse3 import EntryAttributes

from rolloutfs.answers import Answers
from rolloutfs.nodes import Kind, Node
from rolloutfs.watch import Changes

ONE, OTHER = (f"01a22938-0000-7000-8000-00000000000{number}" for number in (1, 2))
LOG = f"sessions/2026/05/03/rollout-2026-05-03T10-00-00-{ONE}.jsonl"
NODES = {
    "own": Node(1 << 16, Kind.VIEW, ONE),
    "linked": Node(1 << 16 | 35, Kind.FORKS, ONE),
    "other": Node(2 << 16, Kind.VIEW, OTHER),
    "other linked": Node(2 << 16 | 35, Kind.FORKS, OTHER),
}


def filled() -> Answers:
    """Something is kept of each node."""
    answers = Answers()
    answers.start()
    for node in NODES.values():
        answers.of(node).entries[node.ino] = EntryAttributes()
    return answers


def left(answers: Answers) -> set[str]:
    """The nodes of which it is still there."""
    return {name for name, node in NODES.items() if node.ino in answers.of(node).entries}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (Changes(files={LOG}), {"other"}),
        (Changes(files={LOG + ".zst"}), {"other"}),
        (Changes(files={LOG, "state_5.sqlite-wal"}), set()),
        (Changes(files={"session_index.jsonl"}), set()),
        (Changes(folders={"sessions/2026/05/03"}), set()),
        (Changes(everything=True), set()),
    ],
)
def test_changes(changes: Changes, expected: set[str]) -> None:
    """A change of a thread's log leaves what is known of others, but not what follows from links between threads; any
    other change leaves nothing.
    """
    answers = filled()
    assert left(answers) == set(NODES)
    answers.note(changes)
    assert left(answers) == expected


def test_a_thread_is_forgotten() -> None:
    """After an operation on one thread nothing of it is left."""
    answers = filled()
    answers.forget(ONE)
    assert left(answers) == {"other", "other linked"}


def test_an_answer_that_comes_too_late() -> None:
    """What was being computed while something happened is never given to anybody else."""
    answers = filled()
    node = NODES["own"]
    kept = answers.of(node)
    answers.note(Changes(files={LOG}))
    kept.entries[node.ino] = EntryAttributes()
    assert "own" not in left(answers)


def test_nothing_is_kept_unless_changes_are_heard_of() -> None:
    """Before the watch begins, and after it has ended."""
    answers = filled()
    answers.stop()
    for node in NODES.values():
        answers.of(node).entries[node.ino] = EntryAttributes()
    assert left(answers) == set()


def test_memory_is_bounded() -> None:
    """Only the threads that were asked for last are kept."""
    answers = Answers(most=2)
    answers.start()
    nodes = [Node(number << 16, Kind.VIEW, f"thread {number}") for number in range(1, 4)]
    for node in nodes:
        answers.of(node).entries[node.ino] = EntryAttributes()
    assert [len(answers.of(node).entries) for node in reversed(nodes)] == [1, 1, 0]
