"""Text as it stands inside the strings of a log: escaped, of any length, the same for the same seed.

A pool of some megabytes is made once and slices of it are handed out, so that a gigabyte costs a few thousand slices.
The pool looks like what coding agents log: lines of code and of terminal output, tabs, quotes, colours, paths, a little
text that is not ASCII.
"""

from __future__ import annotations

import base64
import random

_SENTENCE = (
    "the of a to in is that for it on as with be by this return import from def class self if else not None True for "
    "while error warning test passed failed thread rollout record offset segment value index result path file line "
    "context window item turn checkpoint history decode encode buffer length stream channel request response"
)
_WORDS = _SENTENCE.split()
_ODD = ("naïve", "größer", "→", "日本語", "✓", "emoji 😀", "±0.5")
_POOL = 2 << 20  # bytes


def _line(source: random.Random) -> str:
    """One line of escaped text, with its `\\n`."""
    words = source.choices(_WORDS, k=source.randrange(3, 14))
    kind = source.random()
    if kind < 0.3:
        text = "    " * source.randrange(5) + f"{words[0]}_{words[1]}({', '.join(words[2:5])}) = {words[-1]!r}"
    elif kind < 0.5:
        text = f"src/{words[0]}/{words[1]}.rs:{source.randrange(2000)}: " + " ".join(words[2:])
    elif kind < 0.6:
        text = f'\\t\\"{words[0]}\\": \\"{" ".join(words[1:])}\\",'
    elif kind < 0.65:
        text = f"\\u001b[3{source.randrange(8)}m{' '.join(words)}\\u001b[0m"
    elif kind < 0.7:
        text = f"{source.randrange(1 << 60):016x}  {source.randrange(1 << 30)} {words[0]}"
    elif kind < 0.75:
        text = f"{source.choice(_ODD)} {' '.join(words)}"
    else:
        text = " ".join(words)
    return text + "\\n"


class TextPool:
    """Slices of escaped text.

    Invariant: `_cuts` are the offsets in `_pool` at which a line begins, so a slice between two of them is proper
    string content.
    """

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)
        parts: list[bytes] = []
        self._cuts = [0]
        while self._cuts[-1] < _POOL:
            parts.append(_line(self._source).encode())
            self._cuts.append(self._cuts[-1] + len(parts[-1]))
        self._pool = b"".join(parts)
        self._images = base64.b64encode(self._source.randbytes(3 << 20))

    def text(self, length: int) -> bytes:
        """Whole lines of escaped text: `length` bytes, give or take a line."""
        cuts = self._cuts
        mean = len(self._pool) / len(cuts)
        parts = []
        while length > 0:
            lines = min(max(int(length / mean), 1), len(cuts) // 2)
            first = self._source.randrange(len(cuts) - lines)
            parts.append(self._pool[cuts[first] : cuts[first + lines]])
            length -= max(len(parts[-1]), 1)
        return b"".join(parts)

    def words(self, most: int) -> bytes:
        """A sentence of up to `most` words."""
        return " ".join(self._source.choices(_WORDS, k=self._source.randrange(1, most))).encode()

    def base64(self, length: int) -> bytes:
        """Base64 of random bytes: `length` bytes, a multiple of four."""
        length -= length % 4
        first = self._source.randrange(1 << 20) & ~3
        whole = self._images[first:]
        return (whole * (length // len(whole) + 1))[:length]
