"""What the processes of a mount hold on to, to be looked at while nobody uses the mount.

At rest most of it has one right value, after a second as after a day: no handle, no listing, no job, no pinned file.
What is kept on purpose has a bound, and memory may grow by what fits into those bounds and no further.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path

from rolloutfs.fds import IDLE
from rolloutfs.outlines import KNOWN
from rolloutfs.pool import WORKERS
from rolloutfs.versions import PROJECTIONS
from rolloutfs.worker import GROWTH
from tests.mount.conftest import children, until

MIB = 1 << 20
#: Bytes for one file that is known: its outline, its times, what the kernel was told, what it was when it was opened.
PER_FILE = 3 << 10
#: Blocks of Python's allocator for the same (37 were measured), and for what is kept a few times only.
BLOCKS_PER_FILE, BLOCKS = 60, 1000
#: The same for a rollout that is new, also when it is gone by now: its first line, its edges, its state, its times. Of
#: some thousand the last ones are remembered (40 were measured).
BLOCKS_PER_ROLLOUT = 60
#: Bytes that the allocator may keep in pieces that are too small for what comes next.
PIECES = 16 * MIB
#: Entries for names that were listed and never asked for; they are swept by the thousand (`inodes`).
UNUSED = 8192
#: Descriptors of one worker process in the serving one: two pipes, a socket, the process itself.
PER_WORKER = 6

#: Those of a serving process for itself: standard ones, /dev/fuse, inotify, epoll, signals, a folder or two.
DESCRIPTORS = 30

#: Run in the server: tells what it holds when it gets SIGUSR2, and at SIGRTMIN where all its tasks and threads are. The
#: kernel is told to keep everything for an hour, so that nothing but an invalidation makes it ask again in time.
PATCH = """
import faulthandler, gc, json, os, signal, sys, trio
from rolloutfs import following, freshness, guarding, operations
freshness.LIVE = freshness.QUIET
found = []
made = operations.Operations.__init__
def init(self, *args, **more):
    made(self, *args, **more)
    found.append(self)
operations.Operations.__init__ = init
use = following.Following.use
def used(self, watch):
    use(self, watch)
    told["watched"] = True
following.Following.use = used
told = {{"watched": False}}
def report(*_):
    gc.collect()
    one, contents = found[0], found[0].contents
    fds, versions = contents._fds, contents._versions
    with open({report!r} + ".new", "w") as file:
        json.dump(told | {{
            "requests": sum(guarding.REQUESTS.values()),
            "handles": len(contents._handles) + len(contents._open) + len(one.controls._handles),
            "listings": len(one._listings),
            "epochs": len(contents._epochs),
            "jobs": len(one._engine._pool._jobs) + len(one.controls._jobs) + len(one.controls.ending),
            "pinned": len(fds) - len(fds._idle),
            "idle": len(fds._idle),
            "watches": len(one.following._watch._folders),
            "names": len(one.tree._dynamic),
            "files": max(len(versions._known), len(contents._told)),
            "known": len(one._engine.store.thread_ids()),
            "contents": len(versions._full) + len(versions._beside) + len(contents._packs._at_hand),
            "projections": versions._full._total + versions._beside._total,
            "blocks": sys.getallocatedblocks(),
        }}, file)
    os.rename({report!r} + ".new", {report!r})
signal.signal(signal.SIGUSR2, report)
def tell(*_):
    with open({report!r} + ".stacks.new", "w") as file:
        todo = [trio.lowlevel.current_root_task()]
        for task in todo:
            print(task.name, file=file)
            for frame, line in task.iter_await_frames():
                print("   ", frame.f_code.co_filename, line, frame.f_code.co_name, file=file)
            for nursery in task.child_nurseries:
                todo.extend(nursery.child_tasks)
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)
    os.rename({report!r} + ".stacks.new", {report!r} + ".stacks")
