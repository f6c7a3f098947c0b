"""A store that goes on while it is mounted: what Codex appends, archives, reverts, compacts or compresses is seen.

An open sees the store as it is at that moment; what is open already follows within the kernel's attribute timeout, so
those tests wait for what they expect and never for a time (FUSE 6.2).
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from subprocess import PIPE

import pytest
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.conftest import CopyStore
from tests.mount.clients import environment, mounted, need, python, run, serving
from tests.mount.conftest import DEADLINE, Lab, until
from tests.mount.plain import OF_REVERTS, join, raw_files
from tests.tree.sample import line, message

DATABASE = "state_5.sqlite"


class Follower:
    """`tail` on one file: what it has printed so far."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, errors: Path) -> None:
        self.process = process
        self._output = output
        self._errors = errors

    @property
    def seen(self) -> bytes:
        """All of its output."""
        return self._output.read_bytes()

    @property
    def complaints(self) -> str:
        """All that it said about the file."""
        return self._errors.read_text()

    def wait(self) -> None:
        """Wait until tail has looked at the file often enough to see whether its name means another one now."""
        status = Path(f"/proc/{self.process.pid}/status")
        slept = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)$", re.MULTILINE)

        def times() -> int:
            found = slept.search(status.read_text())
            assert found
            return int(found[1])

        start = times()
        until(lambda: times() >= start + 120, "tail goes on looking")


@contextmanager
def following(path: Path, flag: str, folder: Path) -> Iterator[Follower]:
    """Follow a file from its first line on with `tail -f` or `tail -F`, as fast as tail can."""
    number = len(list(folder.glob("tail-*.out")))
    output, errors = folder / f"tail-{number}.out", folder / f"tail-{number}.err"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            ["tail", "-n", "+1", "-s", "0.02", flag, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(folder),
        )
    try:
        yield Follower(process, output, errors)
        assert process.poll() is None, "tail gave up"
    finally:
        process.kill()
        process.wait()


def fresh(root: Path, thread: str, view: View) -> bytes:
    """A derived file as the store is now, by a reader that has never seen it before."""
    store = ThreadStore(str(root), Spool(f"{root}.spool"))
    return join(store, store.project(thread, view))


def content(path: Path) -> bytes:
    """The bytes that `cat` gives."""
    return run(f"cat '{path}'", path.parent)


@contextmanager
def served_home(folder: Path, home: Path) -> Iterator[Path]:
    """The mountpoint of a home that the test may change."""
    with serving(folder / "lab", home) as lab, mounted(lab) as mount:
        yield mount


# Appended


_AGAIN = """
import os, sys
descriptor, before = os.open(sys.argv[1], os.O_RDONLY), b""
while b"the end" not in before:
    data = b""
    while piece := os.pread(descriptor, 1 << 20, len(data)):
        data += piece
    assert data.startswith(before), (len(before), len(data), data[-200:])
    assert data.endswith(b"\\n") and b"\\0" not in data, (len(before), len(data), data[-200:])
    before = data
"""
_SIZES = """
import os, sys
size = 0
while os.getppid() == int(sys.argv[2]):
    before, size = size, os.stat(sys.argv[1]).st_size
    if size != before:
        print(size, flush=True)
"""


@pytest.mark.parametrize(("name", "times"), [("rollouts/current", 1000), ("effective_history.jsonl", 150)])
def test_a_reader_sees_no_byte_that_is_not_there_when_others_ask_for_the_size(lab: Lab, name: str, times: int) -> None:
    """The kernel fills the last page of a file up with zeros, and shows them as soon as it is told that there is more.
    Who reads a file that grows never sees any, however often others look at its size.
    """
    thread = lab.sample.add(1, "hello")
    lab.mount()
    path = lab.thread(thread) / name
    reader = subprocess.Popen([sys.executable, "-c", _AGAIN, path], stderr=PIPE, text=True)
    other = subprocess.Popen([sys.executable, "-c", _SIZES, path, str(os.getpid())], stdout=PIPE, text=True)
    assert reader.stderr is not None
    assert other.stdout is not None
    try:
        with lab.sample.path(thread).open("ab", buffering=0) as file:
            for number in range(times):
                assert other.stdout.readline()
                file.write(message(f"say {number}", second=number))
            file.write(message("the end", second=times))
        errors = reader.communicate(timeout=DEADLINE)[1]
        assert reader.returncode == 0, errors
    finally:
        for process in (reader, other):
            process.kill()
            process.wait()
        reader.stderr.close()
        other.stdout.close()


