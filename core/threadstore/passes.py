"""How far a pass over a log has come, so that it can go on when the log has grown, also in another process.

What a pass has found is kept in the index for large threads: a turn appended to a log of a gigabyte then costs its own
bytes, also after a restart. It is written with pickle and read by an unpickler that makes nothing but the few classes
of this library that passes consist of.
"""

from __future__ import annotations

import io
import pickle
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import EnumType
from hashlib import blake2b
from typing import Any, Final

import zstandard

from threadstore.files import pread_exactly
from threadstore.lines import CHUNK
from threadstore.opened import OpenFile, OpenLineage
from threadstore.projection import Basis

_DIGEST = 16  # bytes
_BLOCK = CHUNK  # bytes; what is read at once from a file's beginning is a block
_FILES = 16  # of which a `Digester` remembers blocks
_COMPARED = 8  # blocks at the end of a file that another process compares before it goes on
_TRUSTED = 86_400  # seconds after which it compares all of them
#: Modules of ours whose classes passes consist of.
_OWN: Final = frozenset(
    f"threadstore.{name}"
    for name in ("checkpoints", "errors", "history", "parts", "passes", "records", "replay", "scan", "turns", "usage")
)


def _member(kind: Any, name: str) -> Any:
    """How Python 3.11 pickles a member of an enumeration: by `getattr`, which is good for nothing else here."""
    if not isinstance(kind, EnumType):
        raise pickle.UnpicklingError(f"{kind} is no enumeration")
    return kind[name]


_OTHERS: Final = {
    ("builtins", "getattr"): _member,
    ("array", "array"): array,
    ("array", "_array_reconstructor"): array.__reduce_ex__(array("B"), 3)[0],
    ("collections", "Counter"): Counter,
}


@dataclass(slots=True)
class Pass:
    """What a pass has read: it can go on while the files are the same and only the last one has grown.

    `consumed` is the first byte of the last file that was not taken into account, None when going on is impossible.
    `states` are sizes and times, `seams` the bytes before each end: a file written over in place is found by them.
    """

    files: tuple[bytes, ...]
    ends: tuple[int, ...]
    states: tuple[tuple[int, int], ...]
    seams: tuple[bytes, ...]
    consumed: int | None

    @classmethod
    def over(cls, lineage: OpenLineage) -> Pass:
        """A pass that begins now."""
        ends = lineage.ends()
        states = tuple((file.basis.size, file.basis.mtime_ns) for file in lineage.files)
        seams = tuple(lineage.seam(number, end) for number, end in enumerate(ends))
        return cls(lineage.identities(), ends, states, seams, None)

    def is_of(self, now: Pass) -> bool:
        """True when nothing has changed."""
        return (self.files, self.ends, self.states) == (now.files, now.ends, now.states)

    def continues(self, now: Pass, lineage: OpenLineage) -> bool:
        """True when the same pass can take in what was added."""
        if self.consumed is None or self.files != now.files:
            return False
        if self.ends[:-1] != now.ends[:-1] or self.ends[-1] > now.ends[-1]:
            return False
        grown = all(old == new or old[0] < new[0] for old, new in zip(self.states, now.states, strict=True))
        return grown and all(lineage.seam(number, end) == self.seams[number] for number, end in enumerate(self.ends))


@dataclass(frozen=True, slots=True)
class Blocks:
    """Digests of what passes have read of each file, up to its end then, in blocks of `_BLOCK` bytes.

    Another process can't have seen whether a log was also changed in the middle before something was appended. So it
    compares the last `_COMPARED` blocks, which for most logs are all, and goes on. If there are more, what it makes is
    `doubtful` until all of them were compared: by the next pass over the store, or before it goes on when `whole`, the
    time of the last such comparison (Unix, s), is too long ago. That reads the log, but decodes none of it.
    """

    ends: tuple[int, ...]
    digests: tuple[tuple[bytes, ...], ...]
    whole: float
    doubtful: bool = False

    @classmethod
    def over(cls, lineage: OpenLineage, known: Blocks | None = None, digester: Digester | None = None) -> Blocks:
        """Of all files of a lineage; whole blocks that are `known`, also to a digester, aren't read again."""
        before = known if known is not None and len(known.digests) == len(lineage.files) else None
        digests = []
        for number, end in enumerate(lineage.ends()):
            if before is not None:
                found = list(before.digests[number][: min(before.ends[number], end) // _BLOCK])
            else:
                found = [] if digester is None else digester.known(lineage.files[number])[: end // _BLOCK]
            found += _digests(lineage, number, len(found), end)
            digests.append(tuple(found))
        if before is None:
            return cls(lineage.ends(), tuple(digests), time.time())
        return cls(lineage.ends(), tuple(digests), before.whole, before.doubtful)

    def proven(self, lineage: OpenLineage, *, whole: bool = False) -> Blocks | None:
        """The same blocks after they were compared with what the files begin with now; None when that is something
        else. With `whole` all of them are compared, whatever was compared before.
        """
        ends = lineage.ends()
        if len(self.ends) != len(ends) or any(old > new for old, new in zip(self.ends, ends, strict=True)):
            return None
        whole = whole or not 0 <= time.time() - self.whole < _TRUSTED
        complete = True
        for number, (end, known) in enumerate(zip(self.ends, self.digests, strict=True)):
            first = 0 if whole else max(len(known) - _COMPARED, 0)
            complete = complete and first == 0
            if known[first:] != tuple(_digests(lineage, number, first, end)):
                return None
        return replace(self, whole=time.time(), doubtful=False) if complete else replace(self, doubtful=True)


class Digester:
    """Takes digests of the whole blocks of files while passes read these from their beginnings, for `Blocks`. Threads
    that inherit the same file share them.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[Basis, list[bytes]] = OrderedDict()

    def listen(self, file: OpenFile) -> None:
        """A pass begins to read the file."""
        found = self._found.setdefault(file.basis, [])
        if len(self._found) > _FILES:
            self._found.popitem(last=False)

        def take(offset: int, data: bytes) -> None:
            if offset == len(found) * _BLOCK and len(data) == _BLOCK:
                found.append(_digest(data))

        file.log.tap = take

    def known(self, file: OpenFile) -> list[bytes]:
        """The digests of its first blocks, as many as were taken."""
        return self._found.get(file.basis, [])


def _digests(lineage: OpenLineage, number: int, first: int, end: int) -> Iterator[bytes]:
    """Those of a file from block number `first` on, up to the offset `end`."""
    descriptor = lineage.files[number].log.descriptor
    for at in range(first * _BLOCK, end, _BLOCK):
        data = pread_exactly(descriptor, min(_BLOCK, end - at), at)
        yield _digest(data)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST).digest()


def packed(found: object) -> bytes:
    """What a pass has found, as bytes that tell when they were damaged."""
    data = zstandard.compress(pickle.dumps(found, protocol=5), 1)
    return _digest(data) + data


def unpacked(data: object) -> Any:
    """What `packed` was given; None for anything else."""
    if not isinstance(data, bytes) or _digest(data[_DIGEST:]) != data[:_DIGEST]:
        return None
    try:
        return _Unpickler(io.BytesIO(zstandard.decompress(data[_DIGEST:]))).load()
    except (pickle.UnpicklingError, zstandard.ZstdError, AttributeError, TypeError, KeyError, EOFError):
        return None


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _OWN and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type):
                return found
        if (module, name) in _OTHERS:
            return _OTHERS[module, name]
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a pass")
