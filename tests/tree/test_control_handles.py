"""Handles of control files without a mount: who sees which answer, what repeats mean, what is remembered."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from threadstore.locks import BusyError
from threadstore.seen import Seen
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import control, journal, texts
from rolloutfs.control import Request
from rolloutfs.engine import Engine
from rolloutfs.handles import ControlFiles
from rolloutfs.journal import Journal
from rolloutfs.perform import Result, failure, perform, refusal
from tests.tree.sample import SampleStore

THREAD = "01a22938-0000-7000-8000-000000000001"
LOCK = 1000  # a descriptor that is none


@dataclass
class Recorded:
    """Stands for an engine: notes what it is asked to do, and answers what it is told to."""

    asked: list[Request] = field(default_factory=list)
    answer: Callable[[Request], Result] | None = None

    seen: Seen = field(default_factory=lambda: Seen("rollout", 1, 1, 100))
    held: int = 0  # locks
    told: list[tuple[Request, Seen | None, int | None]] = field(default_factory=list)

    def look(self, thread: str) -> Seen:
        """The thread as it is now."""
        return self.seen

    @contextlib.contextmanager
    def lock(self, thread: str) -> Iterator[int]:
        """The writer's lock."""
        if self.held:
            raise BusyError("thread already has an active writer.")
        self.held += 1
        try:
            yield LOCK
        finally:
            self.held -= 1

    async def operate(
        self, thread: str, request: Request, expected: Seen | None = None, *, lock: int | None = None
    ) -> Result:
        """Do nothing."""
        self.told.append((request, expected, lock))
        if expected not in (None, self.seen):
            return refusal(request, thread, errno.EBUSY, "changed.")
        if request.dry_run and lock is not None:  # only tried
            return Result(0, control.answer("compact", thread, "done", dry_run=True), seen=self.seen)
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

    async def read(self, handle: int, offset: int = 0) -> dict[str, Any]:
        """The answer that a handle reads."""
        answer: dict[str, Any] = orjson.loads(await self.files.read(handle, offset, 1 << 20))
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
    assert (await desk.read(first))["thread_id"] == "child-1"
    assert (await desk.read(second))["thread_id"] == "child-2"
    assert desk.changed.count("child-1") == desk.changed.count("child-2") == 1


async def test_a_fresh_open_reads_the_last_answer_of_the_thread(desk: Desk) -> None:
    """Before that, how to use the file; afterwards the answer to whichever request was the last, done or not."""
    other = THREAD.replace("1", "2")
    assert desk.files.fresh(THREAD, "revert") == control.usage("revert")
    handle = desk.files.open(THREAD, "fork")
    assert await desk.files.read(handle, 0, 10) == control.usage("fork")[:10]
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
    whole = await desk.files.read(handle, 7, 1000)
    assert orjson.loads(whole)["status"] == "done"
    assert await desk.files.read(handle, 7 + len(whole), 1000) == b""
    await desk.write(handle, b"before 1\n", 7 + len(whole))
    assert (await desk.read(handle, 16 + len(whole)))["thread_id"] == "child-2"
    assert (await desk.read(handle, 0))["thread_id"] == "child-2"
    assert await desk.files.read(handle, len(whole), 1000) == b""
    pieces = [await desk.files.read(handle, at, 10) for at in range(0, len(whole) + 10, 10)]
    assert orjson.loads(b"".join(pieces))["thread_id"] == "child-2"


async def test_a_refused_write_leaves_the_position(desk: Desk) -> None:
    """So its answer is read from where it began."""
    handle = desk.files.open(THREAD, "fork")
    assert await desk.write(handle, b"nonsense", 50) == errno.EINVAL
    assert (await desk.read(handle, 50))["status"] == "refused"
    assert (await desk.read(handle, 0))["error"] == "EINVAL"


