"""How a new rollout gets its name, also where there are no hard links, and what becomes of one that never got it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from threadstore import folders
from threadstore.cut import Boundary
from threadstore.errors import UnwritableError
from threadstore.folders import open_folder
from threadstore.names import is_partial, parse_rollout, partial_of
from threadstore.operations import Outcome
from threadstore.projection import StoreView
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs.control import Request
from rolloutfs.perform import perform
from tests.conftest import CopyStore
from tests.core.reading import content
from tests.operations.snapshots import turns_of

NAME = "rollout-2026-01-01T00-00-00-01a22938-0000-7000-8000-00000000000a.jsonl"
DAY = 24 * 60 * 60
#: Each makes a new file: store, operation, and how many turns fewer count afterwards.
CASES: dict[str, tuple[str, Callable[[ThreadStore, str], Outcome]]] = {
    "fork by reference": ("forks.paginated", lambda store, thread: store.fork(thread, Boundary("latest"))),
    "fork by copy": ("forks.legacy", lambda store, thread: store.fork(thread, Boundary("latest"))),
    "revert": ("forks.paginated", lambda store, thread: store.revert(thread, "-1")),
    "decompressed": ("compressed.legacy", lambda store, thread: store.revert(thread, "-1")),
}
EACH = pytest.mark.parametrize("case", CASES)


def opened(home: Path) -> ThreadStore:
    """The store, seen anew."""
    return ThreadStore(str(home), Spool(f"{home}.spool"))


def long_thread(store: ThreadStore) -> str:
    """One with turns to take back; a compressed one, where there is any."""
    threads = [one for one in store.thread_ids() if len(turns_of(store, one)) >= 2]
    return next((one for one in threads if store.head(one).compressed), threads[0])


def contents(home: Path) -> dict[str, bytes]:
    """Every file of the store but locks."""
    return {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file() and path.suffix != ".lock"}


def no_links(*_: object, **__: object) -> NoReturn:
    """What FAT, exFAT and some network file systems say."""
    raise OSError(errno.EPERM, os.strerror(errno.EPERM), ".partial", None, NAME)


@EACH
def test_without_hard_links(case: str, copy_store: CopyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that replaces nothing does the same, and leaves nothing."""
    name, operation = CASES[case]
    home = copy_store(name).home
    thread = long_thread(opened(home))
    before = turns_of(opened(home), thread)
    monkeypatch.setattr(os, "link", no_links)
    outcome = operation(opened(home), thread)
    assert outcome.rollout is not None
    assert (home / outcome.rollout).stat().st_nlink == 1
    kept = before if outcome.op == "fork" else before[:-1]
    assert len(turns_of(opened(home), outcome.thread_id)) == len(kept)
    assert not list(home.rglob("*.partial"))


def test_without_hard_links_nothing_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with them, and the error names the file by its whole path."""
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / NAME).write_bytes(b"there")
    for _ in range(2):
        with open_folder(str(tmp_path), "") as folder, pytest.raises(FileExistsError) as caught:
            folder.publish("new", NAME)
        assert caught.value.filename == str(tmp_path / NAME)
        assert (tmp_path / NAME).read_bytes() == b"there"
        monkeypatch.setattr(os, "link", no_links)


@EACH
@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_with_neither(case: str, code: int, copy_store: CopyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system is blamed, and nobody's rights; nothing is changed and nothing is left."""
    name, operation = CASES[case]
    home = copy_store(name).home
    thread = long_thread(opened(home))
    before = contents(home)

    def fail(*_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(folders, "rename_exclusively", fail)
    with pytest.raises(UnwritableError, match="neither hard links"):
        operation(opened(home), thread)
    request = Request("fork", "latest") if "fork" in case else Request("revert", "before", "-1")
    result = perform(opened(home), thread, request)
    assert result.answer["error"] in ("EOPNOTSUPP", "ENOTSUP")
    assert f"{home}/sessions" in result.answer["message"]
    assert "Ask as the user" not in result.answer["message"]
    assert contents(home) == before


@EACH
def test_what_was_left_is_removed(case: str, copy_store: CopyStore) -> None:
    """By the next operation that makes a file there, once it is a day old; nothing else is."""
    name, operation = CASES[case]
    home = copy_store(name).home
    thread = long_thread(opened(home))
    outcome = operation(opened(home), thread)
    assert outcome.rollout is not None
    folder = (home / outcome.rollout).parent
    (folder / partial_of(NAME, "4711")).write_bytes(b"{}\n")
    (folder / partial_of(NAME, "01a22938-0000-7000-8000-00000000000b")).write_bytes(b"{}\n")
    (folder / f".{NAME}.txt.partial").write_bytes(b"another's")
    (folder / ".partial").write_bytes(b"another's")
    (folder / partial_of(NAME, "b")).symlink_to(".partial")
    for path in folder.iterdir():
        os.utime(path, (time.time() - 2 * DAY,) * 2, follow_symlinks=False)
    (folder / partial_of(NAME, "a")).write_bytes(b"{}\n")
    there = {path.name for path in folder.iterdir()}
    store = opened(home)
    if case == "decompressed":
        thread = next(one for one in store.thread_ids() if store.head(one).compressed)
        assert (home / store.head(thread).path).parent == folder
    operation(store, thread)
    gone = there - {path.name for path in folder.iterdir()} - {Path(store.head(thread).path).name + ".zst"}
    gone = {name for name in gone if parse_rollout(name) is None}
    assert gone == {partial_of(NAME, "4711"), partial_of(NAME, "01a22938-0000-7000-8000-00000000000b")}


def test_what_was_left_is_told(copy_store: CopyStore) -> None:
    """What it is, and that it may go; it is no stranger's file."""
    home = copy_store("forks.paginated").home
    path = next(home.rglob("rollout-*"))
    partial = path.with_name(partial_of(NAME, "4711"))
    partial.write_bytes(path.read_bytes())
    store = opened(home)
    (line,) = content(store, store.project_store(StoreView.PROBLEMS)).split(b"\n")[:-1]
    assert b'"unfinished_rollout"' in line
    assert partial.name.encode() in line
    assert b"never in force" in line
    assert b"may be removed" in line


def test_names_of_partial_files() -> None:
    """No rollout has one, and nothing else does."""
    compressed = NAME.replace(".jsonl", "_01a22938-0000-7000-8000-00000000000b.jsonl.zst")
    for name in (NAME, compressed):
        assert is_partial(partial_of(name, "01a22938-0000-7000-8000-00000000000b"))
        assert parse_rollout(f"sessions/{partial_of(name, '1')}") is None
    for name in (NAME, f".{NAME}.partial", f".{NAME}.x.partial", f"{NAME}.1.partial", ".x.1.partial", ".1.partial"):
        assert not is_partial(name)
