"""Makes docs/session.svg, the picture in README.md: a short session with a mounted sample store, its real output.

    .venv/bin/python -m scripts.picture        writes docs/session.svg

The commands run in one shell, in a home below a temporary folder, which the picture calls /home/me. What they print is
the same on each run. `tests/mount/test_picture.py` fails when the picture shows something else than they print now.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from rolloutfs import mounttable
from scripts.sample_store import build

_ATTEMPTS = 100  # at removing what the session leaves
PICTURE = Path(__file__).parent.parent / "docs" / "session.svg"
WIDTH = 108  # columns; a session with a longer line is refused
HOME = "/home/me"  # what the home is called in the picture

TURNS = "jq -r '[.number, .status, .user[:20]] | @tsv' turns.jsonl | tail -n 2"
COMMANDS = (
    "rolloutfs mount ~/.codex ~/threads && cd ~/threads && ls",
    "ls by-date/2026/11/29 | tail -n 4",
    "cd by-date/2026/11/29/21-38-25_List_the_files && ls",
    "jq -c '[.role // .name // .type, .content[0].text? // .arguments]' effective_history.jsonl | sed -n 3,8p",
    TURNS,
    "echo 'before -1' > revert",
    TURNS,
    "echo undo > revert && jq -c '{op, status}' revert",
    "ls ~/threads/search/'echo p2'; jq -c '{turn, kind, snippet}' ~/threads/search/'echo p2'/hits.jsonl",
    "rolloutfs tree 01a22938-d75",
)
# As at a terminal `ls` prints columns, but where its output goes into another command. NULs end what a command printed
# and its exit code.
_SHELL = f"""
ls() {{ if [ /proc/self/fd/1 -ef /proc/$$/fd/1 ]; then command ls -C -w {WIDTH} "$@"; else command ls "$@"; fi; }}
for command; do eval "$command" 2>&1; printf '\\0%s\\0' $?; done
"""
_LIMIT = 120  # seconds for all of the session

# Rich's own format without what it would fetch: a font from the network.
_SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
    font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A command and the lines that it printed."""

    command: str
    output: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """What stands in the picture."""
        return (f"$ {self.command}", *self.output)


def session() -> list[Step]:
    """Runs the commands on a new sample store. Raises ValueError when one fails or prints what has no room."""
    folder = Path(tempfile.mkdtemp(prefix="rolloutfs-picture-"))
    home = folder / "home"
    mountpoint = home / "threads"
    try:
        build(home / ".codex")
        mountpoint.mkdir()
        return _steps(_run(home), str(home))
    finally:
        if mounttable.find(str(mountpoint.resolve())) is not None:
            subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=True)
        _remove(folder)


def _remove(folder: Path) -> None:
    """The server of the session ends a moment after its mount has gone, and removes its own files until then."""
    for _ in range(_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
    shutil.rmtree(folder)


def svg(steps: list[Step]) -> str:
    """The picture of a session."""
    console = Console(record=True, file=StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor")
    for step in steps:
        console.print(Text.assemble(("$ ", "green"), (step.command, "bold")), no_wrap=True)
        for line in step.output:
            console.print(Text(line), no_wrap=True)
    return console.export_svg(title="rolloutfs", theme=MONOKAI, code_format=_SVG, unique_id="session")


def shown(picture: str) -> list[str]:
    """The lines that a picture shows, without its title and without blanks at their ends."""
    rows: dict[float, str] = {}
    for row, text in re.findall(r'<text class="session-r\d+"[^>]* y="([\d.]+)"[^>]*>([^<]*)</text>', picture):
        rows[float(row)] = rows.get(float(row), "") + html.unescape(text).replace("\xa0", " ")
    return [rows[row].rstrip() for row in sorted(rows)]


def _run(home: Path) -> str:
    """What the shell printed. The mount serves until it has ended, also when a command fails."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
    try:
        done = subprocess.run(
            ["bash", "-c", _SHELL, "bash", *COMMANDS],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_LIMIT,
            check=True,
        )
    finally:
        if mounttable.find(str(home.resolve() / "threads")) is not None:
            unmount = [sys.executable, "-m", "rolloutfs", "umount", str(home / "threads")]
            subprocess.run(unmount, env=environment, cwd=PICTURE.parent.parent, timeout=_LIMIT, check=True)
    return done.stdout.decode()


def _steps(printed: str, home: str) -> list[Step]:
    parts = printed.split("\0")[:-1]
    steps = []
    for command, output, code in zip(COMMANDS, parts[::2], parts[1::2], strict=True):
        step = Step(command, tuple(_lines(output.replace(home, HOME))))
        if code != "0" or any(len(line) > WIDTH for line in step.lines):
            raise ValueError(f"exit code {code}, or a line of more than {WIDTH} columns:\n" + "\n".join(step.lines))
        steps.append(step)
    return steps


def _lines(output: str) -> Iterator[str]:
    for line in output.removesuffix("\n").split("\n") if output else ():
        yield line.expandtabs().rstrip()


def main() -> None:
    """Writes the picture."""
    PICTURE.write_text(svg(session()))


if __name__ == "__main__":
    main()
