"""Appending to the selected rollout of a thread, all of it or nothing.

The caller holds Codex's writer lock, so nobody else appends meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from itertools import islice

from threadstore import fork
from threadstore.errors import StoreError, UnwritableError, why
from threadstore.files import pread_exactly
from threadstore.folders import Folder, open_folder
from threadstore.ids import new_id
from threadstore.lines import Log, backward, forward
from threadstore.names import RolloutFile, partial_of
from threadstore.opened import OpenLineage
from threadstore.recorder import Draft, Durability, Recorder, UnsettledError, next_ordinal
from threadstore.records import Record, decode, is_blank
from threadstore.spool import Copy, Spool


class Appender:
    """Raises StoreError and OSError; then nothing was changed, but for an UnsettledError."""

    def __init__(self, root: str, spool: Spool, durability: Durability) -> None:
        self._root = root
        self._spool = spool
        self._durability = durability

    def append(self, lineage: OpenLineage, records: list[Draft], *, paginated: bool, dry_run: bool) -> str | None:
        """Append records to the selected rollout: all of them, or none. Its path afterwards; None for a dry run where
        that is to be made.
        """
        rollout, log = lineage.files[-1].rollout, lineage.files[-1].log
        ordinal = next_ordinal(log, rollout.path) if paginated else None
        if ordinal is None and _has_ordinals(log):
            raise StoreError(
                f"{rollout.path} is no paginated rollout by its session meta, but its records have ordinals: "
                "nothing can be appended."
            )
        if dry_run:
            return None if rollout.compressed else rollout.path
        with open_folder(self._root, rollout.path.rpartition("/")[0]) as folder:
            name = self._plain(rollout, folder)
            size = folder.size(name)
            recorder = Recorder(
                name,
                ordinal=ordinal,
                create=False,
                durability=self._durability,
                again=False,
                apart=True,
                folder=folder,
            )
            try:
                try:
                    recorder.append(records)
                    recorder.barrier()
                finally:
                    recorder.abandon()
            except Exception:
                _cut_back(folder, name, size, recorder.handed)
                raise
        return rollout.plain_path

    def rehearse(self, rollout: RolloutFile) -> None:
        """All that an append asks of the file system, but the records."""
        with open_folder(self._root, rollout.path.rpartition("/")[0]) as folder:
            if rollout.compressed:
                self._decoded(rollout)
                folder.probe()
            else:
                os.close(folder.open(rollout.name, os.O_WRONLY | os.O_APPEND))

    def _decoded(self, rollout: RolloutFile) -> Copy:
        decoded = self._spool.decode(self._root, rollout.path)
        if decoded.damage is not None:
            raise StoreError(f"{rollout.path} is damaged: it is not decompressed for appending.")
        return decoded

    def _plain(self, rollout: RolloutFile, folder: Folder) -> str:
        """The name of a rollout that can be appended to; a compressed one is decompressed first, as Codex does."""
        if not rollout.compressed:
            return rollout.name
        decoded = self._decoded(rollout)
        plain = rollout.name.removesuffix(".zst")
        partial = partial_of(plain, new_id())
        folder.sweep()
        try:
            _copy_file(decoded.path, folder, partial)
            folder.publish(partial, plain)
        finally:
            with contextlib.suppress(OSError):  # not made at all, or it stays: a name that no reader takes
                folder.unlink(partial)
        try:
            folder.sync()
            folder.unlink(rollout.name)
        except OSError:
            fork.take_away(folder, plain)
            raise
        return plain


def _has_ordinals(log: Log) -> bool:
    """True when one of the first or last records has an ordinal."""
    for lines in (forward(log), backward(log)):
        records = (decode(line) for line in lines if not is_blank(line))
        sound = (record for record in records if isinstance(record, Record))
        if any(record.ordinal is not None for record in islice(sound, 3)):
            return True
    return False


def _cut_back(folder: Folder, name: str, size: int, ours: bytes) -> None:
    """Take away what was appended, if it is a part of `ours`: an old Codex appends without a lock."""
    try:
        if folder.size(name) != size:
            descriptor = folder.open(name, os.O_RDWR)
            try:
                if not ours.startswith(pread_exactly(descriptor, len(ours) + 1, size)):
                    raise UnwritableError("somebody else has appended at the same time.")
                os.ftruncate(descriptor, size)
            finally:
                os.close(descriptor)
    except (OSError, UnwritableError) as error:
        raise UnsettledError(
            f"the operation failed, and what it had appended to {os.path.join(folder.path, name)} after byte {size} "
            f"could not be taken back: {why(error)} The thread may have a part of it."
        ) from error


def _copy_file(source: str, folder: Folder, name: str) -> None:
    with (
        open(source, "rb") as reading,
        open(folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as writing,
    ):
        while chunk := reading.read(1 << 20):
            writing.write(chunk)
        writing.flush()
        os.fsync(writing.fileno())
