"""The comparisons with other programs run, and say who was left out; what they measure isn't looked at here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import peers
from bench.cases import Settings, Table
from tests.interop.codex import binary

SMALL = Settings(runs=1, scale=400)


def test_codex_on_the_same_store(tmp_path: Path) -> None:
    """Six requests beside our first byte; the store is left without Codex's files."""
    assert binary().exists()
    table = peers.codex(tmp_path, SMALL)
    assert [row[0].partition(":")[0] for row in table.rows[1:4]] == [
        "`thread/list`",
        "`thread/read`",
        "`thread/resume`",
    ]
    assert [row[0].rpartition(" ")[2] for row in table.rows[1:]] == ["first"] * 3 + ["second"] * 3
    assert table.rows[0][2] == "1"


def test_codex_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says what to do, and has no rows."""

    def missing() -> Path:
        raise FileNotFoundError("there is no Codex: run 'make setup'.")

    monkeypatch.setattr(peers, "binary", missing)
    table = peers.codex(tmp_path, SMALL)
    assert table.text == "Left out: there is no Codex: run 'make setup'."
    assert list(table.rows) == []


def test_search(tmp_path: Path) -> None:
    """Small threads, and a large one, each with a ratio."""
    table = peers.search(tmp_path, SMALL)
    assert len(table.rows) == 2
    assert all(float(row[-1]) > 0 for row in table.rows)
    assert ("`rg" in table.text) == (shutil.which("rg") is not None)


@pytest.mark.parametrize(
    "usable", [lambda name: False, lambda name: name in _usable()], ids=["none", "those there are"]
)
def test_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usable: Callable[[str], bool]) -> None:
    """Three walks for each of them; the text names those that can't mount here."""
    monkeypatch.setattr(peers, "_can_mount", usable)
    table: Table = peers.archives(tmp_path, SMALL)
    there = [name for name in ("ratarmount", "borg") if usable(name)]
    assert len(table.rows) == 3 * len(there)
    for name in ("ratarmount", "borg"):
        assert (f"{name} can't mount here" in table.text) == (name not in there)


def _usable() -> set[str]:
    return {name for name in ("ratarmount", "borg") if _CAN_MOUNT(name)}


_CAN_MOUNT = peers._can_mount
