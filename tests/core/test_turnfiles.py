"""The folders of single turns: together they hold every item and every word of a thread once, in order."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from threadstore import turnfiles
from threadstore.boundaries import is_envelope, is_visible_user
from threadstore.errors import StoreError
from threadstore.markdown import harmless
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore
from threadstore.turnfiles import Turns

from tests.core import threads
from tests.core.logs import THREAD, Log, Store, assistant, call, content, output, thread_id, user
from tests.corpus_store import CorpusStore

Json = dict[str, Any]
Folder = dict[str, bytes]
MEDIA = re.compile(r"\n*\*(?:Image|Audio)[^\n]*\*\n*")


def folders(store: ThreadStore, thread: str = THREAD) -> dict[str, Folder]:
    """The content of every file of every turn."""
    return {
        name: {file: content(store, made) for file, made in files.items()}
        for name, files in store.project_turn(thread).items()
    }


def items_of(store: ThreadStore, thread: str) -> Iterator[Json]:
    """The response items that a log has, in its order."""
    for row in _rows(content(store, store.project(thread, View.FULL_HISTORY))):
        if "record" in row and "recovered" not in row:
            record = row["record"]
            if record.get("type") == "response_item":
                yield record["payload"]


def _rows(data: bytes) -> list[Json]:
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def said(items: list[Json], role: str) -> str:
    """All that one side said, each text as it stands in a file."""
    texts = []
    for item in items:
        if item["type"] != "message" or item["role"] != role:
            continue
        if is_visible_user(item) if role == "user" else not is_envelope(item):
            text = "\n".join(part["text"] for part in item["content"] if "text" in part)
            texts.append(harmless(text).strip("\n"))
    return _squeezed("\n".join(texts))


def _squeezed(text: str) -> str:
    """Without empty lines and what is noted of images."""
    return re.sub(r"\n+", "\n", MEDIA.sub("\n", text)).strip("\n")


def test_stores_of_codex(corpus_store: CorpusStore, tmp_path: Path) -> None:
    """Items of all turns are those of the log; of a thread that only grew, byte for byte the model's memory. Each text
    of a person and of the model is in one folder; calls are numbered in order and hold what the log has.
    """
    store = ThreadStore(str(corpus_store.home), Spool(str(tmp_path / "spool")))
    for thread in store.thread_ids():
        try:
            made = folders(store, thread)
        except StoreError:
            assert store.project(thread, View.TURNS).extents is None
            continue
        rows = _rows(store.rendered(thread, View.TURNS))
        document = json.loads(store.rendered(thread, View.THREAD))
        if not rows:
            assert made == {}
            continue
        joined = b"".join(folder["items.jsonl"] for folder in made.values())
        counts = document["counts"]
        if not counts["checkpoints"] and not counts["rollbacks"]:
            assert joined == content(store, store.project(thread, View.EFFECTIVE_HISTORY))
        items = [item for item in items_of(store, thread) if item["type"] != "ghost_snapshot"]
        assert [item for item in _rows(joined) if item["type"] != "agent_message"] == [
            item for item in items if item["type"] != "agent_message"
        ]
        for role, file in (("user", "user.md"), ("assistant", "assistant.md")):
            found = "\n".join(folder[file].decode().strip("\n") for folder in made.values() if folder[file])
            assert _squeezed(found) == said(items, role)
        check_calls(made, items)
        for row, folder in zip(rows, made.values(), strict=True):
            assert json.loads(folder["turn.json"]) == row
            assert json.loads(folder["usage.json"]) == row["usage"]


def check_calls(made: dict[str, Folder], items: list[Json]) -> None:
    """The calls of the folders are those of some items."""
    asked = [item for item in items if item["type"] in ("function_call", "custom_tool_call", "local_shell_call")]
    given = {item.get("call_id"): item["output"] for item in items if item["type"].endswith("_call_output")}
    found = []
    for folder in made.values():
        names = [file for file in folder if file.startswith("calls/")]
        assert names == sorted(names)
        for number, name in enumerate(names, 1):
            document = json.loads(folder[name])
            assert (document["number"], name[:10]) == (number, f"calls/{number:03}-")
            found.append(document)
    calls = [document for document in found if document["arguments"] is not None]
    assert [document["call_id"] for document in calls] == [item.get("call_id") for item in asked]
    for document, item in zip(calls, asked, strict=True):
        assert document["arguments"] == item.get("arguments", item.get("input", item.get("action")))
        assert document["output"] in (given.get(item.get("call_id")), None)
    answered = [document["call_id"] for document in found if document["effect"] == "recorded"]
    assert sorted(map(str, answered)) == sorted(map(str, given))


@given(threads.logs())
def test_any_log(tmp_path_factory: pytest.TempPathFactory, log: Log) -> None:
    """Whatever order the records come in, every item of the history stands in one turn, in order."""
    store = Store(tmp_path_factory.mktemp("log"), log)
    made = folders(store.store)
    names = list(made)
    assert names == Turns.of(store.read(View.TURNS)).names
    assert sorted(set(names)) == sorted(names)
    if not names:
        return
    joined = _rows(b"".join(folder["items.jsonl"] for folder in made.values()))
    rows = store.rows(View.FULL_HISTORY)
    expected = [
        row["record"] for row in rows if row["record"]["type"] in ("response_item", "inter_agent_communication")
    ]
    expected = [one for one in expected if one["payload"].get("role") != "system"]
    assert len(joined) == len(expected)
    assert all(
        item == one["payload"] or one["type"] != "response_item" for item, one in zip(joined, expected, strict=True)
    )


def test_names(tmp_path: Path) -> None:
    """A turn that was taken back is named after the one that stands in its place now; numbers are found from both
    ends.
    """
    log = Log().turn("a", "one").turn("b", "two").turn("c", "three").roll_back(2).turn("d", "four").turn("e", "x")
    log.roll_back(1)
    store = Store(tmp_path, log)
    turns = Turns.of(store.read(View.TURNS))
    assert turns.names == ["0001", "0002~1", "0002~2", "0002", "0003~1"]
    made = folders(store.store)
    assert [made[name]["user.md"] for name in turns.names] == [b"one\n", b"two\n", b"three\n", b"four\n", b"x\n"]
    assert [json.loads(made[name]["turn.json"])["effective"] for name in turns.names] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert json.loads(made["0003~1"]["turn.json"])["why"] == "rolled_back"
    assert turns.called("last") == "0002"
    assert [turns.number(number) for number in (1, 2, 3, 0, -1, -2, -3)] == [
        "0001",
        "0002",
        None,
        None,
        "0002",
        "0001",
        None,
    ]


def test_hostile_names_and_texts(tmp_path: Path) -> None:
    """A tool's name can't leave the folder, and no text steers a terminal."""
    items = [
        call("c", "../../etc/passwd\n\x1b[31m"),
        call("d", ""),
        call("e", "x" * 400),
        output("d"),
        assistant("\x1b]0;t\x07"),
    ]
    made = folders(Store(tmp_path, Log().turn("a", "do\u202e it\x1b[2J", *items)).store)["0001"]
    names = sorted(file.removeprefix("calls/") for file in made if file.startswith("calls/"))
    assert names[:2] == ["001-_._.._etc_passwd__[31m.json", "002-_.json"]
    assert all("/" not in name and len(name.encode()) < 150 for name in names)
    assert json.loads(made[f"calls/{names[0]}"])["name"] == "../../etc/passwd\n\x1b[31m"
    assert json.loads(made[f"calls/{names[0]}"])["effect"] == "unknown"
    assert made["user.md"] == "do\ufffd it\u241b[2J\n".encode()
    assert made["assistant.md"] == "\u241b]0;t\u2407\n".encode()


def test_large_outputs_and_texts(tmp_path: Path) -> None:
    """An output of many megabytes is there as a whole and none of it in memory; a text keeps its ends."""
    huge = 'line \\ "quoted" é\n' * 500_000
    said = "word " * 40_000
    log = Log(True).turn("a", said, call("c"), output("c", huge), assistant(huge))
    store = Store(tmp_path, log)
    files = store.store.project_turn(THREAD)["0001"]
    assert sum(one.extents.weight for one in files.values() if one.extents is not None) < 2 * turnfiles.MESSAGE
    document = json.loads(content(store.store, files["calls/001-shell.json"]))
    assert document["output"] == huge
    assert content(store.store, files["user.md"]).decode() == f"{said}\n"
    assert len(huge.encode()) > turnfiles.MESSAGE
    answer = content(store.store, files["assistant.md"]).decode()
    assert answer.startswith(huge[:1000])
    assert answer.rstrip().endswith(huge[-1000:].rstrip())
    assert "bytes are left out; the whole is in sessions/" in answer
    assert turnfiles.MESSAGE - 1000 < len(answer.encode()) < turnfiles.MESSAGE + 1000


def test_a_turn_of_a_large_log_reads_that_turn(tmp_path: Path) -> None:
    """Not the rest of the log, however large it is."""
    log = Log(True)
    for number in range(40):
        log.turn(f"t{number}", f"say {number}", assistant("x" * 100_000))
    store = Store(tmp_path, log)
    turns = Turns.of(store.read(View.TURNS))
    with store.store._lineages.open_thread(store.store.head(THREAD)) as lineage:
        (made,) = turnfiles.make(turns, lineage, "0020").values()
        assert lineage.bytes_read < 500_000
    assert content(store.store, made["user.md"]) == b"say 19\n"


CHANGES: dict[str, Json] = {
    "/new.txt": {"type": "add", "content": "one\ntwo"},
    "/old.txt": {"type": "delete", "content": "gone\n"},
    '/a file\n"x".txt': {"type": "add", "content": "odd\n"},
    "/moved.txt": {"type": "update", "unified_diff": "@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "move_path": "/there.txt"},
}


@pytest.mark.parametrize("paginated", [False, True])
def test_patches_as_they_were_applied(tmp_path: Path, *, paginated: bool) -> None:
    """What `git apply` makes of the file is what the log says; a call whose event is there is not told twice."""
    asked = {
        "type": "custom_tool_call",
        "name": "apply_patch",
        "call_id": "c",
        "input": "*** Begin Patch\n*** End Patch",
    }
    log = Log(paginated).start("a").item(user("x")).said("x", "a").item(asked)
    if paginated:
        item = {"type": "FileChange", "id": "c", "changes": CHANGES, "status": "completed"}
        log.event("item_completed", thread_id=THREAD, turn_id="a", item=item, completed_at_ms=0)
    else:
        log.event("patch_apply_end", call_id="c", turn_id="a", stdout="", stderr="", success=True, changes=CHANGES)
    made = folders(Store(tmp_path / "store", log.complete("a")).store)["0001"]
    work = tmp_path / "work"
    work.mkdir()
    (work / "old.txt").write_text("gone\n")
    (work / "moved.txt").write_text("a\nb\n")
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    text = made["diff.patch"].replace(b"+++ b/there.txt", b"+++ b/moved.txt")  # git renames by headers of its own only
    subprocess.run(["git", "apply", "-"], input=text, cwd=work, check=True, capture_output=True)
    assert {path.name: path.read_text() for path in work.iterdir()} == {
        "new.txt": "one\ntwo",
        "moved.txt": "a\nc\n",
        'a file\n"x".txt': "odd\n",
    }


def test_patches_of_old_logs(tmp_path: Path) -> None:
    """Where only calls tell of changes, their hunks are as a diff has them; those that failed are not shown."""
    hunks = "*** Update File: f.txt\n@@ def x\n a\n-b\n+c\n+d\n@@\n-e\n"
    patch = f"*** Begin Patch\n{hunks}*** Add File: n.txt\n+n\n*** End Patch"
    shell = json.dumps({"command": ["bash", "-lc", f"apply_patch <<'EOF'\n{patch}\nEOF\n"]})
    failed = json.dumps({"output": "no", "metadata": {"exit_code": 1}})
    items = [
        *(call("c", arguments=shell), output("c", "ok")),
        *({"type": "custom_tool_call", "name": "apply_patch", "call_id": "d", "input": patch}, output("d", failed)),
        assistant("done"),
    ]
    made = folders(Store(tmp_path, Log().turn("a", "x", *items)).store)["0001"]
    assert made["diff.patch"].decode().splitlines() == [
        "# Asked for by a call; the log doesn't tell lines, nor what became of it.",
        *("--- a/f.txt", "+++ b/f.txt", "@@ -1,2 +1,3 @@", " a", "-b", "+c", "+d", "@@ -3,1 +4,0 @@", "-e"),
        *("--- /dev/null", "+++ b/n.txt", "@@ -0,0 +1,1 @@", "+n"),
        "# A patch that failed is not shown.",
    ]
    assert "diff.patch" not in folders(Store(tmp_path, Log().turn("a", "x")).store)["0001"]


def test_forks_share_what_they_inherited(tmp_path: Path) -> None:
    """A turn that spans two files of a lineage is one turn; what was inherited is read from where it lies."""
    parent = Log(True, thread_id(1)).turn("a", "one")
    parent.start("b").item(user("two")).said("two", "b")
    fork = Log(True, thread_id(2), base=parent.end()).item(assistant("here")).complete("b").turn("c", "three")
    made = folders(Store(tmp_path, parent, fork).store, thread_id(2))
    assert [(folder["user.md"], folder["assistant.md"]) for folder in made.values()] == [
        (b"one\n", b"re: one\n"),
        (b"two\n", b"here\n"),
        (b"three\n", b"re: three\n"),
    ]
