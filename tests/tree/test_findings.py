"""What a query finds, in bounded time and space; without a mount."""

from __future__ import annotations

import errno
import fcntl
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import findings, readme
from rolloutfs.backlog import Backlog, Reached, Todo
from rolloutfs.findings import Found
from tests.commands.conftest import say
from tests.tree.sample import SampleStore, sample_store, thread_id


@pytest.fixture
def sample(tmp_path: Path) -> SampleStore:
    """Five threads, each with two texts that have a word."""
    sample = sample_store(tmp_path / "store")
    for number in range(5):
        sample.add(number, f"needle one {number}", f"needle two {number}")
    return sample


ALL = Todo()


def changed(*threads: str) -> Todo:
    """Only these have changed, which somebody watches."""
    return Todo(None, threads, is_watched=True)


class Finder:
    """Asks a store again and again, with an index of its own."""

    def __init__(self, sample: SampleStore, folder: Path) -> None:
        self.store = ThreadStore(str(sample.root), Spool(str(folder / "spool")))
        self.index = folder / "index.sqlite"

    def __call__(self, name: str, todo: Todo = ALL) -> Found:
        """The answer to a query."""
        self.store.refresh()
        return findings.find(self.store, [str(self.index)], name, todo)


@pytest.fixture
def find(sample: SampleStore, tmp_path: Path) -> Finder:
    """A finder for the sample."""
    return Finder(sample, tmp_path)


def because(found: Found) -> str:
    """What an answer says that it lacks."""
    assert found.incomplete is not None
    return str(json.loads(found.incomplete)["because"])


def test_whole_answers(find: Finder) -> None:
    """Nothing is said to lack where nothing lacks."""
    found = find("needle")
    assert (len(found.links), found.hits.count(b"\n"), found.incomplete) == (5, 10, None)
    assert [name for name, _ in found.links] == [f"2026-11-29T21-00-00-{number:08x}" for number in (4, 3, 2, 1, 0)]


def test_a_misspelt_filter(find: Finder, sample: SampleStore) -> None:
    """A folder of a query that has one says so, also in a form that no terminal obeys; no other folder does."""
    sample.add(30, "needle brnach:main")
    found = find("needle brnach:main\u202e")
    assert [thread for _, thread in found.links] == [thread_id(30)]
    assert found.hint is not None
    (told,) = json.loads(found.hint)["because"]
    assert "would be branch:main\\u202e" in told
    assert find('needle "brnach:main"').hint is None
    assert find("needle std::vector").hint is None


