"""search/ in a mount: a folder for whatever is looked up, with what a plain scan over the same texts finds."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from threadstore.spool import Spool
from threadstore.store import ThreadStore
from threadstore.texts import Text

from rolloutfs.meant import UnnamedError, find
from scripts.sample_store import build
from tests.commands.conftest import HOSTILE, assert_harmless, say
from tests.commands.test_search import tokens
from tests.conftest import CopyStore
from tests.mount.clients import mounted, outcome, run, serving
from tests.mount.conftest import Lab, until
from tests.tree.sample import message, meta, thread_id

QUERIES = 200
LATE = "2026-11-29T23:30:00.000Z"


class Said(NamedTuple):
    """A text of a store, with its words between blanks."""

    thread: str
    text: Text
    words: str


@pytest.fixture(scope="module")
def sample_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, list[Said]]]:
    """The demo's store, mounted, and all that was said in it."""
    folder = tmp_path_factory.mktemp("search")
    build(folder / "store")
    store = ThreadStore(str(folder / "store"), Spool(str(folder / "spool")))
    said = [
        Said(thread, text, f" {' '.join(tokens(text.text))} ")
        for thread in store.thread_ids()
        for text in store.texts(thread)
    ]
    with serving(folder / "lab", folder / "store") as lab, mounted(lab):
        found(lab, "echo")
        yield lab, said


def whole(lab: Lab, query: str) -> list[str]:
    """The names in a query's folder, once the index has everything."""
    folder = lab.mountpoint / "search" / query
    until(lambda: "incomplete.json" not in os.listdir(folder), "the index has everything")
    return sorted(os.listdir(folder))


def hits(lab: Lab, query: str) -> list[dict[str, Any]]:
    """The lines of a query's hits."""
    whole(lab, query)
    return [json.loads(line) for line in (lab.mountpoint / "search" / query / "hits.jsonl").read_bytes().splitlines()]


def found(lab: Lab, query: str) -> list[str]:
    """The threads that a query's links lead to, in their order."""
    folder = lab.mountpoint / "search" / query
    whole(lab, query)
    return [os.readlink(folder / name).rpartition("/")[2] for name in os.listdir(folder) if name[0].isdigit()]


def test_as_a_plain_scan(sample_lab: tuple[Lab, list[Said]]) -> None:
    """Words, phrases, beginnings of words and filters, 200 of them: hits and threads are those of a scan."""
    lab, said = sample_lab
    choose = random.Random(11)
    seen = 0
    for _ in range(QUERIES):
        words = choose.choice(said).words.split()
        at = choose.randrange(len(words))
        terms = choose.choice(
            (
                [(words[at], f" {words[at]} ")],
                [(f'"{" ".join(words[at : at + 3])}"', f" {' '.join(words[at : at + 3])} ")],
                [(f"{words[at][:2]}*", f" {words[at][:2]}")],
                [(word, f" {word} ") for word in choose.sample(words, min(3, len(words)))],
                [(words[at], f" {words[at]} "), ("nowhere", " nowhere ")],
            )
        )
        parts = [typed for typed, _ in terms]
        wanted = [one for one in said if all(text in one.words for _, text in terms)]
        kind, tool = choose.choice([(one.text.kind, one.text.tool) for one in said])
        if choose.random() < 0.3:
            parts.append(f"kind:{kind}")
            wanted = [one for one in wanted if one.text.kind == kind]
        if tool is not None and choose.random() < 0.3:
            parts.append(f"tool:{tool}")
            wanted = [one for one in wanted if one.text.tool == tool]
        query = " ".join(choose.sample(parts, len(parts)))
        got = hits(lab, query)
        places = {(one.thread, one.text.file, one.text.offset) for one in wanted}
        assert {(hit["thread_id"], hit["file"], hit["offset"]) for hit in got} == places, query
        assert len(got) == len(places), query
        assert found(lab, query) == list(dict.fromkeys(hit["thread_id"] for hit in got)), query
        assert all(one["time"] >= other["time"] for one, other in pairwise(got)), query
        seen += bool(got)
    assert QUERIES // 3 < seen < QUERIES


