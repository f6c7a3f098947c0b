"""Four shells on two mounts ask for a change of one thread at the same time.

Each shell opens the control file, then all are let go at once.  What a shell asks for is meant for the thread as it was
when the file was opened, so one of them has its way and the others are told that it changed; who opens the file later
asks for a change of what is there then.

RACE_ROUNDS=100 runs more rounds.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from tests.mount.clients import environment, mounted, need, serving
from tests.mount.conftest import Lab, until
from tests.mount.control_lab import LEGACY, LOCKS, PAGINATED, lines, stock
from tests.operations.model import append, turn
from tests.operations.snapshots import problems_of

ROUNDS = int(os.environ.get("RACE_ROUNDS") or 8)
SHELLS = ("bash", "dash", "zsh", "sh")

#: Opens the file, says so, waits for the start, asks, and says what came of it. With `late` the file is opened after
#: the start, as `echo … > revert` does.
SCRIPT = r"""
while read -r late file request; do
    test $late = late || exec 3<>"$file"
    echo ready
    read -r start <&4
    if test $late = late; then
        printf '%s\n' "$request" 2>"$ERRORS" >"$file"
        code=$?
        answer='{}'
    else
        printf '%s\n' "$request" 2>"$ERRORS" >&3
        code=$?
        read -r answer <&3
        exec 3>&-
    fi
    printf '%s\n' "{\"code\":$code,\"answer\":$answer}"
