"""`rolloutfs fork`, `revert` and `compact`: the same as the control files, without a mount."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.conftest import DEADLINE, Lab, is_gone, until
from tests.mount.control_lab import LEGACY, PAGINATED, state, stock
from tests.mount.test_control import configure

BOTH = pytest.mark.parametrize("name", [PAGINATED, LEGACY])


def kept(lab: Lab) -> list[dict[str, object]]:
    """The lines of the store's journal."""
    (path,) = (lab.folder / "state" / "rolloutfs" / "operations").iterdir()
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@BOTH
def test_operations(lab: Lab, name: str) -> None:
    """Each prints its answer on one line and ends with 0; nothing is on stderr, and no folder of ours stays."""
    (thread,) = stock(lab, name)
    summary = lab.folder / "summary.md"
    summary.write_text("# What was\n")
    store = ("--store", lab.sample.root)
    for arguments, op in (
        (("fork", thread), "fork"),
        (("fork", thread.upper(), "through", "-2"), "fork"),
        (("fork", "--dry-run", thread, "before", "2"), "fork"),
        (("revert", thread, "before", "-1"), "revert"),
        (("compact", thread, summary), "compact"),
        (("compact", thread, "--recent"), "compact"),
        (("compact", "--dry-run", thread, summary), "compact"),
    ):
        result = lab.run(*arguments, *store)
        assert result.stderr == ""
        assert result.stdout.count("\n") == 1
        told = json.loads(result.stdout)
        assert (told["op"], told["status"], told["dry_run"]) == (op, "done", "--dry-run" in arguments)
    assert len(kept(lab)) == 7
    assert lab.spools() == []


def test_undo_and_the_default_store(lab: Lab) -> None:
    """$CODEX_HOME is the store unless one is given."""
    (thread,) = stock(lab, PAGINATED)
    lab.run("revert", thread, "before", "2", CODEX_HOME=str(lab.sample.root))
    assert json.loads(lab.run("revert", thread, "undo", CODEX_HOME=str(lab.sample.root)).stdout)["op"] == "undo"


@BOTH
def test_refusals(lab: Lab, name: str) -> None:
    """Exit code 8, the answer on stdout, a sentence on stderr, and nothing is changed."""
    threads = stock(lab, name, "simple.paginated")
    thread, store = threads[0], ("--store", lab.sample.root)
    (lab.folder / "huge").write_text("x" * 70_000)
    (lab.folder / "empty").write_text("\n")
    before = state(lab.sample.root)
    for arguments, error, sentence in (
        (("fork", thread, "before", "99"), "ENOENT", "turn not found"),
        (("fork", "ffffffff"), "ENOENT", "There is no thread"),
        (("fork", thread[:5]), "EINVAL", "give more of it"),
        (("fork", thread, "sideways"), "EINVAL", "not understood"),
        (("revert", thread, "undo"), "EINVAL", "undo"),
        (("compact", thread, lab.folder / "huge"), "E2BIG", "65536"),
        (("compact", thread, lab.folder / "empty"), "EINVAL", "nothing"),
        (("compact", thread, "--auto"), "EINVAL", "config.toml"),
    ):
        result = lab.run(*arguments, *store, code=8)
        assert json.loads(result.stdout)["error"] == error
        assert json.loads(result.stdout)["status"] == "refused"
        assert sentence in result.stderr
        assert "Traceback" not in result.stderr
    assert state(lab.sample.root) == before
    assert [line["error"] for line in kept(lab)].count("EINVAL") == 5


@pytest.mark.parametrize("words", [("fork", "{}", "--dryrun"), ("fork", "--dry", "{}"), ("revert", "{}", "--undo")])
def test_a_misspelt_option(words: tuple[str, ...], lab: Lab) -> None:
    """It is told, although -1 is no option there; nothing is asked for, so nothing is recorded."""
    (thread,) = stock(lab, PAGINATED)
    done = lab.run(*(word.format(thread) for word in words), "--store", lab.sample.root, code=2)
    assert done.stdout == ""
    assert f"No such option '{next(word for word in words if word[0] == '-')}'." in done.stderr
    assert not (lab.folder / "state" / "rolloutfs" / "operations").exists()


