"""Running as somebody else, or with the store mounted in another way, in a private mount namespace (FUSE 6.6).

What is done to mounts and devices in there is gone with its last process.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.mount.clients import need, need_root
from tests.mount.conftest import Lab

NOBODY = 65534
_DROP = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def in_namespace(lab: Lab, script: str) -> str:
    """The output of a shell script that runs as root with mounts of its own."""
    need_root("make a mount namespace")
    need("unshare", "util-linux")
    done = subprocess.run(
        ["unshare", "-m", "bash", "-euc", script],
        env={**lab.environment, "LC_ALL": "C"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_nobody(lab: Lab, script: str) -> str:
    """The output of a script that runs as uid 65534, who may use FUSE; `$PYTHON` can import us."""
    need_root("become somebody else")
    need("setpriv", "util-linux")
    probe = f"{shlex.quote(sys.executable)} -c 'import pyfuse3, threadstore, rolloutfs'"
    check = subprocess.run(
        [*_DROP, "bash", "-c", probe], env=lab.environment, cwd="/", capture_output=True, check=False
    )
    if check.returncode != 0:
        pytest.skip("the interpreter can't be run by every user: make .venv with one that doesn't lie below /root")
    return in_namespace(
        lab,
        f"""
        mknod -m 0666 {shlex.quote(str(lab.folder))}/fuse c 10 229
        mount --bind {shlex.quote(str(lab.folder))}/fuse /dev/fuse
        export PYTHON={shlex.quote(sys.executable)}
        exec {shlex.join(_DROP)} bash -euc {shlex.quote(script)}
        """,
    )


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that everybody may enter; those of pytest are for their owner only."""
    with TemporaryDirectory(prefix="rolloutfs-test-") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        for parent in folder.parents:
            if parent.stat().st_mode & 0o005 != 0o005:
                pytest.skip(f"{parent} can't be entered by other users: set TMPDIR to a folder that can")
        yield folder


def give_to_nobody(lab: Lab, *owned: Path) -> None:
    """Give folders with all in them, and what a server writes to, to uid 65534."""
    for name in ("cache", "state"):
        (lab.folder / name).mkdir(exist_ok=True)
    for place in (*owned, *(lab.folder / name for name in ("cache", "state", "home", "mnt"))):
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def copy_tree(source: Path, destination: Path) -> Path:
    """A copy with times, modes and links."""
    shutil.copytree(source, destination, symlinks=True)
    return destination
