"""What is refused, what a dry run does without, and what is said when a database or a disk is in the way."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import zstandard
from threadstore import pointer
from threadstore.cut import Boundary, NoSuchTurnError, RequestError
from threadstore.errors import StoreError, UnwritableError
from threadstore.locks import writer_lock
from threadstore.operations import Outcome
from threadstore.pointer import Pointer
from threadstore.recorder import Draft
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs.journal import Journal
from rolloutfs.perform import Result, with_word
from tests.conftest import CopyStore
from tests.operations.model import append, meta, turn

THREAD = "01a22938-0000-7000-8000-00000000000a"
NAME = f"sessions/2026/01/01/rollout-2026-01-01T00-00-00-{THREAD}.jsonl"
Operation = Callable[..., Outcome]
OPERATIONS: dict[str, Operation] = {
    "fork": lambda store, **more: store.fork(THREAD, Boundary("before", "-1"), **more),
    "revert": lambda store, **more: store.revert(THREAD, "-1", **more),
    "undo": lambda store, **more: store.undo(THREAD, **more),
    "compact": lambda store, **more: store.compact(THREAD, "it", **more),
}
EACH = pytest.mark.parametrize("name", OPERATIONS)
MODES = pytest.mark.parametrize("paginated", [True, False], ids=["paginated", "legacy"])


def fresh(home: Path) -> ThreadStore:
    """A store that has seen nothing yet."""
    return ThreadStore(str(home), Spool(f"{home}.spool"))


def contents(home: Path) -> dict[str, bytes | None]:
    """Every file and folder of the store."""
    found = home.rglob("*")
    return {str(path.relative_to(home)): path.read_bytes() if path.is_file() else None for path in found}


def make(home: Path, *, paginated: bool, turns: int = 4) -> Path:
    """A thread without locks or database; gives its rollout."""
    path = home / NAME
    path.parent.mkdir(parents=True)
    append(path, [Draft.of("session_meta", meta(THREAD, paginated=paginated))], paginated=paginated, create=True)
    for number in range(1, turns + 1):
        append(path, turn(THREAD, number, paginated=paginated), paginated=paginated)
    return path


def add_database(home: Path, number: int = 5, *, row: bool = True, wal: bool = False, selects: str = NAME) -> Path:
    """A database as Codex has it, as far as that matters here."""
    path = home / f"state_{number}.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        if wal:
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE threads (id TEXT PRIMARY KEY, rollout_path TEXT, title TEXT, updated_at INTEGER)"
        )
        if row:
            connection.execute("INSERT INTO threads VALUES (?, ?, 'a title', 0)", (THREAD, str(home / selects)))
        connection.commit()
    return path


def selected(path: Path) -> str:
    """The path of the row."""
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("SELECT rollout_path FROM threads WHERE id = ?", (THREAD,)).fetchone()[0])


# The session meta


@EACH
@MODES
@pytest.mark.parametrize("damage", ["cut", "rejected", "missing"])
def test_without_a_session_meta_nothing_is_done(tmp_path: Path, name: str, damage: str, *, paginated: bool) -> None:
    """Nobody can tell then whether its records have ordinals."""
    path = make(tmp_path / "home", paginated=paginated)
    first, _, rest = path.read_bytes().partition(b"\n")
    head = {"cut": first[:40] + b"\n", "rejected": first.replace(b'"/repo"', b"7") + b"\n", "missing": b""}[damage]
    path.write_bytes(head + rest)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="no session meta that Codex accepts"):
        OPERATIONS[name](fresh(tmp_path / "home"))
    assert path.read_bytes() == before
    assert len(list((tmp_path / "home").rglob("*.jsonl"))) == 1


@pytest.mark.parametrize("name", ["revert", "compact"])
def test_nothing_without_ordinal_follows_what_has_one(tmp_path: Path, name: str) -> None:
    """Whatever the session meta says."""
    path = make(tmp_path / "home", paginated=True)
    data = path.read_bytes().replace(b'"history_mode":"paginated"', b'"history_mode":"legacy"')
    path.write_bytes(data.replace(b'"type":"item_completed"', b'"type":"user_message","message":"x"'))
    before = path.read_bytes()
    with pytest.raises(StoreError, match="have ordinals"):
        OPERATIONS[name](fresh(tmp_path / "home"))
    assert path.read_bytes() == before


# Turns


@pytest.mark.parametrize(
    "text", ["--1", "²", "-²", "١", "01", "-01", "0", "-0", "+1", "1 ", "1.", "", "-", "tur", "1e3"]
)
def test_what_is_neither_a_number_nor_an_id(tmp_path: Path, text: str) -> None:
    """It is refused in words, and names no turn by chance."""
    make(tmp_path / "home", paginated=True)
    with pytest.raises(NoSuchTurnError, match="neither a number"):
        fresh(tmp_path / "home").revert(THREAD, text, dry_run=True)


@pytest.mark.parametrize("text", ["0199", "00000001", "99999999999999999999999", "-12345678", "x" * 5000])
def test_what_may_begin_an_id_is_no_number(tmp_path: Path, text: str) -> None:
    """A leading zero, or more digits than a thread has turns."""
    make(tmp_path / "home", paginated=True)
    with pytest.raises(NoSuchTurnError, match=r"See turns\.jsonl"):
        fresh(tmp_path / "home").revert(THREAD, text, dry_run=True)


@pytest.mark.parametrize(
    ("text", "dropped"), [("3", 2), ("-1", 1), ("-4", 4), ("turn-0002", 3), ("0199-b", 1), ("0199", 1)]
)
def test_a_turn_by_number_or_id(tmp_path: Path, text: str, dropped: int) -> None:
    """A number counts from 1, or from the end; the beginning of an id may look like one."""
    path = make(tmp_path / "home", paginated=True)
    path.write_bytes(path.read_bytes().replace(b"turn-0004", b"0199-beef"))
    outcome = fresh(tmp_path / "home").revert(THREAD, text, dry_run=True)
    assert len(outcome.dropped_turns) == dropped


# Summaries


def test_a_summary_is_text(tmp_path: Path) -> None:
    """NUL is refused wherever the summary comes from, before anything is made."""
    make(tmp_path / "home", paginated=True)
    before = contents(tmp_path / "home")
    with pytest.raises(RequestError, match="NUL"):
        fresh(tmp_path / "home").compact(THREAD, "a\0b")
    assert contents(tmp_path / "home") == before


# Dry runs


@EACH
@MODES
def test_a_dry_run_makes_nothing_and_waits_for_nobody(tmp_path: Path, name: str, *, paginated: bool) -> None:
    """It is told while Codex has the thread, and names nothing that isn't there."""
    home = tmp_path / "home"
    make(home, paginated=paginated)
    if paginated:
        fresh(home).revert(THREAD, "-1")
    elif name == "undo":
        pytest.skip("a legacy thread has no undo")
    head = fresh(home).head(THREAD)
    add_database(home, wal=True, selects=head.path)
    with writer_lock(str(home), THREAD):
        before = contents(home)
        told = OPERATIONS[name](fresh(home), dry_run=True).as_json()
        assert contents(home) == before
    assert (told["status"], told["dry_run"], told["before"]) == ("done", True, head.rollout_id)
    assert told["rollout"] in (None, head.path)
    assert told["after"] in (None, head.rollout_id)
    appends = name == "compact" or (name == "revert" and not paginated)
    assert (told["rollout"], told["after"]) == ((head.path, head.rollout_id) if appends else (None, None))
    assert told["thread_id"] == (None if name == "fork" else THREAD)


