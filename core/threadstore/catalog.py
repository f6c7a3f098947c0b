"""Which rollouts a store holds, from file names alone (FORMAT 2.1, 11.4; FAULTS 11 to 13, 24).

Folders are read once and again when their mtime moves, so looking whether a store of 100,000 threads has changed
costs one `stat` a folder. A folder that was changed within the clock's resolution before we read it may change
again without a new mtime: it stays suspect until it is older.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from threadstore.errors import Problem
from threadstore.names import ARCHIVED, SESSIONS, RolloutFile, parse_rollout

_RESOLUTION = 50_000_000  # ns within which two changes of a folder may bear one mtime
_ROOTS = (SESSIONS, ARCHIVED)


@dataclass(slots=True)
class _Folder:
    """What one folder held when it was read."""

    identity: tuple[int, int, int]
    read_at: int
    rollouts: dict[str, RolloutFile] = field(default_factory=dict)  # by path without .zst
    folders: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


class Catalog:
    """The rollouts of a store by thread and by rollout id.

    Invariant: after `refresh`, `threads` and `by_rollout` hold exactly the rollouts of `_folders`, each once.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.threads: dict[str, tuple[RolloutFile, ...]] = {}
        self.by_rollout: dict[str, tuple[RolloutFile, ...]] = {}
        self.version = 0
        self._folders: dict[str, _Folder] = {}

    def refresh(self) -> bool:
        """Read the folders that changed; True when any rollout came or went."""
        seen: set[str] = set()
        changed = False
        todo = [name for name in _ROOTS if os.path.isdir(os.path.join(self.root, name))]
        while todo:
            path = todo.pop()
            seen.add(path)
            folder, fresh = self._visit(path)
            changed = changed or fresh
            todo += folder.folders
        for gone in self._folders.keys() - seen:
            del self._folders[gone]
            changed = True
        if changed:
            self._arrange()
        return changed

    def folders(self) -> list[str]:
        """The folders that were read, relative to the root."""
        return list(self._folders)

    def problems_of(self, thread_id: str) -> list[Problem]:
        """What is odd about the files of one thread."""
        rollouts = self.threads.get(thread_id, ())
        names = {rollout.plain_path for rollout in rollouts}
        found = [
            problem
            for folder in sorted({rollout.path.rpartition("/")[0] for rollout in rollouts})
            for problem in self._folders[folder].problems
            if problem.path.removesuffix(".zst") in names
        ]
        return found + list(_twins(thread_id, rollouts))

    def problems(self) -> list[Problem]:
        """What is odd about the files of the store, without opening one."""
        found = [problem for path in sorted(self._folders) for problem in self._folders[path].problems]
        for thread_id, rollouts in self.threads.items():
            found += _twins(thread_id, rollouts)
        return found

    def _visit(self, path: str) -> tuple[_Folder, bool]:
        known = self._folders.get(path)
        full = os.path.join(self.root, path)
        try:
            status = os.stat(full)
        except OSError as error:
            return self._unreadable(path, known, error)
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if known is not None and known.identity == identity and known.read_at - status.st_mtime_ns > _RESOLUTION:
            return known, False
        folder = _Folder(identity, time.time_ns())
        try:
            with os.scandir(full) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    _sort(entry, path, folder)
        except OSError as error:
            return self._unreadable(path, known, error)
        self._folders[path] = folder
        return folder, known is None or known.rollouts != folder.rollouts or known.folders != folder.folders

    def _unreadable(self, path: str, known: _Folder | None, error: OSError) -> tuple[_Folder, bool]:
        problem = Problem(
            "no_permission",
            path,
            None,
            None,
            f"the folder can't be read: {error.strerror}",
            "its threads are not shown",
        )
        folder = self._folders[path] = _Folder((0, 0, 0), 0, problems=[problem])
        return folder, known is None or bool(known.rollouts)

    def _arrange(self) -> None:
        threads: dict[str, list[RolloutFile]] = {}
        for folder in self._folders.values():
            for rollout in folder.rollouts.values():
                threads.setdefault(rollout.thread_id, []).append(rollout)
        self.threads = {thread_id: _named(threads[thread_id]) for thread_id in sorted(threads)}
        by_rollout: dict[str, list[RolloutFile]] = {}
        for rollouts in self.threads.values():
            for rollout in rollouts:
                by_rollout.setdefault(rollout.rollout_id, []).append(rollout)
        self.by_rollout = {key: tuple(sorted(files, key=preference)) for key, files in by_rollout.items()}
        self.version += 1


def preference(rollout: RolloutFile) -> tuple[bool, str, str, bool]:
    """The greatest of several rollouts is the one that Codex takes: active before archived, then the newest name, and
    of two forms of one file the plain one.
    """
    return not rollout.archived, rollout.stamp, rollout.rollout_id, not rollout.compressed


def _named(rollouts: list[RolloutFile]) -> tuple[RolloutFile, ...]:
    """Oldest first; where two files would be shown under one name, the later ones are numbered."""
    rollouts.sort(key=preference)
    names: dict[str, int] = {}
    result = []
    for rollout in rollouts:
        number = names[rollout.shown] = names.get(rollout.shown, 0) + 1
        result.append(replace(rollout, twin=number - 1) if number > 1 else rollout)
    return tuple(result)


def _sort(entry: os.DirEntry[str], path: str, folder: _Folder) -> None:
    """Put one entry of a folder where it belongs. Links are never followed below the root."""
    inside = f"{path}/{entry.name}"
    rollout = parse_rollout(inside)
    if entry.is_dir(follow_symlinks=False):
        folder.folders.append(inside)
        if rollout is not None:
            folder.problems.append(_odd(inside, "not_a_file", "a folder with the name of a rollout"))
    elif not entry.is_file(follow_symlinks=False):
        kind = "a link" if entry.is_symlink() else "not a regular file"
        folder.problems.append(_odd(inside, "not_a_file", f"{kind}, which is never followed or opened"))
    elif rollout is None:
        folder.problems.append(_odd(inside, "not_a_rollout", "not named rollout-<time>-<thread id>.jsonl"))
    else:
        twin = folder.rollouts.get(rollout.plain_path)
        if twin is not None:
            compressed = rollout if rollout.compressed else twin
            folder.problems.append(
                _odd(compressed.path, "zstd_twin", "the same rollout lies here uncompressed, which counts")
            )
        if twin is None or twin.compressed:
            folder.rollouts[rollout.plain_path] = rollout


def _odd(path: str, code: str, message: str) -> Problem:
    return Problem(code, path, None, None, message, "the file is not part of any thread")


def _twins(thread_id: str, rollouts: tuple[RolloutFile, ...]) -> Iterator[Problem]:
    """Files that claim to be the same rollout (FAULTS 12)."""
    seen: dict[str, RolloutFile] = {}
    for rollout in sorted(rollouts, key=preference, reverse=True):
        winner = seen.setdefault(rollout.rollout_id, rollout)
        if winner is not rollout:
            yield Problem(
                "duplicate_thread",
                rollout.path,
                None,
                None,
                f"thread {thread_id} has this rollout also as {winner.path}",
                "the other one is used",
            )
