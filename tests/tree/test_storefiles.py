"""`rolloutfs.storefiles`: nothing outside the store is reached, by either way of opening (FAULTS 24)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolloutfs import beneath
from rolloutfs.storefiles import StoreFiles

DAY = "sessions/2026/05"


@pytest.fixture(params=["openat2", "parts"])
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreFiles:
    """A store whose `sessions` is a link, with all kinds of things in it."""
    if request.param == "parts":
        monkeypatch.setattr(beneath, "IS_AVAILABLE", False)
    elif not beneath.IS_AVAILABLE:
        pytest.skip("this system has no openat2(2): Linux 5.6 has it")
    store, disk, outside = (tmp_path / name for name in ("store", "disk", "outside"))
    store.mkdir()
    (disk / "2026" / "05").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (store / "sessions").symlink_to(disk)
    (store / "session_index.jsonl").write_text("index")
    day = disk / "2026" / "05"
    (day / "file").write_text("content")
    (day / "folder").mkdir()
    (day / "link").symlink_to(day / "file")
    (disk / "2026" / "06").symlink_to(day)
    (disk / "out").symlink_to(outside)
    os.mkfifo(day / "fifo")
    return StoreFiles(str(store))


@pytest.mark.parametrize(("path", "content"), [(f"{DAY}/file", b"content"), ("session_index.jsonl", b"index")])
def test_files_are_opened(files: StoreFiles, path: str, content: bytes) -> None:
    """Regular files below a `sessions` that is a link, and beside it."""
    descriptor = files.open(path)
    try:
        assert os.read(descriptor, 100) == content
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "path",
    [
        f"{DAY}/link",
        f"{DAY}/fifo",
        f"{DAY}/folder",
        f"{DAY}/nothing",
        f"{DAY}/../05/file",
        f"{DAY}/./file",
        "sessions/2026/06/file",
        "sessions/out/secret",
        "sessions/../session_index.jsonl",
        "elsewhere/file",
    ],
)
def test_nothing_else_is(files: StoreFiles, path: str) -> None:
    """Links, in any part of a path, and what is no regular file aren't there for us; no descriptor is left."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((FileNotFoundError, NotADirectoryError)):
        files.open(path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("path", ["sessions/2026/06/file", "sessions/out/secret", f"{DAY}/../05/file"])
def test_no_state_is_told_through_a_link(files: StoreFiles, path: str) -> None:
    """`stat` and listings neither."""
    with pytest.raises((FileNotFoundError, NotADirectoryError)):
        files.stat(path)
    with pytest.raises((FileNotFoundError, NotADirectoryError)):
        files.entries(os.path.dirname(path))


def test_entries(files: StoreFiles) -> None:
    """A listing has regular files and folders."""
    assert [name for name, _ in files.entries(DAY)] == ["file", "folder"]