def test_a_dry_run_on_a_read_only_store(copy_store: CopyStore, tmp_path: Path) -> None:
    """A compressed rollout is not decompressed, and its plain name is not told."""
    home = copy_store("compressed.legacy").home
    store = fresh(home)
    thread_id = next(one for one in store.thread_ids() if store.head(one).compressed)
    before = contents(home)
    told = store.compact(thread_id, "it", dry_run=True)
    assert (told.rollout, told.after) == (None, told.before)
    assert store.revert(thread_id, "-1", dry_run=True).rollout is None
    assert contents(home) == before


# Databases


@pytest.mark.parametrize("kind", ["no table", "no rows", "no database", "empty"])
def test_an_unused_newer_database_hides_nothing(tmp_path: Path, kind: str) -> None:
    """Reader and writer take the same one: the newest that has threads in it."""
    home = tmp_path / "home"
    make(home, paginated=True)
    used = add_database(home)
    newer = home / "state_6.sqlite"
    if kind == "no table":
        with closing(sqlite3.connect(newer)) as connection:
            connection.execute("CREATE TABLE other (id TEXT)")
    elif kind == "no rows":
        add_database(home, 6, row=False)
    else:
        newer.write_bytes(b"" if kind == "empty" else b"no database" * 1000)
    before = newer.read_bytes()
    outcome = fresh(home).revert(THREAD, "-1")
    assert outcome.rollout is not None
    assert selected(used) == str(home / outcome.rollout)
    fresh(home).undo(THREAD)
    head = fresh(home).head(THREAD)
    assert selected(used) == str(home / head.path)
    assert newer.read_bytes() == before


