"""Others at the same work: the real Codex on the same store, ripgrep on the same bytes, Python file systems on a tree
of the same shape. Who isn't installed is left out, and the table says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench import stores, timing
from bench.cases import EFFECTIVE, Settings, Table, first_byte_of, ms, ratio, store_of
from bench.server import PATIENCE, await_mount, make_index, mounted
from bench.stores import WARM
from bench.thread import THREAD
from bench.timing import Sample
from bench.walks import COMMANDS
from tests.interop.codex import VERSION, Codex, binary
from tests.interop.model_server import ModelServer

_ANSWER = 900.0  # seconds that Codex may take for one request
_WORD = "import"  # in some lines of every thread
_WALKS = ("`find`", "`ls -lR`", "`grep -r`")

Taken = dict[str, list[float]]


def _samples(taken: Taken) -> dict[str, Sample]:
    return {what: Sample(tuple(seconds)) for what, seconds in taken.items()}


# The real Codex


def codex(folder: Path, settings: Settings) -> Table:
    """What Codex needs to resume, read and list the thread whose first byte is measured in `first_byte`."""
    title = f"The same thread in Codex {VERSION}"
    head = ("", "median", "÷ first byte")
    try:
        binary()
    except FileNotFoundError as error:
        return Table(title, f"Left out: {error}", head, [])
    taken: Taken = {}

    def note(what: str, seconds: float) -> None:
        taken.setdefault(what, []).append(seconds)

    with store_of("checkpoints", folder, settings) as store:
        for _ in range(settings.runs):
            with mounted(store, folder) as mount:
                first_byte_of(mount.thread(WARM) / EFFECTIVE)
                note("ours", first_byte_of(mount.thread(THREAD) / EFFECTIVE))
            for when in ("first", "second"):
                for method, seconds in _asked(store).items():
                    note(f"`{method}`: {when}", seconds)
            _forget(store)
    samples = _samples(taken)
    ours = samples.pop("ours")
    rows = [("first byte of `effective_history.jsonl`, a worker process runs", ms(ours), "1")]
    rows += [(what, ms(sample), ratio(sample, ours)) for what, sample in samples.items()]
    text = (
        f"{stores.RECIPES['checkpoints'].says}. Requests to `codex app-server`, each time a new process that has been "
        "started already: first on a store without databases, then with those that the first one left. `thread/resume` "
        "without turns."
    )
    return Table(title, text, head, rows)


def _asked(store: Path) -> Mapping[str, float]:
    """The seconds of three requests to a new Codex."""
    with ModelServer() as model, Codex(store, model, _ANSWER) as app:
        requests: dict[str, Callable[[], object]] = {
            "thread/list": app.listed,
            "thread/read": partial(app.call, "thread/read", threadId=THREAD),
            "thread/resume": partial(app.resume, THREAD),
        }
        return {method: timing.clocked(ask) for method, ask in requests.items()}


def _forget(store: Path) -> None:
    """Take away what Codex has left."""
    for path in store.iterdir():
        if path.name != "sessions":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


# ripgrep


def search(folder: Path, settings: Settings) -> Table:
    """A word in the history of every thread."""
    tool = "rg" if shutil.which("rg") else "grep -r"
    rows: list[tuple[str, ...]] = []
    for name, says in (("small", "many small threads"), ("checkpoints", "one large thread and two small ones")):
        with store_of(name, folder, settings) as store, mounted(store, folder) as mount:
            threads, plain = mount.path / "threads", folder / "plain"
            size = sum(_copy(thread / EFFECTIVE, plain / thread.name) for thread in threads.iterdir())
            command = f"{tool} -c {_WORD} */{EFFECTIVE}"
            samples = timing.in_turns(
                settings.runs,
                {"native": partial(timing.inside, plain, command), "ours": partial(timing.inside, threads, command)},
            )
            rows.append(
                (
                    f"{says}, {size / 1e6:.1f} MB",
                    ms(samples["native"]),
                    ms(samples["ours"]),
                    ratio(samples["ours"], samples["native"]),
                )
            )
            shutil.rmtree(plain)
    return Table(
        "A word in all histories",
        f"`{tool} -c {_WORD} threads/*/{EFFECTIVE}`, everything read once before. Native: the same in plain files.",
        ("", "native", "ours, again", "÷ native"),
        rows,
    )


def _copy(source: Path, folder: Path) -> int:
    folder.mkdir(parents=True)
    return shutil.copyfile(source, folder / source.name).stat().st_size


# File systems in Python


def archives(folder: Path, settings: Settings) -> Table:
    """Walks over archives of our tree, as other file systems in Python show them."""
    peers = {name: peer for name, peer in _PEERS.items() if _can_mount(name)}
    missing = "".join(f" {name} can't mount here and is left out." for name in _PEERS if name not in peers)
    taken: Taken = {}
    with store_of("small", folder, settings) as store:
        plain = folder / "plain"
        with mounted(store, folder) as mount:
            shutil.copytree(mount.path / "threads", plain, symlinks=True)
            count = sum(len(files) for _, _, files in os.walk(plain))
        packed = {name: peer.pack(plain, folder) for name, peer in peers.items()}
        make_index(store, folder)
        for walk in _WALKS:
            for _ in range(settings.runs):
                for name, peer in peers.items():
                    with _served(peer.mount(packed[name], folder), folder / "peer") as place:
                        _walk(taken, f"{walk} {name}", COMMANDS[walk], place)
                with mounted(store, folder, "--index", "--read-only") as mount:  # theirs can't be written, either
                    _walk(taken, f"{walk} ours", COMMANDS[walk], mount.path / "threads")
        shutil.rmtree(plain)
    samples = _samples(taken)
    rows = []
    for walk in _WALKS:
        for name in peers:
            cells = [f"{walk}: {name}"]
            for when in ("first", "again"):
                theirs, ours = samples[f"{walk} {name} {when}"], samples[f"{walk} ours {when}"]
                cells += [ms(theirs), ms(ours), ratio(ours, theirs)]
            rows.append(tuple(cells))
    return Table(
        "Archives of the same tree, mounted",
        f"{count:,} files. {_versions(peers)} The archives are plain: no encryption, and borg's own compression (lz4). "
        f"Ours: with an index and `--read-only`.{missing}",
        ("", "theirs, first", "ours, first", "÷ theirs", "theirs, again", "ours, again", "÷ theirs"),
        rows,
    )


class _Ratarmount:
    """A tar archive by ratarmount, with its index in memory."""

    def pack(self, tree: Path, folder: Path) -> Path:
        """Make the archive."""
        subprocess.run(["tar", "cf", folder / "tree.tar", "-C", tree, "."], check=True)
        return folder / "tree.tar"

    def mount(self, archive: Path, folder: Path) -> list[str]:
        """The command."""
        return ["ratarmount", "-f", "--index-file", ":memory:", str(archive), str(folder / "peer")]


class _Borg:
    """A borg repository with one archive."""

    def pack(self, tree: Path, folder: Path) -> Path:
        """Make the repository."""
        repository = folder / "borg"
        environment = os.environ | _BORG
        subprocess.run(["borg", "init", "-e", "none", repository], env=environment, check=True)
        subprocess.run(["borg", "create", f"{repository}::tree", "."], env=environment, cwd=tree, check=True)
        return repository

    def mount(self, archive: Path, folder: Path) -> list[str]:
        """The command."""
        return ["borg", "mount", "-f", f"{archive}::tree", str(folder / "peer")]


_BORG = {"BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes", "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes"}
_PEERS: dict[str, _Ratarmount | _Borg] = {"ratarmount": _Ratarmount(), "borg": _Borg()}


def _can_mount(name: str) -> bool:
    """False for a program that isn't there, or that lacks its FUSE library (borg: python3-pyfuse3 of the system)."""
    if shutil.which(name) is None:
        return False
    said = subprocess.run([name, "mount", "/nowhere::none", "/nowhere"], capture_output=True, text=True, check=False)
    return "not available" not in said.stderr


def _versions(names: Mapping[str, object]) -> str:
    found = []
    for name in names:
        said = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
        found.append(said.split("\n", 1)[0].strip() + ".")
    return " ".join(found)


@contextmanager
def _served(words: list[str], place: Path) -> Iterator[Path]:
    """The mount of a server that runs in the foreground."""
    place.mkdir(exist_ok=True)
    server = subprocess.Popen(words, env=os.environ | _BORG, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_mount(place, ".", server)
        yield place
    finally:
        subprocess.run(["fusermount3", "-uz", str(place)], check=False)
        try:
            server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _walk(taken: Taken, what: str, command: str, place: Path) -> None:
    for when in ("first", "again"):
        words = ["bash", "-c", command.format(place=place)]
        taken.setdefault(f"{what} {when}", []).append(timing.quiet_command(words))
