"""A store as a command sees it: opened for a moment, with the index where there is one, and its spool removed after."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from threadstore.errors import StoreError
from threadstore.index import IndexReader
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import checks, indexing, logs, masks, spoolfolder
from rolloutfs.errors import Exit, MountError

_HOW = "give it as --store STORE, or in $CODEX_HOME"


class Opened(NamedTuple):
    """A store, where its index lies or would lie (None: nowhere), and a private folder for as long as it is open."""

    store: ThreadStore
    index_path: str | None
    scratch: str


@contextlib.contextmanager
def opened(store: str, mask: bool | None = False) -> Iterator[Opened]:
    """Open a store; `mask` says whether secrets are masked in it, None that settings say it. Raises MountError when
    there is none.
    """
    logs.to_terminal()
    root = checks.store_root(store, _HOW)
    masker = None if mask is False else masks.for_command(mask, root)
    path = indexing.place(root, root)
    spool = spoolfolder.make(root, os.path.join(root, "sessions"), os.path.join(root, "archived_sessions"))
    try:
        reader = None if path is None else IndexReader(path)
        try:
            threads = ThreadStore(root, Spool(spool.path), index=reader, mask=masker)
        except StoreError as error:
            raise MountError(error.message, Exit.STORE) from error
        threads.refresh()
        yield Opened(threads, path, spool.path)
    finally:
        spool.remove()
