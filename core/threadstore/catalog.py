"""Which rollouts a store holds, from file names alone (FORMAT 2.1, 11.4; FAULTS 11 to 13, 24).

Folders are read once and again when their mtime moves, so looking whether a store of 100,000 threads has changed
costs one `stat` a folder. A folder that was changed within the clock's resolution before we read it may change
again without a new mtime: it stays suspect until it is older.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from threadstore.errors import Problem
from threadstore.filestates import FileStates
from threadstore.names import ARCHIVED, SESSIONS, RolloutFile, alone, is_partial, parse_rollout

_RESOLUTION = 50_000_000  # ns within which two changes of a folder may bear one mtime
_LOOKS = 4  # at folders in which files are moved to and fro
_ROOTS = (SESSIONS, ARCHIVED)
_UNFINISHED = "rolloutfs is writing a new rollout here, or was ended before it had"
_NEVER = (
    "it was never in force, and no thread needs it: it may be removed, and an operation that makes a file in its "
    "folder removes it once it is a day old"
)


@dataclass(slots=True)
class _Folder:
    """What one folder held when it was read."""

    identity: tuple[int, int, int]
    read_at: int
    rollouts: tuple[str, ...] = ()  # paths, no two of which are the same without .zst
    folders: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


class Threads(Mapping[str, tuple[RolloutFile, ...]]):
    """The rollouts of each thread, oldest first; threads by id. Of a thread with one rollout, as most have, the path
    says everything and is all that is kept. Invariant: `_last` is what was asked for last, and holds.
    """

    __slots__ = ("_found", "_last")

    def __init__(self) -> None:
        self._found: dict[str, str | tuple[RolloutFile, ...]] = {}
        self._last: tuple[str | None, tuple[RolloutFile, ...]] = (None, ())

    def __getitem__(self, thread_id: str) -> tuple[RolloutFile, ...]:
        if self._last[0] == thread_id:
            return self._last[1]
        found = self._found[thread_id]
        rollouts = (alone(found, thread_id),) if isinstance(found, str) else found
        self._last = thread_id, rollouts
        return rollouts

    def __contains__(self, thread_id: object) -> bool:
        return thread_id in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def put(self, thread_id: str, rollouts: tuple[RolloutFile, ...]) -> None:
        """Note the rollouts of a thread; none when it is gone."""
        self._last = None, ()
        if not rollouts:
            self._found.pop(thread_id, None)
        elif rollouts == (alone(rollouts[0].path, thread_id),):
            self._found[thread_id] = rollouts[0].path
        else:
            self._found[thread_id] = rollouts

    def sort(self) -> None:
        """Have them in the order of ids."""
        if any(first > second for first, second in pairwise(self._found)):
            self._found = dict(sorted(self._found.items()))


class Catalog:
    """The rollouts of a store by thread and by rollout id.

    Invariant: after `refresh`, `_threads` holds exactly the rollouts of `_folders`, each once, and `_named_otherwise`
    those whose rollout id isn't the id of their thread; `_several` are the threads with more than one.
    """

    def __init__(self, root: str, states: FileStates) -> None:
        self.root = root
        self._states = states
        self._threads = Threads()
        self._several: set[str] = set()
        self._named_otherwise: dict[str, list[RolloutFile]] = {}
        self.version = 0
        self._folders: dict[str, _Folder] = {}

    @property
    def threads(self) -> Threads:
        """The rollouts of each thread, oldest first. The folders are read when this is asked for the first time."""
        if not self.version:
            self.refresh()
        return self._threads

    @property
    def several(self) -> set[str]:
        """The threads with more than one rollout. The folders are read as for `threads`."""
        if not self.version:
            self.refresh()
        return self._several

    def refresh(self, *, anew: bool = False) -> set[str]:
        """Read the folders that changed; gives the threads of which rollouts came or went. With `anew` the system is
        asked, for who has found that a file isn't where it was and was told of nothing yet.

        A file that is moved meanwhile may be nowhere: not yet where we looked first, no longer where we looked last. So
        where some are missing, the folders are looked at again before that is said.
        """
        came, went = self._changes(anew=anew)
        for _ in range(_LOOKS):
            if not _missing(came, went):
                break
            more, fewer = self._changes(anew=True)
            went += [path for path in fewer if path not in came]
            came = [path for path in came if path not in fewer] + more
            if not more and not fewer:
                break
        return self._arrange(came, went) if came or went or not self.version else set()

    def _changes(self, *, anew: bool = False) -> tuple[list[str], list[str]]:
        """The paths of rollouts that came and went since the folders were read last. With `anew` the system is asked,
        not who remembers: of a move they may have heard the first half.
        """
        seen: set[str] = set()
        came: list[str] = []
        went: list[str] = []
        todo = [name for name in _ROOTS if os.path.isdir(os.path.join(self.root, name))]
        while todo:
            path = todo.pop()
            seen.add(path)
            before = self._folders.get(path)
            folder = self._visit(path, anew=anew)
            if folder is not before:
                was, now = set(before.rollouts) if before is not None else set(), set(folder.rollouts)
                came += [path for path in folder.rollouts if path not in was]
                went += was - now
            todo += folder.folders
        for gone in self._folders.keys() - seen:
            went += self._folders.pop(gone).rollouts
        return came, went

    def of_rollout(self, rollout_id: str) -> list[RolloutFile]:
        """The files of a rollout, the preferred one last; usually there is one."""
        first = [rollout for rollout in self.threads.get(rollout_id, ()) if rollout.rollout_id == rollout_id]
        return sorted(first + self._named_otherwise.get(rollout_id, []), key=preference)

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

    def _visit(self, path: str, *, anew: bool) -> _Folder:
        """The folder as it is now: the known object when it is the same."""
        known = self._folders.get(path)
        full = os.path.join(self.root, path)
        try:
            if path in _ROOTS:
                status = os.stat(full)
            else:
                status = os.lstat(full) if anew else self._states.lstat(path)
        except OSError as error:
            return self._unreadable(path, error)
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if known is not None and known.identity == identity and known.read_at - status.st_mtime_ns > _RESOLUTION:
            return known
        folder = _Folder(identity, time.time_ns())
        rollouts: dict[str, RolloutFile] = {}
        try:
            with os.scandir(full) as entries:
                for entry in entries:
                    _sort(entry, path, folder, rollouts)
        except OSError as error:
            return self._unreadable(path, error)
        folder.rollouts = tuple(rollout.path for rollout in rollouts.values())
        folder.folders.sort()
        folder.problems.sort(key=lambda problem: problem.path)
        self._folders[path] = folder
        return folder

    def _unreadable(self, path: str, error: OSError) -> _Folder:
        problem = Problem(
            "no_permission",
            path,
            None,
            None,
            f"the folder can't be read: {error.strerror}",
            "its threads are not shown",
        )
        folder = self._folders[path] = _Folder((0, 0, 0), 0, problems=[problem])
        return folder

    def _arrange(self, came: list[str], went: list[str]) -> set[str]:
        """Bring `_threads` and `_named_otherwise` up to date; the threads that it was about."""
        touched = set()
        for rollout in _parsed(went):
            touched.add(rollout.thread_id)
            self._put(rollout.thread_id, self._others(rollout))
            if rollout.rollout_id != rollout.thread_id:
                others = self._named_otherwise[rollout.rollout_id]
                others.remove(rollout)
                if not others:
                    del self._named_otherwise[rollout.rollout_id]
        for rollout in _parsed(came):
            touched.add(rollout.thread_id)
            self._put(rollout.thread_id, [*self._others(rollout), rollout])
            if rollout.rollout_id != rollout.thread_id:
                self._named_otherwise.setdefault(rollout.rollout_id, []).append(rollout)
        self._threads.sort()
        self.version += 1
        return touched

    def _others(self, rollout: RolloutFile) -> list[RolloutFile]:
        """The rollouts of the same thread, as their paths say."""
        known = self._threads.get(rollout.thread_id, ())
        return [one._replace(twin=0) for one in known if one.path != rollout.path]

    def _put(self, thread_id: str, files: list[RolloutFile]) -> None:
        """Note all rollouts of a thread."""
        self._threads.put(thread_id, _named(files) if files else ())
        if len(files) > 1:
            self._several.add(thread_id)
        else:
            self._several.discard(thread_id)


def _parsed(paths: Iterable[str]) -> Iterator[RolloutFile]:
    """What paths of rollouts say, one after the other: of 100,000 at once there would remain a gap beside each path."""
    return filter(None, map(parse_rollout, paths))


def _missing(came: list[str], went: list[str]) -> bool:
    """True when a rollout went that hasn't come under another name or in another folder."""
    return bool(went) and bool({one.shown for one in _parsed(went)} - {one.shown for one in _parsed(came)})