@pytest.mark.parametrize(("file", "data"), [("fork", b"latest\n"), ("revert", b"before -1\n"), ("compact", b"{}")])
async def test_the_same_request_again_is_another_one(desk: Desk, file: str, data: bytes) -> None:
    """One write is one request: two forks, two turns taken back."""
    handle = desk.files.open(THREAD, file)
    data = b'{"strategy":"recent"}' if file == "compact" else data
    for number, offset in enumerate((0, 0, 7)):
        assert await desk.write(handle, data, offset) == 0
        assert (await desk.read(handle))["thread_id"] == f"child-{number + 1}"
    assert await desk.write(handle, data) == 0
    assert await desk.write(handle, data) == 0
    assert len(desk.engine.asked) == 5


async def test_a_failed_request_can_be_tried_again(desk: Desk) -> None:
    """Python repeats it when it closes the file, which is no other attempt; who repeats it once more, or opens the file
    anew, means it.
    """
    desk.engine.answer = lambda request: refusal(request, THREAD, errno.EBUSY, "busy.")
    handle = desk.files.open(THREAD, "revert")
    assert await desk.write(handle, b"before 1") == errno.EBUSY
    desk.engine.answer = None
    assert await desk.write(handle, b"before 1") == errno.EBUSY
    assert len(desk.engine.asked) == 1
    assert await desk.write(desk.files.open(THREAD, "revert"), b"before 1") == 0
    assert len(desk.engine.asked) == 2
    assert await desk.write(handle, b"before 1") == 0
    assert len(desk.engine.asked) == 3


@pytest.mark.parametrize("certain", [True, False])
async def test_who_has_read_the_answer_means_it(desk: Desk, *, certain: bool) -> None:
    """The same bytes after the answer was read are another attempt, however soon they come."""
    desk.engine.answer = lambda request: failure(request, THREAD, errno.EBUSY, "busy.", certain=certain)
    handle = desk.files.open(THREAD, "revert")
    assert await desk.write(handle, b"before 1") == errno.EBUSY
    assert (await desk.read(handle))["error"] == "EBUSY"
    desk.engine.answer = None
    assert await desk.write(handle, b"before 1") == 0
    assert len(desk.engine.asked) == 2


@pytest.mark.parametrize("file", ["fork", "revert"])
async def test_an_answer_begins_behind_a_comment(desk: Desk, file: str) -> None:
    """Where the position of the handle stands then; a comment asks for nothing, so it is the answer of before."""
    handle = desk.files.open(THREAD, file)
    whole = await desk.files.read(handle, 0, 1 << 16)
    assert await desk.write(handle, b"# a comment\n") == 0
    assert await desk.files.read(handle, len(b"# a comment\n"), 1 << 16) == whole
    assert await desk.files.read(handle, 0, 1 << 16) == whole


@pytest.mark.parametrize("file", ["fork", "revert"])
async def test_a_blank_request_is_refused(desk: Desk, file: str) -> None:
    """By its write, however often, and so is what follows, as that may be the rest of it; after a request, of which it
    may be the rest, it is nothing; after the answer was read it is refused again.
    """
    handle = desk.files.open(THREAD, file)
    for blank in (b"\n", b"\n", b"\n", b" \t\r\n", b"before 1\n", b"\n"):
        assert await desk.write(handle, blank) == errno.EINVAL
    told = await desk.read(handle)
    assert (told["op"], told["status"], told["error"]) == (file, "refused", "EINVAL")
    assert "nothing but blanks" in told["message"]
    assert orjson.loads(desk.files.fresh(THREAD, file)) == told
    assert await desk.write(handle, b"before 1\n") == 0
    assert await desk.write(handle, b"\n") == 0
    assert (await desk.read(handle))["status"] == "done"
    assert await desk.write(handle, b"\n") == errno.EINVAL
    assert len(desk.engine.asked) == 1
    await desk.files.release(handle)
    assert orjson.loads(desk.files.fresh(THREAD, file))["error"] == "EINVAL"


