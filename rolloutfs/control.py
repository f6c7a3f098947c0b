"""Requests and answers of the control files `fork`, `revert` and `compact` (DESIGN 4). Pure: nothing is done here.

One write is one request.  In `fork` and `revert` it is a line of words or a JSON object; blank lines and lines that
start with `#` mean nothing.  In `compact` it is a JSON object, or the summary itself, whatever it says; both may come
in several pieces (see `texts`).  `dry-run` before either only tells.  What can only be meant as a request but isn't
one, a broken JSON object or a word of the other files alone, is refused: it would else become the model's memory.

Programs also write what nobody means as a request, because they copy a tree onto a tree or save what they have read.
A usage text means nothing, and neither does a piece of it at the offset where it was read; an answer is refused.
"""

from __future__ import annotations

import codecs
import errno
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

import orjson

FILES: Final = ("fork", "revert", "compact")
LARGEST: Final = 64 << 10  # bytes of one request
_OTHER_USAGE: Final = re.compile(r"# rolloutfs: (?:fork|revert|compact) .*(?:\n#.*)+\s*")  # of another version
_SHORTEST_PIECE: Final = 16  # bytes of a piece of the usage text that is recognised by itself
_DRY_RUN: Final = "dry-run"
_DRY_MEMBER: Final = re.compile(r'(?<!\\)"dry_run"\s*:\s*true\b')
_ALONE: Final = re.compile(r"latest|undo|recent|auto|dry-run|(?:before|through)(?:[^\S\n]+\S+)?")
_CUT: Final = "unexpected end of data"  # what orjson says of the beginning of a JSON text
_ANSWER: Final = re.compile(rb'\s*\{"(op":"[a-z]+","thread_id"|time":"[^"]*","thread"):')
_ANSWER_MEMBERS: Final = frozenset({"op", "status", "source_thread_id", "workspace"})
_SHOWN: Final = 400  # characters of a request that are kept in the record of operations

Json = dict[str, Any]


