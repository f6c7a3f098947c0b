"""`transcript.md` against golden files: one for each kind of record, one for a store of each era.

`make golden` writes them anew; what it changed is then to be read in `git diff`. `golden/README.md` says what is there.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from threadstore.items import ITEMS
from threadstore.projection import View

from tests.core.logs import THREAD, Json, Log, Store, call, content, dumps, open_store, rollout_name, user
from tests.corpus_store import BUNDLED, copy_home

GOLDEN = Path(__file__).parent / "golden"
RENEW = "ROLLOUTFS_RENEW_GOLDEN"

#: Stores of 0.171.0; of all older releases each has its file.
STORES = {"compact_twice.paginated", "forks.legacy", "forks.paginated", "revert_then_turns.paginated"}
STORES |= {"subagents_v1.paginated", "tools.legacy", "tools.paginated"}
THREADS = 2  # of a store with more than `MANY`, since those repeat each other
MANY = 6


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of record, as one mode writes it, and a line of it."""

    kind: str
    mode: str
    record: Json

    @property
    def file(self) -> Path:
        """Its golden file."""
        name = re.sub(r"\W+", "_", self.kind).strip("_")
        return GOLDEN / "records" / f"{name}.{self.mode}.md"


def cases() -> list[Case]:
    """All that are in the file."""
    lines = (GOLDEN / "records.jsonl").read_bytes().split(b"\n")[:-1]
    return [Case(row["kind"], row["mode"], row["record"]) for row in map(json.loads, lines)]


def stores() -> list[str]:
    """The stores that have a golden file."""
    return sorted(path.name for path in BUNDLED.iterdir() if path.name.startswith("old_") or path.name in STORES)


def check(file: Path, text: str) -> None:
    """The text is that of a golden file, or becomes it. Ends the test in the latter case: nothing was compared."""
    if os.environ.get(RENEW):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        pytest.skip(f"{file.name} was written, not compared")
    assert text == file.read_text(), f"not as in {file}: `make golden`, then look at `git diff`"


def log_of(case: Case) -> bytes:
    """A turn in which the record happens, as its mode writes it."""
    record = dict(case.record)
    if case.mode == "bare":
        before = [{"id": THREAD, "timestamp": "2025-08-01T10:00:00.000Z", "instructions": None}, user("Go")]
        return b"".join(dumps(row) + b"\n" for row in [*before, record, user("Go on")])
    kind, payload = record.pop("type"), record.pop("payload")
    if kind == "session_meta":
        log = Log(case.mode == "paginated", meta=payload).turn("t", "Go")
        return log.data
    log = Log(case.mode == "paginated").start("t").item(user("Go")).said("Go", "t")
    if payload.get("type") in ("function_call_output", "custom_tool_call_output", "tool_search_output"):
        log.item(call(payload["call_id"], "exec_command"))
    return log.add(kind, payload, **record).complete("t").data


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.kind} {case.mode}")
def test_each_kind_of_record(tmp_path: Path, case: Case) -> None:
    """A record of each kind is shown as it should be, or not at all; none is taken for damage."""
    store = Store(tmp_path / "home")
    store.write(rollout_name(THREAD), log_of(case))
    shown = store.read(View.TRANSCRIPT).decode()
    assert "damaged" not in shown
    check(case.file, shown)


@pytest.mark.parametrize("name", stores())
def test_each_era(tmp_path: Path, name: str) -> None:
    """Threads that the releases of Codex wrote, from 0.20 on, are shown as they should be."""
    store = open_store(copy_home(BUNDLED / name, tmp_path / "home"))
    threads = sorted(store.thread_ids())
    shown = [content(store, store.project(thread, View.TRANSCRIPT)).decode() for thread in threads]
    kept = len(threads) if len(threads) <= MANY else THREADS
    parts = (f"<!-- Thread {thread} -->\n\n{text}" for thread, text in zip(threads[:kept], shown, strict=False))
    check(GOLDEN / "stores" / f"{name}.md", "".join(parts))


def test_nothing_is_missing() -> None:
    """Each type of item has a golden file, each file its test, and every release of the corpus is among the stores."""
    kinds = {case.kind for case in cases()}
    assert {f"response_item/{name}" for name in ITEMS} <= kinds
    files = {case.file for case in cases()} | {GOLDEN / "stores" / f"{name}.md" for name in stores()}
    assert {*GOLDEN.glob("*/*.md")} == files
    assert len(files) == len(cases()) + len(stores())
