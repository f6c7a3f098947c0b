"""Keys and passwords in a text, masked: `[masked: OpenAI key]` in place of one.

What they look like is known to kingfisher, whose list of some 500 kinds is that of Betterleaks, the successor of
gitleaks, and for those that agents meet most often to `secrets`. The library runs automata without backtracking. It
compiles its patterns once for a machine, which takes seconds, and keeps the result.

It is a help and no guarantee: a password that looks like a word is known to nobody.

A text is masked until nothing is found in it, so a masked text stays as it is. It must be whole: a piece of a key looks
like nothing. So texts are cut between words (`markdown.cut`), and what is masked is what was put together.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from threadstore.errors import StoreError
from threadstore.secrets import Secret, secrets

if TYPE_CHECKING:
    from kingfisher_sdk import Finding, Scanner

Mask = Callable[[bytes], bytes]  # the same UTF-8 text without its secrets

_ROUNDS: Final = 4  # over a text, at most: one for nearly all, one more where something was found
_WINDOW: Final = 256 << 10  # bytes that the library is given at once: its time grows with the square of what it finds
_OVERLAP: Final = 8 << 10  # of one window and the next: no key that the library knows is longer
_SECONDS: Final = 60.0  # for one of them
_BLANKS: Final = bytes.maketrans(b",;()<>[]{}*|&!?" + bytes(range(0x80, 0x100)), b" " * (15 + 0x80))
_ENDS: Final = (
    *((b"\\n", b"  "), (b"\\r", b"  "), (b"\\t", b"  "), (b'\\"', b"  ")),
    *((b". ", b"  "), (b".\n", b" \n"), (b": ", b"  "), (b":\n", b" \n")),
)


class MaskingError(StoreError):
    """A text can't be masked, so it isn't shown either."""


def obstacle() -> str | None:
    """What is in the way of masking anything; None when nothing is."""
    if importlib.util.find_spec("kingfisher_sdk") is None:
        return "The library that knows what secrets look like is missing: pip install kingfisher-secret-scanner."
    return None


class Masker:
    """Masks texts. `cache` is a private folder for what the library has compiled; None to compile it anew each time.

    The library is loaded with the first text: it takes 60 MB, and half a second once its patterns are compiled.
    """

    def __init__(self, cache: str | None) -> None:
        self._cache = cache
        self._loaded: Scanner | None = None

    def __call__(self, text: bytes) -> bytes:
        """The text without its secrets. Raises MaskingError."""
        for _ in range(_ROUNDS):
            before = text
            text = _without(text, [*secrets(text)])
            text = _without(text, [*self._known(text)])
            text = _without(text, [*self._known(_spaced(text))])
            if text is before:
                break
        return text

    def load(self) -> None:
        """Compile the patterns, unless that was done before. Raises MaskingError."""
        self._scanner()

    def _scanner(self) -> Scanner:
        if self._loaded is None:
            try:
                from kingfisher_sdk import Rules, Scanner
            except ImportError as error:
                raise MaskingError(obstacle() or f"The library that masks secrets can't be loaded: {error}.") from error
            try:
                self._loaded = Scanner(Rules(cache=self._cache is not None, cache_dir=self._cache))
            except (ValueError, OSError, RuntimeError) as error:
                raise MaskingError(f"The patterns of secrets can't be used: {error}.") from error
        return self._loaded

    def _known(self, text: bytes) -> Iterator[Secret]:
        """What the library finds in a text."""
        for start in range(0, max(len(text), 1), _WINDOW):
            # A line before it: what begins like UTF-16 would be taken for that, as would NULs.
            window = b"\n" + text[start : start + _WINDOW + _OVERLAP].replace(b"\0", b" ")
            try:
                found = self._scanner().scan(window, timeout=_SECONDS)
            except (RuntimeError, TimeoutError) as error:
                raise MaskingError(f"Secrets can't be masked, so nothing is shown: {error}.") from error
            yield from (_secret(one, start - 1) for one in found if _counts(one))


def _spaced(text: bytes) -> bytes:
    """Spaces in place of what may stand around a key in prose and in JSON, so that each byte keeps its place: most
    patterns of the library want white space or a quotation mark there.
    """
    text = text.translate(_BLANKS) + b"\n"
    for end, blank in _ENDS:
        text = text.replace(end, blank)
    return text


def _counts(found: Finding) -> bool:
    """False for a part of another one that is no secret by itself, such as the number of an account, and for private
    keys: the library takes for one whatever stands between two lines.
    """
    return found.visible and not found.rule_id.endswith("private-key")


def _secret(found: Finding, before: int) -> Secret:
    where = found.location
    kind = found.rule_id.partition(".")[2].removeprefix("secrets/").removesuffix(".1")
    return Secret(max(before + where["start_offset"], 0), before + where["end_offset"], kind)


def _without(text: bytes, found: list[Secret]) -> bytes:
    """The text with masks in place of what was found; where that overlaps, the kind is that of the longest."""
    pieces: list[bytes] = []
    at = first = reach = 0
    longest = Secret(0, 0, "")
    for one in (*sorted(found), Secret(len(text), len(text), "")):
        if reach and one.start >= reach:
            pieces += (text[at:first], f"[masked: {longest.kind}]".encode())
            at, reach = reach, 0
        if not reach:
            first, longest = one.start, one
        reach = max(reach, one.end)
        longest = max(longest, one, key=lambda secret: secret.end - secret.start)
    return b"".join((*pieces, text[at:])) if found else text
