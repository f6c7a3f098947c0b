"""Where an operation writes, and whose it is then: never through a link, and the store's owner's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from threadstore.cut import Boundary, NoSuchTurnError
from threadstore.errors import StoreError, UnwritableError
from threadstore.locks import writer_lock
from threadstore.operations import Outcome
from threadstore.recorder import Draft
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests import witness
from tests.conftest import CopyStore
from tests.operations.model import append, meta, turn

THREAD = "01a22938-0000-7000-8000-00000000000a"
OWNER = (4711, 4712)
DAY = Path("sessions/2026/01/01")
Operation = Callable[[ThreadStore], Outcome]
OPERATIONS: dict[str, Operation] = {
    "fork": lambda store: store.fork(THREAD, Boundary("latest")),
    "revert": lambda store: store.revert(THREAD, "-1"),
    "undo": lambda store: store.undo(THREAD),
    "compact": lambda store: store.compact(THREAD, "it"),
}
EACH = pytest.mark.parametrize("name", OPERATIONS)
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user: run this as root")


def fresh(home: Path) -> ThreadStore:
    """A store that has seen nothing yet."""
    return ThreadStore(str(home), Spool(f"{home}.spool"))


def everything(home: Path) -> set[Path]:
    """Every name below the store."""
    return set(home.rglob("*"))


def make(home: Path, *, paginated: bool) -> None:
    """A thread of three turns that was reverted once, without locks or database."""
    path = home / DAY / f"rollout-2026-01-01T00-00-00-{THREAD}.jsonl"
    path.parent.mkdir(parents=True)
    append(path, [Draft.of("session_meta", meta(THREAD, paginated=paginated))], paginated=paginated, create=True)
    for number in range(1, 4):
        append(path, turn(THREAD, number, paginated=paginated), paginated=paginated)
    if paginated:
        fresh(home).revert(THREAD, "-1")
        shutil.rmtree(home / "thread-writer-locks")


@pytest.fixture(params=["paginated", "legacy"])
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A store."""
    home = tmp_path / "home"
    make(home, paginated=request.param == "paginated")
    return home


@pytest.fixture
def owned(home: Path) -> Path:
    """A store of another user."""
    for path in (home, *everything(home)):
        os.chown(path, *OWNER)
    return home


@ROOT
@EACH
def test_what_root_makes_is_the_owners(owned: Path, name: str) -> None:
    """Or its Codex could not open what is in its own store; of a refused request as well."""
    for operation in (OPERATIONS[name], lambda store: store.revert(THREAD, "99")):
        try:
            operation(fresh(owned))
        except StoreError as error:
            assert isinstance(error, NoSuchTurnError) or "legacy" in error.message  # noqa: PT017 - some are done
    assert (owned / "thread-writer-locks" / ".coordination.lock").exists()
    assert {(status.st_uid, status.st_gid) for status in map(os.lstat, everything(owned))} == {OWNER}


@ROOT
def test_what_is_decompressed_is_the_owners(copy_store: CopyStore) -> None:
    """And nobody may read it who could not read it before."""
    home = copy_store("compressed.legacy").home
    for path in (home, *everything(home)):
        os.chown(path, *OWNER)
    store = fresh(home)
    thread_id = next(one for one in store.thread_ids() if store.head(one).compressed)
    path = home / store.head(thread_id).path
    path.chmod(0o600)
    outcome = store.compact(thread_id, "it")
    assert outcome.rollout is not None
    status = (home / outcome.rollout).stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (*OWNER, 0o600)


@EACH
def test_another_users_store_is_left_alone(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is neither the owner nor root is told so, and nothing was made."""
    before = everything(home)
    owner = home.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 4711 + owner)
    with pytest.raises(UnwritableError, match="belongs to user"):
        OPERATIONS[name](fresh(home))
    assert everything(home) == before


@ROOT
def test_what_cannot_be_given_away_is_not_made(owned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as on a file system whose root is another one."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    rollouts = {path for path in everything(owned) if path.suffix == ".jsonl"}
    monkeypatch.setattr(os, "fchown", refuse)
    for name in ("fork", "compact"):
        with pytest.raises(UnwritableError, match="can't be given to the owner"):
            OPERATIONS[name](fresh(owned))
    assert {path for path in everything(owned) if path.suffix in (".jsonl", ".partial")} == rollouts


# Links


def move(path: Path, aside: Path) -> Path:
    """Put a link in the place of a folder or file, which is made where it is missing."""
    target = aside / path.name
    if path.exists():
        shutil.move(path, target)
    elif path.suffix == ".lock":
        target.touch()
    else:
        target.mkdir()
    path.symlink_to(target)
    return target


@pytest.mark.parametrize(
    "link", ["thread-writer-locks", "thread-writer-locks/.coordination.lock", f"thread-writer-locks/{THREAD}.lock"]
)
def test_locks_are_not_made_through_links(home: Path, tmp_path: Path, link: str) -> None:
    """The message says which one it is."""
    with writer_lock(str(home), THREAD):
        pass
    (tmp_path / "aside").mkdir()
    move(home / link, tmp_path / "aside")
    before = everything(tmp_path)
    for name in ("revert", "compact"):
        with pytest.raises(UnwritableError, match=f"{home / link} is a link"):
            OPERATIONS[name](fresh(home))
    assert everything(tmp_path) - {tmp_path / "home.spool"} == before - {tmp_path / "home.spool"}


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_rollouts_are_not_made_through_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """A year, month or day that is a link: neither a fork nor a revert is written to where it leads."""
    monkeypatch.setattr("threadstore.pointer.file_stamp", lambda: "2027-02-03T00-00-00")
    home = tmp_path / "home"
    make(home, paginated=True)
    link = home.joinpath(*("sessions", "2027", "02", "03")[:parts])
    link.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(link, ignore_errors=True)
    (tmp_path / "aside").mkdir()
    target = move(link, tmp_path / "aside")
    before = {path for path in everything(home) if path.suffix == ".jsonl"}
    for name in ("fork", "revert"):
        with pytest.raises(UnwritableError, match=f"{link} is a link"):
            OPERATIONS[name](fresh(home))
    assert not any(target.iterdir())
    assert {path for path in everything(home) if path.suffix == ".jsonl"} == before


def test_sessions_may_be_on_another_disk(home: Path, tmp_path: Path) -> None:
    """The folders at the top may be links: people move them."""
    (tmp_path / "aside").mkdir()
    target = move(home / "sessions", tmp_path / "aside")
    outcome = OPERATIONS["fork"](fresh(home))
    assert outcome.rollout is not None
    assert (target / outcome.rollout.removeprefix("sessions/")).is_file()
    OPERATIONS["compact"](fresh(home))
    assert (home / "sessions").is_symlink()


def test_a_folder_that_became_a_link_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the write: nothing is appended to what lies where it leads."""
    home = tmp_path / "home"
    make(home, paginated=False)
    (tmp_path / "aside").mkdir()

    def swap(*_: object) -> bool:
        move(home / DAY, tmp_path / "aside")
        return False

    monkeypatch.setattr("threadstore.appending._has_ordinals", swap)
    before = {path.name: path.read_bytes() for path in (home / DAY).iterdir()}
    with witness.away(), pytest.raises(UnwritableError, match=f"{home / DAY} is a link"):
        OPERATIONS["compact"](fresh(home))
    assert {path.name: path.read_bytes() for path in (tmp_path / "aside" / DAY.name).iterdir()} == before
