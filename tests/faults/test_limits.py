"""FAULTS 14 and 15: what is too large, and what only looks like it. Memory is bounded by the answer, not by the log.

Every look is done by a process of its own (`memory_probe`), whose peak is measured. The usual run takes lines of 64 MiB
in one of the modes, against a bound of 56 MiB above what any look costs, so that holding the line once is too much; the
slow one takes half a gigabyte in the other mode, against the same bound.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
import zstandard
from _pytest.mark import ParameterSet
from threadstore.errors import TooLargeError
from threadstore.projection import View
from threadstore.spool import LARGEST_WINDOW

from tests.faults.logs import LEGACY, MODES, PAGINATED, Home, Log, Views, message, pairs, raw

MIB = 1 << 20
SOME = 64 * MIB
HUGE = 512 * MIB
GROWTH = 56  # MiB that a look may take beyond what every look takes
RESIDENT = 150  # MiB in all (issue 2)
PROBE = Path(__file__).with_name("memory_probe.py")

SIZES = [pytest.param(SOME, id="64 MiB"), pytest.param(HUGE, id="512 MiB", marks=pytest.mark.slow)]


def sized(cases: Mapping[str, object], *usual: str) -> list[ParameterSet]:
    """Every case in both sizes; only the usual ones in the smaller size are for every run."""
    return [
        pytest.param(
            case,
            size,
            id=f"{name}-{size // MIB} MiB",
            marks=() if name in usual and size == SOME else pytest.mark.slow,
        )
        for name, case in cases.items()
        for size in (SOME, HUGE)
    ]


def other(mode: str) -> str:
    """The other history mode."""
    return LEGACY if mode == PAGINATED else PAGINATED


class Place(NamedTuple):
    """Where a huge piece goes: the log's lines before it, and the bytes around it on its line."""

    log: Log
    before: bytes
    after: bytes


