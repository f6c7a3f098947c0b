"""Tiny stores for the tests of FAULTS.md: a builder of logs, a home to put them in, and readers of what comes out.

A log is built record by record.  Each call answers with the `Spot` of the line that it wrote, so that a test can name
the exact offset and length of what is damaged.  Every home also holds three sound threads, the *neighbours*; when a
test ends, `Home.check` proves that reading changed nothing and that no neighbour's output moved by one byte.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import zstandard
from threadstore.errors import StoreError
from threadstore.extents import Extents, Slice
from threadstore.names import RolloutFile
from threadstore.projection import Projection, StoreView, View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

Json = dict[str, Any]
Content = bytes
LEGACY, PAGINATED = "legacy", "paginated"
MODES = (LEGACY, PAGINATED)
ANCESTOR = "ancestor"
DRESSES = (LEGACY, PAGINATED, ANCESTOR)
#: Views that need the history as a whole: they can't be given when the lineage is broken.
DERIVED = (
    View.EFFECTIVE_HISTORY,
    View.MODEL_INPUT,
    View.PENDING_CALLS,
    View.WORLD_STATE,
    View.TURNS,
    View.USAGE,
)
STAMP = "2026-11-29T10-00-00"


def uuid(number: int) -> str:
    """The id of thread, rollout or window number `number`."""
    return f"01a20000-0000-7000-8000-{number:012x}"


class Spot(NamedTuple):
    """Where a line lies: offset and length in bytes, without its newline."""

    offset: int
    length: int


class Log:
    """The bytes of one rollout, in the making.

    Legacy logs tell of a user's message with a `user_message` event and have no ordinals; paginated ones use
    `item_completed` and count.  `payloads` are the response items written so far, byte for byte.
    """

    def __init__(
        self,
        mode: str = PAGINATED,
        number: int = 1,
        *,
        rollout: int | None = None,
        base: Any = None,
        meta: bool = True,
        first_ordinal: int | None = None,
        **fields: Any,
    ) -> None:
        self.mode = mode
        self.thread = uuid(number)
        self.rollout = self.thread if rollout is None else uuid(rollout)
        self.content = bytearray()
        self.ordinal = first_ordinal or (base["end_ordinal_exclusive"] if base else 0)
        self.payloads: list[bytes] = []
        self._clock = 0
        if meta:
            self.meta(history_base=base, **fields)

    # Lines

    def raw(self, data: bytes, end: bytes = b"\n") -> Spot:
        """Bytes as they are."""
        spot = Spot(len(self.content), len(data))
        self.content += data + end
        return spot

    def line(self, kind: str, payload: Any, **extra: Any) -> bytes:
        """A line that takes the next ordinal and is not written."""
        self._clock += 1
        envelope: Json = {"timestamp": f"2026-11-29T10:{self._clock // 60:02}:{self._clock % 60:02}.000Z"}
        if self.mode == PAGINATED:
            envelope["ordinal"] = self.ordinal
            self.ordinal += 1
        return orjson.dumps(envelope | {"type": kind, "payload": payload} | extra)

    def record(self, kind: str, payload: Any, end: bytes = b"\n", **extra: Any) -> Spot:
        """One record. `extra` replaces or adds members of the envelope; None leaves one out."""
        if kind == "response_item":
            self.payloads.append(orjson.dumps(payload))
        data = self.line(kind, payload)
        if extra:
            document = orjson.loads(data) | extra
            data = orjson.dumps({key: value for key, value in document.items() if value is not None})
        return self.raw(data, end)

    def position(self, *, ordinal: int | None = None, offset: int | None = None) -> Json:
        """The `history_base` of a thread that goes on from here."""
        return {
            "thread_id": self.rollout,
            "end_ordinal_exclusive": self.ordinal if ordinal is None else ordinal,
            "end_byte_offset": len(self.content) if offset is None else offset,
        }

    # Records

    def meta(self, **fields: Any) -> Spot:
        """A session meta; fields that are None are left out."""
        payload = {
            "session_id": self.thread,
            "id": self.thread,
            "timestamp": "2026-11-29T10:00:00.000Z",
            "cwd": "/repo",
            "originator": "test",
            "cli_version": "0.171.0",
            "source": "cli",
            "model_provider": "mock",
            "base_instructions": None,
            "history_mode": self.mode,
        } | fields
        keep = ("base_instructions",)
        return self.record("session_meta", {k: v for k, v in payload.items() if v is not None or k in keep})

    def event(self, kind: str, **fields: Any) -> Spot:
        """An `event_msg`."""
        return self.record("event_msg", {"type": kind} | fields)

    def item(self, kind: str, **fields: Any) -> Spot:
        """A `response_item`."""
        return self.record("response_item", {"type": kind} | fields)

    def message(self, role: str, text: str) -> Spot:
        """A message of the model's history."""
        return self.record("response_item", message(role, text))

    def started(self, turn: str) -> Spot:
        """The beginning of a turn, with its settings."""
        spot = self.event("task_started", turn_id=turn, model_context_window=1000)
        self.record(
            "turn_context",
            {
                "turn_id": turn,
                "cwd": "/repo",
                "approval_policy": "never",
                "sandbox_policy": {"type": "danger-full-access"},
                "model": f"model-of-{turn}",
                "summary": "auto",
            },
        )
        return spot

    def asked(self, text: str, turn: str) -> Spot:
        """A user's message: in the history, and as an event."""
        spot = self.message("user", text)
        if self.mode == LEGACY:
            self.event("user_message", message=text, images=[], local_images=[], text_elements=[])
        else:
            item = {"type": "UserMessage", "id": f"u-{turn}", "content": [{"type": "text", "text": text}]}
            self.event("item_completed", thread_id=self.thread, turn_id=turn, item=item, completed_at_ms=0)
        return spot

    def completed(self, turn: str) -> Spot:
        """The end of a turn."""
        return self.event("task_complete", turn_id=turn, last_agent_message=None)

    def turn(self, text: str, answer: str | None = "", *, end: bool = True) -> str:
        """A whole turn: question `text`, answer `answer` (by default `re: <text>`, None for no answer). Its id."""
        turn = f"turn-{text}"
        self.started(turn)
        self.asked(text, turn)
        if answer is not None:
            self.message("assistant", answer or f"re: {text}")
        if end:
            self.completed(turn)
        return turn

    def rolled_back(self, turns: int) -> Spot:
        """A rollback marker."""
        return self.event("thread_rolled_back", num_turns=turns)

    def checkpoint(self, *texts: str, complete: bool = True, **fields: Any) -> Spot:
        """A checkpoint whose replacement history are user messages; `complete` makes it stand alone (FORMAT 7.1)."""
        payload: Json = {"message": "", "replacement_history": [message("user", text) for text in texts]}
        if complete:
            payload |= {"window_number": 1, "window_id": uuid(900), "resume_metadata": {}}
        payload |= {"compaction_response_id": None, "latest_token_usage_record": None}
        return self.record("compacted", payload | fields)


