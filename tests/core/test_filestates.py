"""States of files: asked for each time, or once for whoever hears of changes."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import pytest
from threadstore.filestates import FileStates, RememberedStates


@pytest.fixture
def remembered(tmp_path: Path) -> RememberedStates:
    """A store with one file in a folder, and what is remembered of it."""
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "a").write_bytes(b"1")
    states = RememberedStates(str(tmp_path))
    states.start()
    return states


def grow(states: FileStates) -> None:
    """The file has a second byte."""
    with open(os.path.join(states.root, "sessions/a"), "ab") as file:
        file.write(b"2")


def test_each_time(tmp_path: Path, remembered: RememberedStates) -> None:
    """Nothing is remembered."""
    states = FileStates(str(tmp_path))
    assert states.lstat("sessions/a").st_size == 1
    grow(remembered)
    assert states.lstat("sessions/a").st_size == 2
    assert states.basis("sessions/b") == ("sessions/b", 0, 0, 0, 0)


def test_until_it_is_told(remembered: RememberedStates) -> None:
    """What was asked for once holds until somebody says that it changed, also that nothing was there."""
    assert remembered.lstat("sessions/a").st_size == 1
    assert remembered.basis("sessions/b").ino == 0
    grow(remembered)
    Path(remembered.root, "sessions/b").touch()
    assert remembered.lstat("sessions/a").st_size == 1
    assert remembered.basis("sessions/b").ino == 0
    remembered.forget("sessions", "a")
    assert remembered.lstat("sessions/a").st_size == 2
    assert remembered.basis("sessions/b").ino == 0
    remembered.forget("sessions", "b")
    assert remembered.basis("sessions/b").ino != 0


def test_names_of_the_root(remembered: RememberedStates) -> None:
    """The same list until something in the root changed."""
    names = remembered.names()
    Path(remembered.root, "state_5.sqlite").touch()
    assert remembered.names() is names
    remembered.forget("", "state_5.sqlite")
    assert sorted(remembered.names()) == ["sessions", "state_5.sqlite"]


def test_what_is_made_of_several(remembered: RememberedStates) -> None:
    """It holds until something happens; and only then, where nobody tells of it."""
    changes = remembered.changes
    assert changes is not None
    remembered.lstat("sessions/a")
    assert remembered.changes == changes
    remembered.forget("sessions", "a")
    after = remembered.changes
    remembered.forget_all()
    assert len({changes, after, remembered.changes}) == 3
    remembered.stop()
    assert _changes(remembered) is None
    assert _changes(FileStates(remembered.root)) is None


def _changes(states: FileStates) -> int | None:
    return states.changes


def test_without_anybody_who_tells(remembered: RememberedStates) -> None:
    """Before `start` and after `stop` the system is asked each time."""
    assert remembered.lstat("sessions/a").st_size == 1
    remembered.stop()
    grow(remembered)
    assert remembered.lstat("sessions/a").st_size == 2
    assert remembered.names() is not remembered.names()


def test_bounded(tmp_path: Path) -> None:
    """The oldest answers are dropped."""
    states = RememberedStates(str(tmp_path), most=2)
    states.start()
    for name in "abc":
        (tmp_path / name).write_bytes(b"1")
        states.lstat(name)
        (tmp_path / name).write_bytes(b"22")
    assert [states.lstat(name).st_size for name in "cba"] == [1, 1, 2]


class Large:
    """What a caller has at hand."""


def test_no_caller_is_kept(remembered: RememberedStates) -> None:
    """That a file isn't there is remembered, and not who asked with all that they had."""

    def ask() -> weakref.ref[Large]:
        large = Large()
        assert remembered.basis("sessions/none").ino == 0
        return weakref.ref(large)

    assert ask()() is None
    assert "sessions/none" in remembered._known
