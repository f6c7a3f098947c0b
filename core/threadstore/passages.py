"""One item of a thread as a passage of its transcript: who speaks or acts, and what (FORMAT 3.4).

Calls are numbered within their turn, so that a result names the call that it belongs to, also when several ran at once.
An id would do that, too, but nobody reads those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from threadstore.boundaries import SUMMARY_PREFIX, is_envelope, is_visible_user
from threadstore.longitems import LongItem
from threadstore.markdown import Cut, cut, excerpt, folded, word
from threadstore.views import dumps

Json = dict[str, Any]

SAID = 64 << 10  # bytes shown of a message, a summary, a patch
PRINTED = 16 << 10  # of the output of a tool and of the arguments of a call
CONTEXT = 4 << 10  # of what Codex has put beside a person's message
MOST_MEDIA = 100  # images of one item that are named one by one

_PATCH = "*** Begin Patch"
_COMMANDS = ("cmd", "command", "input", "patch", "code")  # arguments that are shown as a text of their own
_EXIT = re.compile(r"^(?:Exit code: |Process exited with code )(-?\d{1,10})$", re.MULTILINE)
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?([;\w=.+-]*),")
_BEFORE_OUTPUT = 1 << 10  # characters in which the line `Output:` is looked for


class Passage(NamedTuple):
    """An item to be shown: its place in the log (`file:offset`), what is to be said of it beside (or nothing), and
    where the rest of its texts is if it is too long to be in memory.
    """

    item: Json
    place: str
    mark: str = ""
    long: LongItem | None = None

    def size(self, text: str) -> int:
        """Bytes of a text of the item."""
        return len(text.encode("utf-8", "replace")) if self.long is None else self.long.length(text)

    def cut(self, text: str, most: int) -> Cut:
        """A text of the item, or its ends."""
        return cut(text, most, self.long)

    def shown(self, text: str, most: int, language: str = "text") -> bytes:
        """A text of the item as a block."""
        return excerpt(self.cut(text, most), self.place, language)


class Calls:
    """The calls of one turn.

    Invariant: `_open` has the number and the name of each call that no result was shown of, by its id.
    """

    def __init__(self, count: int = 0, opened: Iterable[tuple[str, int, str]] = ()) -> None:
        self._open = {call_id: (number, name) for call_id, number, name in opened}
        self._count = count

    def state(self) -> tuple[int, tuple[tuple[str, int, str], ...]]:
        """What to make the same of: how many there were, and id, number and name of those without a result."""
        return self._count, tuple((call_id, number, name) for call_id, (number, name) in self._open.items())

    def call(self, call_id: object, name: str) -> str:
        """How a new call is titled."""
        self._count += 1
        if isinstance(call_id, str):
            self._open[call_id] = (self._count, name)
        return f"Call {self._count}: {name}"

    def result(self, call_id: object) -> str:
        """How a result is titled."""
        number, name = self._open.pop(call_id, (0, "")) if isinstance(call_id, str) else (0, "")
        return f"Result of call {number}: {name}" if number else "Result of a call"

    def end(self) -> str:
        """The turn is over: which calls have no result in it."""
        notes = [
            f"*No result of call {number} ({name}) follows: its effect is unknown.*\n\n"
            for number, name in self._open.values()
        ]
        self._open.clear()
        self._count = 0
        return "".join(notes)


def passage(of: Passage, calls: Calls) -> bytes:
    """The Markdown of an item; empty for one that says nothing to a reader."""
    render = _KINDS.get(str(of.item.get("type")))
    return _note(f"an item of type {word(of.item.get('type'))}", of) if render is None else render(of, calls)


def summary_of(message: str) -> str:
    """What a checkpoint's message says, without what Codex puts before every summary."""
    return message.removeprefix(SUMMARY_PREFIX).lstrip("\n")


def plain(of: Passage, most: int) -> str:
    """What a message says, its ends if that is more than `most` bytes; its images and sounds are named."""
    text, media = _joined(of.item.get("content"), of)
    found = of.cut(text, most)
    if found.missing:
        note = f"[… {found.missing:,} of {found.size:,} bytes are left out; the whole is in {of.place} …]"
        return f"{found.head}\n{note}\n{found.tail}\n{media}"
    return f"{found.head}\n\n{media}" if media else found.head


