"""`ThreadStore`: the one door to a store of threads.

It knows which threads there are, which rollout of each is selected, and makes the derived files of one on demand. It
never writes, holds no file
open between calls, and remembers only what `stat` can prove to be still true: names of folders, session metas by file
identity, and the scans of the last few
threads, which go on from where they stopped when a log has grown.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from threadstore import prompt, views
from threadstore.calls import match_calls
from threadstore.catalog import Catalog, preference
from threadstore.errors import LineageError, Problem, StoreError, UnreadableError
from threadstore.extents import Extents, ExtentsBuilder
from threadstore.files import FileIdentity, open_regular, pread_exactly
from threadstore.heads import Head, Row, StateDatabase, select
from threadstore.history import Item
from threadstore.lineage import Segment, is_paginated, resolve
from threadstore.lines import Line, Log, forward
from threadstore.names import ARCHIVED, SESSION_INDEX, SESSIONS, RolloutFile, safe_name
from threadstore.opened import OpenFile, OpenLineage, first_dialect, open_rollout
from threadstore.projection import Basis, Projection, StoreView, View
from threadstore.records import Record, decode, is_blank
from threadstore.replay import Replay, ReverseScan, initial_window
from threadstore.scan import FullScan, Source
from threadstore.spool import Spool

Json = dict[str, Any]
_METAS = 4096  # session metas that are remembered
_SCANS = 4  # threads whose scans are remembered
_META_SEARCH = 8 << 20  # bytes of a file in which a session meta is looked for


@dataclass(frozen=True, slots=True)
class Times:
    """Unix times in ns: of the last record, and the ctime of the selected rollout's file."""

    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True)
class Links:
    """The neighbours of a thread, as thread ids; agents with the name of their link."""

    forked_from: str | None
    parent: str | None
    forks: tuple[str, ...]
    agents: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Scanned:
    """A remembered scan and the files that it has read: it holds while their identity is the same and they only
    grew.
    """

    files: tuple[tuple[str, int, int], ...]
    ends: tuple[int | None, ...]
    sizes: list[int]
    scan: FullScan


@dataclass(frozen=True, slots=True)
class _Edge:
    """What links need of one session meta."""

    forked_from: str | None
    parent: str | None
    nickname: str


