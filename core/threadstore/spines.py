"""What a thread shows in views by date, name, folder, branch and model, as the spine of a book does on a shelf.

When it began, who began it, the first words and the branch stand at the beginning of its log and are read from there.
Folder and model are those of now, as `thread.json` tells them: a spine is *whole* when it has these, too. What the
databases call a thread is no part of it (`ThreadStore.titles`): that changes without the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from threadstore.errors import StoreError
from threadstore.index import Entry, Kept
from threadstore.names import RolloutFile, brief_name
from threadstore.projection import Basis
from threadstore.secrets import without_secrets
from threadstore.store import ThreadStore
from threadstore.summaries import LONGEST, Opening, as_kept
from threadstore.times import parse_time

_UNKNOWN = Opening(None, None, None, is_agent=False)


class Spine(NamedTuple):
    """Times are Unix ns: of the beginning, of the last record; `size` (bytes) and `mtime_ns` are those of the selected
    rollout's file as it was read. `words` are part of a file name, empty when nobody has said anything. `is_agent`
    is true for a thread that no person started.
    """

    began_ns: int
    last_ns: int
    size: int
    mtime_ns: int
    words: str
    branch: str | None
    cwd: str | None
    model: str | None
    is_whole: bool
    is_agent: bool


class _Now(NamedTuple):
    """The selected rollout, the time of the last record, folder and model."""

    file: Basis
    last_ns: int
    cwd: str | None
    model: str | None


def spines(store: ThreadStore, thread_ids: Sequence[str], *, whole: bool) -> list[Spine | None]:
    """Those of some threads, sorted by id; None for one that is gone. Reads the beginning of a log, or for a whole
    spine all of it, unless the index knows.
    """
    kept = store.kept(thread_ids)
    return [_spine(store, thread_id, kept.get(thread_id), whole=whole) for thread_id in thread_ids]


def _spine(store: ThreadStore, thread_id: str, kept: Kept | None, *, whole: bool) -> Spine | None:
    try:
        if kept is not None and store.is_made_from(thread_id, kept.made_from):
            rollouts, began_ns = store.rollouts(thread_id), kept.began_ns
            if began_ns is None or len(rollouts) > 1:  # of which one may have come or gone since
                began_ns = began(store.created(thread_id) or kept.created, rollouts)
            return _of_kept(store, kept, began_ns)
        file = store.status(store.head(thread_id))
        now = _Now(file, store.times(thread_id).mtime_ns, None, None)
        opening = store.opening(thread_id)
        return _made(store, thread_id, opening, _read(store, thread_id, now) if whole else now, is_whole=whole)
    except KeyError:
        return None
    except (StoreError, OSError):
        return _closed(store, thread_id)


def _of_kept(store: ThreadStore, kept: Kept, began_ns: int) -> Spine:
    made_from, _, _, last_ns, words, branch, cwd, model, is_agent, masked = kept
    if masked is not None and store.mask is not None:
        words = masked
    _, _, _, size, mtime_ns = made_from[0]
    return Spine(began_ns, last_ns, size, mtime_ns, words, branch, cwd, model, True, is_agent)


def _read(store: ThreadStore, thread_id: str, now: _Now) -> _Now:
    """With folder and model, as far as they can be told."""
    try:
        summary = store.summary(thread_id)
    except StoreError:  # its problems.jsonl tells why
        return now
    return now._replace(cwd=summary.cwd, model=summary.model)


def kept_of(
    store: ThreadStore, thread_id: str, opening: Opening, entry: Entry, now: tuple[str | None, str | None]
) -> Kept:
    """What the index is to keep of a spine; `now` are folder and model. Raises StoreError."""
    rollouts = store.rollouts(thread_id)
    began_ns = began(opening.created, rollouts) if len(rollouts) == 1 else None
    words, masked = _words(opening), _words(opening, masked=True)
    text = opening.created, entry.last_record_ns, words, as_kept(opening.branch), *now
    return Kept(entry.made_from, began_ns, *text, opening.is_agent, None if masked == words else masked)


def _words(opening: Opening, *, masked: bool = False) -> str:
    words = (opening.words or "")[:LONGEST]
    return brief_name(without_secrets(words) if masked else words) if words else ""


def _closed(store: ThreadStore, thread_id: str) -> Spine | None:
    """That of a file that can't be read, which is a thread, too; None when it is gone."""
    try:
        file = store.status(store.head(thread_id))
        return _made(store, thread_id, _UNKNOWN, _Now(file, file.mtime_ns, None, None), is_whole=True)
    except (KeyError, StoreError, OSError):
        return None


def _made(store: ThreadStore, thread_id: str, opening: Opening, now: _Now, *, is_whole: bool) -> Spine:
    return Spine(
        began_ns=began(opening.created, store.rollouts(thread_id)),
        last_ns=now.last_ns,
        size=now.file.size,
        mtime_ns=now.file.mtime_ns,
        words=_words(opening, masked=store.mask is not None),
        branch=as_kept(opening.branch),
        cwd=now.cwd,
        model=now.model,
        is_whole=is_whole,
        is_agent=opening.is_agent,
    )


def began(created: str | None, rollouts: tuple[RolloutFile, ...]) -> int:
    """When a thread began (Unix, ns): the recorded time, else the one in the name of its oldest file, which is local
    time somewhere and taken for UTC.
    """
    found = None if created is None else parse_time(created.encode("utf-8", "replace"))
    if found is not None:
        return found
    stamp = min(rollout.stamp for rollout in rollouts)
    try:
        moment = datetime.strptime(stamp, "%Y-%m-%dT%H-%M-%S").replace(tzinfo=UTC)
    except ValueError:
        return 0
    return int(moment.timestamp()) * 1_000_000_000
