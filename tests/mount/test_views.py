"""The views of a mounted store: links that are right at once, whatever happens to the threads, index or not.
What they are for stores of many kinds is compared in `test_tools` (`plain_views`).
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.mount.conftest import DEADLINE, Lab, until
from tests.mount.plain_views import TOPS
from tests.tree.sample import DAY, line, thread_id

INDEXED = pytest.mark.parametrize("options", [("--no-index",), ("--index",)], ids=["computed", "indexed"])
#: No event is heard of.
_UNWATCHED = "from rolloutfs import mount; mount.open_watch = lambda *_: None"


def say(lab: Lab, thread: str, text: str, second: int = 0, folder: str = DAY) -> None:
    """Let a person say something, as Codex records it."""
    with lab.sample.path(thread, folder).open("ab") as log:
        log.write(line("event_msg", {"type": "user_message", "message": text}, second))


def add(lab: Lab, number: int, text: str = "", folder: str = DAY, **more: Any) -> str:
    """A thread in which a person said something."""
    thread = lab.sample.add(number, folder=folder, **more)
    if text:
        say(lab, thread, text, number, folder)
    return thread


def turn(lab: Lab, thread: str, model: str, cwd: str, second: int) -> None:
    """A whole turn with settings."""
    settings = {"cwd": cwd, "approval_policy": "never", "sandbox_policy": {"type": "read-only"}, "model": model}
    records = [
        line("event_msg", {"type": "task_started", "turn_id": f"t{second}"}, second),
        line("event_msg", {"type": "thread_settings_applied", "thread_settings": settings}, second),
        line("turn_context", {"turn_id": f"t{second}", "summary": "auto", **settings}, second),
        line("event_msg", {"type": "user_message", "message": "go on"}, second),
        line("event_msg", {"type": "task_complete", "turn_id": f"t{second}", "last_agent_message": None}, second),
    ]
    with lab.sample.path(thread).open("ab") as log:
        log.write(b"".join(records))


def links(lab: Lab, top: str = "") -> dict[str, str]:
    """All links in views, or in one, with the ids of their threads. Each leads to its thread's folder."""
    found = {}
    for start in [top] if top else TOPS:
        for _folder, _, names in os.walk(lab.mountpoint / start):
            assert names == []  # links to folders count as such
    listed = subprocess.run(
        ["find", *([top] if top else TOPS), "-type", "l", "-printf", "%p\\0%l\\0"],
        cwd=lab.mountpoint,
        check=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    ).stdout.split("\0")[:-1]
    for path, target in zip(listed[::2], listed[1::2], strict=True):
        place = lab.mountpoint / path
        assert os.path.normpath(place.parent / target).startswith(str(lab.mountpoint / "threads"))
        assert (place / "thread.json").exists()
        assert place.lstat().st_size == len(target)
        found[path] = place.resolve().name
    return found


def index(lab: Lab, options: tuple[str, ...]) -> None:
    """Have all threads in the index, if there is one."""
    if options == ("--index",):
        lab.run("index", lab.sample.root)


@INDEXED
def test_a_store_in_all_views(lab: Lab, options: tuple[str, ...]) -> None:
    """People's threads are where their times, names, folders, branches and models say; agents' are in none."""
    first = add(lab, 1, "Fix the `flaky` test", git={"branch": "feature/x"}, cwd="/home/me/project")
    second = add(lab, 2, "Fix the `flaky` test", timestamp="2026-11-28T23:30:00.000Z", cwd="/home/me")
    quiet = add(lab, 3, cwd=None)
    add(lab, 4, "of an agent", source={"subagent": {"thread_spawn": {"parent_thread_id": first, "depth": 1}}})
    add(lab, 5, "of a review", source={"subagent": "review"})
    old = add(lab, 6, "put away", folder="archived_sessions", cwd="C:\\Users\\me")
    turn(lab, first, "gpt-5.5", "/home/me/project/sub", 40)
    index(lab, options)
    lab.mount(*options)
    flaky = "Fix_the_flaky_test"
    assert links(lab) == {
        f"by-date/2026/11/29/21-00-00_{flaky}": first,
        f"by-date/2026/11/28/23-30-00_{flaky}": second,
        "by-date/2026/11/29/21-00-00": quiet,
        "by-date/2026/11/29/21-00-00_put_away": old,
        f"by-name/{flaky}-{first[-8:]}": first,
        f"by-name/{flaky}-{second[-8:]}": second,
        f"by-name/put_away-{old[-8:]}": old,
        f"by-cwd/home/me/project/sub/2026-11-29T21-00-00_{flaky}": first,
        f"by-cwd/home/me/2026-11-28T23-30-00_{flaky}": second,
        "by-cwd/C:/Users/me/2026-11-29T21-00-00_put_away": old,
        f"by-branch/feature/x/2026-11-29T21-00-00_{flaky}": first,
        f"by-model/gpt-5.5/2026-11-29T21-00-00_{flaky}": first,
        f"recent/2026-11-29T21-00-00_{flaky}": first,
        f"recent/2026-11-28T23-30-00_{flaky}": second,
        "recent/2026-11-29T21-00-00": quiet,
        "archived/2026-11-29T21-00-00_put_away": old,
    }
    for path in links(lab):
        assert (lab.mountpoint / path).lstat().st_mtime_ns == (lab.mountpoint / path).stat().st_mtime_ns
    newest = (lab.mountpoint / "threads" / first).stat().st_mtime_ns
    assert (lab.mountpoint / "by-cwd/home/me").stat().st_mtime_ns == newest


