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
        ("compact", '{"summary":"undo"}', Request("compact", strategy="summary", summary="undo")),
        ("compact", '\ufeff{"strategy":"recent"}', Request("compact", strategy="recent")),
        ("compact", "dry-run my summary", Request("compact", strategy="summary", summary="my summary", dry_run=True)),
        ("compact", " dry-run\n# A\n b\n", Request("compact", strategy="summary", summary="# A\n b", dry_run=True)),
        ("compact", 'dry-run {"strategy":"recent"}', Request("compact", strategy="recent", dry_run=True)),
        (
            "compact",
            'dry-run\t{"summary":"x","dry_run":false}\n',
            Request("compact", strategy="summary", summary="x", dry_run=True),
        ),
    ],
)
def test_requests(file: str, text: str, wanted: Request) -> None:
    """What is understood."""
    assert parse(file, text.encode()) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "latest news",
        "undo\nlatest\n",
        "before we began\n",
        "Undo",
        "a dry-run",
        "dry-runs\n",
        "# A heading\n\nand text\n",
        "#only a heading",
        "[1, 2]",
        "# rolloutfs: what we did\n\nWe wrote a file system.\n",
        "# rolloutfs: compact is done",
        "\ufeff \u2028 text",
    ],
)
def test_any_other_text_is_the_summary(text: str) -> None:
    """In `compact` words within a text, and lines with #, are Markdown, also when they are ours."""
    assert parse("compact", text.encode()) == Request("compact", strategy="summary", summary=text.rstrip())


@pytest.mark.parametrize("file", control.FILES)
@pytest.mark.parametrize("text", ["", "\n", "  \n\t\n\r\n"])
def test_blank_lines_ask_for_nothing(file: str, text: str) -> None:
    """Nothing is done, and nothing is wrong."""
    assert parse(file, text.encode()) is None


def test_what_undo_does_is_told() -> None:
    """Where one looks for it: that it drops what came after, and that a second one takes it back."""
    text = control.usage("revert").decode()
    assert "a second one takes that back" in text
    assert "undo drops what came after that revert, turns and compactions" in text


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
        ("revert", '{"before_turn_id":"3","dry_run":true,"dry_run":false}', "'dry_run' is given twice"),
        ("compact", '{"strategy":"recent","strategy":"auto"}', "'strategy' is given twice"),
        ("fork", '{"last_turn_id":' + "[" * 2000, "JSON object"),
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
        ("compact", '{"role":"user"}\n{"role":"assistant"}\n', "has 2"),
        ("compact", "{not JSON", "isn't one"),
        ("compact", '\n {"strategy":"recent"', "isn't one"),
        ("compact", '{"strategy":recent}', '"summary":"…"'),
        ("compact", '{"a":1} and more', "isn't one"),
        ("compact", 'dry-run {"strategy":', "isn't one"),
        ("compact", "latest", '"summary":"…"'),
        ("compact", "undo\n", "alone"),
        ("compact", "\n recent \n", "alone"),
        ("compact", "auto", "alone"),
        ("compact", "dry-run\n", "alone"),
        ("compact", "dry-run ", "alone"),
        ("compact", "dry-run undo", "alone"),
        ("compact", "before -1\n", "alone"),
        ("compact", f"through {TURN}", "alone"),
        ("compact", "before", "alone"),
        ("compact", "# rolloutfs: compact of another version\n#     echo this > compact\n", "another version"),
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
    """As a whole, and in pieces of any size written where they were read. The first piece of a text for `compact` may
    be that of a summary: what it was is seen at its end.
    """
    text = control.usage(file)
    assert all(line.startswith(b"#") for line in text.split(b"\n")[:-1])
    assert parse(file, text) is None
    assert parse(file, text, 4711) is None  # appended
    for size in (16, 100, 512):
        first = size if file == "compact" else 0
        assert all(parse(file, text[at : at + size], at) is None for at in range(first, len(text), size))
    assert all(parse("compact", control.usage(other)) is None for other in control.FILES)


@pytest.mark.parametrize(
    ("piece", "goes_on"),
    [
        (b"\xc3", True),
        (b"  \n\xe2\x82", True),
        (b"undoing", True),
        (b"dry-run ", True),
        (b"{\n", True),
        (b'{"strategy": "rec', True),
        (b'dry-run {"strategy":', True),
        (b'{"strategy":"recent"}\n', False),
    ],
)
def test_first_pieces(piece: bytes, goes_on: bool) -> None:
    """What may be the beginning of a summary or of an object, whose characters may be cut, goes on."""
    request = parse("compact", piece, is_whole=False)
    assert request is not None
    assert request.may_go_on is goes_on


@pytest.mark.parametrize("piece", [b"{'strategy':\n", b"{strategy:\n", b"undo\n", b"dry-run\n", b"dry-run", b"\xff"])
def test_first_pieces_that_can_become_nothing(piece: bytes) -> None:
    """They are refused at once, where a shell sees it."""
    with pytest.raises(RefusedError):
        parse("compact", piece, is_whole=False)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_summary_below_the_usage_text_is_refused(*, is_whole: bool) -> None:
    """As an editor writes it: the usage text must not become the model's memory."""
    text = control.usage("compact") + b"\nWhat was done.\n"
    with pytest.raises(RefusedError, match="begins with the usage text"):
        parse("compact", text, is_whole=is_whole)
    quoted = parse("compact", b"About rolloutfs:\n" + text)
    assert quoted is not None
    assert quoted.summary is not None


@given(st.dictionaries(st.text(), st.text() | st.integers(-9, 9) | st.none()), st.integers(1, 9))
def test_an_object_in_pieces_is_whole_with_its_last_one(document: dict[str, Any], size: int) -> None:
    """And not before, wherever it is cut; whatever else it says, an operation that there is none of is refused."""
    data = orjson.dumps(document | {"op": "none"}, option=orjson.OPT_INDENT_2)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    for number, piece in enumerate(pieces[:-1]):
        assert control.object_so_far(b"".join(pieces[: number + 1]), piece) is None
    with pytest.raises(RefusedError) as caught:
        control.object_so_far(data, pieces[-1])
    assert caught.value.code == errno.EINVAL


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
    """Whatever it says."""
    try:
        request = parse("compact", text.encode())
    except RefusedError:
        return
    if request is not None and not request.dry_run:
        trial = parse("compact", f"dry-run {text}".encode())
        assert trial is not None
        assert trial.dry_run
        assert trial.strategy == request.strategy
        assert (trial.summary or "").strip() == (request.summary or "").strip().removeprefix("\ufeff").strip()


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


def test_a_line_of_text_that_is_not_unicode() -> None:
    """As in the path of a mount that somebody else made: it is shown with replacements, wherever it stands."""
    document = {"a": "x\udcff", "mounts": [{"path": "/tmp/\udce9t", "options": ("y\udc80", 1, None)}]}
    assert orjson.loads(control.as_line(document)) == {
        "a": "x?",
        "mounts": [{"path": "/tmp/?t", "options": ["y?", 1, None]}],
    }
