"""docs/formats.md says of each release what its stores in the corpus are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import orjson
from threadstore.records import Json

from tests.corpus_store import BUNDLED

DOCS = Path(__file__).parents[2] / "docs" / "formats.md"


def metas() -> Iterator[tuple[str, Json]]:
    """The first line of each rollout that isn't compressed, and its store."""
    for path in sorted(BUNDLED.glob("*/codex_home/**/rollout-*.jsonl")):
        first = path.read_bytes().split(b"\n")[0]
        if first:
            yield path.relative_to(BUNDLED).parts[0], orjson.loads(first)


def test_each_release_has_its_row() -> None:
    """Releases in order, how their lines are made, and which modes they wrote."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for store, meta in metas():
        if "payload" in meta:
            payload = meta["payload"]
            found[payload["cli_version"]].add(("records", payload.get("history_mode", "legacy")))
        else:
            found[store.split("_")[1]].add(("bare items", "none"))
    told = re.findall(r"^\| (\d[\d.]*) \| ([^|]*) \| ([^|]*) \|", DOCS.read_text(), re.M)
    assert {release: {(lines, mode) for mode in modes.split(", ")} for release, lines, modes in told} == found
    order = [tuple(map(int, release.split("."))) for release, _, _ in told]
    assert order == sorted(order)