class RefusedError(Exception):
    """A request that is not carried out: an errno, and the reason in words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Request:
    """What to do with a thread.

    `kind` and `turn` are those of a `Boundary`, for forks (all kinds) and reverts (`before`). A compaction has a
    `strategy`: `summary` with its text, `recent`, or `auto`, which gets its text from a program. `may_go_on` is set for
    what is not a whole JSON object: this may be its first piece only.
    """

    op: str  # fork, revert, undo, compact
    kind: str = ""
    turn: str = ""
    strategy: str = ""
    summary: str | None = None
    dry_run: bool = False
    may_go_on: bool = field(default=False, compare=False)


def parse(file: str, data: bytes, offset: int = 0, *, is_whole: bool = True) -> Request | None:
    """What a write to a control file asks for, None when it asks for nothing. Raises RefusedError.

    `offset` (bytes) is where the program wrote; it only serves to recognise pieces of the usage text. A text that isn't
    whole may end in the middle of a character.
    """
    if len(data) > LARGEST:
        _refuse(f"the request has more than {LARGEST} bytes, which is the most. Nothing was done.", errno.E2BIG)
    if is_usage(file, data, offset):
        return None
    if _ANSWER.match(data):
        _refuse_answer()
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(data, is_whole)
    except UnicodeDecodeError:
        _refuse("the request is not UTF-8 text.")
    if "\0" in text:
        _refuse("the request has NUL bytes in it: it is not text.")
    if file != "compact":
        return _words(file, text)
    if decoder.getstate()[0] and not text.strip():
        return _summary(text)  # it begins with a character that is cut
    return _compaction(text, is_whole=is_whole)


def object_so_far(data: bytes, piece: bytes) -> Request | None:
    """The request that the pieces of a text are when they make up a whole JSON object with the last one, `piece`; None
    for any other text. Raises RefusedError when they can't become one any more, although they begin like one.
    """
    if not is_object(data) or not (b"\n" in piece or piece.rstrip().endswith(b"}")):
        return None
    request = parse("compact", data, is_whole=False)
    return None if request is None or request.may_go_on else request


def is_object(data: bytes) -> bool:
    """True for a text in `compact` that begins like a JSON object."""
    return _without_dry_run(data[:LARGEST].decode("utf-8", "replace"))[0].startswith("{")


def is_blank(data: bytes) -> bool:
    """True for white space."""
    return bool(data) and not data.decode("utf-8", "replace").strip()


def is_dry_run(data: bytes) -> bool:
    """True for a text in `compact` that is only to be told."""
    return _without_dry_run(data[:LARGEST].decode("utf-8", "replace"))[1]


def is_for_a_look(file: str, data: bytes) -> bool:
    """True for what asks to be told only, or tries to: whatever is refused of it, its answer is that of a dry run."""
    text = data[:LARGEST].decode("utf-8", "replace")
    body, is_dry = _without_dry_run(text if file == "compact" else "\n".join(_lines(text)))
    return is_dry or (body.startswith("{") and _DRY_MEMBER.search(body) is not None)


def is_usage(file: str, data: bytes, offset: int) -> bool:
    """True for a usage text as it is shown, and for a piece of the file's own one that was written where it was read.

    The first piece of a summary is never taken for that: it may be a summary that begins in the same way.
    """
    if data in _USAGES.values():
        return True
    piece = usage(file)[offset : offset + len(data)] == data
    if file == "compact":
        is_last = offset + len(data) == len(usage(file))
        return piece and offset > 0 and bool(data) and (is_last or len(data) >= _SHORTEST_PIECE)
    return piece and (bool(data) if offset else len(data) >= _SHORTEST_PIECE)


def shown(data: bytes) -> str:
    """A request as the record of operations has it: its beginning, if it is long."""
    text = data[: _SHOWN * 4].decode("utf-8", "replace").strip()
    return text if len(text) <= _SHOWN and len(data) <= _SHOWN * 4 else f"{text[:_SHOWN]}… ({len(data)} bytes)"


# fork and revert


def _lines(text: str) -> list[str]:
    """Those that mean something."""
    return [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]


def _words(file: str, text: str) -> Request | None:
    lines = _lines(text)
    if not lines:
        return None
    body = "\n".join(lines).strip()
    if body.startswith("{"):
        return _object(file, body)
    if len(lines) > 1:
        _refuse(f"one write is one request, and this one has {len(lines)} lines. Write them one by one.")
    words = lines[0].split()
    dry_run = words[0] == _DRY_RUN
    verb, *rest = words[dry_run:] or [""]
    if file == "revert" and verb == "undo" and not rest:
        return Request("undo", dry_run=dry_run)
    if file == "fork" and verb == "latest" and not rest:
        return Request("fork", "latest", dry_run=dry_run)
    if verb in ("through", "before") and len(rest) == 1 and (file == "fork" or verb == "before"):
        return Request(file, verb, rest[0], dry_run=dry_run)
    raise RefusedError(errno.EINVAL, f"{_short(lines[0])} is not understood. {_HINTS[file]}")


_HINTS: Final = {
    "fork": "Write latest, through TURN or before TURN; TURN is an id, its beginning, a number of turns.jsonl, or -1.",
    "revert": "Write before TURN or undo; TURN is an id, its beginning, a number of turns.jsonl, or -1.",
    "compact": 'Write the summary itself, {"strategy":"recent"} or {"strategy":"auto"}.',
}


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


# compact


def _compaction(text: str, *, is_whole: bool) -> Request | None:
    body, dry_run = _without_dry_run(text)
    if not body and not dry_run:
        return None
    if body.startswith("{"):
        return _compaction_object(body, dry_run=dry_run, is_whole=is_whole)
    if dry_run and not body and not is_whole and text[-1] in " \t":  # printf 'dry-run '; cat summary.md
        return _summary("", dry_run=True)
    if not body or _ALONE.fullmatch(body):
        _refuse(
            f"{_short(text.strip())} alone is no request to compact, and taken for a summary it would become the "
            f"model's memory. {_HINTS['compact']} {_FORCED}"
        )
    if body.startswith(usage("compact").decode().strip()):  # somebody opened the file in an editor, and wrote below
        _refuse(f"the text begins with the usage text of this file: nothing was done. Take that out. {_FORCED}")
    if is_whole and _OTHER_USAGE.fullmatch(body):
        _refuse(f"this is a usage text of rolloutfs, changed or of another version: nothing was done. {_FORCED}")
    return _summary(body if dry_run else text, dry_run=dry_run)


def _without_dry_run(text: str) -> tuple[str, bool]:
    """A text without the blanks around it and the `dry-run` before it, and whether there was one."""
    body = text.strip().removeprefix("\ufeff").strip()
    first, *rest = body.split(None, 1) or [""]
    return ("".join(rest), True) if first == _DRY_RUN else (body, False)


def _summary(text: str, *, dry_run: bool = False) -> Request:
    return Request("compact", strategy="summary", summary=text.rstrip(), dry_run=dry_run, may_go_on=True)


def _compaction_object(body: str, *, dry_run: bool, is_whole: bool) -> Request:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not is_whole and error.msg.startswith(_CUT):
            return _summary(body, dry_run=dry_run)
        objects = [_load(line) for line in body.split("\n") if line.strip()]
        if isinstance(objects[0], dict) and is_answer(objects[0]):
            _refuse_answer()
        if len(objects) > 1 and all(isinstance(one, dict) for one in objects):
            _refuse(f"one write is one request, and this one has {len(objects)}. Write them one by one. {_FORCED}")
        _refuse(f"the text starts like a JSON object, but isn't one ({error}): nothing was done. {_FORCED}")
    assert isinstance(document, dict)
    request = _object("compact", body)
    return replace(request, dry_run=dry_run or request.dry_run)


_FORCED: Final = 'To make such a text the summary write {"summary":"…"}.'


# JSON


def _object(file: str, text: str) -> Request:
    document = _load(text)
    if not isinstance(document, dict):
        _refuse("the request starts like a JSON object, but isn't one (a single one, in one write).")
    if is_answer(document):
        _refuse_answer()
    given = {key: value for key, value in document.items() if value is not None}
    op = given.pop("op", file)
    dry_run = given.pop("dry_run", False)
    if not isinstance(dry_run, bool):
        _refuse("dry_run must be true or false.")
    if op != file and (file, op) != ("revert", "undo"):
        _refuse(f"{_short(str(op))} can't be asked for here: this file is {file}.")
    if file == "compact":
        return _strategy(given, dry_run=dry_run)
    return _boundary(file, str(op), given, dry_run=dry_run)


def _boundary(file: str, op: str, given: Json, *, dry_run: bool) -> Request:
    before, through = given.pop("before_turn_id", None), given.pop("last_turn_id", None)
    _no_more(file, given)
    if op == "undo":
        if before is not None or through is not None:
            _refuse("undo takes no turn.")
        return Request("undo", dry_run=dry_run)
    if before is not None and through is not None:
        _refuse("before_turn_id and last_turn_id exclude each other.")
    if before is not None:
        return Request(op, "before", _turn(before), dry_run=dry_run)
    if file == "revert":
        _refuse('a revert needs "before_turn_id": the first turn that is taken back.')
    if through is not None:
        return Request(op, "through", _turn(through), dry_run=dry_run)
    return Request(op, "latest", dry_run=dry_run)


def _turn(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value or len(value.split()) != 1:
        _refuse("a turn is a string (an id, or its beginning) or a number.")
    return value


def _strategy(given: Json, *, dry_run: bool) -> Request:
    summary = given.pop("summary", None)
    strategy = given.pop("strategy", "summary" if summary is not None else None)
    _no_more("compact", given)
    if strategy == "summary":
        if not isinstance(summary, str) or not summary.strip():
            _refuse("the summary must be a string that isn't empty.")
        return Request("compact", strategy="summary", summary=summary.rstrip(), dry_run=dry_run)
    if strategy not in ("recent", "auto"):
        _refuse('a JSON object in compact needs "strategy": "recent" or "auto", or a "summary".')
    if summary is not None:
        _refuse(f"the strategy {strategy} takes no summary.")
    return Request("compact", strategy=strategy, dry_run=dry_run)


def _no_more(file: str, given: Json) -> None:
    if given:
        _refuse(f"{_short(next(iter(given)))} is not known in a request to {file}.")


def _load(text: str) -> object:
    """The document, None for a text that isn't one. Raises RefusedError for an object with a member given twice."""
    try:
        document = orjson.loads(text)
        json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    return document


