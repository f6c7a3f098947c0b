"""Which rollouts there are, while files are moved."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from threadstore.catalog import Catalog
from threadstore.filestates import FileStates, RememberedStates

THREAD = "01a22938-0000-7000-8000-000000000001"
DAY, ARCHIVE = "sessions/2026/11/30", "archived_sessions"
NAME = f"rollout-2026-11-30T10-00-00-{THREAD}.jsonl"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with both folders and one rollout that isn't archived."""
    for folder in (DAY, ARCHIVE):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / DAY / NAME).write_bytes(b"{}\n")
    return tmp_path


def after(catalog: Catalog, wanted: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, right after a folder was looked at."""
    visit = catalog._visit
    todo = [act]

    def visited(path: str, **how: bool) -> object:
        folder = visit(path, **how)
        if path == wanted and todo:
            todo.pop()()
        return folder

    monkeypatch.setattr(catalog, "_visit", visited)


@pytest.mark.parametrize(("first", "last"), [(ARCHIVE, DAY), (DAY, ARCHIVE)])
def test_a_file_that_is_moved_while_the_folders_are_read_is_not_missed(
    root: Path, first: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever folder is read first: the thread stays, and is found where it is."""
    (root / DAY / NAME).rename(root / last / NAME)
    catalog = Catalog(str(root), FileStates(str(root)))
    assert [rollout.path for rollout in catalog.threads[THREAD]] == [f"{last}/{NAME}"]
    after(catalog, first, lambda: (root / last / NAME).rename(root / first / NAME), monkeypatch)
    catalog.refresh()
    assert THREAD in catalog.threads
    catalog.refresh()
    assert [rollout.path for rollout in catalog.threads[THREAD]] == [f"{first}/{NAME}"]


def test_half_a_move_was_heard_of(root: Path) -> None:
    """Who remembers states was told that the archive lost a file, and not yet that the day got it."""
    (root / DAY / NAME).rename(root / ARCHIVE / NAME)
    os.utime(root / DAY, ns=(0, 0))  # else it was changed so lately that it is read again in any case
    states = RememberedStates(str(root))
    states.start()
    catalog = Catalog(str(root), states)
    catalog.refresh()
    states.lstat(DAY)
    (root / ARCHIVE / NAME).rename(root / DAY / NAME)
    states.forget(ARCHIVE, NAME)
    assert catalog.refresh() == {THREAD}
    assert [rollout.path for rollout in catalog.threads[THREAD]] == [f"{DAY}/{NAME}"]


def test_nothing_of_a_move_was_heard_of(root: Path) -> None:
    """Who finds a file gone may look anew: the system is asked, whatever is remembered."""
    deeper = "sessions/2026/12/01"
    (root / deeper).mkdir(parents=True)
    for folder in (DAY, deeper):
        os.utime(root / folder, ns=(0, 0))
    states = RememberedStates(str(root))
    states.start()
    catalog = Catalog(str(root), states)
    catalog.refresh()
    (root / DAY / NAME).rename(root / deeper / NAME)
    assert catalog.refresh() == set()
    assert catalog.refresh(anew=True) == {THREAD}
    assert [rollout.path for rollout in catalog.threads[THREAD]] == [f"{deeper}/{NAME}"]


def test_moved_to_and_fro_while_it_is_looked_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came and went within one look is where it was left."""
    catalog = Catalog(str(root), FileStates(str(root)))
    catalog.refresh()
    visit = catalog._visit
    places = [DAY, ARCHIVE]

    def visited(path: str, **how: bool) -> object:
        folder = visit(path, **how)
        if path in places:
            here = places[0] if (root / places[0] / NAME).exists() else places[1]
            other = places[1] if here == places[0] else places[0]
            (root / here / NAME).rename(root / other / NAME)
        return folder

    monkeypatch.setattr(catalog, "_visit", visited)
    for _ in range(5):
        catalog.refresh()
    monkeypatch.undo()
    catalog.refresh()
    (found,) = catalog.threads[THREAD]
    assert os.path.exists(root / found.path)


def test_a_deleted_rollout_is_gone(root: Path) -> None:
    """And its thread with it."""
    catalog = Catalog(str(root), FileStates(str(root)))
    assert list(catalog.threads) == [THREAD]
    (root / DAY / NAME).unlink()
    assert catalog.refresh() == {THREAD}
    assert list(catalog.threads) == []


def test_nothing_is_kept_of_generations_that_are_gone(root: Path) -> None:
    """A rollout with an id of its own is found by that, until it is deleted."""
    second = "01a22938-0000-7000-8000-000000000002"
    file = root / DAY / f"rollout-2026-11-30T10-00-00-{THREAD}_{second}.jsonl"
    file.write_bytes(b"{}\n")
    catalog = Catalog(str(root), FileStates(str(root)))
    assert [rollout.path for rollout in catalog.threads[THREAD]] == [f"{DAY}/{NAME}", f"{DAY}/{file.name}"]
    assert [rollout.path for rollout in catalog.of_rollout(second)] == [f"{DAY}/{file.name}"]
    file.unlink()
    assert catalog.refresh() == {THREAD}
    assert catalog.of_rollout(second) == []
    assert catalog._named_otherwise == {}
