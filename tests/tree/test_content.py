"""The bytes of files, and that they stay right while the store changes under them (FAULTS 28)."""

from __future__ import annotations

import errno
import json
import os
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from threadstore.extents import ExtentsBuilder, Source
from threadstore.projection import Projection
from threadstore.store import ThreadStore

from rolloutfs import inodes, outlines, readers, told, versions
from rolloutfs.attributes import Attributes, Clock, Describer
from rolloutfs.fds import OpenFiles
from rolloutfs.nodes import Node
from rolloutfs.readers import Derived, Plain, Version, reader
from rolloutfs.storefiles import StoreFiles
from rolloutfs.told import Announced
from rolloutfs.versions import Versions
from tests.tree.conftest import Planted
from tests.tree.sample import SampleStore, thread_id

Plant = Callable[[], Planted]


def derived(sources: list[Path], pieces: list[tuple[int, int, int, bytes, bytes]]) -> tuple[Derived, bytes]:
    """A version made of slices, and what it must read as."""
    builder = ExtentsBuilder()
    numbers = []
    for path in sources:
        status = path.stat()
        numbers.append(builder.source(Source(str(path), status.st_dev, status.st_ino, status.st_size)))
    content = b""
    for source, offset, length, prefix, suffix in pieces:
        builder.slice(numbers[source], offset, length, prefix, suffix)
        content += prefix + sources[source].read_bytes()[offset : offset + length] + suffix
    return Derived.of(Projection(builder.build(), (), b"generation")), content


async def held(sample: SampleStore, plant: Plant) -> tuple[str, Planted, Node, int]:
    """A thread, its tree, and the node of its effective history with a handle."""
    thread = sample.add(1, "hello")
    planted = plant()
    path = f"threads/{thread}/effective_history.jsonl"
    return thread, planted, planted.walk(path), await planted.open(path)


@given(
    pieces=st.lists(
        st.tuples(
            st.integers(0, 1), st.integers(0, 40), st.integers(0, 60), st.binary(max_size=3), st.binary(max_size=3)
        ),
        max_size=200,
    ),
    offset=st.integers(0, 500),
    length=st.integers(0, 500),
    between=st.sampled_from([0, 3, 4096]),
)
def test_any_part_of_extents_reads_like_the_rendered_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[tuple[int, int, int, bytes, bytes]],
    offset: int,
    length: int,
    between: int,
) -> None:
    """Reading a slice of the content equals slicing all of it, however many slices come with one read."""
    folder = tmp_path_factory.mktemp("extents")
    sources = [folder / "a", folder / "b"]
    sources[0].write_bytes(bytes(range(100)))
    sources[1].write_bytes(bytes(range(100, 200)))
    files = OpenFiles(StoreFiles(str(folder)), idle=0)
    version, content = derived(sources, pieces)
    if not pieces:
        return
    reading = reader(version, files)
    assert reading.size == len(content)
    with mock.patch.object(readers, "_BETWEEN", between):
        assert reading.read(offset, length) == content[offset : offset + length]
    reading.close()
    assert len(files) == 0


