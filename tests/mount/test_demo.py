"""`rolloutfs demo`: the sample store that is shipped, mounted; what it says is to be typed works."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from io import BytesIO
from pathlib import Path

import pytest
import zstandard

from rolloutfs import checks, mounttable, sample
from rolloutfs.cli import main
from scripts.sample_archive import PLACE, pack
from scripts.sample_store import build
from tests.commands.conftest import Ask
from tests.commands.conftest import ask as ask  # a fixture: the command line in this process
from tests.mount.clients import LIMIT
from tests.mount.conftest import Lab

SCRIPTS = Path(__file__).parents[2] / "scripts"
ROOM = 300_000  # bytes that the archive may have


def contents(packed: bytes, scratch: Path) -> dict[str, object]:
    """What is in an archive, by name: the time and the bytes; of a database what is in it."""
    found: dict[str, object] = {}
    with tarfile.open(fileobj=BytesIO(zstandard.ZstdDecompressor().decompress(packed))) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            data = file.read()
            if member.name.endswith(".sqlite"):
                scratch.write_bytes(data)
                with closing(sqlite3.connect(scratch)) as database:
                    found[member.name] = (member.mtime, *database.iterdump())
            else:
                found[member.name] = (member.mtime, data)
    return found


def test_the_archive_is_what_the_script_makes(tmp_path: Path) -> None:
    """The same files, times and rows, and small; `make sample` makes it anew."""
    build(tmp_path / "home")
    made = contents(pack(tmp_path / "home"), tmp_path / "made.sqlite")
    assert contents(PLACE.read_bytes(), tmp_path / "shipped.sqlite") == made
    assert PLACE.stat().st_size < ROOM


def shell(lab: Lab, command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Type a command."""
    script = f'rolloutfs() {{ "{sys.executable}" -m rolloutfs "$@"; }}\n{command}'
    environment = {**lab.environment, "LC_ALL": "C.UTF-8"}  # for less, to which the rest is binary
    return subprocess.run(
        ["bash", "-c", script], cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def found(folder: Path) -> str:
    """A PATH on which there is a command of that name."""
    (folder / "bin").mkdir()
    (folder / "bin" / "rolloutfs").symlink_to(Path(sys.executable).with_name("rolloutfs"))
    return f"{folder / 'bin'}:{os.environ['PATH']}"


def test_where_shells_do_not_find_it(lab: Lab) -> None:
    """It says first what makes a shell find the command, and then the rest can be typed."""
    bare = ":".join(one for one in os.environ["PATH"].split(":") if not Path(one, "rolloutfs").exists())
    lab.mountpoint = lab.folder / "demo" / "threads"
    said = lab.run("demo", lab.folder / "demo", PATH=bare).stdout
    typed = [line[2:] for line in said.splitlines() if line.startswith("  ") and not line.startswith("  #")]
    assert typed[:2] == [f'PATH={Path(sys.executable).parent}:"$PATH"', f"cd {lab.mountpoint}"]
    script = "\n".join((*typed[:2], *typed[-2:]))
    environment = {**lab.environment, "PATH": bare}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "p1" in done.stdout
    assert not (lab.folder / "demo").exists()


def test_what_it_says_can_be_typed(lab: Lab) -> None:
    """Every command that it prints does something, in order, and the last one leaves neither a folder nor an index."""
    folder = lab.folder / "a demo"
    lab.mountpoint = folder / "threads"
    said = lab.run("demo", folder, PATH=found(lab.folder)).stdout
    typed = [line[2:] for line in said.splitlines() if line.startswith("  ") and not line.startswith("  #")]
    assert len(typed) == len(sample.TOUR) + 3
    assert typed[0] == f"cd '{lab.mountpoint}'"
    for command in typed[1:-1]:
        done = shell(lab, command, lab.mountpoint)
        assert (done.returncode, done.stderr) == (int(command.startswith("diff ")), ""), command
        assert len(done.stdout.splitlines()) >= 1, command
    asked = (lab.mountpoint / "operations.jsonl").read_text().splitlines()
    assert [json.loads(line)["status"] for line in asked] == ["done"]
    done = shell(lab, typed[-1], lab.mountpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not folder.exists()
    assert not (lab.folder / "cache" / "rolloutfs" / "index").exists()


def test_a_temporary_one(lab: Lab) -> None:
    """Without a folder it makes one, in which everything lies; `umount` removes nothing. JSON says where."""
    (lab.folder / "tmp").mkdir()
    told = json.loads(lab.run("demo", "--json", TMPDIR=str(lab.folder / "tmp")).stdout)
    lab.mountpoint = Path(told["mountpoint"])
    folder = Path(told["folder"])
    assert folder.parent == lab.folder / "tmp"
    assert sorted(os.listdir(folder)) == ["codex-home", "threads"]
    assert told["store"] == str(folder / "codex-home")
    assert [one["command"] for one in told["try"]] == [command for _, command in sample.TOUR]
    assert told["end"] == [f"rolloutfs umount {lab.mountpoint}", f"rm -r {folder}"]
    [served] = [
        one for one in json.loads(lab.run("status", "--json").stdout)["mounts"] if one["store"] == told["store"]
    ]
    assert (served["pid"], served["answers"]) == (lab.background_server(), True)
    shown = {path.name for path in (lab.mountpoint / "threads").iterdir()}
    lab.unmount()
    assert os.listdir(lab.mountpoint) == []
    listed = lab.run("ls", "--store", told["store"], "--all", "-n", "0", "--json").stdout.splitlines()
    assert {json.loads(line)["thread_id"] for line in listed} == shown
    again = lab.run("demo", folder, code=4).stderr
    assert shell(lab, again.split("To mount that again: ")[1], lab.folder).returncode == 0
    assert mounttable.find(str(lab.mountpoint)) is not None


def test_what_is_refused(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence says what to do, and nothing is made or removed."""
    full, file, store = tmp_path / "full", tmp_path / "file", tmp_path / "store"
    (full / "mine").mkdir(parents=True)
    file.write_text("mine")
    (store / "sessions").mkdir(parents=True)
    monkeypatch.setenv("CODEX_HOME", str(store))
    before = sorted(tmp_path.rglob("*"))
    for folder, word in (
        (full, "is not empty"),
        (file, "is not a folder"),
        (tmp_path / "no" / "such", f"mkdir -p {tmp_path}/no"),
        (file / "below", "is not a folder"),
        (store / "demo", "lies inside the store"),
        (store / "sessions", "lies inside the store"),
    ):
        assert word in ask("demo", folder, code=4).err
    monkeypatch.setenv("TMPDIR", str(tmp_path / "no"))
    monkeypatch.setattr(checks, "FUSE_DEVICE", str(tmp_path / "no fuse"))
    assert "no fuse does not exist" in ask("demo", tmp_path / "new", code=5).err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("is_new", [True, False])
def test_one_that_failed_leaves_nothing(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """What was made is removed when it can't be mounted, and a folder that was there stays."""
    monkeypatch.setenv("ROLLOUTFS_ZONE", "No/Where")
    folder = tmp_path / "demo"
    if not is_new:
        folder.mkdir()
    assert "No/Where" in ask("demo", folder, code=2).err
    assert folder.exists() != is_new
    assert is_new or os.listdir(folder) == []


def run_script(place: Path, *arguments: str, **environment: str) -> str:
    """What a script of the repository writes, to no terminal; it must succeed."""
    done = subprocess.run(
        [place, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT * 4,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.decode()


def test_the_tour(tmp_path: Path) -> None:
    """It begins and ends with what it is about, every command of it shows something, and nothing of it is left."""
    told = run_script(SCRIPTS / "demo", TMPDIR=str(tmp_path))
    assert "\x1b" not in told
    assert "about 15 seconds" in told.splitlines()[0]
    assert "nothing of it is left" in told
    parts = re.split(r"^\$ (.*)$", told.partition("\nThat was the tour")[0], flags=re.MULTILINE)[1:]
    shown = {
        command: output.partition("\n\n#")[0].partition("\n\n==")[0]
        for command, output in zip(parts[::2], parts[1::2], strict=True)
    }
    assert len(shown) > 30
    assert [one for one, output in shown.items() if not output.strip() and not re.fullmatch(r"\w+='.*'", one)] == []
    assert list(tmp_path.iterdir()) == []


def test_setup_says_what_it_does(tmp_path: Path) -> None:
    """It begins with what it does and how long that takes, and ends with what there is then."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    script = Path(shutil.copy(SCRIPTS / "setup", tmp_path / "scripts"))
    python = tmp_path / ".venv/bin/python"  # in the place of one that installs
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (tmp_path / ".venv/pyvenv.cfg").write_text(f"command = {tmp_path.resolve()}/.venv\n")
    first, *_, last = run_script(script, "run").splitlines()
    assert re.fullmatch(r"Installing .* about a minute, .*", first)
    assert re.fullmatch(r"Ready after \d+ s: \.venv/bin/rolloutfs", last)
    assert (tmp_path / ".venv/ready-run").exists()


def test_it_is_a_command() -> None:
    """The archive lies where an installed package has it."""
    assert "demo" in main.commands
    assert Path(sample.__file__).with_name(sample.ARCHIVE) == PLACE
