"""Fixtures that give the stores of the corpus; `tests/corpus_store.py` says where they are.

* `corpus_store`: a test that takes it runs once for every store.  Its home is shared: read only.
* `corpus_store_no_sqlite`: the same with every database deleted.
* `corpus`: a function from a store's name to that store, shared likewise.
* `copy_store`: a function from a store or its name to a copy that the test may change.
* `patterns`: what masks secrets, compiled.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, settings
from threadstore.masking import Masker

from tests import witness
from tests.corpus_store import CorpusStore, copy_home, load_expected, store_folders


class Corpus(Protocol):
    """Gives a store by name; with `sqlite=False` one without databases."""

    def __call__(self, name: str, *, sqlite: bool = True) -> CorpusStore: ...  # noqa: D102 - described above


class CopyStore(Protocol):
    """Makes a copy of a store that the test may change."""

    def __call__(self, store: CorpusStore | str, *, sqlite: bool = True) -> CorpusStore: ...  # noqa: D102 - described above


# `make test` tries the same examples everywhere, so that what passes here passes in CI; HYPOTHESIS_PROFILE=random tries
# others each time, and =hunt looks for rarer faults, for as long as it takes.
settings.register_profile("random", deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", parent=settings.get_profile("random"), derandomize=True, print_blob=True)
settings.register_profile("hunt", parent=settings.get_profile("random"), max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

witness.install()  # whatever a test does: no operation changes a fact, or anything outside its store

LAYERS = ("core", "tree", "operations", "commands", "mount", "faults", "system", "interop", "bench")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs lower layers first, so that the first failure shown is the deepest one."""

    def layer(item: pytest.Item) -> int:
        folder = item.path.parent.name
        return LAYERS.index(folder) if folder in LAYERS else len(LAYERS)

    items.sort(key=layer)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that asks for a store of the corpus once for each."""
    for fixture in ("corpus_store", "corpus_store_no_sqlite"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, list(store_folders()), indirect=True)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Every store by name, each unpacked once a session."""
    folders = store_folders()
    unpacked: dict[tuple[str, bool], CorpusStore] = {}
    root = tmp_path_factory.mktemp("corpus")

    def get(name: str, *, sqlite: bool = True) -> CorpusStore:
        key = (name, sqlite)
        if key not in unpacked:
            home = copy_home(folders[name], root / ("sqlite" if sqlite else "no_sqlite") / name, sqlite=sqlite)
            unpacked[key] = CorpusStore(name, home, load_expected(folders[name]))
        return unpacked[key]

    return get


@pytest.fixture
def corpus_store(request: pytest.FixtureRequest, corpus: Corpus) -> CorpusStore:
    """One store of the corpus after the other."""
    return corpus(request.param)


@pytest.fixture
def corpus_store_no_sqlite(request: pytest.FixtureRequest, corpus: Corpus) -> CorpusStore:
    """One store of the corpus after the other, with every SQLite file deleted."""
    return corpus(request.param, sqlite=False)


@pytest.fixture
def copy_store(corpus: Corpus, tmp_path: Path) -> CopyStore:
    """Copies of stores below the test's own folder."""
    folders = store_folders()
    number = count(1)

    def copy(store: CorpusStore | str, *, sqlite: bool = True) -> CorpusStore:
        original = corpus(store) if isinstance(store, str) else store
        home = copy_home(folders[original.name], tmp_path / f"store-{next(number)}", sqlite=sqlite)
        return replace(original, home=home)

    return copy


@pytest.fixture(scope="session")
def patterns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what masks secrets, compiled once; read only."""
    folder = tmp_path_factory.mktemp("patterns")
    folder.chmod(0o700)
    Masker(str(folder)).load()
    return folder
