"""92 more stores that the real Codex 0.171.0 wrote, by random operations, agree with what it rebuilt from them.

`tests/corpus/generated.tar.zst` holds them in the form of the corpus: turns with and without tools, interrupts, kills,
compactions, forks, reverts, archiving, torn tails, and hand-made rollback markers and checkpoints of every kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.core.conftest import Agreement
from tests.core.reading import content


def differences(store: ThreadStore, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each thread of a store with the names of the views that differ from Codex's answers."""
    answers = json.loads((folder / "expected.json").read_bytes())["threads"]
    inputs = json.loads((folder / "inputs.json").read_bytes())
    for thread_id, expected in answers.items():
        found = []
        lines = content(store, store.project(thread_id, View.MODEL_INPUT)).split(b"\n")[:-1]
        history = inputs[thread_id][1 : expected["probe"]["probe_start_index"]]  # [0] is the base instructions
        if [json.loads(line) for line in lines] != history:
            found.append("model_input")
        rows = map(json.loads, content(store, store.project(thread_id, View.TURNS)).split(b"\n")[:-1])
        turns = [(row["id"], row["status"]) for row in rows if row["effective"]]
        if isinstance(expected["turns"], list) and turns != [(t["id"], t["status"]) for t in expected["turns"]]:
            found.append("turns")
        yield thread_id, found


@pytest.mark.parametrize("sqlite", [True, False], ids=["with SQLite", "without SQLite"])
def test_generated_stores_agree(generated: Path, tmp_path: Path, agreement: Agreement, *, sqlite: bool) -> None:
    """Model input and turns of every thread equal Codex's, with and without its databases."""
    wrong, threads = [], 0
    for folder in sorted(generated.iterdir()):
        home = folder / "codex_home"
        if not sqlite:
            for database in home.glob("*.sqlite*"):
                database.unlink()
        store = ThreadStore(str(home), Spool(str(tmp_path / folder.name)))
        for thread_id, found in differences(store, folder):
            threads += 1
            way = "generated, " + ("with SQLite" if sqlite else "without SQLite")
            wrong += agreement.note(way, folder.name, thread_id, found)
    assert threads == 241
    assert wrong == []
