"""`docs/benchmarks.md`: the tables of a run, and the machine that it ran on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bench.cases import Settings, Table

_LIBRARIES = ("pyfuse3", "trio", "trio-parallel", "orjson", "zstandard")


def page(tables: Iterable[Table], settings: Settings) -> str:
    """The whole page, in Markdown."""
    parts = [
        "# Benchmarks",
        f"Made by `make bench`; not edited by hand. Medians of {settings.runs} runs; ± is half the distance from the "
        "fastest to the slowest, as a part of the median. Client, server and workers share one core, since a wakeup on "
        "another core of a virtual machine costs more than a request, and every case takes turns with its reference. "
        "Look at the ratios: the absolute figures are those of one machine.",
        machine(),
    ]
    if settings.scale != 1:
        parts.append(f"**Sizes are divided by {settings.scale}: this is a trial run.**")
    parts += map(section, tables)
    return "\n\n".join(parts) + "\n"


def machine() -> str:
    """What the figures depend on; no names."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES)
    facts = [
        f"{datetime.now(UTC):%Y-%m-%d}",
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
