"""Codex and we cut at the same place: the same operations on two copies of a store, one by Codex, the other by us."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zstandard
from threadstore.cut import Boundary
from threadstore.drafts import PREVIOUS
from threadstore.lines import Line
from threadstore.projection import View
from threadstore.records import Record, decode
from threadstore.store import ThreadStore

from tests.corpus_store import load_expected, store_folders
from tests.interop.cases import turn_ids
from tests.interop.codex import Codex
from tests.interop.conftest import EVERYTHING, FRESH, MakeHome
from tests.interop.following import lines, open_store, remembered, turns
from tests.interop.model_server import ModelServer
from tests.interop.steps import Step, Taken, by_codex, by_us
from tests.interop.untouched import fingerprint

Json = dict[str, Any]
UNKNOWN = "01a22938-0000-7000-8000-000000000bad"
#: Legacy stores that say something about copies; every paginated one is taken.
LEGACY = ("compact_manual.legacy", "fork_of_fork.legacy", "killed_tool.legacy", "old_0.80.0_basic", "tools.legacy")

#: Members of a session meta that Codex takes from itself, not from the thread, and those that are new for every file.
LIVE = {"timestamp", "cli_version", "multi_agent_version", "source", "context_window", "model_provider"}
FRESH_IDS = {"id", "session_id"}
OURS = {PREVIOUS}  # which Codex passes over
NEWER = {"account_scoped", "base_instructions", "runtime_workspace_roots"}

#: Parts of what Codex says when it refuses a turn, and of what we say then.
REASONS = {
    "turn not found": "turn not found: {turn}",
    "was not found in the source thread": "turn not found: {turn}",
    "is not a persisted canonical turn": "{turn} is not a persisted canonical turn",
    "identifies an in-progress turn": "{turn} was never ended",
    "does not have a persisted start boundary": "{turn} does not have",
}


@dataclass
class Result:
    """What came of a step: a thread, or a refusal."""

    thread_id: str = ""
    refusal: str = ""
    meta: Json = field(default_factory=dict)
    records: list[str] = field(default_factory=list)
    remembered: list[Json] = field(default_factory=list)
    turns: list[tuple[str, str]] = field(default_factory=list)


def steps(store: ThreadStore, thread_id: str, *, paginated: bool) -> Iterator[Step]:
    """Forks at every turn; then, from the last turn to the first, reverts."""
    ids = turn_ids(store, thread_id)
    yield Step("fork", thread_id, Boundary("latest"))
    for turn in [*ids, UNKNOWN]:
        yield Step("fork", thread_id, Boundary("through", turn))
        yield Step("fork", thread_id, Boundary("before", turn))
    if paginated:
        for turn in [UNKNOWN, *reversed(ids)]:
            yield Step("revert", thread_id, Boundary("before", turn))


def look(store: ThreadStore, taken: Taken) -> Result:
    """Read the thread that a step gave."""
    result = Result(taken.thread_id, taken.refusal)
    if taken.refusal:
        return result
    store.refresh()
    result.remembered = remembered(store, result.thread_id)
    result.turns = turns(store, result.thread_id)
    log = rollout_lines(Path(store.root) / store.head(result.thread_id).path)
    documents = [document for line in log if (document := parsed(line)) is not None]
    result.meta = documents[0]["payload"]
    result.records = [f"{one['type']} {one['payload'].get('type', '')}" for one in documents]
    return result


def rollout_lines(path: Path) -> list[bytes]:
    """The lines of a rollout."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data.split(b"\n")


def parsed(line: bytes) -> Json | None:
    """A line's JSON; None for a broken one."""
    try:
        document: Json = json.loads(line)
    except ValueError:
        return None
    return document if "payload" in document else None


def without_new_ids(items: list[Json], known: set[str]) -> list[Json]:
    """Items without the ids that a copy gave to those that had none, and that the mark of an interruption has."""
    return [{key: value for key, value in item.items() if key != "id" or value in known} for item in items]


