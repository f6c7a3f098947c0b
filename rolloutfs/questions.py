"""The commands that tell something and change nothing, as click knows them; `commands` does what they say."""

from __future__ import annotations

import click

from rolloutfs.completing import complete_file, complete_thread
from rolloutfs.errors import Exit
from rolloutfs.invocation import answer

STORE = click.option(
    "--store", metavar="STORE", help="The store; without it that of the mount this is in, $CODEX_HOME, ~/.codex."
)
_COUNT = click.option(
    "-n",
    "count",
    metavar="NUMBER",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="At most so many; 0 is all.",
)
_MASK = click.option(
    "--mask-secrets/--no-mask-secrets",
    default=None,
    help="Mask keys and passwords, as a mount with --mask-secrets does.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")

_SEARCH = """\
Words are found without regard to case and accents; all of them must occur in one text. Words are letters and digits:
foo_bar.py is the phrase "foo bar py", and each Chinese, Japanese or Korean character is a word. An argument with a
blank in it is a phrase: 'flaky test' is one, flaky test are two words; mig* is any word that begins so.

\b
Filters:
  branch:NAME model:NAME  of the thread; NAME* for a beginning
  tool:NAME               calls of a tool, whose name is no word of a text
  cwd:FOLDER              the folder of the thread, or one below it
  kind:KIND               user, assistant, summary, reasoning, call, output
  since:YYYY-MM-DD        days of local time ($TZ), included; in a mount
  until:YYYY-MM-DD        of its --zone

\b
Examples:
  rolloutfs search flaky test
  rolloutfs search "connection refused" kind:output since:2026-11-01
  rolloutfs search 'migrat*' cwd:. branch:main
  rolloutfs search kind:user -n 5

"dropped" in the place of a turn's number: what was said there was rolled back, or dropped by a revert; with --json
"effective" is false then.

Exit codes: 0 done, also when nothing was found; 2 the query was not understood; 3 there is no store; 9 it failed.
"""


@click.command("search", epilog=_SEARCH, short_help="Search what was said in all threads.")
@click.argument("words", nargs=-1, required=True)
@STORE
@_COUNT
@_JSON
@_MASK
def search_command(
    words: tuple[str, ...], store: str | None, count: int, as_json: bool, mask_secrets: bool | None
) -> None:
    """Search what was said in all threads: messages, reasoning, calls of tools and their output, newest first.

    The index is brought up to date first, as by rolloutfs index.
    """

    def run() -> Exit | None:
        from rolloutfs.commands.search import search
        from rolloutfs.meant import store_of

        search(store_of(store, None), words, count, as_json=as_json, mask=mask_secrets)
        return None

    answer(run)


_LS = """\
\b
Examples:
  rolloutfs ls             the 20 threads of people with the newest records
  rolloutfs ls -n 0 --all  also of agents, and archived ones (dimmed)
  rolloutfs ls --archived
  rolloutfs ls --json -n 1 | jq -r .thread_id

LAST is the time of the last record, of a compressed log that of its file; WHERE the branch, or the folder where there
is none; NAME the thread's name, or its first words; other commands take either for THREAD. Output that goes elsewhere
than to a terminal is not cut to its width.

Exit codes: 0 done; 3 there is no store.
"""


@click.command("ls", epilog=_LS, short_help="List threads, the newest first.")
@STORE
@_COUNT
@click.option("--all", "everything", is_flag=True, help="Also threads of agents, and archived ones.")
@click.option("--archived", is_flag=True, help="Archived threads, and no others.")
@_JSON
def ls_command(store: str | None, count: int, everything: bool, archived: bool, as_json: bool) -> None:
    """List threads, the newest first: those that a person started and that are not archived."""

    def run() -> Exit | None:
        from rolloutfs.commands.ls import ls
        from rolloutfs.meant import store_of

        ls(store_of(store, None), count, everything=everything, archived=archived, as_json=as_json)
        return None

    answer(run)