@pytest.mark.parametrize(
    ("file", "data"),
    [
        *((file, data) for file in ("fork", "revert") for data in (b"dry-run befre 3\n", b"# why\n\n dry-run\n")),
        ("fork", b'{"dry_run":true,"turn":3}\n'),
        ("revert", b'{"dry_run": true, "before_turn_id": 3'),
        ("compact", b"dry-run undo\n"),
        ("compact", b'dry-run {"strategy":"x"}\n'),
        ("compact", b'{"strategy":"x",\n"dry_run" : true}\n'),
    ],
)
async def test_a_refused_dry_run_is_one(desk: Desk, file: str, data: bytes) -> None:
    """Its answer says so, also where the words after it mean nothing; one that isn't one is none."""
    for text in (data, *(b"".join(data.splitlines(keepends=True)[:2]),) * (file == "compact")):
        handle = desk.files.open(THREAD, file)
        assert await desk.write(handle, text) == errno.EINVAL
        assert (await desk.read(handle))["dry_run"] is True
    for other in (b"befre dry-run\n", b'{"x":"\\"dry_run\\":true"}', b'{"dry_run":false,"x":1}', b'{"dry_run":1}'):
        handle = desk.files.open(THREAD, "revert")
        assert await desk.write(handle, other) == errno.EINVAL
        assert (await desk.read(handle))["dry_run"] is False
    assert desk.engine.asked == []


async def test_a_dry_run_that_met_an_error_is_one(desk: Desk) -> None:
    """Whatever went wrong: the engine, or a text that ends in half a character."""

    def broken(request: Request) -> Result:
        raise RuntimeError("broken")

    desk.engine.answer = broken
    handle = desk.files.open(THREAD, "revert")
    assert await desk.write(handle, b"dry-run before 1") == errno.EIO
    assert (await desk.read(handle))["dry_run"] is True
    handle = desk.files.open(THREAD, "compact")
    assert await desk.write(handle, b"dry-run my \xc3") == 0
    await desk.files.release(handle)
    told = orjson.loads(desk.files.fresh(THREAD, "compact"))
    assert (told["error"], told["dry_run"]) == ("EINVAL", True)


@pytest.mark.parametrize("end", ["release", "read", "sync"])
async def test_nothing_but_blanks_has_an_answer(desk: Desk, end: str) -> None:
    """In compact, where a text may go on, it is refused at the end, and an older answer is not shown for it; the writes
    themselves fail for nobody.
    """
    file = "compact"
    assert await desk.write(desk.files.open(THREAD, "fork"), b"latest") == 0
    handle = desk.files.open(THREAD, file)
    assert await desk.write(handle, b"\n") == 0
    assert await desk.write(handle, b"  \n", 1) == 0
    if end == "release":
        await desk.files.release(handle)
    elif end == "read":
        assert (await desk.read(handle, 4))["error"] == "EINVAL"
    else:
        with pytest.raises(OSError, match="blanks"):
            await desk.files.sync(handle)
    told = orjson.loads(desk.files.fresh(THREAD, "compact"))
    assert (told["op"], told["status"], told["error"]) == (file, "refused", "EINVAL")
    assert len(desk.engine.asked) == 1


async def test_what_is_ignored_has_no_answer(desk: Desk) -> None:
    """A handle over which nothing came, or nothing but the usage text, or blanks after a request."""
    assert await desk.write(desk.files.open(THREAD, "fork"), b"latest") == 0
    last = desk.files.fresh(THREAD, "fork")
    for file in control.FILES:
        await desk.files.release(desk.files.open(THREAD, file))
        handle = desk.files.open(THREAD, file)
        assert await desk.write(handle, control.usage(file)) == 0
        await desk.files.release(handle)
    assert desk.files.fresh(THREAD, "fork") == last
    handle = desk.files.open(THREAD, "fork")
    assert await desk.write(handle, b"latest\n") == 0
    assert await desk.write(handle, b"\n") == 0
    await desk.files.release(handle)
    assert orjson.loads(desk.files.fresh(THREAD, "fork"))["status"] == "done"
    handle = desk.files.open(THREAD, "compact")
    assert await desk.write(handle, b"\n") == 0
    assert await desk.write(handle, b"the summary\n") == 0
    await desk.files.release(handle)
    assert summaries(desk)[-1] == "the summary"


