"""What the kernel asks of us for everyday commands: exact, since requests are what a mount costs (FUSE 0.2).

The store is quiet (last written long ago) and watched, so what the kernel was told once it need not ask again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.conftest import DEADLINE, Lab, until

Ask = Callable[[str], dict[str, int]]

#: The way in which requests are answered at once; others make more of them.
_WAY = {"ROLLOUTFS_PASSTHROUGH": "no", "ROLLOUTFS_REQUEST_LOOP": "ours"}


@pytest.fixture
def ask(lab: Lab) -> Ask:
    """A mount of three old threads; gives the requests that a shell command in it makes."""
    threads = [lab.sample.add(number, "hello") for number in range(1, 4)]
    for thread in threads:
        os.utime(lab.sample.path(thread), (1_700_000_000, 1_700_000_000))
    report = lab.folder / "requests.json"
    server = lab.mount(patch=_REPORTING.format(report=str(report)), **_WAY)
    until(lambda: "watched" in _reported(server.pid, report), "the store is watched")

    def asked() -> Counter[str]:
        while True:  # what a program closes at its end is released a moment later
            found = Counter[str](json.loads(_reported(server.pid, report))["requests"])
            if found["open"] == found["release"] and found["opendir"] == found["releasedir"]:
                return found

    def run(command: str) -> dict[str, int]:
        before = asked()
        subprocess.run(
            ["bash", "-c", command],
            cwd="/",
            env={"PATH": os.environ["PATH"], "M": str(lab.mountpoint), "T": str(lab.thread(threads[0]))},
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=DEADLINE,
        )
        return dict(asked() - before)

    return run


_REPORTING = """
import json, os, signal
from rolloutfs import following, guarding
use = following.Following.use
def used(self, watch):
    use(self, watch)
    told["watched"] = True
following.Following.use = used
told = {{}}
def report(*_):
    with open({report!r} + ".new", "w") as file:
        json.dump(told | {{"requests": guarding.REQUESTS}}, file)
    os.rename({report!r} + ".new", {report!r})
signal.signal(signal.SIGUSR2, report)
"""


def _reported(pid: int, report: Path) -> str:
    """What the server says now."""
    report.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    until(report.exists, "the server reports")
    return report.read_text()


#: Commands one after the other on a fresh mount, and the requests that each makes. `$T` is the folder of a thread, `$M`
#: the mount. After a read or a listing the kernel asks for attributes once more: it takes the access time for changed.
#: Who asks for one derived file of a small thread has the sizes of all of them made, so the listing tells them.
TABLE: list[tuple[str, dict[str, int]]] = [
    ("stat $M/threads", {"lookup": 1}),
    ("cat $T/effective_history.jsonl", {"lookup": 2, "open": 1, "read": 1, "release": 1}),
    ("cat $T/effective_history.jsonl", {"open": 1, "getattr": 1, "release": 1}),
    ("stat $T/effective_history.jsonl", {}),
    ("tail -c 10 $T/effective_history.jsonl", {"open": 1, "release": 1}),
    ("stat $T", {}),
    ("ls $T", {"readdir": 2}),
    ("ls $T", {"getattr": 1}),
    ("stat $T/turns.jsonl", {}),
    ("cat $T/rollouts/current", {"lookup": 2, "readlink": 1, "open": 1, "read": 1, "release": 1}),
    ("stat -L $T/rollouts/current", {"readlink": 1, "getattr": 1}),
    ("cat $T/fork", {"open": 1, "read": 2, "release": 1}),
]


def test_requests_of_commands(ask: Ask) -> None:
    """Each command makes exactly the requests of the table."""
    assert [(command, ask(command)) for command, _ in TABLE] == TABLE


def test_requests_of_walks(ask: Ask) -> None:
    """A walk costs two requests a folder, one more for that of a thread, and nothing a file; sizes are asked for once,
    and names, too, but for those of the threads.
    """
    folders = 1 + 3 * 5
    first = ask("find $M/threads")
    assert first["readdir"] == 2 * folders
    assert first["getattr"] <= folders
    assert first["lookup"] <= 1 + 3
    assert set(first) <= {"lookup", "readdir", "getattr", "statfs"}
    assert "lookup" not in ask("find $M/threads")  # though the names of the threads are told anew
    again = ask("find $M/threads -size +1000")
    sizes = ask("find $M/threads -size +1000")
    assert again["readdir"] == sizes["readdir"] == 2
    assert again["getattr"] > sizes["getattr"]
    assert sizes["getattr"] <= folders + 3 * 3  # the folders; and names may change unheard, which three files hold
