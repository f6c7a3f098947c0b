"""What is remembered of very many opened files: forgotten at times, never wrong."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from rolloutfs.marks import Marks

NUMBERS = st.integers(1, 40) | st.integers(1, (1 << 64) - 1)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "settle", "lift", "disturb"]), NUMBERS, st.integers(1, 3)), max_size=60
)


@given(STEPS)
def test_like_a_dictionary_that_forgets(steps: list[tuple[str, int, int]]) -> None:
    """A digest is the last one that was put, or unknown; settled ones are settled since, or looked at again. There are
    four pairs of places, so that numbers get in each other's way.
    """
    table, digests, settled = Marks(bits=2), dict[int, int](), set[int]()
    for step, ino, digest in steps:
        if step == "put":
            if digests.get(ino) != digest:
                settled.discard(ino)
            digests[ino] = digest
            table.put(ino, digest)
            assert table.get(ino) == digest
        elif step == "settle":
            if table.get(ino):
                settled.add(ino)
            table.settle(ino, table.age)
        elif step == "lift":
            settled.discard(ino)
            table.lift(ino)
        else:
            settled.clear()
            table.disturb()
        for number, last in digests.items():
            assert table.get(number) in (0, last)
            assert table.settled(number) in ((0, last) if number in settled else (0,))


def test_most_of_many_are_known() -> None:
    """Files of 10,000 threads, twelve each, as a walk opens them. Numbers of threads are digests (see `inodes`)."""
    table, chance = Marks(), random.Random(1)
    numbers = [thread << 8 | slot for thread in (chance.getrandbits(56) for _ in range(10_000)) for slot in range(12)]
    for number in numbers:
        table.put(number, number | 1)
        table.settle(number, table.age)
    known = [number for number in numbers if table.get(number)]
    assert len(known) > 0.8 * len(numbers)
    assert all(table.settled(number) == number | 1 for number in known)


def test_what_was_settled_before_something_happened_is_not() -> None:
    """An age that is over settles nothing."""
    table = Marks()
    table.put(7, 1)
    age = table.age
    table.disturb()
    table.settle(7, age)
    assert table.get(7) == 1
    assert table.settled(7) == 0
    table.settle(7, table.age)
    assert table.settled(7) == 1
    table.put(7, 1)  # the same content
    assert table.settled(7) == 1
    table.put(7, 2)
    assert table.settled(7) == 0
