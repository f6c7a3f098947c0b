"""What is told of a folder in one piece is what is told of it name by name."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from threadstore.filestates import RememberedStates
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import following, listings, shortcuts
from rolloutfs.engine import Engine
from rolloutfs.journal import Journal
from rolloutfs.listings import Stream
from rolloutfs.operations import Operations
from rolloutfs.shortcuts import Shortcuts
from rolloutfs.watch import open_watch
from tests.tree.sample import SampleStore

OLD = (1_700_000_000, 1_700_000_000)
ROOM = 1 << 16  # bytes of an answer
Operating = Callable[..., Operations]
FOLDERS = ("", "lineage", "lineage/forks", "lineage/agents", "rollouts")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Folders that were told in one piece; of no kernel anything is asked."""
    monkeypatch.setattr(shortcuts, "drop_names", lambda ino: None)
    monkeypatch.setattr(following, "drop_entry", lambda folder, name: None)
    found: list[int] = []
    whole = Shortcuts._whole

    def noted(self: Shortcuts, stream: Stream, size: int) -> bytes | None:
        page = whole(self, stream, size)
        if page is not None:
            found.append(stream.folder.ino)
        return page

    monkeypatch.setattr(Shortcuts, "_whole", noted)
    return found


@pytest.fixture
def operating(sample: SampleStore, tmp_path: Path) -> Iterator[Operating]:
    """A function that gives the operations of a mount that is watched, of which the kernel doesn't know."""
    with ExitStack() as stack:
        yield lambda *, read_only=False: _operating(sample, tmp_path, stack, read_only=read_only)


def _operating(sample: SampleStore, folder: Path, stack: ExitStack, *, read_only: bool) -> Operations:
    states = RememberedStates(str(sample.root))
    store = ThreadStore(str(sample.root), Spool(str(folder / "spool")), states=states)
    made = Operations(Engine(store, None), b"readme", Journal(str(folder / "operations.jsonl")), read_only=read_only)
    watch = open_watch(store.root, states, made.following.note)
    assert watch is not None
    stack.callback(watch.close)
    made.following.use(watch)
    made.shortcuts.keep_names()
    return made


async def measured(mounted: Operations, thread: str) -> None:
    """Make everything of a thread."""
    for node in mounted.tree.views(thread):
        await mounted.contents.measure(node.ino, node)


def listed(mounted: Operations, thread: str, *, whole: bool) -> list[bytes]:
    """The answers for all folders of a thread that has no turns/, as the first listings of a server give them."""
    mounted._answers.forget(thread)
    mounted.shortcuts._streams._last = 0
    pages = []
    with pytest.MonkeyPatch.context() as patch:
        if not whole:
            patch.setattr(Shortcuts, "_whole", lambda self, stream, size: None)
        for path in FOLDERS:
            node = mounted.tree.folder(thread)
            for part in path.split("/") if path else ():
                node = mounted.tree.lookup(node, part, mounted._engine.store.links(thread))
            page = mounted.shortcuts.list_now(node.ino, 0, ROOM)
            assert page is not None
            pages.append(page)
    return pages


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("times", [OLD, (-1, -1), None])
async def test_all_folders(
    sample: SampleStore, operating: Operating, told: list[int], times: tuple[int, int] | None, *, read_only: bool
) -> None:
    """Of a quiet thread, of one that somebody writes to, and of one from before 1970."""
    thread = sample.add(1, "hello")
    if times is not None:
        os.utime(sample.path(thread), times)
    mounted = operating(read_only=read_only)
    await measured(mounted, thread)
    assert listed(mounted, thread, whole=True) == listed(mounted, thread, whole=False)
    assert len(told) == len(FOLDERS)


async def test_threads_that_are_not_like_most(sample: SampleStore, operating: Operating, told: list[int]) -> None:
    """One with a fork, one of which a file is open, and one of which nothing is known."""
    forked, opened, unknown = (sample.add(number, "hello") for number in range(1, 4))
    sample.add(9, "more", forked_from_id=forked)
    mounted = operating()
    for thread in (forked, opened):
        await measured(mounted, thread)
    node = next(one for one in mounted.tree.views(opened) if one.view is View.TURNS)
    handle, _ = await mounted.contents.open(node.ino, node, 1, lambda ino: None)
    for thread in (forked, opened, unknown):
        assert listed(mounted, thread, whole=True) == listed(mounted, thread, whole=False)
    bases = {thread: mounted.tree.folder(thread).ino for thread in (forked, opened, unknown)}
    slots = {thread: {ino - base for ino in told if ino & ~0xFF == base} for thread, base in bases.items()}
    assert slots == {forked: {0, 17, 36}, opened: {16, 17, 35, 36}, unknown: {17, 35, 36}}
    mounted.contents.release(handle)


async def test_a_file_that_is_open_is_told_by_its_name_alone(
    sample: SampleStore, operating: Operating, told: list[int]
) -> None:
    """Its number changes when its content is replaced, which only a look-up finds out (FAULTS 28)."""
    thread = sample.add(1, "hello")
    mounted = operating()
    await measured(mounted, thread)
    node = next(one for one in mounted.tree.views(thread) if one.view is View.TURNS)
    log = next(iter(mounted.tree.rollout_names(thread)))
    rollouts = mounted.tree.lookup(mounted.tree.folder(thread), "rollouts")
    raw = mounted.tree.lookup(rollouts, log)
    pages = []
    for one in (node, raw):
        handle, _ = await mounted.contents.open(one.ino, one, 1, lambda ino: None)
        page = mounted.shortcuts.list_now(mounted.tree.folder(thread).ino if one is node else rollouts.ino, 0, ROOM)
        assert page is not None
        pages.append(_entries(page))
        mounted.contents.release(handle)
    for entries, name, ino in zip(pages, ("turns.jsonl", log), (node.ino, raw.ino), strict=True):
        assert entries[name] == (0, ino, listings.FILE)
        assert [one for one, (told_ino, *_) in entries.items() if told_ino == 0] == [".", "..", name]


