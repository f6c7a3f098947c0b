"""Changes of files that a log tells of, as a unified diff.

What was done is told by events since 2026 (`patch_apply_end`, or an item `FileChange`), with whole contents or a diff.
Older logs have only the call of `apply_patch`, whose format names no lines: there the numbers of a hunk are made up,
and its context has to be looked for. Texts are not made harmless, since a patch must stay what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

from threadstore.records import Record

Json = dict[str, Any]
LARGEST: Final = 16 << 20  # bytes of the patches of one turn

_PATCH: Final = re.compile(r"\*\*\* Begin Patch\n(.*?)\n?\*\*\* End Patch", re.DOTALL)
_FILE: Final = re.compile(r"\*\*\* (Add|Update|Delete) File: (.*)")
_PLAIN: Final = re.compile(r'[^\x00-\x1f\x7f"\\\ud800-\udfff]+')
_DONE: Final = ("completed", "success", "")


class Patches:
    """The patches of one turn in the order of their calls.

    Invariant: `_texts` has what is known of each call by its id, what was done rather than what was asked for.
    """

    def __init__(self) -> None:
        self._texts: dict[str, tuple[bool, str]] = {}
        self._size = 0

    def done(self, record: Record, place: str) -> None:
        """Take an event that tells of changes, if it is one; `place` is where it lies."""
        payload = record.payload
        change = payload if record.is_event("patch_apply_end") else payload.get("item")
        if not isinstance(change, dict):
            return
        if record.is_event("item_completed") and change.get("type") != "FileChange":
            return
        call = str(change.get("call_id") or change.get("id"))
        changes = change.get("changes")
        if change.get("success") is False or str(change.get("status") or "") not in _DONE:
            self._put(call, "# A patch that failed or was declined is not shown.\n", is_done=True)
        elif record.line.gaps or not isinstance(changes, dict):
            self._put(call, f"# A patch is left out; it is in {place}\n", is_done=True)
        else:
            text = "".join(part for path, one in changes.items() for part in _of_change(path, one))
            self._put(call, text, is_done=True)

    def called(self, call: object, item: Json, place: str) -> None:
        """Take a call, if it is one of `apply_patch`."""
        for text in _texts_of(item):
            found = _PATCH.search(text)
            if found is not None:
                note = "# Asked for by a call; the log doesn't tell lines, nor what became of it.\n"
                self._put(str(call), note + "".join(_of_call(found[1])), is_done=False)
                return
            if "*** Begin Patch" in text:
                self._put(str(call), f"# A patch is left out; it is in {place}\n", is_done=False)

    def failed(self, call: object) -> None:
        """The call came to nothing."""
        known = self._texts.get(str(call))
        if known is not None and not known[0]:
            self._texts[str(call)] = (False, "# A patch that failed is not shown.\n")

    def render(self) -> bytes:
        """All of them; empty for none."""
        return "".join(text for _, text in self._texts.values()).encode("utf-8", "replace")

    def _put(self, call: str, text: str, *, is_done: bool) -> None:
        known = self._texts.get(call, (False, ""))
        if known[0]:
            return
        self._size += len(text) - len(known[1])
        if self._size > LARGEST:
            self._size -= len(text)
            text = "# A patch is left out: this file would become too large.\n"
        self._texts[call] = (is_done, text)


def _of_change(path: str, change: object) -> Iterator[str]:
    if not isinstance(change, dict):
        return
    kind, content = change.get("type"), change.get("content")
    if kind == "add" and isinstance(content, str):
        yield _head("/dev/null", _name("b", path)) + _whole(content, "+")
    elif kind == "delete" and isinstance(content, str):
        yield _head(_name("a", path), "/dev/null") + _whole(content, "-")
    elif kind == "update" and isinstance(change.get("unified_diff"), str):
        moved = change.get("move_path")
        text = str(change["unified_diff"])
        yield _head(_name("a", path), _name("b", moved if isinstance(moved, str) else path))
        yield text if text.endswith("\n") or not text else f"{text}\n"
    else:
        yield f"# How {_name('b', path)} was changed isn't recorded.\n"


def _of_call(text: str) -> Iterator[str]:
    """The changes that a call asks for, file by file."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        head = _FILE.fullmatch(lines[at])
        at += 1
        if head is None:
            continue
        kind, path, moved = head[1], head[2], head[2]
        body: list[str] = []
        while at < len(lines) and not _FILE.fullmatch(lines[at]):
            if lines[at].startswith("*** Move to: "):
                moved = lines[at].removeprefix("*** Move to: ")
            elif not lines[at].startswith("***"):
                body.append(lines[at])
            at += 1
        if kind == "Add":
            yield _head("/dev/null", _name("b", path)) + f"@@ -0,0 +1,{len(body)} @@\n"
            yield "".join(f"{line}\n" for line in body)
        elif kind == "Delete":
            yield f"# {_name('a', path)} is deleted; what it held isn't recorded.\n"
        else:
            yield _head(_name("a", path), _name("b", moved))
            yield from _hunks(body)


def _hunks(lines: list[str]) -> Iterator[str]:
    """Hunks with made-up places: each at the line at which it would be if nothing lay between."""
    hunk: list[str] = []
    old = new = 1
    for line in [*lines, "@@"]:
        if not line.startswith("@@"):
            hunk.append(line or " ")
            continue
        if hunk:
            gone, come = (sum(one[0] in kinds for one in hunk) for kinds in (" -", " +"))
            yield f"@@ -{old},{gone} +{new},{come} @@\n" + "".join(f"{one}\n" for one in hunk)
            old, new = old + gone, new + come
        hunk = []


def _head(old: str, new: str) -> str:
    return f"--- {old}\n+++ {new}\n"


def _whole(content: str, sign: str) -> str:
    """All lines of a file as one hunk."""
    lines = content.split("\n")
    end = "" if lines[-1] == "" else "\\ No newline at end of file\n"
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return ""
    place = f"-0,0 +1,{len(lines)}" if sign == "+" else f"-1,{len(lines)} +0,0"
    return f"@@ {place} @@\n" + "".join(f"{sign}{line}\n" for line in lines) + end


def _name(side: str, path: str) -> str:
    """A path as a diff names it: from the root of the file system if it was recorded so, quoted if it has to be."""
    name = f"{side}/{path.lstrip('/')}"
    if _PLAIN.fullmatch(name):
        return name
    raw = name.encode("utf-8", "replace")
    return '"' + "".join(chr(one) if 32 <= one < 127 and one not in b'"\\' else f"\\{one:03o}" for one in raw) + '"'


def _texts_of(item: Json) -> Iterator[str]:
    """The texts of a call that may be a patch: of the tool itself, or of a shell that it was given to."""
    if isinstance(item.get("input"), str):
        yield item["input"]
    arguments = item.get("arguments")
    if isinstance(arguments, str) and "*** Begin Patch" in arguments:
        try:
            document = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return
        for value in document.values() if isinstance(document, dict) else ():
            yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, str))
    command = (item.get("action") or {}).get("command") if isinstance(item.get("action"), dict) else None
    yield from (part for part in (command if isinstance(command, list) else ()) if isinstance(part, str))
