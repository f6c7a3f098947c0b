"""A transcript in parts, so that of a log that has grown only what is new is written again (see `transcript`).

A part is the text of the records that begin in one stretch of a rollout. Its key names all that the text follows from
besides the bytes of these records: where they lie, which of them count, the headings of the turns among them, and what
the walk knew when it came there. So a part that is known by its key needn't be written, wherever the rest has changed.
What stands between records, such as a heading of a fork, is a part whose key follows from its text.

Stretches begin at fixed offsets, so that neither what is added nor what is left out of a large log moves them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from threadstore.outline import Run
from threadstore.passes import Pass, packed, unpacked
from threadstore.scan import FullScan, Kind

KIND = "transcript"  # of the pass that writes parts
STRETCH = 128 << 10  # bytes of a rollout whose records are one part
_KEY = _MARK = 16  # bytes

State = tuple[Any, ...]  # what the walk knows between two parts: plain values, and tuples of them


class Part(NamedTuple):
    """The text of some records, and what the walk knows after them."""

    key: bytes
    text: bytes
    after: State

    def packed(self) -> bytes:
        """As bytes that tell when they were damaged."""
        return packed(tuple(self))


class Parts(NamedTuple):
    """The parts of a transcript, as they are or packed; their keys in order, the name of its generation, and the pass
    over the log in which they were made.
    """

    passed: Pass
    generation: bytes
    order: tuple[bytes, ...]
    found: dict[bytes, bytes | Part]

    def packed(self) -> dict[bytes, bytes]:
        """All of them packed, which they are from now on."""
        made = {key: part.packed() if isinstance(part, Part) else part for key, part in self.found.items()}
        self.found.update(made)
        return made

    def weight(self) -> int:
        """Bytes of text in those that aren't packed."""
        return sum(len(part.text) for part in self.found.values() if isinstance(part, Part))

    def outline(self) -> Outline:
        """What to know of them where they are kept one by one."""
        packed = self.packed()
        return Outline(self.passed, self.generation, tuple((key, packed[key][:_MARK]) for key in self.order))


class Outline(NamedTuple):
    """`Parts` without themselves: of each the key, and the beginning of what is packed, which is a digest."""

    passed: Pass
    generation: bytes
    order: tuple[tuple[bytes, bytes], ...]


def key_of(*facts: object) -> bytes:
    """A name for what a text follows from: plain values, `repr` of which says all there is."""
    return blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=_KEY).digest()


def part_of(key: bytes, data: object) -> Part | None:
    """The part that is kept under a key, packed or not; None for anything else."""
    if isinstance(data, Part):
        return data if data.key == key else None
    found = unpacked(data)
    if not isinstance(found, tuple) or len(found) != len(Part._fields) or found[0] != key:
        return None
    return Part(*found)


def joined(outline: Outline, found: Mapping[bytes, object]) -> bytes | None:
    """The text of a transcript; None when a part of it is missing, damaged or another one."""
    texts: list[bytes] = []
    for key, mark in outline.order:
        data = found.get(key)
        part = part_of(key, data) if isinstance(data, bytes) and data.startswith(mark) else None
        if part is None:
            return None
        texts.append(part.text)
    return b"".join(texts)


def stretches(scan: FullScan, run: Run) -> Iterator[Run]:
    """The same records by the stretches that they begin in. What lies inside a damaged line stays with it."""
    _, offsets, _, kinds = scan.columns
    first = run.first
    while first <= run.last:
        bound = (offsets[first] // STRETCH + 1) * STRETCH
        following = bisect_left(offsets, bound, first + 1, run.last + 1)
        while following <= run.last and kinds[following] == Kind.RECOVERED:
            following += 1
        yield run._replace(first=first, last=following - 1)
        first = following
