"""What a revert dropped, in a mount: two files that are listed once there is something to tell."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.mount.clients import run
from tests.mount.conftest import Lab, until
from tests.mount.control_lab import PAGINATED, lines, shell, stock, turns

FILES = {"dropped.md", "dropped_turns.jsonl"}


@pytest.mark.parametrize("options", [[], ["--no-index"]])
def test_revert_and_undo(lab: Lab, options: list[str]) -> None:
    """After a revert `ls` shows both files, with their exact sizes; an undo empties them, and the next one fills them
    again. Whoever asks sees what is there at that moment.
    """
    (thread,) = stock(lab, PAGINATED)
    lab.mount(*options)
    folder = lab.thread(thread)
    assert not FILES & set(os.listdir(folder))
    assert run("ls threads/*/dropped.md 2>/dev/null || true", lab.mountpoint) == b""
    had = turns(lab, thread)
    for request, dropped in (("before -2", had[-2:]), ("undo", []), ("undo", had[-2:]), ("before -1", had[-3:])):
        done = shell(lab, thread, f"echo {request} > revert")
        assert done[0] == 0, done
        assert set(os.listdir(folder)) >= FILES
        rows = lines(folder / "dropped_turns.jsonl")
        assert sorted(row["id"] for row in rows) == sorted(dropped)
        assert turns(lab, thread) == had[: len(had) - len(dropped)]
        text = (folder / "dropped.md").read_text()
        assert len(re.findall(r"^## Turn \d+ ", text, re.MULTILINE)) == len(dropped)
        for name in FILES:
            assert (folder / name).stat().st_size == len((folder / name).read_bytes())
    assert run("ls threads/*/dropped.md", lab.mountpoint) == f"threads/{thread}/dropped.md\n".encode()
    shown = lab.run("log", thread, "--dropped", "--json", "--store", lab.sample.root).stdout
    assert [json.loads(line) for line in shown.splitlines()] == rows[::-1]
    words = re.findall(r"\w{4,}", rows[-1]["user"])[0]
    assert (
        run(f"grep -rl --include=dropped.md {words} threads", lab.mountpoint)
        == f"threads/{thread}/dropped.md\n".encode()
    )


def test_a_turn_that_was_dropped_is_found(lab: Lab) -> None:
    """A word that was only said in a dropped turn finds the thread; its hits say that they no longer count."""
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    last = lines(lab.thread(thread) / "turns.jsonl")[-1]
    query = lab.mountpoint / "search" / f"kind:user {last['user'].split()[-1]}"

    def hits() -> dict[str, bool]:
        return {hit["turn_id"]: hit["effective"] for hit in lines(query / "hits.jsonl")}

    before = hits()
    assert before[last["id"]] is True
    assert shell(lab, thread, "echo 'before -1' > revert")[0] == 0
    until(
        lambda: hits() == before | {last["id"]: False}, "the hit is told to be dropped"
    )  # answers may be a second old
    assert shell(lab, thread, "echo undo > revert")[0] == 0
    until(lambda: hits() == before, "it counts again")