_CROWD = """
import os, sys, threading
path = sys.argv[1]
def look():
    for _ in range(40):
        os.stat(path)
def read():
    descriptor = os.open(path, os.O_RDONLY)
    for _ in range(100):
        os.pread(descriptor, 1 << 20, 0)
    os.close(descriptor)
crowd = [threading.Thread(target=work) for work in [look] * 120 + [read] * 10]
for one in crowd:
    one.start()
for one in crowd:
    one.join()
"""


def test_a_crowd_asks_for_the_size_of_what_is_being_read(lab: Lab) -> None:
    """More requests than pyfuse3 takes at a time wait for pages that wait for a read: it is answered all the same."""
    thread = lab.sample.add(1, "hello")
    lab.mount()
    begun = time.monotonic()
    crowds = [subprocess.Popen([sys.executable, "-c", _CROWD, lab.thread(thread) / "rollouts/current"]) for _ in "ab"]
    try:
        with lab.sample.path(thread).open("ab", buffering=0) as file:
            for number in count():
                with suppress(subprocess.TimeoutExpired):
                    crowds[number % 2].wait(0.001)
                if all(crowd.poll() is not None for crowd in crowds):
                    break
                file.write(message(f"say {number}", second=number))
                assert time.monotonic() < begun + 2 * DEADLINE, "nobody is answered any more"
        assert [crowd.returncode for crowd in crowds] == [0, 0]
    finally:
        lab.clean_up()  # or nobody could end a program that waits
        for crowd in crowds:
            crowd.kill()
            crowd.wait()


#: Run in the server: the kernel hears of a change just before each answer to `stat` of a file that is open, as
#: happens when something is written, or somebody else opens the file, at that moment.
_AT_THE_WRONG_MOMENT = """
from rolloutfs import operations, shortcuts
later, now = operations.Operations.getattr, shortcuts.Shortcuts.getattr_now
async def getattr(self, inode, ctx):
    answer = await later(self, inode, ctx)
    if self.contents.is_open(inode):
        self.notices.give(inode)
    return answer
def getattr_now(self, inode):
    answer = now(self, inode)
    if answer is not None and self._contents.is_open(inode):
        self._notices.give(inode)
    return answer
operations.Operations.getattr, shortcuts.Shortcuts.getattr_now = getattr, getattr_now
"""
#: What threads tell the kernel of pages goes to the device itself: by way of libfuse it might arrive later.
_PAST_LIBFUSE = """
import pyfuse3
def refuse(*arguments): raise AssertionError("a page was put by way of libfuse")
pyfuse3.notify_store = refuse
"""
#: Goes to the end of a file by what `stat` says, as `tail -c` does.
_END = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(descriptor).st_size
data = os.pread(descriptor, 1 << 16, size - 300)
assert len(data) == 300 and data.endswith(b"\\n"), (size, len(data))
"""
#: Reads a file without asking for its size.
_ALL = """
import os, sys
descriptor, data = os.open(sys.argv[1], os.O_RDONLY), b""
while piece := os.read(descriptor, 1 << 20):
    data += piece
