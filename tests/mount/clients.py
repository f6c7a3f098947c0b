"""Ordinary programs as clients of a mount, each under a time limit, and mounts that a whole module shares."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard

from scripts.sample_store import build, merge_home
from tests.corpus_store import copy_home, store_folders
from tests.mount.conftest import Lab
from tests.tree.sample import SampleStore

LIMIT = 120  # seconds for one command

CUT = "01a22938-dead-7000-8000-000000000001"  # the thread of `mixed_store` whose compressed rollout lacks its end

Output = tuple[int, bytes, bytes]


def need(program: str, package: str) -> None:
    """Skip the test when a program is missing; `make setup` installs it."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing: apt-get install {package}")


def need_root(what: str) -> None:
    """Skip the test unless it may do `what`, which only root may."""
    if os.geteuid() != 0:
        pytest.skip(f"only root may {what}: run the tests as root, as CI does")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """An environment without anything of the user's own; `folder` is the home."""
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C", "TZ": "UTC", "TERM": "dumb", **more}


def outcome(command: str, cwd: Path, **more: str) -> Output:
    """Exit code, output and errors of a shell command."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=cwd,
        env=environment(cwd.parent, **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def run(command: str, cwd: Path, **more: str) -> bytes:
    """The output of a shell command that must succeed and complain about nothing."""
    code, output, errors = outcome(command, cwd, **more)
    assert (code, errors) == (0, b""), f"{command}: {code}\n{(errors + output[:2000]).decode(errors='replace')}"
    return output


def assert_alike(command: str, mounted: Path, plain: Path, **more: str) -> Output:
    """A command says the same, complaints and exit code included, in a mount as in a folder of plain files."""
    got, wanted = outcome(command, mounted, **more), outcome(command, plain, **more)
    assert wanted[0] not in (126, 127), f"{command}: {wanted[2].decode()}"
    for one, other in zip(_lines(got), _lines(wanted), strict=False):  # a short message for the first difference
        assert one == other, command
    assert len(got[1]) == len(wanted[1]), command
    assert got == wanted
    return got


def _lines(output: Output) -> list[bytes]:
    return [b"exit code %d" % output[0], *output[2].split(b"\n"), *output[1].split(b"\n")]


def python(script: str, *arguments: Path, cwd: Path) -> None:
    """Run a Python program that must succeed; another process, since a mount could hang its user."""
    done = subprocess.run(
        ["python3", "-c", script, *map(str, arguments)],
        cwd=cwd,
        env=environment(cwd),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def serving(folder: Path, root: Path) -> Iterator[Lab]:
    """A lab below `folder` (made) whose store lies at `root`; not mounted yet. Its server may log nothing."""
    folder = folder.resolve()
    lab = Lab(folder, SampleStore(root.resolve()), folder / "mnt")
    for made in (folder, folder / "home", lab.mountpoint):
        made.mkdir(exist_ok=True)
    try:
        yield lab
    finally:
        lab.clean_up()
    lab.check()
    assert lab.logs() == "", "the server wrote lines that the test doesn't know of"


@contextmanager
def mounted(lab: Lab, at: Path | None = None) -> Iterator[Path]:
    """The mountpoint of a lab, mounted (at another place if one is given) for as long as it takes."""
    place, lab.mountpoint = lab.mountpoint, at or lab.mountpoint
    lab.mountpoint.mkdir(parents=True, exist_ok=True)
    try:
        lab.mount()
        yield lab.mountpoint
        lab.unmount()
    finally:
        lab.clean_up()
        lab.mountpoint = place


def mixed_store(root: Path) -> None:
    """Make a store of many kinds of threads at `root`: the demo's, more of the corpus, and damaged ones."""
    build(root)
    scratch = root.with_name(f"{root.name}.scratch")
    folders = store_folders()
    for name in ("archived.legacy", "big.paginated", "compressed.legacy", "revert_once.paginated", "simple.legacy"):
        merge_home(copy_home(folders[name], scratch / name), root)
    damaged = [copy_home(folders[name], scratch / f"damaged-{name}") for name in ("tools.legacy", "forks.legacy")]
    for home in damaged:
        for path, damage in zip(sorted((home / "sessions").rglob("*.jsonl")), _DAMAGE, strict=False):
            path.write_bytes(damage(path.read_bytes()))
        merge_home(home, root)
    big = max((root / "sessions").rglob("*.jsonl"), key=lambda path: path.stat().st_size)
    packed = zstandard.compress(big.read_bytes())
    cut = big.with_name(f"{big.name[:28]}{CUT}.jsonl.zst")
    cut.write_bytes(packed[: len(packed) // 2])
    cut.chmod(0o444)
    shutil.rmtree(scratch)


def _torn(data: bytes) -> bytes:
    return data[:-40]


def _odd(data: bytes) -> bytes:
    """NULs as after a power failure, a line that is no JSON, bytes that are no UTF-8, an empty line."""
    lines = data.split(b"\n")
    middle = len(lines) // 2
    return b"\n".join([*lines[:middle], b"\0" * 4096, b'{"type":', b"\xff\xfe\xfd", b"", *lines[middle:]])


_DAMAGE = (_odd, _torn)
