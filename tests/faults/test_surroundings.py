"""FAULTS 23, 25, 27 and 31: places, permissions, times and secrets. As other users, on a mount: test_mounted_faults."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import orjson
import pytest
from threadstore.errors import StoreError
from threadstore.projection import StoreView, View

from tests.faults.logs import (
    DERIVED,
    LEGACY,
    MODES,
    PAGINATED,
    Home,
    Log,
    Views,
    content,
    message,
    pairs,
    store_problems,
)

DAY = "sessions/2026/11/29"

# 23: recorded working directories


@pytest.mark.parametrize(
    "cwd", ["/gone", "C:\\x", "\\\\wsl.localhost\\Ubuntu\\home", "", "relative", "/etc/../etc", "/\u202e", "~", "/a\nb"]
)
def test_cwd_is_text(home: Home, cwd: str) -> None:
    """FAULTS 23: a recorded working directory is told as it is and never looked at."""
    log = Log(LEGACY, cwd=cwd)
    log.turn("one")
    home.put(log)
    touched: list[str] = []
    watching = True

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event in ("open", "os.listdir", "os.scandir", "os.stat") and cwd:
            touched.extend(str(argument) for argument in arguments[:1])

    sys.addaudithook(audit)
    try:
        views = home.read(log)
        page = views.thread()
        for view in View:
            views.bytes(view)
    finally:
        watching = False
    assert page["cwd"] == cwd
    assert not [path for path in touched if path == cwd]


def test_cwd_that_hangs(home: Home, tmp_path: Path) -> None:
    """FAULTS 23: the same with a directory that would block: here a FIFO, which nobody opens."""
    os.mkfifo(tmp_path / "hangs")
    log = Log(PAGINATED, cwd=str(tmp_path / "hangs"))
    log.turn("one")
    home.put(log)
    assert home.read(log).thread()["cwd"] == str(tmp_path / "hangs")


# 25: permissions. Root may read everything, so these run as somebody else.


def _as_nobody(home: Home, look: Callable[[], object]) -> object:
    """What `look` answers in a process of a user who owns nothing here."""
    home.open()  # takes the fingerprint, which nobody could
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            answer = look()
        except BaseException as error:  # noqa: BLE001 - handed to the parent as text
            answer = f"{type(error).__name__}: {error}"
        os.write(write, orjson.dumps(answer))
        os._exit(0)
    os.close(write)
    with open(read, "rb") as answers:
        data = answers.read()
    os.waitpid(child, 0)
    return orjson.loads(data)


@pytest.fixture
def public(home: Home) -> Home:
    """A home that everybody can reach and read."""
    for folder in [home.root, *home.root.parents]:
        if folder == Path("/tmp") or os.stat(folder).st_uid != os.getuid():
            break
        os.chmod(folder, 0o755)
    home.spool_folder.mkdir(exist_ok=True)
    os.chmod(home.spool_folder, 0o777)
    home.changed()
    return home


def test_unreadable_file(public: Home) -> None:
    """FAULTS 25: EACCES on that file only, and the thread's problems say why."""
    log, other = Log(PAGINATED, 1), Log(PAGINATED, 2)
    log.turn("one")
    other.turn("two")
    path = public.put(log)
    public.put(other)
    os.chmod(public.root / path, 0)
    public.changed()

    def look() -> object:
        store = public.open()
        answers: dict[str, object] = {
            "other": Views(store, other.thread).effective(),
            "codes": Views(store, log.thread).problems(),
        }
        calls: dict[str, Callable[[], object]] = {
            view.value: partial(store.project, log.thread, view) for view in DERIVED
        }
        calls["raw"] = lambda: store.project_rollout(store.rollouts(log.thread)[0])
        calls["times"] = lambda: store.times(log.thread)
        for name, call in calls.items():
            try:
                call()
                answers[name] = "given"
            except (StoreError, OSError) as error:
                answers[name] = getattr(error, "errno", None)
        return answers

    answers = _as_nobody(public, look)
    os.chmod(public.root / path, 0o644)
    public.changed()
    assert isinstance(answers, dict)
    assert answers.pop("other") == pairs("two")
    assert answers.pop("codes") == [["no_permission", path, None, None]]
    assert set(answers.values()) == {13}


