"""The files of one turn: what was said in it, its items, its calls with their results, patches and tokens (DESIGN 3).

Turns follow each other without a gap: to one belongs what lies between its beginning and that of the next one, and to
the first also what its log has before it. So every item of the history stands in one turn. Where a turn begins is read
from `turns.jsonl`, so only the bytes of the turn itself are read.

Items, arguments and outputs are slices of the log, whatever their size; what was said is text and has a bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson

from threadstore import passages, prompt, spans
from threadstore.boundaries import is_envelope, is_visible_user
from threadstore.extents import Extents, ExtentsBuilder
from threadstore.history import Item, history_item
from threadstore.lines import backward, forward
from threadstore.longitems import LongItem
from threadstore.markdown import harmless, word
from threadstore.names import safe_name
from threadstore.opened import OpenLineage, first_dialect
from threadstore.outline import Place
from threadstore.passages import Passage
from threadstore.patches import Patches
from threadstore.projection import Projection
from threadstore.records import Record, is_blank
from threadstore.views import dumps, page

Json = dict[str, Any]
Files = dict[str, Projection]  # by their path below the folder of the turn

CALLS: Final = "calls"  # the folder below it
LAST: Final = "last"  # leads to the folder of the last turn that counts
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
LARGEST: Final = 16 << 20  # bytes of `user.md` and of `assistant.md`
MESSAGE: Final = 1 << 20  # of one message in them
_ARGUMENTS: Final = {
    "function_call": b"arguments",
    "custom_tool_call": b"input",
    "local_shell_call": b"action",
    "tool_search_call": b"arguments",
}
_OUTPUTS: Final = {
    "function_call_output": b"output",
    "custom_tool_call_output": b"output",
    "tool_search_output": b"tools",
}
_NAMES: Final = {"local_shell_call": "local_shell", "tool_search_call": "tool_search"}
_FAILED: Final = re.compile(r"apply_patch verification failed|(?:unsupported|unknown) (?:custom )?tool")


class Turns(NamedTuple):
    """The lines of a `turns.jsonl`, each with the name of its folder."""

    rows: list[Json]
    names: list[str]

    @classmethod
    def of(cls, content: bytes) -> Turns:
        """A turn that counts has its number for a name. One that was taken back is named after the turn that stands in
        its place now, or would: `0003~1`, `0003~2`.
        """
        rows = [orjson.loads(line) for line in content.split(b"\n")[:-1]]
        names, number, gone = [], 0, 0
        for row in rows:
            if row["number"] is not None:
                number, gone = row["number"], 0
                names.append(f"{number:04}")
            else:
                gone += 1
                names.append(f"{number + 1:04}~{gone}")
        return cls(rows, names)

    def called(self, name: str) -> str | None:
        """The folder that a name leads to: its own, `last`, a number, which counts from the end if it is negative."""
        if name in self.names:
            return name
        return self.number(-1 if name == LAST else int(name) if _NUMBER.fullmatch(name) else 0)

    def number(self, number: int) -> str | None:
        """The folder of a turn by its number; -1 is that of the last one."""
        counted = [name for row, name in zip(self.rows, self.names, strict=True) if row["number"] is not None]
        at = number - 1 if number > 0 else len(counted) + number
        return counted[at] if number and 0 <= at < len(counted) else None


def make(turns: Turns, lineage: OpenLineage, wanted: str | None = None) -> dict[str, Files]:
    """The files of one turn, or of all of them, by the name of their folder."""
    paths = {file.rollout.path: number for number, file in enumerate(lineage.files)}
    identities = lineage.identities()
    basis = tuple(file.basis for file in reversed(lineage.files))
    made = {}
    for at, name in enumerate(turns.names):
        if wanted not in (None, name):
            continue
        start = _start(turns.rows[at], paths, lineage)
        first = (start[0], 0) if at == 0 else start
        last = len(lineage.files) - 1
        end = (last, lineage.end_of(last)) if at + 1 == len(turns.rows) else _start(turns.rows[at + 1], paths, lineage)
        walk = _Walk(lineage, turns.rows[at], blake2b(repr((identities, start)).encode(), digest_size=16).digest())
        walk.read(first, end)
        made[name] = {
            file: Projection(extents, basis, generation) for file, (extents, generation) in walk.files().items()
        }
    return made


def _start(row: Json, paths: dict[str, int], lineage: OpenLineage) -> Place:
    """Where a turn begins. One of an old log is opened by an event that follows the person's message."""
    segment, offset = paths[row["start"]["file"]], row["start"]["offset"]
    if row["implicit"] and row["user"]:
        log = lineage.files[segment].log
        before = next((line for line in backward(log, offset) if not is_blank(line)), None)
        record = None if before is None else lineage.decode(before, first_dialect(log))
        if isinstance(record, Record) and record.type in ("response_item", "inter_agent_communication"):
            offset = record.line.start
    return segment, offset


