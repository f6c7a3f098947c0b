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
_HOSTILE_MARK = re.compile(  # those of them that aren't ASCII, in UTF-8
    rb"\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)
_PLAIN = bytes((*b"\t\n", *range(0x20, 0x7F)))
_HANDLED = bytes((*b"\r\x1b", *range(0x80, 0x100)))
_ESCAPE = "\u241b".encode()
_NO_WORD = re.compile(r"[^\w.:/@+ -]")
_TICKS = re.compile(rb"`{3,}")
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
    half = most // 2
    if long is None:
        size = _size(text)
        if size <= most:
            return Cut(text, "", size, 0)
        head, tail = _ends(text, half)
    else:
        size = long.length(text)
        start, end = long.head(text, min(size, most)), long.tail(text, min(size, most))
        if size <= most:
            return Cut(start.decode("utf-8", "replace"), "", size, 0)
        head, tail = start[:half].decode("utf-8", "ignore"), end[-half:].decode("utf-8", "ignore")
    first, last = beginning(head), _end(tail)
    return Cut(first, last, size, size - _size(first) - _size(last))


def _size(text: str) -> int:
    """Bytes of a text."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _ends(text: str, most: int) -> tuple[str, str]:
    """The two ends of a text, each of as many whole characters as `most` bytes have; the rest of it isn't looked at."""
    head, tail = text[:most].encode("utf-8", "replace"), text[-most:].encode("utf-8", "replace")
    return head[:most].decode("utf-8", "ignore"), tail[-most:].decode("utf-8", "ignore")


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
    return _harmless(text).decode()


def _harmless(text: str) -> bytes:
    """The same as bytes, of which what is plain is found ten times faster, and a few emoji make nothing larger."""
    try:
        data = text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return _pictured(text.replace("\r\n", "\n"))
    odd = data.translate(None, _PLAIN)
    if not odd:
        return data
    if b"\r" in odd:
        data = data.replace(b"\r\n", b"\n")
    if b"\x1b" in odd:  # in many texts that have nothing else
        data = data.replace(b"\x1b", _ESCAPE)
    if b"\r" in data or odd.translate(None, _HANDLED) or _HOSTILE_MARK.search(odd) is not None:
        return _pictured(data.decode())
    return data


def _pictured(text: str) -> bytes:
    return _HOSTILE.sub(_picture, text).encode()


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def word(text: object) -> str:
    """A name out of a log, such as that of a tool or a model, fit to stand in a heading, in HTML or in backticks."""
    return _NO_WORD.sub("\ufffd", str(text)[:_LONGEST_WORD])


def fenced(text: str, language: str = "text") -> bytes:
    """A block that shows a text as it is."""
    data = _harmless(text).removesuffix(b"\n")
    fence = max(_TICKS.findall(data)) + b"`" if b"```" in data else b"```"
    return b"  %b%b\n%b\n  %b\n\n" % (fence, language.encode(), _indented(data), fence)


def _indented(data: bytes) -> bytes:
    """Two spaces before each line that isn't empty."""
    data = b"\n%b\n" % data
    has_empty = b"\n\n" in data
    data = data.replace(b"\n", b"\n  ")
    if has_empty:  # of a row of empty lines the first time takes every other one
        data = data.replace(b"\n  \n", b"\n\n").replace(b"\n  \n", b"\n\n")
    return data[1:-3]


def excerpt(found: Cut, place: str, language: str = "text") -> bytes:
    """A block with the text or two with its ends; between them is told where to find all of it."""
    if not found.missing:
        return fenced(found.head, language)
    note = f"*… {found.missing:,} of {found.size:,} bytes are left out; the whole is in `{place}` …*\n\n"
    return fenced(found.head, language) + note.encode() + fenced(found.tail, language)


def folded(title: str, content: bytes) -> bytes:
    """Content that is shown when its title is clicked."""
    return b"<details><summary>%b</summary>\n\n%b</details>\n\n" % (title.encode(), content)
