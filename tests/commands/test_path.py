"""`rolloutfs path` and `rolloutfs status`: what is mounted now. Other mounts of the machine don't matter."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from rolloutfs import mounttable
from tests.commands.conftest import Ask, assert_harmless, say
from tests.mount.conftest import DEADLINE, Lab
from tests.tree.sample import thread_id

HOSTILE_NAMES = (b"a, b=c\\054\\ d", "é\u202e\n東 #1".encode(), b"\xff\x1b[31m,ro")


def test_the_folder_of_a_thread(lab: Lab) -> None:
    """By id, by its beginning, by name, and as the last one of the current folder; what is printed is there."""
    here = str(lab.folder)
    older, thread = lab.sample.add(1, "one", cwd=here), lab.sample.add(0x2000_0000_0000 >> 4, "two", cwd=here)
    say(lab.sample, thread, "later")
    lab.sample.append(thread, "later")
    (lab.sample.root / "session_index.jsonl").write_text(json.dumps({"id": older, "thread_name": "a b"}) + "\n")
    lab.mount()
    at = ("--mountpoint", lab.mountpoint, "--store", lab.sample.root)
    for words, wanted in (((older,), older), ((thread[:30],), thread), (("a b",), older), ((), thread)):
        assert lab.run("path", *words, *at).stdout == f"{lab.thread(wanted)}\n"
    assert (Path(lab.run("path", older.upper(), *at).stdout[:-1]) / "thread.json").is_file()
    assert "give more of it" in lab.run("path", "01a2", *at, code=8).stderr
    assert "There is no thread" in lab.run("path", "nobody", *at, code=8).stderr


def test_in_the_folder_of_a_thread(lab: Lab, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a mount the thread is meant in whose folder this is, whatever it is called by, and not where another store is
    asked for.
    """
    thread = lab.sample.add(1, "one")
    say(lab.sample, lab.sample.add(2, "two"), "later")
    say(lab.sample, thread, "one")
    lab.mount()
    with monkeypatch.context() as inside:
        for folder in (
            lab.thread(thread),
            lab.thread(thread) / "lineage",
            next((lab.mountpoint / "by-name").glob("one*")),
        ):
            inside.chdir(folder)
            assert ask("path", "--store", lab.sample.root).out == f"{lab.thread(thread)}\n"
        assert ask("log", "--store", lab.sample.root).rows()[-1].endswith("one")
        other = lab.folder / "other"
        shutil.copytree(lab.sample.root, other)
        assert "name one" in ask("log", "--store", other, code=8).err


def test_mounts_of_other_stores_are_left_out(lab: Lab, tmp_path: Path) -> None:
    """Of a store and its backup, both mounted, the one is taken that is asked for, by id, name or folder; of two mounts
    of one store the older one; when only the backup is mounted, that is told.
    """
    here = str(lab.folder)
    thread = lab.sample.add(1, "one", cwd=here)
    say(lab.sample, thread, "one")
    (lab.sample.root / "session_index.jsonl").write_text(json.dumps({"id": thread, "thread_name": "a b"}) + "\n")
    backup, places = tmp_path / "back, %20up\\ü", [tmp_path / name for name in ("of backup", "z", "a")]
    shutil.copytree(lab.sample.root, backup)
    for place in places:
        place.mkdir()
    own = str(lab.sample.root)

    def folder(*words: str, home: str = own) -> str:
        return lab.run("path", *words, CODEX_HOME=home).stdout.rstrip("\n")

    try:
        lab.run("mount", backup, places[0])
        for word in (thread, thread[:8], "a b"):
            told = lab.run("path", word, code=8, CODEX_HOME=own).stderr
            assert str(places[0]) in told
            assert f"shows {backup}" in told
        assert f"{places[0]} shows {backup}, served" in lab.run("status", CODEX_HOME=own).stdout
        for place in places[1:]:
            lab.run("mount", lab.sample.root, place)
        for words in ((thread,), (thread[:30],), ("a b",), ()):
            assert folder(*words) == folder(*words, "--store", own)
            assert folder(*words) == f"{places[1]}/threads/{thread}"
            assert folder(*words, "--store", str(backup)) == f"{places[0]}/threads/{thread}"
            assert folder(*words, "--mountpoint", str(places[0])) == f"{places[0]}/threads/{thread}"
            assert folder(*words, "--mountpoint", str(places[2]), home="/none") == f"{places[2]}/threads/{thread}"
        mixed = lab.run("path", thread, "--mountpoint", places[0], "--store", lab.sample.root, code=8)
        assert f"shows {backup}" in mixed.stderr
        lab.run("umount", places[1])
        assert folder(thread) == f"{places[2]}/threads/{thread}"
    finally:
        for place in places:
            lab.run("umount", place, code=None)


