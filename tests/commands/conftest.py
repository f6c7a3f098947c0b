"""The command line in the test's own process, in an environment in which nothing of the user's is read or written."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import logs
from rolloutfs.cli import main
from tests.mount.conftest import lab as lab  # a fixture: a store of its own, and commands in processes of their own
from tests.tree.sample import SampleStore, line, sample_store

#: What a terminal would obey, or show in another order, and what it may become.
HOSTILE = "a\x1b[31mred\x07\nsecond\x9b2J \u202eevil\u2066 \u200bz\x00\u2028end"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command wrote."""

    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The lines as JSON objects."""
        return [json.loads(line) for line in self.out.splitlines()]

    def rows(self) -> list[str]:
        """The lines of a table without its heading."""
        return self.out.split("\n")[1:-1]


class Ask(Protocol):
    """Runs a command to its end and checks its exit code."""

    def __call__(self, *arguments: str | Path, code: int = 0) -> Answer: ...  # noqa: D102 - described above


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Ask]:
    """The command line; its output is no terminal, its time zone is 2 hours east."""
    for name in ("CACHE", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "xdg" / name.lower()))
    monkeypatch.setenv("TZ", "XXX-2")
    monkeypatch.delenv("CODEX_HOME", raising=False)
    time.tzset()
    monkeypatch.setattr(logs, "to_terminal", lambda: None)

    def run(*arguments: str | Path, code: int = 0) -> Answer:
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(map(str, arguments)), prog_name="rolloutfs")
        out, err = capfdbinary.readouterr()
        answer = Answer(out.decode(), err.decode())
        assert ended.value.code == code, answer
        assert b"Traceback" not in err
        return answer

    yield run
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def sample(tmp_path: Path) -> SampleStore:
    """An empty store that the test fills."""
    return sample_store(tmp_path / "sample")


def say(sample: SampleStore, thread: str, text: str) -> None:
    """Let a user say something as Codex tells its user interface of it, which previews and turns are made from."""
    with sample.path(thread).open("ab") as file:
        file.write(line("event_msg", {"type": "user_message", "message": text}))


OpenStore = Callable[[Path], ThreadStore]


@pytest.fixture
def open_store(tmp_path: Path) -> OpenStore:
    """A store as the library sees it, without an index."""
    return lambda home: ThreadStore(str(home), Spool(str(tmp_path / "spool")))


def assert_harmless(text: str) -> None:
    """Nothing in it is for the terminal to obey."""
    bad = [one for one in text if one != "\n" and (ord(one) < 32 or 0x7F <= ord(one) < 0xA0)]
    bad += re.findall(r"[\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]", text)
    assert bad == []
