"""Tokens: whatever is forked, reverted or spawned, the threads of a store together spent what its requests cost."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard
from threadstore import index
from threadstore.index import IndexReader
from threadstore.indexing import Indexer
from threadstore.projection import StoreView, View, rendered
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.core.logs import Log, Store, context, counted, thread_id
from tests.corpus_store import CorpusStore

Json = dict[str, Any]


def requests(home: Path) -> Counter[str]:
    """Tokens by model as a plain count tells them: of each request whose record is anywhere in the store once; in a log
    without such records, by how much each total exceeds the one before it.
    """
    by_request: dict[tuple[object, ...], tuple[str, int]] = {}
    found: Counter[str] = Counter()
    for path in sorted(home.glob("**/rollout-*.jsonl*")):
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(data).read()
        model, total, recorded, counted = "", 0, False, Counter[str]()
        for line in data.split(b"\n"):
            try:
                document = json.loads(line)
                kind, payload = document["type"], document["payload"]
            except (ValueError, KeyError, TypeError):
                continue
            if kind == "turn_context":
                model = payload["model"]
            elif kind == "token_usage_record":
                recorded = True
                request = (payload["thread_id"], payload["turn_id"], payload["response_id"], line[-400:])
                by_request.setdefault(request, (model, payload["usage"]["total_tokens"]))
            elif payload.get("type") == "token_count" and payload.get("info"):
                now = payload["info"]["total_token_usage"]["total_tokens"]
                counted[model] += now - total if now >= total else now
                total = now
        if not recorded:
            found += counted
    for model, tokens in by_request.values():
        found[model] += tokens
    return found


def open_store(home: Path, folder: Path, *, indexed: bool = False) -> ThreadStore:
    """A store, after all of it was entered into an index if that is wanted."""
    spool = Spool(str(folder / "spool"))
    if not indexed:
        return ThreadStore(str(home), spool)
    path = index.place(str(folder / "index"), str(home))
    Indexer(ThreadStore(str(home), spool), path).advance("", 1e9)
    return ThreadStore(str(home), spool, index=IndexReader(path))


def check(home: Path, folder: Path) -> None:
    """Whatever the threads spent by themselves is what was spent, in `usage.json` and in `stats.json`."""
    truth = requests(home)
    store = open_store(home, folder)
    pages = [json.loads(store.rendered(thread, View.USAGE)) for thread in store.thread_ids()]
    assert sum(tokens(page["own"]) for page in pages) == truth.total()
    for page in pages:
        assert sum(tokens(row) for row in page["spent"]) == tokens(page["own"])
    stats = rendered(store.project_store(StoreView.STATS))
    assert rendered(open_store(home, folder, indexed=True).project_store(StoreView.STATS)) == stats
    document = json.loads(stats)
    assert tokens(document["tokens"]) == truth.total()
    by_model = {row["model"]: tokens(row) for row in document["tokens_by_model"]}
    assert sum(by_model.values()) == truth.total()
    if not truth[""]:  # a fork may go on with the model of the log that it began in
        assert by_model == {model: count for model, count in truth.items() if count}
    assert sum(tokens(row) for row in document["tokens_by_day"]) == truth.total()
    turns = [json.loads(line) for t in store.thread_ids() for line in store.rendered(t, View.TURNS).splitlines()]
    assert document["turns"] == len(turns)
    assert document["effective_turns"] == sum(turn["effective"] for turn in turns)
    assert document["threads_not_read"] == 0


def tokens(usage: Json | None) -> int:
    """The sum of a usage."""
    total: int = (usage or {}).get("total_tokens", 0)
    return total


def test_stores_of_codex(corpus_store: CorpusStore, tmp_path: Path) -> None:
    """The threads of a store of the corpus spent what its requests cost, with and without an index."""
    check(corpus_store.home, tmp_path)


def test_generated_stores(generated: Path, tmp_path: Path) -> None:
    """So did those of stores with forks, reverts, agents and kills at random."""
    spent = 0
    for folder in sorted(generated.iterdir())[::4]:
        check(folder / "codex_home", tmp_path / folder.name)
        spent += requests(folder / "codex_home").total()
    assert spent > 5_000


@pytest.mark.parametrize("paginated", [False, True])
def test_a_full_window_costs_nothing(tmp_path: Path, *, paginated: bool) -> None:
    """Codex sets the total to the size of the window when a request doesn't fit; and the next one counts for itself."""
    log = counted(Log(paginated).start("a").add("turn_context", context("m", turn="a")), 110)
    counted(log, 9000, input_tokens=0, output_tokens=0)
    counted(log, 9110, input_tokens=100)
    page = Store(tmp_path, log).page(View.USAGE)
    assert (page["total"]["total_tokens"], page["own"]["total_tokens"]) == (9110, 220)
    assert [(row["day"], row["model"], row["total_tokens"]) for row in page["spent"]] == [("2026-11-29", "m", 220)]