def message(role: str, text: str) -> Json:
    """A message with one text."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


class Home:
    """A store below a temporary folder, with its neighbours.

    `expected` has the decoded bytes of every rollout that was put here, by path; `None` for one that can't be decoded.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "home"
        self.spool_folder = folder / "spool"
        self.expected: dict[str, bytes | None] = {}
        self._folder = folder
        self._stores: list[ThreadStore] = []
        self._seal: str | None = None
        (self.root / "sessions").mkdir(parents=True)
        for log in neighbours():
            self.put(log, stamp="2026-11-28T10-00-00")
        self._neighbours = self._answers(ThreadStore(str(self.root), Spool(str(folder / "first-spool"))))

    # Writing

    def name(self, log: Log, stamp: str = STAMP, suffix: str = ".jsonl") -> str:
        """The name that Codex gives to the rollout."""
        tail = "" if log.rollout == log.thread else f"_{log.rollout}"
        return f"rollout-{stamp}-{log.thread}{tail}{suffix}"

    def put(
        self, log: Log, *, stamp: str = STAMP, archived: bool = False, compressed: bool = False, folder: str = ""
    ) -> str:
        """Write a log; its path below the root."""
        day = stamp[:10].replace("-", "/")
        place = folder or ("archived_sessions" if archived else f"sessions/{day}")
        path = f"{place}/{self.name(log, stamp)}"
        content = bytes(log.content)
        if compressed:
            path += ".zst"
            content = zstandard.ZstdCompressor().compress(content)
        self.put_bytes(path, content)
        self.expected[path] = bytes(log.content)
        return path

    def put_bytes(self, path: str, content: bytes, decoded: bytes | None = None) -> str:
        """Write any file; `decoded` is what its raw view must show, by default its content."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        self.expected[path] = content if decoded is None else decoded
        self._seal = None
        return path

    def changed(self) -> None:
        """The test itself has changed the store."""
        self._seal = None

    # Reading

    def open(self, **spool: Any) -> ThreadStore:
        """The store, opened anew, with its folders read. From here on nothing in it may change."""
        if self._seal is None:
            self._seal = fingerprint(self.root)
        store = ThreadStore(str(self.root), Spool(str(self.spool_folder), **spool))
        store.refresh()
        self._stores.append(store)
        return store

    def read(self, log: Log | str, **spool: Any) -> Views:
        """The views of a thread in the store, opened anew."""
        return Views(self.open(**spool), log if isinstance(log, str) else log.thread)

    def check(self) -> None:
        """What must hold after every test: nothing was changed, raw is raw, neighbours are untouched."""
        store = self.open()
        for thread_id in store.thread_ids():
            for rollout in store.rollouts(thread_id):
                wanted = self.expected.get(rollout.path)
                if wanted is not None:
                    assert raw(store, rollout) == wanted, f"{rollout.path} is not shown byte for byte"
        assert self._answers(store) == self._neighbours, "a neighbour's output changed"
        assert fingerprint(self.root) == self._seal, "reading changed the store"
        if self.spool_folder.exists():
            assert not [name for name in os.listdir(self.spool_folder) if name.endswith(".partial")]

    def _answers(self, store: ThreadStore) -> dict[tuple[str, str], bytes]:
        threads = [log.thread for log in neighbours()]
        return {
            (thread, view.value): content(store.project(thread, view), store.root)
            for thread in threads
            for view in View
        }


class Case:
    """A log with a fault in its middle, in one of three dresses.

    `legacy` and `paginated` are read directly; in `ancestor` the paginated log is inherited whole by a fork, which is
    the thread that is read. A test writes turns and faults to `log`; `read` gives the views.
    """

    def __init__(self, home: Home, dress: str) -> None:
        self.home = home
        self.dress = dress
        self.mode = LEGACY if dress == LEGACY else PAGINATED
        self.log = Log(self.mode)
        self.path = f"sessions/2026/11/29/{home.name(self.log)}"
        self.own: tuple[str, ...] = ()

    def read(self) -> Views:
        """Write what there is, and open it."""
        assert self.home.put(self.log) == self.path
        if self.dress != ANCESTOR:
            return self.home.read(self.log)
        child = Log(PAGINATED, 2, base=self.log.position())
        child.turn("child")
        self.own = ("child",)
        self.home.put(child)
        return self.home.read(child)


def neighbours() -> list[Log]:
    """Sound threads: one of either mode, and one that inherits from the second."""
    legacy = Log(LEGACY, 0xA1)
    legacy.turn("legacy one")
    legacy.turn("legacy two")
    legacy.rolled_back(1)
    paginated = Log(PAGINATED, 0xA2)
    paginated.turn("paginated one")
    fork = Log(PAGINATED, 0xA3, base=paginated.position(), forked_from_id=paginated.thread)
    fork.turn("fork one")
    return [legacy, paginated, fork]


def content(projection: Projection, root: str) -> bytes:
    """All bytes of a projection. Slices are read from the files that it names, below `root`."""
    assert projection.extents is not None, projection.error
    return render(projection.extents, root)


def render(extents: Extents, root: str) -> bytes:
    """All bytes of some extents; also proves that their size is exact."""
    parts = []
    for part in extents.plan(0, extents.size):
        parts.append(_cut(extents, part, root) if isinstance(part, Slice) else part)
    data = b"".join(parts)
    assert len(data) == extents.size
    return data


def _cut(extents: Extents, part: Slice, root: str) -> bytes:
    source = extents.sources[part.source]
    with open(os.path.join(root, source.path), "rb") as file:
        status = os.fstat(file.fileno())
        assert (status.st_dev, status.st_ino) == (source.dev, source.ino)
        data = os.pread(file.fileno(), part.length, part.offset)
    assert len(data) == part.length
    assert part.offset + part.length <= source.limit
    return data


def raw(store: ThreadStore, rollout: RolloutFile) -> bytes:
    """The raw view of a rollout."""
    return content(store.project_rollout(rollout), store.root)


class Views:
    """What a store says of one thread."""

    def __init__(self, store: ThreadStore, thread: str) -> None:
        self.store = store
        self.thread_id = thread

    def bytes(self, view: View) -> Content:
        """The content of a derived file."""
        return content(self.store.project(self.thread_id, view), self.store.root)

    def lines(self, view: View) -> list[Json]:
        """The content of a derived JSONL file."""
        return [orjson.loads(line) for line in self.bytes(view).split(b"\n")[:-1]]

    def error(self, view: View) -> str:
        """The sentence that a view gives instead of content."""
        projection = self.store.project(self.thread_id, view)
        assert projection.extents is None, f"{view.value} was given: {content(projection, self.store.root)!r}"
        assert projection.error
        return projection.error

    def effective(self) -> list[str]:
        """The texts of the model's memory; each line must lie byte for byte in one of the rollouts."""
        logs = self._logs()
        lines = self.bytes(View.EFFECTIVE_HISTORY).split(b"\n")[:-1]
        for line in lines:
            assert any(line in log for log in logs), line
        return [text_of(orjson.loads(line)) for line in lines]

    def made(self) -> list[str]:
        """The texts of the model's memory, where a part of it was made and lies in no log."""
        return [text_of(item) for item in self.lines(View.EFFECTIVE_HISTORY)]

    def sent(self) -> list[str]:
        """The texts of what the next request would carry."""
        return [text_of(item) for item in self.lines(View.MODEL_INPUT)]

    def turns(self) -> list[tuple[str, str]]:
        """Id and status of the turns that count."""
        return [(turn["id"], turn["status"]) for turn in self.lines(View.TURNS) if turn["effective"]]

    def all_turns(self) -> list[tuple[str, str]]:
        """Id and status of all turns, those that a rollback took away, too."""
        return [(turn["id"], turn["status"]) for turn in self.lines(View.TURNS)]

    def problems(self) -> list[tuple[str, str, int | None, int | None]]:
        """Code, file, offset and length of all problems."""
        return [(p["code"], p["file"], p["offset"], p["length"]) for p in self.lines(View.PROBLEMS)]

    def codes(self) -> list[str]:
        """The codes of all problems."""
        return [problem[0] for problem in self.problems()]

    def thread(self) -> Json:
        """The content of `thread.json`."""
        page: Json = orjson.loads(self.bytes(View.THREAD))
        return page

    def uncertain(self) -> bool:
        """Whether `thread.json` says that a lost record could have changed what counts, and why."""
        replay = self.thread()["replay"]
        assert bool(replay["because"]) is replay["uncertain"]
        uncertain: bool = replay["uncertain"]
        return uncertain

    def full(self) -> list[Json]:
        """The lines of `full_history.jsonl`."""
        return self.lines(View.FULL_HISTORY)

    def full_items(self) -> list[str]:
        """The texts of the items in `full_history.jsonl`."""
        records = [line["record"] for line in self.full() if "record" in line]
        return [text_of(record["payload"]) for record in records if record["type"] == "response_item"]

    def recovered(self) -> list[str]:
        """The texts of the items that were found inside damaged lines; none of them is effective."""
        found = [line for line in self.full() if line.get("recovered")]
        assert not any(line["effective"] for line in found)
        return [text_of(line["record"]["payload"]) for line in found]

    def _logs(self) -> list[Content]:
        store = self.store
        logs = []
        for thread in store.thread_ids():
            for rollout in store.rollouts(thread):
                try:
                    logs.append(raw(store, rollout))
                except (StoreError, OSError):
                    continue
        return logs


