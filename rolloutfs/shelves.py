"""Views of the threads that people started: which folders there are, which links lie in them, what these are called.

    by-date/YYYY/MM/DD/HH-MM-SS_words       when the thread began
    by-name/name, by-name/words-id          the name that it was given, else what was said first
    by-cwd/home/me/project/TIME_words       where it works now: the folders are those of the path
    by-branch/feature/x/TIME_words          the same for the branch of its session, by-model/ for its model
    recent/TIME_words, archived/TIME_words  the 100 that were written to last (none that is archived); what is archived

TIME is that of the beginning, as in 2026-11-29T21-31-05, so a thread keeps its names while it goes on. What isn't known
of a thread is nowhere: one without branch is not in by-branch/. Names are made of words as `brief_name` cuts them, so a
shell needs no quotation marks for them.

No name depends on an order. First words in by-name/ always end in the last part of the thread's id, since many threads
begin alike. Any other name has it only where several in the folder would be the same, and then all of these have it;
where even that isn't enough, the whole id.

Pure: what is known of the threads is put in by `shelving`. Most of it is packed, since there may be 100,000.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from heapq import nlargest
from typing import Final, NamedTuple

from threadstore.names import path_names
from threadstore.secrets import without_secrets
from threadstore.spines import Spine
from threadstore.summaries import Title

from rolloutfs.linknames import Label, Names, label, moment, timed
from rolloutfs.lru import Recent

RECENT: Final = 100  # links in recent/
_NAMED = 2 << 20  # bytes of names of links, or of their order
_SPARE = 1000  # branches, folders and models that are kept although no thread has them any more
_MANY = 200  # threads; when more change at once, folders are made anew
_CARD = struct.Struct("<qqIIIIIB")
_TITLE = struct.Struct("<I"), 20  # and where it lies in a card
_WHOLE, _AGENT, _ARCHIVED = 1, 2, 4

BY_DATE, BY_NAME, BY_CWD, BY_BRANCH, BY_MODEL, LATEST, ARCHIVED = SHELVES = (
    *("by-date", "by-name", "by-cwd", "by-branch", "by-model", "recent", "archived"),
)
#: Those for which all of a log may have to be read.
WHOLE = frozenset({BY_CWD, BY_MODEL})


class Card(NamedTuple):
    """What is known of a thread, see `Spine`; `file` stands for the state of its file, see `mark`, `title` for what
    databases said of it when that was looked at last.
    """

    began_ns: int
    last_ns: int
    file: int
    title: int
    words: str
    branch: str | None
    cwd: str | None
    model: str | None
    is_whole: bool
    is_agent: bool
    is_archived: bool


@dataclass(slots=True)
class _Folder:
    """Invariant: `newest` is the greatest time of a record below, None when that has to be found out."""

    folders: dict[str, _Folder] = field(default_factory=dict)
    threads: list[str] = field(default_factory=list)
    newest: int | None = 0


class Shelves:
    """The folders of one store. Invariants: `_roots` has every card at its place, for those shelves that are in it;
    `_latest` are the newest threads, None when that has to be found out.
    """

    def __init__(self, zone: tzinfo = UTC, most: int = RECENT, *, masked: bool = False) -> None:
        self._zone = zone
        self._masked = masked
        self._most = most
        self._cards: dict[str, bytes] = {}
        self._texts: list[str | None] = [None]
        self._numbers: dict[str | None, int] = {None: 0}
        self._labels: dict[str, Label] = {}  # of those that databases call otherwise than their first words
        self._roots: dict[str, _Folder] = {}
        self._latest: dict[str, int] | None = None
        self._names: Recent[str, Names] = Recent(_NAMED, lambda names: names.weight)

    # What is put in

    def __contains__(self, thread: object) -> bool:
        return thread in self._cards

    def threads(self) -> Iterable[str]:
        """Those of which there is a card, agents' too."""
        return self._cards.keys()

    def card(self, thread: str) -> Card:
        """What is known of a thread; KeyError when nothing is."""
        packed = self._cards[thread]
        began, last, file, title, branch, cwd, model, flags = _CARD.unpack_from(packed)
        words = packed[_CARD.size :].decode()
        places = self._texts[branch], self._texts[cwd], self._texts[model]
        return Card(
            *(began, last, file, title, words, *places),
            *(bool(flags & _WHOLE), bool(flags & _AGENT), bool(flags & _ARCHIVED)),
        )

    def put(self, cards: Mapping[str, tuple[Spine, bool] | None]) -> None:
        """Learn of threads: spine and whether it is archived; None for one that is gone. A spine that isn't whole
        leaves the folder and model that were known before.
        """
        self._prepare(len(cards))
        for thread, found in cards.items():
            before = self.card(thread) if thread in self._cards else None
            card = None if found is None else _card(*found)
            if before is not None and card is not None:
                card = card._replace(title=before.title if card.words == before.words else 0)
                if not card.is_whole:
                    card = card._replace(cwd=before.cwd, model=before.model)
            self._change(thread, before, card)
            self._note_latest(thread, card)
        if len(self._texts) > 3 * len(self._cards) + _SPARE:
            self._renumber()

    def _change(self, thread: str, before: Card | None, card: Card | None) -> None:
        if before is not None and card is not None and _has_only_grown(before, card):
            self._cards[thread] = self._packed(card)
            for _, root, place in self._places(thread, card):
                for folder in _chain(root, place):
                    _count(folder, card.last_ns)
            return
        if before is not None and self._roots:
            self._take(thread, before)
        if card is None:
            self._cards.pop(thread, None)
            self._labels.pop(thread, None)
        else:
            self._cards[thread] = self._packed(card)
            if self._roots:
                self._place(thread, card)

    def entitle(self, titles: Iterable[tuple[str, Title]], only: Collection[str] | None = None) -> None:
        """Learn what databases call the threads, or `only` some: nothing, unless it is in `titles`."""
        labels: dict[str, Label | None] = {}
        untold = self._labels.keys() if only is None else self._labels.keys() & only
        untold = set(untold)
        for thread, title in titles:
            packed = self._cards.get(thread)
            if packed is None:
                continue
            untold.discard(thread)
            number = hash(title) & 0xFFFFFFFF or 1
            if _TITLE[0].unpack_from(packed, _TITLE[1])[0] != number:
                self._cards[thread] = packed[: _TITLE[1]] + _TITLE[0].pack(number) + packed[_TITLE[1] + 4 :]
                if self._masked:
                    title = Title(without_secrets(title.name or ""), without_secrets(title.preview or ""))
                label = _label(title, packed[_CARD.size :])
                if label != self._labels.get(thread):
                    labels[thread] = label
        labels |= dict.fromkeys(untold)
        self._prepare(len(labels))
        for thread, label in labels.items():
            card = self.card(thread)
            self._take(thread, card)
            if label is None:
                del self._labels[thread]
                card = card._replace(title=0 if thread in untold else card.title)
                self._cards[thread] = self._packed(card)
            else:
                self._labels[thread] = label
            self._place(thread, card)
        if labels:
            self._names.drop(LATEST)

    def _prepare(self, changes: int) -> None:
        """When much changes, make all folders anew rather than bring each up to date."""
        if changes > _MANY:
            self._roots.clear()
            self._names.clear()
            self._latest = None

    def _packed(self, card: Card) -> bytes:
        numbers = map(self._number, (card.branch, card.cwd, card.model))
        flags = card.is_whole * _WHOLE | card.is_agent * _AGENT | card.is_archived * _ARCHIVED
        return _CARD.pack(card.began_ns, card.last_ns, card.file, card.title, *numbers, flags) + card.words.encode()

    def _number(self, text: str | None) -> int:
        number = self._numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
        return number

    def _renumber(self) -> None:
        """Forget the texts that no card has."""
        before, self._texts, self._numbers = self._texts, [None], {None: 0}
        for thread, packed in self._cards.items():
            *first, branch, cwd, model, flags = _CARD.unpack_from(packed)
            numbers = (self._number(before[number]) for number in (branch, cwd, model))
            self._cards[thread] = _CARD.pack(*first, *numbers, flags) + packed[_CARD.size :]

    # Folders

    def is_folder(self, path: str) -> bool:
        """True for a shelf, or a folder with something in it, by its path below the root of the mount."""
        try:
            self._folder(path)
        except KeyError:
            return False
        return True

    def folders(self, path: str) -> list[str]:
        """The names of the folders in a folder. KeyError when it isn't there."""
        return sorted(self._folder(path).folders)

    def links(self, path: str) -> Names:
        """The names of links in a folder. KeyError when it isn't there."""
        known = self._names.get(path)
        if known is None:
            folder, shelf = self._folder(path), path.partition("/")[0]
            known = Names(folder.threads, lambda thread: self._wanted(shelf, thread), frozenset(folder.folders))
            self._names.put(path, known)
        return known

    def newest(self, path: str) -> int:
        """The time of the last record of any thread in a folder (Unix, ns), 0 for an empty one."""
        return self._newest(self._folder(path))

    def last(self, thread: str) -> int:
        """The time of the last record of a thread (Unix, ns)."""
        last: int = _CARD.unpack_from(self._cards[thread])[1]
        return last

    def target(self, shelf: str, thread: str) -> str:
        """Where the link of a thread on a shelf points to. KeyError when it isn't there."""
        card = self.card(thread)
        place = self._where(shelf, thread, card)
        if place is None or (shelf == LATEST and thread not in self._newest_threads()):
            raise KeyError(thread)
        return f"{'../' * (len(place) + 1)}threads/{thread}"

    def _folder(self, path: str) -> _Folder:
        shelf, *parts = path.split("/")
        folder = self._root(shelf)
        for part in parts:
            folder = folder.folders[part]
        return folder

    def _root(self, shelf: str) -> _Folder:
        if shelf == LATEST:
            latest = self._newest_threads()
            return _Folder(threads=list(latest), newest=max(latest.values(), default=0))
        root = self._roots.get(shelf)
        if root is None:
            if shelf not in SHELVES:
                raise KeyError(shelf)
            root = self._roots[shelf] = _Folder()
            for thread in self._cards:
                card = self.card(thread)
                place = self._where(shelf, thread, card)
                if place is not None:
                    _add(root, place, thread, card.last_ns)
        return root

    def _newest_threads(self) -> dict[str, int]:
        if self._latest is None:
            shown = (
                (last, thread)
                for thread, packed in self._cards.items()
                for _, last, *_, flags in (_CARD.unpack_from(packed),)
                if not flags & (_AGENT | _ARCHIVED)
            )
            self._latest = {thread: last for last, thread in nlargest(self._most, shown)}
        return self._latest

    def _newest(self, folder: _Folder) -> int:
        if folder.newest is None:
            times = (*map(self.last, folder.threads), *map(self._newest, folder.folders.values()))
            folder.newest = max(times, default=0)
        return folder.newest

    # One thread

    def _where(self, shelf: str, thread: str, card: Card) -> tuple[str, ...] | None:
        """The folders above a thread's link on a shelf; None where it has none."""
        if card.is_agent:
            return None
        if shelf == BY_DATE:
            began = self._moment(card.began_ns)
            return f"{began.year:04}", f"{began.month:02}", f"{began.day:02}"
        if shelf == BY_NAME:
            return () if self._label(thread, card).text else None
        if shelf in (ARCHIVED, LATEST):
            return () if card.is_archived == (shelf == ARCHIVED) else None
        text = {BY_CWD: card.cwd, BY_BRANCH: card.branch, BY_MODEL: card.model}[shelf]
        return path_names(text) if text else None

    def _wanted(self, shelf: str, thread: str) -> tuple[str, bool]:
        """The name of a thread's link, and whether it ends in the id whatever else there is."""
        packed = self._cards[thread]
        label = self._labels.get(thread)
        text = packed[_CARD.size :].decode() if label is None else label.text
        if shelf == BY_NAME:
            return text, label is None or not label.is_given
        began = self._moment(_CARD.unpack_from(packed)[0])
        return timed(began, text, is_in_day=shelf == BY_DATE), False

    def _label(self, thread: str, card: Card) -> Label:
        return self._labels.get(thread) or Label(card.words, is_given=False)

    def _moment(self, time_ns: int) -> datetime:
        return moment(time_ns, self._zone)

    def _places(self, thread: str, card: Card) -> Iterator[tuple[str, _Folder, tuple[str, ...]]]:
        """Where its links lie on the shelves that have been made."""
        for shelf, root in self._roots.items():
            place = self._where(shelf, thread, card)
            if place is not None:
                yield shelf, root, place

    def _take(self, thread: str, card: Card) -> None:
        for shelf, root, place in self._places(thread, card):
            _remove(root, place, thread, card.last_ns)
            self._forget_names(shelf, place)

    def _place(self, thread: str, card: Card) -> None:
        for shelf, root, place in self._places(thread, card):
            _add(root, place, thread, card.last_ns)
            self._forget_names(shelf, place)

    def _forget_names(self, shelf: str, place: tuple[str, ...]) -> None:
        """Of links in a folder, and in those above it: a folder that comes or goes there is a name, too."""
        for depth in range(len(place) + 1):
            self._names.drop("/".join((shelf, *place[:depth])))

    def _note_latest(self, thread: str, card: Card | None) -> None:
        """A thread has changed, or (None) is gone: bring `_latest` up to date."""
        latest = self._latest
        if latest is None:
            return
        known = latest.get(thread)
        is_shown = card is not None and self._where(LATEST, thread, card) is not None
        if card is not None and is_shown and (known is None or card.last_ns >= known):
            latest[thread] = card.last_ns
            if len(latest) > self._most:
                del latest[min(latest, key=lambda one: (latest[one], one))]
        elif known is not None:
            self._latest = None
        self._names.drop(LATEST)


