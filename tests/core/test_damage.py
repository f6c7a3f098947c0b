"""Any bytes as a rollout give a result or named problems; nothing but a StoreError is ever raised."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from threadstore.errors import StoreError
from threadstore.projection import StoreView, View
from threadstore.store import ThreadStore

from tests.core.logs import Log, content, open_store, rollout_name, thread_id, user
from tests.core.threads import logs
from tests.corpus_store import store_folders

FEW = settings(max_examples=settings().max_examples // 3)
THREAD = thread_id(1)


def read_all(store: ThreadStore, thread: str) -> dict[View, bytes | None]:
    """Every derived file, each with well-formed content or an error that says why there is none."""
    found: dict[View, bytes | None] = {}
    for view in View:
        projection = store.project(thread, view)
        if projection.extents is None:
            assert projection.error
            found[view] = None
            continue
        data = found[view] = content(store, projection)
        if view in (View.TRANSCRIPT, View.DROPPED):
            assert data.decode().endswith("\n" if view is View.TRANSCRIPT or data else "")
            continue
        for line in data.split(b"\n")[:-1] if view.value.endswith(".jsonl") else [data]:
            json.loads(line)
    return found


def check(data: bytes, name: str = rollout_name(THREAD), *others: tuple[str, bytes]) -> dict[View, bytes | None]:
    """A store with this file can be read through; what is no record is named."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        for path, content_of in ((name, data), *others):
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_bytes(content_of)
        store = open_store(home)
        found = read_all(store, THREAD)
        for view in StoreView:
            content(store, store.project_store(view))
        for thread in store.thread_ids():
            store.links(thread)
            store.times(thread)
            store.cost(thread)
            for rollout in store.rollouts(thread):
                content(store, store.project_rollout(rollout))
        counts = json.loads(found[View.THREAD] or b"{}")["counts"]
        problems = (found[View.PROBLEMS] or b"").count(b"\n")
        assert problems >= counts["damaged"]
        return found


PARTS = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from(
            [
                b"\n",
                b"\0" * 9,
                b'{"timestamp":"2026-11-29T10:00:00.000Z",',
                b'"type":"response_item","payload":{',
                b'"type":"event_msg","payload":{"type":"task_started","turn_id":"t"}}\n',
                b'{"timestamp":"2026-11-29T10:00:00.000Z","type":"compacted","payload":{"message":"m"}}\n',
                b'"type":"session_meta","payload":{"id":"x"}}\n',
                b'{"record_type":"state"}\n',
                b'{"id":"x","timestamp":"2025-06-01T10:00:00.000Z"}\n',
                b'{"type":"message","role":"user","content":[]}\n',
                b"\xef\xbb\xbf",
                b"\xc3",
                b"[[[[[[[[",
                b"}]}",
            ]
        ),
    ),
    max_size=12,
)


@FEW
@given(PARTS.map(b"".join))
@example(b"")
@example(b"\n")
@example(b"\n\n \n")
@example(b"[" * 200_000)
@example(b'{"a":' * 200_000)
@example(b'\0\n{"record_type":"state"}\n{"type":"message","role":"user","content":[]}\n')
@example(b"\0" * 70_000 + b'\n{"record_type":"state"}\n{"type":"message","role":"user","content":[]}\n')
def test_any_bytes(data: bytes) -> None:
    """Any byte string as a file gives every view, or an error that is named."""
    check(data)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 70), 1 << 70),
        st.floats(),
        st.sampled_from(["", "message", "user", "x", "/root", "0" * 40, "\ud800"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["type", "id", "text"]), inner)
    ),
    max_leaves=4,
)


@st.composite
def disturbed(draw: st.DrawFn) -> bytes:
    """A log in which some member of some record has a value of another kind, or is gone."""
    log = draw(logs())
    lines = list(log.lines)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        document: Any = json.loads(lines[at])
        place: Any = document
        while True:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
            inner = place[key]
            if isinstance(inner, (dict, list)) and inner and draw(st.booleans()):
                place = inner
                continue
            if draw(st.booleans()):
                place[key] = draw(VALUES)
            else:
                del place[key]
            break
        lines[at] = json.dumps(document).encode() + b"\n"
        if not document:
            break
    return b"".join(lines)


@FEW
@given(disturbed())
def test_members_of_any_kind(data: bytes) -> None:
    """A record with members of wrong kinds is passed over or read; it never takes the rest with it."""
    check(data)


