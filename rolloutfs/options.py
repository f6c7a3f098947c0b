"""`-o` as mount(8) and /etc/fstab write it: what is generic is accepted and means nothing here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rolloutfs.errors import Exit, MountError


@dataclass(frozen=True, slots=True)
class Options:
    """What `-o` says of settings: None where it says nothing."""

    read_only: bool | None = None
    allow_other: bool | None = None
    passthrough: bool | None = None
    zone: str | None = None
    mask_secrets: bool | None = None
    xattrs: bool | None = None


_GENERIC = frozenset(
    [
        "defaults",
        "dev",
        "nodev",
        "suid",
        "nosuid",
        "exec",
        "noexec",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "owner",
        "group",
        "_netdev",
        "nofail",
        "sync",
        "async",
        "dirsync",
        "atime",
        "noatime",
        "diratime",
        "nodiratime",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
        "lazytime",
        "nolazytime",
        "default_permissions",
        "silent",
        "loud",
        "mand",
        "nomand",
        "iversion",
        "noiversion",
    ]
)


def parse(values: Iterable[str], *, sloppy: bool = False) -> Options:
    """The meaning of options; of `ro` and `rw`, and of `xattrs` and `noxattrs`, the last one counts. MountError for one
    that we don't know, unless `sloppy` (mount -s).
    """
    read_only = allow_other = passthrough = zone = mask_secrets = xattrs = None
    for option in ",".join(values).split(","):
        name = option.strip()
        if name in ("ro", "rw"):
            read_only = name == "ro"
        elif name == "allow_other":
            allow_other = True
        elif name == "passthrough":
            passthrough = True
        elif name == "mask_secrets":
            mask_secrets = True
        elif name in ("xattrs", "noxattrs"):
            xattrs = name == "xattrs"
        elif name.startswith("zone="):
            zone = name.removeprefix("zone=")
        elif (
            name
            and not sloppy
            and name not in _GENERIC
            and not name.startswith(("x-", "X-", "comment=", "uhelper=", "user="))
        ):
            raise MountError(
                f"-o {name} is not known. Besides the generic ones there are: ro, allow_other, passthrough, "
                "mask_secrets, xattrs, noxattrs, zone=.",
                Exit.USAGE,
            )
    return Options(read_only, allow_other, passthrough, zone, mask_secrets, xattrs)
