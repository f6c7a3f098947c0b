"""The grammar of control files: what a write asks for, what it doesn't, and why it is refused (DESIGN 4)."""

from __future__ import annotations

import errno
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfs import control
from rolloutfs.control import RefusedError, Request, parse

TURN = "01a22938-636a-7b13-9c9c-8dc745bdc97e"


@pytest.mark.parametrize(
    ("file", "text", "wanted"),
    [
        ("fork", "latest\n", Request("fork", "latest")),
        ("fork", "latest", Request("fork", "latest")),
        ("fork", "  through   -1 \r\n", Request("fork", "through", "-1")),
        ("fork", f"before {TURN}\n", Request("fork", "before", TURN)),
        ("fork", "dry-run latest", Request("fork", "latest", dry_run=True)),
        ("fork", "# why\n\n  # more\nlatest\n\n", Request("fork", "latest")),
        ("fork", "{}", Request("fork", "latest")),
        ("fork", '{"op":"fork"}', Request("fork", "latest")),
        ("fork", '{"op":"fork","before_turn_id":"a1b2"}', Request("fork", "before", "a1b2")),
        (
            "fork",
            '# c\n{\n  "last_turn_id": -1,\n  "dry_run": true\n}\n',
            Request("fork", "through", "-1", dry_run=True),
        ),
        ("fork", '{"before_turn_id":null,"last_turn_id":null}', Request("fork", "latest")),
        ("revert", "before 3", Request("revert", "before", "3")),
        ("revert", "undo\n", Request("undo")),
        ("revert", "dry-run undo\n", Request("undo", dry_run=True)),
        ("revert", "dry-run before 3\n", Request("revert", "before", "3", dry_run=True)),
        ("revert", '{"before_turn_id":"x"}', Request("revert", "before", "x")),
        ("revert", '{"op":"undo"}', Request("undo")),
        ("compact", '{"strategy":"recent"}', Request("compact", strategy="recent")),
        ("compact", ' {"strategy":"auto","dry_run":true}\n', Request("compact", strategy="auto", dry_run=True)),
        ("compact", '{"summary":"it"}', Request("compact", strategy="summary", summary="it")),
    ],
)
def test_requests(file: str, text: str, wanted: Request) -> None:
    """What is understood."""
    assert parse(file, text.encode()) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "latest",
        "undo",
        "# A heading\n\nand text\n",
        "#only a heading",
        "[1, 2]",
        "{not JSON",
        '{"a":1} and more',
        '{"role":"user"}\n{"role":"assistant"}',  # JSON Lines about something else
        "dry-run\n",
        "\ufeff \u2028 text",
    ],
)
def test_any_other_text_is_the_summary(text: str) -> None:
    """In `compact` nothing is a command but a JSON object; lines with # are Markdown."""
    assert parse("compact", text.encode()) == Request("compact", strategy="summary", summary=text.rstrip())


@pytest.mark.parametrize("file", control.FILES)
@pytest.mark.parametrize("text", ["", "\n", "  \n\t\n\r\n"])
def test_blank_lines_ask_for_nothing(file: str, text: str) -> None:
    """Nothing is done, and nothing is wrong."""
    assert parse(file, text.encode()) is None


@pytest.mark.parametrize("file", ["fork", "revert"])
def test_comments_ask_for_nothing(file: str) -> None:
    """Also those of another file's usage text."""
    assert parse(file, b"# before 3\n#latest\n") is None
    assert all(parse(file, control.usage(other)) is None for other in control.FILES)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("fork", "lates", "not understood"),
        ("fork", "LATEST", "not understood"),
        ("fork", "latest 3", "not understood"),
        ("fork", "before", "not understood"),
        ("fork", "before 3 4", "not understood"),
        ("fork", "dry-run", "not understood"),
        ("fork", "dry-run dry-run latest", "not understood"),
        ("fork", "undo", "not understood"),
        ("revert", "latest", "not understood"),
        ("revert", "through 3", "not understood"),
        ("revert", "3", "not understood"),
        ("fork", "latest\nlatest\n", "2 lines"),
        ("revert", "before 3\nundo\n", "2 lines"),
        ("fork", "{}\n{}", "JSON object"),
        ("fork", '{"op":"fork"', "JSON object"),
        ("fork", '{"op":"revert","before_turn_id":"3"}', "this file is fork"),
        ("fork", '{"op":"undo"}', "this file is fork"),
        ("fork", '{"op":["fork"]}', "this file is fork"),
        ("fork", '{"turn":"3"}', "'turn' is not known"),
        ("fork", '{"before_turn_id":"3","last_turn_id":"3"}', "exclude"),
        ("fork", '{"before_turn_id":true}', "a turn is"),
        ("fork", '{"before_turn_id":"3 4"}', "a turn is"),
        ("fork", '{"dry_run":1}', "dry_run"),
        ("revert", "{}", "before_turn_id"),
        ("revert", '{"last_turn_id":"3"}', "before_turn_id"),
        ("revert", '{"op":"undo","before_turn_id":"3"}', "undo takes no turn"),
        ("compact", "{}", "strategy"),
        ("compact", '{"strategy":"best"}', "strategy"),
        ("compact", '{"strategy":"recent","summary":"x"}', "takes no summary"),
        ("compact", '{"summary":" "}', "isn't empty"),
        ("compact", '{"role":"user"}', "'role' is not known"),
        ("compact", '{"strategy":"recent"}\n{"strategy":"auto"}', "has 2"),
        ("compact", "a\0b", "NUL"),
        ("fork", "latest\0", "NUL"),
    ],
)
def test_refusals(file: str, text: str, reason: str) -> None:
    """EINVAL, and the reason in words."""
    with pytest.raises(RefusedError, match=reason) as caught:
        parse(file, text.encode())
    assert caught.value.code == errno.EINVAL


