"""`rolloutfs service`: the units of systemd/ in the user's own folder, with the paths of this installation.

A unit of ours begins with the marker. Only such a file is ever replaced or removed, whatever its name says.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import platformdirs

from rolloutfs import checks
from rolloutfs.errors import Exit, MountError
from rolloutfs.invocation import own_command

MARKER = (
    "# Made by `rolloutfs service install`. `rolloutfs service uninstall` removes every file that begins like this."
)

_SINGLE = "rolloutfs.service"
_TEMPLATE = "rolloutfs@.service"
_ALL = (_SINGLE, _TEMPLATE)
_EXECUTABLE = "/usr/bin/rolloutfs"  # these three as the units of systemd/ have them
_STORE = "%h/.codex"
_MOUNTPOINT = "%h/threads"
_NOT_LOADED = 5  # what systemctl says when it is to stop what isn't there

Say = Callable[[str], None]


def folder() -> Path:
    """$XDG_CONFIG_HOME/systemd/user, where systemd looks for a user's own units."""
    return Path(platformdirs.user_config_dir()) / "systemd" / "user"


def install(store: str | None, mountpoint: str | None, say: Say, *, now: bool) -> None:
    """Write both units, and start the first with `now`. Raises MountError.

    Without a store or a mountpoint those of the unit stay, which are ~/.codex and ~/threads.
    """
    places = [folder() / name for name in _ALL]
    for path in places:
        if os.path.lexists(path) and not _is_ours(path):
            raise MountError(f"{path} was not made by rolloutfs: it is left alone. Move it away first.", Exit.REFUSED)
    words = {_EXECUTABLE: " ".join(map(quoted, _command()))}
    if store is not None:
        words[_STORE] = quoted(checks.store_root(store, "give it as --store STORE, or in $CODEX_HOME"))
    if mountpoint is not None:
        words[_MOUNTPOINT] = quoted(os.path.abspath(mountpoint))
    for path in places:
        _write(path, unit(path.name, words))
        say(f"{path} is written.")
    _run([["daemon-reload"], ["enable", "--now", _SINGLE]], say, now=now)
    say('Another store: systemctl --user enable --now "rolloutfs@$(systemd-escape --path STORE).service"')


def uninstall(say: Say, *, now: bool) -> None:
    """Remove what `install` wrote and what `systemctl enable` linked to it, after stopping it with `now`. Raises
    MountError when there is nothing.
    """
    ours = [path for path in (folder() / name for name in _ALL) if _is_ours(path)]
    if not ours:
        raise MountError(f"There is no unit of rolloutfs in {folder()}.", Exit.REFUSED)
    _run([["stop", _SINGLE, _TEMPLATE.replace("@", "@*")]], say, now=now)
    for path in [*_links(ours), *ours]:
        path.unlink()
        say(f"{path} is removed.")
    for wants in folder().glob("*.wants"):
        with contextlib.suppress(OSError):  # another unit is wanted there, too
            wants.rmdir()
    _run([["daemon-reload"]], say, now=now)


def unit(name: str, words: dict[str, str]) -> str:
    """The text of a unit of systemd/ with other words in its commands, under the marker."""
    text = (resources.files("rolloutfs") / "systemd" / name).read_text(encoding="utf-8")
    old = re.compile("|".join(map(re.escape, words)))  # all at once: a path may look like another of them

    def with_words(line: str) -> str:
        return old.sub(lambda found: words[found[0]], line) if line.startswith("Exec") else line

    return "\n".join([MARKER, *map(with_words, text.split("\n"))])


def quoted(word: str) -> str:
    """A word as a unit file must have it: no specifier, no escape, one argument (systemd.service(5), COMMAND LINES)."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t").replace("%", "%%")
    return f'"{os.fsencode(text).decode("utf-8", "backslashreplace")}"'  # of a line that is no UTF-8 nothing is taken


def _command() -> list[str]:
    command = own_command()
    if set(command[0]) & set("\"'\\"):  # systemd takes these in arguments, not in the name of a program
        return ["/usr/bin/env", *command]
    return command


def _is_ours(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline().rstrip(b"\n") == MARKER.encode()


def _links(units: list[Path]) -> list[Path]:
    """What `systemctl enable` made of units: links in the folders of what wants them."""
    links = [path for path in folder().glob("*.wants/rolloutfs*.service") if path.is_symlink()]
    return [link for link in links if (link.parent / link.readlink()).resolve() in {path.resolve() for path in units}]


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{path.name}.{os.getpid()}")
        written.write_text(text, encoding="utf-8", errors="surrogateescape")
        written.replace(path)
    except OSError as error:
        raise MountError(f"{path} can't be written: {error.strerror}.", Exit.FAILED) from error


def _run(commands: list[list[str]], say: Say, *, now: bool) -> None:
    """Run systemctl, or say what is to be typed where it isn't wanted or isn't there."""
    for arguments in commands:
        command = ["systemctl", "--user", *arguments]
        if not now or shutil.which("systemctl") is None:
            say(f"To be run: {shlex.join(command)}")
            continue
        code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        if code not in (0, _NOT_LOADED):
            raise MountError(f"{shlex.join(command)} failed with exit code {code}.", Exit.FAILED)
