"""Which process serves a mount, by what the processes were told."""

from __future__ import annotations

import pytest

from rolloutfs import serving


@pytest.mark.parametrize(
    ("servers", "pid"),
    [
        ({100: ["store", "threads"]}, 100),
        ({100: ["store", "threads"], 200: ["/store", "/home/me/threads"]}, 200),
        ({100: ["store", "threads"], 200: ["other", "threads"]}, None),
        ({100: ["store", "other"], 200: ["store", "me/threads"]}, 200),
        ({100: ["/store", "/home/you/threads"]}, None),
    ],
)
def test_who_serves_a_mount(servers: dict[int, list[str]], pid: int | None) -> None:
    """A relative word means a place only if nobody was told that one as a whole, and nobody else may mean it, too."""
    found = serving._server_of("/home/me/threads", servers)
    assert (found and found.pid) == pid