async def test_another_handle_of_the_mount_has_the_thread(desk: Desk) -> None:
    """That is no other process, and who is told so looks for none; forks and dry runs are not refused."""
    first = desk.files.open(THREAD, "compact")
    assert await desk.write(first, b"one\n") == 0
    for file, data in (("compact", b"two\n"), ("revert", b"before 1"), ("revert", b"undo")):
        handle = desk.files.open(THREAD, file)
        assert await desk.write(handle, data) == errno.EBUSY
        told = (await desk.read(handle))["message"]
        assert "another handle of this mount" in told
        assert "process" not in told
    assert await desk.write(desk.files.open(THREAD, "fork"), b"latest") == 0
    assert await desk.write(desk.files.open(THREAD, "revert"), b"dry-run before 1") == 0
    await desk.files.release(first)
    assert summaries(desk)[-1] == "one"
    assert await desk.write(desk.files.open(THREAD, "revert"), b"before 1") == 0


async def test_what_may_have_been_done_is_not_repeated(desk: Desk) -> None:
    """When the process that did it was killed nobody knows: the same bytes on that handle get the same error."""
    desk.engine.answer = lambda request: failure(request, THREAD, errno.EIO, "died.", certain=False)
    handle = desk.files.open(THREAD, "fork")
    assert await desk.write(handle, b"latest") == errno.EIO
    desk.engine.answer = None
    assert await desk.write(handle, b"latest") == errno.EIO
    assert len(desk.engine.asked) == 1


def summaries(desk: Desk) -> list[str | None]:
    """What became the memory of the thread, one after the other."""
    return [request.summary for request in desk.engine.asked]


async def test_a_text_in_pieces_is_one_summary(desk: Desk) -> None:
    """However it is cut, also within a character, and whatever its pieces say; it ends where its answer is read."""
    handle = desk.files.open(THREAD, "compact")
    whole = '# Heading\n\n{"strategy":"auto"}\nü\nü\nü\nundo\n'.encode()
    for at in range(len(whole)):
        assert await desk.write(handle, whole[at : at + 1], at) == 0
        assert desk.engine.held == 1
        assert desk.engine.asked == []
    assert (await desk.read(handle, len(whole)))["status"] == "done"
    assert summaries(desk) == [whole.decode().rstrip()]
    assert desk.engine.held == 0
    assert [lock for _, _, lock in desk.engine.told] == [LOCK, LOCK]


async def test_a_text_after_an_object_is_refused(desk: Desk) -> None:
    """It may be the rest of the same input, and would replace what the object asked for; after a look it is meant."""
    handle = desk.files.open(THREAD, "compact")
    assert await desk.write(handle, b'{"summary":"it"}\n', 0) == 0
    assert await desk.write(handle, b"trailing\n", 17) == errno.EINVAL
    assert await desk.write(handle, b"more of it\n", 26) == errno.EINVAL
    assert await desk.write(handle, b'{"summary":"another"}\n', 37) == errno.EINVAL
    await desk.read(handle, 37)
    assert await desk.write(handle, b"meant\n", 37) == 0
    await desk.files.release(handle)
    assert summaries(desk) == ["it", "meant"]


async def test_a_text_ends_with_its_handle(desk: Desk) -> None:
    """When it is closed; each handle has a text of its own, and a closed one without a text asks for nothing."""
    for number in range(2):
        handle = desk.files.open(THREAD, "compact")
        assert await desk.write(handle, b"one\n", 0) == 0
        assert await desk.write(handle, b"two\n", 4) == 0
        assert len(desk.engine.asked) == number
        await desk.files.release(handle)
    await desk.files.release(desk.files.open(THREAD, "compact"))
    assert summaries(desk) == ["one\ntwo"] * 2
    assert orjson.loads(desk.files.fresh(THREAD, "fork"))["op"] == "compact"
    assert desk.engine.held == 0


