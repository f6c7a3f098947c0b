"""`rolloutfs.shelves`: in which folders the links of threads lie, and what they are called (FAULTS 22, 27)."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadstore.spines import Spine
from threadstore.summaries import Title

from rolloutfs.linknames import Names
from rolloutfs.shelves import (
    ARCHIVED,
    BY_BRANCH,
    BY_CWD,
    BY_DATE,
    BY_MODEL,
    BY_NAME,
    LATEST,
    SHELVES,
    Shelves,
)

BEGAN = int(datetime(2026, 11, 29, 21, 31, 5, tzinfo=UTC).timestamp()) * 1_000_000_000
A, B, C, D = (f"01a22938-0000-7000-8000-{number:012x}" for number in (0xA, 0xB, 0xC, 0xD))


def spine(words: str = "", **more: object) -> Spine:
    """A thread in /repo on main, of which everything is known."""
    usual = Spine(BEGAN, BEGAN, 0, 0, words, "main", "/repo", "gpt-5.5", is_whole=True, is_agent=False)
    return usual._replace(**more)  # type: ignore[arg-type]  # what a test says of it


def shelved(spines: Mapping[str, Spine], zone: tzinfo = UTC, **titles: Title) -> Shelves:
    """Shelves with some threads, none of them archived."""
    shelves = Shelves(zone)
    shelves.put({thread: (one, False) for thread, one in spines.items()})
    return shelves


def links(shelves: Shelves, path: str) -> dict[str, str]:
    """The threads in a folder by the names of their links, which are found by these, too."""
    names = shelves.links(path)
    assert [names.thread(name) for name in names] == names.threads
    return dict(zip(names, names.threads, strict=True))


def everything(shelves: Shelves) -> dict[str, str]:
    """All links by path, with the id that each leads to."""
    found: dict[str, str] = {}
    todo = list(SHELVES)
    while todo:
        path = todo.pop()
        todo += [f"{path}/{name}" for name in shelves.folders(path)]
        for name, thread in links(shelves, path).items():
            depth = path.count("/") + 1
            assert shelves.target(path.partition("/")[0], thread) == f"{'../' * depth}threads/{thread}"
            found[f"{path}/{name}"] = thread
    return found


def test_a_thread_on_every_shelf() -> None:
    """Folders are the parts of a path, names a time and the first words; the last part of the id only in by-name."""
    assert everything(shelved({A: spine("fix_the_test", branch="feature/x", cwd="/home/me/.work/a b")})) == {
        "by-date/2026/11/29/21-31-05_fix_the_test": A,
        "by-name/fix_the_test-0000000a": A,
        "by-cwd/home/me/.work/a b/2026-11-29T21-31-05_fix_the_test": A,
        "by-branch/feature/x/2026-11-29T21-31-05_fix_the_test": A,
        "by-model/gpt-5.5/2026-11-29T21-31-05_fix_the_test": A,
        "recent/2026-11-29T21-31-05_fix_the_test": A,
    }


def test_what_is_not_known_is_nowhere() -> None:
    """Without words, branch, folder and model a thread has its date, and no more; an agent's thread is on no shelf."""
    shelves = shelved({A: spine(branch=None, cwd=None, model=None), B: spine("of an agent", is_agent=True)})
    assert everything(shelves) == {"by-date/2026/11/29/21-31-05": A, "recent/2026-11-29T21-31-05": A}


def test_an_archived_thread() -> None:
    """It is in archived/ and all views but recent/, and comes back."""
    shelves = shelved({A: spine("old")})
    before = everything(shelves)
    shelves.put({A: (spine("old"), True)})
    archived = everything(shelves)
    assert archived.keys() - before.keys() == {"archived/2026-11-29T21-31-05_old"}
    assert before.keys() - archived.keys() == {"recent/2026-11-29T21-31-05_old"}
    shelves.put({A: (spine("old"), False)})
    assert everything(shelves) == before


