"""The real Codex and a real mount at work on one store: operations go through the control files, and what is compared
with Codex is what the mount shows.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from threadstore.projection import View

from tests.interop.codex import Codex
from tests.interop.conftest import FRESH, MakeHome
from tests.interop.following import Following, Json, Mounted, remembered, turns
from tests.interop.model_server import ModelServer
from tests.interop.untouched import fingerprint
from tests.mount.clients import mounted, need, run, serving
from tests.mount.conftest import until
from tests.mount.control_lab import write

NAMES = pytest.mark.parametrize("name", FRESH)


class Workshop:
    """A home that is mounted while Codex runs on it."""

    def __init__(self, home: Path, mountpoint: Path, codex: Codex) -> None:
        self.home = home
        self.mountpoint = mountpoint
        self.codex = codex
        self.shown = Mounted(mountpoint)
        self.following = Following(codex, self.shown)

    def folder(self, thread_id: str) -> Path:
        """A thread in the mount."""
        return self.mountpoint / "threads" / thread_id

    def do(self, thread_id: str, file: str, request: str) -> str:
        """Write a request, read the answer; the id of the thread that it gave."""
        descriptor = os.open(self.folder(thread_id) / file, os.O_RDWR)
        try:
            os.write(descriptor, request.encode())
            answer: Json = json.loads(os.pread(descriptor, 1 << 20, 0))
        finally:
            os.close(descriptor)
        assert answer["error"] is None, answer
        return str(answer["thread_id"])

    def agrees(self, thread_id: str) -> None:
        """What the mount says of a thread is what Codex says of it."""
        thread = self.codex.call("thread/read", threadId=thread_id)["thread"]
        (document,) = [json.loads((self.folder(thread_id) / "thread.json").read_bytes())]
        assert turns(self.shown, thread_id) == self.codex.turns(thread_id)
        assert document["history_mode"] == thread["historyMode"]
        assert document["name"] == thread["name"]
        current = self.folder(thread_id) / "rollouts" / "current"
        assert os.readlink(current) == Path(thread["path"]).name
        parent = self.folder(thread_id) / "lineage" / "forked_from"
        forked_from = os.readlink(parent).rpartition("/")[2] if parent.is_symlink() else None
        assert forked_from == thread.get("forkedFromId")
        assert self.shown.lines(thread_id, View.PROBLEMS) == []

    def goes_on(self, thread_id: str) -> None:
        """Codex resumes the thread, runs two turns, forks it and reverts it; the mount agrees after each step."""
        codex, shown = self.codex, self.shown
        codex.resume(thread_id)
        self.agrees(thread_id)
        first = self.following.turn(thread_id, f"first {thread_id}")
        after_one = remembered(shown, thread_id)
        self.agrees(thread_id)
        second = self.following.turn(thread_id, f"second {thread_id}")
        assert [turn for turn, _ in turns(shown, thread_id)][-2:] == [first, second]
        self.agrees(thread_id)
        child = codex.fork(thread_id, beforeTurnId=second)
        assert remembered(shown, child) == after_one
        self.agrees(child)
        assert (self.folder(thread_id) / "lineage" / "forks" / child).is_symlink()
        self.following.turn(child, f"fork {child}")
        self.agrees(child)
        if codex.call("thread/read", threadId=thread_id)["thread"]["historyMode"] == "paginated":
            codex.call("thread/revert", threadId=thread_id, beforeTurnId=second)
            assert remembered(shown, thread_id) == after_one
            self.agrees(thread_id)
            self.following.turn(thread_id, f"reverted {thread_id}")
            self.agrees(thread_id)


@pytest.fixture
def workshop(name: str, make_home: MakeHome, tmp_path: Path) -> Iterator[Workshop]:
    """The store `name`, mounted, with a Codex."""
    home = make_home(name, tmp_path)
    with (
        serving(tmp_path / "lab", home) as lab,
        mounted(lab) as mountpoint,
        ModelServer() as model,
        Codex(home, model) as codex,
    ):
        yield Workshop(home, mountpoint, codex)


@NAMES
def test_codex_goes_on_from_the_control_files(
    name: str, workshop: Workshop, fresh_threads: dict[str, dict[str, str]]
) -> None:
    """Forks, reverts, an undo and a compaction are written into the mount while Codex runs on the same store."""
    threads = fresh_threads[name]
    done = [
        workshop.do(threads["plain"], "fork", "through 2"),
        workshop.do(threads["fork"], "fork", "before -1"),
        workshop.do(threads["named"], "revert", "before -1"),
        workshop.do(threads["plain"], "compact", "What was done: everything.\n"),
    ]
    done.append(workshop.do(threads["plain"], "fork", "before 1"))
    if name == "fresh.paginated":
        workshop.do(threads["reverted"], "revert", "before -1")
        done.append(workshop.do(threads["reverted"], "revert", "undo"))
        done.append(workshop.do(threads["interrupted"], "revert", "before 1"))
    for thread_id in done:
        workshop.goes_on(thread_id)
    assert len(set(done)) == len(done)
    known = {thread["id"] for thread in workshop.codex.known()}
    assert known <= set(os.listdir(workshop.mountpoint / "threads"))


@NAMES
def test_codex_has_the_thread(name: str, workshop: Workshop, fresh_threads: dict[str, dict[str, str]]) -> None:
    """While Codex has a thread open, writes to `revert` and `compact` fail with EBUSY and change nothing; a fork works,
    and Codex opens it as it is.
    """
    thread_id = fresh_threads[name]["plain"]
    codex, shown = workshop.codex, workshop.shown
    codex.resume(thread_id)
    workshop.following.turn(thread_id, "Codex is at work")
    before, memory = fingerprint(workshop.home), remembered(shown, thread_id)
    recent = b'{"strategy":"recent"}'
    for file, request in (("revert", b"before -1"), ("revert", b"undo"), ("compact", b"A text."), ("compact", recent)):
        assert write(workshop.folder(thread_id) / file, request) == errno.EBUSY
    for line in (workshop.mountpoint / "operations.jsonl").read_bytes().split(b"\n")[:-1]:
        answer = json.loads(line)
        assert (answer["error"], answer["status"]) == ("EBUSY", "refused")
        assert "already has an active writer" in answer["message"]
    assert fingerprint(workshop.home) == before
    assert remembered(shown, thread_id) == memory
    child = workshop.do(thread_id, "fork", "latest")
    after = fingerprint(workshop.home)
    assert {path: digest for path, digest in after.items() if path in before} == before
    new = after.keys() - before.keys()
    assert len(new) == 2
    assert all(child in path for path in new)  # its rollout and its row
    assert remembered(shown, child) == memory
    workshop.goes_on(child)
    workshop.following.turn(thread_id, "and goes on")
    workshop.agrees(thread_id)


@pytest.mark.parametrize("name", ["fresh.paginated"])
def test_from_a_word_to_a_thread_that_goes_on(
    name: str, workshop: Workshop, fresh_threads: dict[str, dict[str, str]]
) -> None:
    """The way of somebody who has the mount and its README only: a word that is remembered, the thread that it was said
    in, what a revert dropped, and a fork from before a turn, with which Codex goes on; each step by a shell.
    """
    need("jq", "jq")
    thread_id, codex, mount = fresh_threads[name]["plain"], workshop.codex, workshop.mountpoint
    codex.resume(thread_id)
    workshop.following.turn(thread_id, "where is the halibut")
    kept = remembered(workshop.shown, thread_id)
    workshop.following.turn(thread_id, "weigh it in a marmoset")
    last = workshop.following.turn(thread_id, "cook it in a wombat")
    codex.call("thread/revert", threadId=thread_id, beforeTurnId=last)

    def search(word: str) -> bool:
        return run(f"ls search/{word}", mount).count(b"\n") == 2  # the thread, and its hits

    until(lambda: search("wombat") and search("marmoset"), "the words are found")
    until(lambda: b'"effective":false' in run("cat search/wombat/hits.jsonl", mount), "the revert is seen")
    assert run("ls -d search/wombat/*/", mount).startswith(b"search/wombat/2")
    assert b"cook it in a wombat" in run("cat search/wombat/*/dropped.md", mount)
    assert run("grep -l wombat threads/*/dropped.md", mount) == f"threads/{thread_id}/dropped.md\n".encode()
    assert b"wombat" not in run("cat search/marmoset/*/transcript.md", mount)
    number = run("jq -s '.[0].turn' search/marmoset/hits.jsonl", mount).decode().strip()
    assert f"\n## Turn {number} ".encode() in run("cat search/marmoset/*/transcript.md", mount)
    folder = run("echo search/marmoset/2*", mount).decode().strip()
    run(f"echo 'before {number}' > {folder}/fork", mount)
    child = run(f"jq -r .thread_id {folder}/fork", mount).decode().strip()
    assert remembered(workshop.shown, child) == kept
    workshop.goes_on(child)
