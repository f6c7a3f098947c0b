"""What the serving process remembers has a bound, or ends with what it is about; and what is still needed stays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from inotify_simple import INotify
from threadstore.filestates import RememberedStates
from threadstore.projection import Basis, View
from threadstore.spines import Spine
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import (
    attributes,
    backlog,
    control,
    engine,
    following,
    indexing,
    inodes,
    journal,
    numbered,
    tree,
    worker,
)
from rolloutfs.answers import Kept
from rolloutfs.backlog import Backlog, Todo
from rolloutfs.engine import Engine
from rolloutfs.heirs import Heirs
from rolloutfs.indexing import Indexing
from rolloutfs.journal import Journal
from rolloutfs.nodes import Kind, Node
from rolloutfs.notices import Notices
from rolloutfs.numbered import Numbered
from rolloutfs.operations import Operations
from rolloutfs.pool import open_pool
from rolloutfs.readers import Literal
from rolloutfs.shelves import BY_BRANCH, BY_CWD, BY_DATE, Shelves
from rolloutfs.shelving import Shelving
from rolloutfs.watch import Changes, Watch
from tests.tree.conftest import Planted
from tests.tree.sample import DAY, SampleStore, thread_id

Plant = Callable[[], Planted]


def basis(path: str) -> Basis:
    """A file in some state."""
    return Basis(path, 1, 2, 3, 4)


def rollout(number: int, folder: str = DAY, suffix: str = "") -> str:
    """The path of a rollout."""
    return f"{folder}/rollout-2026-11-29T21-00-00-{thread_id(number)}.jsonl{suffix}"


def test_heirs_end_with_their_thread() -> None:
    """A thread is told of changes of its ancestors, wherever they move to, for as long as it is there."""
    heirs = Heirs()
    heirs.note("child", [basis(rollout(1)), basis(rollout(2))])
    heirs.note("other", [basis(rollout(2))])
    assert heirs.of(rollout(1, "archived_sessions", ".zst")) == {"child"}
    assert heirs.of(rollout(2)) == {"child", "other"}
    heirs.forget({"child", "unknown"})
    assert heirs.of(rollout(1)) == set()
    assert heirs.of(rollout(2)) == {"other"}
    assert len(heirs._of) == 1


def test_heirs_of_databases_are_few() -> None:
    """Of the threads that a database was asked about, the latest are told."""
    heirs = Heirs(named=2)
    for thread in "abc":
        heirs.note(thread, [basis("state_5.sqlite"), basis("session_index.jsonl")])
    assert heirs.of("state_5.sqlite") == heirs.of("session_index.jsonl") == {"b", "c"}
    assert heirs.of("history.jsonl") == set()
    heirs.forget({"b"})
    assert heirs.of("state_5.sqlite") == {"c"}


async def test_what_was_opened_is_remembered_by_a_few_bytes(sample: SampleStore, plant: Plant) -> None:
    """The content of a file that lies in memory goes when it is closed, as does the list of files it was made from."""
    thread = sample.add(1, "hello")
    planted = plant()
    for path in ("README.md", f"threads/{thread}/turns.jsonl", f"threads/{thread}/effective_history.jsonl"):
        await planted.read(path)
    marks = planted.contents._versions.opened
    assert len({digest for digest in marks._digests if digest}) == len([ino for ino in marks._numbers if ino]) == 3
    assert Literal(b"x" * 100_000).signature != Literal(b"y" * 100_000).signature
    assert len(repr(Literal(b"x" * 100_000).signature)) < 100


async def test_files_made_together_share_what_they_were_made_from(sample: SampleStore, plant: Plant) -> None:
    """A list of files for each derived file would be most of what is kept of a thread."""
    thread = sample.add(1, "hello")
    planted = plant()
    node = planted.walk(f"threads/{thread}/turns.jsonl")
    await planted.contents.measure(node.ino, node)
    known = [version for _, version in planted.contents._versions._known.items()]
    assert len(known) > len(View) / 2
    assert len({id(one.projection.basis) for one in known}) == len({one.projection.basis for one in known})


def test_threads_that_are_gone_are_forgotten_in_the_end(
    sample: SampleStore, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may ask for a file of a thread that has just gone; one that has come back keeps its number."""
    monkeypatch.setattr(tree, "_GONE", 2)
    threads = [sample.add(number) for number in range(5)]
    planted = plant()
    numbers = [planted.walk(f"threads/{thread}").ino for thread in threads]
    for thread in threads[:4]:
        sample.path(thread).unlink()
        planted.store.refresh()
        planted.tree.bury({thread})
        if thread == threads[1]:
            sample.add(1)
            planted.store.refresh()
    for number, is_known in zip(numbers, (False, True, True, True, True), strict=True):
        if is_known:
            assert planted.tree.node(number).kind is Kind.THREAD
        else:
            with pytest.raises(KeyError):
                planted.tree.node(number)
    sample.add(0)
    planted.store.refresh()
    assert planted.walk(f"threads/{threads[0]}").ino == numbers[0]


