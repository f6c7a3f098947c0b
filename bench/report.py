"""`docs/benchmarks.md`: the tables of a run, and the machine that it ran on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bench.cases import Settings, Table

_LIBRARIES = ("pyfuse3", "trio", "trio-parallel", "orjson", "zstandard")


NOTES = Path(__file__).with_name("notes.md")


def page(tables: Iterable[Table], settings: Settings, before: str = "") -> str:
    """The whole page, in Markdown. Sections of the page `before` that weren't measured anew stay as they are."""
    kept = dict(_sections(before))
    made = {table.title: f"{section(table)}\n\n{_made(table, settings)}" for table in tables}
    parts = [
        "# Benchmarks",
        "Made by `make bench`; not edited by hand. Medians; ± is half the distance from the "
        "fastest to the slowest, as a part of the median. Client, server and workers share one core, since a wakeup on "
        "another core of a virtual machine costs more than a request, and every case takes turns with its reference. "
        "Look at the ratios: the absolute figures are those of one machine.",
        machine(),
        *(kept | made).values(),
        NOTES.read_text(encoding="utf-8").strip(),
    ]
    return "\n\n".join(parts) + "\n"


def _made(table: Table, settings: Settings) -> str:
    small = f", **sizes divided by {settings.scale}**" if settings.scale != 1 else ""
    return f"{table.runs or settings.runs} runs, {datetime.now(UTC):%Y-%m-%d}{small}."


def _sections(page: str) -> Iterator[tuple[str, str]]:
    """The measured sections of a page by their titles: those that say when they were made."""
    for part in re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]:
        text = part.strip()
        if re.search(r"^\d+ runs?, \d{4}-", text.rpartition("\n")[2]):
            yield text.partition("\n")[0].removeprefix("## "), text


def machine() -> str:
    """What the figures depend on; no names."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES)
    facts = [
        f"{os.cpu_count()} × {_processor()}",
        f"{memory:.0f} GiB",
        f"Linux {platform.release().partition('-')[0]}",
        f"{platform.python_implementation()} {platform.python_version()}",
        versions,
    ]
    return "; ".join(facts) + "."


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def section(table: Table) -> str:
    """One table."""
    lines = [f"## {table.title}", "", table.text, "", _row(table.head), _row(["---"] * len(table.head))]
    return "\n".join([*lines, *map(_row, table.rows)])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
