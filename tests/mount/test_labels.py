"""Extended attributes of threads, and that those which others ask for cost nothing."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from threadstore.projection import View

from rolloutfs.labels import of_thread
from scripts.sample_store import build
from tests.commands.conftest import HOSTILE
from tests.mount.clients import mounted, run, serving
from tests.mount.conftest import Lab, until

LABELS = ("thread_id", "name", "status", "model", "branch", "tokens", "problems")


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The threads of the demo's store, mounted."""
    folder = tmp_path_factory.mktemp("labels")
    build(folder / "store")
    with serving(folder / "lab", folder / "store") as lab, mounted(lab) as mount:
        yield mount / "threads"


def labels(path: Path) -> dict[str, str]:
    """All extended attributes of a file."""
    return {name.removeprefix("user.rolloutfs."): os.getxattr(path, name).decode() for name in os.listxattr(path)}


def test_what_is_said_of_a_thread(threads: Path) -> None:
    """Each is what thread.json and usage.json say; what these don't say is absent, and asking for it gives ENODATA."""
    seen: Counter[str] = Counter()
    for name in os.listdir(threads):
        about = json.loads((threads / name / "thread.json").read_bytes())
        usage = json.loads((threads / name / "usage.json").read_bytes())
        told = {
            "thread_id": name,
            **{key: about[key] for key in ("name", "status", "model")},
            "branch": (about["git"] or {}).get("branch"),
            "tokens": (usage["own"] or {}).get("total_tokens"),
            "problems": about["counts"]["problems"],
        }
        there = {key: str(value) for key, value in told.items() if value is not None}
        assert labels(threads / name) == there
        seen.update(there.keys())
        for key in set(LABELS) - set(there):
            with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is what is compared
                os.getxattr(threads / name, f"user.rolloutfs.{key}")
            assert caught.value.errno == errno.ENODATA
    assert seen["thread_id"] > seen["name"] > 0
    assert sum(int(labels(threads / name)["problems"]) for name in os.listdir(threads)) > 0


async def test_what_can_be_told_is_told() -> None:
    """Of a thread whose tokens can't be told, because an ancestor is damaged, a search for problems finds it."""
    about = {"name": "x", "status": "damaged", "model": None, "git": None, "counts": {"problems": 2}}

    async def read(view: View) -> bytes:
        if view is View.USAGE:
            raise OSError(errno.EIO, "The lineage is broken")
        return json.dumps(about).encode()

    told = await of_thread("id", read)
    assert {name.rpartition(b".")[2]: value for name, value in told.items()} == {
        b"thread_id": b"id",
        b"name": b"x",
        b"status": b"damaged",
        b"problems": b"2",
    }


def test_getfattr(threads: Path) -> None:
    """`getfattr -d` shows them; files and other folders have none, and nothing can be set."""
    shown = run("getfattr -d 01a2293a-0cfe-7e92-aaef-829b65456667", threads).decode()
    assert 'user.rolloutfs.name="First name"\n' in shown
    assert 'user.rolloutfs.model="gpt-5.5"\n' in shown
    assert run("getfattr -d -m - . .. 01a2293a*/thread.json 01a2293a*/lineage", threads) == b""
    done = subprocess.run(
        ["setfattr", "-n", "user.rolloutfs.name", "-v", "x", threads / os.listdir(threads)[0]], check=False
    )
    assert done.returncode != 0


def test_hostile_names(lab: Lab) -> None:
    """A branch may be anything; a value is cut, and one that isn't Unicode is still a value."""
    thread = lab.sample.add(1, git={"branch": HOSTILE})
    long = lab.sample.add(2, git={"branch": "b" * 100_000})
    lab.mount()
    assert os.getxattr(lab.thread(thread), "user.rolloutfs.branch").decode() == HOSTILE
    assert os.getxattr(lab.thread(long), "user.rolloutfs.branch") == b"b" * 1024


def test_they_follow_the_thread(lab: Lab) -> None:
    """What changes in the log changes there."""
    thread = lab.sample.add(1, git={"branch": "one"})
    lab.edits = True
    lab.mount()
    assert labels(lab.thread(thread))["branch"] == "one"
    log = lab.sample.path(thread)
    log.write_bytes(log.read_bytes().replace(b'"branch":"one"', b'"branch":"another"'))
    until(lambda: labels(lab.thread(thread))["branch"] == "another", "the other branch is told")


_ALARM = """
from rolloutfs import labels
async def of_thread(*_):
    raise RuntimeError("the attributes of a thread were made")
labels.of_thread = of_thread
"""


@pytest.mark.parametrize("options", [(), ("--read-only",), ("--no-xattrs",), ("--read-only", "--xattrs")])
def test_what_others_ask_for_costs_nothing(options: tuple[str, ...], lab: Lab) -> None:
    """`ls -l`, and the kernel and others with names of their own, are answered without a look at the thread; a mount
    for backups has no extended attributes at all, unless it was told to, nor one that was told not to.
    """
    thread = lab.sample.add(1, "hello")
    lab.mount(*options, patch=_ALARM)
    for path in (lab.thread(thread), lab.thread(thread) / "thread.json"):
        for name in ("security.capability", "system.posix_acl_access", "user.other", "user.rolloutfs"):
            with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is what is compared
                os.getxattr(path, name)
            assert caught.value.errno in (errno.ENODATA, errno.ENOTSUP)
    if options in (("--read-only",), ("--no-xattrs",)):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is what is compared
            os.getxattr(lab.thread(thread), "user.rolloutfs.thread_id")
        assert caught.value.errno == errno.ENOTSUP
    else:
        assert os.getxattr(lab.thread(thread), "user.rolloutfs.thread_id") == thread.encode()
        assert os.listxattr(lab.thread(thread) / "thread.json") == []
    run("ls -l threads/*", lab.mountpoint)