def _titled(title: str, of: Passage, content: bytes) -> bytes:
    return f"### {title}{of.mark}\n\n".encode() + content


def _note(text: str, of: Passage) -> bytes:
    return f"*{text[:1].upper()}{text[1:]}{of.mark}.*\n\n".encode()


def _message(of: Passage, _calls: Calls) -> bytes:
    item, role = of.item, of.item.get("role")
    text, media = _joined(item.get("content"), of)
    if role == "user" and is_visible_user(item):
        return _titled("User", of, _body(text, of) + media.encode())
    if role == "assistant":
        title = "Message to an agent" if is_envelope(item) else "Assistant"
        return _titled(title, of, _body(text, of) + media.encode())
    found = of.cut(text, CONTEXT)
    title = f"Context, role {word(role)}{of.mark} · {found.size:,} bytes"
    return folded(title, excerpt(found, of.place) + media.encode())


def _body(text: str, of: Passage) -> bytes:
    return of.shown(text, SAID) if text else b""


def _agent_message(of: Passage, _calls: Calls) -> bytes:
    content = of.item.get("content")
    text, media = (content, "") if isinstance(content, str) else _joined(content, of)
    title = f"Agent {word(of.item.get('author'))} to {word(of.item.get('recipient'))}"
    return _titled(title, of, _body(text, of) + media.encode())


def _reasoning(of: Passage, _calls: Calls) -> bytes:
    text, _ = _joined([*(of.item.get("summary") or ()), *(of.item.get("content") or ())], of)
    return _titled("Reasoning", of, of.shown(text, SAID)) if text.strip() else b""


def _function_call(of: Passage, calls: Calls) -> bytes:
    name = word(of.item.get("name"))
    return _titled(calls.call(of.item.get("call_id"), name), of, _arguments(of.item.get("arguments"), of))


def _custom_call(of: Passage, calls: Calls) -> bytes:
    name = word(of.item.get("name"))
    return _titled(calls.call(of.item.get("call_id"), name), of, _script(str(of.item.get("input")), of))


def _shell_call(of: Passage, calls: Calls) -> bytes:
    title = calls.call(of.item.get("call_id"), "local_shell")
    return _titled(title, of, _command(_dict(of.item.get("action")), of))


def _search_call(of: Passage, calls: Calls) -> bytes:
    title = calls.call(of.item.get("call_id"), "tool_search")
    return _titled(title, of, of.shown(dumps(of.item.get("arguments")).decode(), PRINTED, "json"))


def _arguments(text: object, of: Passage) -> bytes:
    """The arguments of a function: a JSON text, of which a command or a patch is taken out."""
    try:
        document = orjson.loads(text) if isinstance(text, str) and of.long is None else None
    except orjson.JSONDecodeError:
        document = None
    return _command(document, of) if isinstance(document, dict) else of.shown(str(text), PRINTED, "json")


def _command(arguments: Json, of: Passage) -> bytes:
    for key in _COMMANDS:
        script = _script_of(arguments.get(key))
        if script is not None:
            rest = {other: value for other, value in arguments.items() if other != key and value is not None}
            return _script(script, of) + (of.shown(dumps(rest).decode(), PRINTED, "json") if rest else b"")
    return of.shown(dumps(arguments).decode(), PRINTED, "json")


def _script_of(value: object) -> str | None:
    """A command as one text: the shell that it was given to is left out."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(isinstance(part, str) for part in value):
        return None
    if len(value) == 3 and value[1] in ("-c", "-lc"):
        return str(value[2])
    return value[1] if value[0] == "apply_patch" and len(value) == 2 else " ".join(value)


def _script(text: str, of: Passage) -> bytes:
    return of.shown(text, SAID, "diff") if _PATCH in text else of.shown(text, PRINTED, "sh")


def _result(of: Passage, calls: Calls) -> bytes:
    text, code, media = printed(of.item.get("output"), of)
    found = of.cut(text, PRINTED)
    status = f" · exit code {code}" if code is not None else ""
    title = f"{calls.result(of.item.get('call_id'))}{of.mark}{status} · {found.size:,} bytes"
    return folded(title, (excerpt(found, of.place) if text else b"") + media.encode())


def printed(output: object, of: Passage) -> tuple[str, str | None, str]:
    """Text, exit code and media of a tool's output, which is a text or parts; before 2026 often a JSON text."""
    if not isinstance(output, str):
        text, media = _joined(output, of)
        return text, _exit_code(text), media
    if output.startswith('{"output":') and of.long is None:
        try:
            document = orjson.loads(output)
        except orjson.JSONDecodeError:
            document = {}
        code = _dict(document.get("metadata")).get("exit_code")
        if isinstance(document.get("output"), str):
            return document["output"], str(code) if isinstance(code, int) else None, ""
    return output, _exit_code(output), ""


