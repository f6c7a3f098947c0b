"""What the server's log is spared."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from rolloutfs import logs


@pytest.fixture
def restored() -> Iterator[None]:
    """The loggers are as they were afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("restored")
def test_an_answer_that_nobody_waits_for_is_no_news(capfd: pytest.CaptureFixture[str]) -> None:
    """pyfuse3 calls it an error when a program was killed, or the mount ended, before its answer; others are shown."""
    logs.to_terminal()
    source = logging.getLogger("pyfuse3")
    source.error("fuse_release(): fuse_reply_* failed with %s", "No such file or directory")
    source.error("fuse_release(): fuse_reply_* failed with %s", "Invalid argument")
    shown = capfd.readouterr().err
    assert "No such file" not in shown
    assert shown.count("Invalid argument") == 1
