"""Learning of every change to the store by inotify, so that what was asked of it once needn't be asked again.

The kernel queues an event before the system call that caused it returns. So whoever drains the queue before an answer
has heard of everything that was done before the question: nothing that `Watch` lets its caller remember is ever older
than the request that is being answered. Where changes are made that no event tells of (a network file system, too
many folders for the limits of the system), there is no watch, and the store is asked each time.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import trio
from inotify_simple import INotify, flags
from threadstore.filestates import RememberedStates

from rolloutfs import mounttable
from rolloutfs.storefiles import FOLDERS

log = logging.getLogger(__name__)

_CHANGES = flags.MODIFY | flags.ATTRIB | flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
_ENDS = flags.DELETE_SELF | flags.MOVE_SELF
_NAMES = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
_LOST = flags.Q_OVERFLOW | flags.UNMOUNT
_PAUSE = 0.02  # seconds between looks at a store that is being written
#: File systems that others may change without an event here.
_SHARED = frozenset(
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "afs", "lustre", "gfs2", "ocfs2"]
)


@dataclass(slots=True)
class Changes:
    """What happened since the last look: paths below the store whose content or attributes changed, folders whose
    names did, and whether anything else may have as well.
    """

    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    everything: bool = False


class Watch:
    """Watches the folders of one store.

    Invariant: while `is_active`, every folder below `FOLDERS` whose entries `states` may remember has a watch.
    """

    def __init__(
        self, root: str, states: RememberedStates, tell: Callable[[Changes], None], beside: str | None = None
    ) -> None:
        """`beside` is a folder whose files count as if they lay in the root."""
        self._root = root
        self._states = states
        self._tell = tell
        self._folders: dict[int, str] = {}
        self._queue: INotify | None = INotify(nonblocking=True)
        self._poll = select.poll()
        self._poll.register(self._queue.fileno(), select.POLLIN)
        try:
            self._watch("")
            self._beside = -1 if beside is None else self._queue.add_watch(beside, _CHANGES)
            for folder in FOLDERS:
                self._watch_below(folder)
        except OSError:
            self.close()
            raise
        states.start()

    @property
    def is_active(self) -> bool:
        """False once changes can no longer be heard of."""
        return self._queue is not None

    def drain(self) -> bool:
        """Take note of everything that happened so far. One system call when nothing did. False once changes can no
        longer be heard of.
        """
        if self._queue is not None and self._poll.poll(0):
            self._take(self._queue)
        return self._queue is not None

    async def run(self) -> None:
        """Take note of changes also while nobody asks."""
        while self._queue is not None:
            await trio.lowlevel.wait_readable(self._queue.fileno())
            self.drain()
            await trio.sleep(_PAUSE)

    def close(self) -> None:
        """Stop watching: from now on nothing may be remembered."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None
            self._states.stop()

    def _take(self, queue: INotify) -> None:
        changes = Changes()
        try:
            for event in queue.read(timeout=0):
                self._note(event.wd, event.mask, event.name, changes)
        except OSError as error:
            log.warning("The store can't be watched any more (%s): it is looked at each time instead.", error.strerror)
            changes.everything = True
            self.close()
        if changes.everything:
            self._states.forget_all()
        self._tell(changes)

    def _note(self, wd: int, mask: int, name: str, changes: Changes) -> None:
        if mask & _LOST:
            changes.everything = True
            if mask & flags.UNMOUNT:
                self.close()
            return
        if wd == self._beside:
            changes.files.add(name)
            return
        folder = self._folders.get(wd)
        if folder is None:
            return
        if mask & flags.IGNORED:
            del self._folders[wd]
            return
        if mask & flags.MOVE_SELF and folder:
            self._leave(folder)
        self._states.forget(folder, name)
        path = f"{folder}/{name}" if folder and name else folder or name
        if mask & _ENDS and not folder:
            changes.everything = True
            self.close()
        elif mask & flags.ISDIR and mask & _NAMES and (folder or name in FOLDERS):
            self._states.forget_all()  # what lies below came or went with it
            changes.folders.add(folder)
            if mask & (flags.CREATE | flags.MOVED_TO):
                self._watch_below(path)
        elif mask & _NAMES:
            changes.folders.add(folder)
            changes.files.add(path)
        else:
            changes.files.add(path)

    def _watch_below(self, folder: str) -> None:
        """A folder and all folders in it. The watch comes first, so that nothing is made unseen between the two."""
        todo = [folder]
        while todo:
            path = todo.pop()
            try:
                self._watch(path)
                with os.scandir(os.path.join(self._root, path)) as entries:
                    todo += [f"{path}/{entry.name}" for entry in entries if entry.is_dir(follow_symlinks=False)]
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue  # gone meanwhile, or not ours to see

    def _leave(self, folder: str) -> None:
        """A folder was moved: if it isn't in the store any more, what happens to it and below it is nothing to us."""
        if self._queue is None or os.path.isdir(os.path.join(self._root, folder)):
            return
        for wd, path in self._folders.items():
            if path == folder or path.startswith(folder + "/"):
                with suppress(OSError):  # gone by itself
                    self._queue.rm_watch(wd)

    def _watch(self, path: str) -> None:
        assert self._queue is not None
        follow = 0 if path in ("", *FOLDERS) else flags.DONT_FOLLOW
        wanted = _CHANGES | _ENDS | flags.ONLYDIR | follow
        self._folders[self._queue.add_watch(os.path.join(self._root, path), wanted)] = path


def open_watch(
    root: str, states: RememberedStates, tell: Callable[[Changes], None], beside: str | None = None
) -> Watch | None:
    """A watch on a store; None where it would miss changes, which is said in the log."""
    for path in ("", *FOLDERS, *([] if beside is None else [beside])):
        kind = mounttable.filesystem(os.path.join(root, path))
        if kind in _SHARED or kind.startswith("fuse"):
            log.info("%s is on a file system (%s) that doesn't tell of changes.", path or root, kind)
            return None
    try:
        return Watch(root, states, tell, beside)
    except OSError as error:
        log.warning("The store can't be watched (%s): see fs.inotify in sysctl.", error.strerror)
        return None
