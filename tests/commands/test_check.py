"""`rolloutfs check`: everything that any problems.jsonl of the store says, and an exit code."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from threadstore.errors import UnreadableError
from threadstore.projection import View
from threadstore.store import ThreadStore

from tests.commands.conftest import HOSTILE, Ask, OpenStore, assert_harmless
from tests.conftest import Corpus
from tests.core.reading import content
from tests.mount.conftest import DEADLINE, Lab
from tests.tree.sample import SampleStore


def damaged(sample: SampleStore) -> Path:
    """A store with a sound thread and one with two lines that are none."""
    sample.add(1, "hello")
    path = sample.path(sample.add(2, "hello"))
    path.write_bytes(path.read_bytes() + b"\0\0\0\n" + b'{"broken\n' + path.read_bytes().split(b"\n")[1] + b"\n")
    return path


def test_each_with_its_place(sample: SampleStore, ask: Ask) -> None:
    """File, offset, code and consequence of each problem, as a line and as JSON; with an index and without one."""
    path = damaged(sample)
    relative, first = str(path.relative_to(sample.root)), path.read_bytes().index(b"\0\0\0")
    for _ in range(2):
        found = ask("check", "--json", "--store", sample.root, code=10).objects
        assert [(one["file"], one["offset"]) for one in found] == [(relative, first), (relative, first + 4)]
        assert all(one["code"] and one["consequence"] and one["thread_id"] for one in found)
        answer = ask("check", "--store", sample.root, code=10)
        lines = answer.out.splitlines()
        assert [line.split(": ")[:2] for line in lines] == [
            [f"{relative}:{one['offset']}", one["code"]] for one in found
        ]
        assert all(line.endswith(f"; {one['consequence']}") for line, one in zip(lines, found, strict=True))
        assert answer.err == "2 threads, 2 problems.\n"
        ask("index", sample.root)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_nobody_reads_it(lab: Lab, options: tuple[str, ...]) -> None:
    """`rolloutfs check | head -0` in a script that looks at the exit code: the code is about the store."""
    damaged(lab.sample)
    command = [sys.executable, "-m", "rolloutfs", "check", *options, "--store", str(lab.sample.root)]
    with subprocess.Popen(command, env=lab.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read().decode()
        assert process.wait(DEADLINE) == 10
    assert told == ("" if options else "2 threads, 2 problems.\n")


def test_a_sound_store(sample: SampleStore, ask: Ask, tmp_path: Path) -> None:
    """Code 0 and no problem; code 3 when there is no store."""
    sample.add(1, "hello")
    assert ask("check", "--store", sample.root).out == "1 thread, 0 problems.\n"
    assert ask("check", "--store", sample.root, "--json").out == ""
    ask("check", "--store", tmp_path / "none", code=3)


@pytest.mark.parametrize("name", ["killed_torn.paginated", "old_0.20.0_basic", "forks.paginated", "named.legacy"])
def test_all_of_them(name: str, corpus: Corpus, open_store: OpenStore, ask: Ask) -> None:
    """As many lines as the problems.jsonl of all threads have."""
    home = corpus(name).home
    store = open_store(home)
    expected = [
        (thread, problem["code"], problem["file"], problem["offset"])
        for thread in store.thread_ids()
        for problem in map(json.loads, content(store, store.project(thread, View.PROBLEMS)).splitlines())
    ]
    found = ask("check", "--json", "--store", home, code=10 if expected else 0).objects
    members = ("thread_id", "code", "file", "offset")
    assert [tuple(one[member] for member in members) for one in found if one["thread_id"]] == expected


def test_of_the_store_itself(sample: SampleStore, ask: Ask) -> None:
    """A link in the place of a rollout, and a database that is none, are told once."""
    sample.add(1, "hello")
    (sample.root / "state_5.sqlite").write_bytes(b"SQLite format 3\0" + os.urandom(4096))
    found = ask("check", "--json", "--store", sample.root, code=10).objects
    assert [one["code"] for one in found] == ["index_corrupt"]


def test_hostile_names(sample: SampleStore, ask: Ask) -> None:
    """A line stays a line, whatever a folder is called."""
    folder = f"sessions/{HOSTILE}".replace("\0", "")
    path = sample.path(sample.add(1, "hello", folder=folder), folder)
    path.write_bytes(path.read_bytes() + b'{"broken\n')
    answer = ask("check", "--store", sample.root, code=10)
    assert answer.out.count("\n") == len(ask("check", "--json", "--store", sample.root, code=10).objects) > 0
    assert_harmless(answer.out)


def test_what_cannot_be_read(sample: SampleStore, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread whose file can't be read is a problem of its own; the others are checked."""
    damaged(sample)
    unreadable = sample.add(3)
    problems = ThreadStore.problems

    def refuse(store: ThreadStore, thread: str) -> list[dict[str, object]]:
        if thread == unreadable:
            raise UnreadableError("it can't be read", errno.EACCES)
        return problems(store, thread)

    monkeypatch.setattr(ThreadStore, "problems", refuse)
    found = ask("check", "--json", "--store", sample.root, code=10).objects
    assert [one["code"] for one in found][-1] == "no_permission"
    assert len(found) == 3
