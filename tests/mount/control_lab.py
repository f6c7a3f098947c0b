"""What the tests of control files share: stores with real threads, their state, and shells."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import sqlite3
import sys
import termios
from contextlib import closing
from pathlib import Path
from typing import Any

from scripts.sample_store import merge_home
from tests.corpus_store import copy_home, store_folders
from tests.mount.clients import Output, outcome
from tests.mount.conftest import Lab, children

LOCKS = "thread-writer-locks"

PAGINATED, LEGACY = "tools.paginated", "tools.legacy"  # threads with several turns each

Json = dict[str, Any]


def stock(lab: Lab, *names: str) -> list[str]:
    """Put threads of the corpus into the lab's store; their ids. Its databases name the files where they are."""
    folders = store_folders()
    known: set[str] = set()
    threads: list[str] = []
    for name in names:
        merge_home(copy_home(folders[name], lab.folder / "corpus" / name), lab.sample.root)
        found = {path.name[28:64] for path in lab.sample.root.rglob("rollout-*.jsonl*")} - known
        threads += sorted(found)
        known |= found
    for database in lab.sample.root.glob("state_*.sqlite"):
        with closing(sqlite3.connect(database)) as connection:
            for thread, path in connection.execute("SELECT id, rollout_path FROM threads").fetchall():
                at = max(path.rfind("/sessions/"), path.rfind("/archived_sessions/"))
                moved = f"{lab.sample.root}{path[at:]}"
                connection.execute("UPDATE threads SET rollout_path = ? WHERE id = ?", (moved, thread))
            connection.commit()
    return threads


def state(root: Path) -> dict[str, str]:
    """Every file of a store but lock files, with its hash."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and LOCKS not in path.parts
    }


def shell(lab: Lab, thread: str, script: str, program: str = "bash", **more: str) -> Output:
    """Exit code, output and errors of a script that runs in the folder of a thread. $LAB is the lab's folder."""
    script = script if program == "bash" else f"{program} -c {shlex.quote(script)}"
    return outcome(script, lab.thread(thread), LAB=str(lab.folder), HOME=str(lab.folder / "home"), **more)


def answer(lab: Lab, thread: str, file: str = "fork") -> Json:
    """What a fresh open of a control file reads."""
    document: Json = json.loads((lab.thread(thread) / file).read_bytes())
    return document


def operations(lab: Lab) -> list[Json]:
    """The lines of operations.jsonl in the mount."""
    return [json.loads(line) for line in (lab.mountpoint / "operations.jsonl").read_bytes().split(b"\n")[:-1]]


def lines(path: Path) -> list[Json]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def turns(lab: Lab, thread: str) -> list[str]:
    """The ids of the turns of a thread that count."""
    return [turn["id"] for turn in lines(lab.thread(thread) / "turns.jsonl") if turn["effective"]]


def write(path: Path, data: bytes) -> int:
    """The errno of one write to a control file, 0 for success."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(descriptor, data)
    except OSError as error:
        return error.errno or 0
    finally:
        os.close(descriptor)
    return 0


def big_thread(lab: Lab, number: int = 50) -> str:
    """A thread that is too large to be replayed in the serving process."""
    return lab.sample.add(number, *("x" * 1000 for _ in range(600)))


def workers(server: int) -> list[int]:
    """The pids of the workers of a server."""
    return [pid for pid in children(server) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def has_a_job(worker: int) -> bool:
    """True when a worker that was stopped has been sent something. Killed before that it fails nothing: another one is
    given the job.
    """
    for entry in Path(f"/proc/{worker}/fd").iterdir():
        if os.readlink(entry).startswith("pipe:"):
            with open(os.open(entry, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
                if int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder):
                    return True
    return False
