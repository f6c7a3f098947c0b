"""Fixtures of the tests of operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.operations.nursery import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """The process in which operations are stopped and refused."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as started:
        yield started