@pytest.mark.parametrize("words", ["--help", "ls --help", "--version"])
def test_help_that_nobody_reads(words: str, lab: Lab) -> None:
    """A reader that is gone is no error."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "rolloutfs", *words.split()]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=lab.environment, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_refused_dry_run_is_one(lab: Lab) -> None:
    """Its answer says so, whatever is wrong with it, and however it was asked for."""
    (thread,) = stock(lab, PAGINATED)
    (lab.folder / "broken").write_text('{"strategy":"x","dry_run":true}')
    for words in (
        ("revert", "--dry-run", thread, "befre", "3"),
        ("revert", thread, "dry-run", "befre", "3"),
        ("fork", "--dry-run", "nobody"),
        ("fork", "nobody", "dry-run", "latest"),
        ("compact", thread, lab.folder / "broken"),
        ("revert", thread, "befre"),
    ):
        told = json.loads(lab.run(*words, "--store", lab.sample.root, code=8).stdout)
        assert (told["status"], told["dry_run"]) == ("refused", words != ("revert", thread, "befre"))


def test_other_exit_codes(lab: Lab) -> None:
    """2 for what is not a command, 3 without a store, 9 for what fails."""
    (thread,) = stock(lab, PAGINATED)
    store = ("--store", lab.sample.root)
    assert "FILE" in lab.run("compact", thread, *store, code=2).stderr.upper()
    lab.run("compact", thread, "--auto", "--recent", *store, code=2)
    lab.run("revert", thread, *store, code=2)
    lab.run("compact", thread, lab.folder / "missing", *store, code=2)
    told = lab.run("fork", thread, "--store", lab.folder / "nowhere", code=3).stderr
    assert "There is no store" in told
    assert "--store STORE" in told
    assert "mount" not in told
    configure(lab, "exit 1")
    assert json.loads(lab.run("compact", thread, "--auto", *store, code=9).stdout)["status"] == "failed"


def test_a_summary_from_a_program(lab: Lab) -> None:
    """It is waited for."""
    (thread,) = stock(lab, PAGINATED)
    configure(lab, "wc -l | tr -d ' '; echo lines")
    told = json.loads(lab.run("compact", thread, "--auto", "--store", lab.sample.root).stdout)
    assert told["status"] == "done"
    assert "lines" in Path(lab.sample.root, told["rollout"]).read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_program_that_writes_the_summary(lab: Lab, number: signal.Signals) -> None:
    """With all that it has started; the answer and the list say so, no trace is shown, and no folder of ours stays."""
    (thread,) = stock(lab, PAGINATED)
    pids = lab.folder / "pids"
    quoted = shlex.quote(str(pids))
    configure(lab, f"sleep 1000 & echo $! > {quoted}.new; echo $$ >> {quoted}.new; mv {quoted}.new {quoted}; wait")
    before = state(lab.sample.root)
    command = [sys.executable, "-m", "rolloutfs", "compact", thread, "--auto", "--store", str(lab.sample.root)]
    process = subprocess.Popen(
        command, env=lab.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=lab.folder
    )
    until(pids.exists, "the program runs")
    process.send_signal(number)
    output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    told = json.loads(output)
    assert (told["status"], told["error"]) == ("failed", "EINTR")
    assert f"interrupted by {number.name}" in told["message"]
    assert errors == f"rolloutfs: {told['message']}\n"
    for pid in pids.read_text().split():
        until(lambda pid=pid: is_gone(int(pid)), "what the program started is ended")  # type: ignore[misc]  # mypy can't tell the type of such a lambda
    assert lab.spools() == []
    assert kept(lab)[-1]["message"] == told["message"]
    assert state(lab.sample.root) == before


def test_an_error_of_ours(lab: Lab) -> None:
    """One sentence, exit code 1, a line in the list, and no trace."""
    (thread,) = stock(lab, PAGINATED)
    script = "from threadstore.store import ThreadStore; ThreadStore.{} = lambda *a, **b: 1 / 0"
    script += "\nfrom rolloutfs.cli import main; main()"
    for number, broken in enumerate(("fork", "thread_ids", "__init__")):
        done = subprocess.run(
            [sys.executable, "-c", script.format(broken), "fork", thread, "--store", str(lab.sample.root)],
            env=lab.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("rolloutfs: an error of rolloutfs itself")
        assert "ZeroDivisionError" in done.stderr
        assert done.stderr.count("\n") == 1
        if number < 2:
            assert kept(lab)[-1]["error"] == json.loads(done.stdout)["error"] == "EIO"
    assert lab.spools() == []


def test_what_a_file_says_is_read_as_in_the_control_file(lab: Lab) -> None:
    """A dry run of the largest text, a request, and what is refused."""
    (thread,) = stock(lab, PAGINATED)
    before = state(lab.sample.root)
    path = lab.folder / "text"
    for text, code in (("\n" * 9 + "x" * 65_500, 0), ('{"strategy":"recent"}', 0), ("undo", 8), ('{"strategy"', 8)):
        path.write_text(text)
        told = json.loads(lab.run("compact", "--dry-run", thread, path, "--store", lab.sample.root, code=code).stdout)
        assert told["dry_run"] is True
        assert (told["error"] is None) == (code == 0)
    assert state(lab.sample.root) == before


def unprinted(lab: Lab, *arguments: str | Path, code: int) -> list[str]:
    """What is on stderr when stdout is a full disk, and when nobody reads it."""
    said = []
    reading, writing = os.pipe()
    os.close(reading)
    for output in (os.open("/dev/full", os.O_WRONLY), writing):
        done = subprocess.run(
            [sys.executable, "-m", "rolloutfs", *map(str, arguments)],
            env=lab.environment,
            cwd=lab.folder,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        os.close(output)
        assert done.returncode == code, done.stderr
        said.append(done.stderr)
    return said


@pytest.mark.parametrize(
    "words", [("fork", "latest"), ("revert", "before", "-1"), ("compact", "--recent")], ids=lambda words: words[0]
)
def test_an_answer_that_can_not_be_printed(lab: Lab, words: tuple[str, ...]) -> None:
    """What was done is told on stderr, with the id of a fork, and has its own exit code: nobody does it twice."""
    (thread,) = stock(lab, PAGINATED)
    op, *more = words
    store = ("--store", lab.sample.root)
    said = unprinted(lab, op, thread, *more, *store, code=11)
    lines = kept(lab)
    assert [line["status"] for line in lines] == ["done", "done"]
    for told, line, why in zip(said, lines, ("No space left on device", "Broken pipe"), strict=True):
        assert told.startswith(f"rolloutfs: the {op} of thread {thread} was done")
        assert told.endswith(f"could not be printed: {why}.\n")
        assert told.count("\n") == 1
        assert op != "fork" or str(line["thread_id"]) in told
    assert all("nothing was done" in told for told in unprinted(lab, op, "--dry-run", thread, *more, *store, code=11))
    assert all("There is no thread" in told for told in unprinted(lab, op, "nobody", *more, *store, code=8))


def test_a_thread_by_its_name(lab: Lab) -> None:
    """As for the commands that only tell; a name that several have is refused, and they are listed."""
    threads = stock(lab, "named.legacy")
    with (lab.sample.root / "session_index.jsonl").open("a") as index:
        for thread in threads[:2]:
            index.write(json.dumps({"id": thread, "thread_name": "two of them", "updated_at": "x"}) + "\n")
        index.write(json.dumps({"id": threads[2], "thread_name": "the one", "updated_at": "x"}) + "\n")
    for database in lab.sample.root.glob("state_*.sqlite*"):
        database.unlink()
    store = ("--store", lab.sample.root)
    summary = lab.folder / "summary.md"
    summary.write_text("what was\n")
    for arguments in (("revert", "{}", "before", "-1"), ("compact", "{}", str(summary)), ("fork", "{}")):
        told = json.loads(lab.run(*(one.format("the one") for one in arguments), *store).stdout)
        assert (told["status"], told["source_thread_id"]) == ("done", threads[2])
        before = state(lab.sample.root)
        refused = lab.run(*(one.format("two of them") for one in arguments), *store, code=8)
        assert json.loads(refused.stdout)["error"] == "EINVAL"
        told = [line.split()[0] for line in refused.stderr.splitlines()[1:]]
        assert [[one for one in threads if one.startswith(beginning)] for beginning in told] == [
            [one] for one in sorted(threads[:2], reverse=True)
        ]
        assert state(lab.sample.root) == before


def test_each_command_has_examples_of_its_own(lab: Lab) -> None:
    """And none of the others."""
    for command in ("fork", "revert", "compact"):
        examples = lab.run(command, "--help").stdout.partition("Examples:")[2].partition("Exit codes:")[0]
        lines = [line.split() for line in examples.split("\n") if line.strip()]
        assert len(lines) >= 4
        assert all(words[:2] == ["rolloutfs", command] for words in lines)


def test_help_names_the_exit_codes(lab: Lab) -> None:
    """Every command documents them."""
    for command in ("fork", "revert", "compact", "mount"):
        text = lab.run(command, "--help").stdout
        assert "8  the request was refused" in text
    assert "--read-only" in lab.run("mount", "--help").stdout
