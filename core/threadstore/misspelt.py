"""Filters of a query that somebody misspelt: to a search `brnach:main` is text like `std::vector` or `TODO:`.

Nothing is refused for that, since it may be what was said. Who may have meant a filter is told how that is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_SAID = re.compile(r"([A-Za-z]{2,12}):(?!:|//|\s|$)", re.ASCII)  # not C++ names, not URLs, not what ends in a colon
_OTHERS = {"from": "since", "after": "since", "before": "until", "folder": "cwd", "dir": "cwd"}
_LONG = 6  # letters of a name in which two may be wrong; in a shorter one that is another word


def meant(word: str, filters: Collection[str]) -> str | None:
    """The filter that a word with a colon in it is nearly one of; None for any other word, and for a filter."""
    said = _SAID.match(word)
    if said is None or said[1] in filters:
        return None
    name = said[1].lower()
    near = [(apart, one) for one in filters if (apart := _edits(name, one)) <= (2 if len(one) >= _LONG else 1)]
    others = [(_edits(name, one), other) for one, other in _OTHERS.items() if sorted(name) == sorted(one)]
    return min(near or [one for one in others if one[0] < 2], default=(0, None))[1]


def hint(word: str, name: str) -> str:
    """A sentence about a word for which a filter may have been meant."""
    value = word.partition(":")[2]
    return f"{word} was searched for as text; the filter would be {name}:{value}. In quotation marks it is no filter."


def _edits(one: str, other: str) -> int:
    """Letters to be put in, left out or replaced, or neighbours to be exchanged, until one is the other."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one):
        last, row, older = row, [at + 1], before
        for to, wanted in enumerate(other):
            edits = min(row[to] + 1, last[to + 1] + 1, last[to] + (letter != wanted))
            if at and to and letter == other[to - 1] and one[at - 1] == wanted:
                edits = min(edits, older[to - 1] + 1)
            row.append(edits)
        before = last
    return row[-1]
