"""docs/design.md tells the layout of the library as it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "core" / "threadstore"


def _floors() -> dict[str, int]:
    """The number of the row that names a module, from the ground up."""
    text = (ROOT / "docs" / "design.md").read_text()
    _, _, rest = text.partition("`core/threadstore`, from the ground up")
    rows = [
        line.split("|")[1] for line in rest.partition("`rolloutfs`, from")[0].splitlines() if line.startswith("| `")
    ]
    return {module: number for number, row in enumerate(rows) for module in re.findall(r"`(\w+)`", row)}


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "threadstore":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("threadstore."):
            yield str(node.module).partition(".")[2]


def test_every_module_has_a_floor() -> None:
    """The table names the modules that there are."""
    assert sorted(_floors()) == sorted(path.stem for path in LIBRARY.glob("*.py") if path.stem != "__init__")


def test_nothing_imports_a_floor_above_its_own() -> None:
    """Also not inside a function or for types alone."""
    floors = _floors()
    imports = [(path.stem, other) for path in LIBRARY.glob("*.py") for other in _imported(path) if other in floors]
    assert len(imports) > 300
    assert [(one, other) for one, other in imports if floors[one] < floors[other]] == []
