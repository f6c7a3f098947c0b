"""`rolloutfs ls`: which threads, in which order, and what is told of them."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest
from rich.cells import cell_len
from threadstore.errors import UnreadableError
from threadstore.projection import View
from threadstore.store import ThreadStore
from threadstore.summaries import Summary

from tests.commands.conftest import HOSTILE, Ask, OpenStore, assert_harmless, say
from tests.conftest import CopyStore, Corpus
from tests.mount.conftest import DEADLINE, Lab
from tests.tree.sample import SampleStore, line, thread_id


@pytest.mark.parametrize("name", ["subagents_v2.legacy", "named.legacy", "archived.paginated", "old_0.20.0_basic"])
def test_as_thread_json_says(name: str, corpus: Corpus, open_store: OpenStore, ask: Ask) -> None:
    """Every member is that of thread.json, whether the index knows the thread or not."""
    home = corpus(name).home
    store = open_store(home)
    told = []
    for _ in range(2):
        told.append(ask("ls", "--all", "-n", "0", "--json", "--store", home).out)
        threads = {thread["thread_id"]: thread for thread in map(json.loads, told[-1].splitlines())}
        assert sorted(threads) == store.thread_ids()
        for thread, listed in threads.items():
            document = json.loads(store.rendered(thread, View.THREAD))
            for member in ("name", "preview", "status", "health", "cwd", "model", "archived", "forked_from", "parent"):
                assert listed[member] == document[member]
            assert listed["turns"] == document["counts"]["effective_turns"]
            assert listed["branch"] == (document["git"] or {}).get("branch")
        ask("index", home)
    assert told[0] == told[1]


def test_whose_threads(copy_store: CopyStore, ask: Ask) -> None:
    """Those of agents and archived ones are left out, unless all are asked for; reviews are an agent's, too."""

    def ids(name: str, *options: str) -> set[str]:
        answer = ask("ls", "--json", *options, "--store", copy_store(name).home)
        return {thread["thread_id"] for thread in answer.objects}

    for name in ("subagents_v2.legacy", "review.paginated"):
        everything, people = ids(name, "--all"), ids(name)
        assert len(people) == 1
        assert people < everything
    active, archived = ids("archived.paginated"), ids("archived.paginated", "--archived")
    assert active
    assert archived
    assert active | archived == ids("archived.paginated", "--all")
    assert archived == ids("archived.paginated", "--all", "--archived")


def test_newest_first(sample: SampleStore, ask: Ask) -> None:
    """By the time of the last record, not of the file; -n takes the first ones, 20 without it."""
    for number in range(25):
        path = sample.path(sample.add(number, "hello"))
        path.write_bytes(path.read_bytes() + line("event_msg", {"type": "x"}, second=number * 7 % 25 + 10))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    order = [int(one["thread_id"][-2:], 16) for one in ask("ls", "--json", "-n", "0", "--store", sample.root).objects]
    assert order == sorted(range(25), key=lambda number: -(number * 7 % 25))
    assert len(ask("ls", "--store", sample.root).rows()) == 20
    newest = ask("ls", "--json", "-n", "3", "--store", sample.root).objects
    assert [int(one["thread_id"][-2:], 16) for one in newest] == order[:3]
    assert ask("ls", "-n", "-1", "--store", sample.root, code=2).out == ""