def _entries(page: bytes) -> dict[str, tuple[int, int, int]]:
    """What a listing tells: by name, the number that the kernel is to know, the one it shows, and the kind."""
    found, at = {}, 0
    while at < len(page):
        known = int.from_bytes(page[at : at + 8], "little")
        ino, _, length, kind = struct.unpack_from("QQII", page, at + 128)
        found[page[at + 152 : at + 152 + length].decode()] = (known, ino, kind)
        at += 152 + length + -length % 8
    return found


async def test_names_that_follow_from_links(
    sample: SampleStore, operating: Operating, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel forgets those that it may have when a thread comes, and all of them when there are too many."""
    dropped: list[int] = []
    monkeypatch.setattr(shortcuts, "drop_names", dropped.append)
    monkeypatch.setattr(shortcuts, "_LINKED", 2)
    threads = [sample.add(number, "hello") for number in range(1, 4)]
    for thread in threads:
        os.utime(sample.path(thread), OLD)
    mounted = operating(read_only=True)
    links = mounted._engine.store.links(threads[0])

    def walk(thread: str) -> list[int]:
        folder = mounted.tree.folder(thread)
        lineage = mounted.tree.lookup(folder, "lineage", links)
        linked = [lineage, *(mounted.tree.lookup(lineage, name, links) for name in ("forks", "agents"))]
        for node in (folder, *linked):
            at, serial = 0, mounted.shortcuts._streams._last + 1
            while page := mounted.shortcuts.list_now(node.ino, at, ROOM):
                at = (serial << 32) + at % (1 << 32) + _count(page)
        return [node.ino for node in linked]

    first = walk(threads[0])
    assert dropped == []
    new = sample.add(9, "more")
    os.utime(sample.path(new), OLD)
    mounted.look(mounted.tree.folder(threads[0]).ino)
    assert {*first} <= {*dropped}
    dropped.clear()
    kept = [walk(thread) for thread in threads]
    assert sorted(dropped) == sorted([*kept[0], *kept[1], kept[2][0]])
    assert told


async def test_a_short_answer(sample: SampleStore, operating: Operating, told: list[int]) -> None:
    """A folder that has no room in one answer is told in several, each name once."""
    thread = sample.add(1, "hello")
    mounted = operating()
    await measured(mounted, thread)
    base, at = mounted.tree.folder(thread).ino, 0
    pieces = []
    while piece := mounted.shortcuts.list_now(base, at, 400):
        assert len(piece) <= 400
        pieces.append(piece)
        at = (1 << 32) + sum(map(_count, pieces))
    assert b"".join(pieces) == listed(mounted, thread, whole=True)[0]
    assert len(pieces) > 3


@pytest.mark.parametrize("room", [400, ROOM])
async def test_the_kernel_forgets_what_it_was_told(
    sample: SampleStore, operating: Operating, told: list[int], room: int
) -> None:
    """A log that was told of once, in one piece or in several, is gone with the first FORGET."""
    thread = sample.add(1, "hello")
    mounted = operating()
    folder, at, count = mounted.tree.folder(thread).ino | 17, 0, 0
    while piece := mounted.shortcuts.list_now(folder, at, room):
        count += _count(piece)
        at = (1 << 32) + count
    assert count == 4
    assert bool(told) == (room == ROOM)
    log = mounted.tree.lookup(mounted.tree.node(folder), sample.path(thread).name)
    assert mounted.tree.node(log.ino) == log
    mounted.shortcuts.forget_now(log.ino, 1)
    with pytest.raises(KeyError):
        mounted.tree.node(log.ino)


def _count(piece: bytes) -> int:
    """How many names an answer has."""
    at = count = 0
    while at < len(piece):
        length = int.from_bytes(piece[at + 144 : at + 148], "little")
        at, count = at + 152 + (length + 7) // 8 * 8, count + 1
    return count


async def test_attributes_at_once(sample: SampleStore, operating: Operating, told: list[int]) -> None:
    """What was told in a listing is known when it is asked for; of a folder it is found out."""
    thread = sample.add(1, "hello")
    mounted = operating()
    folder = mounted.tree.folder(thread)
    view = mounted.tree.lookup(folder, "turns.jsonl")
    assert mounted.shortcuts.getattr_now(view.ino) is None
    asked = mounted.shortcuts.getattr_now(folder.ino)
    assert asked is not None
    await measured(mounted, thread)
    page = listed(mounted, thread, whole=True)[0]
    for ino, name in ((view.ino, b"turns.jsonl"), (folder.ino | 16, b"lineage"), (folder.ino | 17, b"rollouts")):
        told_of = mounted.shortcuts.getattr_now(ino)
        assert told_of is not None
        assert told_of in page
        assert mounted.shortcuts.lookup_now(folder.ino, name) == told_of
    sample.append(thread, "more")
    assert mounted.shortcuts.getattr_now(view.ino) is None
