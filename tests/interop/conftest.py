"""Fixtures of the tests with the real Codex."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.corpus_store import copy_home, store_folders
from tests.interop.codex import relocate
from tests.interop.fresh import Author

#: With ROLLOUTFS_INTEROP=all every operation is tried on every thread of every store in every way; otherwise a part
#: of them, in minutes.
EVERYTHING = os.environ.get("ROLLOUTFS_INTEROP") == "all"
FRESH = {"fresh.paginated": "paginated", "fresh.legacy": "legacy"}

MakeHome = Callable[[str, Path], Path]


@pytest.fixture(scope="session")
def fresh_homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, str]]]:
    """Stores that Codex wrote just now, by history mode: the home and the ids of its threads. Not to be changed."""
    homes = {}
    for name, mode in FRESH.items():
        home = tmp_path_factory.mktemp(name) / "home"
        home.mkdir()
        author = Author(home, mode)
        author.write()
        homes[name] = (home, author.threads)
    return homes


@pytest.fixture
def make_home(fresh_homes: dict[str, tuple[Path, dict[str, str]]]) -> MakeHome:
    """A function that copies a store, fresh or of the corpus, into a folder; Codex can use the copy."""

    def make(name: str, folder: Path) -> Path:
        home = folder / "home"
        if name in FRESH:
            shutil.copytree(fresh_homes[name][0], home)
        else:
            copy_home(store_folders()[name], home)
        relocate(home)
        return home

    return make


@pytest.fixture
def fresh_threads(fresh_homes: dict[str, tuple[Path, dict[str, str]]]) -> dict[str, dict[str, str]]:
    """The ids of the threads of the fresh stores, by what is special about them."""
    return {name: threads for name, (_, threads) in fresh_homes.items()}
