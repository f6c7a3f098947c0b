"""`dropped.md` and `dropped_turns.jsonl`: with the thread itself they have every turn of each generation once."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import pytest
import zstandard
from threadstore import index
from threadstore.cut import Boundary
from threadstore.index import IndexReader
from threadstore.indexing import Indexer
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.conftest import CopyStore
from tests.core.logs import THREAD, Log, Store, open_store, rollout_name, thread_id
from tests.corpus_store import CorpusStore

TURN = 5  # lines of a turn as `Log.turn` writes it
EMPTY = b""


def generation(number: int, base: Log, turns: int, *texts: str) -> Log:
    """A rollout of the thread that goes on after the session meta and so many turns in the file of another one."""
    log = Log(True, base.thread, thread_id(100 + number), base=base.end(1 + TURN * turns))
    for text in texts:
        log.turn(text, f"said {text}")
    return log


def first(*texts: str, thread: str = THREAD) -> Log:
    """The first rollout of a thread."""
    log = Log(True, thread)
    for text in texts:
        log.turn(text, f"said {text}")
    return log


def ids(store: Store, view: View = View.DROPPED_TURNS, thread: str = THREAD) -> list[str]:
    """The turns that a file lists."""
    return [row["id"] for row in store.rows(view, thread)]


def said(store: Store, thread: str = THREAD) -> list[str]:
    """The words of the user in dropped.md, and the headings of its parts."""
    lines = [line.strip() for line in store.read(View.DROPPED, thread).decode().split("\n")]
    return [line.removeprefix("said ") for line in lines if line.startswith(("said ", "# "))]


def reached(logs: dict[str, Log], log: Log, end: int | None = None) -> list[str]:
    """The turns of a generation, to a byte of its file, as a plain walk along the bases tells them."""
    own = [turn for at, turn in started(log) if end is None or at < end]
    return own if log.base is None else reached(logs, logs[log.base[0]], log.base[2]) + own


def started(log: Log) -> list[tuple[int, str]]:
    """The turns that begin in a file, with their offsets."""
    payloads = [(log.offset(at), json.loads(line)["payload"]) for at, line in enumerate(log.lines)]
    return [(offset, payload["turn_id"]) for offset, payload in payloads if payload.get("type") == "task_started"]


@pytest.mark.parametrize("seed", range(25))
def test_every_turn_once(seed: int, tmp_path: Path) -> None:
    """However often a thread was taken back, from whichever generation: what it has and what was dropped is all."""
    chance = random.Random(seed)
    logs = [first(*(f"0.{number}" for number in range(chance.randint(1, 4))))]
    for number in range(1, chance.randint(2, 7)):
        base = chance.choice(logs)
        texts = [f"{number}.{turn}" for turn in range(chance.randint(0, 3))]
        logs.append(generation(number, base, chance.randint(0, len(started(base))), *texts))
    store = Store(tmp_path / "home", *logs)
    by_id = {log.rollout: log for log in logs}
    assert ids(store, View.TURNS) == reached(by_id, logs[-1])
    everything = {turn for log in logs for _, turn in started(log)}
    assert sorted(ids(store) + ids(store, View.TURNS)) == sorted(everything)
    assert [one for one in said(store) if not one.startswith("#")] == ids(store)
    for row in store.rows(View.DROPPED_TURNS):
        assert (row["effective"], row["number"], row["why"]) == (False, None, "reverted")
        assert any(path[row["number_then"] - 1 :][:1] == [row["id"]] for path in (reached(by_id, log) for log in logs))


def test_reverted_twice(tmp_path: Path) -> None:
    """What each revert dropped is a part of its own, the first revert's first, and says after which turn it came."""
    one = first("a", "b", "c", "d")
    two = generation(2, one, 3, "e")
    store = Store(tmp_path / "home", one, two)
    before = store.read(View.DROPPED)
    assert said(store) == ["# Dropped by reverts", "# After turn 3", "d"]
    store.write(generation(3, one, 1, "f").name, generation(3, one, 1, "f").data)
    assert said(store) == ["# Dropped by reverts", "# After turn 3", "d", "# After turn 1", "b", "c", "e"]
    assert store.read(View.DROPPED).startswith(before)
    assert [row["number_then"] for row in store.rows(View.DROPPED_TURNS)] == [4, 2, 3, 4]