def fill(target: Path, begin: bytes, unit: bytes, size: int, end: bytes) -> None:
    """Write `begin`, `unit` again and again up to about `size` bytes, `end`."""
    block = unit * max(1, MIB // len(unit))
    with open(target, "wb", buffering=0) as file:
        file.write(begin)
        for _ in range(size // len(block)):
            file.write(block)
        file.write(end)


def probe(home: Home, log: Log) -> dict[str, Any]:
    """What the probe says of a thread; its memory is within bounds."""
    command = [sys.executable, str(PROBE), str(home.root), str(home.spool_folder), log.thread]
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        command, capture_output=True, check=False, timeout=300, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    answer: dict[str, Any] = orjson.loads(done.stdout)
    told = {name: (view.get("peak_mib"), view.get("seconds")) for name, view in answer["views"].items()}
    assert answer["peak_mib"] <= answer["before_mib"] + GROWTH, told
    assert answer["peak_mib"] <= RESIDENT, told
    return answer


def put_huge(home: Home, log: Log, line: Callable[[bytes], bytes], unit: bytes, size: int) -> tuple[str, int, int]:
    """Put a log, a line with a huge piece at `@@`, and another turn. Path, offset and length of that line."""
    whole = line(b"@@")
    before, _, after = whole.partition(b"@@")
    start = len(log.content)
    begin = bytes(log.content) + before
    tail_at = len(log.content)
    log.turn("after")
    end = after + b"\n" + bytes(log.content[tail_at:])
    path = f"sessions/2026/11/29/{home.name(log)}"
    target = home.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    fill(target, begin, unit, size, end)
    home.changed()
    return path, start, target.stat().st_size - len(end) + len(after) - start


def problems_of(answer: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Code, offset and length."""
    text = answer["views"]["problems.jsonl"]["text"]
    return [(p["code"], p["offset"], p["length"]) for p in map(orjson.loads, text.splitlines())]


def _image(log: Log) -> bytes:
    part = {"type": "input_image", "image_url": "data:image/png;base64,@@"}
    return log.line("response_item", {"type": "message", "role": "user", "content": [part]})


def _text(log: Log) -> bytes:
    return log.line("response_item", message("user", "@@"))


def _output(log: Log) -> bytes:
    return log.line("response_item", {"type": "function_call_output", "call_id": "c", "output": "@@"})


def _call(log: Log) -> bytes:
    call = {"type": "function_call", "name": "shell", "arguments": "@@", "call_id": "lost"}
    return log.line("response_item", call)


class Line(NamedTuple):
    """A huge item: how its line is made, what it is filled with, and whether it is sent as it lies in the log."""

    make: Callable[[Log], bytes]
    unit: bytes
    as_is: bool = True


LINES = {
    "an image": Line(_image, b"iVBORw0KGgoAAAANSUhEUgAA"),
    "text with line ends": Line(_text, rb"a line of text\n"),
    "text with quotes": Line(_text, rb"say \"no\" or \\ "),
    "text of escapes": Line(_text, rb"\u65e5\ud83c\udf89", as_is=False),
    "text of wide characters": Line(_text, "日本語🎉".encode()),
    "text of numbers": Line(_text, b"[0.25, 1e-3], "),
    "text that looks like JSON": Line(_text, rb"{\"timestamp\":\"2026\",\"type\":[1,{}]},"),
}


@pytest.mark.parametrize(("line", "size"), sized(LINES, "an image", "text with line ends", "text of numbers"))
def test_one_huge_line(home: Home, line: Line, size: int) -> None:
    """FAULTS 15: a message of that size counts, byte for byte, and nobody holds it in memory."""
    mode = MODES[list(LINES.values()).index(line) % 2]
    log = Log(mode if size == SOME else other(mode))
    log.turn("before")
    path, start, length = put_huge(home, log, lambda _: line.make(log), line.unit, size)
    answer = probe(home, log)
    assert answer["views"]["problems.jsonl"]["text"] == ""
    page = orjson.loads(answer["views"]["thread.json"]["text"])
    assert page["counts"]["effective_items"] == 5
    whole = line.make(log)
    item = length - (len(whole) - len(orjson.dumps(orjson.loads(whole)["payload"])))
    others = sum(
        len(orjson.dumps(message(role, text))) + 1
        for text in ("before", "after")
        for role, text in (("user", text), ("assistant", f"re: {text}"))
    )
    # the line's ordinal and time have as many digits as those of the line that measures
    assert abs(answer["views"]["effective_history.jsonl"]["size"] - (item + 1 + others)) <= 1
    if line.as_is:
        assert answer["views"]["model_input.jsonl"]["size"] == answer["views"]["effective_history.jsonl"]["size"]
    assert answer["views"]["full_history.jsonl"]["size"] > length
    assert path
    assert start


@pytest.mark.parametrize("odd", ["", "x"])
@pytest.mark.parametrize("mode", MODES)
def test_line_of_backslashes(home: Home, mode: str, odd: str) -> None:
    """FAULTS 15: a run of backslashes far longer than any piece that is read at once, beginning at an even or odd
    place: no pair of them is torn apart.
    """
    log = Log(mode)
    log.turn(f"before{odd}")
    put_huge(home, log, lambda _: _text(log), rb"\\", 6 * MIB)
    answer = probe(home, log)
    assert answer["views"]["problems.jsonl"]["text"] == ""
    assert orjson.loads(answer["views"]["thread.json"]["text"])["counts"]["effective_items"] == 5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [_output, _call])
def test_huge_tool_lines(home: Home, make: Callable[[Log], bytes], size: int) -> None:
    """FAULTS 15: a tool's output of that size is sent with its middle cut out, a call's arguments whole; a pending call
    is listed with no more than fits.
    """
    log = Log(PAGINATED)
    log.turn("before")
    if make is _output:
        log.item("function_call", name="shell", arguments="{}", call_id="c")
    _, _, length = put_huge(home, log, lambda _: make(log), rb"a line of output\n", size)
    answer = probe(home, log)
    effective = answer["views"]["effective_history.jsonl"]["size"]
    sent = answer["views"]["model_input.jsonl"]["size"]
    assert effective > length - 200
    if make is _output:
        assert sent < 100_000
    else:
        assert sent > length - 200
        assert answer["views"]["pending_calls.jsonl"]["size"] < MIB


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", MODES)
def test_huge_event(home: Home, mode: str, size: int) -> None:
    """FAULTS 15: the event of a message of that size: the turn's text is cut, the rest of the turn is told."""
    log = Log(mode)
    log.started("turn")
    if mode == LEGACY:
        event: dict[str, Any] = {
            "type": "user_message",
            "message": "@@",
            "images": [],
            "local_images": [],
            "text_elements": [],
        }
    else:
        item = {"type": "UserMessage", "id": "u", "content": [{"type": "text", "text": "@@"}]}
        event = {
            "type": "item_completed",
            "thread_id": log.thread,
            "turn_id": "turn",
            "item": item,
            "completed_at_ms": 0,
        }
    put_huge(home, log, lambda _: log.line("event_msg", event), rb"words and\n", size)
    answer = probe(home, log)
    assert answer["views"]["problems.jsonl"]["text"] == ""
    assert answer["views"]["turns.jsonl"]["size"] < MIB
    assert orjson.loads(answer["views"]["thread.json"]["text"])["counts"]["turns"] == 2


DAMAGED = {
    "zeros": (lambda _: b"@@", bytes(1024), "nul_run"),
    "letters": (lambda _: b"@@", b"abcdefgh", "bad_record"),
    "quotes": (lambda _: b"@@", b'"', "too_large"),
    "latin-1": (_text, b"caf\xe9 ", "bad_utf8"),
    "bad escape": (_text, rb"a line of text \x ", "bad_record"),
    "raw control": (_text, b"a line of text \x01", "bad_record"),
    "zeros in a text": (_text, b"a line of text" + bytes(20), "nul_run"),
    "lone surrogates": (_text, rb"a line of text \ud83d ", "bad_record"),
    "brackets": (lambda _: b"@@", b"[", "too_large"),
    "beginnings": (lambda _: b"@@", b'{"timestamp":"t","type":"x","payload":{', None),
    "small objects": (
        lambda log: log.line("world_state", {"full": True, "state": {}}).replace(b'"state":{', b'"state":{"x":[@@0]'),
        b'{"a":[]},',
        "too_large",
    ),
    "numbers": (
        lambda log: log.line("world_state", {"full": True, "state": {}}).replace(b'"state":{', b'"state":{"x":[@@0]'),
        b"1,",
        "too_large",
    ),
    "short strings": (
        lambda log: log.line("world_state", {"full": True, "state": {}}).replace(b'"state":{', b'"state":{"x":[@@0]'),
        b'"ab",',
        "too_large",
    ),
}


@pytest.mark.parametrize(("case", "size"), sized(DAMAGED, "zeros", "latin-1", "bad escape", "small objects"))
def test_huge_damaged_line(home: Home, case: tuple[Callable[[Log], bytes], bytes, str | None], size: int) -> None:
    """FAULTS 4, 5, 15, 16: rubbish of that size is one damaged line, with its exact place; so is a line that is all
    structure, which is refused by name. The turns around it count.
    """
    make, unit, code = case
    mode = MODES[list(DAMAGED.values()).index(case) % 2]
    log = Log(mode if size == SOME else other(mode))
    log.turn("before")
    _, start, length = put_huge(home, log, lambda _: make(log), unit, size)
    answer = probe(home, log)
    [(found, offset, told)] = problems_of(answer)
    assert (offset, told) == (start, length)
    assert code is None or found == code
    effective = answer["views"]["effective_history.jsonl"]["text"]
    assert [orjson.loads(line)["content"][0]["text"] for line in effective.splitlines()] == pairs("before", "after")


@pytest.mark.parametrize(("mode", "complete"), [(LEGACY, False), (PAGINATED, True)])
@pytest.mark.parametrize(
    "image", [pytest.param(2 << 10, id="60 MiB"), pytest.param(20 << 10, id="590 MiB", marks=pytest.mark.slow)]
)
def test_300_images_in_100_checkpoints(home: Home, image: int, complete: bool, mode: str) -> None:
    """FAULTS 15: every checkpoint repeats all images; the last one counts."""
    log = Log(mode)
    log.turn("before")
    url = "data:image/png;base64," + "A" * image
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]} for _ in range(300)
    ]
    more = {"window_number": 1, "resume_metadata": {}} if complete else {}
    path = f"sessions/2026/11/29/{home.name(log)}"
    target = home.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as file:
        for _ in range(100):
            file.write(log.content)
            log.content.clear()
            log.record("compacted", {"message": "", "replacement_history": items} | more)
        log.turn("after")
        file.write(log.content)
    home.changed()
    answer = probe(home, log)
    assert answer["views"]["problems.jsonl"]["text"] == ""
    page = orjson.loads(answer["views"]["thread.json"]["text"])
    assert page["counts"]["checkpoints"] == 100
    assert page["counts"]["effective_items"] == 302
    assert answer["views"]["effective_history.jsonl"]["size"] > 300 * image


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "lines", [pytest.param(260, id="60 MB"), pytest.param(3000, id="700 MB", marks=pytest.mark.slow)]
)
def test_700_megabytes_in_3000_lines(home: Home, lines: int, mode: str) -> None:
    """FAULTS 15: many large lines: only places are kept."""
    log = Log(mode)
    path = f"sessions/2026/11/29/{home.name(log)}"
    target = home.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    text = "words and words " * 14_600
    with open(target, "wb") as file:
        for number in range(lines):
            log.message("user" if number % 2 else "assistant", text)
            file.write(log.content)
            log.content.clear()
    home.changed()
    answer = probe(home, log)
    page = orjson.loads(answer["views"]["thread.json"]["text"])
    assert page["counts"]["effective_items"] == lines
    assert answer["views"]["model_input.jsonl"]["size"] == answer["views"]["effective_history.jsonl"]["size"]


