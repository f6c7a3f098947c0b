"""`rolloutfs completion`, and what every command has in common: help with examples, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rolloutfs import questions
from rolloutfs.cli import main
from rolloutfs.completing import complete_file, complete_thread
from tests.commands.conftest import HOSTILE, Ask
from tests.conftest import Corpus
from tests.mount.conftest import Lab
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
    """Ids in any case, names as they begin, and ids for names with a blank; nothing, and no error, without a store."""
    home = corpus("named.legacy").home
    ids = completed(home, "")
    assert {len(one) for one in ids} == {36}
    assert completed(home, ids[0][:20].upper()) == [ids[0]]
    (thread,) = completed(home, "New")
    (home / "session_index.jsonl").write_text(f'{{"id":"{thread}","thread_name":"New-name_1.2/x"}}\n')
    assert completed(home, "New") == ["New-name_1.2/x"]
    assert completed(home / "none", "") == []


def test_in_a_mount(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of the store that it shows; and the files that a thread may have."""
    thread = lab.sample.add(1)
    lab.mount()
    monkeypatch.chdir(lab.mountpoint / "threads")
    try:
        context = click.Context(main.commands["show"])
        words, files = context.command.params[:2]
        assert [item.value for item in complete_thread(context, words, "01")] == [thread]
        assert [item.value for item in complete_file(context, files, "t")] == [
            "thread.json",
            "turns.jsonl",
            "transcript.md",
        ]
    finally:
        monkeypatch.undo()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "x\x1b[31m",
            HOSTILE,
            "fix bug",
            "fixbug;touch ${HOME}/x",
            "a$(touch x)",
            "a`touch x`",
            "a|b",
            "a&b",
            "a>b",
            "a<b",
        ),
        *(
            "a*",
            "a?",
            "a[b]",
            "{a,b}",
            "~root",
            "-rf",
            "--help",
            "=ls",
            "a=b",
            "a:b",
            "a@b",
            "a'b",
            'a"b',
            "a\\b",
            "a#b",
        ),
        *("#a", "!!", "a^b", "%1", "a\tb", "a\nb", "größe", "a(b)", "a,b"),
    ],
)
def test_no_hostile_names(name: str, sample: SampleStore) -> None:
    """For a name that means something to a shell, a terminal or readline the id of its thread is offered; in bash what
    is offered is one word that means itself.
    """
    thread = sample.add(1)
    (sample.root / "session_index.jsonl").write_text(json.dumps({"id": thread, "thread_name": name}) + "\n")
    assert completed(sample.root, "") == [thread]
    assert completed(sample.root, name[:1]) == [thread]


def test_bash_inserts_nothing_that_it_would_obey(sample: SampleStore, ask: Ask, tmp_path: Path) -> None:
    """What the script for bash answers for names from logs is taken by a shell as it stands, and nothing is run."""
    names = {"fixbug;touch ${PWD}/run", "fix$(touch run)", "fix bug *", "fix-it", "fix\nit"}
    threads = {sample.add(number): name for number, name in enumerate(names)}
    lines = (json.dumps({"id": thread, "thread_name": name}) + "\n" for thread, name in threads.items())
    (sample.root / "session_index.jsonl").write_text("".join(lines))
    script = tmp_path / "script"
    script.write_text(ask("completion", "bash").out)
    (tmp_path / "empty").mkdir()
    asks = f"""
        source {script}
        COMP_WORDS=(rolloutfs show fix) COMP_CWORD=2
        _rolloutfs_completion rolloutfs
        eval "printf '%s\\n' ${{COMPREPLY[*]}}"
    """
    here = {**os.environ, "CODEX_HOME": str(sample.root), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", asks], cwd=tmp_path / "empty", env=here, capture_output=True, text=True, timeout=60, check=True
    )
    expected = {"fix-it", *(thread for thread, name in threads.items() if name != "fix-it")}
    assert (set(done.stdout.splitlines()), done.stderr, os.listdir(tmp_path / "empty")) == (expected, "", [])


@pytest.mark.parametrize("command", [command.name for command in questions.COMMANDS])
def test_help(command: str, ask: Ask) -> None:
    """Each command says what it does, shows examples and lists its exit codes; the list of all has it."""
    told = ask(command, "--help").out
    assert f"rolloutfs {command}" in told.partition("Examples:")[2]
    assert "Exit codes: 0" in told
    assert f"  {command} " in ask("--help").out
    assert ask(command, "--no-such-option", code=2).out == ""


def test_help_fits_a_terminal(ask: Ask) -> None:
    """No line of it is longer than 80 columns, and in the list of commands each is told of in a whole sentence."""
    told = [ask("--help").out]
    for name, command in main.commands.items():
        told.append(ask(name, "--help").out)
        told += [ask(name, inner, "--help").out for inner in getattr(command, "commands", ())]
    assert [line for text in told for line in text.splitlines() if len(line) > 80] == []
    listed = told[0].partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(listed) == len(main.commands)
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_index_takes_its_store_as_others_do(sample: SampleStore, ask: Ask) -> None:
    """With --store, too, but not twice."""
    sample.add(1)
    told = [ask("index", *words, "--json").objects[0] for words in (("--store", sample.root), (sample.root,))]
    assert told[0]["index"] == told[1]["index"]
    assert [one["entered"] for one in told] == [1, 0]
    assert "one store" in ask("index", sample.root, "--store", sample.root, code=2).err


def test_a_command_that_is_misspelt(ask: Ask) -> None:
    """The one that was meant is told."""
    for said, meant in (("unmount", "umount"), ("serach", "search"), ("stauts", "status")):
        assert f"'{meant}'" in ask(said, code=2).err


@pytest.mark.parametrize("command", ["umount", "demo", "index", "service", "service install", "service uninstall"])
def test_help_of_what_changes_something(command: str, ask: Ask) -> None:
    """The examples are of this command and of no other one of ours; the exit codes are there."""
    examples, _, codes = ask(*command.split(), "--help").out.partition("Examples:")[2].partition("Exit codes:")
    named = re.findall(r"rolloutfs ([a-z]+) ", examples)
    assert set(named) == {command.split()[0]}
    assert "  6  a dead mount" in codes


def test_the_readme_names_commands_that_exist() -> None:
    """Every command that the README shows is there, and every one of these is in it."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^\$ |`|\$\()rolloutfs ([a-z]+)\b", readme, re.MULTILINE))
    assert named <= set(main.commands)
    assert {command.name for command in questions.COMMANDS} <= named