@INDEXED
@pytest.mark.parametrize("patch", ["", _UNWATCHED], ids=["watched", "unwatched"])
def test_changes_are_seen(lab: Lab, options: tuple[str, ...], patch: str) -> None:
    """New threads, first words, names, turns, archiving and deletion: in the next listing, or as soon as a store that
    tells of nothing is looked at again.
    """
    lab.edits = True
    root = lab.sample.root
    threads = [add(lab, number, f"thread {number}") for number in range(1, 4)]
    index(lab, options)
    lab.mount(*options, patch=patch)
    assert len(links(lab)) == 3 * 4

    def soon(top: str, *names: str) -> None:
        """A view has these names, at once or soon."""

        def have() -> bool:
            with suppress(AssertionError, FileNotFoundError):  # a link that is no longer right, or there
                return set(names) == {path.partition("/")[2] for path in links(lab, top)}
            return False

        if patch:
            until(have, f"{top} has {names}")
        else:
            assert set(names) == {path.partition("/")[2] for path in links(lab, top)}

    fresh = lab.sample.add(4)
    soon("recent", *(f"2026-11-29T21-00-00{end}" for end in ("", "_thread_1", "_thread_2", "_thread_3")))
    say(lab, fresh, "here I am")
    soon("by-name", *(f"thread_{one}-0000000{one}" for one in (1, 2, 3)), "here_I_am-00000004")
    name = {"id": fresh, "thread_name": "Fourth one", "updated_at": "2026-11-29T21:13:51Z"}
    (root / "session_index.jsonl").write_bytes(orjson.dumps(name) + b"\n")
    soon("by-name", *(f"thread_{one}-0000000{one}" for one in (1, 2, 3)), "Fourth_one")
    _write_names(root, {threads[0]: "named", fresh: None})
    soon("by-name", "named", "thread_2-00000002", "thread_3-00000003", "Fourth_one")
    _write_names(root, {threads[0]: "renamed", threads[1]: "renamed"})
    soon("by-name", "renamed-00000001", "renamed-00000002", "thread_3-00000003", "Fourth_one")
    turn(lab, fresh, "gpt-6/x", "/elsewhere", 50)
    soon("by-model", "gpt-6/x/2026-11-29T21-00-00_Fourth_one")
    assert "by-cwd/elsewhere/2026-11-29T21-00-00_Fourth_one" in links(lab, "by-cwd")
    path = lab.sample.path(threads[2])
    (root / "archived_sessions").mkdir()
    os.rename(path, root / "archived_sessions" / path.name)
    soon("archived", "2026-11-29T21-00-00_thread_3")
    assert threads[2] not in links(lab, "recent").values()
    os.rename(root / "archived_sessions" / path.name, path)
    soon("archived")
    path.unlink()
    soon("by-name", "renamed-00000001", "renamed-00000002", "Fourth_one")
    assert not (lab.mountpoint / "by-date/2026/11/29/21-00-00_thread_3").is_symlink()


def _write_names(root: Path, names: dict[str, str | None]) -> None:
    with closing(sqlite3.connect(root / "state_5.sqlite")) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS threads (id TEXT PRIMARY KEY, rollout_path TEXT, name TEXT)")
        for thread, name in names.items():
            database.execute("INSERT OR REPLACE INTO threads VALUES (?, '', ?)", (thread, name))


def test_a_listing_has_times_of_now(lab: Lab) -> None:
    """What was told of a link along with others isn't told again after its thread has changed."""
    threads = [add(lab, number, f"thread {number}") for number in range(1, 4)]
    lab.mount()
    for second in range(20, 24):
        for thread in threads:
            say(lab, thread, "more", second)
            with os.scandir(lab.mountpoint / "recent") as entries:
                times = {entry.name[-1]: entry.stat(follow_symlinks=False).st_mtime_ns for entry in entries}
            expected = {one[-1]: lab.thread(one).stat().st_mtime_ns for one in threads}
            assert times == expected