assert data.count(b"y" * 1000) == int(sys.argv[2]) and data.endswith(b"\\n"), len(data)
"""


@pytest.mark.parametrize(
    ("name", "texts", "loop"),
    [
        ("full_history.jsonl", 300, "ours"),
        ("full_history.jsonl", 300, "stock"),
        ("effective_history.jsonl", 1, "ours"),
        ("rollouts/current", 1, "ours"),
    ],
)
@pytest.mark.parametrize("script", [_END, _ALL], ids=["end", "all"])
def test_what_is_told_of_the_size_can_be_read(lab: Lab, script: str, name: str, texts: int, loop: str) -> None:
    """The kernel forgets what it is told of a file while it hears of a change, though whoever asked gets it. Who reads
    to the end finds it where `stat` says that it is all the same, whether the kernel hasn't known the size before or
    the file has grown while somebody had it open.
    """
    thread = lab.sample.add(1, *(f"{number} {'x' * 1000}" for number in range(texts)))
    has_gate = loop == "ours" and "ROLLOUTFS_PASSTHROUGH" not in os.environ
    patch = _AT_THE_WRONG_MOMENT + (_PAST_LIBFUSE if has_gate else "")
    lab.expected = ["Without passthrough"]  # where that was asked for: not with the stock loop
    lab.mount("--no-index", patch=patch, ROLLOUTFS_REQUEST_LOOP=loop)
    path = lab.thread(thread) / name
    python(script, path, Path("0"), cwd=lab.folder)
    with path.open("rb") as held:
        assert held.read()
        for number in range(1, 4):
            lab.sample.append(thread, f"more {number} {'y' * 1000}")
            python(script, path, Path(str(number)), cwd=lab.folder)


@pytest.mark.parametrize("flag", ["-f", "-F"])
def test_tail_prints_every_line_once_and_whole(lab: Lab, flag: str) -> None:
    """Records that arrive in pieces, some cut within a letter: every line is printed once, in order, untorn. The log is
    followed byte by byte; a derived file shows a record only when it is complete.
    """
    thread = lab.sample.add(1, "hello")
    lab.mount()
    source = lab.sample.path(thread)
    rollouts, history = lab.thread(thread) / "rollouts", lab.thread(thread) / "effective_history.jsonl"
    with (
        following(rollouts / source.name, flag, lab.folder) as log,
        following(rollouts / "current", flag, lab.folder) as current,
        following(history, flag, lab.folder) as items,
        source.open("ab", buffering=0) as file,
    ):
        for number in range(40):
            record = message(f"say {number} “ü” " + "x" * (number * 97 % 6000), second=number)
            cuts = [0, *sorted({number * 31 % len(record), 117, record.index("ü".encode()) + 1}), len(record)]
            for start, end in pairwise(cuts):
                file.write(record[start:end])
                if number % 20 == 0:  # let half a line be seen
                    until(lambda: log.seen == source.read_bytes(), "tail has what is there")
            if number % 10 == 0:
                until(lambda number=number: f"say {number} “".encode() in items.seen, "the item is printed")  # type: ignore[misc]
        whole = source.read_bytes()
        until(lambda: len(log.seen) >= len(whole) and len(current.seen) >= len(whole), "tail has the whole log")
        until(lambda: items.seen.count(b"\n") >= 41, "tail has every item")
        assert log.seen == current.seen == whole
        assert items.seen == content(history)
        texts = [json.loads(row)["content"][0]["text"].split(" “")[0] for row in items.seen.split(b"\n")[:-1]]
        assert texts == ["hello", *(f"say {number}" for number in range(40))]
        assert {log.complaints, current.complaints, items.complaints} == {""}


def test_what_tail_follows(lab: Lab) -> None:
    """As the documents say: files that gain lines; one that is made anew stays, in a handle, as it was."""
    thread = lab.sample.add(1, "hello")
    lab.mount()
    folder = lab.thread(thread)
    names = ("effective_history.jsonl", "model_input.jsonl", "full_history.jsonl", "rollouts/current")
    with ExitStack() as stack:
        gaining = [stack.enter_context(following(folder / name, "-f", lab.folder)) for name in names]
        transcript = stack.enter_context(following(folder / "transcript.md", "-f", lab.folder))
        until(lambda: all(b"hello" in one.seen for one in (*gaining, transcript)), "tail has what is there")
        before = transcript.seen
        lab.sample.append(thread, "more of it")
        until(lambda: all(b"more of it" in one.seen for one in gaining), "tail prints what came")
        until(lambda: b"more of it" in content(folder / "transcript.md"), "it is in the file")
        transcript.wait()
        assert transcript.seen == before


@pytest.mark.parametrize(
    "name", ["tools.paginated", "compact_manual.paginated", "compact_last.legacy", "steer.paginated"]
)
def test_every_moment_of_a_growing_thread_is_right(copy_store: CopyStore, tmp_path: Path, name: str) -> None:
    """A real log written again by lines and halves of lines: each derived file is at once what a first look gives."""
    home = copy_store(name).home
    source = max((home / "sessions").rglob("*.jsonl"), key=lambda path: path.stat().st_size)
    whole = source.read_bytes()
    lines = whole.splitlines(keepends=True)
    source.write_bytes(b"".join(lines[:3]))
    with served_home(tmp_path, home) as mount, source.open("ab", buffering=0) as file:
        folder = mount / "threads" / source.name[28:64]
        for number, record in enumerate(lines[3:]):
            half = len(record) // 2 if number % 4 == 0 else 0
            for piece in filter(None, (record[:half], record[half:])):
                file.write(piece)
                for view in (View.EFFECTIVE_HISTORY, View.THREAD) if number % 3 else (View.MODEL_INPUT, View.TURNS):
                    assert content(folder / view.value) == fresh(home, folder.name, view), (number, view)
        assert content(folder / "rollouts/current") == whole
        for view in {*View} - OF_REVERTS:
            path = folder / ("lineage" if view is View.LINEAGE else "") / view.value
            assert content(path) == fresh(home, folder.name, view)


@pytest.mark.parametrize("reader", [True, False], ids=["with a reader of the old memory", "alone"])
def test_tail_goes_on_with_the_new_memory_after_a_compaction(lab: Lab, reader: bool) -> None:
    """`tail -F` of the memory prints the old one, then the new one as a whole, once, then what is appended to that.
    `tail -f` stays with the file that it has opened, which is complete and gets no foreign bytes.
    """
    thread = lab.sample.add(1, *(f"old {number}" for number in range(20)))
    lab.mount()
    history = lab.thread(thread) / "effective_history.jsonl"
    old = content(history)
    summary = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "what happened so far"}]}
    with ExitStack() as stack:
        named = stack.enter_context(following(history, "-F", lab.folder))
        opened = stack.enter_context(following(history, "-f", lab.folder)) if reader else None
        until(lambda: named.seen == old, "the old memory is printed")
        if opened is not None:
            until(lambda: opened.seen == old, "the other one has it, too")
        with lab.sample.path(thread).open("ab") as file:
            file.write(line("compacted", {"message": "", "replacement_history": [summary]}))
        new = content(history)
        assert b"what happened so far" in new
        assert b"old 0" not in new
        until(lambda: len(named.seen) >= len(old + new), "the new memory is printed")
        for number in range(3):
            lab.sample.append(thread, f"new {number}")
            until(lambda text=b"new %d" % number: text in named.seen, "the next line is printed")  # type: ignore[misc]
        named.wait()
        assert named.seen == old + content(history)
        assert opened is None or opened.seen == old


# Threads that come and move


def _statistics(mount: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads(content(mount / "stats.json"))
    return found


def test_a_new_thread_is_listed(lab: Lab) -> None:
    """`ls threads` shows a thread soon after its first record was written; by its name it is there at once."""
    lab.sample.add(1)
    lab.mount()
    assert run("ls threads", lab.mountpoint).count(b"\n") == 1
    for number, folder in ((2, "sessions/2026/11/29"), (3, "sessions/2026/11/30"), (4, "sessions/2027/01/01")):
        thread = lab.sample.add(number, f"hello {number}", folder=folder)
        assert f"hello {number}".encode() in run(f"cat threads/{thread}/effective_history.jsonl", lab.mountpoint)
        until(lambda name=thread: name in os.listdir(lab.mountpoint / "threads"), "it is listed")  # type: ignore[misc]
        until(lambda count=number: _statistics(lab.mountpoint)["threads"] == count, "it is counted")  # type: ignore[misc]
    assert run("ls store/sessions", lab.mountpoint) == b"2026\n2027\n"


def test_archived_and_brought_back(copy_store: CopyStore, tmp_path: Path) -> None:
    """Codex moves a thread's file to archived_sessions and back: the thread stays as it was and says where it is."""
    home = copy_store("tools.paginated").home
    source = next((home / "sessions").rglob("*.jsonl"))
    archive = home / "archived_sessions"
    archive.mkdir()
    state = "ls -i | grep -v thread.json; cat effective_history.jsonl rollouts/current"
    with served_home(tmp_path, home) as mount:
        folder, heads = mount / "threads" / source.name[28:64], mount / "store/heads.jsonl"
        before = run(state, folder)
        assert json.loads(content(folder / "thread.json"))["archived"] is False

        def moved(name: str) -> None:
            assert run(state, folder) == before
            assert json.loads(content(folder / "thread.json"))["archived"] is name.startswith("archived")
            until(lambda: run("find store -name 'rollout*'", mount) == f"store/{name}\n".encode(), "it is shown there")
            until(lambda: json.loads(content(heads))["file"] == name, "the head is there")

        source.rename(archive / source.name)
        moved(f"archived_sessions/{source.name}")
        (archive / source.name).rename(source)
        moved(str(source.relative_to(home)))


