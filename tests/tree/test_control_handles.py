"""Handles of control files without a mount: who sees which answer, what repeats mean, what is remembered."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import control, handles, journal
from rolloutfs.control import Request
from rolloutfs.engine import Engine
from rolloutfs.handles import ControlFiles
from rolloutfs.journal import Journal
from rolloutfs.perform import Result, failure, refusal
from tests.tree.sample import SampleStore

THREAD = "01a22938-0000-7000-8000-000000000001"


@dataclass
class Recorded:
    """Stands for an engine: notes what it is asked to do, and answers what it is told to."""

    asked: list[Request] = field(default_factory=list)
    answer: Callable[[Request], Result] | None = None

    async def operate(self, thread: str, request: Request, since: object = None) -> Result:
        """Do nothing."""
        self.asked.append(request)
        if self.answer is not None:
            return self.answer(request)
        told = control.answer(request.op, thread, "done", dry_run=request.dry_run)
        return Result(0, {**told, "thread_id": f"child-{len(self.asked)}"})


@dataclass
class Desk:
    """Control files over an engine that only notes."""

    engine: Recorded
    files: ControlFiles
    changed: list[str]

    async def write(self, handle: int, data: bytes, offset: int = 0) -> int:
        """The errno of a write, 0 for success."""
        try:
            await self.files.write(handle, offset, data)
        except OSError as error:
            return error.errno or -1
        return 0

    def read(self, handle: int, offset: int = 0) -> dict[str, Any]:
        """The answer that a handle reads."""
        answer: dict[str, Any] = orjson.loads(self.files.read(handle, offset, 1 << 20))
        return answer


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Nothing was asked yet."""
    engine = Recorded()
    changed: list[str] = []
    files = ControlFiles(engine, Journal(str(tmp_path / "state" / journal.NAME)), changed.append)  # type: ignore[arg-type]  # that it notes is all we need
    return Desk(engine, files, changed)


async def test_a_handle_reads_its_own_answer(desk: Desk) -> None:
    """Two scripts that use one file at the same time never see each other's results."""
    first, second = desk.files.open(THREAD, "fork"), desk.files.open(THREAD, "fork")
    assert await desk.write(first, b"latest\n") == 0
    assert await desk.write(second, b"before 2\n") == 0
    assert desk.read(first)["thread_id"] == "child-1"
    assert desk.read(second)["thread_id"] == "child-2"
    assert desk.changed.count("child-1") == desk.changed.count("child-2") == 1


async def test_a_fresh_open_reads_the_last_answer_of_the_thread(desk: Desk) -> None:
    """Before that, how to use the file; afterwards the answer to whichever request was the last, done or not."""
    other = THREAD.replace("1", "2")
    assert desk.files.fresh(THREAD, "revert") == control.usage("revert")
    handle = desk.files.open(THREAD, "fork")
    assert desk.files.read(handle, 0, 10) == control.usage("fork")[:10]
    assert await desk.write(handle, b"latest") == 0
    assert orjson.loads(desk.files.fresh(THREAD, "revert"))["thread_id"] == "child-1"
    assert await desk.write(handle, b"nonsense") == errno.EINVAL
    assert orjson.loads(desk.files.fresh(THREAD, "compact"))["error"] == "EINVAL"
    assert desk.files.size(THREAD, "compact") == len(desk.files.fresh(THREAD, "compact"))
    assert desk.files.fresh(other, "fork") == control.usage("fork")


async def test_the_answer_begins_where_the_handle_stands(desk: Desk) -> None:
    """`echo latest >&3; cat <&3` reads behind what was written, a program with pread at 0; both get all of it, once."""
    handle = desk.files.open(THREAD, "fork")
    await desk.write(handle, b"latest\n", 0)
    whole = desk.files.read(handle, 7, 1000)
    assert orjson.loads(whole)["status"] == "done"
    assert desk.files.read(handle, 7 + len(whole), 1000) == b""
    await desk.write(handle, b"before 1\n", 7 + len(whole))
    assert desk.read(handle, 16 + len(whole))["thread_id"] == "child-2"
    assert desk.read(handle, 0)["thread_id"] == "child-2"
    assert desk.files.read(handle, len(whole), 1000) == b""
    pieces = [desk.files.read(handle, at, 10) for at in range(0, len(whole) + 10, 10)]
    assert orjson.loads(b"".join(pieces))["thread_id"] == "child-2"


