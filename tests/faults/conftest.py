"""The home that every test of a fault builds its store in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.logs import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A store with three sound neighbours; afterwards nothing in it has changed and the neighbours say the same."""
    built = Home(tmp_path)
    yield built
    built.check()
