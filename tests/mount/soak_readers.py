"""Who reads in the soak test, and how everything that is read is compared with what the library makes afresh.

A reader that holds nobody up asks the library before and after it reads. When both answers were made of the same files
in the same state, there was no other state in between, and what was read must be just that. Otherwise it lies between
the two where a file only grows, and has whole lines in any case. `compare` has the store to itself: there is one right
answer then, for every file.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import shlex
import subprocess
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path

import zstandard
from threadstore.errors import StoreError
from threadstore.projection import StoreView, View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.core.reading import content
from tests.mount.clients import LIMIT, environment
from tests.mount.conftest import until

CURRENT = "rollouts/current"
VIEWS = {view.value: view for view in View if view is not View.LINEAGE} | {"lineage/lineage.json": View.LINEAGE}
FILES = (*VIEWS, CURRENT)
_OF_REVERTS = (View.DROPPED.value, View.DROPPED_TURNS.value)  # are there with a second rollout
GROWING = ("effective_history.jsonl", "full_history.jsonl", CURRENT)  # while nothing but appends happens
COMMANDS = ("cat", "tail -n 2", "tail -c 3000", "head -c 100", "grep -c said", "grep -n turn", "wc -c", "sha256sum")
_HELD = 8  # files that a reader keeps open
_REPLACING = (b'"thread_rolled_back"', b'"type":"compacted"')
_TRIES = 50  # at a store that changes while the library looks


class Verdict(Enum):
    """How exactly something could be compared."""

    EXACT = auto()  # with the one state that there was
    BETWEEN = auto()  # with the states before and after
    WHOLE = auto()  # the content was replaced meanwhile: whole lines


@dataclass(frozen=True, slots=True)
class Made:
    """What the library makes of a file: its bytes, or the errno that says why not; and what they were made from.
    `replaced` counts the records of the log that take turns back or replace them.
    """

    content: bytes | int
    basis: tuple[object, ...] = ()
    replaced: int = 0


GONE = Made(errno.ENOENT)


class Library:
    """The same store, read by somebody who has seen nothing yet."""

    def __init__(self, root: Path, spool: Path) -> None:
        self._root = root
        self._spool = Spool(str(spool))

    def open(self) -> ThreadStore:
        """The store as it is now."""
        return ThreadStore(str(self._root), self._spool)

    def made(self, thread: str, name: str, opened: ThreadStore | None = None) -> Made:
        """A file of a thread; `opened` is a store that was opened just now. A file that moves meanwhile is looked for
        again, as the mount does.
        """
        for number in range(_TRIES):
            with suppress(FileNotFoundError, KeyError):
                store = self.open() if opened is None or number else opened
                if thread not in store:
                    return GONE
                if name in _OF_REVERTS and len(store.rollouts(thread)) < 2:
                    return GONE
                return self._raw(store, thread) if name == CURRENT else self._view(store, thread, VIEWS[name])
        raise AssertionError(f"{name} of {thread} never stands still")

    def _view(self, store: ThreadStore, thread: str, view: View) -> Made:
        try:
            projection = store.project(thread, view)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from error
            return Made(errno.EIO)
        names = [one.path for one in projection.basis if one.ino]
        basis = (projection.basis, *((self._root / name).stat().st_ctime_ns for name in names))  # a move leaves mtime
        data = errno.EIO if projection.extents is None else content(store, projection)
        return Made(data, basis, self._raw(store, thread).replaced)

    def _raw(self, store: ThreadStore, thread: str) -> Made:
        head = store.head(thread)
        with (self._root / head.path).open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read()
        if head.compressed:
            data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        replaced = sum(map(data.count, _REPLACING))
        return Made(data, (head.path, status.st_ino, status.st_ctime_ns, len(data)), replaced)


def judge(name: str, before: Made, got: bytes | int, after: Made) -> Verdict:
    """How what was read between two answers of the library agrees with them; AssertionError when it doesn't."""
    if before == after:
        assert got == before.content, f"{name}: {_short(got)} was read, {_short(before.content)} is right"
        return Verdict.EXACT
    if isinstance(got, int):
        assert got in (before.content, after.content), f"{name}: {errno.errorcode[got]}"
        return Verdict.WHOLE
    first, last = before.content, after.content
    if name in GROWING and _has_grown(before, after):
        assert isinstance(first, bytes)
        assert isinstance(last, bytes)
        assert got.startswith(first), f"{name} lacks something: {_short(got)} after {_short(first)}"
        assert last.startswith(got), f"{name} has something else: {_short(got)} before {_short(last)}"
        return Verdict.BETWEEN
    assert_whole(name, got)
    return Verdict.WHOLE


