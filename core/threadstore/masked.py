"""The derived files for people to read, without the secrets in them."""

from __future__ import annotations

from dataclasses import replace

from threadstore.extents import Extents
from threadstore.masking import Mask
from threadstore.projection import Projection, View, digest, rendered
from threadstore.turnfiles import Files

#: Files in which secrets are masked if that is asked for; and those of a turn.
MASKED = frozenset({View.TRANSCRIPT, View.DROPPED})
_MASKED_FILES = frozenset({"user.md", "assistant.md"})


def masked(projection: Projection, mask: Mask) -> Projection:
    """A derived file without its secrets."""
    if projection.extents is None:
        return projection
    content = mask(rendered(projection))
    return replace(projection, extents=Extents.of_bytes(content), generation=digest(b"masked", content))


def masked_turns(made: dict[str, Files], mask: Mask) -> dict[str, Files]:
    """The files of turns, by the names of their folders, without their secrets."""
    return {
        turn: {path: masked(one, mask) if path in _MASKED_FILES else one for path, one in files.items()}
        for turn, files in made.items()
    }
