"""The tree as plain files: what a mount of a store has to look like, made without a mount.

Nothing was asked of the control files yet, so they say how to use them, and operations.jsonl is empty; nor was anything
searched for.

Raw files are copied from the store, those that are compressed are decoded by `zstd`; derived files are joined here
from what `ThreadStore` says; names, links, modes and times follow DESIGN 3.  Nothing of `rolloutfs` has a part in it,
with two exceptions: the texts in control files, and what belongs to no thread (README.md, the folders above the
threads), which is copied with its times from the mount, since its content is a matter of taste.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from threadstore.extents import Slice
from threadstore.projection import FamilyView, Projection, StoreView, View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import control
from tests.mount.clients import need
from tests.mount.plain_views import write_views

TOPS = ("sessions", "archived_sessions")
OF_REVERTS = {View.DROPPED, View.DROPPED_TURNS}  # in threads with several rollouts
DERIVED = {view for view in View if view is not View.LINEAGE}


@dataclass(frozen=True, slots=True)
class Raw:
    """A rollout file of a store, known from its name."""

    path: Path
    thread: str
    name: str

    @property
    def content(self) -> bytes:
        """The bytes, decoded; of a damaged file those up to the damage."""
        if self.path.suffix != ".zst":
            return self.path.read_bytes()
        need("zstd", "zstd")
        return subprocess.run(["zstd", "-dcq", self.path], capture_output=True, timeout=60, check=False).stdout


def raw_files(root: Path) -> list[Raw]:
    """Every rollout of a store: `rollout-<19 letters>-<thread id>[_<rollout id>].jsonl[.zst]`."""
    paths = sorted(path for top in TOPS for path in (root / top).rglob("rollout-*.jsonl*"))
    return [Raw(path, path.name[28:64].lower(), path.name.removesuffix(".zst")) for path in paths]


def last_time(content: bytes) -> int | None:
    """The time in a log's last whole record, in ns."""
    for line in reversed(content.split(b"\n")):
        try:
            stamp = json.loads(line)["timestamp"]
        except (ValueError, KeyError, TypeError):
            continue
        # Records have milliseconds; a float has not the digits for more than microseconds.
        return round(datetime.fromisoformat(stamp).timestamp() * 1000) * 1_000_000
    return None


def join(store: ThreadStore, projection: Projection) -> bytes:
    """The bytes of a projection, every slice read by itself."""
    assert projection.extents is not None, projection.error
    parts = []
    for part in projection.extents.plan(0, projection.size):
        if isinstance(part, Slice):
            with open(os.path.join(store.root, projection.extents.sources[part.source].path), "rb") as file:
                parts.append(os.pread(file.fileno(), part.length, part.offset))
        else:
            parts.append(part)
    return b"".join(parts)


def write_tree(root: Path, mount: Path, destination: Path) -> None:
    """Write the tree of the store `root` to the folder `destination`, which is made."""
    store = ThreadStore(str(root), Spool(f"{destination}.spool"))
    destination.mkdir()
    raw = raw_files(root)
    for thread in sorted({file.thread for file in raw}):
        folder = destination / "threads" / thread
        _write_thread(store, thread, [file for file in raw if file.thread == thread], folder)
        _seal(folder, store.times(thread).mtime_ns)
        for view in FamilyView:
            path = folder / "lineage" / view.value
            if path.exists() and not path.is_symlink():
                _set_time(path, store.project_family(thread, view).basis[0].mtime_ns)
    _write_store(store, root, destination / "store")
    write_views(destination, mount, _set_time)
    (destination / "search").mkdir()
    for name in ("README.md", "search/README.md"):
        shutil.copyfile(mount / name, destination / name)
    (destination / "search/problems.jsonl").touch()
    (destination / "operations.jsonl").touch()
    for name in ("problems.jsonl", "stats.json", "lineage.mmd"):
        (destination / name).symlink_to(f"store/{name}")
    views = [f"store/{view.value}" for view in StoreView]
    tops = ("README.md", "operations.jsonl", "problems.jsonl", "stats.json", "lineage.mmd")
    searches = ("search/README.md", "search/problems.jsonl", "search")
    for name in (*tops, *views, *searches, "store", "threads", "."):
        status = (mount / name).lstat()
        if not stat.S_ISLNK(status.st_mode):
            (destination / name).chmod(0o700 if stat.S_ISDIR(status.st_mode) else 0o400)
        _set_time(destination / name, status.st_mtime_ns)


def _write_thread(store: ThreadStore, thread: str, raw: list[Raw], folder: Path) -> None:
    lineage, rollouts = folder / "lineage", folder / "rollouts"
    for made in (lineage / "forks", lineage / "agents", rollouts):
        made.mkdir(parents=True)
    for view in DERIVED if len(raw) > 1 else DERIVED - OF_REVERTS:
        (folder / view.value).write_bytes(join(store, store.project(thread, view)))
    (lineage / "lineage.json").write_bytes(join(store, store.project(thread, View.LINEAGE)))
    for name in control.FILES:
        (folder / name).write_bytes(control.usage(name))
    links = store.links(thread)
    for name, other in (("forked_from", links.forked_from), ("parent", links.parent)):
        if other in store:
            (lineage / name).symlink_to(f"../../{other}")
    for fork in links.forks:
        (lineage / "forks" / fork).symlink_to(f"../../../{fork}")
    for name, agent in links.agents:
        (lineage / "agents" / name).symlink_to(f"../../../{agent}")
    for of_family in () if links.are_none and len(raw) < 2 else FamilyView:
        if links.root == thread:
            (lineage / of_family.value).write_bytes(join(store, store.project_family(thread, of_family)))
        else:
            (lineage / of_family.value).symlink_to(f"../../{links.root}/lineage/{of_family.value}")
    (folder / "turns").symlink_to(".turns")
    for file in raw:
        (rollouts / file.name).write_bytes(file.content)
    (rollouts / "current").symlink_to(store.head(thread).name.removesuffix(".zst"))


def _write_store(store: ThreadStore, root: Path, folder: Path) -> None:
    folder.mkdir()
    for top in TOPS:
        if (root / top).exists():
            shutil.copytree(root / top, folder / top, copy_function=shutil.copy2)
    if (root / "session_index.jsonl").exists():
        shutil.copy2(root / "session_index.jsonl", folder)
    for path in sorted(folder.rglob("*"), reverse=True):
        own = (root / path.relative_to(folder)).stat()
        path.chmod(0o700 if path.is_dir() else own.st_mode & 0o700)
        _set_time(path, own.st_mtime_ns)
    for view in StoreView:
        (folder / view.value).write_bytes(join(store, store.project_store(view)))


def _seal(folder: Path, mtime_ns: int) -> None:
    """Give a thread's folder and all below it their modes and the thread's time."""
    for top, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = Path(top, name)
            if not path.is_symlink():
                path.chmod(0o700 if path.is_dir() else 0o600 if path.name in control.FILES else 0o400)
            _set_time(path, mtime_ns)
    folder.chmod(0o700)
    _set_time(folder, mtime_ns)


def _set_time(path: Path, mtime_ns: int) -> None:
    os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)
