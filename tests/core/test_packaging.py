"""The project's own files agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def project() -> dict[str, Any]:
    """The `project` table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def test_every_dependency_is_explained(project: dict[str, Any]) -> None:
    """docs/dependencies.md has one line for each dependency, and no line for anything else."""
    optional = project["optional-dependencies"]
    required = [*project["dependencies"], *optional["secrets"], *optional["dev"]]
    named = [match.group() for requirement in required if (match := re.match(r"[\w-]+", requirement))]
    text = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| ([a-z][\w-]*) \|", text, re.MULTILINE)
    assert [name for name in explained if name != "package"] == named


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    """Every link of a page to a file of the repository finds it, and the heading that it names."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), target
        if heading:
            assert heading in headings(file.read_text(encoding="utf-8")), f"{target}#{heading}"


def headings(text: str) -> set[str]:
    """The names that links call the headings of a page by, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_found() -> None:
    """The README leads to each page of docs/."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in (ROOT / "docs").glob("*.md") if f"(docs/{path.name}" not in readme] == []


def test_readme_names_only_existing_make_targets() -> None:
    """Every `make TARGET` that the README shows is in the Makefile."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"\bmake ([a-z]+)", readme))
    assert {"demo", "test"} <= targets
    assert targets <= set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
