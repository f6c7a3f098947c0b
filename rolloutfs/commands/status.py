"""`rolloutfs status`: what is mounted, the state of the index, and versions."""

from __future__ import annotations

import os
import platform
import sqlite3
from contextlib import closing
from importlib import metadata
from typing import Any

from threadstore import index
from threadstore.search import indexed_threads

from rolloutfs import __version__, indexing, serving
from rolloutfs.harmless import harmless, json_line
from rolloutfs.serving import Mounted
from rolloutfs.table import say
from rolloutfs.times import local, utc

Json = dict[str, Any]


def status(store: str, *, as_json: bool) -> None:
    """Print it; changes nothing and needs no store."""
    mounted, its_index = serving.mounts(), _index(os.path.realpath(store))
    if as_json:
        mounts = [_mount(one) for one in mounted]
        say(
            json_line({"mounts": mounts, "store": os.path.realpath(store), "index": its_index, "versions": _versions()})
        )
        return
    for one in mounted:
        say(harmless(_sentence(one)))
    if not mounted:
        say("Nothing is mounted.")
    without = [one for one in mounted if one.store == os.path.realpath(store) and one.has_no_index]
    say(harmless(_index_sentence(store, its_index, without)))
    say(", ".join(f"{name} {version}" for name, version in _versions().items()))


def _mount(one: Mounted) -> Json:
    server = one.server
    return {
        "mountpoint": one.mountpoint,
        "store": one.store,
        "pid": None if server is None else server.pid,
        "since": None if server is None else utc(server.since),
        "answers": one.answers,
        "why": one.why,
        "no_index": one.has_no_index,
        "how": one.how,
    }


def _sentence(one: Mounted) -> str:
    server = one.server
    served = "by a process that is gone or not ours to see" if server is None else f"by process {server.pid}"
    since = "" if server is None or not server.since else f" since {local(server.since)}"
    store = "" if one.store is None else f" shows {one.store},"
    return f"{one.mountpoint}{store} served {served}{since}{_manner(one)}: {'answers' if one.answers else one.why}"


def _manner(one: Mounted) -> str:
    """What is unusual about a mount, as it says itself."""
    how = one.how or {}
    told = (
        (one.has_no_index, "without an index"),
        (how.get("read_only"), "read-only"),
        (how.get("mask_secrets"), "secrets masked"),
        (how.get("version", __version__) != __version__, f"by version {how.get('version')}"),
    )
    return "".join(f", {text}" for is_so, text in told if is_so)


def _index(root: str) -> Json:
    """Path, bytes and threads of the index of a store; none of both while there is none."""
    path = indexing.place(root, root)
    try:
        if path is None:
            return {"path": None, "bytes": None, "threads": None}
        ends = ("", "-wal")
        size = sum(os.stat(path + end).st_size for end in ends if end == "" or os.path.exists(path + end))
    except OSError:
        return {"path": path, "bytes": None, "threads": None}
    try:
        with closing(index.connect(path)) as connection:
            return {"path": path, "bytes": size, "threads": indexed_threads(connection)}
    except Exception:  # noqa: BLE001  a damaged file makes sqlite3 raise what it doesn't document
        return {"path": path, "bytes": size, "threads": None}


def _index_sentence(store: str, its: Json, without: list[Mounted]) -> str:
    """`without` are the mounts of the store that were told to keep none."""
    if its["path"] is None:
        return f"There is no index of {store}: the cache lies in the store."
    if its["bytes"] is None:
        why = f" {without[0].mountpoint} is mounted without one;" if without else ""
        return f"There is no index of {store}:{why} rolloutfs index, or a mount that keeps one, makes {its['path']}"
    threads = "can't be read" if its["threads"] is None else f"{its['threads']:,} threads"
    return f"The index of {store}: {threads}, {its['bytes']:,} bytes, {its['path']}"


def _versions() -> dict[str, str]:
    return {
        "rolloutfs": __version__,
        "index": index.edition(),
        "Python": platform.python_version(),
        "pyfuse3": metadata.version("pyfuse3"),
        "SQLite": sqlite3.sqlite_version,
        "Linux": platform.release(),
    }