@pytest.mark.parametrize("file", control.FILES)
def test_bytes_that_are_no_text_are_refused(file: str) -> None:
    """A picture is no summary."""
    with pytest.raises(RefusedError, match="UTF-8"):
        parse(file, b"\xff\xfe\xfd")


@pytest.mark.parametrize("file", control.FILES)
def test_size(file: str) -> None:
    """64 KiB are taken, more is refused and never cut."""
    with pytest.raises(RefusedError) as caught:
        parse(file, b"x" * (control.LARGEST + 1))
    assert caught.value.code == errno.E2BIG
    assert parse("compact", b"x" * control.LARGEST) is not None


@pytest.mark.parametrize("file", control.FILES)
def test_usage_text_asks_for_nothing(file: str) -> None:
    """As a whole, in pieces of any size written where they were read, and from another version."""
    text = control.usage(file)
    assert all(line.startswith(b"#") for line in text.split(b"\n")[:-1])
    assert parse(file, text) is None
    assert parse(file, text, 4711) is None  # appended
    for size in (16, 100, 512):
        assert all(parse(file, text[at : at + size], at) is None for at in range(0, len(text), size))
    assert parse("compact", b"# rolloutfs: compact, of another version\n") is None


def answers() -> list[dict[str, Any]]:
    """Answers of every kind, and a line of operations.jsonl."""
    made = [control.answer("fork", "t", status, error=code, message="m", dry_run=False) for status, code in _STATES]
    return [*made, {"time": "now", "thread": "t", "request": "latest", **made[0]}]


_STATES = (("done", 0), ("refused", errno.EINVAL), ("failed", errno.EIO), ("running", 0))


@pytest.mark.parametrize("file", control.FILES)
@pytest.mark.parametrize("document", answers(), ids=lambda document: str(len(document)) + document["status"])
def test_answers_written_back_are_refused(file: str, document: dict[str, Any]) -> None:
    """As they are, formatted by jq, with others after them, and cut as by a program that writes in pieces."""
    line = control.as_line(document)
    for data in (line, orjson.dumps(document, option=orjson.OPT_INDENT_2), line + line, line[:100], line + b"before 3"):
        with pytest.raises(RefusedError) as caught:
            parse(file, data)
        assert caught.value.code == errno.EINVAL


@given(st.sampled_from(control.FILES), st.binary(max_size=300), st.integers(0, 2000))
def test_any_bytes_give_a_request_nothing_or_a_refusal(file: str, data: bytes, offset: int) -> None:
    """Never another error."""
    try:
        request = parse(file, data, offset)
    except RefusedError:
        return
    assert request is None or request.op in ("fork", "revert", "undo", "compact")


@given(st.text(max_size=300))
def test_a_dry_run_of_a_summary_is_the_same_request(text: str) -> None:
    """Whatever it says; `rolloutfs compact --dry-run FILE` asks like this."""
    data = text.encode()
    try:
        request = parse("compact", data)
    except RefusedError:
        return
    if request is not None:
        trial = parse("compact", control.with_dry_run(data))
        assert trial == Request("compact", strategy=request.strategy, summary=request.summary, dry_run=True)


def test_requests_are_shown_short() -> None:
    """A summary of 64 KiB doesn't fill operations.jsonl."""
    assert control.shown(b" latest\n") == "latest"
    assert len(control.shown(b"x" * 60_000)) < 500
    assert "60000 bytes" in control.shown(b"x" * 60_000)
    assert control.shown(b"\xff") == "\ufffd"


def test_answers_are_one_line_whatever_they_say() -> None:
    """Text from file names may not be Unicode."""
    line = control.as_line({"message": "a\nb\udc80c", "error": None})
    assert line.count(b"\n") == 1
    assert orjson.loads(line)["message"] == "a\nb?c"
