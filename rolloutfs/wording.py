"""Names of files in sentences: what a terminal would obey is shown as a code, what is to be typed leads to the file.

A path may hold any byte but NUL. Python keeps bytes that are no UTF-8 as lone surrogates, which can't be printed.
"""

from __future__ import annotations

import os
import shlex
import unicodedata

from threadstore.terminal import UNSAFE, coded

_LETTERS = {"\n": "\\n", "\t": "\\t", "\\": "\\\\", "'": "\\'"}


def printable(text: str) -> str:
    """Lines of ours with names in them; they stay as they are but for characters that aren't shown as themselves."""
    return "".join(one if one == "\n" or not _is_unsafe(one) else coded(one) for one in text)


def shell_word(path: str) -> str:
    """A path as one word for a shell, of characters that are shown as themselves: where quotation marks don't do,
    between $'…', which bash, zsh and ksh know.
    """
    if not any(map(_is_unsafe, path)):
        return shlex.quote(path)
    return f"$'{''.join(map(_in_shell, path))}'"


def _in_shell(character: str) -> str:
    if not _is_unsafe(character):
        return _LETTERS.get(character, character)
    return _LETTERS.get(character) or "".join(f"\\{byte:03o}" for byte in os.fsencode(character))


def _is_unsafe(character: str) -> bool:
    return unicodedata.category(character) in UNSAFE
