"""The units of systemd/, and `rolloutfs service`, which puts them into a home; no service manager is needed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from rolloutfs import service
from tests.mount.clients import need
from tests.mount.conftest import DEADLINE, Lab

ROOT = Path(__file__).parents[2]
NAMES = ["rolloutfs.service", "rolloutfs@.service"]
STRANGE = """a "b" %h $HOME \\x2d %h/threads 'c'"""  # a name full of what unit files give a meaning to


def units(lab: Lab) -> Path:
    """Where systemd reads the units of the lab's user."""
    return lab.folder / "config" / "systemd" / "user"


def tree(folder: Path) -> dict[str, bytes]:
    """Every file and link below a folder, with what it holds."""
    found: dict[str, bytes] = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path)] = os.fsencode(path.readlink())
        elif path.is_file():
            found[str(path)] = path.read_bytes()
    return found


def verify(lab: Lab, *paths: Path) -> str:
    """What systemd complains of in units: nothing, when they are right."""
    need("systemd-analyze", "systemd")
    runtime = lab.folder / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", *map(str, paths)],
        env={**lab.environment, "XDG_RUNTIME_DIR": str(runtime), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=DEADLINE * 2,
        check=False,
    )
    return done.stdout + done.stderr + (f"exit code {done.returncode}" if done.returncode else "")


def commands(lab: Lab, unit: Path, **specifiers: str) -> list[list[str]]:
    """The command lines of a unit in order, as systemd would run them (systemd.service(5), COMMAND LINES)."""
    known = {"%": "%", "h": str(lab.folder / "home"), "t": str(lab.folder / "run"), **specifiers}
    found = []
    for line in unit.read_text().split("\n"):
        key, _, value = line.partition("=")
        if key.startswith("Exec"):
            found.append([_expanded(word, known) for word in _words(value.lstrip("-").removeprefix(":"))])
    return found


def _words(text: str) -> list[str]:
    """Words as extract_first_word() of systemd finds them, for what our units contain."""
    words, word, inside, at = [], "", False, 0
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 1
            word += {"n": "\n", "t": "\t"}.get(text[at], text[at])
        elif letter == '"':
            inside = not inside
        elif letter == " " and not inside:
            words.append(word)
            word = ""
        else:
            word += letter
        at += 1
    return [*words, word]


def _expanded(word: str, known: dict[str, str]) -> str:
    first, *rest = word.split("%%")
    parts = [first, *rest]
    for name, value in known.items():
        if name != "%":
            parts = [part.replace(f"%{name}", value) for part in parts]
    return "%".join(parts)


@pytest.mark.parametrize("name", NAMES)
def test_systemd_understands_the_units(lab: Lab, name: str) -> None:
    """No unknown key, no value that is ignored, no command that isn't there, with the paths of this installation."""
    lab.run("service", "install", "--store", lab.sample.root)
    assert verify(lab, units(lab) / name) == ""


def test_verifying_finds_what_is_wrong(lab: Lab) -> None:
    """A unit with a typo or without its program is complained of, so that the test above can fail."""
    good = (ROOT / "systemd" / NAMES[0]).read_text()
    for number, (old, new) in enumerate([("KillMode=", "KilMode="), ("/usr/bin/rolloutfs", "/nowhere/rolloutfs")]):
        bad = lab.folder / f"bad{number}.service"
        bad.write_text(good.replace(old, new))
        assert new.rstrip("=") in verify(lab, bad)


def test_systemd_reads_a_quoted_path_as_it_is(lab: Lab) -> None:
    """It finds the program of a strange name, and only that. (Quotes are allowed in arguments alone.)"""
    program = lab.folder / "a %h $HOME %%i b"
    shutil.copy("/bin/true", program)
    unit = lab.folder / "strange.service"
    unit.write_text(f"[Service]\nExecStart=:{service.quoted(str(program))}\n")
    assert verify(lab, unit) == ""
    unit.write_text(f"[Service]\nExecStart=:{service.quoted(str(program) + '%')}\n")
    assert "is not executable" in verify(lab, unit)


def test_systemd_takes_a_path_that_is_no_utf8(lab: Lab) -> None:
    """Of a line with such bytes it would take nothing, so they are escaped."""
    lab.run("service", "install", "--mountpoint", lab.folder / os.fsdecode(b"\xff \xc3m"))
    text = (units(lab) / NAMES[0]).read_text(encoding="utf-8")
    assert '/\\xff \\xc3m"' in text
    assert verify(lab, units(lab) / NAMES[0]) == ""


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_the_units_forbids_fusermount3(name: str) -> None:
    """No setting that implies NoNewPrivileges= or a mount namespace in a user's manager (systemd.exec(5) of 252)."""
    lines = (ROOT / "systemd" / name).read_text().split("\n")
    keys = {line.partition("=")[0] for line in lines if "=" in line and not line.startswith("#")}
    assert {"Type", "ExecStop", "UMask"} <= keys
    kinds = ("NoNew", "System", "Restrict", "Lock", "Memory", "Protect", "Private", "Root", "ReadOnly", "Inaccess")
    harmful = {key for key in keys if key.startswith((*kinds, "Temporary", "Capability", "Bind", "Dynamic"))}
    assert harmful - {"RestartSec"} == set()


