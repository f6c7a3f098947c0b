"""Makes the man pages: rolloutfs(1) from what --help says, rolloutfs(5) from the README.md files of a mount; and
docs/tree.md, from the latter, too.

    .venv/bin/python -m scripts.man            writes man/rolloutfs.1, man/rolloutfs.5 and docs/tree.md

They lie in the repository, so that whoever packages them needs nothing; `tests/commands/test_man.py` fails when they
are not what this makes.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

import click

from rolloutfs import __version__, readme
from rolloutfs.cli import main as rolloutfs
from rolloutfs.config import MountSettings

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "man"
TREE = ROOT / "docs" / "tree.md"
_TREE = """\
<!-- Made by scripts/man.py (`make man`): change rolloutfs/readme.py, not this. -->

# The tree of a mount

Every file and folder. The `README.md` in the root of a mount and rolloutfs(5) say the same. Requests to the control
files are explained in [control-files.md](control-files.md), bounds in [limits.md](limits.md), and who can read all this
in [security.md](security.md).

"""
_DATE = "2026-11-30"  # of the last change to what the pages are made by, not of the day on which they are made
_ROOM = 80 - 7 - 2  # columns of a line that is shown as it is: less what man(7) indents, and .RS
_FAR = 8  # columns before what can only be the second column
_SEE_ALSO = {
    "1": ("rolloutfs (5)", "mount (8)", "fusermount3 (1)", "getfattr (1)", "jq (1)"),
    "5": ("rolloutfs (1)", "fuse (4)", "getfattr (1)", "jq (1)"),
}
_ENVIRONMENT = (
    ("CODEX_HOME", "The store, where none is named. Otherwise it is ~/.codex."),
    (
        ", ".join(f"ROLLOUTFS_{setting.name.upper()}" for setting in fields(MountSettings)),
        "true or false: the settings of a mount, where no option says something else.",
    ),
)
_FILES = (
    ("~/.config/rolloutfs/config.toml", "Settings that stay ($XDG_CONFIG_HOME)."),
    ("~/.cache/rolloutfs/index", "The indexes of stores, which may be deleted at any moment ($XDG_CACHE_HOME)."),
    ("~/.local/state/rolloutfs", "Lists of operations, and logs of mounts ($XDG_STATE_HOME)."),
)


def pages() -> dict[str, str]:
    """Both pages by file name."""
    return {"rolloutfs.1": _tidy("".join(_commands_page())), "rolloutfs.5": _tidy("".join(_tree_page()))}


def _tidy(page: str) -> str:
    """Without paragraphs that nothing is in, of which mandoc(1) complains."""
    lines: list[str] = []
    for line in page.split("\n"):
        macro = line[:3]
        if macro in (".SH", ".SS", ".TP", ".PP"):
            while lines and lines[-1] in (".PP", ".br"):
                lines.pop()
        if line != ".PP" or not (lines and lines[-1][:3] in (".SH", ".SS")):
            lines.append(line)
    return "\n".join(lines)


def tree_document() -> str:
    """The content of docs/tree.md."""
    return _TREE + readme.tree()


# The two pages


def _commands_page() -> Iterator[str]:
    yield from _head("1", "mount the threads of a coding agent as files")
    yield ".SH SYNOPSIS\n"
    for command in rolloutfs.commands.values():
        yield from _synopsis(f"rolloutfs {command.name}", command, after=".br\n")
    yield ".SH DESCRIPTION\n"
    yield from _prose(rolloutfs.help or "")
    yield "Each command has the option \\fB\\-\\-help\\fR. What is in a mount is told by\n.BR rolloutfs (5).\n"
    yield from _options(rolloutfs)
    yield ".SH COMMANDS\n"
    for command in rolloutfs.commands.values():
        yield from _command(f"rolloutfs {command.name}", command)
    yield from _epilog(rolloutfs.epilog or "", ".SH")
    yield from _list("ENVIRONMENT", _ENVIRONMENT)
    yield from _list("FILES", _FILES)
    yield from _tail("1")


def _tree_page() -> Iterator[str]:
    yield from _head("5", "the files of a mounted store of threads")
    yield ".SH DESCRIPTION\n"
    yield from _markdown(readme.text().decode(), ".SS")
    yield from _markdown(readme.search_text().decode(), ".SH")
    yield from _tail("5")


def _head(section: str, what: str) -> Iterator[str]:
    yield '.\\" Made by scripts/man.py: change what it reads, not this.\n'
    yield f'.TH ROLLOUTFS {section} {_DATE} "rolloutfs {__version__}" "rolloutfs"\n'
    yield f".SH NAME\nrolloutfs \\- {_escaped(what)}\n"


def _tail(section: str) -> Iterator[str]:
    yield ".SH SEE ALSO\n"
    pages = _SEE_ALSO[section]
    for number, page in enumerate(pages):
        yield f".BR {page}{'' if number == len(pages) - 1 else ','}\n"


def _list(title: str, entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f".SH {title}\n"
    for name, text in entries:
        yield f".TP\n.B {_escaped(name)}\n{_filled(_plain(text))}\n"


# What click knows


def _synopsis(name: str, command: click.Command, after: str = "") -> Iterator[str]:
    """A line for a command, or one for each of a group."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _synopsis(f"{name} {inner.name}", inner, after)
        return
    options = any(isinstance(one, click.Option) for one in command.params)
    arguments = [_argument(one) for one in command.params if isinstance(one, click.Argument)]
    parts = ["[\\fIOPTIONS\\fR]"] * options + list(map(_escaped, arguments))
    yield f"\\fB{_escaped(name)}\\fR {' '.join(parts)}".rstrip() + f"\n{after}"


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or str(argument.name).upper()
    if argument.metavar is None and isinstance(argument.type, click.Choice):
        name = "|".join(argument.type.choices)
    name += "..." if argument.nargs == -1 and argument.metavar is None else ""
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _command(name: str, command: click.Command) -> Iterator[str]:
    yield f'.SS "{_escaped(name)}"\n'
    if not isinstance(command, click.Group):
        yield from _synopsis(name, command)
        yield ".PP\n"
    yield from _prose(command.help or "")
    yield from _options(command)
    if command.epilog and command.epilog != rolloutfs.epilog:
        yield from _epilog(command.epilog, ".PP\n.B")
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _command(f"{name} {inner.name}", inner)


