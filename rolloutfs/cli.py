"""The command line. What mounts is imported only when it is needed: a worker process imports this module too."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from rolloutfs import __version__
from rolloutfs.errors import Exit, MountError

_EPILOG = """\
\b
Examples:
  rolloutfs mount ~/threads              your Codex store ($CODEX_HOME, else ~/.codex)
  rolloutfs mount /backup/codex ~/old    another store
  cat ~/threads/README.md                how to use what is there
  rolloutfs umount ~/threads

\b
Exit codes:
  0  done                                4  the mountpoint was refused
  1  an error of rolloutfs itself        5  FUSE can't be used here
  2  the command was not understood      6  a dead mount is in the way
  3  there is no store                   7  the mount is in use
"""


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="rolloutfs")
def main() -> None:
    """A coding agent's threads, mounted as files: ls, cat, grep, tail -f, jq and diff are the user interface."""


@main.command("mount", epilog=_EPILOG)
@click.argument("paths", nargs=-1, required=True, metavar="[STORE] MOUNTPOINT")
@click.option("-f", "--foreground", is_flag=True, help="Serve in this process until Ctrl-C; log to the terminal.")
@click.option("--replace", is_flag=True, help="Clear away a dead mount that is left at MOUNTPOINT.")
@click.option(
    "-o",
    "options",
    multiple=True,
    metavar="OPTIONS",
    help="Mount options, separated by commas. Generic ones (rw, noauto, x-...) are accepted and mean nothing; "
    "allow_other lets other users in, as far as permissions let them.",
)
def mount_command(paths: tuple[str, ...], foreground: bool, replace: bool, options: tuple[str, ...]) -> None:
    """Mount STORE, a folder with sessions/ in it, on the empty folder MOUNTPOINT.

    STORE defaults to $CODEX_HOME, then to ~/.codex. The command returns once the tree can be used.
    """
    if len(paths) > 2:
        raise click.UsageError("Give a store and a mountpoint, or a mountpoint alone.")
    store, mountpoint = paths if len(paths) == 2 else (default_store(), paths[0])

    def run() -> None:
        from rolloutfs import mount
        from rolloutfs import options as mount_options

        request = mount.Request(store, mountpoint, foreground, replace, mount_options.parse(options))
        mount.mount(request, lambda line: click.echo(line, err=False))

    _exit(run)


@main.command("umount", epilog=_EPILOG)
@click.argument("mountpoint")
@click.option("-z", "--lazy", is_flag=True, help="Detach now, although files are open; they end when they are closed.")
def umount_command(mountpoint: str, lazy: bool) -> None:
    """Unmount what rolloutfs mounted on MOUNTPOINT, alive or dead."""

    def run() -> None:
        from rolloutfs.umount import umount

        umount(mountpoint, lazy=lazy)

    _exit(run)


def default_store() -> str:
    """$CODEX_HOME, then ~/.codex."""
    return os.environ.get("CODEX_HOME") or str(Path("~/.codex").expanduser())


def _exit(run: Callable[[], None]) -> None:
    """Run a command; show a refusal as one sentence and end with its code."""
    try:
        run()
    except MountError as error:
        click.echo(f"rolloutfs: {error.message}", err=True)
        sys.exit(error.code)
    sys.exit(Exit.DONE)
