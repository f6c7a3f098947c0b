"""`rolloutfs log`: a line a turn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from threadstore.projection import View

from tests.commands.conftest import HOSTILE, Ask, OpenStore, assert_harmless
from tests.conftest import Corpus
from tests.tree.sample import DAY, SampleStore, line, message, thread_id

NAMES = [
    "forks.paginated",
    "interrupted.paginated",
    "failed_turn.paginated",
    "old_0.47.0_basic",
    "revert_once.paginated",
]


@pytest.mark.parametrize("name", NAMES)
def test_as_turns_jsonl(name: str, corpus: Corpus, open_store: OpenStore, ask: Ask) -> None:
    """Every turn, the newest first, with the number and status of turns.jsonl; JSON is the same lines."""
    home = corpus(name).home
    store = open_store(home)
    for thread in store.thread_ids():
        turns = [json.loads(one) for one in store.rendered(thread, View.TURNS).splitlines()][::-1]
        assert ask("log", thread, "--json", "--store", home).objects == turns
        assert ask("log", thread, "--json", "--store", home, "-n", "1").objects == turns[:1]
        rows = [row.split() for row in ask("log", thread, "--store", home).rows()]
        assert [(row[0], row[1]) for row in rows] == [(str(turn["number"]), turn["status"]) for turn in turns]


def turn(number: int, text: str) -> bytes:
    """A legacy turn that took 1234 ms and 12,345 tokens."""
    usage = {"total_tokens": 12_345, "input_tokens": 12_000}
    return (
        line("event_msg", {"type": "task_started", "turn_id": f"t{number}", "started_at": 1_795_987_916})
        + message(text)
        + line("event_msg", {"type": "user_message", "message": text})
        + line("event_msg", {"type": "token_count", "info": {"total_token_usage": usage, "last_token_usage": usage}})
        + line("event_msg", {"type": "task_complete", "turn_id": f"t{number}", "duration_ms": 1234})
    )


def test_no_turns(corpus: Corpus, ask: Ask) -> None:
    """It is said, where nobody takes it for a turn."""
    answer = ask("log", "01a22938-c900", "--store", corpus("forks.paginated").home)
    assert (answer.out, answer.err) == ("", "The thread has no turns.\n")
    assert ask("log", "01a22938-c900", "--store", corpus("forks.paginated").home, "--json").err == ""


def test_what_no_longer_counts(sample: SampleStore, ask: Ask) -> None:
    """A turn that was taken back has no number and says so; the others keep theirs. Nothing in a text is obeyed."""
    thread = sample.add(1, "hello")
    with sample.path(thread).open("ab") as file:
        file.write(turn(1, "one") + turn(2, HOSTILE))
        file.write(line("event_msg", {"type": "thread_rolled_back", "num_turns": 1}) + turn(3, "three"))
    answer = ask("log", thread, "--store", sample.root)
    rows = [re.split(r"  +", row.strip()) for row in answer.rows()]
    assert [row[:2] for row in rows] == [["2", "completed"], ["-", "rolled back"], ["1", "completed"]]
    assert rows[0][2:4] == ["2026-11-29 23:31", "1.2s"]
    assert [row[-1] for row in rows][::2] == ["three", "one"]
    assert_harmless(answer.out)
    assert_harmless(ask("log", thread, "--json", "--store", sample.root).out)


def test_the_last_thread_here(sample: SampleStore, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a thread it is the last one of the current folder or one above it: no agent's, no archived one."""
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (tmp_path / "link").symlink_to(project)
    here = {"cwd": str(project)}
    sample.add(1, "old", **here)
    wanted = sample.add(2, "old", "wanted", **here)
    sample.add(3, "a", "b", "c", **here, source={"subagent": "review"})
    sample.add(4, "a", "b", "c", "d", folder="archived_sessions", **here)
    sample.add(5, "a", "b", "c", "d", "e", cwd=str(tmp_path / "project2"))
    for number, place in ((1, DAY), (2, DAY), (3, DAY), (4, "archived_sessions"), (5, DAY)):
        with sample.path(thread_id(number), place).open("ab") as file:
            later = 200 + number if number > 2 else number  # than anything in the one that is wanted
            file.write(turn(1, f"words of {number}") + message("last", second=later))
    sample.append(wanted, "later")
    whole = ask("log", wanted, "--store", sample.root).out
    assert "words of 2" in whole
    for folder in (project, project / "src"):
        monkeypatch.chdir(folder)
        assert ask("log", "--store", sample.root).out == whole
    linked = sample.add(6, "x", cwd=str(tmp_path / "link"))
    with sample.path(linked).open("ab") as file:
        file.write(turn(1, "through the link") + message("last", second=300))
    monkeypatch.chdir(project / "src")
    monkeypatch.setenv("PWD", str(tmp_path / "link" / "src"))  # as a shell that went through the link
    assert "through the link" in ask("log", "--store", sample.root).out
    (tmp_path / "link").unlink()
    (tmp_path / "link" / "src").mkdir(parents=True)  # now the shell's name is that of another folder
    assert ask("log", "--store", sample.root).out == whole
    monkeypatch.chdir(tmp_path)
    assert "was in" in ask("log", "--store", sample.root, code=8).err
