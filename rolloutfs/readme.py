"""The README.md in the root of the mount: how to use the tree, for a person or a program that has only the mount."""

from __future__ import annotations

import os

from rolloutfs import __version__

_HEAD = """\
# Your agent's threads, as files

Made by rolloutfs {version}. Reading changes nothing in the store. Only three files of a thread take requests (below).
Everything is computed from the rollout files when it is read. Only `stats.json`, `problems.jsonl` and `lineage.mmd` of
the whole store may be older: by 20 times what computing them takes, which without an index may be a minute.

    ls threads                                          every thread, archived ones and sub-agents too
    ls -t recent; ls by-date/2026/11                    those that a person started, by what they are about
    ls -t "search/some words"                           those in which words were said, the newest hit first
    less "search/some words"/*/transcript.md            to read them; their turns: grep '^## Turn' transcript.md
    jq -r '.name // .preview' threads/*/thread.json     what they are about
    cat threads/ID/effective_history.jsonl              what the model remembers now, one item a line
    diff threads/A/model_input.jsonl threads/B/model_input.jsonl
    grep -rl 'some words' threads/*/effective_history.jsonl
    tail -f threads/ID/effective_history.jsonl          follow a thread that is running

"""

_ROOT = """\
## The root

    threads/            every thread by its id: a folder of files about it
    by-date/ … archived/    links to threads that a person started, see Views
    search/             what was said, by an index
    store/              the store's own files, and what is derived from all of them
    operations.jsonl    every request for this store, done or refused, with its answer
    problems.jsonl, stats.json, lineage.mmd     links to those in store/

`cat .mount.json`, which isn't listed, tells how this is mounted: version, store, index, settings.

"""

_THREAD = """\
## threads/ID/

| file | content |
| --- | --- |
| effective_history.jsonl | what the model remembers now, after compaction, rollback, revert and fork: one item a \
line, byte for byte as in the log |
| model_input.jsonl | the same, normalised: exactly what the next request would carry as history |
| full_history.jsonl | every record of the thread and of those it was forked from, in order, nothing hidden, each \
with `effective: true` or `false` |
| transcript.md | the thread as text for people and `grep -rn`: turns, messages, calls, results, patches, \
checkpoints, rollbacks, reverts, forks; what no longer counts is marked. Long texts keep their ends and say where in \
the log the rest is; no image data, no escape sequences. With --mask-secrets [masked: …] stands for keys and passwords |
| turns.jsonl | one line a turn: id, number, status, whether it still counts and why not, text of the user, times, \
usage |
| turns/0007/ | one turn: user.md and assistant.md (what was said), items.jsonl (its items, byte for byte), \
calls/003-exec_command.json (arguments, output as recorded, exit code), diff.patch (what it changed, as far as that \
was recorded), usage.json, turn.json (its line of turns.jsonl) |
| dropped.md | what reverts dropped, as a transcript, the first revert first. There where a thread has several \
rollouts: each revert leaves one more. Empty when undo brought all of it back |
| dropped_turns.jsonl | the turns in it, as in turns.jsonl; `number_then` is the number that a turn had. There \
likewise |
| thread.json | id, name, folder, git, model, times, mode, status, counts, what the replay is based on |
| world_state.json | world-state baseline with its patches applied, settings of the last turn, context window, tokens \
|
| pending_calls.jsonl | tool calls without a recorded result: their effect is unknown |
| usage.json | tokens: `own` is what the thread spent itself, by day and model, turns that were taken back too, \
without what it `inherited` and without its sub-agents |
| problems.jsonl | what is damaged or odd, with file, byte offset and consequence; empty when all is sound |
| lineage/ | lineage.json, the pieces of log that the thread consists of; links forked_from and parent; forks/ and \
agents/; family.txt and family.mmd (Mermaid), all that came from the same thread, with the turn after which each fork \
begins |
| rollouts/ | the raw rollout files of every generation, decoded; `current` links to the one in use |
| fork, revert, compact | control files: write a request, read the answer; `cat` one to see how |

Turns are numbered as in turns.jsonl; turns/last, turns/-1 and turns/7 work, too, and one that was rolled back is
0007~1. A walk leaves turns/ out, since all of it stands in other files as well: it is a link to a folder that isn't
listed. Write a slash to look into it, `grep -r word turns/`. A copy of the tree has the link without that folder; copy
one of its folders by name, `tar cf last.tar -C turns/last/ .`

`getfattr -d threads/ID` shows thread_id, name, status, model, branch, tokens and problems as user.rolloutfs.*; a
mount with --no-xattrs has none of these, nor has one with --read-only that wasn't given --xattrs.

A derived file that can't be given truthfully answers "Input/output error"; `problems.jsonl` beside it says why.

tail -f follows effective_history.jsonl, model_input.jsonl, full_history.jsonl, the files in rollouts/ and
operations.jsonl, which gain lines at their end. transcript.md, turns.jsonl and the rest are made anew: an open one
stays as it was, and tail -f of it prints no more. Look again: watch tail transcript.md

"""