def test_no_mount(lab: Lab) -> None:
    """A folder that is none, and a dead mount, are told with code 4, and nothing hangs."""
    thread = lab.sample.add(1)
    at = ("--mountpoint", lab.mountpoint, "--store", lab.sample.root)
    assert "no mountpoint" in lab.run("path", thread, *at, code=4).stderr
    server = lab.mount()
    server.kill()
    server.wait(DEADLINE)
    assert "see rolloutfs status" in lab.run("path", thread, *at, code=4).stderr


def status(lab: Lab) -> dict[str, object]:
    """What is said of our mount; empty when nothing is."""
    answer = json.loads(lab.run("status", "--json", "--store", lab.sample.root).stdout)
    found = [mount for mount in answer["mounts"] if mount["mountpoint"] == str(lab.mountpoint)]
    return found[0] if found else {}


@pytest.mark.parametrize("background", [False, True])
def test_status(background: bool, lab: Lab) -> None:
    """The mount, its server and since when, alive and dead; and none after the unmount."""
    lab.sample.add(1)
    before = time.time()
    pid = lab.background() if background else lab.mount().pid
    told = status(lab)
    assert (told["pid"], told["answers"], told["why"]) == (pid, True, None)
    assert told["store"] == str(lab.sample.root)
    since = datetime.fromisoformat(str(told["since"])).timestamp()
    assert before - 2 < since < time.time() + 2
    line = next(line for line in lab.run("status").stdout.splitlines() if line.startswith(f"{lab.mountpoint} "))
    assert f"process {pid}" in line
    assert line.endswith(": answers")
    if background:
        lab.unmount()
    else:
        os.kill(pid, signal.SIGKILL)
        lab.servers[0].wait(DEADLINE)
        told = status(lab)
        assert (told["pid"], told["answers"]) == (None, False)
        assert "not connected" in str(told["why"])
        lab.unmount()
    assert status(lab) == {}


@pytest.mark.parametrize("words", [("{store}", "mnt"), ("--read-only", "{store}", "mnt"), ("-o", "ro", "mnt")])
def test_status_of_relative_paths(words: tuple[str, ...], lab: Lab) -> None:
    """A store that was given relative to the folder of whoever mounted it, or not at all, is told as it lies."""
    store = lab.sample.root.relative_to(lab.folder)
    try:
        lab.run("mount", *(word.format(store=store) for word in words), CODEX_HOME=str(lab.sample.root))
        told = status(lab)
        assert (told["store"], told["answers"]) == (str(lab.sample.root), True)
    finally:
        lab.run("umount", lab.mountpoint, code=None)