async def test_a_text_ends_with_an_fsync(desk: Desk) -> None:
    """And its errors are those of the fsync; without a text there is nothing to do."""
    handle = desk.files.open(THREAD, "compact")
    await desk.files.sync(handle)
    await desk.files.write(handle, 0, b"the first\n")
    await desk.files.sync(handle)
    assert summaries(desk) == ["the first"]
    with pytest.raises(OSError, match="may be the rest of that"):
        await desk.files.write(handle, 10, b"the rest\n")
    await desk.read(handle, 10)
    desk.engine.answer = lambda request: failure(request, THREAD, errno.ENOSPC, "the disk is full.")
    await desk.files.write(handle, 10, b"the second\n")
    with pytest.raises(OSError, match="the disk is full") as caught:
        await desk.files.sync(handle)
    assert caught.value.errno == errno.ENOSPC
    await desk.files.sync(handle)
    await desk.files.release(handle)
    assert summaries(desk) == ["the first", "the second"]


async def test_a_handle_takes_one_text_after_the_other(desk: Desk) -> None:
    """Reading the answer is what ends one; the same text again is another one."""
    handle = desk.files.open(THREAD, "compact")
    for text in (b"one\n", b"two\n", b"two\n"):
        assert await desk.write(handle, text) == 0
        assert (await desk.read(handle))["status"] == "done"
    assert await desk.write(handle, b"two\n") == 0
    assert await desk.write(handle, b"three\n") == 0
    await desk.files.release(handle)
    assert summaries(desk) == ["one", "two", "two", "two\nthree"]


async def test_a_request_of_several_lines_can_be_json(desk: Desk) -> None:
    """bash writes it line by line as well."""
    handle = desk.files.open(THREAD, "compact")
    for line in (b"{\n", b'"strategy":\n', b'"recent"}\n'):
        assert desk.engine.asked == []
        assert await desk.write(handle, line) == 0
    assert [(request.strategy, request.summary) for request in desk.engine.asked] == [("recent", None)]
    assert desk.engine.held == 0
    await desk.files.release(handle)
    assert len(desk.engine.asked) == 1


@pytest.mark.parametrize(
    ("pieces", "codes"),
    [
        ([b"{\n", b'"strategy": "recnt"\n', b"}\n"], [0, 0, 22]),
        ([b"{\n", b'"strategy": recent\n', b"}\n"], [0, 22, 22]),
        ([b"{\n", b'"op": "compact",\n', b"}\n", b"# the rest\n"], [0, 0, 22, 22]),
    ],
)
async def test_a_wrong_request_of_several_lines_fails_a_write(
    desk: Desk, pieces: list[bytes], codes: list[int]
) -> None:
    """The last line at the latest, and no rest of it becomes a summary."""
    handle = desk.files.open(THREAD, "compact")
    assert [await desk.write(handle, piece) for piece in pieces] == codes
    assert desk.engine.held == 0
    await desk.files.release(handle)
    assert desk.engine.asked == []
    assert orjson.loads(desk.files.fresh(THREAD, "compact"))["error"] == "EINVAL"


async def test_a_request_that_ends_too_early_is_not_a_summary(desk: Desk) -> None:
    """Nobody can be told by an error of write that the end of an object is missing; the answer tells."""
    handle = desk.files.open(THREAD, "compact")
    assert await desk.write(handle, b'{"strategy":\n') == 0
    await desk.files.release(handle)
    assert desk.engine.asked == []
    assert "isn't one" in orjson.loads(desk.files.fresh(THREAD, "fork"))["message"]


@pytest.mark.parametrize("size", [1, 3, 4096])
async def test_a_dry_run_of_a_text_in_pieces(desk: Desk, size: int) -> None:
    """Of any state of the thread once the word is known, and the text may begin with any character."""
    handle = desk.files.open(THREAD, "compact")
    data = "dry-run ünd so weiter\n".encode()
    for at in range(0, len(data), size):
        assert await desk.write(handle, data[at : at + size], at) == 0
    await desk.files.release(handle)
    assert desk.engine.told[-1][0] == Request("compact", strategy="summary", summary="ünd so weiter", dry_run=True)
    assert desk.engine.held == 0