_SHOW = """\
Files: thread.json, turns.jsonl, effective_history.jsonl, model_input.jsonl, full_history.jsonl, world_state.json,
transcript.md, pending_calls.jsonl, usage.json, problems.jsonl, lineage.json, family.txt, family.mmd, dropped.md,
dropped_turns.jsonl; and those of a turn, such as turns/last/user.md or turns/-2/diff.patch

\b
Examples:
  rolloutfs show 01a22938
  rolloutfs show "release notes" effective_history.jsonl | jq -r .role
  rolloutfs show 01a22938 turns.jsonl | head -3
  rolloutfs show 01a22938 turns/last/assistant.md

Exit codes: 0 done, also when the reader goes away early; 2 there is no file of that name; 3 there is no store; 8 there
is no such thread, or several, or it has no such turn, or that no such file; 9 the file can't be given.
"""


@click.command("show", epilog=_SHOW, short_help="Print a file of a thread.")
@click.argument("thread", shell_complete=complete_thread)
@click.argument("file", required=False, shell_complete=complete_file)
@STORE
@_MASK
def show_command(thread: str, file: str | None, store: str | None, mask_secrets: bool | None) -> None:
    """Print FILE of THREAD (an id, a name, a path: see rolloutfs --help), byte for byte as a mount has it. Without FILE
    it is the file to which the path of THREAD leads, else thread.json.
    """

    def run() -> Exit | None:
        from rolloutfs.commands.show import show
        from rolloutfs.meant import store_of

        show(store_of(store, thread), thread, file, mask=mask_secrets)
        return None

    answer(run)


_LOG = """\
\b
Examples:
  rolloutfs log                the last thread of this folder
  rolloutfs log 01a22938
  rolloutfs log 01a22938 --json | jq 'select(.status == "failed").error'
  rolloutfs log 01a22938 --dropped
  rolloutfs log -n 5 "release notes"

A turn that no longer counts has no number; those that a revert dropped are listed with --dropped, with the numbers that
they had. With --json each line is that of turns.jsonl, or of dropped_turns.jsonl.

Exit codes: 0 done; 3 there is no store; 8 there is no such thread, or several; 9 the turns can't be told.
"""


@click.command("log", epilog=_LOG, short_help="List the turns of a thread, the newest first.")
@click.argument("thread", required=False, shell_complete=complete_thread)
@STORE
@click.option("--dropped", is_flag=True, help="The turns that reverts and rollbacks took back, and no others.")
@click.option("-n", "count", metavar="NUMBER", type=click.IntRange(0), default=0, help="At most so many; 0 is all.")
@_JSON
@_MASK
def log_command(
    thread: str | None, store: str | None, dropped: bool, count: int, as_json: bool, mask_secrets: bool | None
) -> None:
    """List the turns of THREAD, the newest first: number, status, time, duration, tokens, first words.

    THREAD is an id, a name or a path (see rolloutfs --help); without it, the one in whose folder of a mount this is,
    else the last thread that worked in the current folder or above it.
    """

    def run() -> Exit | None:
        from rolloutfs.commands.log import log
        from rolloutfs.meant import store_of

        log(store_of(store, thread), thread, count, as_json=as_json, dropped=dropped, mask=mask_secrets)
        return None

    answer(run)


_PATH = """\
\b
Examples:
  cd "$(rolloutfs path)"  the last thread of this folder
  jq . "$(rolloutfs path 01a22938)/thread.json"
  rolloutfs path "release notes" --mountpoint ~/threads
  ls "$(rolloutfs path ~/threads/recent/LINK)"

Mounts of other stores are left out, also when they have the thread, as that of a backup may. Of several mounts of STORE
the oldest that answers is taken. With --mountpoint alone STORE is what is mounted there; a path into a mount is one of
that mount.

Exit codes: 0 done; 3 there is no store; 4 nothing is mounted there, or it doesn't answer; 8 there is no such thread,
or several, or no mount shows the store.
"""