def test_old_compaction_after_a_huge_image(home: Home) -> None:
    """FAULTS 15, FORMAT 9.2: a compaction without replacement history keeps texts of user messages: their images are
    not loaded for that.
    """
    log = Log(LEGACY)
    path = f"sessions/2026/11/29/{home.name(log)}"
    content = [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": "data:image/png;base64,@@"}]
    start = len(log.content)
    line = log.line("response_item", {"type": "message", "role": "user", "content": content})
    log.record("compacted", {"message": "summary"})
    before, _, after = line.partition(b"@@")
    target = home.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    fill(target, bytes(log.content[:start]) + before, b"A", SOME, after + b"\n" + bytes(log.content[start:]))
    home.changed()
    answer = probe(home, log)
    items = [orjson.loads(item) for item in answer["views"]["effective_history.jsonl"]["text"].splitlines()]
    assert items == [message("user", "look"), message("user", "summary")]


# 14: compressed files that are larger than they look


def _bomb(size: int, frame: int = 64 * MIB) -> bytes:
    """`size` bytes of blanks, in frames."""
    return zstandard.ZstdCompressor(level=3).compress(b" " * frame) * (size // frame)


def _refused(home: Home, log: Log, path: str, **spool: Any) -> None:
    """A file is refused by name, its thread says why, and nothing of it is left on disk."""
    views = home.read(log, **spool)
    calls: list[Callable[[], object]] = [lambda: views.store.project_rollout(views.store.rollouts(log.thread)[0])]
    calls += [partial(views.store.project, log.thread, view) for view in (View.EFFECTIVE_HISTORY, View.TURNS)]
    for call in calls:
        with pytest.raises(TooLargeError, match=Path(path).name) as caught:
            call()
        assert "zstd -d" in caught.value.message
        left = [name for name in os.listdir(home.spool_folder) if not name.endswith(".lock")]
        assert left == []
    assert views.problems() == [("too_large", path, None, None)]


def test_bomb_in_small(home: Home) -> None:
    """FAULTS 14: 12 KB that would be 128 MiB: more than the limit of this spool."""
    log = Log()
    path = home.put_bytes(f"sessions/2026/11/29/{home.name(log)}.zst", _bomb(128 * MIB))
    home.expected[path] = None
    _refused(home, log, path, limit=32 * MIB)


@pytest.mark.slow
def test_bomb(home: Home) -> None:
    """FAULTS 14: 1 MiB that would be 10 GiB is refused within bounded memory and disk, with no limit but the usual
    ones.
    """
    log = Log()
    path = f"sessions/2026/11/29/{home.name(log)}.zst"
    bomb = _bomb(10 << 30)
    assert len(bomb) < 1.1 * MIB
    home.put_bytes(path, bomb)
    home.expected[path] = None
    answer = probe(home, log)
    assert answer["views"]["effective_history.jsonl"]["refused"] == "TooLargeError"
    assert problems_of(answer)[0][0] == "too_large"
    assert [name for name in os.listdir(home.spool_folder) if not name.endswith(".lock")] == []


def test_one_frame_that_says_nothing_of_its_size(home: Home) -> None:
    """FAULTS 14: a frame without size in its header is decoded as far as is allowed, and no further."""
    log = Log()
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    packed = b"".join(compressor.compress(b" " * MIB) for _ in range(96)) + compressor.flush()
    path = home.put_bytes(f"sessions/2026/11/29/{home.name(log)}.zst", packed)
    home.expected[path] = None
    _refused(home, log, path, limit=16 * MIB)


@pytest.mark.parametrize("exponent", [17, 21])
def test_huge_window(home: Home, exponent: int) -> None:
    """FAULTS 14: a frame that asks for a window of 128 MiB or 2 GiB: it is refused before memory is given to it."""
    assert 1 << (10 + exponent) > LARGEST_WINDOW
    log = Log()
    log.turn("one")
    block = bytes(log.content)
    header = b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([exponent << 3])
    frame = header + (len(block) << 3 | 1).to_bytes(3, "little") + block
    assert zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj().decompress(frame) == block
    path = home.put_bytes(f"sessions/2026/11/29/{home.name(log)}.zst", frame)
    home.expected[path] = None
    _refused(home, log, path)


def test_window_that_codex_could_write(home: Home) -> None:
    """FAULTS 14: the window of any ordinary level is fine."""
    log = Log()
    log.turn("one")
    data = bytes(log.content)
    path = home.put_bytes(
        f"sessions/2026/11/29/{home.name(log)}.zst", zstandard.ZstdCompressor(level=19).compress(data), data
    )
    views = home.read(log)
    assert path
    assert views.effective() == pairs("one")


def test_bomb_as_an_ancestor(home: Home) -> None:
    """FAULTS 9, 14: an ancestor that is refused breaks the lineage, and the fork says which file it was."""
    parent = Log()
    path = home.put_bytes(f"sessions/2026/11/29/{home.name(parent)}.zst", _bomb(128 * MIB))
    home.expected[path] = None
    child = Log(PAGINATED, 2, base={"thread_id": parent.thread, "end_ordinal_exclusive": 3, "end_byte_offset": 300})
    child.turn("child")
    home.put(child)
    views = home.read(child, limit=32 * MIB)
    assert path in views.error(View.EFFECTIVE_HISTORY)
    assert [problem[0] for problem in views.problems()] == ["lineage_unreadable"]
    assert views.full_items() == pairs("child")


def test_spool_keeps_to_its_limit(home: Home) -> None:
    """FAULTS 14: many copies that are each small enough: those that were used longest ago make room."""
    logs = []
    for number in range(1, 9):
        log = Log(LEGACY, number)
        log.turn("x" * MIB)
        home.put(log, compressed=True)
        logs.append(log)
    store = home.open(limit=8 * MIB)
    for log in [*logs, *logs]:
        assert Views(store, log.thread).turns()[0][1] == "completed"
        assert raw(store, store.rollouts(log.thread)[0]) == bytes(log.content)
        used = sum(entry.stat().st_size for entry in os.scandir(home.spool_folder))
        assert used <= 8 * MIB
