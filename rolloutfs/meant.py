"""Which thread is meant: by whatever a command, a listing or a mount calls it.

One way after the other is tried, and the first that leads to a thread counts. Where it leads to several nothing is
done, since what follows may be a revert; they are told instead, each with the beginning of its id that does tell it.

    01a22938                    an id, or the beginning of one
    .  recent/TIME_words        a path into a mount, also by a link and from below
    release notes               a name
    words-12345678  12345678    the name of a link in a view or below search/; the end of an id, as such links have it
    TIME_words                  the same without an id
    What was said first         what `ls` and `tree` show, whole words from its beginning
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from threadstore.errors import StoreError
from threadstore.names import brief_name
from threadstore.secrets import without_secrets
from threadstore.spines import began
from threadstore.store import ThreadStore
from threadstore.summaries import LONGEST

from rolloutfs import places
from rolloutfs.errors import Exit, MountError
from rolloutfs.harmless import harmless, quoted
from rolloutfs.invocation import default_store
from rolloutfs.linknames import label
from rolloutfs.naming import ShortIds, begins, by_people, name_of, newest_first, summary_of
from rolloutfs.times import local
from rolloutfs.wording import shell_word

_CANDIDATES = 10  # threads that a refusal lists
_ROOM = 60  # cells of what one of them is called
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_END = re.compile(r"[0-9a-f-]{6,36}")  # of an id; fewer characters may be a word that many ids end in
_LINK = re.compile(rf".*-([0-9a-f]{{8}}|{_UUID})_*", re.DOTALL)  # a link's name as `linknames` makes it
_TIMED = re.compile(r"(?:([0-9]{4}-[0-9]{2}-[0-9]{2})T)?([0-2][0-9]-[0-5][0-9]-[0-5][0-9])(?:_(.*))?", re.DOTALL)
_QUARTER = 15 * 60  # seconds; zones differ from UTC by some of these
_FARTHEST = 14 * 60 * 60  # seconds; and no zone by more


class UnnamedError(MountError):
    """Nothing that was said names one thread: there is none, or there are several. `errno` is that of a request."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, Exit.REFUSED)
        self.errno = code


def store_of(store: str | None, wanted: str | None, *, is_changed: bool = False) -> str:
    """The store that is meant: the one that is given, that of the mount into which the path `wanted` leads, that of the
    mount in which this is, else the default one. Raises MountError where it is to be changed and that mount is
    read-only.
    """
    if store:
        return store
    mount = (places.mount_of(wanted) if wanted else None) or places.mount_of(".")
    if mount is None or mount.store is None:
        return default_store()
    if mount.is_read_only and is_changed:
        told = f"{harmless(mount.mountpoint)} is mounted read-only. To change what it shows, say so: --store"
        raise MountError(f"{told} {shell_word(mount.store)}", Exit.REFUSED)
    return mount.store


def find(store: ThreadStore, wanted: str | None) -> str:
    """The thread that is meant; without a word the one in whose folder of a mount this is, else the last one of the
    current folder. Raises UnnamedError.
    """
    if wanted is None:
        return _entered(store) or _last_here(store)
    thread = _called(store, wanted) if wanted else None
    if thread is None:
        told = f"There is no thread {quoted(wanted)} in {harmless(store.root)}: rolloutfs ls lists ids and names."
        raise UnnamedError(told, errno.ENOENT)
    return thread


def begun(store: ThreadStore, found: Sequence[str], wanted: str) -> str | None:
    """The one that is meant of the sorted ids that begin so; None when there is none. Raises UnnamedError."""
    if found and found[0] == wanted.lower():
        return found[0]
    return _only(store, found, f"{quoted(wanted)} is the beginning of {len(found)} thread ids: give more of it.")


def _called(store: ThreadStore, wanted: str) -> str | None:
    ids = store.thread_ids()
    thread = begun(store, begins(ids, wanted.lower()), wanted) or _at(store, wanted)
    if thread is not None:
        return thread
    what = quoted(wanted)
    named = [thread for thread in ids if name_of(store, thread) == wanted]
    if named:
        return _only(store, named, f"{len(named)} threads are called {what}: give the id of one.")
    ended = _ending(ids, wanted.lower())
    if ended:
        return _only(store, ended, f"{what} is the end of {len(ended)} thread ids: give more of it.")
    shown = [one for thread in ids if (one := _shown(store, thread)) is not None]
    linked = [one.thread for one in shown if _is_link(store, one, wanted)]
    if linked and _TIMED.fullmatch(wanted):
        return _only(
            store, linked, f"{len(linked)} threads may have a link {what}: give the id of one, or the link's path."
        )
    if linked:
        return _only(store, linked, f"{len(linked)} threads begin with {what}: give the id of one.")
    line = harmless(wanted)
    said = [one.thread for one in shown if line and one.line == line]
    said = said or [one.thread for one in shown if one.begins(line)] or _agents(store, wanted)
    return _only(store, said, f"{len(said)} threads begin with {what}: give the id of one.")


def _only(store: ThreadStore, found: Sequence[str], told: str) -> str | None:
    """What was found, if it is one; None when it is nothing. Raises UnnamedError with what is told of several."""
    if len(found) > 1:
        raise UnnamedError("\n".join((told, *_candidates(store, found))), errno.EINVAL)
    return found[0] if found else None