def _label(title: Title, words: bytes) -> Label | None:
    """What databases call a thread; None when that is its first words, or nothing."""
    found = label(title)
    return None if found is not None and not found.is_given and found.text.encode() == words else found


def mark(size: int, mtime_ns: int) -> int:
    """32 bits that tell the states of a file apart: bytes, Unix ns."""
    return zlib.crc32(b"%d %d" % (size, mtime_ns))


def _card(spine: Spine, is_archived: bool) -> Card:
    file = mark(spine.size, spine.mtime_ns)
    places = spine.branch, spine.cwd, spine.model
    return Card(
        spine.began_ns, spine.last_ns, file, 0, spine.words, *places, spine.is_whole, spine.is_agent, is_archived
    )


def _has_only_grown(before: Card, card: Card) -> bool:
    """True when a thread's links stay where they are."""
    last = before.last_ns
    same = card._replace(last_ns=last, file=before.file, is_whole=before.is_whole)
    return card.last_ns >= last and same == before


def _chain(root: _Folder, place: tuple[str, ...]) -> list[_Folder]:
    """The folders down to a place, those that aren't there made."""
    chain = [root]
    for part in place:
        chain.append(chain[-1].folders.setdefault(part, _Folder()))
    return chain


def _count(folder: _Folder, last: int) -> None:
    if folder.newest is not None:
        folder.newest = max(folder.newest, last)


def _add(root: _Folder, place: tuple[str, ...], thread: str, last: int) -> None:
    chain = _chain(root, place)
    for folder in chain:
        _count(folder, last)
    chain[-1].threads.append(thread)


def _remove(root: _Folder, place: tuple[str, ...], thread: str, last: int) -> None:
    chain = _chain(root, place)
    chain[-1].threads.remove(thread)
    for folder in chain:
        if folder.newest == last:
            folder.newest = None
    for above, part, folder in reversed(list(zip(chain, place, chain[1:], strict=False))):
        if not folder.threads and not folder.folders:
            del above.folders[part]
