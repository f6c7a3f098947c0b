"""The commands that tell something and change nothing, as click knows them; `commands` does what they say."""

from __future__ import annotations

import click

from rolloutfs.errors import Exit
from rolloutfs.invocation import answer, default_store

STORE = click.option("--store", metavar="STORE", help="The store; $CODEX_HOME or ~/.codex unless it is given.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")

_SEARCH = """\
\b
Words are found without regard to case and accents; all of them must occur in one text.
  word   "a phrase"   prefix*
Filters:
  branch:NAME  model:NAME  tool:NAME    of the thread, of the call; NAME* for a beginning
  cwd:FOLDER                            the folder of the thread, or one below it
  kind:KIND                             user, assistant, summary, reasoning, call or output
  since:YYYY-MM-DD  until:YYYY-MM-DD    days of local time, both included

\b
Examples:
  rolloutfs search flaky test
  rolloutfs search "connection refused" kind:output since:2026-11-01
  rolloutfs search 'migrat*' cwd:. branch:main
  rolloutfs search kind:user -n 5

\b
Exit codes: 0 done, also when nothing was found; 2 the query was not understood; 3 there is no store; 9 it failed.
"""


@click.command("search", epilog=_SEARCH)
@click.argument("words", nargs=-1, required=True)
@STORE
@click.option("-n", "count", type=click.IntRange(0), default=20, show_default=True, help="At most so many; 0 is all.")
@_JSON
def search_command(words: tuple[str, ...], store: str | None, count: int, as_json: bool) -> None:
    """Search what was said in all threads: messages, reasoning, calls of tools and their output, newest first.

    The index is brought up to date first, as by rolloutfs index.
    """

    def run() -> Exit | None:
        from rolloutfs.commands.search import search

        search(store or default_store(), words, count, as_json=as_json)
        return None

    answer(run)


COMMANDS: tuple[click.Command, ...] = (search_command,)