def test_a_table(sample: SampleStore, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local time, an id that names only this thread, the branch or the folder, the name or the first words."""
    monkeypatch.setenv("HOME", "/home/me")
    thread = sample.add(1, "hello", cwd="/home/me/project", git={"branch": "main"})
    sample.add(2, "good morning", cwd="/home/me/other")
    sample.add(3, "x", cwd="/home/menu")
    for number, text in ((1, "hello"), (2, "good  morning"), (3, "x")):
        say(sample, thread_id(number), text)
    rows = [re.split(r"  +", row) for row in ask("ls", "--store", sample.root).rows()]
    assert [row[-2:] for row in rows] == [["/home/menu", "x"], ["~/other", "good morning"], ["main", "hello"]]
    assert {row[0] for row in rows} == {"2026-11-29 23:00"}
    assert thread == rows[2][1]
    assert ask("ls", "--store", sample.root).out.startswith("LAST ")


def test_hostile_texts(sample: SampleStore, ask: Ask) -> None:
    """One line a thread, whatever its names, with nothing that a terminal obeys; JSON tells what they are."""
    say(sample, sample.add(1, cwd=f"/x/{HOSTILE}", git={"branch": HOSTILE}), HOSTILE)
    say(sample, sample.add(2), "e" + "\u0301" * 500)
    say(sample, sample.add(3, cwd="C:\\x"), "x\ue000")
    answer = ask("ls", "--store", sample.root)
    assert len(answer.rows()) == 3
    assert "\\x1b[31mred\\x07 second\\x9b2J \\u202eevil" in answer.out
    assert answer.out.count("\u0301") == 3
    assert "\\ue000" in answer.out
    assert_harmless(answer.out)
    told = ask("ls", "--json", "--store", sample.root)
    assert_harmless(told.out)
    assert HOSTILE in {one["branch"] for one in told.objects}


def test_threads_that_cannot_be_read(sample: SampleStore, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are listed, with where to look."""
    say(sample, sample.add(1), "hello")
    unreadable = sample.add(2)
    read = ThreadStore.summary

    def summary(store: ThreadStore, thread: str) -> Summary:
        if thread == unreadable:
            raise UnreadableError("a disk that fails", errno.EIO)
        return read(store, thread)

    monkeypatch.setattr(ThreadStore, "summary", summary)
    rows = ask("ls", "--store", sample.root).rows()
    assert [row.rpartition("  ")[2] for row in rows] == ["(can't be read: see rolloutfs check)", "hello"]
    assert ask("ls", "--json", "--store", sample.root).objects[0]["thread_id"] == unreadable


def test_no_threads(sample: SampleStore, tmp_path: Path, ask: Ask) -> None:
    """That an empty store has none is said, and isn't part of the list; a folder that is no store is code 3."""
    answer = ask("ls", "--store", sample.root)
    assert (answer.out, answer.err) == ("", f"There is no thread in {sample.root}.\n")
    sample.add(1)
    answer = ask("ls", "--archived", "--store", sample.root)
    assert (answer.out, answer.err) == ("", "There are no such threads. With --all everything is listed.\n")
    sample.path(thread_id(1)).unlink()
    assert ask("ls", "--json", "--store", sample.root).err == ""
    assert "no store" in ask("ls", "--store", tmp_path / "none", code=3).err


def on_terminal(lab: Lab, columns: int, *arguments: str, **environment: str) -> str:
    """What a command writes to a terminal of that width."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "rolloutfs", *arguments, "--store", str(lab.sample.root)]
    variables = {**lab.environment, "TERM": "xterm", **environment}
    with subprocess.Popen(command, env=variables, stdout=theirs, stdin=theirs) as process:
        os.close(theirs)
        written = b""
        try:
            while piece := os.read(ours, 65536):
                written += piece
        except OSError:  # how a terminal tells that nobody writes to it any more
            pass
        assert process.wait(DEADLINE) == 0
    os.close(ours)
    return written.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [40, 110, 200])
def test_fits_the_terminal(columns: int, lab: Lab) -> None:
    """No line is wider, also with letters that take two cells; NO_COLOR means no escape sequence at all."""
    for number in range(3):
        thread = lab.sample.add(number, cwd="/a/long/folder/" + "deep/" * 20)
        say(lab.sample, thread, "中文" * 90 if number else "words " * 40)
    plain = on_terminal(lab, columns, "ls", NO_COLOR="1")
    assert "\x1b" not in plain
    lines = plain.split("\n")[:-1]
    assert len(lines) == 4
    assert max(map(cell_len, lines)) <= columns
    assert all("…" in line for line in lines[1:])
    if columns > 100:
        assert "中文" in lines[1]
        assert "words" in lines[3]
    assert "\x1b[1m" in on_terminal(lab, columns, "ls")
    assert "\x1b" not in on_terminal(lab, columns, "ls", TERM="dumb")
