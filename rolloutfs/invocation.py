"""How every command begins and ends: the store that is meant when none is given, errors as one sentence, exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from rolloutfs.errors import Exit, MountError


def default_store() -> str:
    """$CODEX_HOME, then ~/.codex."""
    return os.environ.get("CODEX_HOME") or str(Path("~/.codex").expanduser())


def finish(run: Callable[[], None]) -> None:
    """Run a command; show a refusal as one sentence and end with its code."""
    try:
        run()
    except MountError as error:
        click.echo(f"rolloutfs: {error.message}", err=True)
        sys.exit(error.code)
    sys.exit(Exit.DONE)


def answer(run: Callable[[], Exit | None]) -> None:
    """Run a command that only tells something. A reader that goes away, as `head` does, is no error."""
    from threadstore.errors import StoreError

    from rolloutfs.harmless import harmless

    code: Exit | None = None
    if hasattr(sys.stdout, "reconfigure"):  # a terminal of another encoding shows codes instead of failing
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go_of_stdout()
    except KeyboardInterrupt:
        _let_go_of_stdout()
        code = Exit.INTERRUPTED
    except MountError as error:
        click.echo(f"rolloutfs: {error.message}", err=True)
        code = error.code
    except StoreError as error:
        click.echo(f"rolloutfs: {harmless(error.message)}", err=True)
        code = Exit.FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"rolloutfs: {harmless(f'{where}{error.strerror or error}')}.", err=True)
        code = Exit.FAILED
    except (click.ClickException, click.exceptions.Exit):
        raise
    except Exception as error:  # noqa: BLE001  nobody thought of it: a sentence, not a trace
        told = f"an error of rolloutfs itself, please report it: {type(error).__name__}: {error}"
        click.echo(f"rolloutfs: {harmless(told)}", err=True)
        code = Exit.INTERNAL
    sys.exit(Exit.DONE if code is None else code)


def _let_go_of_stdout() -> None:
    """Nobody reads it: what is left in its buffer goes nowhere, without a complaint at the end of Python."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