done
"""

Json = dict[str, Any]


class Shell:
    """A shell in the folder of a thread."""

    def __init__(self, lab: Lab, program: str, folder: Path, start: int) -> None:
        self.errors = lab.folder / f"errors-{program}"
        self._process = subprocess.Popen(
            ["bash", "-c", 'exec "$0" -c "$1" 4<&"$2"', program, SCRIPT, str(start)],
            cwd=folder,
            env=environment(lab.folder / "home", ERRORS=str(self.errors)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[start],
        )

    def say(self, text: str) -> None:
        """A line for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """A line from it."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def close(self) -> None:
        """The end of its input is its end."""
        self._process.communicate(timeout=30)


@dataclass
class Race:
    """A thread of a store that is mounted twice, and two shells in each mount."""

    lab: Lab
    thread: str
    mount: Path  # the first one
    shells: list[Shell]
    start: int  # every byte that is written here lets one shell go
    paginated: bool
    count: int = 0

    @property
    def folder(self) -> Path:
        """The folder of the thread in the first mount."""
        return self.mount / "threads" / self.thread

    def operations(self) -> list[Json]:
        """The lines of operations.jsonl."""
        return lines(self.mount / "operations.jsonl")

    def are_listed(self, number: int) -> bool:
        """True when there are so many lines."""
        return len(self.operations()) >= number

    def run(self, requests: list[str], *, late: bool = False) -> list[Json]:
        """What came of each request: exit code, errors, answer."""
        for shell, request in zip(self.shells, requests, strict=True):
            shell.say(f"{'late' if late else 'early'} {request}")
        for shell in self.shells:
            assert shell.hear() == "ready"
        os.write(self.start, b"\n" * len(self.shells))
        told: list[Json] = [json.loads(shell.hear()) for shell in self.shells]
        return [one | {"errors": shell.errors.read_text()} for one, shell in zip(told, self.shells, strict=True)]

    def codex_appends(self) -> None:
        """A turn in the selected rollout, so that there always is one to take back."""
        self.count += 1
        path = (self.folder / "rollouts" / "current").resolve().name
        (found,) = self.lab.sample.root.rglob(path)
        append(found, turn(self.thread, 9000 + self.count, paginated=self.paginated), paginated=self.paginated)

    def files(self) -> dict[str, bytes]:
        """Every file of the store but databases and lock files."""
        root = self.lab.sample.root
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and LOCKS not in path.parts and ".sqlite" not in path.name
        }

    def rows(self) -> dict[str, Json]:
        """The rows of the database by thread."""
        for database in self.lab.sample.root.glob("state_*.sqlite"):
            with closing(sqlite3.connect(database)) as connection:
                connection.row_factory = sqlite3.Row
                return {row["id"]: dict(row) for row in connection.execute("SELECT * FROM threads")}
        return {}


KINDS = {"paginated": (PAGINATED, True), "paginated-no-sqlite": (PAGINATED, False), "legacy": (LEGACY, True)}


@pytest.fixture(scope="module", params=KINDS)
def race(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Race]:
    """With a database, without one, and a legacy thread."""
    for program in SHELLS:
        need(program, program)
    folder = tmp_path_factory.mktemp("race")
    (folder / "store").mkdir()
    with serving(folder / "lab", folder / "store") as lab:
        name, sqlite = KINDS[request.param]
        (thread,) = stock(lab, name)
        if not sqlite:
            for database in lab.sample.root.glob("state_*"):
                database.unlink()
        first = lab.mountpoint
        with mounted(lab), _second(lab) as second, ExitStack() as stack:
            reading, start = os.pipe()
            stack.callback(os.close, start)
            places = [first, first, second, second]
            shells = [
                Shell(lab, program, place / "threads" / thread, reading)
                for program, place in zip(SHELLS, places, strict=True)
            ]
            os.close(reading)
            for shell in shells:
                stack.callback(shell.close)
            yield Race(lab, thread, first, shells, start, name == PAGINATED)
        assert problems_of(lab.sample.root) == []


@contextmanager
def _second(lab: Lab) -> Iterator[Path]:
    """Another mount of the store."""
    first, lab.mountpoint = lab.mountpoint, lab.folder / "second"
    lab.mountpoint.mkdir()
    try:
        lab.mount()
        lab.mountpoint = first
        yield lab.folder / "second"
    finally:
        lab.run("umount", lab.folder / "second")
        lab.mountpoint = first


def requests(paginated: bool) -> Iterator[list[str]]:
    """What the four shells ask for: the same, or each something else."""
    text, recent, back, undo = "compact a summary", 'compact {"strategy":"recent"}', "revert before -1", "revert undo"
    if not paginated:
        return cycle([[back] * 4, [text] * 4, [recent, text, recent, text], [back, text, back, recent]])
    return cycle(
        [[back] * 4, [undo] * 4, [text] * 4, [recent] * 4, [back, undo, text, recent], [text, back, recent, undo]]
    )


def check_changes(race: Race, before: dict[str, bytes], done: list[Json]) -> None:
    """The store is what it was before, with the changes that were answered, and nothing else."""
    after = race.files()
    new = {path for path in after if path not in before}
    assert new == {one["rollout"] for one in done if one["before"] != one["after"]}
    grown = {path for path in before if after[path] != before[path]}
    assert grown <= {one["rollout"] for one in done if one["before"] == one["after"]}
    for path in grown:
        assert after[path].startswith(before[path])
    added = b"".join(after[path][len(before.get(path, b"")) :] for path in sorted(new | grown))
    assert added.endswith(b"\n") or not done
    records = [json.loads(line) for line in added.split(b"\n")[:-1]]
    marks = [record["type"] if record["type"] != "event_msg" else record["payload"]["type"] for record in records]
    assert marks.count("compacted") == sum(one["op"] == "compact" for one in done)
    assert marks.count("thread_rolled_back") == (0 if race.paginated else sum(one["op"] == "revert" for one in done))
    assert marks.count("session_meta") == len(new)
    for path in new | grown if race.paginated else ():
        ordinals = [json.loads(line)["ordinal"] for line in after[path].split(b"\n")[:-1]]
        assert ordinals == list(range(ordinals[0], ordinals[0] + len(ordinals)))
    locks = race.lab.sample.root / LOCKS
    assert os.listdir(locks) == [".coordination.lock"]


def test_one_of_four_has_its_way(race: Race) -> None:
    """The others' shells print an error, their answers say why, and they changed nothing at all."""
    for asked in islice(requests(race.paginated), ROUNDS):
        race.codex_appends()
        before, rows, listed = race.files(), race.rows(), len(race.operations())
        told = race.run(asked)
        winners = [one for one in told if one["code"] == 0]
        losers = [one for one in told if one["code"] != 0]
        assert len(winners) == 1, told
        (winner,) = winners
        assert (winner["errors"], winner["answer"]["status"]) == ("", "done")
        for one in losers:
            assert one["errors"]
            assert (one["answer"]["status"], one["answer"]["error"]) == ("refused", "EBUSY")
            message = one["answer"]["message"]
            assert any(
                reason in message for reason in ("changed since", "active writer", "another handle of this mount")
            )
        check_changes(race, before, [winner["answer"]])
        now = race.rows()
        assert set(now) == set(rows)
        for thread, row in now.items():
            if thread == race.thread:
                assert row["rollout_path"] == str(race.lab.sample.root / winner["answer"]["rollout"])
            else:
                assert row == rows[thread]
        told_of = race.operations()[listed:]
        assert sorted(line["status"] for line in told_of) == ["done", "refused", "refused", "refused"]
        assert race.folder.joinpath("fork").read_bytes()


def test_as_many_changes_as_shells_that_succeeded(race: Race) -> None:
    """Who opens the file after another one is done asks for a second change: those follow each other, and the others
    changed nothing.
    """
    for asked in islice(requests(race.paginated), ROUNDS):
        race.codex_appends()
        before, listed = race.files(), len(race.operations())
        told = race.run(asked, late=True)
        until(partial(race.are_listed, listed + 4), "a text in the other mount is used")
        told_of = race.operations()[listed:]
        done = [line for line in told_of if line["status"] == "done"]
        assert len(done) == sum(one["code"] == 0 for one in told) > 0
        assert len(told_of) == 4
        assert all(bool(one["errors"]) == bool(one["code"]) for one in told)
        assert {line["error"] for line in told_of} <= {None, "EBUSY", "ENOENT", "EINVAL"}
        check_changes(race, before, done)
        heads = [line["before"] for line in done if line["before"] != line["after"]]
        assert len(set(heads)) == len(heads), "each goes on from the one before"