def test_nothing_was_dropped(tmp_path: Path) -> None:
    """Both files are empty in a thread that was never taken back, in a legacy one, and where a revert dropped nothing;
    what was rolled back in a legacy thread stays in its own list.
    """
    legacy = Log(thread=thread_id(1)).turn("a", "one").turn("b", "two").roll_back(1)
    plain = first("c", thread=thread_id(2))
    old = first("d", "e", thread=thread_id(3))
    store = Store(tmp_path / "home", legacy, plain, old, generation(4, old, 2, "f"))
    for thread in map(thread_id, (1, 2, 3)):
        assert (store.read(View.DROPPED, thread), store.read(View.DROPPED_TURNS, thread)) == (EMPTY, EMPTY)
    assert [row["effective"] for row in store.rows(View.TURNS, thread_id(1))] == [True, False]


def test_a_fork(tmp_path: Path) -> None:
    """A fork that was made before the revert keeps the turns, and what its parent dropped is not its own; one that is
    taken back to before its beginning has dropped what it had inherited, too.
    """
    parent = first("a", "b", "c")
    after = generation(2, parent, 1, "d")
    fork = Log(True, thread_id(7), base=parent.end(1 + 2 * TURN)).turn("e", "said e")
    store = Store(tmp_path / "home", parent, after, fork)
    assert (ids(store), ids(store, View.TURNS, fork.thread)) == (["b", "c"], ["a", "b", "e"])
    assert ids(store, thread=fork.thread) == []
    back = Log(True, thread_id(7), thread_id(8), base=parent.end(1 + TURN)).turn("f", "said f")
    store.write(back.name, back.data)
    assert ids(store, thread=fork.thread) == ["b", "e"]
    assert said(store, fork.thread) == ["# Dropped by reverts", "# After turn 1", "b", "e"]


def test_revert_and_undo(copy_store: CopyStore, tmp_path: Path) -> None:
    """What a real thread drops comes back with undo, and is dropped again by the next one."""
    home = copy_store("simple.paginated").home
    store = ThreadStore(str(home), Spool(str(tmp_path / "spool")))
    (thread,) = store.thread_ids()

    def turns(view: View) -> list[str]:
        store.refresh()
        return [json.loads(line)["id"] for line in store.rendered(thread, view).splitlines()]

    had = turns(View.TURNS)
    store.revert(thread, "-1")
    assert (turns(View.TURNS), turns(View.DROPPED_TURNS)) == (had[:-1], had[-1:])
    store.undo(thread)
    assert (turns(View.TURNS), turns(View.DROPPED_TURNS)) == (had, [])
    assert store.rendered(thread, View.DROPPED) == EMPTY
    store.undo(thread)
    assert (turns(View.TURNS), turns(View.DROPPED_TURNS)) == (had[:-1], had[-1:])
    fork = store.fork(thread, Boundary("latest")).thread_id
    store.refresh()
    assert store.rendered(str(fork), View.DROPPED_TURNS) == EMPTY


def test_archived_and_compressed(tmp_path: Path) -> None:
    """Older generations may be compressed, and all of them archived: the same turns and the same text but for names."""
    logs = [one := first("a", "b"), generation(2, one, 1, "c")]
    plain, packed = Store(tmp_path / "plain", *logs), Store(tmp_path / "packed")
    for log in logs:
        packed.write(f"archived_sessions/{Path(log.name).name}.zst", zstandard.ZstdCompressor().compress(log.data))
    assert ids(packed) == ids(plain) == ["b"]
    assert said(packed) == said(plain)


def test_a_missing_file(tmp_path: Path) -> None:
    """A generation whose past is lost tells what its own file has; a lost one is not told of; and a thread that lacks
    the past of what is in force tells nothing, rather than a part.
    """
    one = first("a", "b")
    two = generation(2, one, 1, "c")
    lost = generation(3, two, 1, "d")
    four = generation(4, one, 1, "e")
    store = Store(tmp_path / "home", one, two, lost, four)
    assert ids(store) == ["b", "c", "d"]
    made = store.store.project(THREAD, View.DROPPED_TURNS)
    (store.root / two.name).unlink()
    assert not store.store.is_current(THREAD, made)
    assert ids(store) == ["b", "d"]
    assert store.store.project(THREAD, View.DROPPED).basis == ()  # the file may come back
    store.write(two.name, two.data)
    assert ids(store) == ["b", "c", "d"]
    (store.root / one.name).unlink()
    store.store.refresh()
    broken = store.store.project(THREAD, View.DROPPED)
    assert broken.extents is None
    assert one.rollout in (broken.error or "")