_PLACES = """\
## Places

A transcript names places in the log as `sessions/2026/11/29/rollout-….jsonl:9609`: a file of the store and how many
bytes come before. The record there is the first line of

    tail -c +9610 store/sessions/2026/11/29/rollout-….jsonl         one more, since tail counts from 1

Offsets are in decoded bytes: for a name that ends in .zst take the file of the same name without it below rollouts/ of
the thread that it belongs to (its id is in the name). What a revert of a paginated thread dropped lies in the older
log, from the place on that the transcript tells, `What had followed: …`, and dropped.md shows it. In a legacy thread
nothing was moved: what no longer counts is in the transcript and in turns.jsonl, marked, and there is no dropped.md.

"""

_VIEWS = """\
## Views

Folders of links into threads/, of the threads that a person started:

    by-date/2026/11/29/21-31-05_first_words     when it began, and its name or else what was said first
    by-name/name, by-name/first_words-12345678  the name that it was given, else the first words and the end of its id
    by-cwd/home/me/project/TIME_first_words     where it works now; the folders are those of the path
    by-branch/feature/x/…, by-model/gpt-5.5/…   the branch of its session, its model now; without one it isn't there
    recent/…, archived/…                        the 100 that were written to last (ls -t); those that are archived

TIME is that of the beginning, like 2026-11-29T21-31-05, in UTC unless the mount was given a --zone. In names of links
blanks and what a shell would stumble over are `_`; where several in a folder would be the same, all of these end in a
part of the id. A name changes only with its thread. The folders of by-cwd, by-branch and by-model are called as the
thread has it, blanks and quotes too: quote them. What can't be shown, a backslash and a `-` at the beginning are `_`,
and a part of more than 120 bytes is cut; folders that become the same are one. Archived threads are in all views but
recent/. Commands take the name of a link, or its path, for its thread:
`rolloutfs log recent/…`, and `rolloutfs log .` in the folder of a thread.

Never let a program follow links from a view or the root: not tar -h, cp -rL, rsync -L, grep -R, find -L. The links in
lineage/ lead from thread to thread in circles, so each thread is met again by every way that leads to it, practically
without end. Give the files, or the folders that links lead to, here to copy the threads of a project:

    grep -l word recent/*/transcript.md
    find by-cwd/home/me/project -type l -exec readlink -f {{}} + |
        xargs -d '\\n' cp -a -t ~/copy

"""

_REQUESTS = """\
## Requests

One write is one request, done before the write returns; the same twice is done twice. A refused one fails the write, so
a shell prints an error; only a summary may come in several writes, and ends when the file is closed or its answer read,
a JSON object with its last line. 64 KiB is the most. A request is meant for the thread as it was when the file was
opened: has it changed since, the answer is "busy", and the same again is meant for what is there then. Close files
yourself: Python's open(…).write(…) without close, or with, hides the error.

    echo latest > fork                  a new thread from this one; also 'through TURN', 'before TURN'
    echo 'before TURN' > revert         the thread goes on from before that turn; `echo undo > revert` takes that back
    cat ~/summary.md > compact          this summary becomes the model's memory; also {{"strategy":"recent"}}
    echo 'dry-run before -1' > revert   any request, told but not done; (printf 'dry-run '; cat ~/summary.md) > compact
    jq -r .thread_id fork               the answer to the last request for the thread
    codex resume "$(jq -r .thread_id fork)"     goes on with the fork; with the store as CODEX_HOME if it isn't ~/.codex
    ls -t ../*/dropped.md               of threads that were reverted
    less dropped.md                     what reverts dropped; of these turns undo brings back those of the last revert
    exec 3<>fork; echo latest >&3; jq . <&3              the answer to this one, whatever others do
    getfattr -n user.rolloutfs.error --only-values fork  why the last one that came to nothing did; no such attribute
                                                         while none has

The program that writes a summary may die midway: `program > compact` then makes half of it the memory, since nobody can
tell (`set -o pipefail` doesn't help). Write a file first, outside of the mount, and test that it isn't empty, which
asks for nothing: program > ~/summary.md && [ -s ~/summary.md ] && cat ~/summary.md > compact

In compact a text is the summary, whatever it says. Refused is what can only be a mistake: a broken JSON object, or a
lone undo, latest, before …; {{"summary":"undo"}} forces it. What is only seen at the end of the file, like an object
that isn't closed, or nothing but blanks, is refused with exit code 0: look at the answer. A slow writer keeps others,
Codex too, from writing the thread. A compaction adds a turn. undo drops what came after the revert, turns and
compactions; a second one takes the first back. It is for paginated threads; in legacy ones reverts and compactions
are final. Archived threads can only be forked. Answers are per thread: its three files show the same
one.

TURN is a turn id or its beginning (4 characters or more), a number in turns.jsonl (1 is the first that counts), or -1
for the last. The numbers are those in headings of a transcript, `## Turn 3`, and in the hits of a search. While Codex
has the thread open, revert and compact are refused; fork works. Nothing outside the store is touched, and no record is
ever changed or removed. `operations.jsonl` lists all requests for this store, also those of `rolloutfs fork` and of
other mounts; it is kept in the XDG state folder. A mount with --read-only has no control files: use one for backups.

With {{"strategy":"auto"}} in compact a program writes the summary: the one that a line like
summarizer = ["command", "argument"] in rolloutfs/config.toml of the XDG config folder names. It reads the effective
history on stdin and writes the summary to stdout; the answer is `running` until it has ended, or was ended after
summarizer_seconds = 300.

"""