def test_names_that_would_be_the_same() -> None:
    """All of them end in the last part of the id, in the whole id where that is the same; folders' names count, too."""
    twin = A.replace("8000", "9000")
    shelves = shelved({A: spine("hi"), twin: spine("hi"), B: spine("hi"), C: spine("bye")})
    assert links(shelves, "by-date/2026/11/29") == {
        "21-31-05_bye": C,
        "21-31-05_hi-0000000b": B,
        f"21-31-05_hi-{A}": A,
        f"21-31-05_hi-{twin}": twin,
    }
    shelves = shelved({A: spine("hi", cwd="/x"), B: spine("hi", cwd="/x/2026-11-29T21-31-05_hi")})
    assert shelves.folders("by-cwd/x") == ["2026-11-29T21-31-05_hi"]
    assert links(shelves, "by-cwd/x") == {"2026-11-29T21-31-05_hi-0000000a": A}
    forged = [f"/x/2026-11-29T21-31-05_hi{end}" for end in ("", "-0000000a", f"-{A}", f"-{A}_")]
    more = {thread: spine("hi", cwd=cwd) for thread, cwd in zip((B, C, D, twin), forged, strict=True)}
    assert links(shelved({A: spine("hi", cwd="/x"), **more}), "by-cwd/x") == {f"2026-11-29T21-31-05_hi-{A}__": A}


def test_a_folder_that_comes_and_goes() -> None:
    """While it has the name of a link beside it, that one ends in the id."""
    shelves = shelved({A: spine("hi", cwd="/x")})
    assert list(links(shelves, "by-cwd/x")) == ["2026-11-29T21-31-05_hi"]
    shelves.put({B: (spine(cwd="/x/2026-11-29T21-31-05_hi/y"), False)})
    assert list(links(shelves, "by-cwd/x")) == ["2026-11-29T21-31-05_hi-0000000a"]
    shelves.put({B: None})
    assert list(links(shelves, "by-cwd/x")) == ["2026-11-29T21-31-05_hi"]


def test_given_names() -> None:
    """A name that somebody chose stands alone in by-name/; first words never do, so a new thread renames no other."""
    shelves = shelved({A: spine("hi"), B: spine("hi"), C: spine("hi")})
    shelves.entitle({A: Title("Release plan", "hi"), B: Title(None, "about: something else")}.items())
    assert links(shelves, "by-name") == {"Release_plan": A, "about_something_else-0000000b": B, "hi-0000000c": C}
    assert links(shelves, "recent")["2026-11-29T21-31-05_Release_plan"] == A
    shelves.put({D: (spine("hi"), False)})
    assert links(shelves, "by-name")["hi-0000000c"] == C
    shelves.entitle([(C, Title("Release plan", None))], only=[C])
    assert {"Release_plan-0000000a": A, "Release_plan-0000000c": C}.items() <= links(shelves, "by-name").items()
    shelves.entitle([])
    assert set(links(shelves, "by-name")) == {f"hi-0000000{one}" for one in "abcd"}


@pytest.mark.parametrize(
    ("zone", "moment", "path"),
    [
        ("UTC", "2026-11-29T23:59:59.999Z", "2026/11/29/23-59-59"),
        ("Europe/Berlin", "2026-11-29T23:59:59Z", "2026/11/30/00-59-59"),
        ("America/Lima", "2026-01-01T00:00:00Z", "2025/12/31/19-00-00"),
        ("Europe/Berlin", "2026-03-29T00:59:59Z", "2026/03/29/01-59-59"),
        ("Europe/Berlin", "2026-03-29T01:00:00Z", "2026/03/29/03-00-00"),
        ("Europe/Berlin", "2026-10-25T00:30:00Z", "2026/10/25/02-30-00"),
        ("Europe/Berlin", "2026-10-25T01:30:00Z", "2026/10/25/02-30-00"),
        ("Pacific/Apia", "2011-12-30T09:59:59Z", "2011/12/29/23-59-59"),
        ("Pacific/Apia", "2011-12-30T10:00:00Z", "2011/12/31/00-00-00"),
        ("Asia/Tokyo", "1969-12-31T14:59:59Z", "1969/12/31/23-59-59"),
        ("UTC", "2106-02-07T06:28:16Z", "2106/02/07/06-28-16"),
    ],
)
def test_zones(zone: str, moment: str, path: str) -> None:
    """Dates are those of the zone at that time, also where clocks are changed or a day is missing."""
    began = int(datetime.fromisoformat(moment).timestamp()) * 1_000_000_000
    shelves = shelved({A: spine(began_ns=began)}, ZoneInfo(zone))
    (found,) = (one for one in everything(shelves) if one.startswith(BY_DATE))
    assert found == f"by-date/{path}"


