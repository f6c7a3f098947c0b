"""The views as plain links: what README says of them, told from each `thread.json`. Nothing of `rolloutfs` has a part
in it; what a text becomes as part of a name is asked of the library.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

from threadstore.names import brief_name, path_names

TOPS = ("by-date", "by-name", "by-cwd", "by-branch", "by-model", "recent", "archived")
FLAT = ("by-name", "recent", "archived")


@dataclass(frozen=True, slots=True)
class Told:
    """What a thread's `thread.json` says; `last_ns` is the time of its last record (Unix)."""

    document: dict[str, Any]
    last_ns: int
    zone: tzinfo

    @property
    def began(self) -> datetime:
        """As the zone has it."""
        return datetime.fromisoformat(self.document["created_at"]).astimezone(self.zone)

    @property
    def label(self) -> str:
        """The name, else what was said first."""
        names = (brief_name(str(self.document[key] or "")) for key in ("name", "preview"))
        return next((name for name in names if name), "")

    def dated(self, form: str) -> str:
        """The name of a link that begins with a time."""
        return self.began.strftime(form) + (f"_{self.label}" if self.label else "")


def views(told: list[Told]) -> dict[str, str]:
    """The links by path, with the ids of their threads."""
    people = [one for one in told if one.document["agent"] is None]
    wanted: list[tuple[str, str, bool, str]] = []  # folder, name, whether it has the id anyway, id
    newest = sorted(
        (one for one in people if not one.document["archived"]), key=lambda one: (one.last_ns, one.document["id"])
    )[-100:]
    for one in people:
        document, thread, full = one.document, one.document["id"], one.dated("%Y-%m-%dT%H-%M-%S")
        wanted.append((one.began.strftime("by-date/%Y/%m/%d"), one.dated("%H-%M-%S"), False, thread))
        if one.label:
            wanted.append(("by-name", one.label, not brief_name(document["name"] or ""), thread))
        git = document["git"] or {}
        for top, text in (
            ("by-cwd", document["cwd"]),
            ("by-branch", git.get("branch")),
            ("by-model", document["model"]),
        ):
            if text:
                wanted.append(("/".join((top, *path_names(text))), full, False, thread))
        if one in newest:
            wanted.append(("recent", full, False, thread))
        if document["archived"]:
            wanted.append(("archived", full, False, thread))
    counts = Counter((folder, name) for folder, name, has_id, _ in wanted if not has_id)
    links = {}
    for folder, name, has_id, thread in wanted:
        path = f"{folder}/{name}"
        links[f"{path}-{thread[-8:]}" if has_id or counts[folder, name] > 1 else path] = thread
    return links


def write_views(destination: Path, mount: Path, set_time: Callable[[Path, int], None]) -> None:
    """Write the views of a plain tree whose threads are there. Times of the tops are copied from the mount: they are
    those of the store's folders.
    """
    told = []
    for folder in sorted((destination / "threads").iterdir()):
        file = folder / "thread.json"
        if file.stat().st_size:
            told.append(Told(json.loads(file.read_bytes()), file.stat().st_mtime_ns, UTC))
    last = {one.document["id"]: one.last_ns for one in told}
    for top in TOPS:
        (destination / top).mkdir()
    newest: dict[Path, int] = {}
    for path, thread in views(told).items():
        link = destination / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(destination / "threads" / thread, link.parent))
        set_time(link, last[thread])
        for folder in list(link.parents)[: path.count("/")]:
            newest[folder] = max(newest.get(folder, 0), last[thread])
    for top in TOPS:
        newest[destination / top] = (mount / top).lstat().st_mtime_ns
    for folder, time in sorted(newest.items(), reverse=True):
        assert stat.S_ISDIR(folder.lstat().st_mode)
        folder.chmod(0o700)
        set_time(folder, time)
