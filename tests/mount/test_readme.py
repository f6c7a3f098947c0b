"""README.md, as it stands: its examples do what they say, and print what they are said to print."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rolloutfs import sample
from tests.conftest import Corpus
from tests.mount.clients import LIMIT, need
from tests.mount.conftest import Lab

ROOT = Path(__file__).parents[2]
TOOLS = "01a2293e-b72b-7e02-9931-0e1255ed7780"  # threads of the sample: one in which every tool was used
FORK = "01a22938-c8a6-7dc1-876d-18cc02007e88"  # and a fork
#: What the examples take from the demo, and what needs Codex, a terminal or a place of its own.
PREAMBLE = f"""
rolloutfs() {{ "{sys.executable}" -m rolloutfs "$@"; }}
codex() {{ echo "codex $*"; }}
less() {{ cat "$@"; }}
tail() {{ if [ "$1" = -f ]; then timeout 1 tail "$@" || [ $? = 124 ]; else command tail "$@"; fi; }}
set_to() {{ printf -v "$1" %s "$2"; }}
eval "$(grep '^set_to ' {ROOT}/scripts/demo)"
shopt -s expand_aliases
set -e -o pipefail
"""


def blocks(language: str, word: str) -> str:
    """The block of that language in which a word is."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [one for one in found if word in one]
    return str(block)


def commands(console: str) -> list[tuple[str, str]]:
    """What is typed in a console, with what is said to be printed."""
    parts = re.split(r"^\$ (.*)\n", console, flags=re.MULTILINE)[1:]
    return [(command, told.rstrip("\n")) for command, told in zip(parts[::2], parts[1::2], strict=True)]


def bash(lab: Lab, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as the person whose home the lab has."""
    return subprocess.run(
        ["bash", "-c", PREAMBLE + script],
        cwd=lab.folder,
        env={**lab.environment, "TZ": "UTC", "LC_ALL": "C.UTF-8", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.fixture
def home(lab: Lab) -> Lab:
    """A person with the sample store in ~/.codex, and an empty folder ~/threads."""
    need("jq", "jq")
    sample.unpack(lab.folder / "home" / ".codex")
    lab.mountpoint = lab.folder / "home" / "threads"
    lab.mountpoint.mkdir()
    return lab


def as_listed(line: str) -> str:
    """A line of `ls -l` without whose it is and how many links there are."""
    return re.sub(r"^(\S{10}) +\d+ \S+ \S+ +", r"\1 ", line)


def test_the_screenful(home: Lab) -> None:
    """What a mount of the sample store shows, and what stands there about its threads."""
    (mount, listed), *others = commands(blocks("console", "rolloutfs mount ~/.codex"))
    done = bash(home, mount)
    assert (done.stdout.rstrip("\n").split("\n")[1:], done.stderr) == (listed.split("\n"), "")
    for command, told in others:
        done = bash(home, f"cd ~/threads; {command}")
        shown = done.stdout.rstrip("\n").split("\n")
        if command.startswith("ls -l"):
            shown = shown[1:]
        assert list(map(as_listed, shown)) == list(map(as_listed, told.split("\n"))), command
        assert done.stderr == ""


def test_without_a_mount(lab: Lab, corpus: Corpus) -> None:
    """What the commands print of a store of tests/corpus."""
    said = commands(blocks("console", "rolloutfs tree"))
    assert len(said) == 5
    for command, told in said:
        done = bash(lab, command, CODEX_HOME=str(corpus("forks.paginated").home))
        assert (done.stdout + done.stderr).rstrip("\n") == told, command


def lines(block: str, thread: str) -> list[str]:
    """The commands of a block about a thread, the first of which goes into its folder."""
    first, *others = block.replace("<thread id>", thread).splitlines()
    assert first.startswith("cd ~/threads/threads/")
    return [f"{first}; {line}" for line in others]


@pytest.mark.parametrize("thread", [TOOLS, FORK])
def test_what_is_read(thread: str, home: Lab, tmp_path: Path) -> None:
    """Each example prints something and fails only where a fork is compared with what it isn't one of."""
    need("rsync", "rsync")
    assert bash(home, "rolloutfs mount ~/.codex ~/threads").returncode == 0
    for command in lines(blocks("sh", "tail -f effective_history"), thread):
        done = bash(home, command.replace("/backup/", f"{tmp_path}/"))
        if " diff " in command:
            assert done.returncode == (1 if thread == FORK else 2), done.stderr
            continue
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout or "rsync" in command or "dropped.md" in command or "flaky" in command
    assert (tmp_path / "threads/README.md").read_bytes() == (home.mountpoint / "README.md").read_bytes()


def test_what_is_asked_for(home: Lab) -> None:
    """The requests are done, one after the other, with the answers that are spoken of."""
    need("getfattr", "attr")
    (home.folder / "home/summary.md").write_text("What was done: all of it.\n")
    assert bash(home, "rolloutfs mount ~/.codex ~/threads").returncode == 0
    found = {}
    for command in lines(blocks("sh", "codex resume"), TOOLS):
        done = bash(home, command)
        found[command.partition("; ")[2].partition(" ")[0]] = done.stdout
        no_attribute = "getfattr" in command
        assert (done.returncode, bool(done.stderr)) == (int(no_attribute), no_attribute), (command, done.stderr)
    asked = [json.loads(line) for line in (home.mountpoint / "operations.jsonl").read_text().splitlines()]
    assert [(one["op"], one["dry_run"], one["status"]) for one in asked] == [
        *(("fork", False, "done"), ("revert", False, "done"), ("compact", False, "done")),
        *(("revert", True, "done"), ("fork", False, "done")),
    ]
    assert found["codex"] == f"codex resume {asked[0]['thread_id']}\n"
    assert json.loads(found["exec"])["thread_id"] == asked[-1]["thread_id"]
