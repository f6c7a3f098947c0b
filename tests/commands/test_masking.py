"""Commands with --mask-secrets, or with the setting of that name: no key in what they print for people."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.commands.conftest import Ask, say
from tests.keys import KEYS, pieces, shown
from tests.tree.sample import SampleStore


@pytest.fixture
def thread(sample: SampleStore, tmp_path: Path, patterns: Path) -> str:
    """A thread in which somebody told a key of each kind."""
    shutil.copytree(patterns, tmp_path / "xdg/cache/rolloutfs/patterns")
    thread = sample.add(1)
    for kind in KEYS:
        sample.append(thread, f"marker {shown(kind)}, it is")
        say(sample, thread, f"marker {shown(kind)}, it is")
    return thread


def seen(text: str) -> set[str]:
    """The kinds of which something is shown."""
    return {kind for kind in KEYS if any(piece in text for piece in pieces(kind))}


def test_show_log_and_search(sample: SampleStore, thread: str, ask: Ask) -> None:
    """With the flag nothing is seen of any key, without an index and with one; without it everything is."""
    for _ in range(2):
        for command in (
            ("show", thread, "transcript.md"),
            ("log", thread),
            ("log", thread, "--json"),
            ("search", "marker", "-n", "0"),
            ("search", "marker", "-n", "0", "--json"),
        ):
            masked = ask(*command, "--store", sample.root, "--mask-secrets").out
            assert seen(masked) == set(), command
            assert masked.count("[masked: ") >= len(KEYS)
            assert seen(ask(*command, "--store", sample.root).out) >= {"groq", "anthropic", "github-p"}
    raw = ask("show", thread, "effective_history.jsonl", "--store", sample.root, "--mask-secrets").out
    assert raw == ask("show", thread, "effective_history.jsonl", "--store", sample.root).out


def test_a_setting(sample: SampleStore, thread: str, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config and the environment say it, too; a flag has the last word."""
    command = ("show", thread, "transcript.md", "--store", sample.root)
    config = tmp_path / "xdg/config/rolloutfs/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("mask_secrets = true\n")
    assert seen(ask(*command).out) == set()
    assert seen(ask(*command, "--no-mask-secrets").out)
    monkeypatch.setenv("ROLLOUTFS_MASK_SECRETS", "false")
    assert seen(ask(*command).out)


def test_a_key_that_is_searched_for(sample: SampleStore, thread: str, ask: Ask) -> None:
    """Who knows a key finds where it was said; it isn't printed."""
    found = ask("search", shown("groq"), "--store", sample.root, "--mask-secrets", "--json").objects
    assert [hit["thread_id"] for hit in found] == [thread]
    assert seen(str(found)) == set()
