"""Backups of a mount: what didn't change is recognised after a remount, what changed is found, a restore is the tree.

Backup programs decide by inode number, size, mtime and ctime whether they read a file again (FUSE 6.4).
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mount.clients import mixed_store, mounted, need, run, serving
from tests.mount.conftest import Lab, until
from tests.mount.plain import raw_files, write_tree
from tests.tree.sample import message

pytestmark = pytest.mark.slow

ATTRIBUTES = "find . -printf '%p %i %s %b %T@ %C@ %A@ %m %y %n %l %u %g\\n' | sort"


@pytest.fixture(scope="module")
def backup_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A store of many kinds of threads, and a place to mount it; each test mounts anew."""
    folder = tmp_path_factory.mktemp("backup")
    mixed_store(folder / "store")
    with serving(folder / "lab", folder / "store") as lab:
        yield lab


@dataclass(frozen=True, slots=True)
class Tool:
    """A backup program with a repository of its own."""

    mount: Path
    backup: Callable[[], dict[str, str]]  # every file that was read, and why
    restore: Callable[[Path], None]


def restic(folder: Path, mount: Path) -> Tool:
    """A restic repository below `folder`."""
    need("restic", "restic")
    settings = {"RESTIC_REPOSITORY": str(folder / "restic"), "RESTIC_PASSWORD": "x"}

    def call(arguments: str, cwd: Path) -> bytes:
        return run(f"restic --no-cache {arguments}", cwd, **settings)

    def backup() -> dict[str, str]:
        lines: list[dict[str, Any]] = [
            json.loads(line) for line in call("backup --json -vv .", mount).split(b"\n") if line
        ]
        summary = lines[-1]
        read = {
            line["item"].removeprefix(str(mount)).lstrip("/"): line["action"]
            for line in lines
            if line["message_type"] == "verbose_status" and line["action"] in ("new", "modified")
        }
        read = {name: why for name, why in read.items() if not name.endswith("/")}
        assert len(read) == summary["files_new"] + summary["files_changed"]
        assert len(read) + summary["files_unmodified"] == summary["total_files_processed"]
        return read

    def restore(target: Path) -> None:
        call(f"restore latest --target {shlex.quote(str(target))}", folder)
        inside = target / mount.relative_to("/")
        if inside.exists():  # some versions restore to the path that was saved
            inside.rename(target.with_name("moved"))
            shutil.rmtree(target)
            target.with_name("moved").rename(target)

    folder.mkdir(exist_ok=True)
    call("init -q", folder)
    return Tool(mount, backup, restore)


def borg(folder: Path, mount: Path) -> Tool:
    """A borg repository below `folder`."""
    need("borg", "borgbackup")
    settings = {"BORG_REPO": str(folder / "borg"), "BORG_BASE_DIR": str(folder / "base")}
    settings["BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK"] = "yes"
    count = 0

    def backup() -> dict[str, str]:
        nonlocal count
        count += 1
        # borg doesn't remember the newest file that it sees, since that may still change: give it one.
        newest = mount.parent / "newest"
        newest.write_text(str(count))
        output = run(f"borg create --list --filter AMC ::{count} . {shlex.quote(str(newest))} 2>&1", mount, **settings)
        lines = [line.split(" ", 1) for line in output.decode().splitlines()]
        return {name: why for why, name in lines if not name.endswith("/newest")}

    def restore(target: Path) -> None:
        target.mkdir()
        run(f"borg extract --exclude '*/newest' ::{count} && rm -rf */newest", target, **settings)
        shutil.rmtree(target / mount.relative_to("/").parts[0], ignore_errors=True)

    folder.mkdir(exist_ok=True)
    run("borg init -e none", folder, **settings)
    return Tool(mount, backup, restore)


def test_attributes_are_the_same_after_a_remount(backup_lab: Lab, tmp_path: Path) -> None:
    """Also at another place, and although the tree is looked at in another order: every number, size, time and mode."""
    with mounted(backup_lab) as mount:
        first = run(ATTRIBUTES, mount)
    assert first.count(b"\n") > 1000
    with mounted(backup_lab) as mount:
        run("find . -type f | sort -r | xargs cat | cat > /dev/null", mount)
        assert run(ATTRIBUTES, mount) == first
    with mounted(backup_lab, at=tmp_path / "elsewhere") as mount:
        assert run(ATTRIBUTES, mount) == first


@pytest.mark.parametrize("make", [restic, borg])
def test_second_backup_reads_nothing_again(backup_lab: Lab, tmp_path: Path, make: Callable[[Path, Path], Tool]) -> None:
    """A backup over a remount reads no file; after a thread has grown it reads that thread's files, no other's; a
    restore gives the tree.
    """
    tool = make(tmp_path / "repository", backup_lab.mountpoint)
    with mounted(backup_lab):
        assert len(tool.backup()) > 500
    with mounted(backup_lab) as mount:
        assert tool.backup() == {}
        thread, changed = _grow(backup_lab.sample.root, mount)
        read = set(tool.backup())
        assert changed <= read
        assert {name for name in read if not name.startswith((f"threads/{thread}/", "store/"))} == set()
        restored, plain = tmp_path / "restored", tmp_path / "plain"
        tool.restore(restored)
        write_tree(backup_lab.sample.root, mount, plain)
        assert run(f"diff -r --no-dereference {shlex.quote(str(restored))} .", plain) == b""


def _grow(root: Path, mount: Path) -> tuple[str, set[str]]:
    """Let the biggest thread grow by a message: the thread, and some of the files that have other content then."""
    path = max((root / "sessions").rglob("*.jsonl"), key=lambda path: path.stat().st_size)
    thread = path.name[28:64]
    with path.open("ab") as file:
        file.write(message("one more"))
    rollout, stats = mount / "threads" / thread / "rollouts" / path.name, mount / "stats.json"
    total = sum(file.path.stat().st_size for file in raw_files(root))
    until(lambda: rollout.stat().st_size == path.stat().st_size, "the rollout has grown")
    until(lambda: json.loads(stats.read_bytes())["bytes"] == total, "the statistics are new")
    names = ("effective_history.jsonl", "full_history.jsonl", "thread.json", f"rollouts/{path.name}")
    changed = {f"threads/{thread}/{name}" for name in names}
    return thread, {*changed, f"store/{path.relative_to(root)}", "store/stats.json"}