class ThreadStore:
    """See the module text. Raises StoreError, KeyError (unknown thread) and OSError, nothing else."""

    def __init__(self, root: str, spool: Spool) -> None:
        self.root = os.path.realpath(root)
        if not any(os.path.isdir(os.path.join(self.root, name)) for name in (SESSIONS, ARCHIVED)):
            raise StoreError(
                f"{root} has no folder named {SESSIONS} or {ARCHIVED}, so it is no store of Codex threads. "
                "Give the folder that holds it, usually ~/.codex."
            )
        self.spool = spool
        self._catalog = Catalog(self.root)
        self._database = StateDatabase(self.root, spool.folder)
        self._metas: OrderedDict[tuple[str, int, int], Json] = OrderedDict()
        self._edges: dict[tuple[str, int, int], _Edge] = {}
        self._graph: tuple[int, dict[str, list[str]], dict[str, list[tuple[str, str]]]] | None = None
        self._scans: OrderedDict[str, _Scanned] = OrderedDict()
        self._times: OrderedDict[tuple[int, int, int, int], Times] = OrderedDict()
        self._names: tuple[tuple[int, int, int, int], dict[str, str]] | None = None
        self.refresh()

    # Which threads there are

    def refresh(self) -> bool:
        """Look for rollouts that came or went; True when any did."""
        return self._catalog.refresh()

    def thread_ids(self) -> list[str]:
        """All thread ids, sorted."""
        return list(self._catalog.threads)

    def __contains__(self, thread_id: object) -> bool:
        return thread_id in self._catalog.threads

    def rollouts(self, thread_id: str) -> tuple[RolloutFile, ...]:
        """Every rollout of a thread. KeyError when there is none."""
        return self._catalog.threads[thread_id]

    def head(self, thread_id: str) -> RolloutFile:
        """The selected rollout of a thread (FORMAT 11.4)."""
        return self._head(thread_id)[0].rollout

    def _head(self, thread_id: str) -> tuple[Head, Row | None]:
        rollouts = self._catalog.threads[thread_id]
        row = self._database.row(thread_id)
        return select(rollouts, row), row

    def times(self, thread_id: str) -> Times:
        """When the thread's last record was written."""
        rollout = self.head(thread_id)
        descriptor = open_regular(self.root, rollout.path)
        try:
            identity = FileIdentity.of(os.fstat(descriptor))
            key = (identity.dev, identity.ino, identity.size, identity.mtime_ns)
            known = self._times.get(key)
            if known is None:
                last = None if rollout.compressed else _last_time(descriptor, identity.size)
                known = Times(identity.mtime_ns if last is None else last, identity.ctime_ns)
                _remember(self._times, key, known, _METAS)
            return known
        finally:
            os.close(descriptor)

    def cost(self, thread_id: str) -> int:
        """Bytes of log that a projection may have to read, at most."""
        total = 0
        for rollout in self._catalog.threads[thread_id]:
            total += os.stat(os.path.join(self.root, rollout.path)).st_size * (20 if rollout.compressed else 1)
        try:
            segments = self._segments(self.head(thread_id))
        except (StoreError, OSError):
            return total
        return total + sum(segment.end or 0 for segment in segments)

    def is_current(self, thread_id: str, projection: Projection) -> bool:
        """True while the thread's head and every file that the projection was made from are as they were."""
        if not projection.basis:
            return False
        try:
            head = self.head(thread_id)
            if projection.basis[0].path != head.path:
                return False
            return all(self._is_same(basis) for basis in projection.basis)
        except (KeyError, StoreError, OSError):
            return False

    def _is_same(self, basis: Basis) -> bool:
        status = os.stat(os.path.join(self.root, basis.path), follow_symlinks=False)
        now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return now == (basis.dev, basis.ino, basis.size, basis.mtime_ns)

    # Session metas and lineage

    def _meta(self, rollout: RolloutFile) -> Json:
        """A rollout's session meta without its long texts; empty when the file has none (FAULTS 10)."""
        descriptor = open_regular(self.root, rollout.path)
        status = os.fstat(descriptor)
        key = (rollout.path, status.st_ino, status.st_dev)
        known = self._metas.get(key)
        if known is not None:
            os.close(descriptor)
            self._metas.move_to_end(key)
            return known
        if rollout.compressed:
            os.close(descriptor)
            opened = open_rollout(self.root, rollout, self.spool)
            log = opened.log
        else:
            log = Log(descriptor, status.st_size)
        try:
            meta = _read_meta(log)
        finally:
            log.close()
        if meta:
            _remember(self._metas, key, meta, _METAS)
        return meta

    def _find(self, rollout_id: str) -> RolloutFile | None:
        files = self._catalog.by_rollout.get(rollout_id)
        return files[-1] if files else None

    def _segments(self, head: RolloutFile) -> list[Segment]:
        mode = self._meta(head).get("history_mode", "legacy")
        if mode not in ("legacy", "paginated"):
            raise LineageError(
                "meta_mode", f"{head.path}: unknown history mode {mode!r}. A newer rolloutfs may know it."
            )
        return resolve(head, self._meta, self._find, self._decoded_size)

    def _decoded_size(self, rollout: RolloutFile) -> int:
        if not rollout.compressed:
            return os.stat(os.path.join(self.root, rollout.path), follow_symlinks=False).st_size
        return self.spool.decode(self.root, rollout.path).size

    def _open(self, segments: list[Segment]) -> OpenLineage:
        files: list[OpenFile] = []
        try:
            for segment in segments:
                files.append(open_rollout(self.root, segment.rollout, self.spool))
        except BaseException:
            OpenLineage(segments, files).close()
            raise
        return OpenLineage(segments, files)

    # Derived files of a thread

    def project(self, thread_id: str, view: View) -> Projection:
        """Make one derived file."""
        head, row = self._head(thread_id)
        try:
            segments, error = self._segments(head.rollout), None
        except LineageError as broken:
            segments, error = [Segment(head.rollout, self._meta(head.rollout), None, None)], broken
        with self._open(segments) as lineage:
            basis = tuple(file.basis for file in reversed(lineage.files))
            if error is not None and view in _NEED_LINEAGE:
                return Projection(None, basis, b"", error.message)
            extents, generation = self._make(thread_id, view, head, row, lineage, error)
        return Projection(extents, basis, generation)

    def _make(
        self, thread_id: str, view: View, head: Head, row: Row | None, lineage: OpenLineage, error: LineageError | None
    ) -> tuple[Extents, bytes]:
        if view in (View.EFFECTIVE_HISTORY, View.MODEL_INPUT, View.PENDING_CALLS):
            return self._history_view(view, lineage)
        if view is View.WORLD_STATE:
            replay = self._replay(lineage, state=True)
            return _rendered(views.world_state(replay))
        if view is View.LINEAGE:
            return _rendered(self._lineage_page(thread_id, head, lineage))
        scan = self._scan(thread_id, lineage)
        if view is View.TURNS:
            return _rendered(views.turns(scan))
        if view is View.USAGE:
            return _rendered(views.page(scan.usage.render()))
        problems = self._problems(thread_id, head, lineage, scan, error)
        if view is View.PROBLEMS:
            return _rendered(views.problem_lines(problems, scan.hidden_problems))
        replay_or_none = None if error is not None else self._replay(lineage, state=view is View.THREAD)
        if view is View.THREAD:
            name = self._name(thread_id, row)
            message = error.message if error is not None else None
            page = views.thread(thread_id, head, row, name, lineage.segments, scan, replay_or_none, problems, message)
            return _rendered(views.page(page))
        builder = ExtentsBuilder()
        views.full_history(scan, replay_or_none, lineage.files, builder)
        extents = builder.build()
        return extents, _digest(lineage.files[-1].identity(), *_marks(replay_or_none))

    def _history_view(self, view: View, lineage: OpenLineage) -> tuple[Extents, bytes]:
        replay = self._replay(lineage, state=False)
        builder = ExtentsBuilder()
        sources = [builder.source(file.source) for file in lineage.files]
        generation = [*(file.identity() for file in lineage.files), *_marks(replay)]
        if view is View.EFFECTIVE_HISTORY:
            prompt.effective(replay.history, builder, sources, lineage.fetch)
        elif view is View.MODEL_INPUT:
            prompt.model_input(replay.history, builder, sources, lineage.fetch)
            state = match_calls(replay.history)
            generation.append(repr((state.pending, sorted(state.orphans))).encode())
        else:
            pending = views.pending_positions(replay.history)
            documents = [orjson.loads(lineage.fetch(_item(replay, at))) for at in pending]
            return _rendered(views.pending_calls(replay.history, pending, lineage.files, documents))
        return builder.build(), _digest(*generation)

    def _replay(self, lineage: OpenLineage, *, state: bool) -> Replay:
        """Rebuild a thread from the end of its log."""
        leaf = lineage.segments[-1].meta
        paginated = is_paginated(leaf)
        scan = ReverseScan(paginated=paginated, state=state)
        for decoded, segment in lineage.newest_first(paginated=paginated):
            if isinstance(decoded, Record) and scan.feed(decoded, segment):
                break
        return scan.result(initial_window(leaf), lineage.fetch)

    def _scan(self, thread_id: str, lineage: OpenLineage) -> FullScan:
        """Everything that happened, going on from the last time where that is possible."""
        files = tuple((file.rollout.path, file.source.dev, file.source.ino) for file in lineage.files)
        ends = tuple(segment.end for segment in lineage.segments)
        sizes = [lineage.end_of(number) for number in range(len(files))]
        known = self._scans.pop(thread_id, None)
        if (
            known is None
            or known.files != files
            or known.ends != ends
            or any(a > b for a, b in zip(known.sizes, sizes, strict=True))
        ):
            sources = [
                Source(segment.rollout.path, segment.meta, own=number == len(files) - 1)
                for number, segment in enumerate(lineage.segments)
            ]
            known = _Scanned(files, ends, sizes, FullScan(sources))
            first = True
        else:
            first = False
        scan = known.scan
        start = scan.segment
        for number in range(start, len(files)):
            if first or number > start:
                scan.begin(number)
            for line in forward(lineage.files[number].log, scan.offset, sizes[number]):
                if not line.ended and number == len(files) - 1 and not _is_whole(line, lineage.files[number].log):
                    break
                scan.line(line)
        known.sizes = sizes
        self._scans[thread_id] = known
        while len(self._scans) > _SCANS:
            self._scans.popitem(last=False)
        return scan

    def _problems(
        self, thread_id: str, head: Head, lineage: OpenLineage, scan: FullScan, error: LineageError | None
    ) -> list[Problem]:
        found: list[Problem] = []
        if error is not None:
            consequence = (
                "what the thread is now can't be told: derived files answer EIO; "
                "full_history.jsonl and rollouts/ still work"
            )
            found.append(Problem(error.code, head.rollout.path, None, None, error.message, consequence))
        if head.problem is not None:
            found.append(head.problem)
        found += [
            p for p in self._catalog.problems() if any(p.path == r.path for r in self._catalog.threads[thread_id])
        ]
        leaf = lineage.segments[-1].meta
        if not leaf:
            found.append(_no_meta(head.rollout, lineage.files[-1].log.size))
        elif isinstance(leaf.get("id"), str) and leaf["id"].lower() != thread_id:
            found.append(
                Problem(
                    "meta_foreign",
                    head.rollout.path,
                    0,
                    None,
                    f"the session meta is of thread {leaf['id']}, the file name of thread {thread_id}",
                    "the file is shown under the id in its name",
                )
            )
        for file in lineage.files:
            if file.damage is not None:
                found.append(_spool_problem(file))
        found += scan.problems
        tail = _torn_tail(scan, lineage)
        if tail is not None:
            found.append(tail)
        return found

    def _lineage_page(self, thread_id: str, head: Head, lineage: OpenLineage) -> bytes:
        sizes = [file.log.size for file in lineage.files]
        return views.page(views.lineage(thread_id, head, self.rollouts(thread_id), lineage.segments, sizes))

    def project_rollout(self, rollout: RolloutFile) -> Projection:
        """The decoded content of one rollout file."""
        opened = open_rollout(self.root, rollout, self.spool)
        opened.log.close()
        extents = Extents.of_source(opened.source, opened.log.size)
        return Projection(extents, (opened.basis,), _digest(opened.identity()))

    # The store as a whole

    def project_store(self, view: StoreView) -> Projection:
        """Make one derived file of the whole store."""
        self.refresh()
        make = {StoreView.HEADS: self._heads, StoreView.PROBLEMS: self._store_problems, StoreView.STATS: self._stats}
        extents, generation = _rendered(make[view]())
        return Projection(extents, (), generation)

    def _heads(self) -> bytes:
        lines = []
        for thread_id in self._catalog.threads:
            head, _ = self._head(thread_id)
            rollout = head.rollout
            lines.append(
                views.line(
                    {
                        "thread_id": thread_id,
                        "rollout_id": rollout.rollout_id,
                        "file": rollout.path,
                        "selected_by": head.by,
                    }
                )
            )
        return b"".join(lines)

    def _store_problems(self) -> bytes:
        problems = self._catalog.problems()
        ghosts = [thread_id for thread_id in self._database.ids() if thread_id not in self._catalog.threads]
        for thread_id in ghosts:
            message = f"the database has a row of thread {thread_id}, of which no rollout is in the store"
            problems.append(Problem("index_ghost", "state database", None, None, message, "the thread is not shown"))
        if self._database.problem is not None:
            problems.append(self._database.problem)
        for thread_id in self._catalog.threads:
            head, _ = self._head(thread_id)
            if head.problem is not None:
                problems.append(head.problem)
        return views.problem_lines(problems)

    def _stats(self) -> bytes:
        rollouts = [rollout for files in self._catalog.threads.values() for rollout in files]
        size = 0
        for rollout in rollouts:
            try:
                size += os.stat(os.path.join(self.root, rollout.path), follow_symlinks=False).st_size
            except OSError:
                continue
        return views.page(
            {
                "threads": len(self._catalog.threads),
                "archived_threads": sum(
                    max(files, key=preference).archived for files in self._catalog.threads.values()
                ),
                "rollouts": len(rollouts),
                "compressed_rollouts": sum(rollout.compressed for rollout in rollouts),
                "superseded_rollouts": len(rollouts) - len(self._catalog.threads),
                "bytes": size,
                "database": bool(self._database.identity()) and self._database.problem is None,
            }
        )

    # Names and neighbours

    def _name(self, thread_id: str, row: Row | None) -> str | None:
        """What the user called a thread: the database first, then the index of names, whose last line wins (FORMAT
        2.3).
        """
        if row is not None and row.name:
            return row.name
        return self._index_names().get(thread_id)

    def _index_names(self) -> dict[str, str]:
        try:
            descriptor = open_regular(self.root, SESSION_INDEX)
        except (OSError, UnreadableError):
            return {}
        try:
            status = os.fstat(descriptor)
            key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if self._names is None or self._names[0] != key:
                self._names = (key, _read_names(Log(descriptor, status.st_size)))
            return self._names[1]
        finally:
            os.close(descriptor)

    def links(self, thread_id: str) -> Links:
        """The neighbours of a thread. Reads the session meta of every selected rollout the first time."""
        own = self._edge(self.head(thread_id))
        if self._graph is None or self._graph[0] != self._catalog.version:
            self._graph = self._neighbours()
        _, forks, agents = self._graph
        return Links(own.forked_from, own.parent, tuple(forks.get(thread_id, ())), tuple(agents.get(thread_id, ())))

    def _neighbours(self) -> tuple[int, dict[str, list[str]], dict[str, list[tuple[str, str]]]]:
        forks: dict[str, list[str]] = {}
        agents: dict[str, list[tuple[str, str]]] = {}
        for thread_id in self._catalog.threads:
            try:
                edge = self._edge(self.head(thread_id))
            except (OSError, StoreError):
                continue
            if edge.parent is not None:
                agents.setdefault(edge.parent, []).append((f"{safe_name(edge.nickname)}-{thread_id[-8:]}", thread_id))
            elif edge.forked_from is not None:
                forks.setdefault(edge.forked_from, []).append(thread_id)
        return self._catalog.version, forks, agents

    def _edge(self, rollout: RolloutFile) -> _Edge:
        status = os.stat(os.path.join(self.root, rollout.path), follow_symlinks=False)
        key = (rollout.path, status.st_dev, status.st_ino)
        edge = self._edges.get(key)
        if edge is None:
            meta = self._meta(rollout)
            agent = views.agent_of(meta) or {}
            forked_from = meta.get("forked_from_id")
            edge = _Edge(
                forked_from.lower() if isinstance(forked_from, str) else None,
                (views.parent_of(meta) or "").lower() or None,
                str(agent.get("nickname") or agent.get("role") or "agent"),
            )
            self._edges[key] = edge
        return edge