@pytest.mark.parametrize("place", ["here", "behind a link", "elsewhere"])
def test_a_thread_that_is_reverted(place: str, copy_store: CopyStore, tmp_path: Path) -> None:
    """A revert writes a new generation and moves the row: the memory is the new one, both generations stay readable.
    Moving the row back brings the old memory back. Wherever the database lies.
    """
    home = copy_store("revert_once.paginated").home
    if place != "here":
        aside = tmp_path / "aside"
        aside.mkdir()
        (home / DATABASE).rename(aside / DATABASE)
        if place == "elsewhere":
            (home / "config.toml").write_text(f'sqlite_home = "{aside}"\n')
        else:
            (home / DATABASE).symlink_to(aside / DATABASE)
    old, new = sorted((home / "sessions").rglob("*.jsonl"))
    thread, added = old.name[28:64], new.read_bytes()
    new.unlink()
    with closing(sqlite3.connect(home / DATABASE if place == "here" else aside / DATABASE)) as database:

        def select(path: Path) -> None:
            database.execute("UPDATE threads SET rollout_path = ? WHERE id = ?", (str(path), thread))
            database.commit()

        select(old)
        with served_home(tmp_path, home) as mount:
            folder, history = mount / "threads" / thread, mount / "threads" / thread / "effective_history.jsonl"
            first = content(history)
            assert first.count(b"\n") > 10
            assert run("readlink rollouts/current", folder).decode().strip() == old.name
            with following(history, "-F", tmp_path) as tail:
                until(lambda: tail.seen == first, "the old memory is printed")
                new.write_bytes(added)
                select(new)
                second = content(history)
                assert second == fresh(home, thread, View.EFFECTIVE_HISTORY)
                assert len(second) < len(first)
                until(lambda: len(tail.seen) >= len(first + second), "the new memory is printed")
                tail.wait()
                assert tail.seen == first + second
            until(lambda: run("readlink rollouts/current", folder).decode().strip() == new.name, "the link moves")
            assert content(folder / "rollouts/current") == added
            assert content(folder / "rollouts" / old.name) == old.read_bytes()
            select(old)
            assert content(history) == first
            until(lambda: run("readlink rollouts/current", folder).decode().strip() == old.name, "the link returns")