def _unique(members: list[tuple[str, object]]) -> Json:
    for number, (name, _) in enumerate(members):
        if name in [other for other, _ in members[:number]]:
            _refuse(f"{_short(name)} is given twice: nothing was done.")
    return dict(members)


def _refuse(message: str, code: int = errno.EINVAL) -> NoReturn:
    raise RefusedError(code, message)


def _refuse_answer() -> NoReturn:
    _refuse("this is an answer of rolloutfs, not a request: copying it here starts nothing.")


# Answers


def answer(op: str, thread: str, status: str, *, error: int = 0, message: str | None = None, dry_run: bool) -> Json:
    """An answer to a request that came to nothing, or isn't finished; the members are those of `Outcome.as_json`."""
    return {
        "op": op,
        "thread_id": thread if status == "running" else None,
        "source_thread_id": thread,
        "rollout": None,
        "status": status,
        "error": errno.errorcode.get(error, "EIO") if error else None,
        "message": message,
        "dry_run": dry_run,
        "dropped_turns": [],
        "before": None,
        "after": None,
        "workspace": "untouched",
    }


def is_answer(document: Mapping[str, object]) -> bool:
    """True for a JSON object that is an answer of ours, or a line of `operations.jsonl`."""
    return document.keys() >= _ANSWER_MEMBERS