def test_slices_that_lie_close_together_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for a hundred lines of a log, and another one for what lies far away."""
    source = tmp_path / "log"
    source.write_bytes(os.urandom(200_000))
    pieces = [(0, 100 * number, 90, b"", b"\n") for number in range(100)] + [(0, 150_000, 90, b"", b"\n")]
    pieces += [(0, 160_000 + 1000 * number, 10, b"", b"\n") for number in range(2)]  # too little to be worth it
    version, content = derived([source], pieces)
    reading = reader(version, OpenFiles(StoreFiles(str(tmp_path)), idle=0))
    calls: list[tuple[int, int]] = []
    genuine = os.pread

    def counted(descriptor: int, length: int, offset: int) -> bytes:
        calls.append((offset, length))
        return genuine(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    assert reading.read(0, 1 << 20) == content
    assert calls == [(0, 9_990), (150_000, 90), (160_000, 10), (161_000, 10)]
    reading.close()


@pytest.mark.parametrize("change", ["cut", "rewritten", "rewritten longer"])
def test_a_source_that_changes_under_a_reader_gives_eio(tmp_path: Path, change: str) -> None:
    """A log that was cut or rewritten in place has other bytes: never serve those as the old content."""
    source = tmp_path / "log"
    source.write_bytes(b"x" * 1000)
    version, content = derived([source], [(0, 0, 1000, b"", b"\n")])
    reading = reader(version, OpenFiles(StoreFiles(str(tmp_path)), idle=0))
    assert reading.read(0, 2000) == content
    with source.open("r+b") as file:
        file.truncate(10)
        if change != "cut":
            file.write(b"y" * (1000 if change == "rewritten" else 3000))
    with pytest.raises(OSError, match="changed while") as caught:
        reading.read(0, 2000)
    assert caught.value.errno == errno.EIO
    reading.close()


def test_a_replaced_source_is_not_mistaken_for_the_old_one(tmp_path: Path) -> None:
    """Offsets taken from one file are never used on another that lies at its path."""
    source = tmp_path / "log"
    source.write_bytes(b"x" * 1000)
    version, content = derived([source], [(0, 0, 1000, b"", b"")])
    files = OpenFiles(StoreFiles(str(tmp_path)), idle=0)
    early = reader(version, files)
    (tmp_path / "new").write_bytes(b"y" * 1000)
    os.rename(tmp_path / "new", source)
    assert early.read(0, 2000) == content
    early.close()
    with pytest.raises(OSError, match="replaced") as caught:
        reader(version, files)
    assert caught.value.errno == errno.ESTALE


@pytest.mark.parametrize("trouble", ["cut", "unreadable"])
def test_a_file_that_cant_be_guarded_is_not_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Who couldn't open a file doesn't keep it open, either."""
    (tmp_path / "log").write_bytes(b"x" * 1000)
    status = (tmp_path / "log").stat()
    files = OpenFiles(StoreFiles(str(tmp_path)), idle=0)
    version, _ = derived([tmp_path / "log"], [(0, 0, 1000, b"", b"")])
    if trouble == "cut":
        os.truncate(tmp_path / "log", 10)
    else:
        monkeypatch.setattr(os, "pread", mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    for shown in (version, Plain.of(str(tmp_path / "log"), status)):
        with pytest.raises(OSError, match=r"cut meanwhile|Input/output") as raised:
            reader(shown, files)
        assert raised.value.errno == (errno.ESTALE if trouble == "cut" else errno.EIO)
    assert len(files) == 0


def test_a_file_that_was_deleted_is_let_go_of(tmp_path: Path) -> None:
    """Its disk space isn't kept by what was read of it, but by who reads it."""
    files = OpenFiles(StoreFiles(str(tmp_path)))
    readings = []
    for name in ("read", "idle", "kept"):
        (tmp_path / name).write_bytes(b"x" * 1000)
        readings.append(reader(derived([tmp_path / name], [(0, 0, 1000, b"", b"")])[0], files))
    for reading in readings[1:]:
        reading.close()
    for name in ("read", "idle"):
        (tmp_path / name).unlink()
    files.close_deleted()
    assert len(files) == 2
    assert readings[0].read(0, 2000) == b"x" * 1000
    readings[0].close()
    assert len(files) == 1


async def test_every_file_has_the_size_that_it_reads_as(sample: SampleStore, plant: Plant) -> None:
    """Attributes and content agree for every derived file, rollout and file of the store."""
    thread = sample.add(1, "hello", "world")
    planted = plant()
    paths = [f"threads/{thread}/{name}" for name in planted.names(f"threads/{thread}") if "." in name]
    paths += [f"threads/{thread}/rollouts/{sample.path(thread).name}", f"threads/{thread}/lineage/lineage.json"]
    paths += [
        "store/heads.jsonl",
        "store/stats.json",
        "store/lineage.mmd",
        f"threads/{thread}/lineage/family.txt",
        f"threads/{thread}/lineage/family.mmd",
        "README.md",
        str(sample.path(thread)).replace(str(sample.root), "store"),
    ]
    for path in paths:
        node = planted.walk(path)
        told = await planted.contents.measure(planted.contents.inode(node), node)
        assert told.size == len(await planted.read(path)), path


async def test_a_handle_follows_growth(sample: SampleStore, plant: Plant) -> None:
    """What is appended appears through the same handle and inode: `tail -f` works."""
    thread = sample.add(1, "hello")
    planted = plant()
    for path in (f"threads/{thread}/effective_history.jsonl", f"threads/{thread}/rollouts/{sample.path(thread).name}"):
        node = planted.walk(path)
        handle = await planted.open(path)
        before = planted.contents.read(handle, 0, 1 << 20)
        sample.append(thread, "more")
        told = await planted.contents.measure(node.ino, node)
        after = planted.contents.read(handle, 0, 1 << 20)
        assert after.startswith(before)
        assert len(after) == told.size > len(before)
        assert planted.contents.inode(node) == node.ino
        planted.contents.release(handle)


async def test_replaced_content_gets_another_inode_while_the_old_one_is_open(sample: SampleStore, plant: Plant) -> None:
    """Old handle: old bytes. New open: ESTALE once, then new bytes. All closed: the number from before."""
    thread = sample.add(1, "hello", "world")
    planted = plant()
    for path in (f"threads/{thread}/effective_history.jsonl", f"threads/{thread}/rollouts/{sample.path(thread).name}"):
        node = planted.walk(path)
        old = await planted.open(path)
        before = planted.contents.read(old, 0, 1 << 20)
        sample.replace(thread, f"something else for {path}", "x")
        with pytest.raises(OSError, match="replaced") as caught:
            await planted.open(path)
        assert caught.value.errno == errno.ESTALE
        moved = planted.contents.inode(node)
        assert moved != node.ino
        assert inodes.canonical(moved) == node.ino
        assert b"something else" in await planted.read(path)
        assert planted.contents.read(old, 0, 1 << 20) == before
        assert (await planted.contents.measure(node.ino, node)).size == len(before)
        planted.contents.release(old)
        assert planted.contents.inode(node) == node.ino
        assert b"something else" in await planted.read(path)


async def test_content_that_is_replaced_again_within_a_second(sample: SampleStore, plant: Plant) -> None:
    """Whoever keeps the old content open, each next open of the same program gets the content of its own moment."""
    thread = sample.add(1, "hello", "world")
    planted = plant()
    path = f"threads/{thread}/rollouts/{sample.path(thread).name}"
    held = []
    for number in range(3):
        held.append(await planted.open(path))
        sample.replace(thread, f"{number}")
        with pytest.raises(OSError, match="replaced"):
            await planted.open(path)
        assert await planted.read(path) == sample.path(thread).read_bytes()
    for handle in held:
        planted.contents.release(handle)


async def test_content_that_is_replaced_again_while_a_path_is_walked_slowly(sample: SampleStore, plant: Plant) -> None:
    """The kernel walks a second time and not a third: the program gets what was there after it began, and no error."""
    thread = sample.add(1, "hello", "world")
    planted = plant()
    path = f"threads/{thread}/rollouts/{sample.path(thread).name}"
    held = [await planted.open(path)]
    sample.replace(thread, "first")
    with pytest.raises(OSError, match="replaced"):
        await planted.open(path)
    node = planted.walk(path)
    ino, second = planted.contents.inode(node), sample.path(thread).read_bytes()
    held.append((await planted.contents.open(ino, node, 2, lambda ino: None))[0])
    sample.replace(thread, "second")
    await trio.sleep(1.5)
    held.append((await planted.contents.open(ino, node, 1, lambda ino: None))[0])
    assert planted.contents.read(held[-1], 0, 1 << 20) == second
    assert await planted.read(path) == sample.path(thread).read_bytes()
    for handle in held:
        planted.contents.release(handle)


async def test_pages_go_before_a_greater_size_is_told(sample: SampleStore, plant: Plant) -> None:
    """What is read while they go has the new end already; who asks meanwhile waits, and is told once they are gone."""
    thread, planted, node, handle = await held(sample, plant)
    before = planted.contents.read(handle, 0, 1 << 20)
    gone, going, told = trio.Event(), trio.Event(), list[int]()

    async def drop(ino: int) -> None:
        assert ino == node.ino
        going.set()
        await gone.wait()

    async def ask() -> None:
        told.append((await planted.contents.measure(node.ino, node)).size)

    planted.contents.reach(drop)
    sample.append(thread, "more")
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await going.wait()
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            after = planted.contents.read(handle, 0, 1 << 20)
            assert len(after) > len(before)
            known = planted.contents.announced(node.ino)
            assert told == []
            assert known is not None
            assert known.size == len(before)
            assert planted.contents.is_passing(node.ino)
            gone.set()
    assert told == [len(after)] * 2
    assert not planted.contents.is_passing(node.ino)
    planted.contents.release(handle)


@pytest.mark.parametrize("when", ["before", "while open", "while others had it open"])
async def test_the_kernel_is_given_the_end_of_what_it_may_have_forgotten(
    sample: SampleStore, plant: Plant, when: str
) -> None:
    """Once for each size, whenever there was a notification. The file stays open while that is done, though everybody
    closes it.
    """
    thread = sample.add(1, *("x" * 1000 for _ in range(9)))
    planted = plant()
    path = f"threads/{thread}/effective_history.jsonl"
    node = planted.walk(path)
    put: list[tuple[int, int, bytes]] = []

    async def put_page(ino: int, offset: int, content: bytes) -> None:
        put.append((ino, offset, content))
        if len(put) == 2:
            planted.contents.release(handle)
            assert planted.contents.is_open(ino)

    planted.contents.reach(put_page=put_page)
    if when == "before":
        planted.contents.disturb(node.ino)
    handle = await planted.open(path)
    if when == "while others had it open":
        planted.contents.disturb(node.ino)
        planted.contents.release(handle)
        handle = await planted.open(path)
    if when == "while open":
        assert planted.contents.is_settled(node.ino)
        planted.contents.disturb(node.ino)
    content = planted.contents.read(handle, 0, 1 << 20)
    start = len(content) // 4096 * 4096
    for _ in range(2):
        assert (await planted.contents.measure(node.ino, node)).size == len(content)
        assert put == [(node.ino, start, content[start:])]
        planted.contents.disturb(node.ino)
    sample.append(thread, "more")
    size = (await planted.contents.measure(node.ino, node)).size
    assert put[1][1] + len(put[1][2]) == size > len(content)
    assert not planted.contents.is_open(node.ino)


async def test_a_version_that_took_long_does_not_freeze_what_is_newer(
    sample: SampleStore, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody was told of more while it was being made: the file keeps its number, and the handle goes on."""
    thread = sample.add(1, "hello")
    planted = plant()
    path = f"threads/{thread}/effective_history.jsonl"
    node = planted.walk(path)
    old = await planted.contents._versions.now(node, with_extents=True)
    handle = await planted.open(path)
    sample.append(thread, "more")
    size = (await planted.contents.measure(node.ino, node)).size
    make, late = planted.contents._versions.now, [old]

    async def version(node: Node, *, with_extents: bool) -> Version:
        return late.pop() if late else await make(node, with_extents=with_extents)

    monkeypatch.setattr(planted.contents._versions, "now", version)
    assert (await planted.contents.measure(node.ino, node)).size == size > old.size
    assert planted.contents.inode(node) == node.ino
    assert len(planted.contents.read(handle, 0, 1 << 20)) == size
    planted.contents.release(handle)


async def test_content_that_never_lasts_can_be_opened(
    sample: SampleStore, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store that changes all the time the newest that can be made is given, though more was announced."""
    thread = sample.add(1, "hello")
    planted = plant()
    path = f"threads/{thread}/thread.json"
    node = planted.walk(path)
    planted.contents.tell(node.ino, Announced(1 << 20, 0, 0))
    monkeypatch.setattr(planted.contents._versions, "is_valid", lambda node, version: False)
    assert json.loads(await planted.read(path))["id"] == thread


async def test_what_cannot_be_looked_at_is_not_relied_on(sample: SampleStore, plant: Plant) -> None:
    """The log is away for a moment: who has the file open keeps it, and it is asked for again."""
    thread, planted, node, handle = await held(sample, plant)
    source = sample.path(thread)
    aside = source.rename(source.with_name("aside"))
    size = (await planted.contents.measure(node.ino, node)).size
    assert size == len(planted.contents.read(handle, 0, 1 << 20))
    assert planted.contents.is_passing(node.ino)
    aside.rename(source)
    planted.store.refresh()
    assert (await planted.contents.measure(node.ino, node)).size == size
    assert not planted.contents.is_passing(node.ino)
    planted.contents.release(handle)


async def test_a_deleted_thread_stays_readable_for_who_has_it_open(sample: SampleStore, plant: Plant) -> None:
    """The size of the open file is still told, and its bytes are still there."""
    thread, planted, node, handle = await held(sample, plant)
    before = planted.contents.read(handle, 0, 1 << 20)
    sample.path(thread).unlink()
    planted.store.refresh()
    assert (await planted.contents.measure(node.ino, node)).size == len(before)
    assert planted.contents.read(handle, 0, 1 << 20) == before
    with pytest.raises(KeyError):
        planted.walk(f"threads/{thread}/effective_history.jsonl")
    planted.contents.release(handle)


async def test_unchanged_content_may_stay_in_the_page_cache(sample: SampleStore, plant: Plant) -> None:
    """The second open of the same content keeps the kernel's pages, the first and one after a change do not."""
    thread = sample.add(1, "hello")
    planted = plant()
    node = planted.walk(f"threads/{thread}/effective_history.jsonl")
    kept = []
    for text in (None, None, "more"):
        if text is not None:
            sample.append(thread, text)
        handle, keep = await planted.contents.open(node.ino, node, 1, lambda ino: None)
        planted.contents.release(handle)
        kept.append(keep)
    assert kept == [False, True, False]


async def test_one_damaged_thread_does_not_touch_another(sample: SampleStore, plant: Plant) -> None:
    """A thread whose base is missing answers EIO in its derived files; its raw rollout and all other threads read
    on.
    """
    sound = sample.add(1, "hello")
    base = {"thread_id": thread_id(99), "end_ordinal_exclusive": 5, "end_byte_offset": 500}
    broken = sample.add(2, "hello", history_mode="paginated", history_base=base)
    planted = plant()
    with pytest.raises(OSError) as caught:  # noqa: PT011  the text is the library's
        await planted.read(f"threads/{broken}/effective_history.jsonl")
    assert caught.value.errno == errno.EIO
    raw_path = f"threads/{broken}/rollouts/{sample.path(broken).name}"
    assert await planted.read(raw_path) == sample.path(broken).read_bytes()
    assert b"hello" in await planted.read(f"threads/{sound}/effective_history.jsonl")


def test_columns_stay_small() -> None:
    """A piece costs some 24 bytes; the bound on projections counts on it."""
    assert sum(array(code).itemsize for code in "IHQQ") <= 24


async def test_what_is_told_of_all_files_of_a_thread_is_what_is_told_of_each(sample: SampleStore, plant: Plant) -> None:
    """But for one that is open, or was shown under another number; and nothing when the log has changed."""
    thread = sample.add(1, "hello")
    planted = plant()
    contents, store = planted.contents, planted.store
    clock = Clock(store, StoreFiles(store.root))
    describer = Describer(store, StoreFiles(store.root), planted.tree, contents, clock)
    views, base = planted.tree.views(thread), planted.walk(f"threads/{thread}").ino

    def told() -> dict[int, Attributes]:
        sheet = describer.sheet(thread, base)
        return {base | slot: sheet.attributes(slot) for slot in sheet.sizes}

    assert told() == {}  # nothing is computed
    for node in views:
        await contents.measure(node.ino, node)
    before = told()
    assert before == {node.ino: describer.glance(node) for node in views}
    handle = await planted.open(f"threads/{thread}/effective_history.jsonl")
    replaced = await planted.open(f"threads/{thread}/turns.jsonl")
    assert told().keys() == before.keys() - {views[0].ino, views[5].ino}
    sample.replace(thread, "other", "words")
    assert told() == {}
    for node in views:
        await contents.settle(node)
        await contents.measure(contents.inode(node), node)
    contents.release(handle)
    again = told()
    assert again == {node.ino: describer.glance(node) for node in views if node.ino in again}
    assert views[5].ino not in again
    contents.release(replaced)


async def test_what_was_told_of_all_files_together_is_remembered(sample: SampleStore, plant: Plant) -> None:
    """An open of a file that has another size now makes the kernel ask again; what is told of it alone comes last."""
    thread = sample.add(1, "hello")
    planted = plant()
    contents, store = planted.contents, planted.store
    describer = Describer(store, StoreFiles(store.root), planted.tree, contents, Clock(store, StoreFiles(store.root)))
    node = planted.walk(f"threads/{thread}/full_history.jsonl")
    base, slot = node.ino & ~0xFF, node.ino & 0xFF
    first = await contents.measure(node.ino, node)
    sheet = describer.sheet(thread, base)
    assert contents.announced(node.ino) == Announced(sheet.sizes[slot], *sheet.times) == first
    assert contents.announced(inodes.with_epoch(node.ino, 1)) is None
    sample.append(thread, "more")
    told: list[int] = []
    handle, _ = await contents.open(node.ino, node, 1, told.append)
    assert told == [node.ino]
    contents.release(handle)
    second = await contents.measure(node.ino, node)
    assert contents.announced(node.ino) == second
    assert second.size > first.size


async def test_a_file_that_is_opened_again(sample: SampleStore, plant: Plant) -> None:
    """As long as nothing has happened, while the store is watched, nothing is asked for it."""
    thread = sample.add(1, "hello")
    planted = plant()
    contents, node = planted.contents, planted.walk(f"threads/{thread}/effective_history.jsonl")
    before = await planted.read(f"threads/{thread}/effective_history.jsonl")
    assert contents.open_again(node.ino, 1) is None  # nobody tells of changes
    contents.note(watched=True)
    assert contents.open_again(node.ino, 1) is None
    await planted.read(f"threads/{thread}/effective_history.jsonl")
    first = contents.open_again(node.ino, 1)
    assert first is not None
    assert contents.read(first, 0, 1 << 20) == before
    assert contents.open_again(node.ino, 1) is None  # somebody has it open
    contents.release(first)
    sample.replace(thread, "other", "words")
    contents.note(watched=True)
    assert contents.open_again(node.ino, 1) is None
    after = await planted.read(f"threads/{thread}/effective_history.jsonl")
    assert after != before
    assert contents.open_again(node.ino, 1) is None  # the kernel has just been told that it is another one
    await planted.read(f"threads/{thread}/effective_history.jsonl")
    again = contents.open_again(node.ino, 1)
    assert again is not None
    assert contents.read(again, 0, 1 << 20) == after
    contents.release(again)
    contents.note(watched=False)
    assert contents.open_again(node.ino, 1) is None


async def test_many_files_that_are_opened_again(
    sample: SampleStore, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what was made together with a file that was opened, little is kept, and nothing at the cost of such files: of
    more threads than we know the sizes of, each is opened again, and its size told, without computing anything.
    """
    for module in (outlines, told, versions):
        monkeypatch.setattr(module, "KNOWN", 4)
    for module in (outlines, told):
        monkeypatch.setattr(module, "OUTLINED", 4)
    monkeypatch.setattr(versions, "PROJECTIONS", 30 * 2048)
    monkeypatch.setattr(versions, "BESIDE", 8 * 2048)
    threads = [sample.add(number, f"hello {number}") for number in range(16)]
    planted = plant()
    contents = planted.contents
    contents.note(watched=True)
    paths = [f"threads/{thread}/effective_history.jsonl" for thread in threads]
    before = [await planted.read(path) for path in paths]
    for name in ("project", "project_all", "outlines"):
        monkeypatch.delattr(ThreadStore, name)
    for path, text in zip(paths, before, strict=True):
        node = planted.walk(path)
        assert (await contents.measure(node.ino, node)).size == len(text)
        handle = contents.open_again(node.ino, 1)
        assert handle is not None
        assert contents.read(handle, 0, 1 << 20) == text
        contents.release(handle)


async def test_the_size_of_a_file_that_may_be_called_otherwise(sample: SampleStore, plant: Plant) -> None:
    """What the kernel asks for each second is known by a few bytes, until something happens or somebody opens it."""
    thread = sample.add(1, "hello")
    planted = plant()
    contents, node = planted.contents, planted.walk(f"threads/{thread}/thread.json")
    told = await contents.measure(node.ino, node)
    assert contents.size_at_hand(node) is None  # nobody tells of changes
    contents.note(watched=True)
    assert contents.size_at_hand(node) is None
    await contents.measure(node.ino, node)
    assert contents.size_at_hand(node) == told.size == len(await planted.read(f"threads/{thread}/thread.json"))
    handle = await planted.open(f"threads/{thread}/thread.json")
    assert contents.size_at_hand(node) is None
    contents.release(handle)
    assert contents.size_at_hand(node) == told.size
    sample.append(thread, "more words")
    contents.note(watched=True)
    assert contents.size_at_hand(node) is None
    assert (await contents.measure(node.ino, node)).size == contents.size_at_hand(node)
    contents.note(watched=False)
    assert contents.size_at_hand(node) is None


async def test_what_was_told_of_an_open_file_is_remembered(sample: SampleStore, plant: Plant) -> None:
    """A listing of its folder, which tells of the other files, doesn't forget its times."""
    thread, planted, node, handle = await held(sample, plant)
    contents, base = planted.contents, node.ino & ~0xFF
    contents.release(handle)
    for one in planted.tree.views(thread):
        await contents.measure(one.ino, one)
    contents.sizes(thread, base, (1, 2))
    handle = await planted.open(f"threads/{thread}/effective_history.jsonl")
    before = contents.announced(node.ino)
    assert before is not None
    assert before.mtime_ns == 1
    assert node.ino & 0xFF not in contents.sizes(thread, base, (3, 4))
    assert contents.announced(node.ino) == before
    contents.release(handle)


async def test_a_change_while_a_size_is_made(
    sample: SampleStore, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the size isn't relied on."""
    thread = sample.add(1, "hello")
    planted = plant()
    contents, node = planted.contents, planted.walk(f"threads/{thread}/thread.json")
    contents.note(watched=True)
    version = contents._versions.now

    async def late(node: Node, *, with_extents: bool) -> Version:
        made = await version(node, with_extents=with_extents)
        contents.note(watched=True)
        return made

    monkeypatch.setattr(contents._versions, "now", late)
    await contents.measure(node.ino, node)
    assert contents.size_at_hand(node) is None


async def test_a_change_while_a_file_is_opened(
    sample: SampleStore, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made before it is given to who opened before it, and not to the next one."""
    thread = sample.add(1, "hello")
    planted = plant()
    contents, node = planted.contents, planted.walk(f"threads/{thread}/turns.jsonl")
    contents.note(watched=True)
    version = Versions.now

    async def slow(self: Versions, node: Node, *, with_extents: bool) -> Version:
        made = await version(self, node, with_extents=with_extents)
        contents.note(watched=True)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(Versions, "now", slow)
        await planted.read(f"threads/{thread}/turns.jsonl")
    assert contents.open_again(node.ino, 1) is None
    await planted.read(f"threads/{thread}/turns.jsonl")
    handle = contents.open_again(node.ino, 1)
    assert handle is not None
    contents.release(handle)


@pytest.mark.parametrize(("age", "is_settled"), [(-100, False), (10, True)])
async def test_a_database_that_was_written_just_now(
    sample: SampleStore, plant: Plant, age: int, *, is_settled: bool
) -> None:
    """It may be written again without a sign of it, so what names a thread is looked at with each open. The future is
    just now for as long as the test takes.
    """
    thread = sample.add(1, "hello")
    database = sample.root / "state_5.sqlite"
    database.write_bytes(b"of another program")
    planted = plant()
    contents, node = planted.contents, planted.walk(f"threads/{thread}/thread.json")
    contents.note(watched=True)
    os.utime(database, (time.time() - age,) * 2)
    for _ in range(2):
        await planted.read(f"threads/{thread}/thread.json")
    handle = contents.open_again(node.ino, 1)
    assert (handle is not None) == is_settled
    if handle is not None:
        contents.release(handle)
