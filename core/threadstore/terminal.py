"""Text from a store as one line that a terminal shows as it is (FAULTS 22).

A thread's name, folder or words may hold escape sequences that a terminal obeys, newlines that forge a line, and
marks that turn the order of letters around. Blanks of any kind become one blank, everything else that isn't shown as
itself becomes its code point, as in `\\x1b` or `\\u202e`, so that it is seen and nothing is lost silently.
"""

from __future__ import annotations

import re
import unicodedata

#: Control and format characters, surrogates, private and unassigned ones, separators of lines and paragraphs.
UNSAFE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
PLAIN = re.compile(r"[\x20-\x7e]*")
_BLANKS = re.compile(r"[ \t\r\n\v\f\x85\u2028\u2029]+")
_MARKS = 3  # combining marks that a letter may carry; more of them climb over other lines


def harmless(text: str) -> str:
    """One line of text that a terminal shows as it is."""
    text = _BLANKS.sub(" ", text).strip()
    if PLAIN.fullmatch(text):
        return text
    shown: list[str] = []
    marks = 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if category in UNSAFE or marks > _MARKS:
            shown.append(coded(character))
        else:
            shown.append(" " if category == "Zs" else character)
    return "".join(shown)


def coded(character: str) -> str:
    """The code point of a character that isn't shown as itself."""
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
