"""The store's own files: opened, listed and measured without leaving the store, blocking, or leaving a trace.

`sessions` may be a link, since people move it to another disk: that one is followed.  Below it no link is, in no part
of a path, and only regular files and folders exist for us (FAULTS 24).  O_NOATIME keeps even the access times as they
are where the system allows it to us.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any

from rolloutfs import beneath

FOLDERS = ("sessions", "archived_sessions")
FILES = ("session_index.jsonl",)
_SECRET = ("auth.json", "config.toml")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def is_secret(name: str) -> bool:
    """True for what is never shown, wherever it lies (FAULTS 31)."""
    return name in _SECRET or ".sqlite" in name


class StoreFiles:
    """Access to one store by paths relative to its root."""

    def __init__(self, root: str) -> None:
        self.root = root

    def open(self, path: str) -> int:
        """A read-only descriptor of a regular file. An absolute path is that of a spool file of ours."""
        if path.startswith("/"):
            return _only_regular(_open(path, _FILE), path)
        return _only_regular(self._open(path, _FILE), path)

    def stat(self, path: str) -> os.stat_result:
        """What `lstat` says of a path; of `sessions` itself, what `stat` says."""
        folder, _, name = path.rpartition("/")
        if not folder:
            return os.stat(os.path.join(self.root, _part(name)), follow_symlinks=name in FOLDERS)
        place = self._open_folder(folder)
        try:
            return os.stat(_part(name), dir_fd=place, follow_symlinks=False)
        finally:
            os.close(place)

    def shown(self, path: str) -> os.stat_result:
        """As `stat`, but FileNotFoundError for everything that isn't shown."""
        folder, _, name = path.rpartition("/")
        status = self.stat(path)
        right = stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and (folder or name in FILES))
        if not right or is_secret(name):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return status

    def entries(self, path: str) -> list[tuple[str, os.stat_result]]:
        """Names and states of what is shown in a folder, sorted by name. The root has `FOLDERS` and `FILES` only."""
        if not path:
            return self._root_entries()
        place = self._open_folder(path)
        entries = []
        try:
            with os.scandir(place) as listing:
                for entry in listing:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)) and not is_secret(entry.name):
                        entries.append((entry.name, status))
        finally:
            os.close(place)
        entries.sort(key=lambda entry: entry[0])
        return entries

    def _root_entries(self) -> list[tuple[str, os.stat_result]]:
        entries = []
        for name in (*FOLDERS, *FILES):
            try:
                status = self.stat(name)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode) if name in FOLDERS else stat.S_ISREG(status.st_mode):
                entries.append((name, status))
        return entries

    def _open_folder(self, path: str) -> int:
        """A descriptor of a folder; the root's for an empty path."""
        if path in FOLDERS or not path:
            return _open(os.path.join(self.root, path), _FOLDER)
        return self._open(path, _FOLDER | os.O_NOFOLLOW)

    def _open(self, path: str, flags: int) -> int:
        """A descriptor of what lies below one of `FOLDERS`, or in the root."""
        first, _, rest = path.partition("/")
        if not rest:
            return self._open_parts(_open(self.root, _FOLDER), [path], flags)
        if first not in FOLDERS:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        place = _open(os.path.join(self.root, first), _FOLDER)
        parts = rest.split("/")
        if not beneath.IS_AVAILABLE:
            return self._open_parts(place, parts, flags)
        try:
            return _open("/".join(map(_part, parts)), flags, place, beneath.open_beneath)
        finally:
            os.close(place)

    def _open_parts(self, place: int, parts: list[str], flags: int) -> int:
        """Go down from a folder, whose descriptor is closed, part by part."""
        *folders, last = parts
        try:
            for part in folders:
                deeper = _open(_part(part), _FOLDER | os.O_NOFOLLOW, place)
                os.close(place)
                place = deeper
            return _open(_part(last), flags, place)
        finally:
            os.close(place)


def _open_at(path: str, flags: int, place: int | None) -> int:
    return os.open(path, flags, dir_fd=place)


def _open(path: str, flags: int, place: int | None = None, opener: Callable[[str, int, Any], int] = _open_at) -> int:
    try:
        return opener(path, flags | os.O_NOATIME, place)
    except PermissionError:  # only the owner of a file may ask for O_NOATIME
        return opener(path, flags, place)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, or a FIFO or device: not shown, so not there
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
        raise


def _only_regular(descriptor: int, path: str) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _part(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return name
