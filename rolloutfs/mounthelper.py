"""`mount.rolloutfs`, what mount(8) runs for `-t rolloutfs`, and `rolloutfs STORE DIR -o …`, for `-t fuse.rolloutfs`.

mount(8) looks for /sbin/mount.<type>, and for /sbin/mount.fuse when the type is fuse.<something>. The latter is
libfuse's mount.fuse3: it takes `-t` and what it knows itself out of the line and runs `rolloutfs STORE DIR -o …` by
/bin/sh, with an environment that mount(8) has emptied, so the shell's own PATH must lead to a `rolloutfs`, for example
in /usr/local/bin. The other way is a link to mount.rolloutfs, /sbin/mount.rolloutfs or /sbin/mount.fuse.rolloutfs. All
of them end here (observed with strace; util-linux 2.38, libfuse 3.14).

The exit codes are those of mount(8), since it hands them on: 0, 1 (usage, permissions), 32 (the mount failed).
"""

from __future__ import annotations

import getopt
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from rolloutfs import identity
from rolloutfs.errors import Exit, MountError
from rolloutfs.wording import printable

DONE, USAGE, FAILURE = 0, 1, 32

_SYNOPSIS = "mount.rolloutfs STORE DIR [-sfnv] [-N namespace] [-o options] [-t type]"
_TYPES = ("rolloutfs", "fuse.rolloutfs", "fuse")


@dataclass(frozen=True, slots=True)
class Call:
    """What mount(8) asks for; `fake` is to do all but mount, `sloppy` to pass over options that aren't known."""

    store: str
    mountpoint: str
    options: tuple[str, ...]
    who: str | None = None
    fake: bool = False
    sloppy: bool = False
    verbose: bool = False


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Mount; the exit code. What is wrong goes to stderr."""
    if [*arguments] in (["--help"], ["-h"]):
        click.echo(f"{_SYNOPSIS}\nWhat mount(8) runs; the options are those of rolloutfs mount: see its --help.")
        return DONE
    try:
        _mount(parse(arguments))
    except MountError as error:
        click.echo(f"mount.rolloutfs: {error.message}", err=True)
        return USAGE if error.code == Exit.USAGE else FAILURE
    return DONE


def parse(arguments: Sequence[str]) -> Call:
    """The meaning of a command line. Raises MountError."""
    try:
        flags, paths = getopt.gnu_getopt(list(arguments), "sfnvrwo:t:N:")
    except getopt.GetoptError as error:
        raise MountError(f"{error}. It is: {_SYNOPSIS}", Exit.USAGE) from None
    if len(paths) != 2:
        raise MountError(f"a store and a folder to mount it on are needed. It is: {_SYNOPSIS}", Exit.USAGE)
    options: list[str] = []
    who = None
    for flag, value in flags:
        if flag == "-t" and value not in _TYPES:
            raise MountError(f"{value} is no type of ours.", Exit.USAGE)
        if flag == "-N" and not _is_here(value):
            raise MountError(
                "another namespace can't be mounted in from outside. Enter it first: nsenter --mount=… mount …",
                Exit.USAGE,
            )
        if flag in ("-r", "-w"):
            options.append({"-r": "ro", "-w": "rw"}[flag])
        for option in value.split(",") if flag == "-o" else ():
            name, has_value, word = option.strip().partition("=")
            if name in ("uid", "user") and has_value:
                who = word
            else:
                options.append(option)
    given = {flag for flag, _ in flags}
    store, mountpoint = paths
    return Call(store, mountpoint, tuple(options), who, "-f" in given, "-s" in given, "-v" in given)


def _mount(call: Call) -> None:
    user = identity.find(call.who, call.store)
    from rolloutfs import options

    given = options.parse(call.options, sloppy=call.sloppy)
    identity.become(user)
    if call.fake:
        return
    from rolloutfs import config, mount

    said = {"foreground": False, **asdict(given)}
    mount.mount(
        mount.Request.of(call.store, call.mountpoint, config.mount_settings(said)),
        _say if call.verbose else lambda line: None,
    )


def _say(line: str) -> None:
    click.echo(printable(line))


def _is_here(namespace: str) -> bool:
    """True for the mount namespace that this process is in, by number of a process or by path."""
    path = f"/proc/{namespace}/ns/mnt" if namespace.isdigit() else namespace
    try:
        return os.path.samestat(os.stat(path), os.stat("/proc/self/ns/mnt"))
    except OSError:
        return False
