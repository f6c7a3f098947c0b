"""Mounts of ours as they are now: where, of which store, served by which process since when, and whether that answers.

The kernel's table names the store and no process. A server is found by what it has open, /dev/fuse, and by its command
line, in which the mountpoint stands; where that was relative it is compared with the end of the path. Other users'
processes can't be looked at, so a mount may have none that we know of. How it is mounted it tells itself.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutfs import mounttable

PATIENCE = 3.0  # seconds for a mount to answer
Json = dict[str, Any]
_PROC = Path("/proc")
_HOW, _LONGEST = ".mount.json", 1 << 16  # what a mount says of itself, and bytes that are read of it
_COMMAND = "mount"  # followed by what is mounted where; mount(8) calls these without it:
_HELPERS = frozenset(("rolloutfs", "mount.rolloutfs", "mount.fuse.rolloutfs"))


@dataclass(frozen=True, slots=True)
class Server:
    """A process: its number, and when it began (Unix, s)."""

    pid: int
    since: float


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mount. `answers` is False for a dead one and one that hangs, `why` tells which. The store of a mount that an
    older version has made is None. `how` is what `.mount.json` says, None where that can't be asked.
    """

    mountpoint: str
    store: str | None
    server: Server | None
    answers: bool
    why: str | None
    how: Json | None = None

    @property
    def has_no_index(self) -> bool | None:
        """None where that isn't known."""
        return None if self.how is None else self.how.get("index") is None


def mounts() -> list[Mounted]:
    """All mounts of ours that this process can see, in the order of the table."""
    ours = mounttable.ours()
    servers = _servers() if ours else {}
    made = []
    for mount in ours:
        why, how = _asked(mount.mountpoint)
        server = _server_of(mount.mountpoint, servers)
        made.append(Mounted(mount.mountpoint, mount.store, server, why is None, why, how))
    return made


def _asked(place: str) -> tuple[str | None, Json | None]:
    """Why a mount doesn't answer, None when it does; and how it is mounted. The questions are asked by a thread, which
    may have to be left.
    """
    answer: list[tuple[str | None, Json | None]] = []

    def ask() -> None:
        try:
            os.statvfs(place)  # unlike the answer of stat, that of statvfs is never cached
            answer.append((None, _how(place)))
        except OSError as error:
            answer.append((error.strerror or str(error), None))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return answer[0] if answer else (f"no answer within {PATIENCE:.0f} s", None)


def _how(place: str) -> Json | None:
    """What a mount says of itself; None for one of an older version, or of somebody who lets us see no files."""
    try:
        with open(os.path.join(place, _HOW), "rb") as file:
            told = json.loads(file.read(_LONGEST))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _servers() -> dict[int, list[str]]:
    """What processes that serve FUSE mounts were told to mount, by pid."""
    found = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = os.fsdecode((entry / "cmdline").read_bytes()).split("\0")[:-1]
            given = _given(words)
            if given and any(os.readlink(one) == "/dev/fuse" for one in (entry / "fd").iterdir()):
                found[int(entry.name)] = given
        except OSError:
            continue  # gone, or not ours to see
    return found


def _given(words: list[str]) -> list[str]:
    """The words of a command line in which a mountpoint may stand."""
    if _COMMAND in words:
        return words[words.index(_COMMAND) + 1 :]
    at = next((at for at, word in enumerate(words) if os.path.basename(word) in _HELPERS), len(words))
    return words[at + 1 :]


def _server_of(place: str, servers: dict[int, list[str]]) -> Server | None:
    """The process that was told to mount there. A relative word may mean many places, so it counts only where no other
    process was told this one, and no two may mean it.
    """
    for is_exact in (True, False):
        found = [
            pid
            for pid, given in servers.items()
            if any(os.path.isabs(word) is is_exact and _is_same(word, place) for word in given)
        ]
        if found:
            pid = found[0]
            return Server(pid, _since(pid)) if is_exact or len(found) == 1 else None
    return None


def _is_same(word: str, place: str) -> bool:
    """True for a word that may name a mountpoint. A dead or hanging mount is not touched, only its parent."""
    if os.path.isabs(word):
        folder, name = os.path.split(word.rstrip("/"))
        return os.path.join(os.path.realpath(folder), name) == place or os.path.normpath(word) == place
    relative = os.path.normpath(word)
    return relative not in (".", "..") and not relative.startswith("-") and place.endswith(f"/{relative}")


def _since(pid: int) -> float:
    """When a process began; 0 when it has ended."""
    try:
        ticks = int((_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(") ")[2].split()[19])
        boot = next(line for line in (_PROC / "stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0.0
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
