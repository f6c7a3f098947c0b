"""The bundled corpus is what the comparisons believe it to be."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import CopyStore
from tests.corpus_store import BUNDLED, CorpusStore, load_expected, store_folders


def test_every_expected_thread_has_a_rollout(corpus_store: CorpusStore) -> None:
    """Each thread that Codex answered for has at least one rollout file in the store."""
    names = [path.name for path in corpus_store.home.rglob("rollout-*")]
    assert corpus_store.threads
    assert [tid for tid in corpus_store.threads if not any(tid in name for name in names)] == []


def test_every_readable_thread_has_a_model_input(corpus_store: CorpusStore) -> None:
    """Where Codex could resume a thread, its input reaches up to the probe's own first item."""
    for thread in corpus_store.threads.values():
        probe = thread["probe"]
        if not probe.get("error"):
            assert len(probe["model_input"]) == probe["probe_start_index"] + 1


def test_databases_are_whole(corpus_store: CorpusStore) -> None:
    """An unpacked database is sound and lists only threads that the store has."""
    for path in corpus_store.home.glob("*.sqlite"):
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as db:
            assert db.execute("pragma integrity_check").fetchone() == ("ok",)
            assert {row[0] for row in db.execute("select id from threads")} <= set(corpus_store.threads)


def test_no_sqlite_variant_has_no_database(corpus_store_no_sqlite: CorpusStore) -> None:
    """The variant without databases keeps every rollout and nothing of SQLite."""
    names = [path.name for path in corpus_store_no_sqlite.home.rglob("*") if path.is_file()]
    assert any(name.startswith("rollout-") for name in names)
    assert not any("sqlite" in name for name in names)


def test_copies_are_independent(copy_store: CopyStore) -> None:
    """What a test changes in its copy is in no other copy."""
    first, second = copy_store("simple.paginated"), copy_store("simple.paginated")
    next(first.home.rglob("rollout-*")).write_bytes(b"")
    assert next(second.home.rglob("rollout-*")).stat().st_size > 0


def test_bundled_corpus_stays_small() -> None:
    """The repository carries less than 8 MB of stores."""
    assert sum(path.stat().st_size for path in BUNDLED.rglob("*") if path.is_file()) < 8_000_000


def test_further_stores_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROLLOUTFS_CORPUS adds stores, also in Codex's own full form, and replaces those of the same name."""
    folder = tmp_path / "simple.paginated"
    folder.mkdir()
    (folder / "expected.json").write_bytes(b'{"thread_list": {"active": [{"id": "t", "more": 1}]}, "threads": {}}')
    monkeypatch.setenv("ROLLOUTFS_CORPUS", str(tmp_path))
    assert store_folders()["simple.paginated"] == folder
    assert load_expected(folder) == {"thread_list": {"active": ["t"]}, "threads": {}}