def preference(rollout: RolloutFile) -> tuple[bool, str, str, bool]:
    """The greatest of several rollouts is the one that Codex takes: active before archived, then the newest name, and
    of two forms of one file the plain one.
    """
    return not rollout.archived, rollout.stamp, rollout.rollout_id, not rollout.compressed


def _named(rollouts: list[RolloutFile]) -> tuple[RolloutFile, ...]:
    """Oldest first; where two files would be shown under one name, the later ones are numbered."""
    if len(rollouts) == 1:
        return (rollouts[0],)
    rollouts.sort(key=preference)
    names: dict[str, int] = {}
    result = []
    for rollout in rollouts:
        number = names[rollout.shown] = names.get(rollout.shown, 0) + 1
        result.append(rollout._replace(twin=number - 1) if number > 1 else rollout)
    return tuple(result)


def _sort(entry: os.DirEntry[str], path: str, folder: _Folder, rollouts: dict[str, RolloutFile]) -> None:
    """Put one entry of a folder where it belongs; a rollout by its path without .zst. Links are never followed below
    the root.
    """
    inside = f"{path}/{entry.name}"
    rollout = parse_rollout(inside)
    if entry.is_dir(follow_symlinks=False):
        folder.folders.append(inside)
        if rollout is not None:
            folder.problems.append(_odd(inside, "not_a_file", "a folder with the name of a rollout"))
    elif not entry.is_file(follow_symlinks=False):
        kind = "a link" if entry.is_symlink() else "not a regular file"
        folder.problems.append(_odd(inside, "not_a_file", f"{kind}, which is never followed or opened"))
    elif is_partial(entry.name):
        folder.problems.append(Problem("unfinished_rollout", inside, None, None, _UNFINISHED, _NEVER))
    elif rollout is None:
        folder.problems.append(_odd(inside, "not_a_rollout", "not named rollout-<time>-<thread id>.jsonl"))
    else:
        twin = rollouts.get(rollout.plain_path)
        if twin is not None:
            compressed = rollout if rollout.compressed else twin
            folder.problems.append(
                _odd(compressed.path, "zstd_twin", "the same rollout lies here uncompressed, which counts")
            )
        if twin is None or twin.compressed:
            rollouts[rollout.plain_path] = rollout


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
