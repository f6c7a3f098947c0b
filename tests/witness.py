"""A witness of what operations must leave alone: every fact that was there, and everything outside the store.

Rules (DESIGN 2.2, 4): a record once written is never changed, so what a rollout held stays the beginning of what it
holds, be it compressed, archived or neither; so does the index of names; and outside the store no file is changed,
added or removed. `install` puts a witness beside every operation that is done in this process; who starts other
processes keeps one of their own.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard
from threadstore.names import parse_rollout
from threadstore.store import ThreadStore

OPERATIONS = ("fork", "revert", "undo", "compact")
#: What lies beside a test's store and is written by the one who reads or serves it.
_OWN = ("spool", ".spool", "cache", "state", "mnt", ".log")
_INDEX = "session_index.jsonl"


@dataclass(frozen=True, slots=True)
class Fact:
    """The length of a file's content, decoded, in bytes, and its hash."""

    size: int
    digest: str

    @classmethod
    def of(cls, data: bytes) -> Fact:
        """That of some content."""
        return cls(len(data), hashlib.sha256(data).hexdigest())

    def begins(self, data: bytes) -> bool:
        """True when the content is what that begins with."""
        return Fact.of(data[: self.size]) == self


@dataclass(slots=True)
class Witness:
    """Remembers a store, and the folder `around` it (the one that it lies in), where that belongs to the test alone."""

    root: Path
    around: Path | None = None
    facts: dict[str, Fact] = field(init=False)
    outside: dict[str, tuple[Fact, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.around = self.around or self.root.resolve().parent
        self.facts = {name: Fact.of(_content(path)) for name, path in _facts(self.root)}
        self.outside = self._beside()

    def lost(self) -> list[str]:
        """What has been changed or taken away that nobody may touch."""
        there: dict[str, list[Path]] = {}
        for name, path in _facts(self.root):
            there.setdefault(name, []).append(path)
        wrong = [
            f"{name}: its first {fact.size} bytes are not what they were"
            for name, fact in self.facts.items()
            if not any(fact.begins(_content(path)) for path in there.get(name, ()))
        ]
        now = self._beside()
        changed = {name for name in self.outside.keys() | now.keys() if self.outside.get(name) != now.get(name)}
        return wrong + [f"{name}, outside the store, was touched" for name in sorted(changed)]

    def check(self) -> None:
        """Fail when something was."""
        wrong = self.lost()
        assert not wrong, "\n".join(wrong)

    def _beside(self) -> dict[str, tuple[Fact, int]]:
        """The content of every file beside a store, and its ctime, which nobody can set: the same bytes written again
        are a touch, too.
        """
        assert self.around is not None
        if not any(part.startswith("pytest-of-") for part in self.around.parts[:-2]):
            return {}
        store = {self.root.resolve(), *(path.resolve() for path in self.root.iterdir() if path.is_symlink())}
        found: dict[str, tuple[Fact, int]] = {}
        for at, folders, files in os.walk(self.around):
            here = Path(at)
            folders[:] = [
                name
                for name in folders
                if not name.endswith(_OWN) and here / name not in store and not os.path.ismount(here / name)
            ]
            for path in (here / name for name in files if not name.endswith(_OWN)):
                status = path.lstat()
                content = _content(path) if stat.S_ISREG(status.st_mode) else b"%o" % status.st_mode
                found[str(path.relative_to(self.around))] = Fact.of(content), status.st_ctime_ns
        return found


def install() -> None:
    """From now on every operation in this process is watched, whether it succeeds or fails."""
    for name in OPERATIONS:
        setattr(ThreadStore, name, _watched(getattr(ThreadStore, name)))


@contextmanager
def away() -> Iterator[None]:
    """While a test itself changes files in the middle of an operation."""
    global _is_away
    _is_away = True
    try:
        yield
    finally:
        _is_away = False


_is_away = False  # see `away`


def _watched(operation: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(operation)
    def watched(store: ThreadStore, *arguments: Any, **options: Any) -> Any:
        if _is_away:
            return operation(store, *arguments, **options)
        witness = Witness(Path(store.root))
        try:
            return operation(store, *arguments, **options)
        finally:
            witness.check()

    return watched


def _facts(root: Path) -> Iterator[tuple[str, Path]]:
    """The rollouts by their own names and the index of names."""
    for folder in ("sessions", "archived_sessions"):
        for path in (root / folder).rglob("rollout-*"):
            if path.is_file() and parse_rollout(str(path.relative_to(root))):
                yield path.name.removesuffix(".zst"), path
    if (root / _INDEX).is_file():
        yield _INDEX, root / _INDEX


def _content(path: Path) -> bytes:
    """The bytes of a file, decoded as far as that goes; nothing for one that is gone by now."""
    with suppress(FileNotFoundError):
        with open(os.open(path, os.O_RDONLY | os.O_NOATIME), "rb") as file:
            data = file.read()
        if path.suffix != ".zst":
            return data
        with suppress(zstandard.ZstdError):
            return zstandard.ZstdDecompressor().decompressobj(read_across_frames=True).decompress(data)
        return data
    return b""