class _Value(NamedTuple):
    """Where a JSON value lies in the log: segment, offset and length."""

    segment: int
    offset: int
    length: int


@dataclass(slots=True)
class _Call:
    """A call, or a result of none in the same turn: its call lies in an earlier one, or Codex gave it by itself."""

    call_id: object
    kind: str
    name: str | None
    place: str
    arguments: _Value | None = None
    output: _Value | None = None
    exit_code: int | None = None
    result: str | None = None  # where it lies


@dataclass(slots=True)
class _Said:
    """What one side said."""

    parts: list[str] = field(default_factory=list)
    size: int = 0
    is_full: bool = False

    def add(self, text: str) -> None:
        """One message more."""
        text = f"{text}\n" if not text.endswith("\n") else text
        if self.size + len(text) > LARGEST and not self.is_full:
            self.is_full = True
            self.parts.append("*More was said; it is in items.jsonl.*\n")
        if not self.is_full:
            self.parts.append(text)
            self.size += len(text)

    def render(self) -> bytes:
        """All of it."""
        return "\n".join(self.parts).encode("utf-8", "replace")


class _Walk:
    """Takes the records of one turn."""

    def __init__(self, lineage: OpenLineage, row: Json, generation: bytes) -> None:
        self._lineage = lineage
        self._row = row
        self._generation = generation
        self._items = ExtentsBuilder()
        self._sources = [self._items.source(file.source) for file in lineage.files]
        self._user, self._assistant = _Said(), _Said()
        self._calls: list[_Call] = []
        self._open: dict[str, _Call] = {}
        self._patches = Patches()

    def read(self, first: Place, end: Place) -> None:
        """Take everything between two places."""
        for segment in range(first[0], end[0] + 1):
            log = self._lineage.files[segment].log
            dialect = first_dialect(log)
            start = first[1] if segment == first[0] else 0
            stop = end[1] if segment == end[0] else self._lineage.end_of(segment)
            for line in forward(log, start, stop):
                record = None if is_blank(line) else self._lineage.decode(line, dialect)
                if isinstance(record, Record):
                    self._record(record, segment)

    def files(self) -> dict[str, tuple[Extents, bytes]]:
        """The content of each file, and the name of its generation."""
        found = {
            "assistant.md": _rendered(self._assistant.render()),
            "items.jsonl": (self._items.build(), self._generation),
            "turn.json": _rendered(page(self._row)),
            "usage.json": _rendered(page(self._row["usage"])),
            "user.md": _rendered(self._user.render()),
        }
        patches = self._patches.render()
        if patches:
            found["diff.patch"] = _rendered(patches)
        for number, call in enumerate(self._calls, 1):
            name = safe_name("result" if call.name is None else call.name)
            found[f"{CALLS}/{number:03}-{name}.json"] = self._call(number, call)
        return found

    def _record(self, record: Record, segment: int) -> None:
        place = f"{word(self._lineage.files[segment].rollout.path)}:{record.line.start}"
        if record.type == "event_msg":
            self._patches.done(record, place)
            return
        made = history_item(record, segment)
        if made is None:
            return
        item = made[0]
        prompt.add_lying(item, self._items, self._sources, self._lineage.fetch, self._lineage.look)
        if record.type != "response_item":
            return
        kind = record.kind
        if kind == "message":
            self._message(item, record, place)
        elif kind in _ARGUMENTS:
            call = _Call(
                record.payload.get("call_id"), kind, _NAMES.get(kind) or str(record.payload.get("name")), place
            )
            call.arguments = _value(record, segment, _ARGUMENTS[kind])
            self._calls.append(call)
            if isinstance(call.call_id, str):
                self._open[call.call_id] = call
            self._patches.called(call.call_id or place, record.payload, place)
        elif kind in _OUTPUTS:
            self._result(record, segment, place)

    def _message(self, item: Item, record: Record, place: str) -> None:
        role = record.payload.get("role")
        side = self._user if role == "user" else self._assistant
        if role == "user" and not is_visible_user(record.payload):
            return
        if role not in ("user", "assistant") or (role == "assistant" and is_envelope(record.payload)):
            return
        long = None
        document = record.payload
        if record.line.gaps:
            long = LongItem(self._lineage.files[item.segment].log, item.offset, item.length)
            document = long.document()
        text = passages.plain(Passage(document, place, "", long), MESSAGE)
        if text:
            side.add(harmless(text))

    def _result(self, record: Record, segment: int, place: str) -> None:
        call_id = record.payload.get("call_id")
        call = self._open.pop(call_id, None) if isinstance(call_id, str) else None
        if call is None:
            name = record.payload.get("name")
            call = _Call(call_id, record.kind, name if isinstance(name, str) else None, place)
            self._calls.append(call)
        call.output = _value(record, segment, _OUTPUTS[record.kind])
        call.result = place
        text, code, _ = passages.printed(record.payload.get("output"), Passage(record.payload, place))
        call.exit_code = int(code) if code is not None else None
        if call.exit_code or _FAILED.match(text):
            self._patches.failed(call_id)

    def _call(self, number: int, call: _Call) -> tuple[Extents, bytes]:
        """One JSON object, in which arguments and output stand as they lie in the log."""
        builder = ExtentsBuilder()
        known = {
            "number": number,
            "call_id": call.call_id,
            "type": call.kind,
            "name": call.name,
            "exit_code": call.exit_code,
            "effect": "recorded" if call.output is not None else "unknown",
            "place": call.place,
            "result_place": call.result,
        }
        lines = "".join(f"  {dumps(key).decode()}: {dumps(value).decode()},\n" for key, value in known.items())
        builder.literal(f'{{\n{lines}  "arguments": '.encode("utf-8", "replace"))
        self._add(call.arguments, builder)
        builder.literal(b',\n  "output": ')
        self._add(call.output, builder)
        builder.literal(b"\n}\n")
        digest = blake2b(repr((self._generation, number, call)).encode("utf-8", "surrogatepass"), digest_size=16)
        return builder.build(), digest.digest()

    def _add(self, value: _Value | None, builder: ExtentsBuilder) -> None:
        if value is None:
            builder.literal(b"null")
        else:
            source = builder.source(self._lineage.files[value.segment].source)
            builder.slice(source, value.offset, value.length, suffix=b"")


def _value(record: Record, segment: int, key: bytes) -> _Value | None:
    """Where a member of a response item lies."""
    found = spans.member(record.line.data, record.payload_span()[0], key)
    return None if found is None else _Value(segment, *record.file_span(*found))


def _rendered(content: bytes) -> tuple[Extents, bytes]:
    return Extents.of_bytes(content), blake2b(content, digest_size=16).digest()