def _exit_code(text: str) -> str | None:
    """The exit code that Codex tells before the line `Output:`."""
    before, found, _ = text[:_BEFORE_OUTPUT].partition("\nOutput:\n")
    code = _EXIT.search(before) if found else None
    return code[1] if code is not None else None


def _found_tools(of: Passage, calls: Calls) -> bytes:
    tools = of.item.get("tools") or ()
    title = f"{calls.result(of.item.get('call_id'))}{of.mark} · tools: {len(tools)}"
    return folded(title, of.shown(dumps(tools).decode(), PRINTED, "json"))


def _web_search(of: Passage, _calls: Calls) -> bytes:
    return _titled("Web search", of, of.shown(dumps(of.item.get("action")).decode(), PRINTED, "json"))


def _generated_image(of: Passage, _calls: Calls) -> bytes:
    size = of.size(str(of.item.get("result"))) * 3 // 4
    prompt = of.item.get("revised_prompt")
    return _titled(f"Generated image, {size:,} bytes", of, of.shown(prompt, PRINTED) if prompt else b"")


def _encrypted(of: Passage, _calls: Calls) -> bytes:
    return _note("a summary that is encrypted", of)


def _configuration(of: Passage, _calls: Calls) -> bytes:
    return _note(f"the reasoning effort is now {word(_dict(of.item.get('reasoning')).get('effort'))}", of)


def _tools(of: Passage, _calls: Calls) -> bytes:
    return _note(f"the model was given more tools: {len(of.item.get('tools') or ())}", of)


def _nothing(_of: Passage, _calls: Calls) -> bytes:
    return b""


_KINDS: dict[str, Callable[[Passage, Calls], bytes]] = {
    "message": _message,
    "agent_message": _agent_message,
    "inter_agent_communication": _agent_message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "custom_tool_call": _custom_call,
    "local_shell_call": _shell_call,
    "tool_search_call": _search_call,
    "function_call_output": _result,
    "custom_tool_call_output": _result,
    "tool_search_output": _found_tools,
    "web_search_call": _web_search,
    "image_generation_call": _generated_image,
    "compaction": _encrypted,
    "compaction_summary": _encrypted,
    "context_compaction": _encrypted,
    "configuration_update": _configuration,
    "additional_tools": _tools,
    "compaction_trigger": _nothing,
    "ghost_snapshot": _nothing,
}


def _joined(parts: object, of: Passage) -> tuple[str, str]:
    """The texts of parts as one, and notes on images and sounds."""
    texts: list[str] = []
    media: list[str] = []
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict):
            media.append(_medium(part, of) if len(media) < MOST_MEDIA else "")
    more = f"*And {len(media) - MOST_MEDIA} more of that kind.*\n\n" if len(media) > MOST_MEDIA else ""
    return "\n".join(texts), "".join(media) + more


def _medium(part: Json, of: Passage) -> str:
    """An image or a sound: of which type, how large; never its data."""
    kind = word(str(part.get("type")).removeprefix("input_").replace("_", " "))
    url = next(_urls(part), None)
    if url is None:
        file = part.get("file_id")
        return f"*{kind.capitalize()}: {f'file {word(file)}' if file else 'not shown'}*\n\n"
    size = of.size(url)
    head = _DATA_URL.match(url)
    if head is None:
        return f"*{kind.capitalize()} behind a link of {size:,} bytes*\n\n"
    size -= head.end()
    if head[2].endswith(";base64"):
        size = size * 3 // 4 - (len(url) - len(url.rstrip("=")))
    return f"*{kind.capitalize()}: {word(head[1] or 'of no type')}, {size:,} bytes*\n\n"


def _urls(part: Json) -> Iterator[str]:
    return (part[key] for key in ("image_url", "audio_url") if isinstance(part.get(key), str))


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}
