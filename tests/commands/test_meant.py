"""Which thread a command means: by an id, a name, first words, a link of a view, a path into a mount."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutfs.harmless import harmless
from rolloutfs.meant import UnnamedError, find
from tests.commands.conftest import HOSTILE, Ask, OpenStore, assert_harmless, say
from tests.commands.test_completion import completed
from tests.mount.conftest import Lab
from tests.tree.sample import SampleStore, meta, thread_id

VIEWS = ("by-date", "by-name", "by-cwd", "by-branch", "by-model", "recent", "archived")


def links(mountpoint: Path) -> Iterator[Path]:
    """Every link of every view."""
    for view in VIEWS:
        for folder, names, files in os.walk(mountpoint / view):
            yield from (Path(folder, name) for name in (*names, *files) if Path(folder, name).is_symlink())


def call(sample: SampleStore, thread: str, name: str) -> None:
    """Give a thread a name."""
    with (sample.root / "session_index.jsonl").open("a") as file:
        file.write(json.dumps({"id": thread, "thread_name": name}) + "\n")


def test_the_end_of_an_id(sample: SampleStore, ask: Ask) -> None:
    """From 6 characters on, in any case, alone or behind the words of a link; several are told."""
    thread, other = sample.add(0x123456780, "fix the tests"), sample.add(0xAB45678F, "else")
    for word in ("456780", "23456780", thread[1:], "fix_the_tests-23456780", f"x-{thread}", f"x-{thread}__"):
        assert json.loads(ask("show", word, "--store", sample.root).out)["id"] == thread
    assert ask("log", "AB45678F", "--store", sample.root).err == "The thread has no turns.\n"
    sample.add(0xCB45678F)
    told = ask("show", "b45678f", "--store", sample.root, code=8).err
    assert "the end of 2 thread ids" in told
    assert f"  {other[:-8]}" in told
    assert "There is no thread" in ask("show", "56780", "--store", sample.root, code=8).err


def test_what_ls_shows(sample: SampleStore, ask: Ask) -> None:
    """Names and first words, whole, cut as on a terminal, or some words from the beginning, also of agents."""
    long = "write the tests of the parser " * 20
    texts = ("fix the bug", f"say {HOSTILE}", long, "fix")
    made = [sample.add(number) for number in range(len(texts))]
    for thread, text in zip(made, texts, strict=True):
        say(sample, thread, text)
    call(sample, sample.add(20, "hello"), "release notes")
    sample.add(21, source={"subagent": "x"}, parent_thread_id=made[0], agent_nickname="Bo")
    listed = ("ls", "--all", "--store", sample.root)
    heading, *table = ask(*listed).out.splitlines()
    for line, document in zip(table, ask(*listed, "--json").objects, strict=True):
        shown = line[heading.index("NAME") :]
        assert_harmless(shown)
        for word in (shown, f"{shown[:11]}…" if len(shown) > 20 else shown):
            assert json.loads(ask("show", word, "--store", sample.root).out)["id"] == document["thread_id"]
    assert json.loads(ask("show", "fix the", "--store", sample.root).out)["id"] == made[0]
    for word in ("fix th", "the bug", "…", " "):
        assert "There is no thread" in ask("show", word, "--store", sample.root, code=8).err
    say(sample, sample.add(30), "fix the bug")
    several = ask("revert", "fix the bug", "before", "1", "--store", sample.root, code=8).err
    assert several.splitlines() == [
        "rolloutfs: 2 threads begin with 'fix the bug': give the id of one.",
        *(f"  {one}  2026-11-29 23:00  fix the bug" for one in (thread_id(30), made[0])),
    ]
    assert "2 threads begin with 'fix_the_bug'" in ask("log", "fix_the_bug", "--store", sample.root, code=8).err


def test_several(sample: SampleStore, ask: Ask) -> None:
    """Of ten, the newest ids first, it is told what tells them, when they began, and what `ls` shows of them; also to
    programs.
    """
    made = [sample.add(number) for number in range(12)]
    call(sample, made[11], f"say {HOSTILE}")
    say(sample, made[10], "w " * 100)
    sample.path(made[9]).write_bytes(b"no record\n")
    sample.add(8, source={"subagent": "x"}, parent_thread_id=made[0], agent_nickname="Bo")
    listed = {one["thread_id"]: one for one in ask("ls", "--all", "-n", "0", "--json", "--store", sample.root).objects}
    for asked in (("show", "01a2"), ("log", "01a2"), ("tree", "01a2"), ("fork", "01a2")):
        answer = ask(*asked, "--store", sample.root, code=8)
        heading, *lines, more = answer.err.splitlines()
        assert heading == "rolloutfs: '01a2' is the beginning of 12 thread ids: give more of it."
        assert more == "  and 2 more"
        assert_harmless(answer.err)
        for line, thread in zip(lines, made[:1:-1], strict=True):
            beginning = line.split()[0]
            assert [one for one in listed if one.startswith(beginning)] == [thread]
            assert json.loads(ask("show", beginning, "--store", sample.root).out)["id"] == thread
        assert lines[0].endswith(f"2026-11-29 23:00  {harmless(f'say {HOSTILE}')[:59]}…")
        assert lines[1].endswith("w w w…")
        assert len(lines[1]) < 120
        assert lines[3].endswith("(agent Bo)")
    told = json.loads(ask("fork", "01a2", "--store", sample.root, code=8).out)
    assert f"rolloutfs: {told['message']}\n" == ask("fork", "01a2", "--store", sample.root, code=8).err


def test_every_link(lab: Lab, open_store: OpenStore, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, wherever that is typed, unless others may be called so; by its path, with the store that is mounted;
    and from within the folder that it leads to.
    """
    numbers = iter(range(1, 100))

    def add(text: str, began: str) -> str:
        thread = lab.sample.add(next(numbers))
        lab.sample.path(thread).write_bytes(meta(thread, timestamp=began, git={"branch": "main"}))
        say(lab.sample, thread, text)
        return thread

    add("fix the bug", "2026-11-29T21:31:05.000Z")
    add("fix the bug", "2026-11-29T21:31:05.000Z")
    add("fix the bug", "2026-11-29T21:31:06.000Z")
    clear = add("look at -it", "2026-11-30T23:59:59.000Z")
    call(lab.sample, clear, "look at; it")
    apart = [add("move it", f"2026-11-{day}T10:00:00.000Z") for day in (10, 20)]
    add("", "2026-11-28T01:02:03.000Z")
    lab.sample.add(next(numbers), source={"subagent": "x"}, parent_thread_id=clear)
    lab.mount("--zone", "Asia/Kathmandu")
    store = open_store(lab.sample.root)
    found = list(links(lab.mountpoint))
    assert {link.relative_to(lab.mountpoint).parts[0] for link in found} == set(VIEWS) - {"by-model", "archived"}
    for link in found:
        thread = link.resolve().name
        if link.relative_to(lab.mountpoint).parts[0] == "by-date" and thread in apart:  # the day is no part of the name
            with pytest.raises(UnnamedError, match=thread):
                find(store, link.name)
        else:
            assert find(store, link.name) == thread
        assert find(store, str(link)) == thread
        assert find(store, f"{link}/lineage/../turns") == thread

    name = next(one.name for one in found if one.parent.name == "by-name" and one.resolve().name == clear)
    assert name == "look_at_it"
    told = ask("log", lab.mountpoint / "by-name" / name, "--json").objects
    assert told == ask("log", clear, "--json", "--store", lab.sample.root).objects
    with monkeypatch.context() as inside:
        inside.chdir(lab.mountpoint / "recent")
        for link in (lab.mountpoint / "recent").iterdir():
            assert json.loads(ask("show", link.name).out)["id"] == link.resolve().name
        inside.chdir(lab.mountpoint / "by-name" / name / "lineage")
        for words in (("log", ".", "--json"), ("log", "--json"), ("log", "..", "--json")):
            assert ask(*words).objects == told
        assert ask("path", ".").out == ask("path").out == f"{lab.thread(clear)}\n"


