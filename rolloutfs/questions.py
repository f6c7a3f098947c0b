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


_LS = """\
\b
Examples:
  rolloutfs ls                 the 20 threads of people that were written to last
  rolloutfs ls -n 0 --all      every thread, also of agents and archived ones (dimmed)
  rolloutfs ls --archived
  rolloutfs ls --json -n 1 | jq -r .thread_id

\b
LAST is the time of the last record; WHERE the branch, or the folder where there is none; NAME the thread's name, or
its first words. Output that goes elsewhere than to a terminal is not cut to its width.

\b
Exit codes: 0 done; 3 there is no store.
"""


@click.command("ls", epilog=_LS)
@STORE
@click.option("-n", "count", type=click.IntRange(0), default=20, show_default=True, help="At most so many; 0 is all.")
@click.option("--all", "everything", is_flag=True, help="Also threads of agents, and archived ones.")
@click.option("--archived", is_flag=True, help="Archived threads, and no others.")
@_JSON
def ls_command(store: str | None, count: int, everything: bool, archived: bool, as_json: bool) -> None:
    """List threads, the newest first: those that a person started and that are not archived."""

    def run() -> Exit | None:
        from rolloutfs.commands.ls import ls

        ls(store or default_store(), count, everything=everything, archived=archived, as_json=as_json)
        return None

    answer(run)


_SHOW = """\
\b
Files: thread.json, turns.jsonl, effective_history.jsonl, model_input.jsonl, full_history.jsonl, world_state.json,
pending_calls.jsonl, usage.json, problems.jsonl, lineage.json

\b
Examples:
  rolloutfs show 01a22938
  rolloutfs show "release notes" effective_history.jsonl | jq -r .role
  rolloutfs show 01a22938 turns.jsonl | head -3

\b
Exit codes: 0 done, also when the reader goes away early; 2 there is no such file; 3 there is no store; 8 there is no
such thread, or several; 9 the file can't be given.
"""


@click.command("show", epilog=_SHOW)
@click.argument("thread")
@click.argument("file", default="thread.json")
@STORE
def show_command(thread: str, file: str, store: str | None) -> None:
    """Print FILE of THREAD (an id, the beginning of one, or a name), byte for byte as a mount has it."""

    def run() -> Exit | None:
        from rolloutfs.commands.show import show

        show(store or default_store(), thread, file)
        return None

    answer(run)


_LOG = """\
\b
Examples:
  rolloutfs log                the last thread of this folder
  rolloutfs log 01a22938
  rolloutfs log 01a22938 --json | jq -r 'select(.status == "failed") | .error'

\b
A turn that no longer counts has no number. With --json each line is that of turns.jsonl.

\b
Exit codes: 0 done; 3 there is no store; 8 there is no such thread, or several; 9 the turns can't be told.
"""


@click.command("log", epilog=_LOG)
@click.argument("thread", required=False)
@STORE
@_JSON
def log_command(thread: str | None, store: str | None, as_json: bool) -> None:
    """List the turns of THREAD, the newest first: number, status, time, duration, tokens, first words.

    THREAD is an id, the beginning of one, or a name; without it, the last thread whose folder is the current one or
    above it.
    """

    def run() -> Exit | None:
        from rolloutfs.commands.log import log

        log(store or default_store(), thread, as_json=as_json)
        return None

    answer(run)


COMMANDS: tuple[click.Command, ...] = (ls_command, show_command, log_command, search_command)
