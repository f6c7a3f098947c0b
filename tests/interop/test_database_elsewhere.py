"""Codex's databases need not lie in its home: who reverts a thread tells Codex where it looks."""

from __future__ import annotations

from pathlib import Path

import pytest
from threadstore.projection import View

from tests.interop.codex import Codex, databases
from tests.interop.conftest import MakeHome
from tests.interop.following import Following, lines, open_store, remembered
from tests.interop.model_server import ModelServer

NAME = "fresh.paginated"


@pytest.mark.parametrize("way", ["config", "variable", "link", "linked config"])
def test_codex_goes_on_from_a_revert(
    way: str,
    make_home: MakeHome,
    fresh_threads: dict[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A revert and its undo, with the database in another folder or behind a link, are in force for both of us."""
    home, aside = make_home(NAME, tmp_path), tmp_path / "state"
    thread_id = fresh_threads[NAME]["plain"]
    aside.mkdir()
    config, variables = "", {}
    for path in databases(home) if way == "link" else home.glob("*.sqlite*"):
        path.rename(aside / path.name)
        if way == "link":
            path.symlink_to(aside / path.name)
    if way == "variable":
        variables = {"CODEX_SQLITE_HOME": str(aside)}
        monkeypatch.setenv("CODEX_SQLITE_HOME", str(aside))
    elif way != "link":
        config = f'sqlite_home = "{aside}"\n'
        place = aside / "config.toml" if way == "linked config" else home / "config.toml"
        place.write_text(config)
        if place.parent != home:
            (home / "config.toml").symlink_to(place)
    store = open_store(home)
    before = remembered(store, thread_id)
    outcome = store.revert(thread_id, "-1")
    reverted = remembered(store, thread_id)
    assert reverted != before
    with ModelServer() as model, Codex(home, model, config=config, variables=variables) as codex:
        following = Following(codex, store)
        following.answers(thread_id)
        assert lines(store, thread_id, View.TURNS)[-1]["effective"]
        assert remembered(store, thread_id)[: len(reverted)] == reverted
    assert store.head(thread_id).path == outcome.rollout
    store.undo(thread_id)
    with ModelServer() as model, Codex(home, model, config=config, variables=variables) as codex:
        Following(codex, store).goes_on(thread_id)
    assert remembered(store, thread_id)[: len(before)] == before
    assert [path.name for path in home.glob("state_*.sqlite") if not path.is_symlink()] == []
