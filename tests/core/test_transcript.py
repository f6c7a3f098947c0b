"""`transcript.md`: what people read of a thread, and what hostile text can't do in it."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadstore import transcript
from threadstore.boundaries import SUMMARY_PREFIX
from threadstore.markdown import fenced, harmless, word
from threadstore.projection import View

from tests.core.logs import (
    THREAD,
    Log,
    Store,
    assistant,
    call,
    content,
    context,
    developer,
    open_store,
    output,
    rollout_name,
    thread_id,
    user,
)
from tests.corpus_store import CorpusStore

Json = dict[str, Any]
PATCH = "*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch\n"
_MARKS = frozenset((0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)))  # of direction, of lines
_HEAD = "# Transcript\n\n*Made from the log by rolloutfs. Times are UTC; what lies in a block is quoted.*\n\n"


def text(folder: Path, *logs: Log, thread: str = THREAD) -> str:
    """The transcript of a thread."""
    return Store(folder / "home", *logs).read(View.TRANSCRIPT, thread).decode()


def headings(shown: str) -> list[str]:
    """The titles of turns and of what happened between them, without times, statuses and models."""
    return [re.sub(r" · (completed|interrupted|failed|m|\d{4}-.*)\b", "", line[3:]) for line in _lines(shown, "## ")]


def _lines(shown: str, start: str) -> list[str]:
    return [line for line in shown.split("\n") if line.startswith(start)]


def message(*parts: Json) -> Json:
    """A person's message of these parts."""
    return {"type": "message", "role": "user", "content": list(parts)}


def everything() -> Log:
    """A legacy thread in which all that a transcript tells happens."""
    log = Log()
    log.start("a").add("turn_context", context("gpt-5", turn="a"))
    log.item(developer("<permissions instructions> none"))
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8gd29ybGQ="}
    log.item(message({"type": "input_text", "text": "List *the* files"}, image)).said("List *the* files", "a")
    log.item({"type": "reasoning", "summary": [{"type": "summary_text", "text": "I should look"}]})
    log.item(call("1", "exec_command", arguments='{"cmd":"ls -a","timeout":5}'), call("2", "lookup"))
    log.item(output("2", '{"output":"two\\n","metadata":{"exit_code":3,"duration_seconds":0.1}}'))
    log.item(output("1", "Chunk ID: 1\nProcess exited with code 0\nOutput:\na\n"))
    log.item({"type": "custom_tool_call", "name": "apply_patch", "call_id": "3", "input": PATCH})
    log.item(assistant("Done:\n\n```sh\nls\n```")).complete("a")
    log.turn("b", "Try this", model="gpt-5")
    log.turn("c", "And that", model="gpt-5").roll_back(1)
    log.start("d").item(user("Shorter")).said("Shorter", "d")
    kept = [user("List"), assistant("short")]
    log.compacted(f"{SUMMARY_PREFIX}\nAll is listed", replacement_history=kept, window_number=1)
    log.item(assistant("Go on")).event("task_complete", turn_id="d", last_agent_message=None, error={"message": "Oops"})
    return log


EXPECTED = (
    _HEAD
    + """\
## Turn 1 · before the checkpoint · completed · gpt-5 · 2026-11-29 10:00:01

<details><summary>Context, role developer · 31 bytes</summary>

  ```text
  <permissions instructions> none
  ```

</details>

### User

  ```text
  List *the* files
  ```

*Image: image/png, 11 bytes*

### Reasoning

  ```text
  I should look
  ```

### Call 1: exec_command

  ```sh
  ls -a
  ```

  ```json
  {"timeout":5}
  ```

### Call 2: lookup

  ```json
  {}
  ```

<details><summary>Result of call 2: lookup · exit code 3 · 4 bytes</summary>

  ```text
  two
  ```

</details>

<details><summary>Result of call 1: exec_command · exit code 0 · 49 bytes</summary>

  ```text
  Chunk ID: 1
  Process exited with code 0
  Output:
  a
  ```

</details>

### Call 3: apply_patch

  ```diff
  *** Begin Patch
  *** Add File: a.txt
  +hello
  *** End Patch
  ```

### Assistant

  ````text
  Done:

  ```sh
  ls
  ```
  ````

*No result of call 3 (apply_patch) follows: its effect is unknown.*

## Turn 2 · before the checkpoint · completed · gpt-5 · 2026-11-29 10:00:14

### User

  ```text
  Try this
  ```

### Assistant

  ```text
  re: Try this
  ```

## Turn · taken back · completed · gpt-5 · 2026-11-29 10:00:20

### User

  ```text
  And that
  ```

### Assistant

  ```text
  re: And that
  ```

## Rollback · 2026-11-29 10:00:26

*Turns taken back: the last 1.*

## Turn 3 · begun before the checkpoint · failed · 2026-11-29 10:00:27

*It failed:*

  ```text
  Oops
  ```

### User · before the checkpoint

  ```text
  Shorter
  ```

## Checkpoint · in force · 2026-11-29 10:00:30

*The model's memory was replaced by 2 items.*

  ```text
  All is listed
  ```

## Turn 3 · begun before the checkpoint · continued

### Assistant

  ```text
  Go on
  ```

"""
)