def test_a_shell(sample_lab: tuple[Lab, list[Said]]) -> None:
    """Names with blanks, quotation marks and stars; links lead to threads; nothing is listed or walked into."""
    lab, _ = sample_lab
    mount = lab.mountpoint
    assert run('ls "search/echo p2"', mount) == b"2026-11-29T21-31-56_p1\nhits.jsonl\n"
    assert run("ls 'search/\"echo p2\" kind:call'", mount) == run('ls "search/echo p2"', mount)
    assert run("ls search/apply_patc*", mount) == b"2026-11-29T21-38-25_List_the_files\nhits.jsonl\n"
    assert json.loads(run("cat search/apply_patch/*/thread.json", mount))["preview"] == "List the files"
    assert run("ls 'search/cwd:%2Frepo%2fsub'", mount) == b"2026-11-29T21-31-39_one\nhits.jsonl\n"
    assert run("cat search/nowhere/hits.jsonl; ls search/nowhere", mount) == b"hits.jsonl\n"
    assert run("find search | sort", mount) == b"search\nsearch/README.md\nsearch/problems.jsonl\n"
    assert run("stat -c %F search 'search/echo'", mount) == b"directory\ndirectory\n"
    first = hits(lab, "echo")[0]
    command = f"rolloutfs search --store {lab.sample.root} --json -n 1 echo"
    told = run(command, mount, PATH=f"{Path(os.sys.executable).parent}:{os.environ['PATH']}")  # type: ignore[attr-defined]
    assert json.loads(told) == first


def moment(time: str) -> float:
    """What a hit says, as Unix seconds."""
    return datetime.fromisoformat(time).timestamp()


def meant(store: ThreadStore, name: str) -> list[str]:
    """The thread that a name means, or beginnings of those that it may mean."""
    try:
        return [find(store, name)]
    except UnnamedError as refused:
        return [line.split()[0] for line in refused.message.splitlines()[1:]]


def test_links_as_in_recent(sample_lab: tuple[Lab, list[Said]], tmp_path: Path) -> None:
    """A thread of a person is called the same below search/ as in recent/, but for what tells it from others there; the
    time of a link is that of its newest hit; and commands take each name, also those of agents, for its thread.
    """
    lab, _ = sample_lab
    recent = {os.readlink(link).rpartition("/")[2]: link.name for link in (lab.mountpoint / "recent").iterdir()}
    store = ThreadStore(str(lab.sample.root), Spool(str(tmp_path / "spool")))
    store.refresh()
    agents = 0
    for query in ("p1", "apply_patch", "hello", "kind:user"):
        newest: dict[str, str] = {}
        for hit in hits(lab, query):
            newest.setdefault(hit["thread_id"], hit["time"])
        folder = lab.mountpoint / "search" / query
        links = {name: os.readlink(folder / name).rpartition("/")[2] for name in os.listdir(folder) if name[0] == "2"}
        assert list(links.values()) == list(newest)
        for name, thread in links.items():
            stem = name.removesuffix(f"-{thread[-8:]}")
            agents += store.is_agent(thread)
            assert thread not in recent or recent[thread].removesuffix(f"-{thread[-8:]}") == stem
            assert (folder / name).lstat().st_mtime_ns // 1_000_000 == round(moment(newest[thread]) * 1000)
            assert any(thread.startswith(one) for one in meant(store, name)), name
            assert stem == name or meant(store, name) == [thread]
    assert agents


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ('"open', "no partner"),
        ("!!", "no letter or digit"),
        ("kind:person", "no kind of text"),
        ("since:yesterday x", "names no day"),
        ("branch:", "needs a value"),
        ("cwd:.", "means no folder here"),
        ("cwd:..%2Fother", "means no folder here"),
        ("a " * 65, "the most is 64"),
        ("\x1b[31m\u202e*", None),
        ("\udcff*", "no letter or digit"),
        (" ", "is empty"),
    ],
)
def test_a_wrong_query(query: str, told: str | None, sample_lab: tuple[Lab, list[Said]]) -> None:
    """It answers EINVAL, the reason stands in problems.jsonl, and nothing that is typed is syntax to SQLite."""
    lab, _ = sample_lab
    path = lab.mountpoint / "search" / query
    if told is None:
        assert os.listdir(path) == ["hits.jsonl"]
        return
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is what is compared
        os.stat(path)
    assert caught.value.errno == errno.EINVAL
    text = (lab.mountpoint / "search/problems.jsonl").read_text()
    assert told in json.loads(text.splitlines()[-1])["message"]
    assert_harmless(text)


def test_a_misspelt_filter(sample_lab: tuple[Lab, list[Said]]) -> None:
    """Its folder has a file that says so, as large as it is."""
    folder = sample_lab[0].mountpoint / "search" / "brnach:main"
    assert os.listdir(folder) == ["hits.jsonl", "hint.json"]
    told = (folder / "hint.json").read_bytes()
    assert (folder / "hint.json").stat().st_size == len(told)
    assert "branch:main" in json.loads(told)["because"][0]