def test_an_hour_that_comes_twice() -> None:
    """Two threads of one local time are told apart by their ids."""
    first, second = (
        int(datetime.fromisoformat(f"2026-10-25T0{hour}:30:00Z").timestamp()) * 1_000_000_000 for hour in (0, 1)
    )
    shelves = shelved({A: spine("x", began_ns=first), B: spine("x", began_ns=second)}, ZoneInfo("Europe/Berlin"))
    assert list(links(shelves, "by-date/2026/10/25")) == ["02-30-00_x-0000000a", "02-30-00_x-0000000b"]


@pytest.mark.parametrize(
    ("cwd", "folders"),
    [
        ("/", ""),
        ("/a//b/./c/", "/a/b/c"),
        ("/a/../../b", "/b"),
        ("..", ""),
        ("/.hidden/-rf/...", "/.hidden/_rf/..."),
        ("C:\\Users\\me\\x", "/C:/Users/me/x"),
        ("\\\\wsl.localhost\\Ubuntu\\home", "/wsl.localhost/Ubuntu/home"),
        ("/back\\slash", "/back_slash"),
        ("/a\n\x1b[31m\u202eb", "/a__[31m_b"),
        ("/" + "ä" * 200, "/" + "ä" * 60 + "…"),
    ],
)
def test_folders_of_paths(cwd: str, folders: str) -> None:
    """A recorded folder is text: nothing in it leads out of the view, and `by-cwd$PWD` is where one looks."""
    shelves = shelved({A: spine(cwd=cwd)})
    assert links(shelves, f"by-cwd{folders}") == {"2026-11-29T21-31-05": A}


def test_recent_has_the_newest() -> None:
    """As many as it may have, by the last record; one that is written to comes in and the oldest goes."""
    threads = [f"01a22938-0000-7000-8000-{number:012x}" for number in range(130)]
    shelves = shelved({thread: spine(last_ns=number) for number, thread in enumerate(threads)})
    assert set(links(shelves, LATEST).values()) == set(threads[30:])
    shelves.put({threads[7]: (spine(last_ns=1000), False)})
    assert set(links(shelves, LATEST).values()) == {*threads[31:], threads[7]}
    shelves.put({threads[7]: None, threads[129]: (spine(), True), threads[50]: (spine(last_ns=0), False)})
    assert set(links(shelves, LATEST).values()) == set(threads[28:129]) - {threads[50]}
    with pytest.raises(KeyError):
        shelves.target(LATEST, threads[1])


def test_times_of_folders() -> None:
    """That of the newest thread below, also when that one goes or moves."""
    shelves = shelved({A: spine(last_ns=5, cwd="/a/b"), B: spine(last_ns=7, cwd="/a/c"), C: spine(last_ns=3, cwd="/a")})
    assert [shelves.newest(f"by-cwd{path}") for path in ("", "/a", "/a/b", "/a/c")] == [7, 7, 5, 7]
    shelves.put({B: (spine(last_ns=9, cwd="/a/b"), False)})
    assert [shelves.newest(f"by-cwd{path}") for path in ("", "/a", "/a/b")] == [9, 9, 9]
    assert not shelves.is_folder("by-cwd/a/c")
    shelves.put({B: None})
    assert [shelves.newest(f"by-cwd{path}") for path in ("", "/a", "/a/b")] == [5, 5, 5]
    shelves.put({C: (spine(last_ns=8, cwd="/a"), False)})
    assert [shelves.newest(f"by-cwd{path}") for path in ("", "/a", "/a/b")] == [8, 8, 5]
    shelves.put({C: (spine(last_ns=1, cwd="/a"), False)})
    assert [shelves.newest(f"by-cwd{path}") for path in ("", "/a", "/a/b")] == [5, 5, 5]


def test_a_spine_that_is_not_whole_moves_nothing() -> None:
    """Folder and model stay what they were until they have been read again."""
    shelves = shelved({A: spine("x", cwd="/a")})
    before = everything(shelves)
    shelves.put({A: (spine("x", last_ns=BEGAN + 1, cwd=None, model=None, is_whole=False), False)})
    assert everything(shelves) == before
    assert not shelves.card(A).is_whole