def test_a_newer_database_in_use_is_taken(tmp_path: Path) -> None:
    """As soon as it has threads, also when all of them are in its log yet."""
    home = tmp_path / "home"
    make(home, paginated=True)
    old = add_database(home)
    new = add_database(home, 6, row=False, wal=True)
    with closing(sqlite3.connect(new)) as codex:
        codex.execute("INSERT INTO threads VALUES (?, ?, 'a title', 0)", (THREAD, str(home / NAME)))
        codex.commit()
        outcome = fresh(home).revert(THREAD, "-1")
        assert outcome.rollout is not None
        assert selected(new) == str(home / outcome.rollout)
        assert fresh(home).head(THREAD).path == outcome.rollout
    assert selected(old) == str(home / NAME)


def test_a_locked_database_and_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork is there: nobody is told to ask again, which would make a second one."""
    home = tmp_path / "home"
    make(home, paginated=True)
    path = add_database(home)
    monkeypatch.setattr(pointer, "_PATIENCE", 0.0)
    with closing(sqlite3.connect(path, isolation_level=None)) as codex:
        codex.execute("BEGIN IMMEDIATE")
        outcome = fresh(home).fork(THREAD, Boundary("latest"))
    assert outcome.message is not None
    assert "needs nothing more" in outcome.message
    assert f"{path} is locked by another process." in outcome.message
    assert "try again" not in outcome.message
    assert outcome.thread_id in fresh(home)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few hundred KiB; needs root."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", place], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("no file system can be mounted here: run this as root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path, left: int) -> None:
    """Leave that many bytes free."""
    status = os.statvfs(place)
    (place / "filling").write_bytes(b"\1" * (status.f_bavail * status.f_frsize - left))


def _lock(home: Path, place: Path) -> None:
    connection = sqlite3.connect(add_database(home), isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    _HELD.append(connection)


def _write_protect(home: Path, place: Path) -> None:
    shutil.move(home / "sessions", place / "sessions")
    (home / "sessions").symlink_to(place / "sessions")
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)


def _cut_compressed(home: Path, place: Path) -> None:
    path = home / NAME
    noise = random.Random(1).randbytes(100_000).hex()  # so that it has several blocks, of which the last is cut
    append(path, [Draft.of("event_msg", {"type": "agent_message", "message": noise})], paginated=True)
    packed = zstandard.compress(path.read_bytes())
    path.with_name(path.name + ".zst").write_bytes(packed[:-10_000])
    path.unlink()


def _write_protect_compressed(home: Path, place: Path) -> None:
    shutil.move(home / "sessions", place / "sessions")
    (home / "sessions").symlink_to(place / "sessions")
    packed = place / f"{NAME}.zst"
    packed.write_bytes(zstandard.compress((place / NAME).read_bytes()))
    (place / NAME).unlink()
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)


_HELD: list[sqlite3.Connection] = []  # what tests hold on to, until they let go


@pytest.mark.parametrize("way", [_lock, _write_protect, _cut_compressed, _write_protect_compressed])
def test_a_rehearsal_meets_what_an_append_would(
    way: Callable[[Path, Path], None], small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in the way of a summary is found while its writer is there. An ordinary dry run touches nothing."""
    monkeypatch.setattr(pointer, "_PATIENCE", 0.0)
    home = tmp_path / "home"
    make(home, paginated=True)
    way(home, small_disk)
    store = fresh(home)
    before = contents(home)
    assert store.compact(THREAD, "it", dry_run=True).dry_run
    assert contents(home) == before
    told = []
    for dry_run in (True, False):
        with writer_lock(str(home), THREAD), pytest.raises((StoreError, OSError)) as caught:
            store.compact(THREAD, "it", dry_run=dry_run, held=True)
        told.append((type(caught.value), getattr(caught.value, "errno", None)))
    assert told[0] == told[1]
    while _HELD:
        _HELD.pop().close()


