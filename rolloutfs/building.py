"""`rolloutfs index`: bring the index of a store up to date now, instead of beside a mount."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing

from threadstore.errors import StoreError
from threadstore.index import IndexReader
from threadstore.indexing import Indexer
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import checks, indexing, logs, spoolfolder
from rolloutfs.errors import Exit, MountError
from rolloutfs.harmless import json_line

_STEP = 0.2  # seconds between two moves of the progress bar


def build(store: str, say: Callable[[str], None], how: str, *, as_json: bool) -> None:
    """Enter every thread that changed, and say how many and where. Raises MountError."""
    logs.to_terminal()
    root = checks.store_root(store, how)
    path = indexing.place(root, root)
    if path is None:
        raise MountError(f"The cache of this user lies in {root}: set XDG_CACHE_HOME to another folder.", Exit.FAILED)
    spool = spoolfolder.make(root, os.path.join(root, "sessions"), os.path.join(root, "archived_sessions"))
    try:
        with closing(Indexer(ThreadStore(root, Spool(spool.path), index=IndexReader(path)), path)) as indexer:
            entered, total = catch_up(indexer)
    except (sqlite3.Error, OSError) as error:
        raise MountError(f"The index {path} can't be written: {error}.", Exit.FAILED) from error
    except StoreError as error:
        raise MountError(error.message, Exit.STORE) from error
    finally:
        spool.remove()
    if as_json:
        say(json_line({"index": path, "threads": total, "entered": entered}))
    else:
        say(f"{total:,} threads, of which {entered:,} had changed: {path}")


def catch_up(indexer: Indexer) -> tuple[int, int]:
    """Enter what has changed, with a bar where stderr is a terminal. Threads that were entered, and all of them."""
    try:
        return _pass(indexer)
    except sqlite3.DatabaseError:  # a damaged one has been thrown away
        return _pass(indexer)


def _pass(indexer: Indexer) -> tuple[int, int]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("threads"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    last: str | None = ""
    entered = total = 0
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("")
        while last is not None:
            progress = indexer.advance(last, _STEP)
            if progress is None:  # a mount is at it; it takes turns
                time.sleep(_STEP)
                continue
            last, total, entered = progress.last, progress.total, entered + progress.entered
            bar.update(task, completed=progress.done, total=total)
    return entered, total
