"""`rolloutfs demo`: the sample store in a folder of its own, mounted beside it.

Nothing is ever removed but what a demo that failed has made itself: the store may be changed while it is mounted, and
what was done there is whoever did it's to throw away.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rolloutfs import checks, mounttable, sample
from rolloutfs.errors import Exit, MountError
from rolloutfs.harmless import json_line
from rolloutfs.invocation import default_store, own_command, where_shells_must_look
from rolloutfs.wording import shell_word

_STORE = "codex-home"
_MOUNTPOINT = "threads"
_HOW = ("--background", "--read-write", "--no-index")  # an index would stay in the user's cache


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demo lies; paths are absolute. A folder that `is_new` was made for it."""

    folder: Path
    is_new: bool

    @property
    def store(self) -> Path:
        """A copy of the sample store."""
        return self.folder / _STORE

    @property
    def mountpoint(self) -> Path:
        """Where it is mounted."""
        return self.folder / _MOUNTPOINT


def demo(folder: str | None, say: Callable[[str], None], *, as_json: bool) -> None:
    """Copy and mount the sample store below a folder that is empty or isn't there, or a fresh one, and say what to try.

    Raises MountError; then nothing is left of it.
    """
    checks.fuse()
    place = _place(folder)
    with _removed_on_failure(place):
        try:
            sample.unpack(place.store)
            place.mountpoint.mkdir()
        except OSError as error:
            told = f"The sample store can't be made in {place.folder}: {error.strerror}."
            raise MountError(told, Exit.FAILED) from error
        notes = _mount(place)
    if as_json:
        say(json_line(_document(place, notes)))
    else:
        for line in (*notes, *_told(place)):
            say(line)


def _place(folder: str | None) -> Place:
    """The folder, made if it isn't there. Raises MountError when it can't be used."""
    if folder is None:
        return Place(_temporary(), is_new=True)
    path = Path(os.path.realpath(folder))
    _outside_of_own_store(folder, path)
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return Place(path, is_new=_make(folder, path))
    except NotADirectoryError:
        raise MountError(
            f"{folder} is not a folder. Give one that is empty or isn't there yet.", Exit.MOUNTPOINT
        ) from None
    except OSError as error:
        raise MountError(f"{folder} can't be read ({error.strerror}). Give another folder.", Exit.MOUNTPOINT) from None
    place = Place(path, is_new=False)
    if {_STORE, _MOUNTPOINT} <= set(names):
        again = f"rolloutfs mount {shell_word(str(place.store))} {shell_word(str(place.mountpoint))}"
        raise MountError(f"There is a demo in {folder} already. To mount that again: {again}", Exit.MOUNTPOINT)
    if names:
        raise MountError(
            f"{folder} is not empty. Give a folder that is empty or isn't there yet, or none for a temporary one.",
            Exit.MOUNTPOINT,
        )
    return place


def _mount(place: Place) -> list[str]:
    """What `rolloutfs mount` says: a server is known by its command line, so it is called as anybody would call it."""
    command = [*own_command(), "mount", *_HOW, str(place.store), str(place.mountpoint)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        why = os.fsdecode(done.stderr).strip().removeprefix("rolloutfs: ")
        code = Exit(done.returncode) if done.returncode in set(Exit) else Exit.INTERNAL
        raise MountError(why or f"{command[0]} ended with {done.returncode}.", code)
    return os.fsdecode(done.stdout).splitlines()


def _outside_of_own_store(folder: str, path: Path) -> None:
    try:
        own = checks.store_root(default_store())
    except MountError:  # who has no store can't put a sample into it
        return
    checks.apart(folder, str(path), own)


def _temporary() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="rolloutfs-demo-")).resolve()
    except OSError as error:
        told = f"No temporary folder can be made ({error.strerror}). Give a folder: rolloutfs demo FOLDER"
        raise MountError(told, Exit.MOUNTPOINT) from None


def _make(folder: str, path: Path) -> bool:
    try:
        path.mkdir()
    except FileNotFoundError:
        parent = os.path.dirname(path)
        told = f"{parent} does not exist. Make it first: mkdir -p {shell_word(parent)}"
        raise MountError(told, Exit.MOUNTPOINT) from None
    except OSError as error:
        raise MountError(f"{folder} can't be made: {error.strerror}.", Exit.MOUNTPOINT) from None
    return True


@contextlib.contextmanager
def _removed_on_failure(place: Place) -> Iterator[None]:
    """Without a mount nothing of a demo is left."""
    try:
        yield
    except BaseException:
        if mounttable.find(str(place.mountpoint)) is None:
            shutil.rmtree(place.store, ignore_errors=True)
            with contextlib.suppress(OSError):
                place.mountpoint.rmdir()
            with contextlib.suppress(OSError):
                if place.is_new:
                    place.folder.rmdir()
        raise


def _end(place: Place) -> list[str]:
    return [f"rolloutfs umount {shell_word(str(place.mountpoint))}", f"rm -r {shell_word(str(place.folder))}"]


def _told(place: Place) -> Iterator[str]:
    yield ""
    yield "It is a copy of a sample store, yours to change. Worth trying:"
    yield ""
    folder = where_shells_must_look()
    if folder is not None:
        yield "  # The command is not where your shell looks"
        yield f'  PATH={shell_word(folder)}:"$PATH"'
    yield f"  cd {shell_word(str(place.mountpoint))}"
    for about, command in sample.TOUR:
        yield f"  # {about}"
        yield f"  {command}"
    yield "  # Families of threads, from the store itself; rolloutfs --help has more"
    yield f"  rolloutfs tree --store {shell_word(str(place.store))}"
    yield ""
    yield "To end it; umount removes nothing, so the store stays until you remove it:"
    yield ""
    yield f"  cd; {' && '.join(_end(place))}"


def _document(place: Place, notes: list[str]) -> dict[str, object]:
    return {
        "folder": str(place.folder),
        "store": str(place.store),
        "mountpoint": str(place.mountpoint),
        "try": [{"about": about, "command": command} for about, command in sample.TOUR],
        "end": _end(place),
        "notes": notes,
    }
