"""The command line. What mounts is imported only when it is needed: a worker process imports this module too."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, Any

import click

from rolloutfs import __version__, questions
from rolloutfs.completing import complete_thread
from rolloutfs.errors import Exit, MountError
from rolloutfs.invocation import default_store, finish, mention, printing

_CODES = """
\b
Exit codes:
  0  done                            7  the mount is in use
  1  an error of rolloutfs itself    8  the request was refused
  2  the command was not understood  9  the request failed
  3  there is no store              10  check has found problems
  4  the mountpoint was refused     11  done, but the answer was lost
  5  FUSE can't be used here       130  interrupted by Ctrl-C or a signal
  6  a dead mount is in the way
"""
_EXAMPLES = """\
\b
Examples:
  rolloutfs demo                       a sample store, and what to try in it
  rolloutfs mount ~/threads            your store: $CODEX_HOME, else ~/.codex
  rolloutfs mount /backup/codex ~/old  another store
  cat ~/threads/README.md              how to use what is there
  rolloutfs umount ~/threads
  rolloutfs fork THREAD before -1      control files, without a mount
  rolloutfs search flaky test          what was said, in all threads
"""
_EPILOG = f"{_EXAMPLES}{_CODES}"
_THREADS = """
\b
THREAD is any of these; where it means several, they are told, no more:
  01a22938            an id, or the beginning of one
  "release notes"     a name, or first words as ls shows them
  fix_tests-12345678  the name of a link in a mount, or its end
  . recent/LINK       a path into a mount; without --store its store is meant
"""
_FORK = f"""\
\b
Examples:
  rolloutfs fork 01a22938                   all of the thread with that id
  rolloutfs fork "release notes" through 3  of that name, up to turn 3
  rolloutfs fork 01a22938 before -1         all but its last turn
  rolloutfs fork --dry-run 01a22938 before 2
  rolloutfs fork 01a22938 | jq -r .thread_id
{_CODES}"""
_REVERT = f"""\
\b
Examples:
  rolloutfs revert 01a22938 before -1        take the last turn back
  rolloutfs revert "release notes" before 3  of that name: two turns are left
  rolloutfs revert 01a22938 undo             take the last revert back
  rolloutfs revert --dry-run 01a22938 before 2 | jq -r '.dropped_turns[]'
{_CODES}"""
_COMPACT = f"""\
\b
Examples:
  rolloutfs compact 01a22938 summary.md  this text becomes its memory
  rolloutfs compact "release notes" - < summary.md
  rolloutfs compact 01a22938 --recent    only the user's newest messages
  rolloutfs compact 01a22938 --auto      the summarizer of config.toml
  rolloutfs compact 01a22938 --summarizer "my-summarizer --short"
  rolloutfs compact --dry-run 01a22938 summary.md
{_CODES}"""
_UMOUNT = f"""\
\b
Examples:
  rolloutfs umount ~/threads     also one whose server has ended
  rolloutfs umount -z ~/threads  one in use: it goes when it is let go of
{_CODES}"""
_DEMO = f"""\
\b
Examples:
  rolloutfs demo         in a fresh temporary folder
  rolloutfs demo ~/demo  in a folder that is empty or isn't there yet
  cd "$(rolloutfs demo --json | jq -r .mountpoint)"
{_CODES}"""
_INDEX = f"""\
\b
Examples:
  rolloutfs index                of the store of this mount, else of ~/.codex
  rolloutfs index /backup/codex
  sqlite3 "$(rolloutfs index --json | jq -r .index)" .schema
{_CODES}"""
_SERVICE = f"""\
\b
Examples:
  rolloutfs service install --now  ~/.codex on ~/threads, at each login
  rolloutfs service install --store /backup/codex --mountpoint ~/old
  systemctl --user status rolloutfs
  rolloutfs service uninstall --now
{_CODES}"""


class _Commands(click.Group):
    """Commands, and what mount.fuse3(8) calls, which knows of none: `rolloutfs STORE DIR -o …`, with absolute paths."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("/"):
            from rolloutfs import mounthelper

            ctx.exit(mounthelper.run(args))
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **more: Any) -> Any:
        """Run it; also what click prints by itself, as for --help, may find no room, or a reader that is gone: of that
        click makes the code 1, and puts something else in the place of stdout.
        """
        with printing():
            out = sys.stdout
            try:
                return super().main(*args, **more)
            except SystemExit as ended:
                if ended.code == 1 and sys.stdout is not out:
                    sys.exit(Exit.DONE)
                raise


