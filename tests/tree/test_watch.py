"""What a watch on a store tells of, by real events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from inotify_simple import INotify, flags
from threadstore.filestates import RememberedStates

from rolloutfs import mounttable
from rolloutfs.watch import Changes, Watch, open_watch

DAY = "sessions/2026/01/01"


@dataclass
class Ear:
    """A watched store, and what was heard of it."""

    root: Path
    states: RememberedStates
    heard: list[Changes] = field(default_factory=list)
    watch: Watch | None = None

    def listen(self) -> Changes:
        """All that happened since the last time."""
        assert self.watch is not None
        self.heard.clear()
        self.watch.drain()
        sum_ = Changes()
        for changes in self.heard:
            sum_.files |= changes.files
            sum_.folders |= changes.folders
            sum_.everything = sum_.everything or changes.everything
        return sum_


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    """A store with one file."""
    (tmp_path / DAY).mkdir(parents=True)
    (tmp_path / DAY / "a").write_bytes(b"1")
    ear = Ear(tmp_path, RememberedStates(str(tmp_path)))
    ear.watch = open_watch(str(tmp_path), ear.states, ear.heard.append)
    assert ear.watch is not None
    yield ear
    ear.watch.close()


def test_every_kind_of_change(ear: Ear) -> None:
    """Written, renamed, made, removed: all heard of before the next answer, and no longer remembered."""
    assert ear.listen() == Changes()
    before = ear.states.lstat(f"{DAY}/a")
    with (ear.root / DAY / "a").open("ab") as file:
        file.write(b"2")
    assert ear.listen().files == {f"{DAY}/a"}
    assert ear.states.lstat(f"{DAY}/a").st_size == before.st_size + 1
    (ear.root / DAY / "a").chmod(0o400)
    assert ear.listen().files == {f"{DAY}/a"}
    os.rename(ear.root / DAY / "a", ear.root / DAY / "b")
    changes = ear.listen()
    assert changes.files == {f"{DAY}/a", f"{DAY}/b"}
    assert changes.folders == {DAY}
    (ear.root / DAY / "b").unlink()
    assert f"{DAY}/b" in ear.listen().files
    (ear.root / "state_5.sqlite-wal").touch()
    assert "state_5.sqlite-wal" in ear.listen().files
    assert ear.listen() == Changes()


def test_folders_that_come_later(ear: Ear) -> None:
    """A new folder, what was put into it before we knew, and what is put there afterwards."""
    (ear.root / "sessions/2027/02/03").mkdir(parents=True)
    (ear.root / "sessions/2027/02/03/c").touch()
    assert ear.listen().folders
    (ear.root / "sessions/2027/02/03/d").touch()
    assert ear.listen().files == {"sessions/2027/02/03/d"}
    (ear.root / "archived_sessions").mkdir()
    assert ear.listen().folders
    (ear.root / "archived_sessions/e").touch()
    assert ear.listen().files == {"archived_sessions/e"}


def test_a_full_queue(ear: Ear) -> None:
    """When the kernel had to drop events, anything may have happened."""
    assert ear.watch is not None
    ear.states.lstat(f"{DAY}/a")
    changes = Changes()
    ear.watch._note(-1, flags.Q_OVERFLOW, "", changes)
    assert changes.everything
    assert ear.watch.is_active


def test_a_store_that_is_taken_away(ear: Ear) -> None:
    """A watch ends with the folder that it is on; from then on nothing is remembered."""
    assert ear.watch is not None
    os.rename(ear.root, ear.root.with_name("away"))
    try:
        assert ear.listen().everything
        assert not ear.watch.is_active
        with pytest.raises(FileNotFoundError):
            ear.states.lstat(f"{DAY}/a")
    finally:
        os.rename(ear.root.with_name("away"), ear.root)
    assert ear.states.lstat(f"{DAY}/a").st_size == 1


def test_where_nothing_is_told(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    """No watch on a network file system, nor where the system's limits don't allow one."""
    states = RememberedStates(str(ear.root))
    with monkeypatch.context() as patch:
        patch.setattr(mounttable, "filesystem", lambda _: "nfs4")
        assert open_watch(str(ear.root), states, ear.heard.append) is None

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(INotify, "add_watch", refuse)
        assert open_watch(str(ear.root), states, ear.heard.append) is None
    assert states.names() is not states.names()


def test_the_file_system_of_a_path(tmp_path: Path) -> None:
    """As the table of mounts says."""
    assert mounttable.filesystem("/proc/self") == "proc"
    assert mounttable.filesystem(str(tmp_path / "none")) == ""
