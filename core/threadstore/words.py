"""Words for the full-text index. Chinese, Japanese and Korean are written without blanks between what people look for,
and SQLite's unicode61 tokenizer takes a run of letters for one word. So each of their characters becomes a word.
"""

from __future__ import annotations

import re
from typing import Final

_MARKS: Final = "\u0300-\u036f\u3099\u309a\ufe00-\ufe0f\U000e0100-\U000e01ef"  # which belong to the character before
_CHARACTER: Final = re.compile(
    "[\u3041-\u3096\u309d-\u30ff\u3105-\u318e\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
    f"\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af][{_MARKS}]*"
)


def by_character(text: str) -> str:
    """The text with blanks around each such character."""
    return text if text.isascii() else _CHARACTER.sub(r" \g<0> ", text)
