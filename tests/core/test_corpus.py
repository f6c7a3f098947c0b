"""Every thread of every store of the corpus is what the real Codex 0.171.0 rebuilt from it.

The answers in `expected.json` were given by Codex itself.  Where it differs on purpose:

* `input[0]` is the base instructions, which are settings.  Only models of the "lite" kind have them recorded; they are
  told apart by whether the log holds that item.
* Codex was asked through a provider that drops `internal_chat_message_metadata_passthrough`; for one named `OpenAI` it
  keeps it, so the comparison removes it.
* Codex cannot read the stores of 0.20.0, whose lines have no envelope.  Our answer there is the items as they lie.
* Codex shows a resumed thread as active and uncompressed, since resuming moved or decompressed it.
* Without a database it forgets the names of paginated threads, as we do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import zstandard
from threadstore.projection import View
from threadstore.store import ThreadStore

from tests.core.conftest import Agreement
from tests.core.logs import content, open_store
from tests.corpus_store import CorpusStore

Json = dict[str, Any]
PASSTHROUGH = "internal_chat_message_metadata_passthrough"


def rows(store: ThreadStore, thread_id: str, view: View) -> list[Any]:
    """A derived JSONL file, decoded."""
    return [json.loads(line) for line in content(store, store.project(thread_id, view)).split(b"\n")[:-1]]


class Raw:
    """The decoded rollouts of a store, read without any code of ours."""

    def __init__(self, home: Path) -> None:
        self.files = {path.name.removesuffix(".zst"): decoded(path) for path in home.rglob("rollout-*.jsonl*")}

    def lineage(self, name: str) -> Iterator[bytes]:
        """A rollout and what it is based on, each cut where it is inherited."""
        data = self.files[name]
        while True:
            yield data
            meta = json.loads(data.partition(b"\n")[0]).get("payload", {})
            base = meta.get("history_base")
            if base is None:
                return
            source = next(file for file in self.files if file.endswith(f"{base['thread_id']}.jsonl"))
            data = self.files[source][: base["end_byte_offset"]]


def decoded(path: Path) -> bytes:
    """A rollout's bytes, decompressed."""
    data = path.read_bytes()
    return zstandard.ZstdDecompressor().decompressobj().decompress(data) if path.suffix == ".zst" else data


def is_stored(item: bytes, logs: list[bytes]) -> bool:
    """True when the item is the payload of a line, or an entry of a replacement history, byte for byte."""
    places = [(b'"type":"response_item","payload":', end) for end in (b"}\n", b',"metadata":')]
    places += [(start, end) for start in (b'"replacement_history":[', b"},") for end in (b",{", b'],"', b"]}")]
    return any(start + item + end in log for log in logs for start, end in places)


def is_summary(item: Json, logs: list[bytes]) -> bool:
    """True for the message made of a checkpoint that has no replacement history."""
    text = item["content"][0]["text"] if item.get("role") == "user" and "id" not in item else None
    checkpoints = [
        record["payload"]
        for log in logs
        for line in log.split(b"\n")
        if b'"type":"compacted"' in line and (record := json.loads(line)).get("type") == "compacted"
    ]
    return any(
        checkpoint["message"] == text and checkpoint.get("replacement_history") is None for checkpoint in checkpoints
    )


def codex_input(probe: Json, logs: list[bytes]) -> list[Json]:
    """Codex's history as it was sent, without base instructions that are not recorded and without the passthrough."""
    items: list[Json] = probe["model_input"][: probe["probe_start_index"]]
    if items and items[0]["type"] == "message" and items[0]["role"] == "developer":
        recorded = any(b'"id":"' + items[0].get("id", "\n").encode() + b'"' in log for log in logs)
        items = items if recorded else items[1:]
    return [{key: value for key, value in item.items() if key != PASSTHROUGH} for item in items]


