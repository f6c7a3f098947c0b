"""`rolloutfs completion`: the script with which a shell completes our commands, options and threads."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rolloutfs.errors import Exit, MountError


def completion(shell: str, command: click.Command) -> None:
    """Print click's script. Raises MountError."""
    made = get_completion_class(shell)
    if made is None:
        raise MountError(f"click can't complete for {shell}.", Exit.FAILED)
    script = made(command, {}, "rolloutfs", "_ROLLOUTFS_COMPLETE")
    click.echo(script.source_template % script.source_vars())
