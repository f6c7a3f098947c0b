"""What Codex's own lists say of a thread after our operations is what they say after Codex's own: the same operations
on two copies of a store, one by Codex, the other by us.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from threadstore.cut import Boundary

from tests.corpus_store import store_folders
from tests.interop.cases import turn_ids
from tests.interop.codex import Codex
from tests.interop.conftest import EVERYTHING, FRESH, MakeHome
from tests.interop.following import open_store
from tests.interop.model_server import ModelServer
from tests.interop.steps import Step, by_codex, by_us
from tests.interop.untouched import Row, rows

#: What is looked at when not everything is: stores of the corpus, and threads of the fresh ones.
CHOSEN = ("named.legacy", "old_0.80.0_basic", "world_state.paginated")
KINDS = ("plain", "compacted", "interrupted", "named", "reverted")
UNREADABLE = ("old_0.20.0_basic", "old_0.20.0_autocompact")
TIMES = ("created_at", "updated_at", "recency_at")

#: What Codex takes from its own configuration; we take it from the thread. In the fresh stores they are the same.
#: The folder is Codex's as well when it resumes a thread of a release that did not record settings with each turn.
RUNNING = {
    "cwd",
    "source",
    "model",
    "model_provider",
    "reasoning_effort",
    "approval_mode",
    "sandbox_policy",
    "cli_version",
}
SPENT = 110  # tokens that the stand-in for the model asks for; we ask no model for a summary

Shown = tuple[str | None, str, str]


@dataclass(frozen=True, slots=True)
class Pair:
    """A step that was carried out twice: the threads that it gave, and what Codex has spent on summaries in them."""

    step: Step
    theirs: str
    ours: str
    spent: int


def steps(thread_id: str, turns: list[str], *, paginated: bool) -> Iterator[Step]:
    """Every operation that Codex knows, on one thread, one after the other."""
    first, last = Boundary("before", turns[0]), Boundary("before", turns[-1])
    yield Step("fork", thread_id)
    for boundary in (Boundary("through", turns[0]), last, first):
        yield Step("fork", thread_id, boundary)
    if paginated and first != last:
        yield Step("revert", thread_id, last)
        yield Step("fork", thread_id)
    yield Step("compact", thread_id)
    yield Step("fork", thread_id)
    if paginated:
        yield Step("revert", thread_id, first)
        yield Step("fork", thread_id)


def shown(home: Path, thread_id: str, before: dict[str, Row], since: int) -> Row:
    """A row without what differs by chance: ids, names of new files, and times, which are either those of before or
    new since `since` (Unix time in ms).
    """
    row = rows(home)[thread_id]
    path = row["rollout_path"].removeprefix(str(home)).replace(thread_id, "ID")
    row |= {"id": "ID", "rollout_path": re.sub(r"\d{4}\D\d\d\D\d\d|T\d\d-\d\d-\d\d|(?<=_)[0-9a-f-]{36}", "", path)}
    for name in TIMES:
        if name not in row:
            continue
        key, unit = (f"{name}_ms", 1) if f"{name}_ms" in row else (name, 1000)  # an older release's has seconds only
        now, then = row[key], before.get(thread_id, {}).get(key)
        assert row[name] == now * unit // 1000
        row[name] = row[f"{name}_ms"] = "as before" if now == then else "new" if now >= since // unit else now
    return row


def differences(name: str, pair: Pair, theirs: Row, ours: Row, before: Row) -> Iterator[str]:
    """How our row differs from Codex's where it should not."""
    ignored = set() if name in FRESH else set(RUNNING)
    if name.startswith("lite_") or (pair.spent and name not in FRESH):
        ignored.add("tokens_used")  # some of the models of the corpus are asked more than once for a summary
    if pair.step.op != "fork":
        # Codex takes the time of creation from the newest rollout; to us a thread began when it began
        ignored |= {"created_at", "created_at_ms"}
        # What a row lacks, such as the title of a fork without messages of its own, Codex fills in when it loads it
        ignored |= {key for key, value in before.items() if value in ("", None)}
    if pair.step.op == "compact" and before.get("history_mode", "legacy") == "legacy":
        # Codex forgets a name in favour of the first message whenever it loads a thread that was named elsewhere
        ignored.add("title")
    theirs = theirs | {"tokens_used": theirs["tokens_used"] - (pair.spent if theirs["tokens_used"] else 0)}
    for key in sorted(theirs.keys() & before.keys() - ignored):  # other columns came when Codex first saw the database
        if theirs[key] != ours[key]:
            yield f"{pair.step}: {key}: Codex {theirs[key]!r}, we {ours[key]!r}"


