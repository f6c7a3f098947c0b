"""Tables for a terminal: columns as wide as what is in them, cut to the width of the window.

What goes into a pipe or a file is never cut and has no colours, so that `grep` and `awk` find all of it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import click
from rich.cells import cell_len, set_cell_size

from rolloutfs.harmless import harmless

_GAP = "  "
_LEAST = 8  # cells that a column keeps when room is short


class Column(NamedTuple):
    """A heading, and how the cells below it are set. A column that `gives` is narrowed when the window is."""

    heading: str
    gives: bool = False
    is_number: bool = False


class Row(NamedTuple):
    """Cells, and a style of click's for all of them."""

    cells: Sequence[str]
    is_dim: bool = False


def width() -> int | None:
    """Cells of a line of the terminal; None when the output is no terminal and lines may be of any length."""
    return max(shutil.get_terminal_size().columns, 20) if sys.stdout.isatty() else None


def has_colour() -> bool:
    """True where colours may be used (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(line: str, *, is_dim: bool = False, is_bold: bool = False, is_error: bool = False) -> None:
    """A line of output, which must be harmless already."""
    styled = (is_dim or is_bold) and not is_error and has_colour()
    click.echo(click.style(line, dim=is_dim or None, bold=is_bold or None) if styled else line, err=is_error)


def fit(line: str, room: int | None) -> str:
    """A line cut to some cells."""
    if room is None or cell_len(line) <= room:
        return line
    return set_cell_size(line, room - 1).rstrip() + "…"


def show(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    """Print a table; what is in its cells is made harmless."""
    made = [Row([harmless(cell) for cell in row.cells], row.is_dim) for row in rows]
    widths = [
        max(len(column.heading), *(cell_len(row.cells[at]) for row in made), 0) for at, column in enumerate(columns)
    ]
    _narrow(columns, widths, width())
    say(_line(columns, widths, [column.heading for column in columns]), is_bold=True)
    for row in made:
        say(_line(columns, widths, row.cells), is_dim=row.is_dim)


def _narrow(columns: Sequence[Column], widths: list[int], room: int | None) -> None:
    """Take from the widest of the columns that give until the table fits."""
    if room is None:
        return
    excess = sum(widths) + len(_GAP) * (len(columns) - 1) - room
    giving = [at for at, column in enumerate(columns) if column.gives]
    while excess > 0 and giving:
        at = max(giving, key=lambda one: widths[one])
        if widths[at] <= _LEAST:
            break
        widths[at] -= 1
        excess -= 1


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str]) -> str:
    parts = []
    for column, size, cell in zip(columns, widths, cells, strict=True):
        cut = fit(cell, size)
        padding = " " * (size - cell_len(cut))
        parts.append(padding + cut if column.is_number else cut + padding)
    return fit(_GAP.join(parts).rstrip(), width())