def _options(command: click.Command) -> Iterator[str]:
    for option in command.params:
        if isinstance(option, click.Option):
            yield f".TP\n{_spelled(option)}\n{_filled(_plain(_explained(option)))}\n"


def _spelled(option: click.Option) -> str:
    """All ways to write an option, with what it takes."""
    names = [f"\\fB{_escaped(one)}\\fR" for one in (*option.opts, *option.secondary_opts)]
    if option.is_flag:
        return ", ".join(names)
    return f"{', '.join(names)} \\fI{_escaped(option.metavar or 'NUMBER')}\\fR"


def _explained(option: click.Option) -> str:
    text = " ".join((option.help or "").split())
    return f"{text} The default is {option.default}." if option.show_default else text


def _prose(text: str) -> Iterator[str]:
    """Paragraphs of a help text, which click fills."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield f"{_filled(_plain(' '.join(paragraph.split())))}\n.PP\n"


def _epilog(text: str, heading: str) -> Iterator[str]:
    """Blocks that click shows as they are: headings end with a colon, what is indented is an example or a table."""
    for paragraph in re.split(r"\n\n", text.strip("\n")):
        lines = paragraph.removeprefix("\b\n").split("\n")
        yield ".PP\n"
        while lines:
            if re.fullmatch(r"[A-Z][\w ]*:", lines[0]):
                title = lines.pop(0).rstrip(":")
                yield f"{heading} {title.upper() if heading == '.SH' else title}\n"
            width = next((at for at, line in enumerate(lines) if not line.startswith(" ")), len(lines))
            yield from _literal([line.removeprefix("  ") for line in lines[:width]])
            rest = lines[width:]
            end = next((at for at, line in enumerate(rest) if line.startswith(" ")), len(rest))
            if end:
                yield f"{_filled(_plain(' '.join(rest[:end])))}\n"
            lines = rest[end:]


# Markdown, as far as the README files use it


def _markdown(text: str, title: str) -> Iterator[str]:
    for block in re.split(r"\n\n+", text.strip()):
        lines = block.split("\n")
        if lines[0].startswith("# "):
            yield f"{title} {_heading(lines[0][2:], title)}\n"
        elif lines[0].startswith("## "):
            yield f".SH {_heading(lines[0][3:], '.SH')}\n"
        elif lines[0].startswith("|"):
            for row in lines[2:]:
                name, what = (cell.strip() for cell in row.strip("|").split("|", 1))
                yield f".TP\n.B {_escaped(name)}\n{_filled(_code(what))}\n"
        elif all(line.startswith("    ") for line in lines):
            yield from _literal([line[4:] for line in lines])
        else:
            yield f".PP\n{_filled(_code(' '.join(lines)))}\n"


def _heading(text: str, level: str) -> str:
    """In capitals at the upper level, unless it is a path."""
    return _escaped(text.upper() if level == ".SH" and "/" not in text else text)


def _code(text: str) -> str:
    """Text with `code` in it."""
    parts = text.split("`")
    return "".join(f"\\fB{_plain(part)}\\fR" if at % 2 else _plain(part) for at, part in enumerate(parts))


# troff


def _literal(lines: list[str]) -> Iterator[str]:
    """Lines as they are; where one of them is too long, those of two columns as tags with what they mean."""
    if all(len(line) <= _ROOM for line in lines):
        yield from _unfilled(lines)
        return
    plain: list[str] = []
    for tag, meaning in _rows(lines):
        if meaning:
            yield from _unfilled(plain)
            plain = []
            yield f".TP\n.B {_escaped(tag)}\n{_filled(_plain(meaning))}\n"
        else:
            plain.append(tag)
    yield from _unfilled(plain)


def _unfilled(lines: list[str]) -> Iterator[str]:
    if lines:
        yield ".PP\n.nf\n.RS 2\n"
        yield from (f"{_escaped(line)}\n" for line in lines)
        yield ".RE\n.fi\n"


def _rows(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Lines of one or two columns; the second one may go on below itself."""
    rows: list[tuple[str, str]] = []
    for line in lines:
        tag, _, meaning = (part.strip() for part in re.sub(r"(?<=\S) {2,}", "\0", line, count=1).partition("\0"))
        if rows and rows[-1][1] and not meaning and line.startswith(" " * _FAR):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {tag}")
        else:
            rows.append((tag, meaning) if meaning else (line, ""))
    yield from rows


def _escaped(text: str) -> str:
    """A line of text that means nothing to troff."""
    return _guarded(_plain(text))


def _plain(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("^", "\\(ha")
    text = text.replace("~", "\\(ti").replace("'", "\\(aq").replace('"', "\\(dq")
    return "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in text)


def _filled(text: str) -> str:
    """Escaped text in lines of 80 bytes, as mandoc(1) likes them; troff fills them anew."""
    lines = textwrap.wrap(text, 78, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(_guarded, lines))


def _guarded(line: str) -> str:
    return f"\\&{line}" if line.startswith((".", "'")) else line


def main() -> int:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
        print(FOLDER / name)
    TREE.write_text(tree_document())
    print(TREE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
