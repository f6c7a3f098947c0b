"""The cases that say what can't be undercut run, and their ratios are sane; the speeds themselves aren't looked at."""

from __future__ import annotations

from pathlib import Path

from bench import limits, walks
from bench.cases import Settings

SMALL = Settings(runs=1, scale=400)


def test_the_steps_of_a_scan(tmp_path: Path) -> None:
    """Each step by itself, the first one being the reference, and the decoding of the end."""
    table = limits.scan(tmp_path, SMALL)
    assert [row[-1] != "" for row in table.rows] == [True] * 4 + [False]
    assert table.rows[0][-1] == "1.00"
    assert list(tmp_path.iterdir()) == []


def test_requests(tmp_path: Path) -> None:
    """Three kinds, each with pyfuse3's loop, with ours, and with handlers that do next to nothing."""
    table = walks.requests(tmp_path, Settings(runs=1, scale=100))
    assert [row[0] for row in table.rows] == ["getattr", "lookup", "read of 4 KiB"]
    assert all(float(ratio) > 0 for row in table.rows for ratio in row[4:])