signal.signal(signal.SIGRTMIN, tell)
"""


@dataclass(frozen=True, slots=True)
class Vitals:
    """Numbers, `known` of threads, `born` of the rollouts that there ever were, and bytes for `resident`, `largest` (of
    a worker) and `projections`.
    """

    requests: int
    handles: int
    listings: int
    epochs: int
    jobs: int
    pinned: int
    idle: int
    watches: int
    names: int
    files: int
    known: int
    born: int
    contents: int
    projections: int
    blocks: int
    resident: int
    descriptors: int
    threads: int
    workers: int
    largest: int


def is_watched(server: subprocess.Popen[bytes], report: Path) -> bool:
    """True once the server hears of every change."""
    return bool(_told(server, report)["watched"])


def vitals(server: subprocess.Popen[bytes], report: Path, born: int) -> Vitals:
    """What the server holds now. What a program closed at its end is released a moment later: that is waited for."""
    process = Path(f"/proc/{server.pid}")
    busy = ("handles", "listings", "jobs", "pinned")  # a file is let go a moment after its last handle
    told: dict[str, int] = {}

    def is_quiet() -> bool:
        told.update(_told(server, report))
        return not any(map(told.get, busy))

    until(is_quiet, "everything is released and done")
    below = children(server.pid)
    return Vitals(
        **{name: told[name] for name in (one.name for one in fields(Vitals)) if name in told},
        born=born,
        resident=_resident(server.pid),
        descriptors=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
        workers=len(below),
        largest=max(map(_resident, below), default=0),
    )


def whereabouts(server: subprocess.Popen[bytes], report: Path) -> str:
    """Where the tasks and threads of a server are now, for who finds that something takes too long."""
    told = report.with_name(report.name + ".stacks")
    told.unlink(missing_ok=True)
    os.kill(server.pid, signal.SIGRTMIN)
    until(told.exists, "the server tells where it is")
    below = [f"{pid}: {Path(f'/proc/{pid}/wchan').read_text()}" for pid in children(server.pid)]
    return "\n".join((told.read_text(), *below))


def assert_at_rest(now: Vitals) -> None:
    """Nothing is held for programs that have ended."""
    assert (now.handles, now.listings, now.epochs, now.pinned) == (0, 0, 0, 0), now
    assert now.idle <= IDLE, now
    assert now.descriptors <= now.idle + PER_WORKER * now.workers + DESCRIPTORS, now
    # Replays and changes have as many each; one keeps the index; one more tracks resources.
    assert now.workers <= 2 * WORKERS + 2, now


def assert_no_growth(warm: Vitals, now: Vitals, names: int) -> None:
    """Compared with the same mount when it was warm. `names` is how many there ever were in the store's folders.

    Memory: projections up to their bound, `PER_FILE` for each file that was not known when the mount was warm, and
    pieces. Blocks are counted exactly, but for those of rollouts and files that were not known, or of which it was not
    known where their bytes lie: a mount answers some thousand requests even in a few seconds, so one that is lost with
    each shows.
    """
    assert now.threads <= warm.threads + 2 * WORKERS + 1, (warm, now)
    assert now.names <= names + UNUSED, (warm, now)
    assert now.files <= KNOWN, now
    allowed = max(PROJECTIONS - warm.projections, 0) + PER_FILE * max(now.files - warm.files, 0) + PIECES
    more = max(now.files - warm.files, 0) + max(now.contents - warm.contents, 0)
    blocks = BLOCKS_PER_FILE * more + BLOCKS_PER_ROLLOUT * (now.born - warm.born)
    assert now.blocks <= warm.blocks + blocks + BLOCKS, (warm, now)
    assert now.resident <= warm.resident + allowed, (warm, now)
    assert now.largest <= warm.largest + GROWTH, (warm, now)


def _told(server: subprocess.Popen[bytes], report: Path) -> dict[str, int]:
    report.unlink(missing_ok=True)
    os.kill(server.pid, signal.SIGUSR2)
    until(report.exists, "the server reports")
    told: dict[str, int] = json.loads(report.read_bytes())
    return told


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0
