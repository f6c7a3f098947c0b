"""`rolloutfs completion`, and what every command has in common: help with examples, exit codes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import click
import pytest

from rolloutfs import questions
from rolloutfs.cli import main
from rolloutfs.completing import complete_thread
from tests.commands.conftest import HOSTILE, Ask
from tests.conftest import Corpus
from tests.tree.sample import SampleStore


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str, ask: Ask, tmp_path: Path) -> None:
    """A script that asks us; where the shell is there, it takes the script."""
    script = tmp_path / "script"
    script.write_text(ask("completion", shell).out)
    assert "_ROLLOUTFS_COMPLETE" in script.read_text()
    if any(os.access(os.path.join(folder, shell), os.X_OK) for folder in os.environ["PATH"].split(":")):
        subprocess.run([shell, "-n", str(script)], check=True, timeout=30)
    assert "invalid" in ask("completion", "tcsh", code=2).err.lower()


def completed(store: Path, incomplete: str) -> list[str]:
    """What a shell is offered."""
    context = click.Context(main.commands["show"])
    context.params["store"] = str(store)
    return [str(item.value) for item in complete_thread(context, context.command.params[0], incomplete)]


def test_threads_and_names(corpus: Corpus, ask: Ask) -> None:
    """Ids in any case, and names as they begin; nothing, and no error, where there is no store."""
    home = corpus("named.legacy").home
    everything = completed(home, "")
    assert {"New name", "First name"} < set(everything)
    ids = [one for one in everything if "name" not in one and len(one) == 36]
    assert completed(home, ids[0][:20].upper()) == [ids[0]]
    assert completed(home, "New") == ["New name"]
    assert completed(home / "none", "") == []


def test_no_hostile_names(sample: SampleStore, ask: Ask) -> None:
    """A name that a terminal would obey is not offered."""
    thread = sample.add(1)
    index = sample.root / "session_index.jsonl"
    index.write_text(f'{{"id":"{thread}","thread_name":"x\\u001b[31m"}}\n')
    assert completed(sample.root, "") == [thread]
    assert HOSTILE not in completed(sample.root, "a")


@pytest.mark.parametrize("command", [command.name for command in questions.COMMANDS])
def test_help(command: str, ask: Ask) -> None:
    """Each command says what it does, shows examples and lists its exit codes; the list of all has it."""
    told = ask(command, "--help").out
    assert f"rolloutfs {command}" in told.partition("Examples:")[2]
    assert "Exit codes: 0" in told
    assert f"  {command} " in ask("--help").out
    assert ask(command, "--no-such-option", code=2).out == ""


def test_the_readme_names_commands_that_exist() -> None:
    """Every command that the README shows is there, and every one of these is in it."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^\$ |`|\$\()rolloutfs ([a-z]+)\b", readme, re.MULTILINE))
    assert named <= set(main.commands)
    assert {command.name for command in questions.COMMANDS} <= named
