"""The corpus: stores that real Codex releases wrote, with what Codex 0.171.0 rebuilt from them.

`tests/corpus` holds the stores that come with the project, as `scripts/copy_corpus.py` left them.  The environment
variable ROLLOUTFS_CORPUS names further folders, separated as in PATH: of the same form, or of the form that
`copy_corpus.py` reads.  A store there replaces one of the same name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from scripts.copy_corpus import reduce_expected

BUNDLED = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True)
class CorpusStore:
    """One store: a private copy of its Codex home, and Codex's answers.

    `expected` has the members that `copy_corpus.py` keeps.  A thread's `["probe"]["model_input"]` ends with the item at
    `["probe"]["probe_start_index"]`; both are absent where Codex could not read the thread.
    """

    name: str
    home: Path
    expected: dict[str, Any]

    @property
    def threads(self) -> dict[str, dict[str, Any]]:
        """Codex's answers by thread id."""
        threads: dict[str, dict[str, Any]] = self.expected["threads"]
        return threads


def store_folders() -> dict[str, Path]:
    """Every store's name and folder, by name."""
    extra = [Path(folder) for folder in os.environ.get("ROLLOUTFS_CORPUS", "").split(os.pathsep) if folder]
    for folder in extra:
        if not any(folder.glob("*/expected.json")):
            raise FileNotFoundError(f"ROLLOUTFS_CORPUS names {folder}, which holds no */expected.json")
    found = {path.parent.name: path.parent for root in [BUNDLED, *extra] for path in root.glob("*/expected.json")}
    return dict(sorted(found.items()))


def load_expected(folder: Path) -> dict[str, Any]:
    """Codex's answers for the store in `folder`, with the model inputs in their place."""
    answers: dict[str, Any] = json.loads((folder / "expected.json").read_bytes())
    packed = folder / "inputs.json.zst"
    if packed.exists():
        inputs: dict[str, list[Any]] = json.loads(zstandard.ZstdDecompressor().decompress(packed.read_bytes()))
    else:
        answers, inputs = reduce_expected(answers)
    for thread_id, model_input in inputs.items():
        answers["threads"][thread_id]["probe"]["model_input"] = model_input
    return answers


def _sources(home: Path, *, sqlite: bool) -> Iterator[tuple[Path, Path]]:
    """Every file of a stored home and its path in a copy."""
    for path in sorted(home.rglob("*")):
        if path.is_file() and (sqlite or ".sqlite" not in path.name):
            relative = path.relative_to(home)
            yield path, relative.with_suffix("") if path.name.endswith(".sqlite.zst") else relative


def copy_home(folder: Path, destination: Path, *, sqlite: bool = True) -> Path:
    """Makes a writable copy of a store's Codex home at `destination`; `sqlite=False` leaves every database out."""
    destination.mkdir(parents=True)
    for source, relative in _sources(folder / "codex_home", sqlite=sqlite):
        target = destination / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        if relative.suffix == source.suffix:
            shutil.copyfile(source, target)
        else:
            target.write_bytes(zstandard.ZstdDecompressor().decompress(source.read_bytes()))
    return destination