@pytest.mark.parametrize("instance", [False, True])
def test_the_commands_of_a_unit(lab: Lab, instance: bool) -> None:
    """Run one after the other as systemd does, also where a server has died before, they mount and unmount."""
    store, target = lab.folder / STRANGE, lab.folder / "home" / STRANGE
    thread = lab.sample.add(1)
    store.parent.mkdir(parents=True)
    lab.sample.root.rename(store)
    lab.run("service", "install", "--store", store, "--mountpoint", target)
    if instance:
        unit, more = units(lab) / NAMES[1], {"f": str(store), "i": r"tmp-store\x2d1"}
        target = lab.folder / "run" / "rolloutfs" / r"tmp-store\x2d1"
    else:
        unit, more = units(lab) / NAMES[0], {}
    lab.mountpoint = target
    make, start, stop = commands(lab, unit, **more)
    address = str(lab.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(DEADLINE)
        environment = {**lab.environment, "NOTIFY_SOCKET": address}
        for dies in (True, False):
            subprocess.run(make, env=environment, capture_output=True, check=False)
            with (lab.folder / f"server-{dies}.log").open("wb") as log:
                server = subprocess.Popen(start, env=environment, stdout=subprocess.DEVNULL, stderr=log)
            lab.servers.append(server)
            assert manager.recv(4096).startswith(b"READY=1\n")
            assert os.listdir(target / "threads") == [thread]
            if dies:
                server.send_signal(signal.SIGKILL)
                server.wait(DEADLINE)
        subprocess.run(stop, env=environment, check=True, timeout=DEADLINE)
        assert server.wait(DEADLINE) == 0
    assert os.listdir(target) == []


def test_install_says_what_to_run_and_uninstall_leaves_what_others_made(lab: Lab) -> None:
    """Afterwards every file is as before; links that `systemctl enable` made are gone with the units."""
    folder = units(lab)
    (folder / "default.target.wants").mkdir(parents=True)
    (folder / "rolloutfs-mine.service").write_text("[Service]\nExecStart=true\n")
    (folder / "rolloutfs.service.d").mkdir()
    (folder / "rolloutfs.service.d" / "own.conf").write_text("[Service]\nNice=5\n")
    (folder / "default.target.wants" / "rolloutfs-mine.service").symlink_to(folder / "rolloutfs-mine.service")
    before = tree(lab.folder)
    told = lab.run("service", "install", "--store", lab.sample.root).stdout
    assert "systemctl --user daemon-reload\n" in told
    assert "systemctl --user enable --now rolloutfs.service\n" in told
    assert sorted(path.name for path in folder.glob("rolloutfs*.service")) == ["rolloutfs-mine.service", *NAMES]
    (folder / "default.target.wants" / "rolloutfs.service").symlink_to(folder / "rolloutfs.service")
    (folder / "default.target.wants" / "rolloutfs@tmp-a.service").symlink_to("../rolloutfs@.service")
    told = lab.run("service", "uninstall").stdout
    assert "systemctl --user stop rolloutfs.service 'rolloutfs@*.service'\n" in told
    assert tree(lab.folder) == before
    assert "no unit" in lab.run("service", "uninstall", code=8).stderr


def test_a_second_install_takes_the_place_of_the_first(lab: Lab) -> None:
    """The last store and mountpoint count; without any the unit mounts ~/.codex on ~/threads."""
    lab.run("service", "install", "--store", lab.sample.root, "--mountpoint", "a")
    assert str(lab.folder / "a") in (units(lab) / NAMES[0]).read_text()
    lab.run("service", "install")
    text = (units(lab) / NAMES[0]).read_text()
    assert text.startswith(service.MARKER + "\n")
    assert " mount -f --replace -- %h/.codex %h/threads\n" in text
    lab.run("service", "uninstall")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["file", "masked"])
def test_a_unit_of_somebody_else_is_not_touched(lab: Lab, name: str, kind: str) -> None:
    """Neither written over nor removed, and nothing is half installed."""
    folder = units(lab)
    folder.mkdir(parents=True)
    if kind == "file":
        (folder / name).write_text(f"[Unit]\n{service.MARKER}\n")
    else:
        (folder / name).symlink_to("/dev/null")
    before = tree(folder)
    assert name in lab.run("service", "install", "--store", lab.sample.root, code=8).stderr
    lab.run("service", "uninstall", code=8)
    assert tree(folder) == before


def test_a_store_that_is_none_is_refused(lab: Lab) -> None:
    """With the code and the sentence of `mount`."""
    assert "There is no store" in lab.run("service", "install", "--store", "nowhere", code=3).stderr
    assert not units(lab).exists()


@pytest.mark.parametrize("code", [0, 5, 1])
def test_now_runs_systemctl(lab: Lab, code: int) -> None:
    """In order, units there when it starts them and still there when it stops them; its failure is told.

    5 is its answer to a stop of what isn't loaded, which is no failure.
    """
    programs = lab.folder / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text(
        f'#!/bin/sh\necho "$@" $(ls "{units(lab)}") >> {lab.folder}/calls\nexit {code}\n'
    )
    (programs / "systemctl").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    expected = {0: 0, 5: 0, 1: 9}[code]
    lab.run("service", "install", "--store", lab.sample.root, "--now", PATH=path, code=expected)
    lab.run("service", "uninstall", "--now", PATH=path, code=expected)
    files = " ".join(NAMES)
    steps = [
        f"--user daemon-reload {files}",
        f"--user enable --now rolloutfs.service {files}",
        f"--user stop rolloutfs.service rolloutfs@*.service {files}",
        "--user daemon-reload",
    ]
    told = (lab.folder / "calls").read_text().split("\n")[:-1]
    assert told == ([steps[0], steps[2]] if code == 1 else steps)


def test_now_without_systemctl_says_what_to_run(lab: Lab) -> None:
    """A machine without systemd gets the files and the commands."""
    lonely = lab.folder / "bin"
    lonely.mkdir()
    for program in ("fusermount3", "sh"):
        (lonely / program).symlink_to(shutil.which(program) or "")
    told = lab.run("service", "install", "--store", lab.sample.root, "--now", PATH=str(lonely)).stdout
    assert "To be run: systemctl --user enable --now rolloutfs.service" in told