def test_a_first_revert_is_noticed_by_its_row_alone(copy_store: CopyStore, tmp_path: Path) -> None:
    """The new generation is there for a while before the row names it, and is looked at meanwhile. However long the
    kernel may rely on an answer, it is told when the row moves.
    """
    home = copy_store("revert_once.paginated").home
    old, new = sorted((home / "sessions").rglob("*.jsonl"))
    thread, added = old.name[28:64], new.read_bytes()
    new.unlink()
    with closing(sqlite3.connect(home / DATABASE)) as database, serving(tmp_path / "lab", home) as lab:

        def select(path: Path) -> None:
            database.execute("UPDATE threads SET rollout_path = ? WHERE id = ?", (str(path), thread))
            database.commit()

        select(old)
        lab.mount(patch="from rolloutfs import freshness\nfreshness.LIVE = freshness.QUIET")
        turns, rollouts = lab.thread(thread) / "turns.jsonl", lab.thread(thread) / "rollouts"
        before = turns.stat().st_size
        new.write_bytes(added)
        until(lambda: (rollouts / new.name).exists(), "the new generation is there")
        until(lambda: turns.stat().st_size == before, "the old one is still in force")
        select(new)
        expected = len(fresh(home, thread, View.TURNS))
        assert expected != before
        until(lambda: turns.stat().st_size == expected, "the new one is in force")
        lab.unmount()


