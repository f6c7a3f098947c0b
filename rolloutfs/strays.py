"""Names that desktops, version control and prompts look for in every folder, and that never are in this tree.

Names of ours that come from data never begin with a dot (`threadstore.names.safe_name`), and two fixed ones do.
So such a look-up is answered at once, without asking the store, a worker or a search. What lies below store/ is named
by others and is looked up.
"""

from __future__ import annotations

from typing import Final

from rolloutfs.nodes import Kind, Node

#: Those that don't begin with a dot.
_NAMES: Final = frozenset((b"autorun.inf", b"desktop.ini", b"Thumbs.db", b"System Volume Information", b"$RECYCLE.BIN"))
_OURS: Final = frozenset((b".turns", b".mount.json"))
_OTHERS: Final = frozenset({Kind.STORE, Kind.STORE_FOLDER})  # where names are not ours


def is_stray(parent: Node, name: bytes) -> bool:
    """True for a name that can't be in a folder, whatever the store holds."""
    return (name[:1] == b"." or name in _NAMES) and name not in _OURS and parent.kind not in _OTHERS