@click.command("path", epilog=_PATH, short_help="Print the folder of a thread in a mount.")
@click.argument("thread", required=False, metavar="[THREAD]", shell_complete=complete_thread)
@click.option("--mountpoint", metavar="DIR", help="Look into this mount only, not into all that there are.")
@STORE
def path_command(thread: str | None, mountpoint: str | None, store: str | None) -> None:
    """Print the folder of a thread in a mount that is mounted now.

    THREAD is an id, a name or a path (see rolloutfs --help); without it, the one in whose folder of a mount this is,
    else the last thread that worked in the current folder or above it.
    """

    def run() -> Exit | None:
        from rolloutfs.commands.path import path

        path(store, thread, mountpoint)
        return None

    answer(run)


_CHECK = """\
\b
Examples:
  rolloutfs check
  rolloutfs check --store /backup/codex && echo sound
  rolloutfs check --json | jq -r .code | sort | uniq -c

A line a problem: file:offset: code: what is wrong; what follows from it. Offsets are in decoded bytes.

Exit codes: 0 there are no problems; 10 there are some; 3 there is no store.
"""


@click.command("check", epilog=_CHECK, short_help="Tell what is damaged or odd in a store.")
@STORE
@_JSON
def check_command(store: str | None, as_json: bool) -> None:
    """Tell what is damaged or odd in a store and its threads, without changing anything."""

    def run() -> Exit | None:
        from rolloutfs.commands.check import check
        from rolloutfs.meant import store_of

        return check(store_of(store, None), as_json=as_json)

    answer(run)


_STATUS = """\
\b
Examples:
  rolloutfs status
  rolloutfs status --json | jq '.mounts[] | select(.answers | not)'

Exit codes: 0 done, whatever is mounted.
"""


@click.command("status", epilog=_STATUS, short_help="Tell what is mounted where, and whether it answers.")
@STORE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status_command(store: str | None, as_json: bool) -> None:
    """Tell what is mounted where, by which process since when, how, and whether it answers; the index; versions.

    How it is mounted the mount says itself, whatever config.toml says by now: .mount.json in it.
    """

    def run() -> Exit | None:
        from rolloutfs.commands.status import status
        from rolloutfs.meant import store_of

        status(store_of(store, None), as_json=as_json)
        return None

    answer(run)


_TREE = """\
\b
Examples:
  rolloutfs tree
  rolloutfs tree 01a22938
  rolloutfs tree --json | jq -c 'select(.how == "fork")'

Archived threads are marked and dimmed. "after turn 3": the fork took over turns up to that one, by its own count; what
it was made from may have been reverted since. --json has an object for each thread, with the same members as in ls
where they mean the same; "above" is the thread that it came from.

Exit codes: 0 done; 3 there is no store; 8 there is no such thread, or several.
"""


@click.command("tree", epilog=_TREE, short_help="Show families of threads: forks, agents, generations.")
@click.argument("thread", required=False, shell_complete=complete_thread)
@STORE
@_JSON
def tree_command(thread: str | None, store: str | None, as_json: bool) -> None:
    """Show the family of THREAD (an id, a name, a path: see rolloutfs --help), or all families of the store, as a tree:
    generations, forks and where they begin, agents.
    """

    def run() -> Exit | None:
        from rolloutfs.commands.tree import tree
        from rolloutfs.meant import store_of

        tree(store_of(store, thread), thread, as_json=as_json)
        return None

    answer(run)


_COMPLETION = """\
\b
Examples:
  d=~/.local/share/bash-completion/completions
  mkdir -p $d && rolloutfs completion bash > $d/rolloutfs
  mkdir -p ~/.zfunc && rolloutfs completion zsh > ~/.zfunc/_rolloutfs
  rolloutfs completion fish > ~/.config/fish/completions/rolloutfs.fish

zsh looks there when ~/.zshrc says, before compinit: fpath+=~/.zfunc

Exit codes: 0 done; 2 there is no such shell.
"""


@click.command("completion", epilog=_COMPLETION, short_help="Print a script with which a shell completes all this.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands, options, thread ids and names."""

    def run() -> Exit | None:
        from rolloutfs.commands.completion import completion

        completion(shell, context.find_root().command)
        return None

    answer(run)


COMMANDS: tuple[click.Command, ...] = (
    *(ls_command, show_command, path_command, log_command, tree_command, search_command),
    *(check_command, status_command, completion_command),
)
