"""Mountpoints and stores whose names are no UTF-8, or hold what a terminal obeys (FAULTS 22)."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace

import pytest

from rolloutfs import mounttable
from tests.commands.conftest import assert_harmless
from tests.mount.clients import need_root
from tests.mount.conftest import DEADLINE, Lab

ODD = (b"\xff\xfe \xc3", b"it's \x1b[31m\\two\nlines\t\xe2\x80\xae")


@pytest.mark.parametrize("raw", ODD, ids=ascii)
def test_mounted_told_of_and_unmounted(lab: Lab, raw: bytes) -> None:
    """Each command does its work, prints nothing that a terminal obeys, and names what is to be typed so that a shell
    finds it.
    """
    name = os.fsdecode(raw)
    lab.mountpoint = lab.mountpoint.rename(lab.folder / name)
    lab.sample = replace(lab.sample, root=lab.sample.root.rename(lab.folder / f"store of {name}"))
    thread = lab.sample.add(1, "hello")
    store, place = lab.sample.root, lab.mountpoint
    said = [lab.run("mount", store, place).stdout]
    assert mounttable.find(str(place)) is not None
    assert "hello" in (lab.thread(thread) / "effective_history.jsonl").read_text()
    said.append(lab.run("mount", store, place, code=4).stderr)
    said.append(lab.run("status").stdout)
    told = json.loads(lab.run("status", "--json", "--store", store).stdout)
    [mine] = [mount for mount in told["mounts"] if mount["mountpoint"] == str(place)]
    assert (mine["store"], told["store"]) == (str(store), str(store))
    assert (mine["pid"], mine["answers"]) == (lab.background_server(), True)
    said += [lab.run(command, "--store", store).stdout for command in ("ls", "tree", "check")]
    lab.run("fork", "--dry-run", "--store", store, thread)
    for text in said:
        assert_harmless(text)
    word = said[0].split("Unmount it with: ")[1].split(" umount ", 1)[1]
    typed = subprocess.run(
        ["bash", "-c", f'printf "%s" {word}'], capture_output=True, check=True, timeout=DEADLINE
    ).stdout
    assert typed == os.fsencode(place)
    lab.unmount()
    logs = list((lab.folder / "state" / "rolloutfs").glob("*.log"))
    assert len(logs) == 1
    assert all(32 < byte < 127 for byte in os.fsencode(logs[0].name))


def test_where_the_kernel_reads_by_itself(lab: Lab) -> None:
    """Such a mount, which libfuse doesn't make, has the name, too."""
    need_root("mount with --passthrough")
    lab.mountpoint = lab.mountpoint.rename(lab.folder / os.fsdecode(ODD[0]))
    thread = lab.sample.add(1, "hello")
    lab.mount("--passthrough")
    assert "hello" in (lab.thread(thread) / "transcript.md").read_text()
    lab.unmount()
    assert not lab.is_mounted()