def _has_grown(before: Made, after: Made) -> bool:
    first, last = before.content, after.content
    if not isinstance(first, bytes) or not isinstance(last, bytes) or not last.startswith(first):
        return False
    return _place(before) == _place(after) and before.replaced == after.replaced


def _place(made: Made) -> object:
    """The rollout that is in force."""
    first = made.basis[0]
    return first[0][:3] if isinstance(first, tuple) else made.basis[:2]


def assert_whole(name: str, data: bytes) -> None:
    """A whole document, or nothing but whole lines of JSON; the last line of a log may still be being written."""
    if name.endswith(".md"):
        assert not data or data.decode().endswith("\n")
        return
    if name.endswith(".json"):
        json.loads(data)
        return
    *lines, rest = data.split(b"\n")
    assert name == CURRENT or rest == b"", f"{name} ends with {rest[-80:]!r}"
    for line in lines:
        if line or name != CURRENT:
            json.loads(line)


def _short(value: bytes | int) -> str:
    if isinstance(value, int):
        return errno.errorcode[value]
    return f"{len(value)} bytes ending with {value[-60:]!r}"


def attempt(read: Callable[[], bytes]) -> bytes | int:
    """What a read gives, or its errno."""
    try:
        return read()
    except OSError as error:
        return error.errno or errno.EIO


@dataclass(slots=True)
class _Held:
    """An open file and what was read when it was opened."""

    path: Path
    descriptor: int
    content: bytes


class Reader:
    """Reads one thing after the other and compares it. `verdicts` counts; `strange` has names that were listed although
    nobody said that such threads exist, for whoever knows better later.
    """

    def __init__(self, mountpoint: Path, library: Library, pick: Callable[[random.Random], str]) -> None:
        self.verdicts: Counter[Verdict] = Counter()
        self.done: Counter[str] = Counter()
        self.strange: set[str] = set()
        self._threads = mountpoint / "threads"
        self._library = library
        self._pick = pick
        self._held: deque[_Held] = deque()

    def visit(self, chance: random.Random) -> None:
        """Read something."""
        kind = chance.choice(("cat", "cat", "command", "command", "mapped", "hold", "again", "listing", "walk"))
        thread, name = self._pick(chance), chance.choice(FILES)
        getattr(self, kind)(thread, name, chance)
        self.done[kind] += 1

    def _between(self, thread: str, name: str, read: Callable[[Path], bytes]) -> bytes | int:
        before = self._library.made(thread, name)
        got = attempt(lambda: read(self._threads / thread / name))
        after = self._library.made(thread, name)
        self.verdicts[judge(f"{name}", before, got, after)] += 1
        return got

    def cat(self, thread: str, name: str, chance: random.Random) -> None:
        """From one end to the other, in pieces of some size; there are as many bytes as `fstat` said, or more."""
        length = chance.choice((1000, 4096, 1 << 17, 1 << 20))

        def read(path: Path) -> bytes:
            with path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                data = b"".join(iter(lambda: file.read(length), b""))
            assert len(data) >= size, f"{name}: {size} bytes were announced, {len(data)} came"
            return data

        self._between(thread, name, read)

    def mapped(self, thread: str, name: str, chance: random.Random) -> None:
        """Through a mapping of the file."""

        def read(path: Path) -> bytes:
            with path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size == 0:
                    return file.read()
                with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapping:
                    return mapping[:]

        self._between(thread, name, read)

    def command(self, thread: str, name: str, chance: random.Random) -> None:
        """A program says of the file in the mount what it says of the same bytes."""
        command = chance.choice(COMMANDS)
        before = self._library.made(thread, name)
        code, output = _run(f"{command} < {shlex.quote(str(self._threads / thread / name))}", b"", self._threads)
        after = self._library.made(thread, name)
        if before != after or isinstance(before.content, int):
            self.verdicts[Verdict.WHOLE] += 1
        else:
            expected = _run(command, before.content, self._threads)
            assert (code, output) == expected, (
                f"{command} of {thread}/{name}: {code}, {output[-300:]!r}, not {expected[0]}, {expected[1][-300:]!r}"
            )
            self.verdicts[Verdict.EXACT] += 1

    def hold(self, thread: str, name: str, chance: random.Random) -> None:
        """Keep a file open for a while."""
        path = self._threads / thread / name
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            self._held.append(_Held(path, descriptor, b""))
            self._held[-1].content = _whole(descriptor)
        while len(self._held) > _HELD:
            self._close()

    def again(self, thread: str, name: str, chance: random.Random) -> None:
        """A file that is kept open has what it had, and may have more."""
        if self._held:
            held = chance.choice(self._held)
            data = _whole(held.descriptor)
            assert data.startswith(held.content), f"{held.path}, open: {_difference(held.content, data)}"
            held.content = data

    def listing(self, thread: str, name: str, chance: random.Random) -> None:
        """Every thread that is there all the time is listed."""
        before = set(self._library.open().thread_ids())
        listed = os.listdir(self._threads)
        after = set(self._library.open().thread_ids())
        assert len(listed) == len(set(listed))
        assert before & after <= set(listed), f"{before & after - set(listed)} is not listed"
        self.strange |= set(listed) - before - after

    def walk(self, thread: str, name: str, chance: random.Random) -> None:
        """What people run over a whole thread: files may go meanwhile, but none can fail."""
        commands = ("ls -lR", "find", "grep -rc said", "du -a", "head -qn 1 rollouts/*")
        _, errors = _run(f"(cd {thread} && {chance.choice(commands)}) 2>&1 >/dev/null", b"", self._threads)
        assert b"Input/output" not in errors, errors
        assert b"Stale" not in errors, errors

    def let_go(self) -> None:
        """Close what is kept open."""
        while self._held:
            self._close()

    def _close(self) -> None:
        os.close(self._held.popleft().descriptor)