def test_a_number_that_others_wanted_stays() -> None:
    """Whom a collision gave another number must not get the first one later: the kernel knows it by the other."""
    numbers = inodes.ThreadNumbers(lambda key, probe: 42 + probe)
    first, second = numbers.of("a"), numbers.of("b")
    numbers.forget("a")
    assert numbers.of("b") == second
    assert numbers.of("a") == first
    alone = inodes.ThreadNumbers()
    number = alone.of("a")
    alone.forget("a")
    with pytest.raises(KeyError):
        alone.thread(number)


@given(st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(0, 9)), max_size=300), st.integers(1, 20))
def test_a_mapping_of_numbers(steps: list[tuple[int, int | None]], recent: int) -> None:
    """It is as a dictionary, whatever comes and goes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbered, "RECENT", recent)
        mapping, expected = Numbered[int](), dict[int, int]()
        for number, value in steps:
            number <<= 58
            if value is None:
                mapping.drop(number)
                expected.pop(number, None)
            else:
                mapping.put(number, value)
                expected[number] = value
            assert len(mapping) == len(expected)
            assert mapping.get(number) == expected.get(number)
        assert [mapping.get(number << 58) for number in range(61)] == [
            expected.get(number << 58) for number in range(61)
        ]
        assert dict(mapping.items()) == expected


def test_a_mapping_of_very_many_numbers_is_small() -> None:
    """A dictionary takes 100 bytes for each, with the number; this takes the two arrays."""
    mapping = Numbered[str]()
    for number in range(200_000):
        mapping.put((number * 2654435761 % (1 << 32)) << 31, "")
    assert len(mapping) == 200_000
    assert len(mapping._recent) < 200_000 / 10
    sizes = sys.getsizeof(mapping._numbers), sys.getsizeof(mapping._values), sys.getsizeof(mapping._recent)
    assert sum(sizes) < 30 * 200_000


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=200))
def test_numbers_of_threads_in_any_order(steps: list[tuple[int, bool]]) -> None:
    """However many there are, and whoever was forgotten meanwhile: each number is that of one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbered, "RECENT", 4)
        numbers = inodes.ThreadNumbers(lambda key, probe: (int(key) // 3 * 7 + probe) % 211)
        known: dict[str, int] = {}
        for number, is_asked in steps:
            thread = str(number)
            if is_asked:
                known[thread] = known.get(thread) or numbers.of(thread)
            else:
                numbers.forget(thread)
                if numbers._ids.get(known.get(thread, 0)) != thread:
                    known.pop(thread, None)
        assert len(set(known.values())) == len(known)
        for thread, number in known.items():
            assert numbers.thread(number) == thread
            assert numbers.of(thread) == number


def test_numbers_of_files_are_kept_as_bytes(sample: SampleStore, plant: Plant) -> None:
    """A walk makes the kernel know two files of each thread that have keys of their own: no object is kept for them."""
    thread = sample.add(1)
    planted = plant()
    path = f"threads/{thread}/rollouts"
    nodes = [planted.walk(f"{path}/{name}") for name in planted.names(path)]
    nodes += [planted.walk(f"store/{DAY}/{name}") for name in planted.names(f"store/{DAY}")]
    for node in nodes:
        planted.tree.remember(node)
        assert planted.tree.node(node.ino) == node
    kept = {node.kind for node in planted.tree._dynamic._nodes.values()}
    assert kept <= {Kind.STORE_FOLDER}
    planted.tree.remember(nodes[1])
    planted.tree.forget(nodes[1].ino, 1)
    assert planted.tree.node(nodes[1].ino) == nodes[1]
    planted.tree.forget(nodes[1].ino, 5)
    with pytest.raises(KeyError):
        planted.tree.node(nodes[1].ino)


def operating(sample: SampleStore, folder: Path) -> Operations:
    """The operations of a mount of which the kernel doesn't know."""
    store = ThreadStore(str(sample.root), Spool(str(folder / "spool")))
    made = Operations(Engine(store, None), b"readme", Journal(str(folder / "operations.jsonl")))
    made.notices = made.following._notices = Notices(lambda ino: None)
    return made


def test_links_to_findings_are_not_kept(sample: SampleStore, tmp_path: Path) -> None:
    """Each query has others, and a thread may be found by any number of them."""
    thread = sample.add(1)
    operating_ = operating(sample, tmp_path)
    told = attributes.Attributes(7 << 16, 0o120777, 1, 1, 0, 0, 1.0, 1.0)
    for kind, many in ((Kind.VIEW, 1), (Kind.FINDING, 0)):
        kept = Kept()
        operating_._noted(kept, Node(7 << 16, kind, thread), told)
        assert len(kept.entries) == many


async def test_a_thread_that_has_gone(sample: SampleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel hears that its name is gone, also when somebody looked at the folders before we heard of it; and it
    is nobody's heir any more. What was made of it doesn't hold if it comes back: nobody would tell it of changes.
    """
    thread = sample.add(1)
    dropped: list[str] = []
    monkeypatch.setattr(following, "drop_entry", lambda folder, name: dropped.append(name))
    mounted = operating(sample, tmp_path)
    store = mounted._engine.store
    assert thread in store
    node = mounted.tree.lookup(mounted.tree.folder(thread), "turns.jsonl")
    await mounted.contents.measure(node.ino, node)
    mounted.contents._versions.heirs.note(thread, [basis(rollout(2))])
    sample.path(thread).unlink()
    store.refresh(anew=True)
    mounted.following._note(Changes(files={rollout(1)}, folders={DAY}))
    assert dropped == [thread]
    assert mounted.contents.heirs(rollout(2)) == set()
    assert len(mounted.contents._versions._known) == 0


def test_changes_that_nobody_asks_about() -> None:
    """More changes than a pass is worth are not remembered one by one, and none is lost: a pass follows."""
    changed = Backlog()
    changed.done(changed.todo(is_watched=True), backlog.Reached(None, 0, entered=True, is_current=True))
    for number in range(10_000):
        changed.note({thread_id(number)})
    assert len(changed._changed) < 5000
    assert changed.todo(is_watched=True) == Todo("", (), 0, is_watched=True)
    index = Indexing("none", lambda: True, trio.lowlevel.checkpoint)
    index._entering = ()
    for number in range(10_000):
        index.note({thread_id(number)})
    assert indexing._MANY < len(index._changed) < 5000
    assert index.lagging() is None


async def test_stale_threads_that_are_gone(sample: SampleStore, tmp_path: Path) -> None:
    """Nobody looks into a view while threads come and go: what is to be read again are those that are there."""
    threads = {sample.add(number) for number in range(4)}
    store = ThreadStore(str(sample.root), Spool(str(tmp_path / "spool")))
    shelving = Shelving(Engine(store, None), Shelves(), lambda: True)
    await shelving.ready(BY_DATE)
    shelving._many = 10
    shelving.forget(threads)
    shelving.forget(thread_id(number) for number in range(100, 120))
    assert shelving._stale == threads


def spine(number: int) -> Spine:
    """A thread with a branch and a folder that no other one has."""
    where = f"branch-{number}", f"/folder/{number}"
    return Spine(0, 0, 0, 0, "words", *where, "model", is_whole=True, is_agent=False)


def test_texts_of_threads_that_have_moved_on() -> None:
    """Branches and folders that no thread has any more are not kept, and those of the others are the same."""
    shelves = Shelves()
    for number in range(3000):
        shelves.put({thread_id(number % 3): (spine(number), False)})
    assert len(shelves._texts) == len(shelves._numbers) < 2000
    assert shelves.folders(BY_BRANCH) == [f"branch-{number}" for number in range(2997, 3000)]
    assert shelves.folders(f"{BY_CWD}/folder") == ["2997", "2998", "2999"]
    assert [shelves.card(thread_id(number)).cwd for number in range(3)] == [f"/folder/{2997 + at}" for at in range(3)]


def test_names_of_many_small_folders_are_weighed() -> None:
    """Names are kept whole where a folder has few: they count as what they take."""
    shelves = Shelves()
    shelves.put({thread_id(number): (spine(number // 100), False) for number in range(1000)})
    for folder in shelves.folders(BY_BRANCH):
        names = shelves.links(f"{BY_BRANCH}/{folder}").listed()
        assert shelves.links(f"{BY_BRANCH}/{folder}").weight > sum(map(len, names))
    shelves.links(f"{BY_CWD}/folder")  # in which there are only folders
    assert shelves._names._total > 10 * 100 * 100


def test_a_journal_of_very_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last answers of the latest threads are found."""
    monkeypatch.setattr(journal, "_THREADS", 3)
    one = Journal(str(tmp_path / journal.NAME))
    for number in range(5):
        answer = control.answer("fork", thread_id(number), "done", error=5, message="m", dry_run=False)
        one.append(thread_id(number), b"latest", answer)
    assert [one.last(thread_id(number)) is not None for number in range(5)] == [False, False, True, True, True]
    assert [one.error(thread_id(number)) is not None for number in range(5)] == [False, False, True, True, True]


def test_a_folder_that_was_moved_away(tmp_path: Path) -> None:
    """It isn't watched any more, nor what is below it; one that was moved within the store still is."""
    (tmp_path / "store" / DAY).mkdir(parents=True)
    (tmp_path / "store" / "sessions/2025/01/01").mkdir(parents=True)
    root, heard = tmp_path / "store", list[Changes]()
    watch = Watch(str(root), RememberedStates(str(root)), heard.append)
    try:
        (root / "sessions/2025").rename(tmp_path / "away")
        (root / "sessions/2026/11").rename(root / "sessions/2026/12")
        for _ in range(2):  # the kernel says that a watch has ended when we have ended it
            watch.drain()
        day = "sessions/2026/12/29"
        assert set(watch._folders.values()) == {"", "sessions", "sessions/2026", "sessions/2026/12", day}
        heard.clear()
        (tmp_path / "away/01/01/a").touch()
        (root / day / "b").touch()
        watch.drain()
        assert set.union(*(changes.files for changes in heard)) == {f"{day}/b"}
        assert isinstance(watch._queue, INotify)
    finally:
        watch.close()


def test_what_is_known_of_threads_that_have_gone(sample: SampleStore, tmp_path: Path) -> None:
    """Times go with their thread, and a thread without a family is no entry in what is known of families."""
    threads = [sample.add(number) for number in range(3)]
    store = ThreadStore(str(sample.root), Spool(str(tmp_path / "spool")))
    for thread in threads:
        store.times(thread)
        assert store.links(thread).root == thread
    assert store._neighbours._roots == {}
    sample.path(threads[0]).unlink()
    assert store.refresh() == {threads[0]}
    assert set(store._times._known) == set(threads[1:])


def test_a_file_under_another_number_is_told_of_changes(sample: SampleStore, plant: Plant) -> None:
    """For as long as it is shown there, however many others were moved meanwhile."""
    thread = sample.add(1)
    planted = plant()
    node = planted.walk(f"threads/{thread}/turns.jsonl")
    assert planted.contents.is_steady(node)
    planted.contents._epochs._epochs[node.ino] = 2
    assert planted.contents.numbers(node) == [inodes.with_epoch(node.ino, number) for number in range(3)]
    assert not planted.contents.is_steady(node)


async def test_links_of_many_threads_are_asked_for_in_pieces(
    sample: SampleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is asked for some logs at a time, since what is sent to it is held as a whole; all are known then."""
    monkeypatch.setattr(engine, "FEW", 2)
    monkeypatch.setattr(engine, "_PIECE", 3)
    first = sample.add(0)
    forks = [sample.add(number, forked_from_id=first) for number in range(1, 8)]
    store = ThreadStore(str(sample.root), Spool(str(tmp_path / "spool")))
    assert len(store.thread_ids()) == 8
    asked: list[int] = []
    async with open_pool(worker.Place(store.root, str(tmp_path / "spool"))) as pool:
        run = pool.run

        async def counted(function: Callable[..., Any], *args: Any) -> Any:
            asked.append(len(args[0]))
            return await run(function, *args)

        monkeypatch.setattr(pool, "run", counted)
        links = await Engine(store, pool).links(first)
    assert links.forks == tuple(forks)
    assert asked == [3, 3, 2]