def test_a_fork_is_there(lab: Lab) -> None:
    """At once, when a control file made it."""
    thread = add(lab, 1, "hello")
    turn(lab, thread, "gpt-5.5", "/repo", 30)
    lab.mount()
    assert set(links(lab, "by-model").values()) == {thread}
    (lab.thread(thread) / "fork").write_text("latest\n")
    child = orjson.loads((lab.thread(thread) / "fork").read_bytes())["thread_id"]
    assert set(links(lab, "by-model").values()) == {thread, child}
    assert {thread, child} <= set(links(lab, "by-date").values())


def test_zone(lab: Lab) -> None:
    """Dates are of the zone that the mount was given; a wrong one is told at once."""
    add(lab, 1, "late", timestamp="2026-11-29T23:30:00.000Z")
    told = lab.run("mount", "--zone", "Europe/Berlim", lab.sample.root, lab.mountpoint, code=2).stderr
    assert "Europe/Berlim" in told
    assert not lab.is_mounted()
    for arguments, variable in [(("--zone", "Europe/Berlin"), ""), (("-o", "ro,zone=Europe/Berlin"), ""), ((), "CET")]:
        lab.mount(*arguments, ROLLOUTFS_ZONE=variable)
        assert list(links(lab, "by-date")) == ["by-date/2026/11/30/00-30-00_late"]
        lab.unmount()


def test_hostile_threads(lab: Lab) -> None:
    """Whatever a log calls itself, its folder, branch and model: each link lies in its view and leads to its thread."""
    texts = [
        "../../etc",
        "a/b",
        ".",
        "..",
        "",
        "x" * 300,
        "\u202egnp.exe",
        "new\nline",
        "\x1b[31m",
        "-rf",
        "/",
        "~",
        "\ud83d",
    ]
    for number, text in enumerate(texts):
        raw = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        thread = add(lab, number, raw or "empty", cwd=f"/{raw}", git={"branch": raw})
        turn(lab, thread, raw, f"/{raw}/{raw}", 1)
    lab.mount("--no-index")
    found = links(lab)
    assert {thread for path, thread in found.items() if path.startswith("by-date/")} == {
        thread_id(number) for number in range(len(texts))
    }
    for path in found:
        assert not set(path) & set("\n\x1b\u202e")
        assert all(part not in (".", "..") and len(part.encode()) <= 255 for part in path.split("/"))


def test_copies_of_a_view(lab: Lab, tmp_path: Path) -> None:
    """Beside a copy of the threads the links of a copied view lead to these. Files are named through a view, and
    the folders of its threads copied, without a walk that follows links.
    """
    threads = [add(lab, number, f"words {number}", git={"branch": "a/b"}) for number in (1, 2)]
    lab.mount("--read-only")
    copy = tmp_path / "copy"
    copy.mkdir()
    for command in (
        "cp -a by-branch by-date {0}",
        "tar cf - threads by-cwd | tar xf - -C {0}",
        "rsync -a by-name {0}/",
    ):
        subprocess.run(command.format(copy), shell=True, cwd=lab.mountpoint, check=True, timeout=DEADLINE)
    for top in ("by-branch", "by-date", "by-cwd", "by-name"):
        found = {path.resolve() for path in (copy / top).rglob("*") if path.is_symlink()}
        assert found == {copy / "threads" / thread for thread in threads}, top
    own = f"find by-branch/a -type l -exec readlink -f {{}} + | xargs cp -a -t {tmp_path} && ls -d {tmp_path}/01*"
    for command in ("ls by-branch/a/b/*/thread.json", "grep -l words by-branch/a/b/*/thread.json", own):
        run = subprocess.run(command, shell=True, cwd=lab.mountpoint, capture_output=True, timeout=DEADLINE, check=True)
        assert len(run.stdout.splitlines()) == 2


@INDEXED
def test_numbers_last(lab: Lab, options: tuple[str, ...]) -> None:
    """Inode numbers of links and folders are the same in the next mount, and each is another one."""
    for number in range(1, 6):
        add(lab, number, f"words {number}", git={"branch": f"b/{number}"}, cwd=f"/a/{number}")
    seen = []
    for _ in range(2):
        lab.mount(*options)
        told = subprocess.run(
            ["find", ".", "-printf", "%i %p %T@\\n"],
            cwd=lab.mountpoint,
            check=True,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        ).stdout
        seen.append(sorted(row for row in told.splitlines() if " ./store/" not in row))
        lab.unmount()
    assert seen[0] == seen[1]
    numbers = [row.split(" ")[0] for row in seen[0]]
    assert len(numbers) == len(set(numbers))