def test_all_that_happened(tmp_path: Path) -> None:
    """Turns, what was said and done in them, and what became of it."""
    assert text(tmp_path, everything()) == EXPECTED


def test_every_corpus_thread_is_shown(corpus_store: CorpusStore) -> None:
    """Each turn of `turns.jsonl` has its heading, each visible item of the history its text, and all is harmless."""
    store = open_store(corpus_store.home)
    for thread in store.thread_ids():
        shown = content(store, store.project(thread, View.TRANSCRIPT)).decode()
        assert harmless(shown) == shown
        assert not re.search("base64,|gAAAA", shown)
        rows = [json.loads(row) for row in content(store, store.project(thread, View.TURNS)).split(b"\n")[:-1]]
        numbers = [
            int(number) for number in re.findall(r"^## Turn (\d+)(?!.* continued$|.* after its end$)", shown, re.M)
        ]
        assert numbers == [row["number"] for row in rows if row["effective"]]
        assert shown.count("\n## Turn · taken back") >= sum(not row["effective"] for row in rows)
        for line in content(store, store.project(thread, View.EFFECTIVE_HISTORY)).split(b"\n")[:-1]:
            item = json.loads(line)
            if item["type"] == "message" and item["role"] == "assistant" and len(item["content"]) == 1:
                assert indent(item["content"][0]["text"], "  ").rstrip("\n") in shown
        assert content(store, store.project_all(thread)[View.TRANSCRIPT]).decode() == shown


HOSTILE = [
    "\x1b]0;title\x07\x1b[2J",
    "```\n## Turn 9 · taken back",
    "`````\n</details>\n<script>alert(1)</script>",
    "line\r\nend\rover",
    "\u202egnp.exe \u2066x\u2069",
    "\x00\x7f\x9b31m",
    "![](https://example.org/secret.png)",
    "*** Begin Patch\n```\n# Transcript",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_stays_in_its_block(tmp_path: Path, hostile: str) -> None:
    """Whatever a text is, and wherever it comes from, no line but ours begins at the margin, and no fence is left."""
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": hostile}]}
    custom = {"type": "custom_tool_call", "name": hostile, "call_id": "c", "input": hostile}
    log = Log().turn("t", hostile, item, call("1", hostile, arguments=hostile), output("1", hostile), custom)
    log.item(assistant(hostile), developer(hostile)).compacted(hostile).add("turn_context", context(hostile))
    shown = text(tmp_path, log)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066\u2069]", shown)
    fence = None
    for line in shown.split("\n"):
        opened = re.fullmatch(r"  (`{3,})(\w*)", line)
        if fence is None:
            fence = opened[1] if opened else None
            assert opened or line[:1] in ("", "#", "*", "<"), line
            assert not re.search(r"script>|!\[|^## Turn 9", line)
        elif opened and len(opened[1]) >= len(fence):
            assert opened[2] == ""
            fence = None
        else:
            assert line == "" or line.startswith("  ")
    assert fence is None


def test_text_in_a_block_is_as_it_was() -> None:
    """Nothing is done to text that is harmless, but that it is indented."""
    plain = "a\n\n\n\n\tb  \n  c `d` 東京 é 👩‍🚀"
    assert fenced(plain, "x").decode() == "  ```x\n  a\n\n\n\n  \tb  \n    c `d` 東京 é 👩‍🚀\n  ```\n\n"
    assert word("a.b/c-d_é <b>`*") == "a.b/c-d_é \ufffdb\ufffd\ufffd\ufffd"


