"""How every command begins and ends: the store that is meant when none is given, errors as one sentence, exit codes."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import click

from rolloutfs.errors import Exit, MountError, UnprintableError
from rolloutfs.wording import printable, shell_word


def default_store() -> str:
    """$CODEX_HOME, then ~/.codex."""
    return os.environ.get("CODEX_HOME") or str(Path("~/.codex").expanduser())


def own_command() -> list[str]:
    """What starts this installation: the script beside the interpreter, else the package."""
    script = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "rolloutfs")
    return [script] if os.access(script, os.X_OK) else [os.path.abspath(sys.executable), "-P", "-m", "rolloutfs"]


def where_shells_must_look() -> str | None:
    """The folder of our script; None where shells find a command of that name, or there is no script."""
    command = own_command()
    return None if len(command) > 1 or shutil.which("rolloutfs") is not None else os.path.dirname(command[0])


def typed() -> str:
    """What a person types to start this installation."""
    return "rolloutfs" if where_shells_must_look() is None else shell_word(own_command()[0])


def finish(run: Callable[[], None]) -> None:
    """Run a command; show a refusal as one sentence and end with its code."""
    code = Exit.DONE
    with printing():
        try:
            run()
            _flush()
        except MountError as error:
            complain(error.message)
            code = error.code
    sys.exit(code)


def answer(run: Callable[[], Exit | None]) -> None:
    """Run a command that only tells something."""
    from threadstore.errors import StoreError

    from rolloutfs.harmless import harmless

    code: Exit | None = None
    with printing():
        try:
            code = run()
            _flush()
        except KeyboardInterrupt:
            let_go_of_stdout()
            code = Exit.INTERRUPTED
        except MountError as error:
            complain(error.message)
            code = error.code
        except StoreError as error:
            complain(harmless(error.message))
            code = Exit.FAILED
        except OSError as error:
            if _is_unprintable(error):
                raise
            where = f"{error.filename}: " if error.filename else ""
            complain(f"{harmless(f'{where}{error.strerror or error}')}.")
            code = Exit.FAILED
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:  # noqa: BLE001  nobody thought of it: a sentence, not a trace
            told = f"an error of rolloutfs itself, please report it: {type(error).__name__}: {error}"
            complain(harmless(told))
            code = Exit.INTERNAL
    sys.exit(Exit.DONE if code is None else code)


def complain(message: str) -> None:
    """One line on stderr, if anybody can be told."""
    with contextlib.suppress(OSError):
        click.echo(f"rolloutfs: {message}", err=True)


def mention(line: str) -> None:
    """A line about what was done. That it can't be printed neither stops nor undoes anything."""
    line = printable(line)
    try:
        click.echo(line)
    except OSError as error:
        let_go_of_stdout()
        if not isinstance(error, BrokenPipeError):
            complain(f"{line} (This could not be printed to stdout: {error.strerror}.)")


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """What to do when stdout can't take it: a reader that goes away, as `head` does, is no error, a full disk is."""
    _prepare_output()
    try:
        yield
    except OSError as error:
        if not _is_unprintable(error):
            raise
        let_go_of_stdout()
        if error.errno == errno.EPIPE:
            sys.exit(Exit.DONE)
        complain(f"the output can't be written: {error.strerror}.")
        sys.exit(Exit.FAILED)


def _prepare_output() -> None:
    """Let stdout be there, take pieces as a whole, and show codes for what its encoding lacks."""
    if sys.stderr is None:  # who closed one wants to hear nothing
        sys.stderr = _nowhere()
    out, own = sys.stdout, sys.__stdout__
    if out is None:
        sys.stdout = _nowhere()
    elif own is not None and out is own and isinstance(own.buffer, io.RawIOBase):
        # So it is with $PYTHONUNBUFFERED: a write may then be one of a part, and what failed isn't known afterwards.
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(own.buffer), own.encoding, "backslashreplace")
    elif hasattr(out, "reconfigure"):
        out.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    """A stream that takes all; its descriptor stays open, so that no file of ours gets the number of a closed one."""
    return open(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", closefd=False)


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """A part of the output that nobody reads any more doesn't end what is told by the exit code."""
    try:
        yield
    except BrokenPipeError:
        let_go_of_stdout()


def _is_unprintable(error: OSError) -> bool:
    """True for an error of stdout: no other file is a pipe, and it still holds what it could not write."""
    if isinstance(error, BrokenPipeError | UnprintableError):
        return True
    try:
        _flush()
    except OSError:
        return True
    return False


def _flush() -> None:
    sys.stdout.flush()


def let_go_of_stdout() -> None:
    """Nobody reads it: what is left in its buffer goes nowhere, without a complaint at the end of Python."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
