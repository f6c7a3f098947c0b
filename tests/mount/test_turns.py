"""`turns/` in a mount: folders of single turns, which follow the thread, and which a walk of the tree doesn't enter."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.core.logs import Log, assistant, call, output
from tests.mount.conftest import DEADLINE, Lab, until
from tests.mount.plain import join
from tests.tree.sample import thread_id

THREAD = thread_id(1)


def write(lab: Lab, log: Log) -> Path:
    """Put a log into the store of the test."""
    path = lab.sample.root / log.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(log.data)
    return path


def lines_of(*command: str | Path) -> list[str]:
    """What a program prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE)
    return done.stdout.splitlines()


def test_what_ordinary_tools_see(lab: Lab) -> None:
    """`ls`, `cat`, globs and `tar` work in it; numbers from either end and without zeros are found and not listed."""
    items = (call("c", "exec command"), output("c", "Exit code: 3\nOutput:\nno"), assistant("done"))
    write(lab, Log(True, THREAD).turn("a", "one", *items).turn("b", "two"))
    lab.mount("--read-only")
    turns = lab.thread(THREAD) / "turns"
    assert lines_of("ls", f"{turns}/") == ["0001", "0002"]
    assert lines_of("ls", turns / "1/") == [
        "assistant.md",
        "calls",
        "items.jsonl",
        "turn.json",
        "usage.json",
        "user.md",
    ]
    assert lines_of("ls", turns / "0001" / "calls") == ["001-exec command.json"]
    assert lines_of("sh", "-c", f"cat {turns}/*/user.md") == ["one", "two"]
    for name in ("last", "-1", "2", "002"):
        assert os.readlink(turns / name) == "0002"
        assert (turns / name / "user.md").read_text() == "two\n"
    for name in ("3", "0", "-3", "00010", "x", "0001~1", "-", "last2"):
        assert not os.path.lexists(turns / name)
    document = json.loads((turns / "-2" / "calls" / "001-exec command.json").read_bytes())
    assert (document["exit_code"], document["output"]) == (3, "Exit code: 3\nOutput:\nno")
    folder = lab.folder / "copy"
    folder.mkdir()
    archive = subprocess.run(["tar", "cf", "-", "-C", f"{turns}/", "."], capture_output=True, check=True).stdout
    subprocess.run(["tar", "xf", "-", "-C", folder], input=archive, check=True)
    for path in folder.rglob("*"):
        seen = turns / path.relative_to(folder)
        if path.is_file() and not path.is_symlink():
            assert path.read_bytes() == seen.read_bytes()
            assert seen.stat().st_size == path.stat().st_size
    with pytest.raises(OSError, match="Read-only"):
        (turns / "0001" / "user.md").open("wb")


def test_a_walk_leaves_it_out(lab: Lab) -> None:
    """Of all that lies below a thread a walk sees the link; whoever names the folder sees what is in it."""
    write(lab, Log(True, THREAD).turn("a", "one"))
    lab.mount("--read-only")
    folder = lab.thread(THREAD)
    assert os.readlink(folder / "turns") == ".turns"
    assert ".turns" not in os.listdir(folder)
    found = lines_of("find", folder)
    assert sorted(path for path in found if "turns" in path) == [str(folder / "turns"), str(folder / "turns.jsonl")]
    assert len(lines_of("find", f"{folder}/turns/")) == 7
    assert subprocess.run(["grep", "-rqx", "one", folder], check=False).returncode == 1
    assert lines_of("grep", "-rlx", "one", f"{folder}/turns/") == [f"{folder}/turns/0001/user.md"]


@pytest.mark.parametrize("option", ["--index", "--no-index"])
def test_it_follows_the_thread(lab: Lab, option: str) -> None:
    """A turn that is appended appears, and grows; one that is taken back vanishes, or stays and says so."""
    log = Log(True, THREAD).turn("a", "one").turn("b", "two")
    path = write(lab, log)
    lab.mount(option)
    turns = lab.thread(THREAD) / "turns"
    assert os.listdir(turns) == ["0001", "0002"]
    with (turns / "0002" / "items.jsonl").open("rb") as before:
        assert before.read().count(b"\n") == 2
        with path.open("ab") as file:
            had = len(log.lines)
            log.turn("c", "three", end=False)
            file.write(b"".join(log.lines[had:]))
        assert os.listdir(turns) == ["0001", "0002", "0003"]
        assert (turns / "last" / "user.md").read_text() == "three\n"
        assert json.loads((turns / "-1" / "turn.json").read_bytes())["status"] == "interrupted"
        with path.open("ab") as file:
            had = len(log.lines)
            log.item(assistant("more")).complete("c")
            file.write(b"".join(log.lines[had:]))
        assert (turns / "last" / "assistant.md").read_text() == "re: three\n\nmore\n"
        assert (turns / "last" / "items.jsonl").read_bytes().count(b"\n") == 3
        (lab.thread(THREAD) / "revert").write_text("before -1\n")
        assert os.listdir(turns) == ["0001", "0002"]
        until(lambda: not (turns / "0003").exists(), "what the kernel remembers of the turn is old")
        assert (turns / "last" / "user.md").read_text() == "two\n"
        before.seek(0)
        assert before.read().count(b"\n") == 2


def test_a_rollback_is_marked(lab: Lab) -> None:
    """A turn of a legacy thread that was taken back keeps a folder, with another name, and says why."""
    write(lab, Log(False, THREAD).turn("a", "one").turn("b", "two"))
    lab.mount()
    turns = lab.thread(THREAD) / "turns"
    assert os.readlink(turns / "last") == "0002"
    (lab.thread(THREAD) / "revert").write_text("before -1\n")
    assert os.listdir(turns) == ["0001", "0002~1"]
    document = json.loads((turns / "0002~1" / "turn.json").read_bytes())
    assert (document["number"], document["effective"], document["why"]) == (None, False, "rolled_back")
    assert os.readlink(turns / "last") == "0001"


@pytest.mark.parametrize("option", ["--index", "--no-index"])
def test_a_large_thread(lab: Lab, option: str) -> None:
    """What a worker makes of one turn is what is made of all of them together."""
    log = Log(True, THREAD)
    for number in range(12):
        log.turn(f"t{number}", f"say {number}", call("c"), output("c", "x" * 60_000), assistant(f"done {number}"))
    write(lab, log)
    if option == "--index":
        lab.run("index", lab.sample.root)
    lab.mount("--read-only", option)
    turns = lab.thread(THREAD) / "turns"
    assert (turns / "7" / "user.md").read_text() == "say 6\n"
    store = ThreadStore(str(lab.sample.root), Spool(str(lab.folder / "spool")))
    for name, files in store.project_turn(THREAD).items():
        for file, projection in files.items():
            assert (turns / name / file).read_bytes() == join(store, projection)
            assert (turns / name / file).stat().st_size == projection.size


def test_a_broken_thread(lab: Lab) -> None:
    """Without what it was forked from nobody can say which turns there are: that is an error, as for turns.jsonl."""
    write(lab, Log(True, THREAD, base=(thread_id(9), 3, 100)).turn("a", "one"))
    lab.mount("--read-only")
    with pytest.raises(OSError, match="Input/output"):
        (lab.thread(THREAD) / View.TURNS.value).read_bytes()
    with pytest.raises(OSError, match="Input/output"):
        os.listdir(lab.thread(THREAD) / "turns")