def test_what_a_revert_took_back(tmp_path: Path) -> None:
    """It stays spent, once, however many generations there were; only the totals go back."""
    first = counted(counted(Log(True).turn("a", "one", model="m"), 100).turn("b", "two", model="n"), 300)
    kept = 1 + 6 + 1  # the session meta, the first turn and its total
    second = counted(Log(True, rollout=thread_id(12), base=first.end(kept)).turn("c", "x", model="n"), 150)
    third = counted(Log(True, rollout=thread_id(13), base=first.end(kept)).turn("d", "y", model="m"), 170)
    page = Store(tmp_path, first, second, third).page(View.USAGE)
    assert page["total"]["total_tokens"] == 170
    assert page["inherited"] is None
    assert page["own"]["total_tokens"] == 100 + 200 + 50 + 70
    assert page["reverted"]["total_tokens"] == 200 + 50
    assert {row["model"]: row["total_tokens"] for row in page["spent"]} == {"m": 170, "n": 250}


def test_what_a_fork_inherited(tmp_path: Path) -> None:
    """It is the parent's, also after the fork was taken back to a turn of its own."""
    parent = counted(Log(True, thread_id(1)).turn("a", "one", model="m"), 100)
    fork = counted(Log(True, thread_id(2), base=parent.end()).turn("b", "two", model="m"), 130)
    turned = counted(Log(True, thread_id(2), thread_id(3), base=fork.end()).turn("c", "three", model="m"), 180)
    store = Store(tmp_path, parent, fork, turned)
    page = store.page(View.USAGE, thread_id(2))
    assert (page["total"]["total_tokens"], page["inherited"]["total_tokens"]) == (180, 100)
    assert (page["own"]["total_tokens"], page["reverted"]) == (80, None)
    assert store.page(View.THREAD, thread_id(2))["counts"]["own_tokens"] == 80


def test_a_killed_request(tmp_path: Path) -> None:
    """A request whose record no total follows counts, once, also when later totals don't have it."""
    log = Log(True).start("a").add("turn_context", context("m", turn="a"))
    one = {"input_tokens": 100, "cached_input_tokens": 0, "output_tokens": 10, "reasoning_output_tokens": 0}
    one |= {"total_tokens": 110}
    log.add("token_usage_record", {**RECORD, "usage": one, "turn_token_usage": one, "thread_token_usage": one})
    store = Store(tmp_path, log)
    assert store.page(View.USAGE)["own"]["total_tokens"] == 110
    assert store.page(View.USAGE)["total"] is None
    log.start("b").add(
        "token_usage_record", {**RECORD, "usage": one, "turn_token_usage": one, "thread_token_usage": one}
    )
    store.write(log.name, counted(log, 110).data)
    assert store.page(View.USAGE)["own"]["total_tokens"] == 220


RECORD = {
    "thread_id": thread_id(1),
    "turn_id": "a",
    "session_id": thread_id(1),
    "root_turn_id": "a",
    "response_id": "r",
}


def test_another_generation_changes_the_cost(tmp_path: Path) -> None:
    """What was made from all generations holds only while they are as they were; so does the entry of an index."""
    first = counted(Log(True).turn("a", "one", model="m"), 100)
    second = Log(True, rollout=thread_id(12), base=first.end(1)).turn("c", "x", model="n")
    made = Store(tmp_path / "store", first, second)
    store = open_store(made.root, tmp_path, indexed=True)
    (thread,) = store.thread_ids()
    known = store.outlines(thread)[View.USAGE]
    before = store.project(thread, View.USAGE)
    assert known.size == before.size
    assert store.is_current(thread, before)
    path = made.write(first.name, counted(first, 5000).data)
    os.utime(path, ns=(1, 1))
    assert not store.is_current(thread, before)
    assert View.USAGE not in store.outlines(thread)
    assert json.loads(store.rendered(thread, View.USAGE))["own"]["total_tokens"] == 5000
