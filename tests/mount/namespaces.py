"""Running as somebody else, or with the store mounted in another way, in a private mount namespace (FUSE 6.6).

What is done to mounts and devices in there is gone with its last process.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

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
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_nobody(lab: Lab, script: str) -> str:
    """The output of a script that runs as uid 65534, who may use FUSE; `$PYTHON` can import us."""
    need_root("become somebody else")
    need("setpriv", "util-linux")
    check = [*_DROP, sys.executable, "-c", "import pyfuse3, threadstore, rolloutfs"]
    if subprocess.run(check, env=lab.environment, cwd="/", capture_output=True, check=False).returncode != 0:
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


def open_to_nobody(lab: Lab, *owned: Path) -> None:
    """Give folders with all in them to uid 65534, and let everybody pass through the test's own folders."""
    for name in ("cache", "state"):
        (lab.folder / name).mkdir(exist_ok=True)
    for place in (*owned, *(lab.folder / name for name in ("cache", "state", "home", "mnt"))):
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    for folder in (lab.folder, *lab.folder.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            if not str(folder).startswith(str(lab.folder.parents[1])):
                pytest.skip(f"{folder} can't be entered by other users: set --basetemp to a folder that can")
            folder.chmod(folder.stat().st_mode | 0o055)


def copy_tree(source: Path, destination: Path) -> Path:
    """A copy with times, modes and links."""
    shutil.copytree(source, destination, symlinks=True)
    return destination