def test_hostile_words(lab: Lab) -> None:
    """What was said can't get into the name of a link as it is, nor out of its line in hits.jsonl."""
    say(lab.sample, lab.sample.add(1, f"needle {HOSTILE}"), f"/../ {HOSTILE} ../../etc")
    lab.mount()
    (link,) = [name for name in whole(lab, "needle") if name != "hits.jsonl"]
    assert link.startswith("2026-11-29T21-00-00_")
    assert_harmless(link)
    assert_harmless((lab.mountpoint / "search/needle/hits.jsonl").read_text())
    assert [hit["thread_id"] for hit in hits(lab, "needle")] == found(lab, "needle")


@pytest.mark.parametrize("options", [("--index",), ("--index", "--read-only"), ("--no-index",)])
def test_what_changes_is_found(options: tuple[str, ...], lab: Lab) -> None:
    """What is said, taken away or deleted is found, or not, a second later at most; with no index of the user's one is
    made in the private folder, which is gone after the unmount.
    """
    lab.edits = True
    thread = lab.sample.add(1, "hello there")
    other = lab.sample.add(2, "hello you")
    lab.mount(*options)
    assert set(found(lab, "hello")) == {thread, other}
    lab.sample.append(thread, "goodbye")
    new = lab.sample.add(3, "hello again")
    until(lambda: found(lab, "goodbye") == [thread], "what was appended is found")
    until(lambda: set(found(lab, "hello")) == {thread, other, new}, "the new thread is found")
    lab.sample.replace(thread, "something else")
    lab.sample.path(other).unlink()
    until(lambda: found(lab, "hello") == [new], "what was replaced or deleted is not found any more")
    until(lambda: found(lab, "goodbye") == [], "nor is what was replaced found by other words")
    assert bool(list(lab.folder.glob("cache/rolloutfs/index/*.sqlite"))) == ("--no-index" not in options)
    lab.unmount()
    assert lab.spools() == []


def test_an_open_file_keeps_what_was_found(lab: Lab) -> None:
    """Who reads hits.jsonl while the answer changes reads one answer to its end; who opens it then has the new one."""
    for number in range(300):
        lab.sample.add(number, "needle " + "long " * 100)
    lab.mount()
    path = lab.mountpoint / "search/needle/hits.jsonl"
    until(lambda: path.read_bytes().count(b"\n") == 300, "all of them are in the index")
    with path.open("rb", buffering=0) as file:
        before = file.read(1000)
        lab.sample.add(300, "needle")
        until(lambda: path.read_bytes().count(b"\n") == 301, "the new hit is found")
        before += file.read()
    assert before.count(b"\n") == 300
    assert all(json.loads(line) for line in before.splitlines())


def test_an_index_that_is_deleted(lab: Lab) -> None:
    """It may go at any moment: the next search makes it anew, and what is said next is found."""
    threads = {lab.sample.add(number, "needle") for number in range(20)}
    lab.mount("--index")
    assert set(found(lab, "needle")) == threads
    (index,) = lab.folder.glob("cache/rolloutfs/index/*.sqlite")
    for end in ("", "-wal", "-shm"):
        Path(f"{index}{end}").unlink(missing_ok=True)
    assert set(found(lab, "needle kind:user")) == threads
    new = lab.sample.add(30, "needle")
    until(lambda: set(found(lab, "needle")) == {*threads, new}, "the new thread is found")


def test_without_a_place_for_the_index(lab: Lab) -> None:
    """Where the cache can't be written, the answer is the same."""
    thread = lab.sample.add(1, "hello")
    blocked = lab.folder / "cache/rolloutfs/index"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file")
    lab.mount()
    assert found(lab, "hello") == [thread]


def test_threads_that_cannot_be_searched(copy_store: CopyStore, tmp_path: Path) -> None:
    """`incomplete.json` says that there are some; the others are found."""
    home = copy_store("revert_forked.paginated").home
    min(home.rglob("rollout-*.jsonl")).unlink()
    with serving(tmp_path / "lab", home) as lab, mounted(lab) as mount:
        path = mount / "search/kind:user/incomplete.json"
        until(lambda: "can't be read as a whole" in path.read_text(), "the index has all that it can have")
        told = json.loads(path.read_bytes())
        threads = set(os.listdir(mount / "threads"))
        assert told["threads"] == len(threads)
        links = {os.readlink(path.parent / name)[-36:] for name in os.listdir(path.parent) if name[0].isdigit()}
        assert told["not_searched"] == len(threads - links) > 0
        assert "incomplete.json" in os.listdir(mount / "search/kind:user")


