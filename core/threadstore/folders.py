"""Folders of a store that something is written into: the one way in which anything is made below a store's root.

Two rules hold for all of it. No link is followed below the root, so that nothing in a store leads a write out of it;
only `sessions` and `archived_sessions` themselves may be links, since people move them to other disks (FAULTS 24).
And what is made belongs to whom the store belongs: root gives it away at once, or Codex would be locked out of its own
threads by files that only root can open; anybody else who isn't the owner is refused before anything is made.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import time
from collections.abc import Iterator

from threadstore.errors import UnwritableError
from threadstore.names import ARCHIVED, SESSIONS, is_partial

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems without hard links say
_NOREPLACE = 1  # RENAME_NOREPLACE, renameat2(2)
_OLD = 86400.0  # seconds after which what was left by an operation is removed
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Folder:
    """An open folder; `open_folder` gives one. Names are those of files in it, never paths.

    Raises OSError, and UnwritableError for a link or what can't be given to the store's owner.
    """

    def __init__(self, path: str, descriptor: int, owner: tuple[int, int]) -> None:
        self.path = path
        self.descriptor = descriptor
        self._owner = owner  # uid and gid of the store's root

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """A descriptor of a regular file, made if `flags` ask for that."""
        path = os.path.join(self.path, name)
        try:
            descriptor = os.open(name, flags | _FILE, mode, dir_fd=self.descriptor)
        except OSError as error:
            raise _explain(path, error) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnwritableError(f"{path} is not a regular file: nothing is written to it.", errno.EINVAL)
            if flags & os.O_CREAT:
                self._give(descriptor, path)
        except BaseException:
            os.close(descriptor)
            if flags & os.O_EXCL:
                self._remove(name)
            raise
        return descriptor

    def probe(self) -> None:
        """Fail as making a file here would."""
        try:
            os.close(os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=self.descriptor))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):  # no such files on this file system
                raise _explain(self.path, error) from error

    def size(self, name: str) -> int:
        """The bytes of a file."""
        with self._named(name):
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_size

    def publish(self, partial: str, name: str) -> None:
        """Give a file that was written under another name its own; fails, rather than replaces, when that is taken.
        The other name may be left.

        A hard link does it on most file systems, a rename that replaces nothing on others (FAT, exFAT).
        """
        at = self.descriptor
        with self._named(name):
            try:
                os.link(partial, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                try:
                    rename_exclusively(at, partial, name)
                except OSError as other:
                    if other.errno not in (errno.EINVAL, errno.ENOSYS):
                        raise
                    raise UnwritableError(
                        f"the file system of {self.path} has neither hard links ({error.strerror}) nor renames that "
                        "replace nothing, so a new rollout can't appear there as a whole. Move the store to another "
                        "one. Nothing was changed.",
                        errno.EOPNOTSUPP,
                    ) from error

    def unlink(self, name: str) -> None:
        """Take a name away."""
        with self._named(name):
            os.unlink(name, dir_fd=self.descriptor)

    def sync(self) -> None:
        """Make the names survive a power cut."""
        with self._named(""):
            os.fsync(self.descriptor)

    def sweep(self) -> None:
        """Remove what operations that were ended midway have left here.

        Only what is older than a day: no operation takes as long, and if one did, it would fail and change nothing,
        since it could not publish what is gone.
        """
        before = time.time() - _OLD
        with contextlib.suppress(OSError), os.scandir(self.descriptor) as entries:
            for name in [entry.name for entry in entries if is_partial(entry.name)]:
                with contextlib.suppress(OSError):
                    status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_mtime < before:
                        self.unlink(name)

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Let an error name the whole path."""
        try:
            yield
        except OSError as error:
            error.filename, error.filename2 = os.path.join(self.path, name).rstrip("/"), None
            raise

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)

    def enter(self, name: str, *, follow: bool, durable: bool) -> Folder:
        """A folder in this one, made where it is missing; `follow` allows a link in its place."""
        path = os.path.join(self.path, name)
        flags = _FOLDER if follow else _FOLDER | os.O_NOFOLLOW
        made = False
        try:
            try:
                descriptor = os.open(name, flags, dir_fd=self.descriptor)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):  # by another process meanwhile, or a link to nowhere
                    os.mkdir(name, 0o700, dir_fd=self.descriptor)
                    made = True
                descriptor = os.open(name, flags, dir_fd=self.descriptor)
        except OSError as error:
            raise _explain(path, error) from error
        folder = Folder(path, descriptor, self._owner)
        try:
            if made:
                folder._give(descriptor, path)
                if durable:
                    self.sync()
        except BaseException:
            folder.close()
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=self.descriptor)
            raise
        return folder

    def _give(self, descriptor: int, path: str) -> None:
        """To the store's owner, where it is root's."""
        if os.geteuid() != 0 or self._owner[0] == 0 or os.fstat(descriptor).st_uid != 0:
            return
        try:
            os.fchown(descriptor, *self._owner)
        except OSError as error:
            raise UnwritableError(
                f"{path} can't be given to the owner of the store (user {self._owner[0]}): {error.strerror}. "
                "Do this as that user.",
                errno.EACCES,
            ) from error

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self.unlink(name)


@contextlib.contextmanager
def open_folder(root: str, path: str, *, durable: bool = False) -> Iterator[Folder]:
    """The folder at `path` below a store's root (the root itself if it is empty), made part by part where it is
    missing; `durable` makes the new parts survive a power cut.
    """
    folder = Folder(root, os.open(root, _FOLDER), check_owner(root))
    try:
        for number, part in enumerate(part for part in path.split("/") if part):
            deeper = folder.enter(part, follow=number == 0 and part in (SESSIONS, ARCHIVED), durable=durable)
            folder.close()
            folder = deeper
        yield folder
    finally:
        folder.close()


def check_owner(root: str) -> tuple[int, int]:
    """The uid and gid of a store. Raises UnwritableError when it is another user's and we aren't root."""
    status = os.stat(root)
    if os.geteuid() not in (0, status.st_uid):
        raise UnwritableError(
            f"the store {root} belongs to user {status.st_uid}, and this is user {os.geteuid()}: what is made here "
            "could not be opened by its Codex. Do this as that user. Nothing was changed.",
            errno.EACCES,
        )
    return status.st_uid, status.st_gid


def rename_exclusively(folder: int, name: str, other: str) -> None:
    """Rename within an open folder; fails with EEXIST when the name is taken, and with EINVAL or ENOSYS where that
    can't be done.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if libc.renameat2(folder, os.fsencode(name), folder, os.fsencode(other), _NOREPLACE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _explain(path: str, error: OSError) -> OSError | UnwritableError:
    if error.errno == errno.ELOOP or (error.errno in (errno.ENOTDIR, errno.ENOENT) and os.path.islink(path)):
        return UnwritableError(
            f"{path} is a link: nothing is written through it. Put what it leads to in its place, then try again.",
            errno.ELOOP,
        )
    if error.errno == errno.ENXIO:
        return UnwritableError(f"{path} is not a regular file: nothing is written to it.", errno.EINVAL)
    error.filename = path
    return error