def _candidates(store: ThreadStore, found: Sequence[str]) -> Iterator[str]:
    """A line for each of sorted threads, the newest ids first, as far as a person reads."""
    from rolloutfs.table import fit

    chosen = found[: -_CANDIDATES - 1 : -1]
    short = ShortIds(sorted({*store.thread_ids(), *found})).all_of(iter(chosen))
    for thread in chosen:
        yield f"  {short[thread]}  {local(_began(store, thread)):16}  {fit(_line_of(store, thread), _ROOM)}".rstrip()
    if len(found) > len(chosen):
        yield f"  and {len(found) - len(chosen)} more"


def _began(store: ThreadStore, thread: str) -> float | None:
    """When it began (Unix, s); None where that can't be told."""
    try:
        return began(store.created(thread), store.rollouts(thread)) / 1e9
    except (KeyError, StoreError, OSError):
        return None


def _line_of(store: ThreadStore, thread: str) -> str:
    """What `ls` shows of it."""
    shown = _shown(store, thread)
    if shown is not None and shown.line:
        return shown.line
    summary = summary_of(store, thread)
    return harmless(f"(agent {summary.agent})") if summary is not None and summary.agent else ""


# Paths


def _at(store: ThreadStore, path: str) -> str | None:
    """The thread of a path into a mount. Raises UnnamedError for one into a mount of another store."""
    place = places.of(path)
    if place is None:
        return None
    if place.store != store.root:
        told = (
            f"{quoted(path)} is in a mount of {harmless(place.store)}, not of {harmless(store.root)}: "
            "give that as --store, or neither."
        )
        raise UnnamedError(told, errno.ENOENT)
    return place.thread if place.thread in store else None


def _entered(store: ThreadStore) -> str | None:
    """The thread in whose folder, in a mount of the store, the current folder is."""
    place = places.of(".")
    return place.thread if place is not None and place.store == store.root and place.thread in store else None


def _last_here(store: ThreadStore) -> str:
    """The last thread of a person, not archived, whose folder is the current one or above it. Raises UnnamedError."""
    here = _here()
    for _, thread in newest_first(store):
        if by_people(store, thread) and not store.head(thread).archived:
            summary = summary_of(store, thread)
            if summary is not None and any(_is_at_or_above(summary.cwd, folder) for folder in here):
                return thread
    told = f"No thread in {harmless(store.root)} was in {harmless(here[0])} or above it: name one, see rolloutfs ls."
    raise UnnamedError(told, errno.ENOENT)


def _is_at_or_above(recorded: str | None, folder: str) -> bool:
    """Compares texts: a recorded folder is never looked at (FAULTS 23)."""
    return bool(recorded) and f"{folder.rstrip('/')}/".startswith(f"{str(recorded).rstrip('/')}/")


def _here() -> list[str]:
    """The current folder, also as the shell calls it when a link led there."""
    here = os.getcwd()
    named = os.environ.get("PWD", "")
    if os.path.isabs(named) and named != here and os.path.realpath(named) == here:
        return [here, os.path.normpath(named)]
    return [here]


# What is shown


class _Shown(NamedTuple):
    """A thread, and what lists and links call it: its name, else what was said first."""

    thread: str
    text: str
    label: str  # as a part of a link's name

    @property
    def line(self) -> str:
        """The text as a list shows it."""
        return harmless(self.text[:LONGEST])

    def begins(self, wanted: str) -> bool:
        """True for a beginning of that line: cut anywhere before "…", else after a word."""
        cut = wanted.removesuffix("…").rstrip()
        return bool(cut) and (f"{self.line} ".startswith(f"{cut} ") or (cut != wanted and self.line.startswith(cut)))


def _shown(store: ThreadStore, thread: str) -> _Shown | None:
    """Reads no more than the beginning of the log; None where nothing can be told."""
    try:
        title = store.title(thread)
        called = label(title)
        words = (store.opening(thread).words or "") if called is None else ""
    except (KeyError, StoreError, OSError):
        return None
    text = title.name or title.preview or words
    return _Shown(thread, text, brief_name(words) if called is None else called.text)


def _ending(ids: Sequence[str], wanted: str) -> list[str]:
    """The threads whose ids end as the name of a link does, or as what is typed of an id."""
    link = _LINK.fullmatch(wanted)
    ends = [wanted] if _END.fullmatch(wanted) else [] if link is None else [link[1]]
    return [thread for thread in ids if thread.endswith(tuple(ends))]


def _is_link(store: ThreadStore, shown: _Shown, wanted: str) -> bool:
    """True for the name of a link without an id in it: words, or time and words. The zone of its time isn't known."""
    timed = _TIMED.fullmatch(wanted)
    words = wanted if timed is None else timed[3] or ""
    if words not in (shown.label, brief_name(without_secrets(shown.text))):
        return False
    if timed is None:
        return bool(words) and by_people(store, shown.thread)
    try:
        start = began(store.created(shown.thread), store.rollouts(shown.thread)) // 1_000_000_000
        told = datetime.strptime(f"{timed[1] or '1970-01-01'} {timed[2]}", "%Y-%m-%d %H-%M-%S").replace(tzinfo=UTC)
    except (KeyError, StoreError, OSError, ValueError):
        return False
    apart = int(told.timestamp()) - start
    near = timed[1] is None or abs(apart) <= _FARTHEST
    return near and apart % _QUARTER == 0


def _agents(store: ThreadStore, wanted: str) -> list[str]:
    """The agents of whom a list shows only that."""
    if not wanted.startswith("(agent "):
        return []
    summaries = ((thread, summary_of(store, thread)) for thread in store.thread_ids())
    return [thread for thread, one in summaries if one is not None and harmless(f"(agent {one.agent})") == wanted]
