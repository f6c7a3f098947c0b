"""What can be wrong with a mount, as a sentence for the person who typed the command, and an exit code for scripts."""

from __future__ import annotations

from enum import IntEnum

from rolloutfs.wording import printable


class Exit(IntEnum):
    """Exit codes; `rolloutfs --help` documents them."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    STORE = 3
    MOUNTPOINT = 4
    FUSE = 5
    DEAD_MOUNT = 6
    BUSY = 7
    REFUSED = 8
    FAILED = 9
    PROBLEMS = 10
    UNTOLD = 11
    INTERRUPTED = 130


class MountError(Exception):
    """A mount or unmount that can't be done; `message` says what to do about it."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.message = printable(message)
        self.code = code


class UnprintableError(OSError):
    """The output can't be written."""
