"""What `stat` says of the files of a store.

Everything that the library remembers holds for as long as `stat` says the same of the files that it came from, so
this question is asked more often than any other. `FileStates` asks the system each time. Whoever is told of every
change (see `forget`) may use `RememberedStates`, which asks once.
"""

from __future__ import annotations

import os
from collections import OrderedDict

from threadstore.projection import Basis

_MOST = 4096  # files whose state is remembered; about 3 MiB


class FileStates:
    """States of files by their path below the store. Raises OSError.

    What was made of several of them holds for as long as `changes` is the same number; None: it doesn't.
    """

    changes: int | None = None

    def __init__(self, root: str) -> None:
        self._prefix = root + "/"
        self.root = root

    def lstat(self, path: str) -> os.stat_result:
        """The state of a file or folder; of a link, its own."""
        return os.lstat(self._prefix + path)

    def names(self) -> list[str]:
        """The names in the root of the store."""
        return os.listdir(self.root)

    def basis(self, path: str) -> Basis:
        """The state of a file that something was made from; all zero when it isn't there."""
        try:
            status = self.lstat(path)
        except FileNotFoundError:
            return Basis(path, 0, 0, 0, 0)
        return Basis(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class RememberedStates(FileStates):
    """States that were asked for once, for a caller who is told of changes and passes every one of them on between
    `start` and `stop`.

    Invariant: what is remembered of a path is what the system would say, but for changes that `forget` has not been
    told of.
    """

    def __init__(self, root: str, most: int = _MOST) -> None:
        super().__init__(root)
        self._most = most
        self._known: OrderedDict[str, os.stat_result | FileNotFoundError] = OrderedDict()
        self._names: list[str] | None = None
        self._started = False
        self._count = 0

    @property
    def changes(self) -> int | None:  # type: ignore[override]  # which is fixed where nothing is remembered
        """How often something happened; None while nothing is remembered."""
        return self._count if self._started else None

    def lstat(self, path: str) -> os.stat_result:
        """The state of a file or folder, from memory if it was asked for before."""
        known = self._known.get(path)
        if known is None:
            try:
                known = super().lstat(path)
            except FileNotFoundError as error:
                known = error.with_traceback(None)  # which would keep all that its callers have at hand
            if self._started:
                self._known[path] = known
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        if isinstance(known, FileNotFoundError):
            raise FileNotFoundError(known.errno, known.strerror, path)
        return known

    def names(self) -> list[str]:
        """The names in the root of the store: the same list for as long as they are the same."""
        names = self._names
        if names is None:
            names = super().names()
            self._names = names if self._started else None
        return names

    def forget(self, folder: str, name: str) -> None:
        """Something happened to an entry of a folder (`""` is the root), or to the folder itself (`name` empty)."""
        self._count += 1
        self._known.pop(f"{folder}/{name}" if folder and name else folder or name, None)
        self._known.pop(folder, None)
        if not folder:
            self._names = None

    def start(self) -> None:
        """From now on `forget` is told of every change: remember."""
        self._started = True

    def stop(self) -> None:
        """Nobody tells of changes any more: ask the system each time."""
        self._started = False
        self.forget_all()

    def forget_all(self) -> None:
        """Anything may have happened."""
        self._count += 1
        self._known.clear()
        self._names = None
