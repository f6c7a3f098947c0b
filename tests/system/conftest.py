"""The lab of tests/mount, for what stands around a mount: mount(8), systemd, the environment, the config."""

from __future__ import annotations

from tests.mount.conftest import lab

__all__ = ["lab"]
