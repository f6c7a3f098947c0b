"""The state of a thread that somebody has looked at, to act only on that one.

Rollouts are only ever appended to, and a revert selects another file.  So the selected file and its size tell one state
of a thread from every other one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from threadstore.names import RolloutFile
from threadstore.projection import Basis


@dataclass(frozen=True, slots=True)
class Seen:
    """The selected rollout: its path below the store, the file behind it and its size in bytes."""

    path: str
    dev: int
    ino: int
    size: int

    @classmethod
    def now(cls, root: str, rollout: RolloutFile) -> Seen:
        """As the file is now. Raises OSError."""
        status = os.stat(os.path.join(root, rollout.path), follow_symlinks=False)
        return cls(rollout.path, status.st_dev, status.st_ino, status.st_size)

    @classmethod
    def of(cls, basis: Basis) -> Seen:
        """As it was when something was made from it."""
        return cls(basis.path, basis.dev, basis.ino, basis.size)