def _whole(descriptor: int) -> bytes:
    data = b""
    while piece := os.pread(descriptor, 1 << 20, len(data)):
        data += piece
    return data


def _run(command: str, data: bytes, cwd: Path) -> tuple[int, bytes]:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env=environment(cwd.parent),
        input=data,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode, done.stdout


class Comparer:
    """Compares the mount with the library while nobody changes the store."""

    def __init__(self, mountpoint: Path, library: Library) -> None:
        self.compared = 0
        self._mountpoint = mountpoint
        self._library = library

    def file(self, thread: str, name: str, opened: ThreadStore | None = None) -> None:
        """`stat` (as soon as the kernel was told) and a fresh open say what the library says."""
        path = self._mountpoint / "threads" / thread / name
        made = self._library.made(thread, name, opened)

        def is_right() -> bool:
            nonlocal made
            if self._size(path) == _size(made):
                return True
            made = self._library.made(thread, name)
            return self._size(path) == _size(made)

        for _ in range(_TRIES):
            until(is_right, f"stat of {path} is right")
            got = attempt(path.read_bytes)
            before, made = made, (made if got == made.content else self._library.made(thread, name))
            if before == made:  # else Codex has written a row, which it does late
                judge(f"{thread}/{name}", before, got, made)
                self.compared += 1
                return
        raise AssertionError("the store never stands still")

    def _size(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError as error:
            return -(error.errno or errno.EIO)

    def names(self) -> set[str]:
        """The threads are those of the library, and each has the right rollout in force."""
        store = self._library.open()
        listed = os.listdir(self._mountpoint / "threads")
        assert sorted(listed) == store.thread_ids()
        for thread in listed:
            self._head(thread, store.head(thread).shown)
        return set(listed)

    def _head(self, thread: str, expected: str) -> None:
        link = self._mountpoint / "threads" / thread / CURRENT
        until(lambda: os.readlink(link) in (expected, self._library.open().head(thread).shown), f"{link} is right")

    def everything(self) -> set[str]:
        """Every file; gives the threads."""
        listed = self.names()
        opened = self._library.open()
        for thread in listed:
            for name in FILES:
                self.file(thread, name, opened)
        for view in StoreView:
            until(partial(self._is_right, view), f"{view.value} is right")
        return listed

    def _is_right(self, view: StoreView) -> bool:
        store = self._library.open()
        return (self._mountpoint / "store" / view.value).read_bytes() == content(store, store.project_store(view))


def _size(made: Made) -> int:
    """What `stat` is to say: a size, or a negative errno. A file that can't be given has size 0."""
    if isinstance(made.content, bytes):
        return len(made.content)
    return -made.content if made is GONE else 0


def _difference(before: bytes, now: bytes) -> str:
    """Where the content of a handle differs from what it was."""
    at = next((at for at, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]), len(now))
    return f"of {len(before)} bytes now {len(now)}, at {at} {before[at : at + 80]!r} became {now[at : at + 80]!r}"
