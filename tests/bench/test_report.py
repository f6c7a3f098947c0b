"""The page of benchmarks: what was measured now, and what was measured before."""

from __future__ import annotations

from bench import report
from bench.cases import Settings, Table


def test_a_section_is_replaced_by_its_next_measurement() -> None:
    """Others stay where they are, with the day and the sizes of their own run; the notes come last, once."""
    one, two = (Table(title, "What it is.", ("", "median"), [("row", title)]) for title in ("One", "Two"))
    first = report.page([one, two], Settings(runs=5, scale=4))
    again = report.page([Table("One", "What it is.", ("", "median"), [("row", "new")])], Settings(3, 1), first)
    titles = [line for line in again.split("\n") if line.startswith("## ")]
    notes = [line for line in report.NOTES.read_text().split("\n") if line.startswith("## ")]
    assert titles == ["## One", "## Two", *notes]
    assert "| row | new |" in again
    assert "| row | One |" not in again
    assert "| row | Two |" in again
    assert again.count("3 runs, ") == 1
    assert again.count("**sizes divided by 4**") == 1