def differences(step: Step, source: Json, known: set[str], codex: Result, ours: Result) -> Iterator[str]:
    """How two results differ. What an older Codex did not write (it is not in the meta of the `source`) only a running
    Codex knows.
    """
    if "unloaded multi-agent v2" in codex.refusal:
        return  # it would not load the thread before its parent; that says nothing of the boundary
    if bool(codex.refusal) != bool(ours.refusal):
        yield f"Codex: {codex.refusal or 'done'}; we: {ours.refusal or 'done'}"
    elif codex.refusal and not is_same_reason(step.boundary.turn, codex.refusal, ours.refusal):
        yield f"Codex says {codex.refusal!r}, we say {ours.refusal!r}"
    if codex.refusal or ours.refusal:
        return
    ignored = LIVE | (FRESH_IDS if step.op == "fork" else set()) | {key for key in NEWER if key not in source}
    for key in sorted((codex.meta.keys() | ours.meta.keys()) - ignored - OURS):
        if codex.meta.get(key, "absent") != ours.meta.get(key, "absent"):
            yield f"{key}: Codex {codex.meta.get(key, 'absent')}, we {ours.meta.get(key, 'absent')}"
    shared = [key for key in codex.meta if key in ours.meta]
    if shared != [key for key in ours.meta if key in codex.meta]:
        yield f"order of members: Codex {shared}"
    for key in sorted(FRESH_IDS - ignored):
        if (codex.meta[key] == codex.thread_id) != (ours.meta[key] == ours.thread_id):
            yield f"{key}: Codex {codex.meta[key]}, we {ours.meta[key]}"
    settings = "event_msg thread_settings_applied"  # Codex repeats it whenever it loads a thread
    if [one for one in codex.records if one != settings] != [one for one in ours.records if one != settings]:
        yield f"records: Codex {codex.records}, we {ours.records}"
    if without_new_ids(codex.remembered, known) != without_new_ids(ours.remembered, known):
        yield f"model input: Codex {len(codex.remembered)} items, we {len(ours.remembered)}"
    if codex.turns != ours.turns:
        yield f"turns: Codex {codex.turns}, we {ours.turns}"


def is_same_reason(turn: str, codex: str, ours: str) -> bool:
    """True when both refuse a turn for the same reason, each in its own words."""
    for theirs, words in REASONS.items():
        if theirs in codex:
            return words.format(turn=turn) in ours
    return False


def paginated_stores() -> list[str]:
    """Every store of the corpus with a paginated thread."""
    return [
        name
        for name, folder in store_folders().items()
        if any(thread["read"].get("thread", {}).get("historyMode") == "paginated" for thread in _threads(folder))
    ]


def _threads(folder: Path) -> list[Json]:
    return list(load_expected(folder)["threads"].values())


def stores() -> list[str]:
    """What is compared."""
    names = list(store_folders()) if EVERYTHING else [*paginated_stores(), *LEGACY]
    return [*FRESH, *sorted(set(names) - {"old_0.20.0_basic", "old_0.20.0_autocompact"})]


@pytest.mark.parametrize("name", stores())
def test_codex_cuts_at_the_same_place(name: str, make_home: MakeHome, tmp_path: Path) -> None:
    """Forks and reverts at every turn give the same base, meta, records, memory and turns as Codex's own, and what
    Codex refuses we refuse.
    """
    homes = [make_home(name, tmp_path / who) for who in ("codex", "us")]
    theirs, ours = map(open_store, homes)
    todo: list[Step] = []
    metas: dict[str, Json] = {}
    ids: dict[str, set[str]] = {}
    for thread_id in ours.thread_ids():
        if not ours.head(thread_id).archived:  # Codex refuses to fork an archived thread; we don't
            metas[thread_id] = meta_of(ours, thread_id)
            ids[thread_id] = {item["id"] for item in lines(ours, thread_id, View.FULL_HISTORY) if "id" in item}
            paginated = metas[thread_id].get("history_mode") == "paginated"
            todo += list(steps(ours, thread_id, paginated=paginated))
    pairs = []
    wrong = []
    with ModelServer() as model, Codex(homes[0], model) as codex:
        for step in todo:
            result = look(theirs, by_codex(codex, step))
            before = fingerprint(homes[1])
            pairs.append((step, result, look(ours, by_us(ours, step))))
            if pairs[-1][2].refusal and fingerprint(homes[1]) != before:
                wrong.append(f"{step}: refused, but something changed")
    wrong += [
        f"{step}: {difference}"
        for step, codex_result, our_result in pairs
        for difference in differences(step, metas[step.thread_id], ids[step.thread_id], codex_result, our_result)
    ]
    if wrong:
        pytest.fail("\n".join(wrong))
    assert all(accepted(ours, result.thread_id) for _, _, result in pairs if not result.refusal)


def meta_of(store: ThreadStore, thread_id: str) -> Json:
    """The session meta of a thread's selected rollout."""
    first = rollout_lines(Path(store.root) / store.head(thread_id).path)[0]
    meta: Json = json.loads(first)["payload"]
    return meta


def accepted(store: ThreadStore, thread_id: str) -> bool:
    """Every line of the thread's rollout that we wrote is a record that Codex's rules accept."""
    log = rollout_lines(Path(store.root) / store.head(thread_id).path)
    assert log[-1] == b""
    return all(isinstance(decode(Line(0, len(line), line)), Record) for line in log[:-1])