_NEED_LINEAGE = frozenset(
    (
        View.EFFECTIVE_HISTORY,
        View.MODEL_INPUT,
        View.PENDING_CALLS,
        View.WORLD_STATE,
        View.TURNS,
        View.USAGE,
        View.LINEAGE,
    )
)


def _remember(cache: OrderedDict[Any, Any], key: object, value: object, most: int) -> None:
    cache[key] = value
    while len(cache) > most:
        cache.popitem(last=False)


def _rendered(content: bytes) -> tuple[Extents, bytes]:
    """Rendered content is replaced as a whole whenever it changes."""
    return Extents.of_bytes(content), _digest(content)


def _digest(*parts: bytes) -> bytes:
    return blake2b(b"\0".join(parts), digest_size=16).digest()


def _marks(replay: Replay | None) -> list[bytes]:
    """What tells that a history is more than the extension of another one."""
    if replay is None:
        return [b"none"]
    base = b"start" if replay.base is None else f"{replay.base.segment}:{replay.base.offset}".encode()
    return [base, repr(replay.ops).encode()]


def _item(replay: Replay, at: int) -> Item:
    history = replay.history
    return Item(history.segments[at], history.offsets[at], history.lengths[at], history.flags[at], history.calls[at])


def _read_meta(log: Log) -> Json:
    dialect = first_dialect(log)
    for line in forward(log, 0, min(log.size, _META_SEARCH)):
        if is_blank(line):
            continue
        decoded = decode(line, dialect)
        if isinstance(decoded, Record) and decoded.type == "session_meta":
            return {
                key: value
                for key, value in decoded.payload.items()
                if key not in ("base_instructions", "dynamic_tools", "instructions")
            }
    return {}