def test_paths_elsewhere(lab: Lab, ask: Ask, tmp_path: Path) -> None:
    """One into a mount of another store than the one that is asked for is refused; not every path is a thread's."""
    thread = lab.sample.add(1, "one")
    lab.mount()
    other = tmp_path / "other"
    shutil.copytree(lab.sample.root, other)
    folder = lab.thread(thread)
    assert "is in a mount of" in ask("log", folder, "--store", other, code=8).err
    assert "There is no thread" in ask("log", folder.with_name(thread_id(2)), code=8).err
    for path in (lab.mountpoint, lab.mountpoint / "threads", lab.mountpoint / "store" / "sessions", tmp_path):
        assert "There is no thread" in ask("log", path, "--store", lab.sample.root, code=8).err
    assert json.loads(ask("fork", "--dry-run", folder / "rollouts" / "current").out)["source_thread_id"] == thread
    assert ask("path", folder / "thread.json").out == f"{folder}\n"
    assert completed(lab.sample.root, f"{lab.mountpoint}/rec") == [f"{lab.mountpoint}/rec"]  # for the shell to complete


def test_words_in_the_folder_of_a_thread(lab: Lab, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name, first words or a slip mean there what they mean elsewhere, never the thread in whose folder this is."""
    here, named, said = (lab.sample.add(number) for number in (1, 2, 3))
    call(lab.sample, named, "notes a/b")
    say(lab.sample, here, "hello")
    say(lab.sample, said, "fix the bug " * 40)
    lab.mount()
    with monkeypatch.context() as inside:
        for folder in (lab.thread(here), lab.thread(here) / "lineage", lab.mountpoint / "threads"):
            inside.chdir(folder)
            for word, meant in (("notes a/b", named), ("fix the bug", said), ("fix the bug " * 20, said)):
                assert ask("path", word).out == f"{lab.thread(meant)}\n"
                assert ask("fork", "--dry-run", word, "latest").objects[0]["source_thread_id"] == meant
            for word in ("nobody", "./nobody", "thread.json/nobody", "notes a"):
                assert "There is no thread" in ask("revert", word, "before", "1", code=8).err
                assert "There is no thread" in ask("path", word, code=8).err
        inside.chdir(lab.thread(here))
        for word in (".", "turns", "thread.json", "lineage/forks", f"../{here}"):
            assert ask("path", word).out == f"{lab.thread(here)}\n"


def test_a_read_only_mount(lab: Lab, ask: Ask) -> None:
    """What is meant by a path into one is not changed, unless its store is given; it may be looked at."""
    thread = lab.sample.add(1, "one")
    lab.mount("--read-only")
    before = sorted(lab.sample.root.rglob("*"))
    folder = lab.thread(thread)
    said = ask("fork", folder, code=8).err
    assert said.endswith(f"is mounted read-only. To change what it shows, say so: --store {lab.sample.root}\n")
    assert "read-only" in ask("revert", folder / "turns", "undo", code=8).err
    assert sorted(lab.sample.root.rglob("*")) == before
    for words in (("fork", "--dry-run", folder), ("fork", folder, "dry-run", "latest"), ("fork", folder)):
        store = ("--store", lab.sample.root) * (words == ("fork", folder))
        assert ask(*words, *store).objects[0]["status"] == "done"


def test_one_way_after_the_other(sample: SampleStore, open_store: OpenStore) -> None:
    """An id counts before a name, a name before the end of another thread's id, that before first words."""
    ids = [sample.add(number, f"{number:08x}") for number in (0xAAAA0001, 0xAAAA0002, 0xAAAA0003)]
    call(sample, ids[0], ids[1])
    call(sample, ids[0], ids[1][:36])
    call(sample, ids[2], "aaaa0002")
    for thread, text in zip(ids, ("x", "y", "aaaa0001"), strict=True):
        say(sample, thread, text)
    store = open_store(sample.root)
    assert find(store, ids[1]) == ids[1]
    assert find(store, "aaaa0002") == ids[2]
    assert find(store, "aaaa0001") == ids[0]