@click.group(
    cls=_Commands, epilog=f"{_EXAMPLES}{_THREADS}{_CODES}", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, "--version", prog_name="rolloutfs")
def main() -> None:
    """A coding agent's threads, mounted as files: ls, cat, grep, tail -f, jq and diff are the user interface."""


@main.command("mount", epilog=_EPILOG, short_help="Mount a store on an empty folder.")
@click.argument("paths", nargs=-1, required=True, metavar="[STORE] MOUNTPOINT")
@click.option(
    "-f",
    "--foreground/--background",
    default=None,
    help="Serve in this process until Ctrl-C; log to the terminal.",
)
@click.option("--replace/--no-replace", default=None, help="Clear away a dead mount that is left at MOUNTPOINT.")
@click.option(
    "-o",
    "options",
    multiple=True,
    metavar="OPTIONS",
    help="Mount options, separated by commas. ro is --read-only; other generic ones (noauto, x-...) are accepted and "
    "mean nothing; allow_other is --allow-other, passthrough is --passthrough, mask_secrets is --mask-secrets, "
    "xattrs and noxattrs are --xattrs and --no-xattrs, zone=ZONE is --zone.",
)
@click.option(
    "--read-only/--read-write",
    default=None,
    help="Without the control files; what backups are best made from.",
)
@click.option(
    "--allow-other/--no-allow-other", default=None, help="Let other users in, as far as permissions let them."
)
@click.option(
    "--index/--no-index",
    default=None,
    help="Keep what listings need in an index outside the store, from one mount to the next.  [default: index]",
)
@click.option(
    "--passthrough/--no-passthrough",
    default=None,
    help="Let the kernel read raw files of 1 MiB and more by itself, as fast as outside the mount. For root, on Linux "
    "6.9 and later; where it can't be done a line says why, and nothing else changes.",
)
@click.option(
    "--zone",
    metavar="ZONE",
    help="Of dates in by-date and the like, and of since: and until: below search/: Europe/Berlin, for example.  "
    "[default: UTC]",
)
@click.option(
    "--mask-secrets/--no-mask-secrets",
    default=None,
    help="Mask keys and passwords in transcript.md, dropped.md, user.md, assistant.md, in what search/ finds, and in "
    "names of links. Files for programs (.json, .jsonl, .patch, logs) stay as they are. A help, no guarantee.",
)
@click.option(
    "--xattrs/--no-xattrs",
    default=None,
    help="Tell of threads by extended attributes (getfattr -d threads/ID), and why a request was refused. They cost up "
    "to three requests for each file that ls -l or a backup program looks at.  [default: xattrs, with --read-only "
    "no-xattrs]",
)
def mount_command(paths: tuple[str, ...], options: tuple[str, ...], **said: bool | str | None) -> None:
    """Mount STORE, a folder with sessions/ in it, on the empty folder MOUNTPOINT.

    STORE defaults to $CODEX_HOME, then to ~/.codex. The command returns once the tree can be used.

    What isn't given here is looked for in ROLLOUTFS_READ_ONLY and the like, which are true or false (ROLLOUTFS_ZONE is
    a name), then in ~/.config/rolloutfs/config.toml (read_only = true).
    """
    if len(paths) > 2:
        raise click.UsageError("Give a store and a mountpoint, or a mountpoint alone.")
    store, mountpoint = paths if len(paths) == 2 else (default_store(), paths[0])

    def run() -> None:
        from rolloutfs import config, mount
        from rolloutfs import options as mount_options

        given = mount_options.parse(options)
        for name, value in asdict(given).items():
            said[name] = value if said[name] is None else said[name]
        mount.mount(mount.Request.of(store, mountpoint, config.mount_settings(said)), mention)

    finish(run)


