"""Text from a store on its way to a terminal (FAULTS 22): as `threadstore.terminal` shows it, between quotation marks
or in JSON.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import orjson
from threadstore.terminal import PLAIN, UNSAFE, harmless

__all__ = ["harmless", "json_line", "quoted"]


def quoted(text: str) -> str:
    """One line of text between quotation marks, for a sentence."""
    return f"'{harmless(text)}'"


def json_line(document: dict[str, Any]) -> str:
    """A JSON object on one line that means the same and holds no character that a terminal would obey."""
    try:
        text = orjson.dumps(document).decode()
    except orjson.JSONEncodeError:  # lone surrogates, bytes of a path that are no UTF-8: Python makes these of it again
        text = json.dumps(document, separators=(",", ":"), default=str)
    return text if PLAIN.fullmatch(text) else "".join(map(_in_json, text))


def _in_json(character: str) -> str:
    if unicodedata.category(character) not in UNSAFE:
        return character
    number = ord(character)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
