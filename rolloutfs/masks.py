"""Masking secrets, where it was asked for: what is needed for it, and where compiled patterns are kept."""

from __future__ import annotations

import os

import platformdirs
from threadstore import masking
from threadstore.masking import Masker

from rolloutfs.errors import Exit, MountError


def check() -> None:
    """Raises MountError when nothing can be masked."""
    obstacle = masking.obstacle()
    if obstacle is not None:
        raise MountError(obstacle, Exit.FAILED)


def folder(*avoid: str) -> str | None:
    """Where compiled patterns are kept: in the user's cache, unless that is below one of `avoid`."""
    found = os.path.realpath(os.path.join(platformdirs.user_cache_dir("rolloutfs"), "patterns"))
    below = any(os.path.commonpath((found, os.path.realpath(one))) == os.path.realpath(one) for one in avoid)
    return None if below else found


def for_command(said: bool | None, root: str) -> Masker | None:
    """What masks the output of a command: it was asked for by a flag, in the environment or in the config. None when it
    wasn't. Raises MountError.
    """
    from rolloutfs import config

    if not config.mount_settings({"mask_secrets": said}).mask_secrets:
        return None
    check()
    return Masker(folder(root))