@pytest.mark.parametrize("text", ["ünd", "\U0001f600 smile", "# rolloutfs: ours\n\nsays what\n"])
async def test_a_text_in_pieces_of_a_byte_may_begin_with_anything(desk: Desk, text: str) -> None:
    """With a character of several bytes, or as our own texts do."""
    handle = desk.files.open(THREAD, "compact")
    for at, byte in enumerate(text.encode()):
        assert await desk.write(handle, bytes([byte]), at) == 0
    await desk.files.release(handle)
    assert summaries(desk) == [text.rstrip()]


@pytest.mark.parametrize("size", [1, 10, 16, 100, 4096])
async def test_an_answer_or_usage_text_in_pieces_starts_nothing(desk: Desk, size: int) -> None:
    """Whatever size the pieces have."""
    answer = control.as_line(control.answer("fork", THREAD, "done", dry_run=False))
    for content in (control.usage("compact"), answer):
        handle = desk.files.open(THREAD, "compact")
        for at in range(0, len(content), size):
            await desk.write(handle, content[at : at + size], at)
        await desk.files.release(handle)
    assert desk.engine.asked == []
    assert desk.engine.held == 0


@pytest.mark.parametrize(("piece", "code"), [(b"x" * control.LARGEST, 7), (b"a\0b", 22), (b"\xff", 22)])
async def test_a_text_with_a_bad_piece_is_refused_as_a_whole(desk: Desk, piece: bytes, code: int) -> None:
    """What came before is not used, what comes afterwards is refused until the answer was read."""
    handle = desk.files.open(THREAD, "compact")
    assert await desk.write(handle, b"good\n") == 0
    assert await desk.write(handle, piece) == code
    assert desk.engine.held == 0
    assert await desk.write(handle, b"the rest\n") == errno.EINVAL
    assert (await desk.read(handle))["error"] == errno.errorcode[code]
    assert await desk.write(handle, b"another\n") == 0
    await desk.files.release(handle)
    assert summaries(desk) == ["another"]


async def test_a_piece_that_failed_and_is_written_again_is_no_text(desk: Desk) -> None:
    """Python does that when it closes the file, however late. The whole text may be tried again from its beginning."""
    handle = desk.files.open(THREAD, "compact")
    assert await desk.write(handle, b"good\n") == 0
    assert await desk.write(handle, b"\xff\n") == errno.EINVAL
    assert await desk.write(handle, b"\xff\n") == errno.EINVAL
    assert await desk.write(handle, b"rest\n") == errno.EINVAL
    assert await desk.write(handle, b"good\n") == 0
    assert await desk.write(handle, b"better\n") == 0
    await desk.files.release(handle)
    assert summaries(desk) == ["good\nbetter"]


async def test_a_text_that_can_not_be_used_is_refused_at_once(desk: Desk) -> None:
    """The writer's lock is taken with the first piece: whoever comes later is told so by the write, not after it."""
    first, second = desk.files.open(THREAD, "compact"), desk.files.open(THREAD, "compact")
    assert await desk.write(first, b"first\n") == 0
    assert await desk.write(second, b"second\n") == errno.EBUSY
    assert await desk.write(first, b"more\n") == 0
    await desk.files.release(first)
    await desk.files.release(second)
    assert summaries(desk) == ["first\nmore"]


async def _let_go(desk: Desk) -> None:
    """Wait until nobody holds the lock: a thread gives it back, for which the test's clock doesn't wait."""
    for _ in range(1000):
        if not desk.engine.held:
            return
        await trio.to_thread.run_sync(time.sleep, 0.01)
    raise AssertionError("the lock is still held")