async def test_a_refused_write_leaves_the_position(desk: Desk) -> None:
    """So its answer is read from where it began."""
    handle = desk.files.open(THREAD, "fork")
    assert await desk.write(handle, b"nonsense", 50) == errno.EINVAL
    assert desk.read(handle, 50)["status"] == "refused"
    assert desk.read(handle, 0)["error"] == "EINVAL"


async def test_the_same_bytes_again_act_once(desk: Desk) -> None:
    """After success the handle says the same again; other bytes, and another handle, are another request."""
    handle = desk.files.open(THREAD, "fork")
    for offset in (0, 0, 7):
        assert await desk.write(handle, b"latest\n", offset) == 0
        assert desk.read(handle)["thread_id"] == "child-1"
    assert await desk.write(handle, b"before 1\n") == 0
    assert await desk.write(handle, b"latest\n") == 0
    assert desk.read(handle)["thread_id"] == "child-3"
    assert await desk.write(desk.files.open(THREAD, "fork"), b"latest\n") == 0
    assert len(desk.engine.asked) == 4


async def test_a_failed_request_can_be_tried_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python repeats it at once, which is no other attempt; a script that tries again later is."""
    now = [100.0]
    monkeypatch.setattr("rolloutfs.handles.time.monotonic", lambda: now[0])
    desk.engine.answer = lambda request: refusal(request, THREAD, errno.EBUSY, "busy.")
    handle = desk.files.open(THREAD, "revert")
    assert await desk.write(handle, b"before 1") == errno.EBUSY
    desk.engine.answer = None
    assert await desk.write(handle, b"before 1") == errno.EBUSY
    assert len(desk.engine.asked) == 1
    now[0] += 1
    assert await desk.write(handle, b"before 1") == 0
    assert len(desk.engine.asked) == 2


async def test_what_may_have_been_done_is_not_repeated(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the process that did it was killed nobody knows: the same bytes on that handle get the same error."""
    desk.engine.answer = lambda request: failure(request, THREAD, errno.EIO, "died.", certain=False)
    handle = desk.files.open(THREAD, "fork")
    assert await desk.write(handle, b"latest") == errno.EIO
    desk.engine.answer = None
    monkeypatch.setattr(handles, "_ECHO", -1.0)
    assert await desk.write(handle, b"latest") == errno.EIO
    assert len(desk.engine.asked) == 1


async def test_a_handle_takes_one_summary(desk: Desk) -> None:
    """A shell that sends a text line by line makes one checkpoint and is told, however it goes on."""
    handle = desk.files.open(THREAD, "compact")
    assert await desk.write(handle, b"first line\n", 0) == 0
    assert await desk.write(handle, b"second line\n", 11) == errno.EINVAL
    assert "several pieces" in desk.read(handle)["message"]
    assert await desk.write(handle, b"third line\n", 11) == errno.EINVAL
    assert [request.summary for request in desk.engine.asked] == ["first line"]
    assert await desk.write(desk.files.open(THREAD, "compact"), b"another handle") == 0


@pytest.mark.parametrize("first", [b"x" * (control.LARGEST + 1), b'{"op":"fork","thread_id":"a"', b"\xff"])
async def test_no_piece_of_a_refused_text_is_a_summary(desk: Desk, first: bytes) -> None:
    """A program that goes on after an error makes no checkpoint of the rest."""
    handle = desk.files.open(THREAD, "compact")
    assert await desk.write(handle, first) in (errno.E2BIG, errno.EINVAL)
    assert await desk.write(handle, b"the rest", len(first)) == errno.EINVAL
    assert desk.engine.asked == []


