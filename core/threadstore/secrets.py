"""What keys look like of which the library of `masking` knows too little: those that agents meet most often.

It finds most of them only between white space and quotation marks, and takes a private key for one wherever its first
and its last line stand. Here a key is found whatever is beside it, also after the `\\n` of a JSON text.

No text takes long: a pattern begins with a word that is looked for first, nothing that has no bound is tried twice
(possessive quantifiers), and no match begins within what another one has run over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple


class Secret(NamedTuple):
    """Where a secret lies (bytes), and of which kind it is."""

    start: int
    end: int
    kind: str


class _Kind(NamedTuple):
    """`word`: what stands in every text with such a secret, in lower case where `lower` says that case doesn't matter.
    Of a match the first group is the secret, or all of it; `fits` has the last say.
    """

    name: str
    word: bytes
    pattern: re.Pattern[bytes]
    fits: Callable[[bytes], bool] | None = None
    lower: bool = False


_LONGEST_KEY: Final = 16 << 10  # bytes from the first line of a private key to its last
_LINE: Final = 16  # bytes that each of its lines has at least, but for the last two
_GAP: Final = 12  # bytes between two of them at most: a new line, and what marks a quotation or a difference


def _plain(
    name: str, word: bytes, rest: bytes, fits: Callable[[bytes], bool] | None = None, *, lower: bool = False
) -> _Kind:
    """A kind that begins with a word, but not within another one. In the pattern it stands before what is asked of the
    byte before it, since a word that a pattern begins with is looked for much faster than the rest.
    """
    literal = re.escape(word)
    alone = rb"(?:(?<![A-Za-z0-9_]%s)|(?<=\\[nrt]%s))" % (literal, literal)
    return _Kind(name, word, re.compile(literal + alone + rest), fits, lower)


def _named(word: bytes) -> _Kind:
    """What a setting is given that is called so, if it looks like nothing else."""
    between = rb"[\"'`\\]{0,3}+[ \t]{0,3}+(?:=>|:=|[=:])[ \t\"'`\\]{0,6}+"
    value = rb"([a-z0-9_+/~-]{16,}+={0,2}+)(?![\w(\[]|\.\w)"
    return _Kind("value", word, re.compile(word + between + value), _MIXED, lower=True)


def _has(pattern: bytes) -> Callable[[bytes], bool]:
    found = re.compile(pattern, re.DOTALL).search
    return lambda value: found(value) is not None


_DIGIT: Final = _has(rb"[0-9]")
_RANDOM: Final = _has(rb"\A(?=.*[0-9].*[0-9])(?=.*[A-Z])")
_MIXED: Final = _has(rb"\A(?=.*[0-9])(?=.*[A-Z])(?=.*[a-z])")

_KINDS: Final = (
    _plain("Anthropic key", b"sk-ant-", rb"[A-Za-z0-9_-]{20,}+"),
    _plain("OpenAI key", b"sk-", rb"(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}+", _RANDOM),
    _plain("OpenAI key", b"sk-", rb"[A-Za-z0-9]{32,}+", _RANDOM),
    _plain("GitHub token", b"gh", rb"[opsur]_[A-Za-z0-9_]{20,}+", _DIGIT),
    _plain("GitHub token", b"github_pat_", rb"[A-Za-z0-9_]{22,}+"),
    _plain(
        "GitLab token", b"gl", rb"(?:[a-z]{1,5}t|oas|agent)-[A-Za-z0-9_-]{20,}+(?:\.[A-Za-z0-9_-]{2,20}){0,3}", _DIGIT
    ),
    _plain("AWS access key id", b"AKIA", rb"[A-Z2-7]{16}(?![A-Za-z0-9])"),
    _plain("AWS access key id", b"ASIA", rb"[A-Z2-7]{16}(?![A-Za-z0-9])"),
    _plain("Slack token", b"xox", rb"[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{20,}+", _DIGIT),
    _plain("Slack token", b"xapp-", rb"[0-9]-[A-Za-z0-9-]{20,}+"),
    _plain("Stripe key", b"sk_", rb"(?:live|test|prod)_[A-Za-z0-9]{10,}+"),
    _plain("Stripe key", b"rk_", rb"(?:live|test|prod)_[A-Za-z0-9]{10,}+"),
    _plain("Stripe key", b"whsec_", rb"[A-Za-z0-9+/]{24,}+={0,2}"),
    _plain("Google key", b"AIza", rb"[A-Za-z0-9_-]{35}"),
    _plain("npm token", b"npm_", rb"[A-Za-z0-9]{30,}+"),
    _plain("PyPI token", b"pypi-", rb"[A-Za-z0-9_-]{50,}+", _RANDOM),
    _plain("Hugging Face token", b"hf_", rb"[A-Za-z0-9]{30,}+"),
    _plain("JSON web token", b"eyJ", rb"[A-Za-z0-9_-]{12,}+\.[A-Za-z0-9_-]{10,}+(?:\.[A-Za-z0-9_-]*+){0,3}"),
    _Kind(
        "AWS secret key",
        b"secret",
        re.compile(rb"secret[^=:,\n]{0,40}+(?:=>|:=|[=:,])[ \t\"'\\`(]{0,6}+([a-z0-9/+]{40})(?![a-z0-9/+=])"),
        _MIXED,
        lower=True,
    ),
    _Kind(
        "credentials",
        b"authorization",
        re.compile(
            rb"authorization[\\\"'`]{0,3}+[ \t]{0,4}+[:=,][ \t\\\"'`]{0,6}+(?:bearer|basic|token|digest)[ \t]{1,4}+"
            rb"([a-z0-9._~+/=-]{5,}[a-z0-9_~+/=-])"
        ),
        lower=True,
    ),
    _plain("credentials", b"bearer", rb"[ \t]{1,4}+([a-z0-9._~+/-]{20,}[a-z0-9_~+/=-])", _RANDOM, lower=True),
    *map(_named, (b"password", b"passwd", b"secret", b"token", b"api_key", b"apikey", b"accountkey")),
    _Kind(
        "password in a URL",
        b"://",
        re.compile(rb"://(?<=[A-Za-z0-9]://)[^\s:@/?#\"'<>\[\]`]{0,100}+:([^\s/\"'<>\[\]`]{1,200})@"),
    ),
)

_EDGE: Final = re.compile(rb"-----(BEGIN|END)[ A-Z0-9]{0,60}?PRIVATE KEY(?: BLOCK)?-----")
_WORD: Final = re.compile(rb"[A-Za-z0-9+/=]++")
_NAMED: Final = 1000  # characters that a name is made of, at most
#: A long word with a digit or capitals in it, a URL with a password, what is said to be one, a key in several lines.
_MAYBE: Final = re.compile(
    r"(?=[\w.:@~+/=-]*(?:[0-9]|[a-z][A-Z]))[\w.:@~+/=-]{16,}|\S*://\S*:\S*@\S*|-----BEGIN.*"
    r"|(?i:authorization\W.*|bearer\s+\S+|(?:passw\w*|secret\w*|token|key)\W{0,3}[:=]\s*\S+)",
    re.ASCII | re.DOTALL,
)


def secrets(text: bytes) -> Iterator[Secret]:
    """The secrets of a text, which may overlap."""
    lower = text.lower()
    for kind in _KINDS:
        where = lower if kind.lower else text
        if kind.word not in where:
            continue
        for found in kind.pattern.finditer(where):
            start, end = found.span(found.re.groups)
            if kind.fits is None or kind.fits(text[start:end]):
                yield Secret(start, end, kind.name)
    yield from _private_keys(text)


def without_secrets(text: str) -> str:
    """A text but for what may be a secret or a piece of one, for the names of links: of these thousands are made at
    once, and nobody misses a long number in them.
    """
    return _MAYBE.sub(" ", text[:_NAMED])


def _private_keys(text: bytes) -> Iterator[Secret]:
    """Whole ones, and what is left of those of which an end was cut off: lines of a key are long words with little
    between them, also in a diff or in JSON.
    """
    edges = list(_EDGE.finditer(text))
    whole = -1  # where the last whole one ends
    for number, edge in enumerate(edges):
        if edge[1] == b"BEGIN":
            after = edges[number + 1] if number + 1 < len(edges) else None
            last = min(edge.end() + _LONGEST_KEY, len(text) if after is None else after.start())
            words = [word.span() for word in _WORD.finditer(text, edge.end(), last)]
            if after is not None and after[1] == b"END" and last == after.start() and _is_body(words, edge.end(), last):
                whole = after.end()
                yield Secret(edge.start(), whole, "private key")
            elif (end := _reach(words, edge.end())) != edge.end():
                yield Secret(edge.start(), end, "private key")
        elif edge.end() != whole:
            first = max(edges[number - 1].end() if number else 0, edge.start() - _LONGEST_KEY)
            words = [(-word.end(), -word.start()) for word in _WORD.finditer(text, first, edge.start())][::-1]
            if (start := -_reach(words, -edge.start())) != edge.start():
                yield Secret(start, edge.end(), "private key")


def _is_body(words: list[tuple[int, int]], start: int, end: int) -> bool:
    """True for what lies between the two edges of a key: most of it are long words. There may be headers."""
    return 2 * sum(last - first for first, last in words if last - first >= _LINE) > end - start


def _reach(words: list[tuple[int, int]], edge: int) -> int:
    """How far the lines of a key reach from one of its edges, of which the far end is missing; `edge` where there are
    none. Two of them may be short: its last one, and the `n` of a new line in JSON.
    """
    at, short, end = edge, 0, edge
    for start, stop in words:
        if start - at > _GAP:
            break
        short += stop - start < _LINE
        if short > 2:
            break
        at = stop
        end = stop if stop - start >= _LINE or end != edge else end
    return end
