"""`lineage/family.txt`, `family.mmd` and `lineage.mmd` in a mount tell what the command does, and follow changes."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from threadstore.projection import FamilyView, StoreView, rendered
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.core.logs import Log, counted
from tests.mount.conftest import Lab, until
from tests.tree.sample import thread_id


@pytest.mark.parametrize("index", ["--index", "--no-index"])
def test_a_family_grows(lab: Lab, index: str) -> None:
    """What is forked, appended or archived is in the files at the next look, whose size is exact."""
    root = lab.sample.add(1, "one")
    lab.sample.add(2, forked_from_id=root)
    lab.sample.add(4)
    lab.mount("--read-only", index)
    family = lab.thread(root) / "lineage"
    assert {"family.txt", "family.mmd"} <= set(os.listdir(family))
    assert not {"family.txt", "family.mmd"} & set(os.listdir(lab.thread(thread_id(4)) / "lineage"))
    assert thread_id(4) in (lab.thread(thread_id(4)) / "lineage" / "family.txt").read_text()
    link = lab.thread(thread_id(2)) / "lineage" / "family.txt"
    assert (os.readlink(link), link.read_text()) == (
        f"../../{root}/lineage/family.txt",
        (family / "family.txt").read_text(),
    )
    assert (family / "family.txt").read_text().count("\n") == 2
    agent = {"nickname": 'Bo"]\n end', "source": {"subagent": "x"}}
    lab.sample.add(3, parent_thread_id=thread_id(2), agent_nickname=agent["nickname"], source=agent["source"])
    text = (family / "family.txt").read_text()
    assert 'agent  Bo"] end  ' + thread_id(3) in text
    assert (family / "family.mmd").read_text().count(" -.->|") == 1
    assert (lab.mountpoint / "lineage.mmd").read_text().count(" -.->|") == 1
    path = lab.sample.path(thread_id(2))
    (lab.sample.root / "archived_sessions").mkdir()
    path.rename(lab.sample.root / "archived_sessions" / path.name)
    text = (family / "family.txt").read_text()
    assert "archived" in text.splitlines()[1]
    archive = subprocess.run(["tar", "cf", "-", "-C", family, "."], capture_output=True, check=True).stdout
    listed = subprocess.run(["tar", "tvf", "-"], input=archive, capture_output=True, check=True).stdout.decode()
    sizes = {line.split()[5]: int(line.split()[2]) for line in listed.splitlines()}
    assert sizes["./family.txt"] == len(text.encode())
    told = lab.run("tree", root, "--store", lab.sample.root).stdout
    assert [line.partition("01a2")[0] for line in told.splitlines()] == [
        line.partition("01a2")[0] for line in text.splitlines()
    ]


def test_transcripts_of_two_forks(lab: Lab) -> None:
    """`diff -u` of two forks shows only what followed their fork."""
    root = lab.sample.add(1, "one", "two")
    copied = lab.sample.path(root).read_bytes()
    for number, word in ((2, "left"), (3, "right")):
        lab.sample.add(number, forked_from_id=root)
        lab.sample.path(thread_id(number)).write_bytes(
            lab.sample.path(thread_id(number)).read_bytes().splitlines(keepends=True)[0] + copied
        )
        lab.sample.append(thread_id(number), word)
    lab.mount("--read-only")
    found = subprocess.run(
        ["diff", "-u", *(lab.thread(thread_id(number)) / "transcript.md" for number in (2, 3))],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    changed = [line for line in found.splitlines()[2:] if line[:1] in "+-"]
    assert changed == ["-  left", "+  right"]


def test_a_large_family(lab: Lab) -> None:
    """What a worker makes of a family is what the library makes of it here."""
    root = lab.sample.add(1, "x" * 300_000)
    lab.sample.add(2, "y" * 300_000, forked_from_id=root)
    lab.mount("--read-only", "--no-index")
    store = ThreadStore(str(lab.sample.root), Spool(str(lab.folder / "spool")))
    assert not store.is_small_family(root, 400_000)
    for view in FamilyView:
        made = (lab.thread(root) / "lineage" / view.value).read_bytes()
        assert made == rendered(store.project_family(root, view))
    assert (lab.mountpoint / "lineage.mmd").read_bytes() == rendered(store.project_store(StoreView.LINEAGE))


def test_what_a_store_spent(lab: Lab) -> None:
    """`stats.json` has the tokens of a turn that was appended, and `usage.json` at once."""
    log = counted(Log(True, thread_id(1)).turn("a", "one", model="m"), 100)
    path = lab.sample.root / log.name
    path.write_bytes(log.data)
    lab.mount("--read-only")
    assert json.loads((lab.mountpoint / "stats.json").read_bytes())["tokens"]["total_tokens"] == 100
    had = len(log.lines)
    counted(log.turn("b", "two", model="n"), 130)
    with path.open("ab") as file:
        file.write(b"".join(log.lines[had:]))
    usage = json.loads((lab.thread(thread_id(1)) / "usage.json").read_bytes())
    assert {row["model"]: row["total_tokens"] for row in usage["spent"]} == {"m": 100, "n": 30}
    stats = lab.mountpoint / "stats.json"
    until(lambda: json.loads(stats.read_bytes())["tokens"]["total_tokens"] == 130, "the statistics are new")
    assert [row["model"] for row in json.loads(stats.read_bytes())["tokens_by_model"]] == ["m", "n"]