def test_unreadable_ancestor(public: Home) -> None:
    """FAULTS 9, 25: what was inherited can't be read: the lineage is broken, the rest is told."""
    parent = Log(PAGINATED, 1)
    parent.turn("parent")
    path = public.put(parent)
    child = Log(PAGINATED, 2, base=parent.position())
    child.turn("child")
    public.put(child)
    os.chmod(public.root / path, 0)
    public.changed()

    def look() -> object:
        views = public.read(child)
        return [views.error(view) for view in DERIVED], views.codes(), views.full_items(), views.thread()["health"]

    answer = _as_nobody(public, look)
    os.chmod(public.root / path, 0o644)
    public.changed()
    assert isinstance(answer, list), answer
    errors, codes, items, health = answer
    assert all(path in error for error in errors)
    assert codes == ["lineage_unreadable"]
    assert items == pairs("child")
    assert health == "damaged"


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_unreadable_folder(public: Home, mode: int) -> None:
    """FAULTS 25: the threads below it are not shown (or can't be opened); all others are; the folder is named."""
    log = Log(PAGINATED, 1)
    log.turn("one")
    public.put(log)
    os.chmod(public.root / DAY, mode)
    public.changed()

    def look() -> object:
        store = public.open()
        neighbour = [thread for thread in store.thread_ids() if thread != log.thread]
        shown = log.thread in store
        codes = Views(store, log.thread).codes() if shown else [code for code, _ in store_problems(store)]
        return len(neighbour), codes

    answer = _as_nobody(public, look)
    os.chmod(public.root / DAY, 0o755)
    public.changed()
    assert answer == [3, ["no_permission"]]


def test_unreadable_database(public: Home) -> None:
    """FAULTS 25, 26: as if there were none, and told."""
    log = Log(PAGINATED, 1)
    log.turn("one")
    public.put(log)
    (public.root / "state_5.sqlite").write_bytes(b"x" * 4096)
    os.chmod(public.root / "state_5.sqlite", 0)
    public.changed()

    def look() -> object:
        store = public.open()
        return Views(store, log.thread).effective(), [code for code, _ in store_problems(store)]

    assert _as_nobody(public, look) == [pairs("one"), ["index_corrupt"]]


def test_store_of_another_user_and_read_only(public: Home) -> None:
    """FAULTS 25: everything can be read where nothing may be written."""
    log = Log(PAGINATED, 1)
    log.turn("one")
    packed = Log(PAGINATED, 2)
    packed.turn("two")
    public.put(log)
    public.put(packed, compressed=True)
    for folder, folders, files in os.walk(public.root):
        for name in folders + files:
            target = os.path.join(folder, name)
            os.chmod(target, os.stat(target).st_mode & 0o555)
    os.chmod(public.root, 0o555)
    public.changed()

    def look() -> object:
        store = public.open()
        for view in StoreView:
            content(store.project_store(view), store.root)
        return [Views(store, each.thread).effective() for each in (log, packed)]

    assert _as_nobody(public, look) == [pairs("one"), pairs("two")]


# 27: times


TIMES = {
    "2026-11-29T10:00:00.000Z": datetime(2026, 11, 29, 10, tzinfo=UTC),
    "2026-11-29T10:00:00.123456Z": datetime(2026, 11, 29, 10, 0, 0, 123456, tzinfo=UTC),
    "2026-11-29T12:00:00+02:00": datetime(2026, 11, 29, 10, tzinfo=UTC),
    "2026-11-29T10:00:00": datetime(2026, 11, 29, 10, tzinfo=UTC),
    "1970-01-01T00:00:00.000Z": datetime(1970, 1, 1, tzinfo=UTC),
    "1969-12-31T23:59:59.500Z": datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=UTC),
    "2038-01-19T03:14:08.000Z": datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
    "2106-02-07T06:28:16.000Z": datetime(2106, 2, 7, 6, 28, 16, tzinfo=UTC),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("text", "moment"), TIMES.items())
def test_time_of_the_last_record(home: Home, text: str, moment: datetime, mode: str) -> None:
    """FAULTS 27: a record's time is UTC unless it names its zone; years before 1970 and after 2038 are times like
    others.
    """
    log = Log(mode)
    log.record("response_item", message("user", "one"), timestamp=text)
    home.put(log)
    views = home.read(log)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    expected = (delta.days * 86400 + delta.seconds) * 10**9 + delta.microseconds * 1000
    assert views.store.times(log.thread).mtime_ns == expected
    assert views.thread()["updated_at"] == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "9999-12-31T23:59:59.999Z",
        "0001-01-01T00:00:00.000Z",
        "2026-13-01T00:00:00Z",
        "１９７０",
        "2026-11-29T10:00:00+99:99",
    ],
)
def test_time_that_is_none(home: Home, text: str) -> None:
    """FAULTS 27: then an earlier record's time counts; the result fits into the nanoseconds of a file's time in any
    case.
    """
    log = Log(LEGACY)
    log.record("response_item", message("user", "one"), timestamp="2026-11-29T10:00:00.000Z")
    log.record("response_item", message("user", "two"), timestamp=text)
    home.put(log)
    views = home.read(log)
    assert views.effective() == ["one", "two"]
    moment = views.store.times(log.thread).mtime_ns
    assert -(1 << 63) <= moment < 1 << 63
    assert moment == 1795946400 * 10**9