@main.command("umount", epilog=_UMOUNT, short_help="Unmount what rolloutfs mounted, alive or dead.")
@click.argument("mountpoint")
@click.option("-z", "--lazy", is_flag=True, help="Detach now, although files are open; they end when they are closed.")
def umount_command(mountpoint: str, lazy: bool) -> None:
    """Unmount what rolloutfs mounted on MOUNTPOINT, alive or dead."""

    def run() -> None:
        from rolloutfs.umount import umount

        umount(mountpoint, lazy=lazy)

    finish(run)


@main.command("demo", epilog=_DEMO, short_help="Mount a sample store, and say what is worth trying there.")
@click.argument("folder", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def demo_command(folder: str | None, as_json: bool) -> None:
    """Mount a small sample store that comes with rolloutfs, and say what is worth trying there.

    It is copied to FOLDER/codex-home and mounted on FOLDER/threads, in the background and without an index; without
    FOLDER a temporary one is made. rolloutfs umount ends the mount and removes nothing: that is for rm -r FOLDER.
    """

    def run() -> None:
        from rolloutfs import demo

        demo.demo(folder, mention, as_json=as_json)

    finish(run)


@main.command("index", epilog=_INDEX, short_help="Bring the index of a store up to date now.")
@click.argument("store", required=False)
@click.option("--store", "other_store", metavar="STORE", help="The same as STORE alone, as other commands have it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def index_command(store: str | None, other_store: str | None, as_json: bool) -> None:
    """Bring the index of STORE up to date now: what listings need, kept outside the store.

    A mount does it by itself, in the background. The index is an SQLite file and may be deleted at any moment.
    """
    if store and other_store:
        raise click.UsageError("Give one store: as STORE, or as --store STORE.")

    def run() -> None:
        from rolloutfs import building
        from rolloutfs.meant import store_of

        how = "give it as STORE, or in $CODEX_HOME"
        building.build(store_of(store or other_store, None), mention, how, as_json=as_json)

    finish(run)


_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
_NUMBERS = {"ignore_unknown_options": True}  # so that -1 is a turn


@main.command(
    "fork", epilog=_FORK, short_help="Make a new thread from one, or from its beginning.", context_settings=_NUMBERS
)
@click.argument("thread", shell_complete=complete_thread)
@click.argument("words", nargs=-1, metavar="[latest | through TURN | before TURN]")
@questions.STORE
@_DRY_RUN
def fork_command(thread: str, words: tuple[str, ...], store: str | None, dry_run: bool) -> None:
    """Make a new thread from THREAD (an id, a name, a path: see rolloutfs --help) and print the answer, JSON on one
    line.

    TURN is a turn id, the beginning of one, a number in turns.jsonl (1 is the first that counts), or -1 for the last.
    """
    _refuse_options(thread, *words)
    _operate("fork", thread, _line(words or ("latest",), dry_run=dry_run), store)


@main.command(
    "revert",
    epilog=_REVERT,
    short_help="Let a thread go on from before a turn, or undo that.",
    context_settings=_NUMBERS,
)
@click.argument("thread", shell_complete=complete_thread)
@click.argument("words", nargs=-1, required=True, metavar="before TURN | undo")
@questions.STORE
@_DRY_RUN
def revert_command(thread: str, words: tuple[str, ...], store: str | None, dry_run: bool) -> None:
    """Let THREAD (an id, a name, a path: see rolloutfs --help) go on from before a turn, and print the answer, JSON on
    one line.

    TURN is a turn id, the beginning of one, a number in turns.jsonl (1 is the first that counts), or -1 for the last.
    undo goes on from where the thread was before the last revert, without what came after that, turns and compactions;
    a second undo takes the first one back. A legacy thread ("history_mode" in thread.json) has no undo.
    """
    _refuse_options(thread, *words)
    _operate("revert", thread, _line(words, dry_run=dry_run), store)


@main.command("compact", epilog=_COMPACT, short_help="Make a summary the model's memory of a thread.")
@click.argument("thread", shell_complete=complete_thread)
@click.argument("file", required=False, type=click.File("rb"))
@click.option("--recent", is_flag=True, help="No summary: keep only the newest messages of the user.")
@click.option("--auto", is_flag=True, help="Let the summarizer of config.toml write the summary.")
@click.option("--summarizer", metavar="COMMAND", help="The same with this program, whatever config.toml says.")
@questions.STORE
@_DRY_RUN
def compact_command(
    thread: str,
    file: IO[bytes] | None,
    recent: bool,
    auto: bool,
    summarizer: str | None,
    store: str | None,
    dry_run: bool,
) -> None:
    """Make the summary in FILE (- is stdin) the model's memory of THREAD (an id, a name, a path: see
    rolloutfs --help), and print the answer, JSON on one line.

    What FILE says is read as in the control file: a JSON object is a request, any other text the summary.
    """
    if summarizer is not None:
        if not summarizer.strip() or auto:
            raise click.UsageError("Give --auto, or a command as --summarizer.")
        auto, os.environ["ROLLOUTFS_SUMMARIZER"] = True, summarizer
    if (file is not None) + recent + auto != 1:
        raise click.UsageError("Give a file with the summary (- is stdin), or --recent, --auto or --summarizer.")

    def payload() -> bytes:
        from rolloutfs import control

        if file is not None:
            return file.read(control.LARGEST + 1)
        return control.as_line({"strategy": "recent" if recent else "auto", "dry_run": dry_run})

    _operate("compact", thread, payload, store, dry_run=dry_run)


@main.group("service", epilog=_SERVICE, short_help="Mount at login, by a user service of systemd.")
def service_group() -> None:
    """A user service of systemd that mounts at login; `rolloutfs@…` is one for further stores."""


_NOW = click.option("--now", is_flag=True, help="Run what systemctl is to be told, instead of showing it.")


@service_group.command("install", epilog=_SERVICE, short_help="Write the units.")
@click.option("--store", metavar="STORE", help="The store; $CODEX_HOME or ~/.codex unless it is given.")
@click.option("--mountpoint", metavar="DIR", help="Where the tree appears; ~/threads unless it is given.")
@_NOW
def install_command(store: str | None, mountpoint: str | None, now: bool) -> None:
    """Write the units to the folder that systemd reads a user's units from."""

    def run() -> None:
        from rolloutfs import service

        service.install(store or os.environ.get("CODEX_HOME"), mountpoint, mention, now=now)

    finish(run)


@service_group.command("uninstall", epilog=_SERVICE, short_help="Remove the units that install wrote.")
@_NOW
def uninstall_command(now: bool) -> None:
    """Remove the units that install wrote, and nothing else."""

    def run() -> None:
        from rolloutfs import service

        service.uninstall(mention, now=now)

    finish(run)


def _refuse_options(*words: str) -> None:
    """What looks like an option and isn't one of ours is misspelt: `_NUMBERS` lets it through."""
    for word in words:
        if word.startswith("--"):
            raise click.NoSuchOption(word, ctx=click.get_current_context())


def _line(words: tuple[str, ...], *, dry_run: bool) -> Callable[[], bytes]:
    return lambda: os.fsencode(" ".join(("dry-run", *words) if dry_run else words))


def _operate(file: str, thread: str, payload: Callable[[], bytes], store: str | None, *, dry_run: bool = False) -> None:
    """Do what a write to a control file would do; the answer goes to stdout, a reason to stderr."""

    def run() -> None:
        from rolloutfs import command, control, meant

        try:
            data = payload()
            is_dry = dry_run or control.is_for_a_look(file, data)
            place = meant.store_of(store, thread, is_changed=not is_dry)
            command.operate(place, file, thread, data, click.echo, dry_run=dry_run)
        except (MountError, click.ClickException):
            raise
        except Exception as error:
            told = f"an error of rolloutfs itself, please report it: {type(error).__name__}: {error}"
            raise MountError(told, Exit.INTERNAL) from error

    finish(run)


for _command in questions.COMMANDS:
    main.add_command(_command)
