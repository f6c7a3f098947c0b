"""Many small threads, and a store that goes on: what requests, walks and changes cost."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import stores, timing
from bench.cases import EFFECTIVE, Settings, Table, ms, ratio, store_of
from bench.rollout import rollout_name
from bench.server import MemoryWatch, Mount, command, counting, environment, loopback, make_index, mounted
from bench.stores import WARM
from bench.thread import THREAD
from bench.timing import Sample

REQUESTS = 10_000
APPENDS = 50
_LONG = 2  # runs at most of what takes a quarter of an hour
_STATX, _FORCE_SYNC, _ALL = 332, 0x2000, 0x7FF  # x86-64
_LIBC = ctypes.CDLL(None, use_errno=True)

COMMANDS = {
    "`find`": "find {place}",
    "`ls -lR`": "ls -lR {place}",
    "`rsync -an`": "rsync -an {place}/ /tmp/none",
    "`grep -r`": "grep -r 'no such word' {place} || true",
    "`tar cf - | cat`": "tar cf - -C {place} . | cat",
}

TURNS = ("first", "again")


def walks(folder: Path, settings: Settings) -> Table:
    """Everyday commands over many small threads."""
    runs = min(settings.runs, _LONG)
    rows: list[tuple[str, ...]] = []
    with _copied("many", folder, settings) as (store, plain):
        for name, words in COMMANDS.items():
            taken: dict[str, list[float]] = {}
            for what, _, place in _in_turns(store, plain, folder, Settings(runs, settings.scale)):
                taken.setdefault(what, []).append(_walk(words, place))
            samples = {what: Sample(tuple(seconds)) for what, seconds in taken.items()}
            rows.append(
                (
                    name,
                    ms(samples["native, first"]),
                    ms(samples["native, again"]),
                    ms(samples["copy, first"]),
                    ms(samples["ours, first"]),
                    ratio(samples["ours, first"], samples["copy, first"]),
                    ms(samples["ours, again"]),
                    ratio(samples["ours, again"], samples["copy, again"]),
                    ratio(samples["ours, again"], samples["native, again"]),
                )
            )
    return Table(
        f"Walking over {stores.MANY_THREADS // settings.scale:,} threads",
        "Native: a plain copy of the tree. Stock: pyfuse3 with its own loop, serving that copy from memory "
        "(`bench/loopback.py`). Ours: a mount with an index and `--read-only`, as for backups; with control files the "
        "kernel asks for three extended attributes of each file that `ls -l` shows.",
        (
            "",
            "native, first",
            "native, again",
            "stock, first",
            "ours, first",
            "÷ stock",
            "ours, again",
            "÷ stock, again",
            "÷ native, again",
        ),
        rows,
        runs,
    )


def parts(folder: Path, settings: Settings) -> Table:
    """What the same commands ask, and whose time they take."""
    rows: list[tuple[str, ...]] = []
    with _copied("small", folder, settings) as (store, plain):
        for name, words in COMMANDS.items():
            with counting(store, folder, "--index", "--read-only") as (mount, asked):
                counts = [_asked(words, mount, asked) for _ in TURNS]
            taken: dict[str, list[tuple[float, float]]] = {}
            for what, server, place in _in_turns(store, plain, folder, settings, ("stock", "ours")):
                if server is not None:
                    taken.setdefault(what, []).append(_cpu(words, server, place))
            for count, turn in zip(counts, TURNS, strict=True):
                copy, stock, ours = (_middle(taken[f"{whose}, {turn}"]) for whose in ("copy", "stock", "ours"))
                ratios = (sum(ours) / sum(copy), ours[1] / sum(copy), sum(ours) / sum(stock))
                told = (*(f"{seconds * 1e3:.0f} ms" for seconds in (*copy, *ours)), *(f"{one:.2f}" for one in ratios))
                rows.append((f"{name}, {turn}", f"{count:,}", *told))
    return Table(
        f"Whose time walks over {stores.SMALL_THREADS // settings.scale:,} threads take",
        "CPU of the same commands, which other work on the machine changes less than their duration: of the server and "
        "of the client with what the kernel does for it. The last column but one is the limit of any server: what is "
        "left of the ratio to stock if ours took no time at all to answer the same requests. The last: beside the same "
        "mount with pyfuse3's own loop.",
        (
            "",
            "requests",
            "stock: server",
            "client",
            "ours: server",
            "client",
            "÷ stock",
            "the least ÷ stock",
            "÷ pyfuse3's loop",
        ),
        rows,
    )


@contextmanager
def _copied(name: str, folder: Path, settings: Settings) -> Iterator[tuple[Path, Path]]:
    """A store with an index, and a plain copy of its `threads/`."""
    plain = folder / "plain"
    with store_of(name, folder, settings) as store:
        make_index(store, folder)
        with mounted(store, folder, "--index", "--read-only") as mount:
            shutil.copytree(mount.path / "threads", plain, symlinks=True)
        yield store, plain
        shutil.rmtree(plain)


def _in_turns(
    store: Path, plain: Path, folder: Path, settings: Settings, loops: Iterable[str] = ("ours",)
) -> Iterator[tuple[str, Mount | None, Path]]:
    """Where a command runs next: how it is called there, the server if there is one, and the folder."""
    for _ in range(settings.runs):
        for turn in TURNS:
            yield f"native, {turn}", None, plain
        with loopback(plain, folder) as other:
            for turn in TURNS:
                yield f"copy, {turn}", other, other.path
        for loop in loops:
            with mounted(store, folder, "--index", "--read-only", ROLLOUTFS_REQUEST_LOOP=loop) as mount:
                for turn in TURNS:
                    yield f"{loop}, {turn}", mount, mount.path / "threads"


def _walk(words: str, place: Path) -> float:
    return timing.quiet_command(["bash", "-c", words.format(place=place)])


def _asked(words: str, mount: Mount, asked: Callable[[], int]) -> int:
    _walk(words, mount.path / "threads")
    return asked()


def _cpu(words: str, mount: Mount, place: Path) -> tuple[float, float]:
    """Seconds of CPU that a command takes: of the server, and of the client."""
    server, client = mount.cpu(), resource.getrusage(resource.RUSAGE_CHILDREN)
    _walk(words, place)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return mount.cpu() - server, after.ru_utime + after.ru_stime - client.ru_utime - client.ru_stime


def _middle(taken: list[tuple[float, float]]) -> tuple[float, float]:
    servers, clients = zip(*taken, strict=True)
    return statistics.median(servers), statistics.median(clients)


def requests(folder: Path, settings: Settings) -> Table:
    """Single requests, with our way of waiting for them and with pyfuse3's own, and the least that they cost."""
    taken: dict[tuple[str, str], list[float]] = {}

    def ask(what: str, thread: Path) -> None:
        for kind, measure in KINDS.items():
            taken.setdefault((kind, what), []).append(measure(thread))

    plain = folder / "plain"
    with store_of("checkpoints", folder, Settings(settings.runs, settings.scale * 8)) as store:
        with mounted(store, folder) as mount:
            for name in (EFFECTIVE, "rollouts/current"):
                (plain / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(mount.thread(THREAD) / name, plain / name)
        for _ in range(settings.runs):
            for loop in ("stock", "ours"):
                with mounted(store, folder, ROLLOUTFS_REQUEST_LOOP=loop) as mount:
                    ask(loop, mount.thread(THREAD))
            with loopback(plain, folder, "--loop") as mount:
                ask("least", mount.path)
        shutil.rmtree(plain)
    rows = []
    for kind in KINDS:
        stock, ours, least = (Sample(tuple(taken[kind, what])) for what in ("stock", "ours", "least"))
        rates = (f"{REQUESTS / one.median:,.0f}" for one in (stock, ours, least))
        rows.append((kind, *rates, ratio(stock, ours), ratio(stock, least)))
    return Table(
        "Requests a second, on one core",
        f"{REQUESTS:,} of each, of the same handlers. The least: handlers that do nothing but look into a dictionary, "
        "in our loop.",
        ("", "pyfuse3's loop", "our loop", "the least", "ours ×", "least ×"),
        rows,
    )


def _getattr(thread: Path) -> float:
    path = os.fsencode(thread / EFFECTIVE)
    os.stat(path)
    room = ctypes.create_string_buffer(256)

    def ask() -> None:
        for _ in range(REQUESTS):
            _LIBC.syscall(_STATX, -100, path, _FORCE_SYNC, _ALL, room)

    return timing.clocked(ask)


def _lookup(thread: Path) -> float:
    paths = [str(thread / f"nothing-{number}") for number in range(REQUESTS)]
    return timing.clocked(lambda: [os.access(path, 0) for path in paths])


def _read(thread: Path) -> float:
    file = os.open(thread / "rollouts" / "current", os.O_RDONLY)
    try:
        pages = os.fstat(file).st_size // 4096
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        chance = random.Random(5)
        places = chance.sample(range(pages), min(REQUESTS, pages))
        seconds = timing.clocked(lambda: [os.pread(file, 4096, place * 4096) for place in places])
        return seconds * REQUESTS / len(places)
    finally:
        os.close(file)


KINDS: dict[str, Callable[[Path], float]] = {"getattr": _getattr, "lookup": _lookup, "read of 4 KiB": _read}


def live(folder: Path, settings: Settings) -> Table:
    """How long until a line that was appended can be seen."""
    waits: list[float] = []
    with store_of("checkpoints", folder, Settings(settings.runs, settings.scale * 64)) as store:
        log = store / rollout_name(WARM)
        line = log.read_bytes().splitlines(keepends=True)[-1]
        with mounted(store, folder) as mount:
            shown = mount.thread(WARM) / "rollouts" / "current"
            for _ in range(APPENDS):
                size = shown.stat().st_size
                time.sleep(0.05)
                with log.open("ab") as file:
                    file.write(line)
                start = time.perf_counter()
                while shown.stat().st_size == size:
                    time.sleep(0.001)
                waits.append(time.perf_counter() - start)
    waits.sort()
    rows = [(name, f"{waits[int(share * (len(waits) - 1))] * 1e3:.1f} ms") for name, share in _SHARES]
    return Table(
        "From an append to its being seen",
        f"{APPENDS} lines appended to a watched thread whose attributes the kernel may keep; `stat` every millisecond.",
        ("", "after"),
        rows,
    )


_SHARES = (("median", 0.5), ("90 %", 0.9), ("slowest", 1.0))


def huge(folder: Path, settings: Settings) -> Table:
    """A store of 100,000 threads: mounting it, listing it, and what a walk leaves in memory."""
    with store_of("huge", folder, settings) as store:
        count = stores.HUGE_THREADS // settings.scale
        cold = _listed(store, folder, count, settings, "--no-index")
        building = timing.clocked(lambda: make_index(store, folder))
        unchanged = timing.clocked(lambda: make_index(store, folder))
        size = sum(path.stat().st_size for path in (folder / "cache" / "rolloutfs" / "index").iterdir())
        warm = _listed(store, folder, count, settings, "--index")
        with mounted(store, folder, "--index") as mount:
            looks = {view: timing.quiet_command(["ls", mount.path / view]) for view in _VIEWS}
        walked: dict[str, tuple[float, int]] = {}
        with mounted(store, folder, "--index", "--read-only") as mount, MemoryWatch(mount) as peaks:
            for words in ("find threads", "find threads -size +1000", "find ."):
                seconds = timing.inside(mount.path, words)
                walked[words] = seconds, mount.resident()
    rows = [(name, ms(cold[name]), ms(warm[name])) for name in cold]
    rows += [
        ("the index from nothing: threads a second", f"{count / building:,.0f}", ""),
        ("looking that nothing has changed", "", f"{unchanged:.1f} s"),
        ("bytes of index a thread", "", f"{size / count:,.0f}"),
        *((f"`ls {view}`{after}", "", f"{looks[view]:.1f} s") for view, after in _VIEWS.items()),
        *(
            (f"`{words}`, then; resident after it", "", f"{seconds:.1f} s; {resident / (1 << 20):.0f} MiB")
            for words, (seconds, resident) in walked.items()
        ),
        ("resident in the serving process, at its peak", "", f"{peaks.server / (1 << 20):.0f} MiB"),
    ]
    return Table(f"{count:,} threads", "", ("", "no index", "with an index"), rows)


_VIEWS = {
    "by-date": ", the first look into a view",
    "by-name": " after that",
    "by-cwd": " after that",
    "by-branch": " after that",
    "by-model": " after that",
    "recent": " after that",
    "archived": " after that",
}


def _listed(store: Path, folder: Path, count: int, settings: Settings, option: str) -> dict[str, Sample]:
    """Mounting as a user does, and listing all threads."""
    mounts, first, again = [], [], []
    for _ in range(settings.runs):
        with _background(store, folder, option) as (seconds, place):
            mounts.append(seconds)
            first.append(_count(place, count))
            again.append(_count(place, count))
    return {
        "`rolloutfs mount` returns": Sample(tuple(mounts)),
        "`ls threads \\| wc -l`: first": Sample(tuple(first)),
        "`ls threads \\| wc -l`: again": Sample(tuple(again)),
    }


def _count(place: Path, expected: int) -> float:
    start = time.perf_counter()
    listed = subprocess.run(["bash", "-c", f"ls {place}/threads | wc -l"], capture_output=True, check=True).stdout
    seconds = time.perf_counter() - start
    assert int(listed) == expected, listed
    return seconds


@contextmanager
def _background(store: Path, folder: Path, option: str) -> Iterator[tuple[float, Path]]:
    """Mount as a user does: the seconds until the command returns, and the place."""
    place = folder / "mnt"
    place.mkdir(exist_ok=True)
    with ExitStack() as stack:
        start = time.perf_counter()
        words = command("mount", option, store, place)
        subprocess.run(words, env=environment(folder), stdout=subprocess.DEVNULL, check=True)
        stack.callback(subprocess.run, ["fusermount3", "-uz", str(place)], check=True)
        yield time.perf_counter() - start, place
