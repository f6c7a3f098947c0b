"""Texts of a log as Markdown that they can't get out of (see `transcript`).

What a tool has printed or a web page has said may try anything: escape sequences that write to the terminal's title,
direction marks that show a line in another order, images that are fetched from somewhere when the file is shown, a
heading that pretends to be the next turn. So every text goes into a fence that is longer than any run of backticks in
it, and is indented by two columns, which Markdown takes off again: a line that begins with `## ` is always ours.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from threadstore.longitems import LongItem

#: C0 but for tab and newline, DEL, C1, marks of direction, separators of lines that aren't `\n`, lone surrogates.
_HOSTILE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NO_WORD = re.compile(r"[^\w.:/@+ -]")
_TICKS = re.compile(r"`{3,}")
_LONGEST_WORD = 200  # characters
_BORDER = 1 << 10  # characters in which a place to cut at is looked for
_IN_WORDS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~+/=-"  # and in keys


class Cut(NamedTuple):
    """A text of `size` bytes: its beginning and, if it was too long, its end; what is between has `missing` bytes."""

    head: str
    tail: str
    size: int
    missing: int


def cut(text: str, most: int, long: LongItem | None = None) -> Cut:
    """The text, or its two ends, `most` bytes at most. `long` is the item that it was taken from, if that has marks. It
    is cut between lines or words, so that no key is in two pieces, which nobody could mask.
    """
    if long is None:
        data = text.encode("utf-8", "replace")
        size = len(data)
        head = tail = data
    else:
        size = long.length(text)
        head, tail = long.head(text, min(size, most)), long.tail(text, min(size, most))
    if size <= most:
        return Cut(head.decode("utf-8", "replace") if long is not None else text, "", size, 0)
    first = beginning(head[: most // 2].decode("utf-8", "ignore"))
    last = _end(tail[-(most // 2) :].decode("utf-8", "ignore"))
    return Cut(first, last, size, size - len(first.encode()) - len(last.encode()))


def beginning(text: str) -> str:
    """What a text begins with that was cut somewhere: up to the end of a line, or else of a word, if one is near."""
    near = text[-_BORDER:]
    at = near.rfind("\n") + 1 or len(near.rstrip(_IN_WORDS))
    return text[: len(text) - len(near) + at].rstrip("\n") if at else text


def _end(text: str) -> str:
    """The same for what it ends with."""
    near = text[:_BORDER]
    at = near.find("\n") + 1 or len(near) - len(near.lstrip(_IN_WORDS))
    return text[at:] if at < len(near) else text


def harmless(text: str) -> str:
    """The text with pictures or U+FFFD in place of what would steer a terminal or the order of the characters."""
    text = text.replace("\r\n", "\n").replace("\x1b", "\u241b")  # what is in many texts that have nothing else
    if text.replace("\n", "").replace("\t", "").isprintable():  # the same asked ten times faster
        return text
    return _HOSTILE.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def word(text: object) -> str:
    """A name out of a log, such as that of a tool or a model, fit to stand in a heading, in HTML or in backticks."""
    return _NO_WORD.sub("\ufffd", str(text)[:_LONGEST_WORD])


def fenced(text: str, language: str = "text") -> str:
    """A block that shows a text as it is."""
    text = harmless(text).removesuffix("\n")
    fence = max(_TICKS.findall(text)) + "`" if "```" in text else "```"
    return f"  {fence}{language}\n{_indented(text)}\n  {fence}\n\n"


def _indented(text: str) -> str:
    """Two spaces before each line that isn't empty."""
    text = f"\n{text}\n".replace("\n", "\n  ")
    for _ in range(2):  # of a row of empty lines the first time takes every other one
        text = text.replace("\n  \n", "\n\n")
    return text[1:-3]


def excerpt(found: Cut, place: str, language: str = "text") -> str:
    """A block with the text or two with its ends; between them is told where to find all of it."""
    if not found.missing:
        return fenced(found.head, language)
    note = f"*… {found.missing:,} of {found.size:,} bytes are left out; the whole is in `{place}` …*\n\n"
    return fenced(found.head, language) + note + fenced(found.tail, language)


def folded(title: str, content: str) -> str:
    """Content that is shown when its title is clicked."""
    return f"<details><summary>{title}</summary>\n\n{content}</details>\n\n"
