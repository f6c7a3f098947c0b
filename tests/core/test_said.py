"""What people and the model said stands in `transcript.md`, each text once and in its order."""

from __future__ import annotations

import json
import re
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hypothesis import given
from threadstore.markdown import harmless
from threadstore.projection import View
from threadstore.store import ThreadStore

from tests.core.logs import THREAD, Json, Log, Store, content, open_store
from tests.core.threads import logs
from tests.corpus_store import CorpusStore

_TITLE = re.compile(r"### (?:User|(Assistant|Message to an agent))\b.*|<details><summary>Context, role (\w+)\b.*")
_LEFT_OUT = re.compile(r"\*… ([\d,]+) of ([\d,]+) bytes are left out; .*\*")
_NOTICE = "Compact task completed"  # Codex itself, in 2025
_FENCE = re.compile(r"  (`{3,})text")


class Said(NamedTuple):
    """A text: whose, its beginning, and its end where `missing` bytes between them are left out."""

    role: str
    head: str
    tail: str = ""
    missing: int = 0

    def is_of(self, role: str, text: str) -> bool:
        """True when it shows this text of this role."""
        if not self.missing:
            return (self.role, self.head) == (role, text)
        size = len(f"{self.head}{self.tail}".encode()) + self.missing
        return self.role == role and text.startswith(self.head) and text.endswith(self.tail) and _size(text) == size


def _size(text: str) -> int:
    return len(text.encode())


def shown(transcript: str) -> list[Said]:
    """The texts below headings of messages, as a reader takes them from a transcript."""
    found: list[Said] = []
    lines = iter(transcript.split("\n"))
    role, goes_on = "", False
    for line in lines:
        if (fence := _FENCE.fullmatch(line)) and role:
            quoted = takewhile(f"  {fence[1]}".__ne__, lines)
            text = "\n".join(row.removeprefix("  ") for row in quoted)
            found.append(found.pop()._replace(tail=text) if goes_on else Said(role, text))
            goes_on = False
        elif (left_out := _LEFT_OUT.fullmatch(line)) and role:
            found.append(found.pop()._replace(missing=int(left_out[1].replace(",", ""))))
            goes_on = True
        elif title := _TITLE.fullmatch(line):
            role = "assistant" if title[1] else title[2] or "user"
        elif line[:1] in ("#", "<"):
            role = ""
    return found


def logged(records: list[Json]) -> list[tuple[str, str]]:
    """Role and text of every message in the log, in order."""
    found = []
    for record in records:
        item = record.get("payload", {}) if record.get("type") == "response_item" else record
        if item.get("type") == "message":
            text = "\n".join(part["text"] for part in item["content"] if isinstance(part.get("text"), str))
            found.append((item["role"], harmless(text).removesuffix("\n")))
    return [(role, text) for role, text in found if text]


def told(records: list[Json]) -> list[str]:
    """The texts of persons and of the model that Codex told its user interface of, as events beside the items. Those
    of a review are told in the thread that it was asked for in, too, and aren't said there.
    """
    threads = {record["payload"]["id"] for record in records if record.get("type") == "session_meta"}
    found = []
    for record in records:
        event = record["payload"] if record.get("type") == "event_msg" else {}
        item = event.get("item", {}) if event.get("thread_id") in threads else {}
        if event.get("type") in ("user_message", "agent_message"):
            found.append(event["message"])
        elif item.get("type") in ("UserMessage", "AgentMessage"):
            found.append("\n".join(part["text"] for part in item["content"] if "text" in part))
    return [harmless(text).removesuffix("\n") for text in found if text and text != _NOTICE]


def check(records: list[Json], transcript: str) -> None:
    """Both say the same."""
    said, texts = shown(transcript), logged(records)
    assert [one.role for one in said] == [role for role, _ in texts]
    for one, (role, text) in zip(said, texts, strict=True):
        assert one.is_of(role, text), (one, text)


def records_of(store: ThreadStore, thread: str) -> list[Json]:
    """All records of a thread, also those that it inherited and those that no longer count."""
    rows = content(store, store.project(thread, View.FULL_HISTORY)).split(b"\n")[:-1]
    return [record for row in map(json.loads, rows) if (record := row.get("record"))]


def test_what_codex_wrote(corpus_store: CorpusStore) -> None:
    """Every text that a person, the model or Codex said in a thread of the corpus, with what it inherited."""
    store = open_store(corpus_store.home)
    for thread in store.thread_ids():
        records = records_of(store, thread)
        transcript = content(store, store.project(thread, View.TRANSCRIPT)).decode()
        check(records, transcript)
        texts = [text for _, text in logged(records)]
        assert [one for one in told(records) if not any(one in text for text in texts)] == []


@given(logs())
def test_whatever_happened(log: Log) -> None:
    """The same with checkpoints, rollbacks, aborted turns and old settings, in any order."""
    with TemporaryDirectory() as folder:
        store = Store(Path(folder) / "home", log)
        check(records_of(store.store, THREAD), store.read(View.TRANSCRIPT).decode())