def text_of(item: Json) -> str:
    """What a reader would recognise an item by."""
    if item.get("type") == "message":
        return "|".join(str(part.get("text", part["type"])) for part in item["content"])
    if "call_id" in item:
        return f"{item['type']} {item['call_id']} {item.get('output', '')}".strip()
    return str(item.get("type"))


def store_problems(store: ThreadStore) -> list[tuple[str, str]]:
    """Code and file of what is odd about the store as a whole."""
    lines = content(store.project_store(StoreView.PROBLEMS), store.root).split(b"\n")[:-1]
    return [(problem["code"], problem["file"]) for problem in map(orjson.loads, lines)]


def fingerprint(root: Path) -> str:
    """A hash over every name, kind, mode, time, link and byte below a folder."""
    digest = hashlib.blake2b()
    for path in _walk(root):
        status = os.lstat(path)
        facts = [os.path.relpath(path, root), status.st_mode, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        digest.update(repr(facts).encode("utf-8", "surrogateescape"))
        if stat.S_ISLNK(status.st_mode):
            digest.update(os.fsencode(os.readlink(path)))
        elif stat.S_ISREG(status.st_mode) and status.st_size < 1 << 24 and os.access(path, os.R_OK):
            digest.update(Path(path).read_bytes())
    return digest.hexdigest()


def _walk(root: Path) -> Iterator[str]:
    yield str(root)
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(folders + files):
            yield os.path.join(folder, name)


def pairs(*texts: str) -> list[str]:
    """Question and default answer of each turn."""
    return [part for text in texts for part in (text, f"re: {text}")]


def done(*texts: str) -> list[tuple[str, str]]:
    """Completed turns."""
    return [(f"turn-{text}", "completed") for text in texts]


def flat(parts: Iterable[Iterable[str]]) -> list[str]:
    """One list of several."""
    return [text for part in parts for text in part]
