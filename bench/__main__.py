"""`python -m bench`: measure everything and write docs/benchmarks.md; or one case, or only make a store."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from bench import cases, indexes, limits, passthrough, peers, report, stores, transcripts, walks
from bench.cases import Case, Settings
from bench.server import ROOT

CASES: dict[str, Case] = {
    "first-byte": cases.first_byte,
    "sequential": cases.sequential,
    "passthrough": passthrough.passthrough,
    "transcript": transcripts.transcript,
    "scans": cases.scans,
    "limits": limits.scan,
    "requests": walks.requests,
    "live": walks.live,
    "walks": walks.walks,
    "walk-parts": walks.parts,
    "huge": walks.huge,
    "index": indexes.index,
    "memory": cases.memory,
    "codex": peers.codex,
    "search": peers.search,
    "archives": peers.archives,
}
PAGE = ROOT / "docs" / "benchmarks.md"


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """What reading large stores through a mount costs. Without a command: measure everything, write the page."""
    if context.invoked_subcommand is None:
        context.invoke(run, names=(), write=True)


@main.command()
@click.argument("names", nargs=-1, type=click.Choice([*CASES]))
@click.option("--runs", default=5, show_default=True, help="How often each case is run.")
@click.option("--scale", default=1, show_default=True, help="Divide all sizes, for a quick look.")
@click.option("--folder", type=click.Path(exists=True, path_type=Path), help="Where stores are made; 3 GB are needed.")
@click.option(
    "--write/--print", "write", default=False, help="Put the tables into docs/benchmarks.md instead of printing them."
)
def run(
    names: tuple[str, ...], runs: int = 5, scale: int = 1, folder: Path | None = None, *, write: bool = False
) -> None:
    """Measure the cases NAMES, or all of them."""
    settings = Settings(runs, scale)
    core = cases.pin()
    click.echo(f"Everything runs on core {core}.", err=True)
    tables = []
    for name in names or CASES:
        click.echo(f"{name} …", err=True)
        with tempfile.TemporaryDirectory(prefix="rolloutfs-bench-", dir=folder) as place:
            tables.append(CASES[name](Path(place), settings))
        click.echo(report.section(tables[-1]), err=True)
    text = report.page(tables, settings, PAGE.read_text(encoding="utf-8") if write and PAGE.exists() else "")
    if write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        click.echo(text)


@main.command()
@click.argument("name", type=click.Choice([*stores.RECIPES]))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--scale", default=1, show_default=True, help="Divide all sizes.")
def store(name: str, folder: Path, scale: int) -> None:
    """Make the store NAME in the new folder FOLDER."""
    stores.make(name, folder, scale)


@main.command("list")
def list_stores() -> None:
    """The stores that can be made."""
    for recipe in stores.RECIPES.values():
        click.echo(f"{recipe.name:12} {recipe.says}")


if __name__ == "__main__":
    main()