def test_a_folder_stays_while_it_is_listed(lab: Lab) -> None:
    """`ls -l` while a thread goes on finds each link that it has read the name of."""
    for number in range(30):
        lab.sample.add(number, "needle")
    log = lab.sample.path(lab.sample.add(31, "needle"))
    lab.mount()
    assert len(found(lab, "needle")) == 31
    writer = subprocess.Popen(["bash", "-c", 'while :; do cat "$1" >> "$2"; done', "-", _record(lab), log])
    try:
        for _ in range(20):
            code, output, errors = outcome("ls -l search/needle", lab.mountpoint)
            assert (code, errors) == (0, b"")
            assert output.count(b"->") == 31
    finally:
        writer.kill()
        writer.wait()


def _record(lab: Lab) -> Path:
    path = lab.folder / "record"
    path.write_bytes(message("another needle", second=200))
    return path


def test_the_newest_first(lab: Lab) -> None:
    """Threads are in the order of their newest hits, which isn't that of their last records."""
    threads = []
    for number, seconds in enumerate((50, 10, 90)):
        thread = lab.sample.add(number)
        later = message("needle", second=seconds) + message("other words", second=1000 - seconds)
        lab.sample.path(thread).write_bytes(meta(thread) + later)
        threads.append(thread)
    lab.mount()
    assert found(lab, "needle") == [threads[2], threads[0], threads[1]]


#: What desktops, version control and prompts look for wherever they are.
STRAYS = (".Trash", ".Trash-0", ".DS_Store", "._x", ".git", ".hidden", ".xdg-volume-info", "autorun.inf", "Thumbs.db")
_ALARM = """
from rolloutfs import engine, searches, tree
def alarmed(function):
    def wrapper(self, *args):
        if any(str(arg).startswith((".", "autorun", "Thumbs")) for arg in args):
            raise RuntimeError(f"somebody was asked for {args}")
        return function(self, *args)
    return wrapper
tree.Tree.lookup = alarmed(tree.Tree.lookup)
searches.Searches.look_up = alarmed(searches.Searches.look_up)
async def links(self, thread):
    raise RuntimeError("the links of a thread were asked for")
engine.Engine.links = links
"""


def test_strays(lab: Lab) -> None:
    """Names that desktops look for answer ENOENT in every folder, and neither tree, nor search, nor store is asked."""
    thread = lab.sample.add(1, "hello")
    lab.mount(patch=_ALARM)
    folders = (".", "threads", f"threads/{thread}", f"threads/{thread}/lineage", f"threads/{thread}/rollouts", "search")
    for folder in folders:
        for name in STRAYS:
            with pytest.raises(FileNotFoundError):
                os.stat(lab.mountpoint / folder / name)
    assert (lab.mountpoint / "search/problems.jsonl").read_bytes() == b""


@pytest.mark.parametrize(("zone", "day", "other"), [("UTC", 29, 30), ("Europe/Berlin", 30, 29)])
def test_days_of_the_zone(zone: str, day: int, other: int, lab: Lab) -> None:
    """since: and until: are days of the mount's zone, as the dates in the names of links are, whatever TZ says."""
    lab.sample.add(1, "needle")
    log = lab.sample.path(thread_id(1))
    log.write_bytes(re.sub(rb"2026-11-29T21:..:..\.[0-9]*Z?", LATE.encode(), log.read_bytes()))
    lab.mount("--zone", zone, TZ="Pacific/Kiritimati")
    (link,) = [name for name in whole(lab, f"needle since:2026-11-{day} until:2026-11-{day}") if name[0].isdigit()]
    assert link.startswith(f"2026-11-{day}T")
    assert whole(lab, f"needle since:2026-11-{other} until:2026-11-{other}") == ["hits.jsonl"]


def test_names_of_files(lab: Lab) -> None:
    """What can't be looked up as it stands, a leading dot or the README's own name, is a query between quotation
    marks.
    """
    lab.sample.add(1, "see .gitignore and README.md")
    lab.mount()
    for query in ('".gitignore"', '"README.md"'):
        (hit,) = hits(lab, query)
        assert hit["snippet"] == "see .gitignore and README.md"
    assert (lab.mountpoint / "search/README.md").is_file()
    assert not (lab.mountpoint / "search/.gitignore").exists()