@pytest.mark.parametrize(
    "base",
    [
        {"thread_id": thread_id(1), "end_ordinal_exclusive": 3, "end_byte_offset": 10},
        {"thread_id": thread_id(2), "end_ordinal_exclusive": 0, "end_byte_offset": 10},
        {"thread_id": thread_id(2), "end_ordinal_exclusive": 1, "end_byte_offset": 1 << 63},
        {"thread_id": thread_id(2), "end_ordinal_exclusive": 1, "end_byte_offset": -1},
        {"thread_id": thread_id(2), "end_ordinal_exclusive": 1, "end_byte_offset": True},
        {"thread_id": thread_id(3), "end_ordinal_exclusive": 1, "end_byte_offset": 1},
        {"thread_id": "../../etc/passwd", "end_ordinal_exclusive": 1, "end_byte_offset": 1},
        {"thread_id": 7},
        "text",
        [],
    ],
)
def test_bases_of_any_kind(base: object) -> None:
    """A base that leads nowhere is an error of the derived files; raw records and problems still tell what there is."""
    parent = Log(True, thread_id(2)).item(user("inherited"))
    child = Log(True, THREAD, meta={"history_base": base}).item(user("own"))
    found = check(child.data, child.name, (parent.name, parent.data))
    assert b"own" in (found[View.FULL_HISTORY] or b"")
    assert found[View.EFFECTIVE_HISTORY] is None or b"inherited" not in (found[View.EFFECTIVE_HISTORY] or b"")


# Real logs, damaged


@cache
def real_logs() -> list[tuple[str, bytes]]:
    """Small rollouts of the corpus, one of each store."""
    found = []
    for folder in store_folders().values():
        paths = [path for path in folder.rglob("rollout-*.jsonl") if path.stat().st_size < 60_000]
        if paths:
            path = min(paths, key=lambda path: (-path.stat().st_size, path.name))
            found.append((path.name, path.read_bytes()))
    return found


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A real log with a few bytes or lines changed, added, taken away or doubled."""
    _, original = draw(st.sampled_from(real_logs()))
    data = original
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["flip", "insert", "delete", "truncate", "double line", "drop line", "swap lines"]))
        if kind == "flip":
            data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :] if data else data
        elif kind == "insert":
            data = data[:at] + draw(st.binary(min_size=1, max_size=5) | st.just(b"\0" * 500)) + data[at:]
        elif kind == "delete":
            data = data[:at] + data[at + draw(st.integers(1, 400)) :]
        elif kind == "truncate":
            data = data[:at]
        else:
            lines = data.splitlines(keepends=True)
            if lines:
                number = draw(st.integers(0, len(lines) - 1))
                taken = lines[number] if kind == "double line" else lines.pop(number)
                if kind != "drop line":
                    lines.insert(draw(st.integers(0, len(lines))), taken)
                data = b"".join(lines)
    return data


@FEW
@given(damaged())
def test_damaged_real_logs(data: bytes) -> None:
    """Whatever happens to a real log, every view has an answer."""
    check(data)


@FEW
@given(damaged())
def test_damage_stays_in_its_thread(data: bytes) -> None:
    """FAULTS, general answers: one damaged thread never changes another's output."""
    neighbour = Log(True, thread_id(2)).turn("1", "hello")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        (home / neighbour.name).parent.mkdir(parents=True)
        (home / neighbour.name).write_bytes(neighbour.data)
        before = read_all(open_store(home), neighbour.thread)
        (home / rollout_name(THREAD)).write_bytes(data)
        store = open_store(home)
        read_all(store, THREAD)
        assert read_all(store, neighbour.thread) == before


@FEW
@given(st.binary(max_size=60), st.integers(0, 200), st.booleans())
def test_any_bytes_compressed(noise: bytes, at: int, inside: bool) -> None:
    """A `.zst` of any bytes, or one with noise in it, is decoded as far as it goes; a checksum tells of the noise."""
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(Log(True, THREAD).turn("1", "hello").data)
    data = whole[:at] + noise + whole[at + len(noise) :] if inside else noise
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        path = home / (rollout_name(THREAD) + ".zst")
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        store = open_store(home)
        try:
            found = read_all(store, THREAD)
        except StoreError:
            return
        assert data == whole or found[View.PROBLEMS]