_THREADS = st.integers(0, 1 << 24).map(lambda number: f"01a22938-{number % 7:04x}-7000-8000-{number // 7:012x}")
_WORDS = st.sampled_from(["", "hi", "hi-00000001", "hi_there", "日本語"])
_SPINES = st.builds(
    spine,
    _WORDS,
    began_ns=st.sampled_from([0, BEGAN, BEGAN + 1, BEGAN + 86_400_000_000_000]),
    last_ns=st.integers(0, 5),
    branch=st.sampled_from([None, "main", "main/x", "main/1970-01-01T00-00-00_hi"]),
    cwd=st.none() | st.text(max_size=8).map(lambda text: f"/{text}"),
    model=st.sampled_from([None, "gpt-5.5", "a/b"]),
    is_agent=st.booleans(),
)
_STORES = st.dictionaries(_THREADS, st.tuples(_SPINES, st.booleans()), max_size=12)
_TITLES = st.dictionaries(_THREADS, st.builds(Title, st.none() | st.text(max_size=6), st.none() | st.just("hi")))


@given(_STORES, _STORES, _TITLES, st.randoms(use_true_random=False))
def test_nothing_depends_on_an_order(
    store: dict[str, tuple[Spine, bool]],
    later: dict[str, tuple[Spine, bool]],
    titles: dict[str, Title],
    chance: random.Random,
) -> None:
    """Threads that come, change and go one by one, while somebody looks, end as if all had been there at once; the
    names are valid and each is another one.
    """
    grown = Shelves(most=5)
    steps = [*store.items(), *((thread, None) for thread in store if chance.random() < 0.3), *later.items()]
    now: dict[str, tuple[Spine, bool]] = {}
    for thread, found in steps:
        grown.put({thread: found})
        now.pop(thread, None) if found is None else now.update({thread: found})
        grown.entitle([(thread, titles[thread])] if thread in titles else [], only=[thread])
        if chance.random() < 0.5:
            everything(grown)
    order = list(now.items())
    chance.shuffle(order)
    whole = Shelves(most=5)
    whole.put(dict(order))
    whole.entitle(titles.items())
    links = everything(whole)
    assert everything(grown) == links
    for path in links:
        assert all(is_valid(part) for part in path.split("/"))
    people = {thread for thread, (one, _) in now.items() if not one.is_agent}
    assert {thread for path, thread in links.items() if path.startswith(BY_DATE)} == people
    for shelf in SHELVES:
        threads = [thread for path, thread in links.items() if path.startswith(f"{shelf}/")]
        assert len(threads) == len(set(threads))
        for folder in grown.folders(shelf):
            assert grown.newest(f"{shelf}/{folder}") == whole.newest(f"{shelf}/{folder}")
    assert {BY_NAME, BY_CWD, BY_BRANCH, BY_MODEL, ARCHIVED, LATEST} <= set(SHELVES)


_TURNING = ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI")


def is_valid(name: str) -> bool:
    """A name that every file system takes, and no terminal obeys."""
    return (
        name not in ("", ".", "..")
        and len(name.encode()) <= 255
        and "/" not in name
        and not any(unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") for one in name)
        and not any(unicodedata.bidirectional(one) in _TURNING for one in name)
    )


@given(
    st.dictionaries(_THREADS, st.tuples(st.sampled_from(["a", "a-00000000", "b"]), st.booleans()), max_size=30),
    st.sets(st.sampled_from(["a", "b", "a-00000000"])),
    st.randoms(use_true_random=False),
)
def test_names_of_a_folder(wanted: dict[str, tuple[str, bool]], taken: set[str], chance: random.Random) -> None:
    """Every thread has one, none is taken, and they are the same in any order."""
    names = Names(wanted, wanted.__getitem__, frozenset(taken))
    assert sorted(names.threads) == sorted(wanted)
    assert sorted(set(names)) == list(names)
    assert not taken & set(names)
    assert [names.thread(name) for name in names] == names.threads
    order = list(wanted)
    chance.shuffle(order)
    assert list(Names(order, wanted.__getitem__, frozenset(taken))) == list(names)