async def test_usage_text_changes_nothing_at_all(desk: Desk) -> None:
    """No entry, no answer."""
    for file in control.FILES:
        handle = desk.files.open(THREAD, file)
        assert await desk.write(handle, control.usage(file)) == 0
        assert desk.files.read(handle, 0, 1 << 20) == control.usage(file)
    assert desk.engine.asked == []
    assert not os.path.exists(desk.files._journal.path)


async def test_errors_are_kept_for_the_thread(desk: Desk) -> None:
    """The attribute has the last one, also after something that went well."""
    assert desk.files.error(THREAD) is None
    handle = desk.files.open(THREAD, "fork")
    await desk.write(handle, b"nonsense")
    await desk.write(handle, b"latest")
    error = desk.files.error(THREAD)
    assert error is not None
    assert error.startswith("EINVAL: 'nonsense'")


# The journal


def entry(status: str = "done", error: int = 0) -> dict[str, Any]:
    """An answer."""
    return control.answer("fork", THREAD, status, error=error, message=status, dry_run=False)


def test_a_journal_is_shared(tmp_path: Path) -> None:
    """What one writes the others find, and a new one after a restart; it is private."""
    path = tmp_path / "a" / "b" / journal.NAME
    first, second = Journal(str(path)), Journal(str(path))
    assert first.last(THREAD) is None
    first.append(THREAD, b"latest", entry())
    assert second.last(THREAD) == control.as_line(entry())
    second.append(THREAD, b"nonsense", entry("refused", errno.EINVAL))
    for one in (first, second, Journal(str(path))):
        assert one.last(THREAD) == control.as_line(entry("refused", errno.EINVAL))
        assert one.error(THREAD) == "EINVAL: refused"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    lines = [orjson.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    assert [line["request"] for line in lines] == ["latest", "nonsense"]
    assert all(list(line)[:4] == ["time", "thread", "request", "op"] for line in lines)


def test_a_damaged_journal_hides_no_later_line(tmp_path: Path) -> None:
    """A line that was cut is ended, other lines that aren't ours are passed over, a new file is read anew."""
    path = tmp_path / journal.NAME
    path.write_bytes(b'nonsense\n[]\n{"thread":1}\n\xff\n{"time":"x","thr')
    one = Journal(str(path))
    assert one.last(THREAD) is None
    one.append(THREAD, b"latest", entry())
    assert one.last(THREAD) == Journal(str(path)).last(THREAD) == control.as_line(entry())
    path.unlink()
    assert one.last(THREAD) is None
    one.append(THREAD, b"latest", entry("failed", errno.EIO))
    assert one.error(THREAD) == "EIO: failed"


def test_each_store_has_a_journal_outside_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stores of one name have two; a state folder that the mount would cover, or in the store, isn't used."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    places = [journal.place(str(tmp_path / name / ".codex")) for name in ("a", "b")]
    assert len({*places, journal.place(str(tmp_path / "a" / ".codex"))} - {None}) == 2
    assert journal.place(str(tmp_path / "a"), avoid=str(tmp_path / "state")) is None
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a" / "sessions"))
    assert journal.place(str(tmp_path / "a")) is None


# With the library, in place


@pytest.mark.parametrize("request_", [b"before 1", b"undo", b"dry-run before 1"])
async def test_errors_of_the_library_have_their_errno(sample: SampleStore, tmp_path: Path, request_: bytes) -> None:
    """An unknown thread, a turn that isn't there, and what means nothing for a thread."""
    thread = sample.add(1, "hello")
    store = ThreadStore(str(sample.root), Spool(str(tmp_path / "spool")))
    (tmp_path / "spool").mkdir()
    files = ControlFiles(Engine(store, None), Journal(str(tmp_path / "j")), lambda thread: None)
    desk = Desk(Recorded(), files, [])
    gone = desk.files.open(THREAD.replace("1", "9"), "revert")
    assert await desk.write(gone, request_) == errno.ENOENT
    handle = desk.files.open(thread, "revert")
    assert await desk.write(handle, b"before 99") == errno.ENOENT
    assert desk.read(handle)["message"].startswith("turn not found")
    assert await desk.write(handle, b"undo") == errno.EINVAL
    assert desk.read(handle)["status"] == "refused"