def compare(store: ThreadStore, raw: Raw, thread_id: str, codex: Json) -> list[str]:
    """What differs between Codex's answers and ours for one thread."""
    probe = codex["probe"]
    found = []
    head = store.head(thread_id)
    path = probe["resumed"]["thread"]["path"]
    if head.name.removesuffix(".zst") != path.rpartition("/")[2]:
        return [f"the head is {head.path}, Codex resumed {path}"]
    logs = list(raw.lineage(head.name.removesuffix(".zst")))
    wanted, got = codex_input(probe, logs), rows(store, thread_id, View.MODEL_INPUT)
    if got != wanted:
        at = next((n for n, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
        found.append(f"model input: {len(got)} items, Codex has {len(wanted)}; item {at} is the first that differs")
    for item in content(store, store.project(thread_id, View.EFFECTIVE_HISTORY)).split(b"\n")[:-1]:
        if not is_stored(item, logs) and not (is_summary(json.loads(item), logs) and json.loads(item) in wanted):
            found.append(f"effective history: not in the log: {item[:80]!r}")
    turns = [(turn["id"], turn["status"]) for turn in rows(store, thread_id, View.TURNS) if turn["effective"]]
    if turns != [(turn["id"], turn["status"]) for turn in codex["turns"]]:
        found.append(f"turns: {turns}")
    return found


#: What thread.json says, and the member of Codex's `thread/read` that must be the same.
FACTS = (
    ("id", "id"),
    ("name", "name"),
    ("forked_from", "forkedFromId"),
    ("parent", "parentThreadId"),
    ("cwd", "cwd"),
    ("cli_version", "cliVersion"),
    ("history_mode", "historyMode"),
)


def compare_facts(store: ThreadStore, thread_id: str, codex: Json) -> list[str]:
    """What thread.json says otherwise than Codex's `thread/read`."""
    ours = json.loads(content(store, store.project(thread_id, View.THREAD)))
    read = codex["read"]["thread"]
    found = [f"{key}: {ours[key]!r}, not {read[other]!r}" for key, other in FACTS if ours[key] != read[other]]
    if (ours["preview"] or "") != read["preview"]:
        found.append(f"preview: {ours['preview']!r}, not {read['preview']!r}")
    # Releases of 2025 didn't record the provider: Codex shows the one that it is configured with.
    if ours["model_provider"] not in (None, read["modelProvider"]):
        found.append(f"model_provider: {ours['model_provider']!r}, not {read['modelProvider']!r}")
    if (ours["agent"] or {}).get("nickname") != read["agentNickname"]:
        found.append(f"agent: {ours['agent']!r}, not {read['agentNickname']!r}")
    return found


def is_readable(codex: Json) -> bool:
    """False where Codex 0.171.0 itself gave up."""
    return "model_input" in codex["probe"]


def check_agreement(store: CorpusStore, way: str, agreement: Agreement) -> None:
    """Every thread of a store that Codex could read agrees with it."""
    ours, raw = open_store(store.home), Raw(store.home)
    found = []
    for thread_id, codex in store.threads.items():
        if is_readable(codex):
            found += agreement.note(way, store.name, thread_id, compare(ours, raw, thread_id, codex))
    assert found == []


def test_agrees_with_codex(corpus_store: CorpusStore, agreement: Agreement) -> None:
    """Head, model input, bytes of the effective history, turn ids and statuses are Codex's."""
    check_agreement(corpus_store, "with SQLite", agreement)


def test_agrees_with_codex_without_sqlite(corpus_store_no_sqlite: CorpusStore, agreement: Agreement) -> None:
    """The same with every SQLite file deleted: the files alone suffice."""
    check_agreement(corpus_store_no_sqlite, "without SQLite", agreement)


def test_thread_page_agrees_with_codex(corpus_store: CorpusStore) -> None:
    """Name, preview, origin, folder and mode in thread.json are those that Codex shows."""
    store = open_store(corpus_store.home)
    found = {
        thread_id: differences
        for thread_id, codex in corpus_store.threads.items()
        if "thread" in codex["read"] and (differences := compare_facts(store, thread_id, codex))
    }
    assert found == {}


def test_thread_page_without_sqlite(corpus_store_no_sqlite: CorpusStore) -> None:
    """Without databases only two things may be lost, in Codex as well: names of paginated threads, and a preview that a
    fork got from its parent's listing or that was kept from turns that are reverted.
    """
    store = open_store(corpus_store_no_sqlite.home)
    for thread_id, codex in corpus_store_no_sqlite.threads.items():
        if "thread" in codex["read"]:
            paginated = codex["read"]["thread"]["historyMode"] == "paginated"
            found = compare_facts(store, thread_id, codex)
            assert [
                difference
                for difference in found
                if not difference.startswith("preview:") and not (paginated and difference.startswith("name: None"))
            ] == []


def without_nulls(item: Json) -> Json:
    """An item without members that are null, which Codex leaves out or adds as its structs have it (FORMAT 8.2)."""
    return {key: value for key, value in item.items() if value is not None}


def test_stores_of_0_20_are_read(corpus_store: CorpusStore, agreement: Agreement) -> None:
    """Where Codex 0.171.0 says "rollout is empty", since the lines have no envelope, we give the bare items in order.

    That release never rewrote history, so every item counts; it wrote no turns.
    """
    store, raw = open_store(corpus_store.home), Raw(corpus_store.home)
    found = []
    for thread_id, codex in corpus_store.threads.items():
        if is_readable(codex):
            continue
        assert "is empty" in str(codex["probe"]["error"]), "Codex failed for a reason that we don't know"
        lines = raw.files[store.head(thread_id).name].split(b"\n")[:-1]
        items = [line for line in lines if "type" in json.loads(line)]
        assert items
        got = content(store, store.project(thread_id, View.EFFECTIVE_HISTORY)).split(b"\n")[:-1]
        differences = [] if got == items else ["the effective history is not the bare items in order"]
        sent = [without_nulls(item) for item in rows(store, thread_id, View.MODEL_INPUT)]
        if sent != [without_nulls(json.loads(item)) for item in items]:
            differences.append("the model input is not the bare items in order")
        found += agreement.note("0.20.0, which Codex can't read", corpus_store.name, thread_id, differences)
    assert found == []


def test_every_view_can_be_read_in_pieces(corpus_store: CorpusStore) -> None:
    """A file read in small pieces at any offset has the bytes that it has as a whole."""
    store = open_store(corpus_store.home)
    for thread_id, view in product(store.thread_ids()[:2], View):
        projection = store.project(thread_id, view)
        whole = content(store, projection)
        step = max(len(whole) // 7, 1)
        assert b"".join(content(store, projection, at, step) for at in range(0, len(whole), step)) == whole
