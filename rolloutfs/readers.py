"""What an open file in the mount reads from. One reader serves all handles of one inode.

    Version   what a file contains at this moment, as far as `stat` or a replay can tell; no file is kept open for it
    Reader    a version pinned for reading; it follows a newer version when the old content is a prefix of it

A reader never gives wrong bytes and never fewer than there are: the kernel takes a short reply for the end of the file.
When a source was cut or rewritten under it, the answer is EIO from then on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

from threadstore.extents import Extents, Slice
from threadstore.projection import Basis, Outline, Projection

from rolloutfs.fds import Guard, OpenFile, OpenFiles

_BETWEEN = 4096  # bytes that are read and thrown away rather than asking once more: a call costs as much
_TIMES = 4  # as much as is wanted of what lies behind them, at most: an answer holds all of it until it is put together


def mark_of(signature: object) -> int:
    """Tells signatures apart, in 64 bits of which one is set: one names every file that the content was made from."""
    return int.from_bytes(blake2b(repr(signature).encode("utf-8", "surrogatepass"), digest_size=8).digest()) or 1


_mark_of_basis: Callable[[tuple[Basis, ...]], int] = lru_cache(64)(mark_of)  # most files of a thread have the same


@dataclass(frozen=True, slots=True)
class Literal:
    """Content that lies in memory."""

    content: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.content)

    @property
    def signature(self) -> object:
        """Equal for equal content, and small: it is remembered when the content is no longer needed."""
        return blake2b(self.content, digest_size=16).digest()

    @property
    def mark(self) -> int:
        """`mark_of` that."""
        return mark_of(self.signature)


@dataclass(frozen=True, slots=True)
class Plain:
    """A whole file of the store, as `stat` found it; `mode` is its own without group and other."""

    path: str
    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int

    @classmethod
    def of(cls, path: str, status: os.stat_result) -> Plain:
        """From the answer of `stat`."""
        return cls(
            path,
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_mode & 0o700,
        )

    @property
    def signature(self) -> object:
        """Equal for equal content, as far as `stat` can tell."""
        return (self.dev, self.ino, self.size, self.mtime_ns)

    @property
    def mark(self) -> int:
        """`mark_of` that."""
        return mark_of(self.signature)


@dataclass(frozen=True, slots=True)
class Derived:
    """A projection; `extents` is None while only its size is needed, or when it can't be given at all.

    `projection` has no extents of its own here. `given` is False for content that can't be given truthfully.
    """

    projection: Projection
    size: int
    extents: Extents | None
    given: bool

    @classmethod
    def of(cls, projection: Projection) -> Derived:
        """With all that a reader needs."""
        extents = projection.extents
        bare = Projection(None, projection.basis, projection.generation, projection.error)
        return cls(bare, projection.size, extents, extents is not None)

    @classmethod
    def outlined(cls, outline: Outline) -> Derived:
        """From what the index knows."""
        return cls(Projection(None, outline.basis, outline.generation), outline.size, None, given=True)

    def outline(self) -> Derived:
        """The same without extents: small enough to be kept for every file."""
        return self if self.extents is None else Derived(self.projection, self.size, None, self.given)

    @property
    def signature(self) -> object:
        """Equal for equal content."""
        return (self.projection.generation, self.size, self.projection.basis)

    @property
    def mark(self) -> int:
        """Stands for that."""
        return mark_of((self.projection.generation, self.size, _mark_of_basis(self.projection.basis)))


Version = Literal | Plain | Derived


class Reader(Protocol):
    """A version pinned for reading."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def mark(self) -> int:
        """That of the newest version that has this content."""

    def follow(self, version: Version) -> bool:
        """Go on with a newer version, if what is being read is a prefix of it."""

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes, fewer only at the end of the content."""

    def close(self) -> None:
        """Let go of the pinned files."""


def reader(version: Version, files: OpenFiles) -> Reader:
    """Pin a version. Raises OSError: ESTALE or ENOENT when it no longer holds."""
    if isinstance(version, Literal):
        return _LiteralReader(version)
    if isinstance(version, Plain):
        return _PlainReader(version, files)
    return _DerivedReader(version, files)


class WholeReader(Reader, Protocol):
    """A reader of content that is one file as a whole, so that the kernel may read it by itself."""

    @property
    def descriptor(self) -> int:
        """The file, open."""


def whole_reader(version: Version, files: OpenFiles) -> WholeReader | None:
    """Pin a version that is a file as a whole; None for another one. Raises OSError as `reader` does."""
    if isinstance(version, Plain):
        return _LiveReader(version, files)
    if not isinstance(version, Derived) or version.extents is None or len(version.extents.sources) != 1:
        return None
    extents, limit = version.extents, version.extents.sources[0].limit
    return _CopyReader(version, files) if [*extents.plan(0, limit + 1)] == [Slice(0, 0, limit)] else None


#: Mark, size in bytes and generation of what a `LateReader` reads.
LateOutline = tuple[int, int, bytes]


class _LiteralReader:
    def __init__(self, version: Literal) -> None:
        self._content = version.content
        self.size = version.size
        self.mark = version.mark

    def follow(self, version: Version) -> bool:
        return isinstance(version, Literal) and version.content == self._content

    def read(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]

    def close(self) -> None:
        pass


class _PlainReader:
    def __init__(self, version: Plain, files: OpenFiles) -> None:
        self._files = files
        self._file, self._guard = files.pin_guarded(version.path, version.dev, version.ino, version.size)
        self.size = version.size
        self._version = version

    @property
    def mark(self) -> int:
        return self._version.mark

    def follow(self, version: Version) -> bool:
        if not isinstance(version, Plain) or (version.dev, version.ino) != self._file.identity:
            return False
        if version.size < self.size or not self._guard.intact():
            return False
        if version.size > self.size:
            self._guard.extend(version.size)
            self.size = version.size
        self._version = version
        return True

    def read(self, offset: int, length: int) -> bytes:
        if not self._guard.intact():
            raise _changed()
        data = _pread(self._file.descriptor, length, offset)
        if len(data) < min(length, self.size - offset):
            raise _changed()
        return data

    def close(self) -> None:
        self._files.unpin(self._file)


class _LiveReader:
    """A file of the store: at each moment its content is what the file holds, also when that was cut."""

    def __init__(self, version: Plain, files: OpenFiles) -> None:
        self._files = files
        self._file = files.pin(version.path, version.dev, version.ino)
        self.size = version.size
        self._version = version

    @property
    def mark(self) -> int:
        return self._version.mark

    @property
    def descriptor(self) -> int:
        return self._file.descriptor

    def follow(self, version: Version) -> bool:
        if not isinstance(version, Plain) or (version.dev, version.ino) != self._file.identity:
            return False
        self.size, self._version = version.size, version
        return True

    def read(self, offset: int, length: int) -> bytes:
        return _pread(self._file.descriptor, length, offset)

    def close(self) -> None:
        self._files.unpin(self._file)


class _DerivedReader:
    """`known` is the one file that the bytes lie in, where it has been guarded for some time."""

    def __init__(self, version: Derived, files: OpenFiles, known: tuple[OpenFile, Guard] | None = None) -> None:
        if version.extents is None:
            raise OSError(errno.EIO, version.projection.error or "This can't be told from what is in the store")
        self._files = files
        self._extents = version.extents
        self._generation = version.projection.generation
        self._pinned = self._pin(version.extents, known)
        self.size = version.size
        self._version = version

    @property
    def mark(self) -> int:
        return self._version.mark

    def _pin(self, extents: Extents, known: tuple[OpenFile, Guard] | None = None) -> list[tuple[OpenFile, Guard]]:
        pinned: list[tuple[OpenFile, Guard]] = []
        try:
            for source in extents.sources:
                pinned.append(self._files.pin_guarded(source.path, source.dev, source.ino, source.limit, known))
        except OSError:
            self._release(pinned)
            raise
        return pinned

    def _release(self, pinned: list[tuple[OpenFile, Guard]]) -> None:
        for file, _ in pinned:
            self._files.unpin(file)

    def follow(self, version: Version) -> bool:
        if not isinstance(version, Derived) or version.projection.generation != self._generation:
            return False
        if version.size < self.size or not all(guard.intact() for _, guard in self._pinned):
            return False
        if version.extents is not None and version.size > self.size:
            try:
                pinned = self._pin(version.extents)
            except OSError:  # changed again: what we have still holds, and the next look finds the newer state
                return True
            self._release(self._pinned)
            self._pinned, self._extents, self.size = pinned, version.extents, version.size
        if version.size == self.size:
            self._version = version
        return True

    def read(self, offset: int, length: int) -> bytes:
        plan = [*self._extents.plan(offset, length)]
        parts: list[bytes | memoryview] = [part if isinstance(part, bytes) else b"" for part in plan]
        slices = [(number, part) for number, part in enumerate(plan) if isinstance(part, Slice)]
        for run in _runs(slices):
            source, begin, _ = run[0][1]
            _, last, size = run[-1][1]
            data = memoryview(_pread(self._pinned[source][0].descriptor, last + size - begin, begin))
            if len(data) < last + size - begin:
                raise _changed()
            for number, (_, at, size) in run:
                parts[number] = data[at - begin : at - begin + size]
        # Looked at afterwards, once for all that was read.
        if not all(self._pinned[source][1].intact() for source in {part.source for _, part in slices}):
            raise _changed()
        return b"".join(parts)

    def close(self) -> None:
        self._release(self._pinned)


class LateReader:
    """Derived content that was opened before, of which it is looked up only when it is needed where its bytes lie: in
    `file`, which is pinned already, as `guard` says. `mark` is that of the version.

    Invariant: `_reader` is None and the file pinned, or the other one is what reads.
    """

    __slots__ = ("_extents", "_file", "_files", "_generation", "_guard", "_mark", "_reader", "_size")

    def __init__(
        self, files: OpenFiles, file: OpenFile, guard: Guard, extents: Callable[[], Extents], outline: LateOutline
    ) -> None:
        self._files, self._file, self._guard = files, file, guard
        self._extents = extents
        self._mark, self._size, self._generation = outline
        self._reader: _DerivedReader | None = None

    @property
    def size(self) -> int:
        """As `Reader` says."""
        return self._size if self._reader is None else self._reader.size

    @property
    def mark(self) -> int:
        """As `Reader` says."""
        return self._mark

    def follow(self, version: Version) -> bool:
        """As `Reader` says."""
        reads = self._looked_up()
        follows = reads.follow(version)
        if follows and version.size == reads.size:
            self._mark = reads.mark
        return follows

    def read(self, offset: int, length: int) -> bytes:
        """As `Reader` says."""
        return self._looked_up().read(offset, length)

    def close(self) -> None:
        """As `Reader` says."""
        if self._reader is None:
            self._files.unpin(self._file)
        else:
            self._reader.close()

    def _looked_up(self) -> _DerivedReader:
        if self._reader is None:
            version = Derived(Projection(None, (), self._generation), self._size, self._extents(), given=True)
            try:
                self._reader = _DerivedReader(version, self._files, (self._file, self._guard))
            except OSError as error:  # its bytes were changed since it was opened
                raise _changed() from error
            self._files.unpin(self._file)
        return self._reader


class _CopyReader(_DerivedReader):
    """A decoded copy of a file. One that is longer is another copy."""

    @property
    def descriptor(self) -> int:
        return self._pinned[0][0].descriptor

    def follow(self, version: Version) -> bool:
        return isinstance(version, Derived) and version.size == self.size and super().follow(version)


def _runs(slices: Sequence[tuple[int, Slice]]) -> Iterator[Sequence[tuple[int, Slice]]]:
    """Cut into what one read gives: slices of one file, in the order of their places, with little between them."""
    begin = 0
    for number in range(1, len(slices) + 1):
        if number < len(slices):
            before, part = slices[number - 1][1], slices[number][1]
            between = part.offset - before.offset - before.length
            if part.source == before.source and 0 <= between <= min(_BETWEEN, _TIMES * part.length):
                continue
        yield slices[begin:number]
        begin = number


def _changed() -> OSError:
    return OSError(errno.EIO, "The log that this content lies in was changed while it was being read")


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data