def lists(codex: Codex, names: dict[str, str]) -> dict[str, set[Shown]]:
    """Everything that Codex lists, from files and from its database, with ids as `names` translates them."""
    listed = {
        "files": codex.listed(),
        "archived": codex.pages("thread/list", limit=100, modelProviders=[], archived=True),
        "database": codex.known(),
    }
    doubled = [key for key, count in Counter(thread["id"] for thread in listed["database"]).items() if count > 1]
    assert doubled == []
    return {
        kind: {(names.get(one["id"], one["id"]), one["name"] or "", one["preview"]) for one in found}
        for kind, found in listed.items()
    }


@pytest.mark.parametrize("name", [*FRESH, *(sorted(set(store_folders()) - set(UNREADABLE)) if EVERYTHING else CHOSEN)])
def test_codex_lists_what_it_would_list(
    name: str, make_home: MakeHome, fresh_threads: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """Rows and lists are the same right after each operation, after Codex went on with each thread, and after all of
    its databases were lost.
    """
    homes = [make_home(name, tmp_path / who) for who in ("codex", "us")]
    store = open_store(homes[1])
    known = rows(homes[1])
    # A fork of what ran without a person is in no ordinary list, as its source; Codex's own belong to its client
    listed = [
        thread_id for thread_id, row in known.items() if not row["archived"] and row["source"] in ("cli", "vscode")
    ]
    if name in FRESH and not EVERYTHING:
        listed = [thread_id for kind, thread_id in fresh_threads[name].items() if kind in KINDS]
    todo = [
        step
        for thread_id in listed
        if (turns := turn_ids(store, thread_id))
        for step in steps(thread_id, turns, paginated=known[thread_id].get("history_mode") == "paginated")
    ]
    if not todo:
        pytest.skip("no thread that a person began, with a turn")
    pairs: list[Pair] = []
    wrong: list[str] = []
    spent: Counter[str] = Counter()
    with ModelServer() as model, Codex(homes[0], model) as codex:
        for step in todo:
            before = [rows(home) for home in homes]
            since = time.time_ns() // 1_000_000
            theirs = by_codex(codex, step)
            ours = by_us(store, step)
            if theirs.refusal and ours.refusal:
                continue
            assert not theirs.refusal, step
            assert not ours.refusal, step
            if step.op == "compact":
                spent[step.thread_id] += SPENT
            pair = Pair(step, theirs.thread_id, ours.thread_id, spent[step.thread_id])
            pairs.append(pair)
            if step.op == "revert":
                spent[step.thread_id] = 0  # the compaction, if there was one, is taken back
            both = [
                shown(home, one.thread_id, rows_before, since)
                for home, one, rows_before in zip(homes, (theirs, ours), before, strict=True)
            ]
            wrong += differences(name, pair, both[0], both[1], known[step.thread_id])
    names = {pair.theirs: pair.ours for pair in pairs}
    store.refresh()
    silent = {pair.ours for pair in pairs if pair.step.op == "fork" and not turn_ids(store, pair.ours)}
    with ModelServer() as model, Codex(homes[0], model) as codex, Codex(homes[1], model) as other:
        wrong += compare(lists(codex, names), lists(other, {}), silent)
        forks = [pair for pair in pairs if pair.step.op == "fork"]
        for pair in forks if EVERYTHING else forks[1::2]:
            for running, thread_id in ((codex, pair.theirs), (other, pair.ours)):
                running.resume(thread_id)
                running.turn(thread_id, "a further turn")
            both = [shown(home, one, {}, 0) for home, one in zip(homes, (pair.theirs, pair.ours), strict=True)]
            wrong += differences(name, pair, both[0], both[1], known[pair.step.thread_id])
        wrong += compare(lists(codex, names), lists(other, {}))
    for database in (database for home in homes for database in home.glob("*.sqlite*")):
        database.unlink()
    with ModelServer() as model, Codex(homes[0], model) as codex, Codex(homes[1], model) as other:
        wrong += compare(lists(codex, names), lists(other, {}))
    if wrong:
        pytest.fail("\n".join(wrong))


def compare(
    theirs: dict[str, set[Shown]], ours: dict[str, set[Shown]], silent: Collection[str | None] = ()
) -> Iterator[str]:
    """How two lists differ. Whether files show a thread in which nothing was said yet, `silent`, depends on records of
    settings, which Codex writes of itself and we only where the log has some. Pages may lose
    some of the entries of a reverted thread, see `Codex.listed`.
    """
    for kind in theirs:
        for whose, more, less in (("Codex has", theirs, ours), ("we have", ours, theirs)):
            often = Counter(shown[0] for shown in more[kind])
            known = {shown[0] for shown in less[kind]}
            for one in sorted(more[kind] - less[kind], key=str):
                lost = often[one[0]] > 1 and one[0] in known  # a reverted thread has an entry for each rollout
                if kind != "files" or not (one[0] in silent or lost):
                    yield f"list of {kind}: only {whose} {one}"