_ODD = st.sampled_from(
    "a\n\t é→😀\r\x00\x08\x0b\x1b\x7f\x80\x9f\xa0\u061b\u061c\u200d\u200e\u200f\u2027\u2028\u202e\u202f"
    "\u2065\u2066\u2069\u206a\ud800"
)


@given(text=st.lists(_ODD | st.just("\r\n") | st.characters()).map("".join))
def test_what_is_hostile(text: str) -> None:
    """Each character by itself: it stays, or a picture or U+FFFD is there instead. A newline loses its return."""
    shown = ""
    for character in text.replace("\r\n", "\n"):
        code = ord(character)
        if code < 0x20 and character not in "\t\n":
            shown += chr(0x2400 + code)
        elif code == 0x7F:
            shown += "\u2421"
        elif code in _MARKS or 0x80 <= code <= 0x9F or 0xD800 <= code <= 0xDFFF:
            shown += "\ufffd"
        else:
            shown += character
    assert harmless(text) == shown


def forked(paginated: bool) -> tuple[Log, Log, Log]:
    """A thread, and two forks of it that went on in different ways."""
    log = Log(paginated)
    for name in "ab":
        log.turn(name, f"first {name}", call(name, "shell"), output(name, "x" * 40_000), assistant("ok"), model="m")
    forks = []
    for number in (1, 2):
        meta = {"forked_from_id": THREAD}
        if paginated:
            fork = Log(True, thread_id(number), base=log.end(), meta=meta)
        else:  # copied, at another time
            fork = Log(False, thread_id(number), meta=meta)
            stamp = b'"timestamp":"2026-11-30T0%d' % number
            fork.lines += [line.replace(b'"timestamp":"2026-11-29T10', stamp) for line in log.lines]
            fork.event(
                "thread_settings_applied", thread_id=thread_id(number), thread_settings={"model": "m", "cwd": "/"}
            )
        forks.append(fork.turn("c", f"fork {number}", model=f"m{number}"))
    return log, forks[0], forks[1]


@pytest.mark.parametrize("paginated", [True, False], ids=["paginated", "legacy"])
def test_forks_differ_after_their_fork(tmp_path: Path, paginated: bool) -> None:
    """`diff` of two forks tells only what each of them did; what was copied names the copy that it lies in."""
    log, one, other = forked(paginated)
    store = Store(tmp_path / "home", log, one, other)
    first, second, origin = (
        store.read(View.TRANSCRIPT, thread).decode().split("\n") for thread in (one.thread, other.thread, THREAD)
    )
    shared = first.index("## Fork")
    assert f"thread {THREAD}.*" in first[shared + 2]
    changed = [line for line in difflib.ndiff(first[:shared], second[:shared]) if not line.startswith("  ")]
    if paginated:
        assert changed == []
        assert first[:shared] == origin[:shared]
    else:
        assert all("bytes are left out; the whole is in" in line for line in changed if not line.startswith("?"))
    assert first[shared:-3] != second[shared:-3]
    assert (f"{log.name}:" in "\n".join(first[:shared])) == paginated


def test_a_revert_is_marked(tmp_path: Path) -> None:
    """Where a thread was taken back it is said where that lies which had followed."""
    old = Log(True).turn("a", "kept").turn("b", "dropped")
    new = Log(True, rollout=thread_id(9), base=old.end(6)).turn("c", "instead")
    shown = Store(tmp_path / "home", old).root
    store = Store(shown)
    store.write(rollout_name(THREAD, thread_id(9), "2026-11-29T11-00-00"), new.data)
    found = store.read(View.TRANSCRIPT).decode()
    assert headings(found) == ["Turn 1", "Revert", "Turn 2"]
    assert f"What had followed: `{old.name}:{old.offset(6)}`" in found
    assert "dropped" not in found


def test_the_undo_of_a_revert_is_marked(tmp_path: Path) -> None:
    """A thread that goes on from the very end of its older log was taken forward again."""
    old = Log(True).turn("a", "kept").turn("b", "back again")
    new = Log(True, rollout=thread_id(9), base=old.end()).turn("c", "next")
    store = Store(Store(tmp_path / "home", old).root)
    store.write(rollout_name(THREAD, thread_id(9), "2026-11-29T11-00-00"), new.data)
    found = store.read(View.TRANSCRIPT).decode()
    assert headings(found) == ["Turn 1", "Turn 2", "Undo of a revert", "Turn 3"]
    assert "back again" in found


