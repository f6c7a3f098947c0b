"""A transcript in parts, so that of a log that has grown only what is new is written again (see `transcript`).

A part is the text of the records that begin in one stretch of a rollout. Its key names all that the text follows from
besides the bytes of these records: where they lie, which of them count, the headings of the turns among them, and what
the walk knew when it came there. So a part that is known by its key needn't be written, wherever the rest has changed.
What stands between records, such as a heading of a fork, is a part whose key follows from its text.

Stretches begin at fixed offsets, so that neither what is added nor what is left out of a large log moves them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from threadstore.outline import Run
from threadstore.passes import Pass, packed, unpacked
from threadstore.scan import FullScan, Kind

KIND = "transcript"  # of the pass that writes parts
STRETCH = 128 << 10  # bytes of a rollout whose records are one part
_KEY = 16  # bytes

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
    """The parts of a transcript in their order, packed, and the pass over the log that they were made in."""

    passed: Pass
    packed: dict[bytes, bytes]
    order: tuple[bytes, ...]


def key_of(*facts: object) -> bytes:
    """A name for what a text follows from: plain values, `repr` of which says all there is."""
    return blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=_KEY).digest()


def part_of(key: bytes, data: object) -> Part | None:
    """The part that was packed under a key; None for anything else."""
    found = unpacked(data)
    if not isinstance(found, tuple) or len(found) != len(Part._fields) or found[0] != key:
        return None
    return Part(*found)


def joined(order: Sequence[bytes], data: Mapping[bytes, bytes]) -> bytes | None:
    """The text of a transcript; None when a part of it is missing or damaged."""
    found = [part_of(key, data.get(key)) for key in order]
    texts = [part.text for part in found if part is not None]
    return b"".join(texts) if len(texts) == len(order) else None


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
