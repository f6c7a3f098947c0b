"""Answers to READDIRPLUS where the kernel keeps the names of folders (`gate`), and what may be kept.

A listing is a snapshot with a number, which is a part of each position in it: what one program reads in several pieces
has every name once, and pieces of two snapshots never come together in the kernel's cache, which takes a piece only if
it begins where the last one ended.

The kernel has a listing as a whole when the answer to the last READDIR has come, an empty one; what it was told before
that is in its pages by then. So before that answer it is made to drop these pages if the listing is no longer right,
or is about something of which no event tells. An event after it does the same. No listing is empty, so that there is
a page to be dropped: "." and ".." are always there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from threadstore.projection import SELECTION

from rolloutfs import attributes
from rolloutfs.attributes import Attributes, Sheet
from rolloutfs.freshness import CHANGING
from rolloutfs.nodes import Kind, Listing, Node, Row

STREAMS: Final = 1024  # listings that were begun and not finished
DOTS: Final = 2  # positions before the first name
_SHIFT: Final = 32  # bits of a position in a listing
_POSITION: Final = (1 << _SHIFT) - 1
_SERIALS: Final = 1 << 30  # a position must be positive for lseek(2)
_BLANK: Final = bytes(128)
FOLDER, FILE = 4, 8  # DT_DIR, DT_REG

#: Whose names follow from the rollouts of one thread and from the links between threads, of which events tell.
KEPT: Final = frozenset({Kind.THREAD, Kind.ROLLOUTS, Kind.LINEAGE, Kind.FORKS, Kind.AGENTS})
#: Those of them that also follow from the links.
LINKED: Final = frozenset({Kind.LINEAGE, Kind.FORKS, Kind.AGENTS})

# fuse_entry_out with its fuse_attr, and fuse_dirent, in linux/fuse.h
_ENTRY = struct.Struct("=QQQQIIQQQQQQIIIIIIIIII")
_DIRENT = struct.Struct("=QQII")
# the same in pieces: for how long, times, what a node is, length and kind of a name
_VALID, _TIMES, _FORM, _NAME = (struct.Struct(form) for form in ("=QQII", "=QQQIII", "=IIIIIII", "=II"))
_NS: Final = 1_000_000_000
_SIGNED: Final = 0xFFFFFFFFFFFFFFFF  # times are signed in the kernel's eyes


@dataclass(slots=True)
class Stream:
    """A listing that is being read. `changed` says that something has happened since that it may not show."""

    serial: int
    folder: Node
    listing: Listing
    changed: bool = False

    def position(self, number: int) -> int:
        """The offset behind entry `number`."""
        return self.serial << _SHIFT | number


class Streams:
    """Listings that were begun and not read to their end, by their numbers; the oldest are forgotten."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        self._last = 0

    def begin(self, folder: Node, listing: Listing) -> Stream:
        """Someone reads a folder from its beginning, or from where nobody knows any more."""
        self._last = self._last % _SERIALS + 1
        stream = self._streams[self._last] = Stream(self._last, folder, listing)
        if len(self._streams) > STREAMS:
            del self._streams[next(iter(self._streams))]
        return stream

    def find(self, offset: int, inode: int) -> Stream | None:
        """The one that goes on at an offset."""
        stream = self._streams.get(offset >> _SHIFT)
        return stream if stream is not None and stream.folder.ino == inode else None

    def end(self, stream: Stream) -> None:
        """It was read to its end."""
        self._streams.pop(stream.serial, None)

    def note(self) -> None:
        """Something has happened that listings may not show."""
        for stream in self._streams.values():
            stream.changed = True


def number_at(offset: int) -> int:
    """How many entries lie before an offset."""
    return offset & _POSITION


