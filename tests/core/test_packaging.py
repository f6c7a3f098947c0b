"""The project's own files agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from threadstore.projection import FamilyView, StoreView, View

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def project() -> dict[str, Any]:
    """The `project` table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def test_every_dependency_is_explained(project: dict[str, Any]) -> None:
    """docs/dependencies.md has one line for each dependency, and no line for anything else."""
    required = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    named = [match.group() for requirement in required if (match := re.match(r"[\w-]+", requirement))]
    text = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| ([a-z][\w-]*) \|", text, re.MULTILINE)
    assert [name for name in explained if name != "package"] == named


@pytest.mark.parametrize("name", [view.value for views in (View, StoreView, FamilyView) for view in views])
def test_readme_tells_of_every_file(name: str) -> None:
    """The README says what each file of the tree is."""
    assert f"`{name}`" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_names_only_existing_make_targets() -> None:
    """Every `make TARGET` that the README shows is in the Makefile."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"\bmake ([a-z]+)", readme))
    assert {"demo", "test"} <= targets
    assert targets <= set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