async def test_who_types_a_text_keeps_nobody_out(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    """After some seconds without a piece others may use the thread; the next piece takes the lock again, if the thread
    is as it was.
    """
    async with trio.open_nursery() as nursery:
        desk.files.use(nursery)
        for change in (False, True):
            handle = desk.files.open(THREAD, "compact")
            assert await desk.write(handle, b"one\n") == 0
            assert desk.engine.held == 1
            await trio.sleep(texts.IDLE * 2)
            await _let_go(desk)
            if change:
                desk.engine.seen = Seen("rollout", 1, 1, 200)
            assert await desk.write(handle, b"two\n") == (errno.EBUSY if change else 0)
            assert desk.engine.held == (0 if change else 1)
            await desk.files.release(handle)
            await desk.files.settled()
        nursery.cancel_scope.cancel()
    assert summaries(desk) == ["one\ntwo"]


async def test_the_end_of_a_mount_is_the_end_of_a_text(desk: Desk) -> None:
    """The kernel may never tell that a file was closed just before the mount was taken away."""
    handle = desk.files.open(THREAD, "compact")
    assert await desk.write(handle, b"text\n") == 0
    await desk.files.finish()
    assert summaries(desk) == ["text"]


# What was seen


@pytest.mark.parametrize(("file", "data"), [("revert", b"before 2"), ("revert", b"undo"), ("compact", b"text")])
async def test_a_thread_that_changed_since_the_file_was_opened_is_left_alone(
    desk: Desk, file: str, data: bytes
) -> None:
    """The request was made of what was there then. After the answer it is made of what is there now."""
    handle, other = desk.files.open(THREAD, file), desk.files.open(THREAD, file)
    desk.engine.seen = Seen("rollout", 1, 1, 200)
    for one in (handle, other):
        assert await desk.write(one, data) == errno.EBUSY
        assert (await desk.read(one))["message"] == "changed."
        assert await desk.write(one, data) == 0
        await desk.files.release(one)
    assert len(desk.engine.asked) == 2


async def test_a_dry_run_is_a_look(desk: Desk) -> None:
    """It is answered for any state, and what follows is meant for that one."""
    handle = desk.files.open(THREAD, "revert")
    desk.engine.seen = Seen("rollout", 1, 1, 200)
    assert await desk.write(handle, b"dry-run before 2") == 0
    assert await desk.write(handle, b"before 2") == 0
    desk.engine.seen = Seen("rollout", 1, 1, 300)
    assert await desk.write(handle, b"before 3") == errno.EBUSY


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
        assert await desk.files.read(handle, 0, 1 << 20) == control.usage(file)
    assert desk.engine.asked == []
    assert not os.path.exists(desk.files._last.journal.path)


async def test_errors_are_kept_for_the_thread(desk: Desk) -> None:
    """The attribute has the last one, also after something that went well."""
    assert desk.files.error(THREAD) is None
    handle = desk.files.open(THREAD, "fork")
    await desk.write(handle, b"nonsense")
    await desk.write(handle, b"latest")
    error = desk.files.error(THREAD)
    assert error is not None
    assert error.startswith("EINVAL: 'nonsense'")


# Errors of ours, and a journal that can't be written


def boom(*arguments: object, **named: object) -> Any:
    """An error that nobody thought of."""
    raise ZeroDivisionError("boom")


@pytest.mark.parametrize("place", ["operate", "look", "lock", "parse", "journal", "changed"])
@pytest.mark.parametrize(("file", "data"), [("fork", b"latest"), ("compact", b"a text"), ("compact", b"{}")])
async def test_an_error_of_ours_has_an_answer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str, file: str, data: bytes
) -> None:
    """EIO, or it is done; the newest answer is shown, never an older one, the log has a trace, and no lock is kept."""
    data = b'{"strategy":"recent"}' if data == b"{}" else data
    first = desk.files.open(THREAD, "fork")
    assert await desk.write(first, b"before 1") == 0
    handle = desk.files.open(THREAD, file)
    if place == "parse":
        monkeypatch.setattr(control, "parse", boom)
    elif place == "journal":
        monkeypatch.setattr(Journal, "append", boom)
    elif place == "changed":
        monkeypatch.setattr(desk.files, "_changed", boom)
    else:
        monkeypatch.setattr(desk.engine, place, boom)
    code = await desk.write(handle, data)
    told = await desk.read(handle)
    assert code in (0, errno.EIO)
    fresh = orjson.loads(desk.files.fresh(THREAD, "fork"))
    assert fresh == told
    assert fresh["op"] == file
    if place in ("operate", "parse") or (place == "lock" and data == b"a text"):
        assert (told["status"], told["error"]) == ("failed", "EIO")
        assert "ZeroDivisionError: boom" in told["message"]
        assert desk.files.error(THREAD) == f"EIO: {told['message']}"
        assert "Traceback" in caplog.text
    if place in ("journal", "changed", "operate", "parse"):
        assert "boom" in caplog.text
    assert desk.engine.held == 0