def packed(told: Attributes, uid: int, gid: int, block: int) -> bytes:
    """Attributes as a READDIRPLUS gives them."""
    mtime, mtime_ns = divmod(told.mtime_ns, _NS)
    ctime, ctime_ns = divmod(told.ctime_ns, _NS)
    mtime, ctime = mtime & _SIGNED, ctime & _SIGNED
    entry, attr = int(told.entry_seconds), int(told.attr_seconds)
    return _ENTRY.pack(
        *(told.ino, 0, entry, attr, int((told.entry_seconds - entry) * _NS), int((told.attr_seconds - attr) * _NS)),
        *(told.ino, told.size, (told.size + 511) // 512, mtime, mtime, ctime, mtime_ns, mtime_ns, ctime_ns),
        *(told.mode, told.nlink, uid, gid, 0, block, 0),
    )


def directory_entry(name: bytes, ino: int, offset: int, entry: bytes) -> bytes:
    """One name of an answer."""
    kind = int.from_bytes(entry[101:102], "little") >> 4  # the upper bits of the mode
    return b"".join((entry, _DIRENT.pack(ino, offset, len(name), kind), name, _BLANK[: -len(name) % 8]))


def bare(name: bytes, ino: int, offset: int, kind: int = FOLDER) -> bytes:
    """A name without attributes: the kernel knows them, as of "." and "..", or asks when it needs them. What it knows
    stays.
    """
    return b"".join((_BLANK, _DIRENT.pack(ino, offset, len(name), kind), name, _BLANK[: -len(name) % 8]))


class Layout:
    """A folder of which names, kinds and their order are fixed, as an answer in one piece: what differs from thread to
    thread is put into its places.
    """

    def __init__(self, rows: Sequence[Row], links: Mapping[int, int], uid: int, gid: int, block: int) -> None:
        """`links` are the sizes of links in bytes, by slot."""
        self.slots = tuple(row.slot for row in rows)
        self._links = links
        self._rows: list[tuple[int, bool, bytes, bytes]] = []
        form = ["=", *(f"128xQQ{len(_tail(name, FOLDER))}s" for name in (b".", b".."))]
        for row in rows:
            mode, nlink = attributes.form(row.kind)
            tail = _tail(os.fsencode(row.name), mode >> 12)
            self._rows.append((row.slot, row.view in SELECTION, _FORM.pack(mode, nlink, uid, gid, 0, block, 0), tail))
            form.append(f"Q8x{_VALID.size}sQQQ{_TIMES.size}s{_FORM.size}sQQ{len(tail)}s")
        self._struct = struct.Struct("".join(form))
        self.size = self._struct.size

    def page(self, stream: Stream, above: int, sheet: Sheet, more: Mapping[int, int]) -> bytes:
        """All of a folder with these attributes, as `directory_entry` and `bare` would give it name by name.
        `above` is the number of the folder that it is in; `more` are sizes that the sheet doesn't have.
        """
        at, base, sizes = stream.position(0), sheet.base, {**self._links, **more, **sheet.sizes}
        quiet, changing = _valid(sheet.seconds, sheet.seconds), _valid(sheet.seconds, CHANGING)
        times = _times(*sheet.times)
        values: list[int | bytes] = [stream.folder.ino, at + 1, _DOT, above, at + 2, _DOTS]
        at += DOTS
        for slot, is_changing, form, tail in self._rows:
            ino, size, at = base | slot, sizes.get(slot, 0), at + 1
            values += (ino, changing if is_changing else quiet)
            values += (ino, size, (size + 511) // 512, times, form, ino, at, tail)
        return self._struct.pack(*values)


def _valid(entry_seconds: float, attr_seconds: float) -> bytes:
    entry, attr = int(entry_seconds), int(attr_seconds)
    return _VALID.pack(entry, attr, int((entry_seconds - entry) * _NS), int((attr_seconds - attr) * _NS))


def _times(mtime_ns: int, ctime_ns: int) -> bytes:
    mtime, mtime_ns = divmod(mtime_ns, _NS)
    ctime, ctime_ns = divmod(ctime_ns, _NS)
    mtime, ctime = mtime & _SIGNED, ctime & _SIGNED
    return _TIMES.pack(mtime, mtime, ctime, mtime_ns, mtime_ns, ctime_ns)


def _tail(name: bytes, kind: int) -> bytes:
    """The end of an entry: what is fixed by the name and its kind."""
    return _NAME.pack(len(name), kind) + name + _BLANK[: -len(name) % 8]


_DOT, _DOTS = _tail(b".", FOLDER), _tail(b"..", FOLDER)
