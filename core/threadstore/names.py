"""Where files lie and what they are called (FORMAT 2, 2.1, 11.4).

A rollout's name carries all that a listing needs: the local time of its creation, the thread that it belongs to and,
after a revert, the id of the rollout itself.  Nothing else in the folders counts as a rollout.  Times in names are
local time of the machine that wrote them; they order rollouts and are never turned into an instant.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SESSIONS = "sessions"
ARCHIVED = "archived_sessions"
SESSION_INDEX = "session_index.jsonl"

_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_ROLLOUT = re.compile(
    rf"rollout-([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9]{{2}}-[0-9]{{2}}-[0-9]{{2}})-({_UUID})(?:_({_UUID}))?\.jsonl(\.zst)?"
)
_STAMP = slice(len("rollout-"), len("rollout-2026-11-29T10-00-00"))
_UUID_ONLY = re.compile(_UUID)
_PARTIAL = re.compile(rf"\.({_ROLLOUT.pattern})\.[0-9a-f-]+\.partial")


class RolloutFile(NamedTuple):
    """One rollout file, known from its name alone.

    By time in the name, then by rollout id, the greatest of a thread is the one that Codex selects when it has no
    database (FORMAT 11.4).  `path` is relative to the store's root.  A tuple, and without what the path says as well,
    since a large store has 100,000.
    """

    rollout_id: str
    thread_id: str
    path: str
    archived: bool
    compressed: bool
    twin: int = 0  # counts the files of one thread that would be shown under the same name

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def stamp(self) -> str:
        """The time in the name."""
        return self.name[_STAMP]

    @property
    def shown(self) -> str:
        """The name below `rollouts/`, where every rollout is shown decoded."""
        stem = self.name.removesuffix(".zst")
        return stem if self.twin == 0 else f"{stem.removesuffix('.jsonl')}~{self.twin}.jsonl"

    @property
    def plain_path(self) -> str:
        """The path that the file has, or would have, uncompressed."""
        return self.path.removesuffix(".zst")


def parse_rollout(path: str) -> RolloutFile | None:
    """What a path below the store says, or None when its name isn't that of a rollout."""
    match = _ROLLOUT.fullmatch(path, path.rfind("/") + 1)
    if match is None:
        return None
    _, thread_id, rollout_id, zst = match.groups()
    thread_id = thread_id.lower()
    rollout_id = thread_id if rollout_id is None else rollout_id.lower()
    return RolloutFile(rollout_id, thread_id, path, path.startswith(ARCHIVED + "/"), zst is not None)


def alone(path: str, thread_id: str) -> RolloutFile:
    """What `parse_rollout` says of a path of which it says that it is the first rollout of this thread."""
    return RolloutFile(thread_id, thread_id, path, path.startswith(ARCHIVED + "/"), path.endswith(".zst"))


def partial_of(name: str, tag: str) -> str:
    """The name under which a rollout is written before it is there; no reader takes it for one. `tag` is unique, of
    hexadecimal digits and dashes.
    """
    return f".{name}.{tag}.partial"


def is_partial(name: str) -> bool:
    """True for a name that `partial_of` makes."""
    return _PARTIAL.fullmatch(name) is not None


def is_thread_id(text: str) -> bool:
    """True for a UUID in the spelling that Codex writes, in either case."""
    return _UUID_ONLY.fullmatch(text) is not None


_ID = re.compile(r"(?:urn:uuid:)?(\{)?([0-9a-f-]{32,36})(?(1)\})")


def canonical_id(text: str) -> str:
    """A UUID in the spelling of file names; Codex compares values, whatever the spelling. Other text in lower case."""
    match = _ID.fullmatch(text.lower())
    digits = match[2].replace("-", "") if match is not None else ""
    if len(digits) != 32:
        return text.lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def relocate(path: str) -> str | None:
    """The part of a recorded absolute path that lies inside a store, or None.

    A store that was moved keeps absolute paths in its database; what follows the last `sessions/` or
    `archived_sessions/` is still right.  Both kinds of separators occur in paths from Windows.
    """
    parts = path.replace("\\", "/").split("/")
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] in (SESSIONS, ARCHIVED):
            inside = parts[at:]
            return "/".join(inside) if all(part not in ("", ".", "..") for part in inside) else None
    return None


_UNSAFE_ONES = (
    r"\x00-\x1f\x7f-\x9f/\\\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f"
)
_UNSAFE = re.compile(f"[{_UNSAFE_ONES}]")
_LONGEST = 120  # bytes; leaves room for an id suffix below the 255 that a name may have


#: The same with blanks and what a shell, or `host:path`, would stumble over.
_QUOTED = re.compile(rf"""[{_UNSAFE_ONES}\s_"'`$&*?()\[\]{{}}<>|;:!#~^]+""")
_READ, _WORDS = 120, 48  # characters of a text that are looked at, and that make a name
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")


def safe_name(text: str, *, hidden: bool = False) -> str:
    """Text from data as one path part that is safe to show, to list and to type (FAULTS 22).

    Separators, control and direction characters become `_`; the result is never empty, `.` or `..`, never begins
    with a dot (unless `hidden`), a dash or a blank, and is cut at a character boundary. Not reversible alone: the
    caller adds an id where names collide and `thread.json` has the original.
    """
    import unicodedata

    name = _UNSAFE.sub("_", unicodedata.normalize("NFC", text)).strip()
    if name[:1] == "-" or (name[:1] == "." and (not hidden or name in (".", ".."))):
        name = "_" + name[1:]
    return _cut(name) or "_"


def _cut(name: str) -> str:
    raw = name.encode("utf-8", "replace")
    return name if len(raw) <= _LONGEST else raw[:_LONGEST].decode("utf-8", "ignore").rstrip() + "…"


def brief_name(text: str) -> str:
    """The first words of a text as (a part of) one path part that a shell takes as it is: blanks, quotation marks and
    the like become one `_`. Empty when there are no words.
    """
    import unicodedata

    name = _QUOTED.sub("_", unicodedata.normalize("NFC", text[:_READ])).strip("_.-")
    if len(name) > _WORDS:
        at = name.rfind("_", _WORDS // 2, _WORDS + 1)
        name = name[: at if at > 0 else _WORDS].rstrip("_.-")
    return _cut(name)


def path_names(text: str) -> tuple[str, ...]:
    """The parts of a path from data, or of any name with slashes in it, each as one path part. It is only text: no file
    is looked at, `..` takes back what stands before it. Parts of a Windows path are told by backslashes.
    """
    parts: list[str] = []
    for part in (text.replace("\\", "/") if _WINDOWS.match(text) else text).split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(safe_name(part, hidden=True))
    return tuple(parts)