@pytest.mark.parametrize("wal", [True, False], ids=["wal", "rollback journal"])
@pytest.mark.parametrize("left", [0, 4096, 16384, 65536])
def test_a_full_disk(small_disk: Path, left: int, *, wal: bool) -> None:
    """It is said that it is full, and of which file; nothing is left beside the database."""
    home = small_disk / "home"
    make(home, paginated=True)
    path = add_database(home, wal=wal)
    (home / "thread-writer-locks").mkdir()
    (home / "thread-writer-locks" / ".coordination.lock").touch()
    fill(small_disk, left)
    store = ThreadStore(str(home), Spool(f"{small_disk}.spool"))
    before = {name for name in contents(home) if "lock" not in name}
    with pytest.raises((UnwritableError, OSError)) as caught:
        store.revert(THREAD, "-1")
    assert isinstance(caught.value, UnwritableError | OSError)
    assert caught.value.errno == errno.ENOSPC
    if isinstance(caught.value, UnwritableError):
        assert f"the disk is full: Codex's database {path}" in caught.value.message
    assert {name for name in contents(home) if "lock" not in name} == before
    (small_disk / "filling").unlink()
    assert store.revert(THREAD, "-1").rollout is not None


@pytest.mark.parametrize(
    ("code", "full", "expected"),
    [
        (sqlite3.SQLITE_FULL, False, errno.ENOSPC),
        (sqlite3.SQLITE_IOERR_SHMSIZE, True, errno.ENOSPC),
        (sqlite3.SQLITE_IOERR_WRITE, True, errno.ENOSPC),
        (sqlite3.SQLITE_IOERR_WRITE, False, 0),
        (sqlite3.SQLITE_READONLY, False, errno.EACCES),
        (sqlite3.SQLITE_CORRUPT, True, 0),
    ],
)
def test_what_sqlite_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: int, *, full: bool
) -> None:
    """Every message has the database's path; an I/O error is a full disk only where the disk is full."""
    path = add_database(tmp_path)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    monkeypatch.setattr(pointer, "_is_full", lambda _: full)

    def fail(*_: object) -> bool:
        raise error

    monkeypatch.setattr(pointer, "_begin", fail)
    with pytest.raises(StoreError, match=str(path)) as caught:
        Pointer(str(tmp_path)).path_of(THREAD)
    assert getattr(caught.value, "errno", 0) == expected


def test_answers_are_json(tmp_path: Path) -> None:
    """Also that of a dry run of a fork, which has no thread."""
    make(tmp_path / "home", paginated=False)
    outcome = fresh(tmp_path / "home").fork(THREAD, Boundary("latest"), dry_run=True)
    assert json.loads(json.dumps(outcome.as_json()))["thread_id"] is None
    with pytest.raises(ValueError, match="makes no thread"):
        print(outcome.thread_id)


def test_a_fork_beside_a_read_only_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written is told, and neither that nothing was changed nor to try again."""
    home = tmp_path / "home"
    make(home, paginated=True)
    path = add_database(home)
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY

    def fail(*_: object) -> bool:
        raise error

    monkeypatch.setattr(pointer, "_begin", fail)
    message = fresh(home).fork(THREAD, Boundary("latest")).message
    assert message is not None
    assert f"{path} may not be written" in message
    assert "Nothing was changed" not in message
    assert "try again" not in message


def test_every_sentence_of_a_note_begins_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever error it is made of: those begin in lower case, since most of them follow a colon."""
    home = tmp_path / "home"
    make(home, paginated=True)
    add_database(home)
    for error in (UnwritableError("the disk is full: it. Nothing was changed."), OSError(errno.EIO, "It broke")):

        def fail(*_: object, error: Exception = error) -> bool:
            raise error

        monkeypatch.setattr(Pointer, "adopt", fail)
        message = fresh(home).fork(THREAD, Boundary("latest")).message
        assert message is not None
        told = with_word(Result(0, {"message": message}), Journal("/x").unwritten(OSError(errno.EIO, "It broke")))
        words = str(told.answer["message"])
        assert not re.search(r"\. [a-z]", words), words
    assert with_word(Result(0, {"message": "no stop"}), "More.").answer["message"] == "no stop. More."
    assert with_word(Result(0, {"message": None}), "More.").answer["message"] == "More."