def test_a_shut_file(tmp_path: Path) -> None:
    """A generation of which nothing can be decoded is named, not passed over."""
    one = first("a", "b")
    store = Store(tmp_path / "home", one, generation(4, one, 1, "e"))
    broken = rollout_name(THREAD, thread_id(102)) + ".zst"
    store.write(broken, b"nothing")
    assert f"# Not readable\n\n*`{broken}`*" in store.read(View.DROPPED).decode()
    assert ids(store) == ["b"]


def test_what_it_is_made_from(tmp_path: Path) -> None:
    """It holds while all files that it was made from are as they were, also one of another thread that only an older
    generation had; an index knows it as long as it can tell that.
    """
    parent = first("a", "b", thread=thread_id(1))
    turned = generation(2, parent, 1, "c")
    fork = Log(True, base=turned.end()).turn("d", "said d")
    back = Log(True, THREAD, thread_id(50), base=parent.end(1 + TURN)).turn("e", "said e")
    store = Store(tmp_path / "home", parent, turned, fork, back)
    assert ids(store) == ["c", "d"]
    made = store.store.project(THREAD, View.DROPPED)
    assert turned.name in {basis.path for basis in made.basis}
    assert store.store.is_current(THREAD, made)
    os.utime(store.root / turned.name, ns=(1, 1))
    assert not store.store.is_current(THREAD, made)

    place = index.place(str(tmp_path / "index"), str(store.root))
    Indexer(open_store(store.root), place).advance("", 1e9)
    known = ThreadStore(str(store.root), Spool(str(tmp_path / "spool")), index=IndexReader(place))
    assert View.DROPPED not in known.outlines(THREAD)  # the entry doesn't name the other thread's file
    outline = known.outlines(thread_id(1))[View.DROPPED]
    again = known.project(thread_id(1), View.DROPPED)
    assert (outline.size, outline.generation) == (again.size, again.generation)
    assert again.size > 0
    assert [place.id for place in known.turns(thread_id(1))] == ids(store, View.TURNS, thread_id(1)) == ["a", "c"]


def test_texts_to_search(tmp_path: Path) -> None:
    """What was said in older generations is among the texts, and told not to count; in a fork only what is its own."""
    parent = first("a", "b")
    fork = Log(True, thread_id(7), base=parent.end()).turn("d", "said d")
    back = Log(True, thread_id(7), thread_id(8), base=parent.end(1 + TURN)).turn("e", "said e")
    store = Store(tmp_path / "home", parent, generation(2, parent, 1, "c"), fork, back)
    store.store.refresh()

    def said_by_user(thread: str) -> list[tuple[str, bool]]:
        return [(text.text, text.effective) for text in store.store.texts(thread) if text.kind == "user"]

    assert said_by_user(THREAD) == [("said a", True), ("said c", True), ("said b", False)]
    assert said_by_user(thread_id(7)) == [("said e", True), ("said d", False)]


def test_stores_of_codex(corpus_store: CorpusStore, tmp_path: Path) -> None:
    """Each turn that begins in a file of a paginated thread counts or was dropped, whatever Codex did to the thread."""
    store = ThreadStore(str(corpus_store.home), Spool(str(tmp_path / "spool")))
    for thread in store.thread_ids():
        if json.loads(store.rendered(thread, View.THREAD))["history_mode"] != "paginated":
            continue
        begun = {turn for rollout in store.rollouts(thread) for turn in begun_in(corpus_store.home / rollout.path)}
        counts, dropped = (
            [json.loads(line)["id"] for line in store.rendered(thread, view).splitlines()]
            for view in (View.TURNS, View.DROPPED_TURNS)
        )
        assert begun <= {*counts, *dropped}
        assert not {*counts} & {*dropped}
        assert len(dropped) == len({*dropped})
        assert bool(dropped) <= bool(store.rendered(thread, View.DROPPED))


def begun_in(path: Path) -> list[str]:
    """The turns that begin in a file, as a plain search for records tells."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    return [one.decode() for one in re.findall(rb'"type":"task_started","turn_id":"([^"]+)"', data)]


def test_hostile_names(tmp_path: Path) -> None:
    """Text of a dropped turn can't get out of its block."""
    one = first("a")
    one.turn("b", "said x\n# Not a heading\n\x1b[31m")
    store = Store(tmp_path / "home", one, generation(2, one, 1, "c"))
    text = store.read(View.DROPPED).decode()
    assert [line for line in text.split("\n") if line.startswith("#")][2:] == [
        "## Turn 2 · completed · 2026-11-29 10:00:06",
        "### User",
        "### Assistant",
    ]
    assert "\x1b" not in text
    assert rollout_name(THREAD) in text