def test_a_fork_of_nothing(tmp_path: Path) -> None:
    """A fork from before the first turn inherits nothing, and says so at once."""
    assert headings(text(tmp_path, Log(True, meta={"forked_from_id": thread_id(7)}).turn("a", "x"))) == [
        "Fork",
        "Turn 1",
    ]


def test_marks_of_a_rollback(tmp_path: Path) -> None:
    """Turns are numbered as in turns.jsonl, and those that were taken back say so."""
    log = Log().turn("a", "1").turn("b", "2").turn("c", "3").roll_back(2).turn("d", "4")
    assert headings(text(tmp_path, log)) == ["Turn 1", *["Turn · taken back"] * 2, "Rollback", "Turn 2"]


def test_what_the_turn_list_does_not_know(tmp_path: Path) -> None:
    """Codex's list of a paginated thread passes over a rollback that its memory follows: then the items say so."""
    shown = text(tmp_path, Log(True).turn("a", "one").turn("b", "two").roll_back(1))
    assert headings(shown) == ["Turn 1", "Turn 2", "Rollback"]
    assert _lines(shown, "### ") == ["### User", "### Assistant", "### User · taken back", "### Assistant · taken back"]


def test_marks_of_checkpoints(tmp_path: Path) -> None:
    """The newest checkpoint is in force; what a summary of the old kind keeps is still remembered."""
    log = Log().turn("a", "one").compacted("S1").turn("b", "two").compacted("S2").turn("c", "three")
    shown = text(tmp_path, log)
    marks = [line for line in _lines(shown, "## ") if "Checkpoint" in line]
    assert [mark.split(" · ")[1] for mark in marks] == ["before the checkpoint", "in force"]
    assert _lines(shown, "### ")[:4] == [
        "### User · still remembered", "### Assistant", "### User · still remembered", "### Assistant"
    ]  # fmt: skip


def test_long_texts_keep_their_ends(tmp_path: Path) -> None:
    """Of an output 16 KiB are shown, of a message 64 KiB, and where all of it is; the place is that of the record."""
    log = Log().turn("a", "u" * 70_000, call("1"), output("1", "b" * 10_000 + "é" * 10_000), assistant("a" * 65_536))
    shown = text(tmp_path, log)
    left = re.findall(r"\*… ([\d,]+) of ([\d,]+) bytes are left out; the whole is in `(.*):(\d+)` …\*", shown)
    assert [(missing, size) for missing, size, _, _ in left] == [("4,464", "70,000"), ("13,616", "30,000")]
    for (_, _, path, offset), needle in zip(left, (b'"text":"uuu', b'"output":"bbb'), strict=True):
        assert needle in (tmp_path / "home" / path).read_bytes()[int(offset) :].split(b"\n")[0]
    assert f"  {'b' * 8192}\n" in shown
    assert f"  {'é' * 4096}\n" in shown
    assert f"  {'a' * 65_536}\n" in shown