def test_what_is_meant_in_a_mount(lab: Lab) -> None:
    """`status` and `index` are about the store that it shows, as other commands are; the mount itself is none."""
    lab.sample.add(1)
    lab.mount()
    for words, member in ((("status", "--json"), "store"), (("index", "--json"), "threads")):
        done = subprocess.run(
            [sys.executable, "-m", "rolloutfs", *words],
            env=lab.environment | {"CODEX_HOME": str(lab.folder / "none")},
            cwd=lab.mountpoint,
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[member] == {"store": str(lab.sample.root), "threads": 1}[member]
    told = lab.run("ls", "--store", lab.mountpoint, code=3).stderr
    assert f"is a mount of a store: give that, {lab.sample.root}." in told
    lab.unmount()
    told = lab.run("ls", "--store", lab.sample.root).stderr
    assert told == ""
    lab.sample.path(thread_id(1)).unlink()
    lab.edits = True
    assert "There is no thread in" in lab.run("ls", "--store", lab.sample.root).stderr


@pytest.mark.parametrize("passthrough", [False, True])
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_status_of_any_name(name: bytes, passthrough: bool, lab: Lab) -> None:
    """The store stands in the kernel's table, whatever it is called, also for a mount of which the kernel reads files
    by itself; for people it is harmless.
    """
    lab.sample.add(1)
    store = os.fsencode(lab.folder) + b"/" + name
    os.rename(lab.sample.root, store)
    try:
        words = ["mount", "--passthrough" if passthrough else "--no-passthrough", store, lab.mountpoint]
        told = subprocess.run(  # which repeats the name as it was given
            [sys.executable, "-m", "rolloutfs", *words],
            env=lab.environment,
            cwd=lab.folder,
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
        assert told.returncode == 0, told.stderr
        found = mounttable.find(str(lab.mountpoint))
        assert found is not None
        assert os.fsencode(found.source) == store
        assert status(lab)["answers"] is True
        assert_harmless(lab.run("status").stdout)
    finally:
        lab.run("umount", lab.mountpoint, code=None)


@pytest.mark.parametrize(
    ("options", "variable", "has_none"),
    [
        (("--no-index",), "", True),
        ((), "off", True),
        (("--index",), "off", False),
        (("--index", "--no-index"), "", True),
        ((), "", False),
        ((), "config", True),
        (("--read-only",), "config", True),
    ],
)
def test_status_of_a_mount_without_an_index(options: tuple[str, ...], variable: str, has_none: bool, lab: Lab) -> None:
    """It is told of the mount, and of the store that it shows, of which there is then no index to come; whoever said
    it, and whatever the config says by now.
    """
    lab.sample.add(1)
    config = lab.folder / "config" / "rolloutfs" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("index = false\n" if variable == "config" else "")
    lab.mount(*options, ROLLOUTFS_INDEX="" if variable == "config" else variable)
    config.write_text("index = true\n" if has_none else "index = false\n")
    assert status(lab)["no_index"] is has_none
    shown = lab.run("status", "--store", lab.sample.root).stdout.splitlines()
    (line,) = [line for line in shown if line.startswith(f"{lab.mountpoint} ")]
    end = ", read-only: answers" if options == ("--read-only",) else ": answers"
    assert line.endswith(f", without an index{end}" if has_none else end)
    assert ("without an index" in line) is has_none
    if has_none:
        told = f"There is no index of {lab.sample.root}: {lab.mountpoint} is mounted without one; rolloutfs index, or"
        assert any(line.startswith(told) for line in shown)
        assert not any("is mounted without one" in line for line in lab.run("status").stdout.splitlines())


def test_how_it_is_mounted(lab: Lab) -> None:
    """A mount tells it in a file that nothing lists or walks into, and `status` what is unusual; a dead one nothing."""
    lab.sample.add(1)
    server = lab.mount("--read-only", "--zone", "Asia/Tokyo", "--mask-secrets")
    place = lab.mountpoint / ".mount.json"
    how = json.loads(place.read_bytes())
    assert status(lab)["how"] == how
    known = ("read_only", "zone", "mask_secrets", "passthrough", "allow_other")
    assert {name: how[name] for name in known} == {
        "read_only": True,
        "zone": "Asia/Tokyo",
        "mask_secrets": True,
        "passthrough": False,
        "allow_other": False,
    }
    assert how["store"] == str(lab.sample.root)
    assert os.path.dirname(how["index"]).endswith("/rolloutfs/index")
    assert place.stat().st_size == len(place.read_bytes())
    assert ".mount.json" not in os.listdir(lab.mountpoint)
    (line,) = [one for one in lab.run("status").stdout.splitlines() if one.startswith(f"{lab.mountpoint} ")]
    assert line.endswith(", read-only, secrets masked: answers")
    server.kill()
    server.wait()
    assert {name: status(lab)[name] for name in ("how", "no_index", "answers")} == {
        "how": None,
        "no_index": None,
        "answers": False,
    }


def test_status_of_the_index(lab: Lab) -> None:
    """Path, bytes and threads as `rolloutfs index` has left them; nothing where there is none."""
    lab.sample.add(1)
    lab.sample.add(2)

    def told() -> dict[str, object]:
        answer = json.loads(lab.run("status", "--json", "--store", lab.sample.root).stdout)
        index: dict[str, object] = answer["index"]
        assert answer["versions"]["rolloutfs"]
        return index

    assert (told()["bytes"], told()["threads"]) == (None, None)
    path = Path(json.loads(lab.run("index", "--json", lab.sample.root).stdout)["index"])
    assert (told()["path"], told()["threads"]) == (str(path), 2)
    assert int(str(told()["bytes"])) >= path.stat().st_size
    path.write_bytes(b"x" * 100)
    assert (told()["bytes"], told()["threads"]) == (100, None)
    assert "can't be read" in lab.run("status", "--store", lab.sample.root).stdout


def test_inside_a_mount(lab: Lab, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anywhere in a mount its store is the one that is asked, and a path may lead to the file that is wanted."""
    thread = lab.sample.add(1, "one")
    say(lab.sample, thread, "one")
    lab.mount("--read-only")
    link = next((lab.mountpoint / "by-name").glob("one*")).name
    with monkeypatch.context() as inside:
        inside.chdir(lab.mountpoint)
        assert thread[:8] in ask("ls").out
        assert ask("log", "one").rows()[-1].endswith("one")
        assert ask("check").out == "1 thread, 0 problems.\n"
        turns = (lab.thread(thread) / "turns.jsonl").read_text()
        assert ask("show", f"by-name/{link}/turns.jsonl").out == turns
        assert ask("show", f"threads/{thread}/lineage/lineage.json").out == ask("show", "one", "lineage.json").out
        assert ask("show", f"by-name/{link}").out == ask("show", thread, "thread.json").out
        assert "no file 'fork'" in ask("show", f"by-name/{link}/fork", code=2).err
        assert "There is no thread 'by-name/nobody'" in ask("log", "by-name/nobody", code=8).err
        assert "is mounted read-only" in ask("fork", "one", "latest", code=8).err
        inside.chdir(lab.thread(thread))
        assert ask("show", "turns.jsonl").out == turns