def test_numeric_time_is_no_time(home: Home) -> None:
    """FAULTS 27, facts A: a line with a numeric or missing timestamp is passed over, so it dates nothing."""
    log = Log(LEGACY)
    log.record("response_item", message("user", "one"), timestamp="2026-11-29T10:00:00.000Z")
    log.raw(b'{"timestamp":1795946401000,"type":"event_msg","payload":{"type":"context_compacted"}}')
    log.raw(b'{"type":"event_msg","payload":{"type":"context_compacted"}}')
    home.put(log)
    assert home.read(log).store.times(log.thread).mtime_ns == 1795946400 * 10**9


def test_no_time_at_all(home: Home) -> None:
    """FAULTS 27: an empty log has the time of its file."""
    log = Log(LEGACY, meta=False)
    path = home.put(log)
    os.utime(home.root / path, ns=(5, 1795946400 * 10**9))
    home.changed()
    assert home.read(log).store.times(log.thread).mtime_ns == 1795946400 * 10**9


@pytest.mark.parametrize(
    "stamp",
    ["2026-10-25T02-30-00", "1970-01-01T00-00-00", "2106-12-31T23-59-59", "0000-00-00T00-00-00", "9999-99-99T99-99-99"],
)
def test_time_in_a_name_is_text(home: Home, stamp: str) -> None:
    """FAULTS 27, trap 38: the time in a name is local and may be doubled, missing or impossible: it orders names and is
    never turned into an instant, and no path is made from a time.
    """
    log = Log(LEGACY)
    log.turn("one")
    path = home.put(log, folder=DAY, stamp=stamp)
    views = home.read(log)
    assert views.effective() == pairs("one")
    assert views.thread()["rollout"]["file"] == path
    assert views.thread()["created_at"] == "2026-11-29T10:00:00.000Z"
    assert views.problems() == []


def test_times_that_go_back(home: Home) -> None:
    """FAULTS 27: a clock that was set back changes nothing about the order of records."""
    log = Log(PAGINATED)
    for hour, text in ((12, "one"), (3, "two"), (7, "three")):
        log.record("response_item", message("user", text), timestamp=f"2026-11-29T{hour:02}:00:00.000Z")
    home.put(log)
    views = home.read(log)
    assert views.effective() == ["one", "two", "three"]
    assert views.thread()["updated_at"] == "2026-11-29T07:00:00.000Z"
    assert views.problems() == []


# 31: secrets


def test_secrets_beside_the_sessions(home: Home) -> None:
    """FAULTS 31: `auth.json` and its like lie beside the sessions: no view has anything of them."""
    log = Log(PAGINATED)
    log.turn("one")
    home.put(log)
    for name in ("auth.json", "config.toml", "history.jsonl", ".env", "sessions/auth.json", f"{DAY}/auth.json"):
        (home.root / name).write_text("TOPSECRET")
    home.changed()
    store = home.open()
    shown = b"".join(content(store.project_store(view), store.root) for view in StoreView)
    for thread in store.thread_ids():
        shown += b"".join(content(store.project(thread, view), store.root) for view in View)
    assert b"TOPSECRET" not in shown


def test_secrets_in_a_rollout_stay(home: Home) -> None:
    """FAULTS 31: raw is raw: nothing is masked, in the history neither (checked byte for byte by the fixture)."""
    log = Log(PAGINATED)
    log.turn("OPENAI_API_KEY=sk-proj-abc123")
    home.put(log)
    assert home.read(log).effective()[0] == "OPENAI_API_KEY=sk-proj-abc123"


def test_decoded_copies_are_private(home: Home) -> None:
    """FAULTS 31: what is decoded outside the store is for its owner only, whatever the source says."""
    log = Log(PAGINATED)
    log.turn("one")
    path = home.put(log, compressed=True)
    os.chmod(home.root / path, 0o666)
    home.changed()
    mask = os.umask(0)
    try:
        home.read(log).effective()
    finally:
        os.umask(mask)
    modes = {os.stat(home.spool_folder).st_mode & 0o777}
    assert modes == {0o700}
    for folder, _, files in os.walk(home.spool_folder):
        assert {os.stat(os.path.join(folder, name)).st_mode & 0o077 for name in files} <= {0}
