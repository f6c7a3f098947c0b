"""The README.md in the root of the mount: how to use the tree, for a person or a program that has only the mount."""

from __future__ import annotations

import os

from rolloutfs import __version__

_TEXT = """\
# Your agent's threads, as files

Made by rolloutfs {version}. Read-only: nothing here can harm the store, and reading changes nothing in it.
Everything is computed from the rollout files when it is read; there is no copy that could be stale.

    ls threads                                          every thread, archived ones and sub-agents too
    jq -r '.name // .preview' threads/*/thread.json     what they are about
    cat threads/ID/effective_history.jsonl              what the model remembers now, one item a line
    diff threads/A/model_input.jsonl threads/B/model_input.jsonl
    grep -rl 'some words' threads/*/effective_history.jsonl
    tail -f threads/ID/effective_history.jsonl          follow a thread that is running

## threads/ID/

| file | content |
| --- | --- |
| effective_history.jsonl | what the model remembers now; each line is byte for byte the item in the log |
| model_input.jsonl | the same, normalised: exactly what the next request would carry as history |
| full_history.jsonl | every record of the lineage, nothing hidden, each with `effective: true` or `false` |
| world_state.json | world-state baseline, settings of the last turn, context window, tokens |
| thread.json | name, folder, git, model, times, status, counts, how the replay went |
| turns.jsonl | one line a turn: id, status, whether it still counts and why, user text, usage |
| pending_calls.jsonl | tool calls without a recorded result: their effect is unknown |
| usage.json | tokens; what a fork inherited is counted once |
| problems.jsonl | what is damaged or odd, with file, byte offset and consequence; empty when all is sound |
| lineage/ | lineage.json; links forked_from and parent; forks/ and agents/ |
| rollouts/ | the raw rollout files of every generation, decoded; `current` is the one in use |

A derived file that can't be given truthfully answers "Input/output error"; `problems.jsonl` beside it says why.

## store/

The store's own files as they lie on disk (`sessions/`, `archived_sessions/`, `session_index.jsonl`), and derived
from all of them: `heads.jsonl` (thread and selected rollout), `problems.jsonl`, `stats.json`. Enough for a backup,
and nothing secret.

The links in lineage/ lead in circles (a fork to its origin and back): use `diff -r --no-dereference`.
Sizes are exact, times and inode numbers are the same after a remount, so `rsync`, `tar`, `restic` and `borg` work.

    rolloutfs umount MOUNTPOINT                         when you are done
"""


def text() -> bytes:
    """The same for every mount: a copy of the tree would else differ by where it was mounted."""
    return _TEXT.format(version=__version__).encode()


def times() -> tuple[int, int]:
    """mtime and ctime (ns) of the README: those of this module, which change when its text does."""
    try:
        status = os.stat(__file__)
    except OSError:  # in a zip file
        return 0, 0
    return status.st_mtime_ns, status.st_mtime_ns