async def test_an_answer_that_can_not_be_recorded_is_shown(desk: Desk, tmp_path: Path) -> None:
    """By a fresh open, too, with the path and the reason, until the journal has a newer one; also for what failed."""
    handle = desk.files.open(THREAD, "fork")
    assert await desk.write(handle, b"latest") == 0
    folder, path = tmp_path / "state", desk.files._last.journal.path
    kept = Path(path).read_bytes()
    os.unlink(path)
    os.mkdir(path)
    for number, (data, status) in enumerate(((b"before 1", "done"), (b"nonsense", "refused"), (b"before 1", "done"))):
        assert bool(await desk.write(handle, data)) == (status == "refused")
        fresh = orjson.loads(desk.files.fresh(THREAD, "revert"))
        assert fresh == await desk.read(handle)
        assert fresh["status"] == status
        assert f"operations.jsonl could not be written ({path}: Is a directory)" in fresh["message"]
        assert desk.files.size(THREAD, "fork") == len(desk.files.fresh(THREAD, "fork"))
        assert (desk.files.error(THREAD) or "").startswith("EINVAL: 'nonsense'") == (number > 0)
    os.rmdir(path)
    assert orjson.loads(desk.files.fresh(THREAD, "fork")) == fresh
    Path(path).write_bytes(kept)
    assert orjson.loads(desk.files.fresh(THREAD, "fork"))["thread_id"] == "child-1"
    assert await desk.write(handle, b"latest") == 0
    assert orjson.loads(desk.files.fresh(THREAD, "fork"))["message"] is None
    assert folder.exists()


async def test_answers_that_can_not_be_recorded_are_few(desk: Desk) -> None:
    """Of many threads those are remembered that were asked for last, in bounded memory, long answers too."""
    os.makedirs(desk.files._last.journal.path)
    long = control.answer("fork", THREAD, "done", dry_run=False) | {"dropped_turns": ["x" * 36] * 300}
    desk.engine.answer = lambda request: Result(0, long)
    threads = [f"{THREAD[:-4]}{number:04}" for number in range(400)]
    for thread in threads:
        assert await desk.write(desk.files.open(thread, "fork"), b"latest") == 0
    shown = [desk.files.fresh(thread, "fork").startswith(b"{") for thread in threads]
    kept = sum(shown)
    assert 50 < kept < (1 << 20) // 11_000
    assert shown == [False] * (400 - kept) + [True] * kept
    assert desk.files.fresh(threads[0], "fork") == control.usage("fork")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EROFS, "can't be written"),
        (errno.EACCES, "owner"),
        (errno.EEXIST, "ask"),
    ],
)
def test_errors_of_the_system_name_the_file_and_what_to_do(
    sample: SampleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    """Also where the system doesn't tell which file it was."""
    thread = sample.add(1, "hello")
    store = ThreadStore(str(sample.root), Spool(str(tmp_path)))
    named = OSError(code, os.strerror(code), "/named/file")
    for error, request, place in (
        (named, Request("fork", "latest"), "/named/file"),
        (OSError(code, os.strerror(code)), Request("fork", "latest"), f"{sample.root}/sessions"),
        (OSError(code, os.strerror(code)), Request("compact"), f"{sample.root}/{store.head(thread).path}"),
    ):

        def fail(*arguments: object, error: OSError = error, **more: object) -> None:
            raise error

        monkeypatch.setattr(ThreadStore, request.op, fail)
        result = perform(store, thread, request)
        assert result.code == code
        assert f"{os.strerror(code)}: {place}. " in result.answer["message"]
        assert advice in result.answer["message"]


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
    for inside in ("sessions", "state", "."):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a" / inside))
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
    assert (await desk.read(handle))["message"].startswith("turn not found")
    assert await desk.write(handle, b"undo") == errno.EINVAL
    assert (await desk.read(handle))["status"] == "refused"