def test_a_thread_that_is_renamed(copy_store: CopyStore, tmp_path: Path) -> None:
    """A new name in the database is shown at once."""
    home = copy_store("tools.paginated").home
    with closing(sqlite3.connect(home / DATABASE)) as database, served_home(tmp_path, home) as mount:
        page = next((mount / "threads").iterdir()) / "thread.json"
        assert json.loads(content(page))["name"] is None
        for name in ("first", "other"):
            database.execute("UPDATE threads SET name = ? WHERE id = ?", (name, page.parent.name))
            database.commit()
            assert json.loads(content(page))["name"] == name


def test_a_legacy_thread_that_is_renamed(copy_store: CopyStore, tmp_path: Path) -> None:
    """The names of legacy threads are lines of session_index.jsonl; the last one of a thread counts, at once."""
    home = copy_store("named.legacy", sqlite=False).home
    index = home / "session_index.jsonl"
    thread = json.loads(index.read_bytes().splitlines()[-1])["id"]
    with served_home(tmp_path, home) as mount, index.open("ab", buffering=0) as file:
        page = mount / "threads" / thread / "thread.json"
        assert json.loads(content(page))["name"]
        for name in ("first", "other"):
            file.write(json.dumps({"id": thread, "thread_name": name, "updated_at": "2026-11-30"}).encode() + b"\n")
            assert json.loads(content(page))["name"] == name
            assert content(mount / "store/session_index.jsonl") == index.read_bytes()


def test_compressed_in_place(copy_store: CopyStore, tmp_path: Path) -> None:
    """Codex compresses old rollouts where they lie: the tree shows the same bytes, also to a reader half-way."""
    need("zstd", "zstd")
    home = copy_store("forks.paginated").home
    with served_home(tmp_path, home) as mount:
        everything = (
            "find threads -name '*history.jsonl' -o -name '*.jsonl' -path '*/rollouts/*' | sort | xargs sha256sum"
        )
        before = run(everything, mount)
        files = raw_files(home)
        reader = (mount / "threads" / files[0].thread / "rollouts" / files[0].name).open("rb", buffering=0)
        start = reader.read(100)
        whole = files[0].content
        for file in files:
            assert file.path.suffix != ".zst"
            run(f"zstd -q --rm '{file.path}'", home)
            shown = mount / "threads" / file.thread / "rollouts" / file.name
            assert content(shown) == run(f"zstd -dcq '{file.path}.zst'", home)
        assert run(everything, mount) == before
        until(lambda: (mount / "store" / f"{files[0].path.relative_to(home)}.zst").exists(), "store/ shows the .zst")
        assert start + reader.read() == whole
        reader.close()
        for file in raw_files(home):
            run(f"zstd -dq --rm '{file.path}'", home)  # as Codex does for a thread that goes on
        assert run(everything, mount) == before
