"""`rolloutfs fork`, `revert` and `compact`: the same as the control files, without a mount."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mount.conftest import Lab
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
        (("fork", "ffffffff"), "ENOENT", "there is no thread"),
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


def test_other_exit_codes(lab: Lab) -> None:
    """2 for what is not a command, 3 without a store, 9 for what fails."""
    (thread,) = stock(lab, PAGINATED)
    store = ("--store", lab.sample.root)
    assert "FILE" in lab.run("compact", thread, *store, code=2).stderr.upper()
    lab.run("compact", thread, "--auto", "--recent", *store, code=2)
    lab.run("revert", thread, *store, code=2)
    lab.run("compact", thread, lab.folder / "missing", *store, code=2)
    assert "There is no store" in lab.run("fork", thread, "--store", lab.folder / "nowhere", code=3).stderr
    configure(lab, "exit 1")
    assert json.loads(lab.run("compact", thread, "--auto", *store, code=9).stdout)["status"] == "failed"


def test_a_summary_from_a_program(lab: Lab) -> None:
    """It is waited for."""
    (thread,) = stock(lab, PAGINATED)
    configure(lab, "wc -l | tr -d ' '; echo lines")
    told = json.loads(lab.run("compact", thread, "--auto", "--store", lab.sample.root).stdout)
    assert told["status"] == "done"
    assert "lines" in Path(lab.sample.root, told["rollout"]).read_text()


def test_help_names_the_exit_codes(lab: Lab) -> None:
    """Every command documents them."""
    for command in ("fork", "revert", "compact", "mount"):
        text = lab.run(command, "--help").stdout
        assert "8  the request was refused" in text
    assert "--read-only" in lab.run("mount", "--help").stdout