_SEARCH_IN_SHORT = """\
## search/

    ls "search/flaky test"                       threads in which both words were said; it isn't listed before
    cat 'search/flaky*/hits.jsonl'               where: thread, turn, whether that still counts, file, offset, words

search/README.md says what else can be asked.

"""

_STORE = """\
## store/

The store's own files as they lie on disk (`sessions/`, `archived_sessions/`, `session_index.jsonl`), and derived
from all of them: `heads.jsonl` (thread and selected rollout), `problems.jsonl`, `stats.json` (counts, tokens by day and
model), `lineage.mmd` (all families, in Mermaid). Enough for a backup; settings and credentials of Codex are not in it.

Links to the last three lie in the root, too. This problems.jsonl tells only what is wrong with the store itself: files
and databases that can't be used. What is wrong with a thread is in its own problems.jsonl; `rolloutfs check` counts
both.

"""

_COPIES = """\
## Copies

Sizes are exact, the time of a file is that of the thread's last record (of a log that Codex has compressed, that of the
file), and inode numbers are the same after a remount,
so `rsync`, `tar`, `restic` and `borg` work, and skip what they have. The links in lineage/ lead in circles (see Views):
use `diff -r --no-dereference`.

"""

_END = """\
    rolloutfs umount MOUNTPOINT                         when you are done
"""


def text() -> bytes:
    """The same for every mount: a copy of the tree would else differ by where it was mounted."""
    parts = (_HEAD, _ROOT, _THREAD, _PLACES, _VIEWS, _REQUESTS, _SEARCH_IN_SHORT, _STORE, _COPIES, _END)
    return "".join(parts).format(version=__version__).encode()


def tree() -> str:
    """The parts of both that tell what is in the tree, without how to begin and how to write requests."""
    searching = "## search/\n\n" + _SEARCH_TEXT.partition("\n\n")[2] + "\n"
    return "".join((_ROOT, _THREAD, _PLACES, _VIEWS, _STORE)).format() + searching + _COPIES.rstrip("\n") + "\n"


_SEARCH_TEXT = """\
# Searching

Look a name up here, and it becomes a folder with what was found; nothing is listed until you do.

    ls "search/flaky test"              threads in which both words were said; the newest hit first with ls -t
    ls 'search/"flaky test"'            the phrase; also mig* for words that begin so
    ls "search/migration branch:main"   also cwd:~/project model:gpt-5* tool:exec* since:2026-11-01 until:2026-11-30
    ls "search/panicked kind:output"    kinds: user, assistant, summary, reasoning, call, output
    ls search/tool:apply_patch          calls of a tool, whose name is no word of their text
    ls 'search/".gitignore"'            what begins with a dot, in quotation marks; README.md is search/'"README.md"'
    cat search/panicked/hits.jsonl      every hit: thread, turn, file and byte offset, time, some words around it;
                                        "effective" is false for what was rolled back or dropped by a revert
    grep -n panicked search/panicked/*/transcript.md

Links are called as in recent/, of agents' threads too, by when the thread began; commands take their names likewise:
`rolloutfs log 2026-11-29T21-31-05_first_words`.

`turn` is the number of a turn in the thread's turns.jsonl, as in turns/7/ and in `before 7` for a fork; null where
"effective" is false. What a revert dropped is in the thread's dropped.md, with the number that it had.

All words must occur in one text (a message, a call, the beginning of its output), without regard to case and accents.
Words are letters and digits, so foo_bar.py is the phrase "foo bar py"; each Chinese, Japanese or Korean character is a
word, so that parts of a run of them are found. A name can't hold a slash: write %2F, as in
cwd:%2Fhome%2Fme%2Fproject. `rolloutfs search` takes the same words; there an argument with a blank is a phrase.

since: and until: are days of the mount's --zone (UTC unless it was given one), both included, as are the dates in the
names of links; `rolloutfs search` takes days of local time. Times in hits.jsonl are UTC. `offset` is in decoded bytes,
as in a transcript: see "Places" in the README.md above.

A query that can't be understood answers "Invalid argument"; problems.jsonl here says why. When a folder has a file
incomplete.json, more may be found than is shown; it says why. One with a file hint.json has a word in it that looks
like a filter that was misspelt, brnach:main, which was searched for as text. An answer may be a second old.
"""


def search_text() -> bytes:
    """The README.md of search/."""
    return _SEARCH_TEXT.encode()


def times() -> tuple[int, int]:
    """mtime and ctime (ns) of the README: those of this module, which change when its text does."""
    try:
        status = os.stat(__file__)
    except OSError:  # in a zip file
        return 0, 0
    return status.st_mtime_ns, status.st_mtime_ns
