"""`rolloutfs.shelving`: what is asked for again when something has happened, and that nothing is shown before that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from threadstore.spines import Spine
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import freshness
from rolloutfs.engine import Engine
from rolloutfs.shelves import BY_CWD, BY_DATE, BY_NAME, LATEST, Shelves
from rolloutfs.shelving import Shelving
from tests.tree.sample import SampleStore, line, thread_id


class Watched(Engine):
    """An engine that computes in place, and notes which threads it is asked for; `before` is called first."""

    def __init__(self, store: ThreadStore) -> None:
        super().__init__(store, None)
        self.asked: list[tuple[str, ...]] = []
        self.before: Callable[[], None] = lambda: None

    async def spines(self, threads: tuple[str, ...], *, whole: bool) -> list[Spine | None]:
        """As an engine with workers: others go on meanwhile."""
        self.asked.append(threads)
        found = await super().spines(threads, whole=whole)
        await trio.lowlevel.checkpoint()
        self.before()
        return found

    def taken(self) -> list[str]:
        """Those that were asked for since the last time."""
        asked, self.asked = self.asked, []
        return [thread for threads in asked for thread in threads]


class Desk:
    """Shelves over a sample store of five threads; changes are told by the test."""

    def __init__(self, sample: SampleStore, spool: Path, *, watched: bool = True) -> None:
        self.sample = sample
        self.threads = [sample.add(number, cwd=f"/{number}") for number in range(1, 6)]
        self.store = ThreadStore(str(sample.root), Spool(str(spool)))
        self.engine = Watched(self.store)
        self.shelves = Shelves()
        self.shelving = Shelving(self.engine, self.shelves, lambda: watched)

    def say(self, thread: str, text: str) -> None:
        """Let a person say something, which nobody is told of."""
        with self.sample.path(thread).open("ab") as log:
            log.write(line("event_msg", {"type": "user_message", "message": text}))


@pytest.fixture
def desk(sample: SampleStore, tmp_path: Path) -> Desk:
    """A desk whose store is watched."""
    return Desk(sample, tmp_path / "spool")


async def test_a_change_costs_one_thread(desk: Desk) -> None:
    """All threads are asked for once, and again only those that have changed, when somebody looks."""
    await desk.shelving.ready(BY_DATE)
    assert desk.engine.taken() == desk.threads
    for shelf in (BY_DATE, BY_NAME, LATEST):
        await desk.shelving.ready(shelf)
    assert desk.engine.taken() == []
    desk.say(desk.threads[2], "hello")
    desk.shelving.forget({desk.threads[2]})
    await desk.shelving.ready(BY_NAME)
    assert desk.engine.taken() == [desk.threads[2]]
    assert list(desk.shelves.links(BY_NAME)) == [f"hello-{desk.threads[2][-8:]}"]
    await desk.shelving.ready(BY_CWD)
    assert desk.engine.taken() == desk.threads  # whose logs had not been read as a whole
    desk.shelving.forget({desk.threads[1]})
    await desk.shelving.ready(BY_CWD)
    assert desk.engine.taken() == [desk.threads[1]]


async def test_threads_that_come_and_go(desk: Desk) -> None:
    """They are seen from the folders alone; a new one is all that is asked for."""
    await desk.shelving.ready(BY_DATE)
    desk.engine.taken()
    fresh = desk.sample.add(9)
    desk.sample.path(desk.threads[0]).unlink()
    desk.store.refresh()
    await desk.shelving.ready(BY_DATE)
    assert desk.engine.taken() == [fresh]
    assert sorted(desk.shelves.threads()) == [*desk.threads[1:], fresh]


async def test_a_worker_that_fails(desk: Desk) -> None:
    """Its error is that of who asked; the next one asks again."""
    await desk.shelving.ready(BY_DATE)
    desk.say(desk.threads[0], "hello")
    desk.shelving.forget({desk.threads[0]})
    desk.engine.before = _fail
    with pytest.raises(OSError, match="died"):
        await desk.shelving.ready(BY_NAME)
    desk.engine.before = lambda: None
    await desk.shelving.ready(BY_NAME)
    assert len(desk.shelves.links(BY_NAME)) == 1


def _fail() -> None:
    raise OSError(5, "The process that computed this died")


async def test_a_change_while_it_is_read(desk: Desk) -> None:
    """What was read before it isn't shown."""
    said = ["first"]

    def change() -> None:
        if said:
            desk.say(desk.threads[0], said.pop())
            desk.shelving.forget({desk.threads[0]})

    desk.engine.before = change
    await desk.shelving.ready(BY_NAME)
    assert list(desk.shelves.links(BY_NAME)) == [f"first-{desk.threads[0][-8:]}"]


async def test_who_comes_later_waits(desk: Desk) -> None:
    """Nobody is shown what is just being asked for again."""
    await desk.shelving.ready(BY_NAME)
    desk.engine.taken()
    desk.say(desk.threads[0], "hello")
    desk.shelving.forget({desk.threads[0]})
    seen: list[int] = []

    async def look() -> None:
        await desk.shelving.ready(BY_NAME)
        seen.append(len(desk.shelves.links(BY_NAME)))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(look)
    assert seen == [1, 1, 1]
    assert desk.engine.taken() == [desk.threads[0]]


async def test_where_nobody_tells(sample: SampleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are compared with what they were: a thread that was written to or archived is asked for, and no other."""
    monkeypatch.setattr(freshness.Share, "is_due", lambda self: True)
    desk = Desk(sample, tmp_path / "spool", watched=False)
    await desk.shelving.ready(BY_NAME)
    desk.engine.taken()
    desk.say(desk.threads[3], "hello")
    (sample.root / "archived_sessions").mkdir()
    os.rename(sample.path(desk.threads[1]), sample.path(desk.threads[1], "archived_sessions"))
    desk.store.refresh()
    await desk.shelving.ready(BY_NAME)
    assert sorted(set(desk.engine.taken())) == [desk.threads[1], desk.threads[3]]
    assert desk.shelves.card(desk.threads[1]).is_archived


async def test_a_doubt(desk: Desk) -> None:
    """What may have changed unheard is compared once."""
    await desk.shelving.ready(BY_NAME)
    desk.engine.taken()
    desk.say(desk.threads[4], "hello")
    await desk.shelving.ready(BY_NAME)
    assert desk.engine.taken() == []
    desk.shelving.doubt()
    await desk.shelving.ready(BY_NAME)
    assert desk.engine.taken() == [thread_id(5)]
