"""The man pages say what the program says, and mean nothing to troff but what they are to look like."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterator

import click
import pytest
from threadstore.projection import FamilyView, StoreView, View

from rolloutfs import control, labels, readme
from rolloutfs.cli import main
from rolloutfs.shelves import SHELVES
from scripts.man import FOLDER, TREE, pages, tree_document
from tests.mount.clients import need

PAGES = ("rolloutfs.1", "rolloutfs.5")


def read(name: str) -> str:
    """A page as a reader sees it, on one line."""
    need("groff", "groff-base")
    shown = subprocess.run(
        ["groff", "-man", "-Tutf8", "-P-cbou", "-rLL=200n", "-rHY=0", FOLDER / name],
        capture_output=True,
        check=True,
        timeout=60,
    )
    return " ".join(shown.stdout.decode().split())


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and those below it."""
    yield name, command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from commands(f"{name} {inner.name}", inner)


@pytest.mark.parametrize("name", PAGES)
def test_is_what_the_script_makes(name: str) -> None:
    """Byte for byte; `make man` makes them anew."""
    assert (FOLDER / name).read_text() == pages()[name]


def test_the_document_about_the_tree() -> None:
    """It is what the script makes, has every name of the tree, and every section of a mount's README about it."""
    text = TREE.read_text()
    assert text == tree_document()
    views = [view.value for kind in (View, StoreView, FamilyView) for view in kind]
    names = [
        *views,
        *control.FILES,
        *labels.NAMES,
        *SHELVES,
        "hits.jsonl",
        "incomplete.json",
        "hint.json",
        "operations.jsonl",
    ]
    assert [name for name in names if name not in text] == []
    assert {line for line in readme.text().decode().split("\n") if line.startswith("#")} - set(text.split("\n")) == {
        "# Your agent's threads, as files",
        "## Requests",
    }


@pytest.mark.parametrize("name", PAGES)
def test_troff_has_no_complaint(name: str) -> None:
    """Every warning of groff is on."""
    need("groff", "groff-base")
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tutf8", "-z", FOLDER / name], capture_output=True, check=True, timeout=60
    )
    assert done.stderr == b""


@pytest.mark.parametrize("name", PAGES)
def test_fits_a_terminal(name: str) -> None:
    """No line is longer than the 80 columns that a page is shown in."""
    need("groff", "groff-base")
    shown = subprocess.run(
        ["groff", "-man", "-Tutf8", "-P-cbou", "-rLL=78n", FOLDER / name], capture_output=True, check=True, timeout=60
    )
    assert [line for line in shown.stdout.decode().splitlines() if len(line) > 80] == []


def test_every_command_and_option() -> None:
    """With its help and its exit codes."""
    page = read("rolloutfs.1")
    for name, command in commands("rolloutfs", main):
        assert name in page
        assert " ".join((command.help or "").split()) in page
        for option in command.params:
            if isinstance(option, click.Option):
                assert all(spelling in page for spelling in (*option.opts, *option.secondary_opts))
                assert " ".join((option.help or "").split()) in page
        for line in (command.epilog or "").replace("\b", "").splitlines():
            assert " ".join(line.rstrip(":").split()).casefold() in page.casefold(), line


def test_every_file_of_the_tree() -> None:
    """Derived files, control files and attributes are told of."""
    page = read("rolloutfs.5")
    names = [*(view.value for view in View), *(view.value for view in StoreView), *control.FILES, *labels.NAMES]
    assert [name for name in names if name not in page] == []


def test_where_they_are_installed() -> None:
    """A wheel puts them where man(1) looks beside the folder of the program."""
    tools = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert tools["data-files"] == {"share/man/man1": ["man/rolloutfs.1"], "share/man/man5": ["man/rolloutfs.5"]}