def _read_names(log: Log) -> dict[str, str]:
    names: dict[str, str] = {}
    for line in forward(log):
        try:
            document = orjson.loads(line.data)
        except orjson.JSONDecodeError:
            continue
        if (
            isinstance(document, dict)
            and isinstance(document.get("id"), str)
            and isinstance(document.get("thread_name"), str)
        ):
            names[document["id"].lower()] = document["thread_name"]
    return names


def _last_time(descriptor: int, size: int) -> int | None:
    """The time of the last record that has one, in ns, from the last 64 KiB of a file."""
    start = max(size - (64 << 10), 0)
    tail = pread_exactly(descriptor, size - start, start)
    at = len(tail)
    while (at := tail.rfind(b'{"timestamp":"', 0, at)) >= 0:
        if at == 0 or tail[at - 1] == 0x0A:
            parsed = parse_time(tail[at + 14 : at + 54].partition(b'"')[0])
            if parsed is not None:
                return parsed
    return None


def parse_time(text: bytes) -> int | None:
    """Unix time in ns of an RFC 3339 time in UTC; None when it isn't one."""
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text.decode("ascii"))
    except (ValueError, UnicodeDecodeError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = int((moment.replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    return seconds * 1_000_000_000 + moment.microsecond * 1000


def _is_whole(line: Line, log: Log) -> bool:
    """True for a last line without newline that is a record nevertheless: only its newline was lost."""
    return isinstance(decode(line, first_dialect(log)), Record)


def _torn_tail(scan: FullScan, lineage: OpenLineage) -> Problem | None:
    log = lineage.files[-1].log
    if scan.offset >= log.size:
        return None
    path = lineage.files[-1].rollout.path
    tail = pread_exactly(log.descriptor, min(log.size - scan.offset, 1 << 20), scan.offset)
    code = "nul_run" if b"\0" in tail else "torn_tail"
    message = "the file ends in NUL bytes" if code == "nul_run" else "the last line was cut short"
    return Problem(
        code,
        path,
        scan.offset,
        log.size - scan.offset,
        message,
        "it is passed over; the next record begins on a fresh line",
    )


def _no_meta(rollout: RolloutFile, size: int) -> Problem:
    if size == 0:
        return Problem(
            "starting", rollout.path, 0, 0, "the file is empty", "the thread is starting: it has no history yet"
        )
    return Problem(
        "meta_missing",
        rollout.path,
        0,
        None,
        "no session meta in the file",
        "identity and mode are guessed from the file's name",
    )


def _spool_problem(file: OpenFile) -> Problem:
    meaning = {
        "torn": ("zstd_torn", "the compressed file ends within a frame"),
        "trailing": ("zstd_trailing", "bytes that are no zstd frame follow the content"),
        "corrupt": ("zstd_corrupt", "the compressed file is damaged"),
    }
    code, message = meaning[file.damage or "corrupt"]
    return Problem(
        code, file.rollout.path, None, None, message, "what could be decoded is shown, like a log with a torn tail"
    )
