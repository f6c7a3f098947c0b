"""The picture in README.md shows what its commands print."""

from __future__ import annotations

import re
from pathlib import Path

from scripts import picture
from tests.mount.clients import need

README = Path(__file__).parents[2] / "README.md"


def test_it_shows_what_happens_now() -> None:
    """Another run of the session has the same commands and output, line by line."""
    need("jq", "jq")
    steps = picture.session()
    lines = [line for step in steps for line in step.lines]
    assert picture.shown(picture.PICTURE.read_text()) == lines
    assert picture.shown(picture.svg(steps)) == lines


def test_it_fetches_nothing() -> None:
    """Whoever shows the picture loads nothing else, no font either, and runs no script; README.md shows it."""
    text = picture.PICTURE.read_text()
    named = re.findall(r"\b(?:https?|data|file):[^\s\"'<>]*|@import|@font-face|<script|<image|href", text)
    assert named == ["http://www.w3.org/2000/svg"]  # the name of the format
    assert all(target.startswith("#session-") for target in re.findall(r"url\(([^)]*)\)", text))
    assert re.search(rf"!\[[^]]+\]\(docs/{picture.PICTURE.name}\)", README.read_text())
