"""Decoded copies of compressed rollouts (FORMAT 2.2, FAULTS 13, 14).

A `.jsonl.zst` has no random access, so it is decoded once into a private folder outside the store and everything
else, offsets of `history_base` included, works on that copy. A copy is named by the identity of the file that it
was made from, so a changed file is never served from an old copy. Decoding streams: memory is bounded by the window
that a frame may ask for, disk by the limits below, and a file that would exceed them is refused by name, not served
in part.

A truncated file decodes up to the cut, like a rollout with a torn tail. What follows the last whole frame and isn't
a frame ends the content too; both are reported.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass

import zstandard

from threadstore.errors import TooLargeError
from threadstore.files import FileIdentity, open_regular, write_all

DEFAULT_LIMIT = 16 << 30  # bytes of decoded copies in one spool
LARGEST_COPY = 8 << 30  # bytes of one decoded copy
LARGEST_RATIO = 300  # decoded bytes per compressed byte; JSON text stays far below
LARGEST_WINDOW = 64 << 20  # bytes; Codex writes level 3, whose window is 2 MiB
_CHUNK = 1 << 20
_STEP = 256  # compressed bytes decoded at once: at most 8 MiB come out
_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Copy:
    """A decoded copy: its absolute path, identity, size in bytes, and what was odd about the original (None:
    nothing).
    """

    path: str
    dev: int
    ino: int
    size: int
    damage: str | None


class Spool:
    """A private folder of decoded copies.

    Invariant: a file with a final name is complete; its mtime is the time of its last use, and the sum of all sizes
    is at most `limit` after each `decode`. Several processes may share one folder.
    """

    def __init__(self, folder: str, limit: int = DEFAULT_LIMIT) -> None:
        self.folder = folder
        self.limit = limit

    def decode(self, root: str, path: str) -> Copy:
        """The decoded copy of `path` below `root`, made when it isn't there yet.

        Raises TooLargeError, UnreadableError, FileNotFoundError, and OSError when the spool's disk is full.
        """
        descriptor = open_regular(root, path)
        try:
            identity = FileIdentity.of(os.fstat(descriptor))
            key = f"{identity.dev:x}-{identity.ino:x}-{identity.size:x}-{identity.mtime_ns:x}"
            for damage, suffix in (
                (None, ".jsonl"),
                ("torn", ".torn"),
                ("trailing", ".trailing"),
                ("corrupt", ".corrupt"),
            ):
                try:
                    os.utime(os.path.join(self.folder, key + suffix))
                    return self._copy(key + suffix, damage)
                except FileNotFoundError:
                    continue
            return self._make(descriptor, path, key, identity.size)
        finally:
            os.close(descriptor)

    def _copy(self, name: str, damage: str | None) -> Copy:
        path = os.path.join(self.folder, name)
        status = os.stat(path)
        return Copy(path, status.st_dev, status.st_ino, status.st_size, damage)

    def _make(self, descriptor: int, path: str, key: str, compressed: int) -> Copy:
        allowed = min(self.limit, LARGEST_COPY, max(compressed * LARGEST_RATIO, 64 << 20))
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        target, partial = tempfile.mkstemp(prefix=key + ".", suffix=".partial", dir=self.folder)
        try:
            damage = _decompress(descriptor, target, path, allowed)
            name = key + (".jsonl" if damage is None else "." + damage)
            os.rename(partial, os.path.join(self.folder, name))
        except BaseException:
            os.unlink(partial)
            raise
        finally:
            os.close(target)
        self._trim(name)
        return self._copy(name, damage)

    def _trim(self, keep: str) -> None:
        """Remove the copies that were used longest ago until the rest fits the limit. Open ones stay readable."""
        entries = []
        with os.scandir(self.folder) as listing:
            for entry in listing:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if entry.name != keep and not entry.name.endswith((".partial", ".lock")):
                    entries.append((status.st_mtime_ns, status.st_size, entry.path))
        spare = self.limit - os.stat(os.path.join(self.folder, keep)).st_size - sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if spare >= 0:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            spare += size


def _decompress(source: int, target: int, path: str, allowed: int) -> str | None:
    """Decode every frame of `source` into `target`; what was odd: None, `torn`, `trailing` or `corrupt`."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    frame = decompressor.decompressobj()
    offset = written = 0
    inside = fresh = False
    pending = b""
    while True:
        data = pending or os.pread(source, _CHUNK, offset)
        if not pending:
            offset += len(data)
        pending = b""
        if not data:
            return "torn" if inside or (fresh and written == 0) or offset == 0 else None
        if not inside:
            if len(data) < 4 and offset:
                more = os.pread(source, 4, offset)
                offset += len(more)
                data += more
            if not _starts_frame(data):
                return "corrupt" if written == 0 else "trailing"
            frame = decompressor.decompressobj()
            inside = True
        try:
            # A little at a time: four bytes of a bomb decode to up to 128 KiB.
            for at in range(0, len(data), _STEP):
                decoded = frame.decompress(data[at : at + _STEP])
                written += len(decoded)
                if written > allowed:
                    raise TooLargeError(
                        f"{path} decodes to more than {allowed} bytes and is not served. "
                        "Decompress it yourself (zstd -d) if you trust it."
                    )
                write_all(target, decoded)
                if frame.eof:
                    inside = False
                    pending = frame.unused_data + data[at + _STEP :]
                    break
        except zstandard.ZstdError as error:
            if "memory" in str(error) or "window" in str(error).lower():
                raise TooLargeError(
                    f"{path} needs a window above {LARGEST_WINDOW} bytes and is not served. "
                    "Decompress it yourself (zstd -d --long=31) if you trust it."
                ) from error
            return "corrupt"
        fresh = True


def _starts_frame(data: bytes) -> bool:
    """True for a zstd frame and for a skippable frame."""
    return data[:4] == _MAGIC or (len(data) >= 4 and data[1:4] == b"\x2a\x4d\x18" and data[0] & 0xF0 == 0x50)
