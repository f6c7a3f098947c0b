"""A mount with --mask-secrets: no key in what people read, and everything else as it is in the log."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest

from tests.keys import KEYS, pieces, shown
from tests.mount.conftest import Lab, until
from tests.mount.control_lab import PAGINATED, lines, shell, stock
from tests.tree.sample import line, message

LARGE = 700  # messages that make a log too large to be read by the serving process itself


class Talk(NamedTuple):
    """Two threads in which somebody told all keys: one that is small, and one that is not."""

    small: str
    large: str


@pytest.fixture
def talk(lab: Lab, patterns: Path) -> Talk:
    """Each key is said by the person and by the assistant, and printed by a tool."""
    shutil.copytree(patterns, lab.folder / "cache/rolloutfs/patterns")
    small = lab.sample.add(1, "marker: hello")
    large = lab.sample.add(2, *(f"turn {number} " * 120 for number in range(LARGE)))
    for thread in (small, large):
        with lab.sample.path(thread).open("ab") as file:
            for number, kind in enumerate(KEYS):
                file.write(line("event_msg", {"type": "task_started", "turn_id": f"{thread}-{number}"}))
                file.write(message(f"marker: this is mine: {shown(kind)}, keep it."))
                file.write(message(f"marker: you said ({shown(kind)}).", "assistant"))
                call = {"type": "function_call", "call_id": f"c{number}", "name": "exec_command"}
                file.write(line("response_item", call | {"arguments": orjson.dumps({"cmd": shown(kind)}).decode()}))
                output = {"type": "function_call_output", "call_id": f"c{number}", "output": f"marker\n{shown(kind)}\n"}
                file.write(line("response_item", output))
    return Talk(small, large)


def secrets_in(text: str) -> list[str]:
    """The kinds of which something is seen."""
    return [kind for kind in KEYS if any(piece in text for piece in pieces(kind))]


def whole(folder: Path) -> Path:
    """The folder of a search, once the index has everything."""
    until(lambda: "incomplete.json" not in os.listdir(folder), "the index has everything")
    return folder


@pytest.mark.parametrize("option", ["--index", "--no-index"])
def test_no_secret_for_people(option: str, lab: Lab, talk: Talk) -> None:
    """Transcripts, turns, searches and names have none, with exact sizes, also once the index knows the thread."""
    lab.mount(option, "--mask-secrets")
    for _ in range(2):
        for thread in talk:
            folder = lab.thread(thread)
            size = (folder / "transcript.md").stat().st_size
            text = (folder / "transcript.md").read_text()
            assert len(text.encode()) == size
            assert secrets_in(text) == []
            assert text.count("[masked: ") >= 4 * len(KEYS)
            for number in range(1, len(KEYS) + 1):
                turn = folder / "turns" / str(-number)
                for name in ("user.md", "assistant.md"):
                    said = (turn / name).read_text()
                    assert secrets_in(said) == []
                    assert "[masked: " in said
                    assert (turn / name).stat().st_size == len(said.encode())
        hits = (whole(lab.mountpoint / "search" / "marker") / "hits.jsonl").read_text()
        assert secrets_in(hits) == []
        assert hits.count("[masked: ") >= 2 * 3 * len(KEYS)
        assert all(orjson.loads(hit)["snippet"] for hit in hits.splitlines())
    log = lab.sample.path(talk.large).read_bytes()
    assert (lab.thread(talk.large) / "rollouts" / lab.sample.path(talk.large).name).read_bytes() == log
    assert secrets_in((lab.thread(talk.small) / "effective_history.jsonl").read_text().replace("\\n", "\n")) == list(
        KEYS
    )


def test_an_index_of_both(lab: Lab, talk: Talk) -> None:
    """Mounts with and without it share an index, and each shows its own; logs that grow are followed."""
    seen: list[list[str]] = []
    for options in ((), ("--mask-secrets",), ("--no-mask-secrets",), ("-o", "mask_secrets")):
        lab.mount(*options)
        whole(lab.mountpoint / "search" / "marker")
        for thread in talk:
            lab.sample.append(thread, f"one more: {shown('groq')}")
            texts = [(lab.thread(thread) / "transcript.md").read_text()]
            texts.append((lab.thread(thread) / "turns/last/user.md").read_text())
            assert ("[masked: " in texts[0]) is (secrets_in("".join(texts)) == [])
            seen.append(secrets_in("".join(texts)))
        seen.append(secrets_in((lab.mountpoint / "search" / "marker" / "hits.jsonl").read_text()))
        lab.unmount()
    everything = [*KEYS]
    assert [bool(kinds) for kinds in seen] == [True] * 3 + [False] * 3 + [True] * 3 + [False] * 3
    assert everything in seen


def test_names(lab: Lab, patterns: Path) -> None:
    """No link of a view or of a search has a piece of a key in its name; the other words are there."""
    shutil.copytree(patterns, lab.folder / "cache/rolloutfs/patterns")
    for number, kind in enumerate(KEYS):
        thread = lab.sample.add(number, f"look {shown(kind)}")
        with lab.sample.path(thread).open("ab") as file:
            file.write(line("event_msg", {"type": "user_message", "message": f"look {shown(kind)}"}))
    lab.mount("--mask-secrets")
    whole(lab.mountpoint / "search" / "look")
    names = [
        *(name for view in ("recent", "by-name") for name in os.listdir(lab.mountpoint / view)),
        *os.listdir(lab.mountpoint / "search" / "look"),
    ]
    assert len(names) == 3 * len(KEYS) + 1
    assert secrets_in("\n".join(names)) == []
    assert sum("look" in name for name in names) == 3 * len(KEYS)


def test_dropped(lab: Lab, patterns: Path) -> None:
    """What a revert dropped is masked as well."""
    shutil.copytree(patterns, lab.folder / "cache/rolloutfs/patterns")
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    last = lines(lab.thread(thread) / "turns.jsonl")[-1]["user"]
    lab.unmount()
    (log,) = lab.sample.root.rglob(f"rollout-*{thread}.jsonl")
    log.write_bytes(log.read_bytes().replace(orjson.dumps(last), orjson.dumps(f"marker: {shown('groq')}")))
    lab.witness = None
    lab.mount("--mask-secrets")
    assert shell(lab, thread, "echo 'before -1' > revert")[0] == 0
    text = (lab.thread(thread) / "dropped.md").read_text()
    assert "marker: [masked: " in text
    assert secrets_in(text) == []
    assert (lab.thread(thread) / "dropped.md").stat().st_size == len(text.encode())
    assert shown("groq") in (lab.thread(thread) / "dropped_turns.jsonl").read_text()


def test_where_it_cannot_be_done(lab: Lab) -> None:
    """Nothing is mounted where the library is missing, rather than with keys to be seen."""
    missing = lab.folder / "missing"
    missing.mkdir()
    (missing / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'kingfisher_sdk' else find(name, package)\n"
    )
    path = f"{missing}:{lab.environment['PYTHONPATH']}"
    told = lab.run("mount", "--mask-secrets", lab.sample.root, lab.mountpoint, code=9, PYTHONPATH=path).stderr
    assert "kingfisher-secret-scanner" in told
    assert not lab.is_mounted()
    told = lab.run("show", "x", "--store", lab.sample.root, code=9, PYTHONPATH=path, ROLLOUTFS_MASK_SECRETS="1").stderr
    assert "kingfisher-secret-scanner" in told