def as_line(document: Json) -> bytes:
    """A JSON object on a line of its own. Text that isn't Unicode (lone surrogates) is shown with replacements."""
    try:
        return orjson.dumps(document) + b"\n"
    except (TypeError, orjson.JSONEncodeError):
        return orjson.dumps(_clean(document), default=str) + b"\n"


def _clean(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_clean(key): _clean(one) for key, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list | tuple) else value


def usage(file: str) -> bytes:
    """What a control file says before anything was done. Every line starts with `#`."""
    return _USAGES[file]


_TURNS = """\
# TURN is the id of a turn, the beginning of one, its number among the turns of turns.jsonl that still count
# (1 is the first), or -1 for the last.
"""
_ANSWERS = """\
# A request that is refused fails the write and changes nothing. The answer is JSON, on one line; it is read from
# the handle that wrote:     exec 3<>{file}; echo '{example}' >&3; cat <&3
# A fresh open shows the answer to the last request for this thread, and ../../operations.jsonl has all of them.
"""
_TEXTS: Final = {
    "fork": """\
# rolloutfs: fork makes a new thread from this one, which stays as it is. One write is one request:
#     echo latest > fork                    everything
#     echo 'through TURN' > fork            up to and including a turn
#     echo 'before TURN' > fork             up to but excluding a turn
#     echo 'dry-run before TURN' > fork     only tell what would be done
#     echo '{"op":"fork","last_turn_id":"TURN"}' > fork     the same as JSON: last_turn_id, before_turn_id, dry_run
"""
    + _TURNS
    + _ANSWERS.replace("{file}", "fork").replace("{example}", "latest"),
    "revert": """\
# rolloutfs: revert takes turns of this thread back; no file outside of the store is touched. One write is one request:
#     echo 'before TURN' > revert           the thread goes on from before that turn
#     echo undo > revert                    go on from where it was before the last revert; a second one takes that back
#     echo 'dry-run before TURN' > revert   only tell what would be done
#     echo '{"op":"revert","before_turn_id":"TURN"}' > revert     the same as JSON: before_turn_id, dry_run
# What was dropped can be read afterwards, in dropped.md; in a legacy thread it is marked in transcript.md.
# undo drops what came after that revert, turns and compactions; it is for paginated threads (see thread.json).
"""
    + _TURNS
    + _ANSWERS.replace("{file}", "revert").replace("{example}", "dry-run before -1"),
    "compact": """\
# rolloutfs: compact makes a summary the model's memory of this thread; the log keeps everything. All that is written
# until the file is closed, or the answer is read, is one summary; a JSON object is a request of its own:
#     cat ~/summary.md > compact                      this text is the summary, whatever it says
#     echo '{"strategy":"recent"}' > compact          no summary, only the newest messages of the user
#     echo '{"strategy":"auto"}' > compact            the program named in config.toml writes the summary
#     echo '{"summary":"TEXT"}' > compact             this text, also when it is one word, or begins like JSON
#     (printf 'dry-run '; cat ~/summary.md) > compact only tell what would be done; also dry-run {"strategy":…}
# A writer that dies midway leaves half a summary, which can't be told from a whole one: write it to a file first,
# outside of the mount. An empty file asks for nothing, and leaves the last answer where it is.
"""
    + _ANSWERS.replace("{file}", "compact").replace("{example}", '{"strategy":"recent","dry_run":true}'),
}
_USAGES: Final = {file: text.encode() for file, text in _TEXTS.items()}
