"""`lineage/family.txt`, `family.mmd` and `lineage.mmd` in a mount tell what the command does, and follow changes."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.mount.conftest import Lab
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
