"""An append that fails is taken back, but nothing that is not ours."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest
from threadstore.recorder import UnsettledError
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.conftest import CopyStore


@pytest.mark.parametrize("theirs", [b"", b'{"of":"an old Codex"}\n'])
def test_an_append_that_fails(copy_store: CopyStore, monkeypatch: pytest.MonkeyPatch, theirs: bytes) -> None:
    """Who takes no lock may have appended meanwhile: then all of it stays, and the error says so."""
    home: Path = copy_store("forks.legacy").home
    store = ThreadStore(str(home), Spool(f"{home}.spool"))
    thread_id = next(iter(store.thread_ids()))
    log = home / store.head(thread_id).path
    before = log.read_bytes()

    def fail(_: int) -> NoReturn:
        with log.open("ab") as file:
            file.write(theirs)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UnsettledError if theirs else OSError) as caught:
        store.compact(thread_id, "what was done")
    after = log.read_bytes()
    if theirs:
        assert after.startswith(before)
        assert after.endswith(theirs)
        assert b"what was done" in after[len(before) :]
        assert "somebody else has appended" in str(caught.value)
    else:
        assert after == before