@pytest.mark.parametrize(("bound", "most"), [("_MOST", 4), ("_TEXTS", 4), ("_THREADS", 2)])
def test_bounds(bound: str, most: int, find: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hits, texts and threads are bounded; the newest are given, and the answer says that there are more."""
    everything = find("needle")
    monkeypatch.setattr(findings, bound, most)
    found = find("needle")
    assert found.hits.count(b"\n") == 4
    assert "there are more hits than the newest 4" in because(found)
    lines = found.hits.splitlines()
    if bound == "_MOST":  # the others take whole threads, or texts before their times are known
        assert lines == everything.hits.splitlines()[:4]
    assert set(lines) <= set(everything.hits.splitlines())
    assert {thread for _, thread in found.links} == {json.loads(line)["thread_id"] for line in lines}


def test_time(find: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that takes too long is cut off, and answered with an error."""
    find("needle")
    monkeypatch.setattr(findings, "_ASK", -1.0)
    monkeypatch.setattr(findings, "_OPCODES", 1)
    with pytest.raises(TimeoutError) as caught:
        find("needle*")
    assert caught.value.errno == errno.ETIMEDOUT


def test_while_the_index_is_being_built(find: Finder, sample: SampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process keeps from being entered is said to lack, and found afterwards."""
    assert find("needle").incomplete is None
    new = sample.add(9, "needle nine")
    monkeypatch.setattr(findings, "_CATCH_UP", 0.1)
    with open(f"{find.index}.lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for todo in (ALL, changed(new)):
            found = find("nine", todo)
            assert found.links == ()
            assert "look again" in because(found)
            assert found.reached == (todo.after, 0, not todo.changed, False)
    for todo in (ALL, changed(new)):
        found = find("nine", todo)
        assert ([thread for _, thread in found.links], found.incomplete) == ([new], None)


def test_only_what_changed_is_entered(find: Finder, sample: SampleStore) -> None:
    """Who knows which threads have changed has only those looked at."""
    find("needle")
    one, other = sample.add(8, "pin"), sample.add(9, "pin")
    assert [thread for _, thread in find("pin", changed(one)).links] == [one]
    assert {thread for _, thread in find("pin").links} == {one, other}
    find.index.unlink()
    assert {thread for _, thread in find("pin", changed()).links} == {one, other}  # an index that is gone is made anew


def test_a_damaged_index(find: Finder) -> None:
    """It is made anew."""
    find("needle")
    for end in ("-wal", "-shm"):
        Path(f"{find.index}{end}").unlink(missing_ok=True)
    find.index.write_bytes(b"SQLite format 3\0" + bytes(8192))
    assert len(find("needle").links) == 5


def test_names_of_links(find: Finder, sample: SampleStore) -> None:
    """They are those of recent/: when the thread began, and what it is called, without what a shell would mind."""
    for number, words in enumerate(("/etc/../x $(rm) 'a' \"b\"\n", "中文 – ünï", "-" * 50, "w" * 300)):
        say(sample, sample.add(20 + number, f"pin{number}"), words)
    names = [find(f"pin{number}").links[0][0] for number in range(4)]
    assert names == [
        "2026-11-29T21-00-00_etc_.._x_rm_a_b",
        "2026-11-29T21-00-00_中文_–_ünï",
        "2026-11-29T21-00-00",
        f"2026-11-29T21-00-00_{'w' * 48}",
    ]


@pytest.mark.parametrize("example", [line for line in readme.search_text().decode().splitlines() if "search/" in line])
def test_the_examples_of_the_readme(example: str) -> None:
    """Every query that the README of search/ shows is understood."""
    name = example.partition("search/")[2]
    name = name.partition("/")[0] if "/hits" in name or "/*" in name else name.partition("   ")[0]
    findings.parse(name.rstrip("'").removesuffix('"') if example.strip().startswith('ls "') else name.rstrip("'"))


def test_a_pass_goes_on_with_the_next_search(
    find: Finder, sample: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes too long for one search is done by several; what is told meanwhile is entered at the end, and then
    only what is told.
    """
    backlog, found, searches = Backlog(), None, 0
    monkeypatch.setattr(findings, "_STEP", 0.0)  # a step is one thread
    while found is None or not found.reached.is_current:
        moments = iter((0.0, 0.0))  # then there is no more time: for one step
        clock = SimpleNamespace(monotonic=lambda moments=moments: next(moments, 1000.0), sleep=time.sleep)
        monkeypatch.setattr(findings, "time", clock)
        todo = backlog.todo(is_watched=True)
        if searches == 2:
            backlog.note({sample.add(0, "pin")})  # one that was passed already
        found = find("pin", todo)
        backlog.done(todo, found.reached)
        searches += 1
        assert searches <= 7
        assert (found.incomplete is None) == (searches == 7)  # five threads, the end, and the one that has changed
    assert len(found.links) == 1
    assert backlog.todo(is_watched=True) == Todo(None, (), 0, is_watched=True)


def test_backlog() -> None:
    """A pass begins anew when the watch begins or ends, when much has changed, and when nobody knows what was done."""
    backlog = Backlog()
    assert backlog.todo(is_watched=False) == Todo("", (), 0, is_watched=False)
    backlog.done(Todo(), Reached("m", 1, entered=True, is_current=False))
    assert backlog.todo(is_watched=False) == Todo("m", (), 1, is_watched=False)
    backlog.done(Todo(), Reached(None, 1, entered=True, is_current=False))
    assert backlog.todo(is_watched=False).after == ""
    watched = backlog.todo(is_watched=True)
    assert watched == Todo("", (), 1, is_watched=True)
    backlog.done(watched, Reached(None, 1, entered=True, is_current=True))
    backlog.note({"a", "b"})
    todo = backlog.todo(is_watched=True)
    assert todo == Todo(None, ("a", "b"), 1, is_watched=True)
    backlog.note({"c"})
    backlog.done(todo, Reached(None, 1, entered=False, is_current=False))
    assert backlog.todo(is_watched=True).changed == ("a", "b", "c")
    backlog.note({str(number) for number in range(1001)})
    assert backlog.todo(is_watched=True) == Todo("", (), 1, is_watched=True)
    backlog.done(todo, None)
    assert backlog.todo(is_watched=True).after == ""