@pytest.mark.parametrize("kind", ["image", "text", "output"])
def test_items_of_megabytes(tmp_path: Path, kind: str) -> None:
    """A line that is too long to be decoded is shown like any other: by its ends, an image by its size."""
    size = 6 << 20
    url = {"type": "input_image", "image_url": "data:image/png;base64," + "QUJD" * (size // 4)}
    items = {"image": message(url), "text": user("x" * size), "output": output("c", "y" * size)}
    shown = text(tmp_path, Log().turn("a", "hi", call("c"), items[kind]))
    assert len(shown) < 200_000
    expected = {
        "image": f"*Image: image/png, {size * 3 // 4:,} bytes*",
        "text": f"{size - 65_536:,} of {size:,} bytes are left out",
        "output": f"· {size:,} bytes</summary>",
    }
    assert expected[kind] in shown


def test_old_turns_are_left_out_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thread that is too large what counts no longer goes first, then what is oldest; the file says so."""
    log = Log()
    for number in range(10):
        log.turn(str(number), f"text {number} {'x' * 1000}")
    log.roll_back(4).turn("last", "text last")
    whole = text(tmp_path, log)
    assert "## Left out" not in whole
    monkeypatch.setattr(transcript, "LARGEST", 14_000)
    shown = text(tmp_path, log)
    assert headings(shown) == [
        "Left out",
        "Turn 3 · continued",
        "Turn 4",
        "Turn 5",
        "Turn 6",
        "Left out",
        "Turn 7",
    ]
    assert "text 0" not in shown
    assert "text 5" in shown
    assert "text 6" not in shown
    for path, offset in re.findall(r"from `(.*):(\d+)` on", shown):
        assert (tmp_path / "home" / path).read_bytes()[int(offset) :].startswith(b'{"timestamp"')
    monkeypatch.setattr(transcript, "LARGEST", 30_000)
    assert "text 9" in text(tmp_path, log)


def test_a_turn_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of a million items is cut as well: the newest of them are shown."""
    monkeypatch.setattr(transcript, "LARGEST", 10_000)
    log = Log().turn("t", "go", *(assistant(f"step {number:03}") for number in range(200)))
    shown = text(tmp_path, log)
    steps = re.findall(r"step (\d+)", shown)
    assert steps == [f"{number:03}" for number in range(200 - len(steps), 200)]
    assert 5 < len(steps) < 30
    assert headings(shown) == ["Left out", "Turn 1 · continued"]


def test_damage_is_told_where_it_is(tmp_path: Path) -> None:
    """A torn line may have been a message; settings that Codex no longer takes say nothing to a reader."""
    log = Log().turn("a", "one").add("turn_context", {"cwd": "/", "sandbox_policy": {"mode": "x"}})
    log.lines.append(log.lines[-2][:40] + b"\n")
    place = log.offset(len(log.lines) - 1)
    shown = text(tmp_path, log.turn("b", "two"))
    assert _lines(shown, "*A damaged") == [f"*A damaged line of 40 bytes was passed over: `{log.name}:{place}`*"]


def test_the_same_from_one_process_to_the_next(tmp_path: Path) -> None:
    """The text and its generation follow from the log alone; an added turn makes another generation."""
    log = everything()
    home = Store(tmp_path / "home", log)
    made = [open_store(home.root).project(THREAD, View.TRANSCRIPT) for _ in range(2)]
    assert made[0].generation == made[1].generation
    before = home.read(View.TRANSCRIPT)
    home.write(log.name, log.turn("z", "more").data)
    grown = home.read(View.TRANSCRIPT)
    assert b"more" in grown
    assert home.store.project(THREAD, View.TRANSCRIPT).generation != made[0].generation
    assert before == content(open_store(home.root), made[0])
    assert content(open_store(home.root), open_store(home.root).project(THREAD, View.TRANSCRIPT)) == grown


def test_a_broken_lineage_has_none(tmp_path: Path) -> None:
    """Without what it was forked from nobody can say which turns a thread has."""
    lost = Log(True, base=(thread_id(5), 3, 100)).turn("a", "x")
    projection = Store(tmp_path / "home", lost).store.project(THREAD, View.TRANSCRIPT)
    assert projection.extents is None
    assert "missing source rollout" in (projection.error or "")


def test_a_checkpoint_that_was_taken_back(tmp_path: Path) -> None:
    """One in a turn that was taken back replaced nothing: what lies before it counts."""
    log = Log().turn("a", "one").start("b").item(user("two")).said("two", "b")
    log.compacted("S", replacement_history=[user("two")], window_number=1).complete("b").roll_back(1)
    shown = text(tmp_path, log)
    assert headings(shown) == ["Turn 1", "Turn · taken back", "Checkpoint · taken back", "Rollback"]
    assert "remembered" not in shown


def test_turns_of_old_logs(tmp_path: Path) -> None:
    """Until the end of 2025 only an event after a person's message began a turn: the message belongs to it."""
    log = Log().item(user("<environment_context></environment_context>"))
    for name in "ab":
        log.item(user(name)).said(name).item(assistant(name.upper()))
    shown = text(tmp_path, log)
    found = [line.split(" · ")[0] for line in shown.split("\n") if line.startswith("#")][1:]
    assert found == ["## Turn 1", "### User", "### Assistant", "## Turn 2", "### User", "### Assistant"]
