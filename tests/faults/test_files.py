"""FAULTS 11 to 13, 24 and 28: what is odd about the files of a store."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
import zstandard
from threadstore.errors import StoreError
from threadstore.projection import StoreView, View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.faults.logs import (
    DERIVED,
    LEGACY,
    MODES,
    PAGINATED,
    Home,
    Log,
    Views,
    content,
    done,
    pairs,
    raw,
    store_problems,
    uuid,
)

DAY = "sessions/2026/11/29"


# 11: files that are not, or not yet, threads


def test_empty_file_is_a_thread_that_starts(home: Home) -> None:
    """FAULTS 11: 0 bytes: Codex has made the file and written nothing yet."""
    log = Log(meta=False)
    path = home.put(log)
    views = home.read(log)
    assert views.problems() == [("starting", path, 0, 0)]
    page = views.thread()
    assert (page["id"], page["status"], page["counts"]["records"]) == (log.thread, "starting", 0)
    assert not page["replay"]["uncertain"]
    for view in (View.EFFECTIVE_HISTORY, View.MODEL_INPUT, View.FULL_HISTORY, View.TURNS, View.PENDING_CALLS):
        assert views.bytes(view) == b""


@pytest.mark.parametrize("mode", MODES)
def test_only_a_session_meta(home: Home, mode: str) -> None:
    """FAULTS 11: a thread that has just been started; there is nothing wrong with it."""
    log = Log(mode)
    home.put(log)
    views = home.read(log)
    assert views.effective() == []
    assert views.turns() == []
    assert views.problems() == []
    assert views.thread()["status"] == "starting"


@pytest.mark.parametrize("text", [b"\n", b" \n\t\n\r\n", b"   "])
def test_only_blank_lines(home: Home, text: bytes) -> None:
    """FAULTS 11, facts D: Codex calls such a file empty, as one of 0 bytes."""
    log = Log(meta=False)
    log.raw(text, end=b"")
    path = home.put(log)
    views = home.read(log)
    assert views.effective() == []
    assert [problem[:2] for problem in views.problems()] == [("starting", path)]


NO_ROLLOUTS = [
    "{name} 2.jsonl",
    "{name}.jsonl.bak",
    "{name}.jsonl.tmp",
    "{name}.jsonl.zst.tmp",
    "{name}.jsonl~",
    "{name}.jsonl.gz",
    "{name}.JSONL",
    "{name} (copy).jsonl",
    "{name}_x.jsonl",
    "{name}_.jsonl",
    ".{name}.jsonl",
    "copy of {name}.jsonl",
    "rollout-2026-11-29-01a20000-0000-7000-8000-000000000001.jsonl",
    "rollout-2026-11-29T10-00-00-01a20000.jsonl",
    "rollout-2026-11-29T10-00-00-.jsonl",
    "rollout-.jsonl",
    ".DS_Store",
    "desktop.ini",
]


@pytest.mark.parametrize("pattern", NO_ROLLOUTS)
def test_other_names_are_not_rollouts(home: Home, pattern: str) -> None:
    """FAULTS 11: copies, backups and strangers are ignored and listed; the thread beside them counts once."""
    log = Log()
    log.turn("one")
    path = home.put(log)
    other = f"{DAY}/{pattern.format(name=Path(path).stem)}"
    home.put_bytes(other, bytes(log.content).replace(b"one", b"two"))
    store = home.open()
    assert ("not_a_rollout", other) in store_problems(store)
    assert [rollout.path for rollout in store.rollouts(log.thread)] == [path]
    assert Views(store, log.thread).effective() == pairs("one")
    assert len(store.thread_ids()) == 4


# 12: the same thread twice


def test_same_thread_active_and_archived(home: Home) -> None:
    """FAULTS 12, FORMAT 11.4: the active one is selected, even when the archived one is newer; the other is listed."""
    active, archived = Log(), Log()
    active.turn("active")
    archived.turn("archived")
    home.put(active)
    other = home.put(archived, stamp="2026-11-30T10-00-00", archived=True)
    views = home.read(active)
    assert views.effective() == pairs("active")
    assert ("duplicate_thread", other, None, None) in views.problems()
    assert ("duplicate_thread", other) in store_problems(views.store)
    assert views.thread()["archived"] is False
    assert len(views.store.rollouts(active.thread)) == 2


def test_same_thread_on_two_dates(home: Home) -> None:
    """FAULTS 12: the greatest time in the name wins, not the newest file."""
    old, new = Log(), Log()
    old.turn("old")
    new.turn("new")
    home.put(new, stamp="2026-11-30T10-00-00")
    other = home.put(old)
    os.utime(home.root / other, ns=(1 << 62, 1 << 62))
    home.changed()
    views = home.read(new)
    assert views.effective() == pairs("new")
    assert views.problems() == [("duplicate_thread", other, None, None)]


def test_same_name_in_two_folders(home: Home) -> None:
    """FAULTS 12: one name in two places: the names below `rollouts/` differ all the same, and both are shown."""
    first, second = Log(), Log()
    first.turn("first")
    second.turn("second")
    home.put(first)
    home.put(second, folder="sessions/2026/11/30")
    home.put(second, archived=True)
    store = home.open()
    rollouts = store.rollouts(first.thread)
    assert len(rollouts) == 3
    assert len({rollout.shown for rollout in rollouts}) == 3
    assert len([code for code, _ in store_problems(store) if code == "duplicate_thread"]) == 2


def test_generations_of_a_revert_are_no_duplicates(home: Home) -> None:
    """FAULTS 12, trap 3: several files of one thread are how a revert is kept; the newest counts."""
    first = Log(PAGINATED, 1)
    first.turn("kept")
    position = first.position()
    first.turn("dropped")
    home.put(first)
    second = Log(PAGINATED, 1, rollout=5, base=position)
    second.turn("new")
    home.put(second, stamp="2026-11-29T11-00-00")
    views = home.read(first)
    assert views.effective() == pairs("kept", "new")
    assert views.turns() == done("kept", "new")
    assert views.problems() == []


def test_ids_in_upper_case_are_the_same_thread(home: Home) -> None:
    """FAULTS 12: the spelling of an id makes no other thread."""
    log = Log(LEGACY)
    log.turn("one")
    home.put_bytes(f"{DAY}/rollout-2026-11-29T10-00-00-{log.thread.upper()}.jsonl", bytes(log.content))
    views = home.read(log)
    assert views.effective() == pairs("one")
    assert views.problems() == []


# 13: compressed files


@pytest.mark.parametrize("mode", MODES)
def test_only_compressed(home: Home, mode: str) -> None:
    """FAULTS 13: a compressed rollout is one like any other; offsets are those of its decoded bytes."""
    log = Log(mode)
    log.turn("one")
    spot = log.raw(b"damage")
    log.turn("two")
    path = home.put(log, compressed=True)
    views = home.read(log)
    assert views.effective() == views.sent() == pairs("one", "two")
    assert views.turns() == done("one", "two")
    assert views.problems() == [("bad_record", path, *spot)]
    [rollout] = views.store.rollouts(log.thread)
    assert rollout.shown == f"{home.name(log)}"


def test_both_forms(home: Home) -> None:
    """FAULTS 13: the plain one wins, and the thread is there once; the other one is listed."""
    plain, compressed = Log(), Log()
    plain.turn("plain")
    compressed.turn("compressed")
    home.put(plain)
    other = home.put(compressed, compressed=True)
    store = home.open()
    assert Views(store, plain.thread).effective() == pairs("plain")
    assert len(store.rollouts(plain.thread)) == 1
    assert ("zstd_twin", other) in store_problems(store)
    assert [code for code, _ in store_problems(store)] == ["zstd_twin"]


def test_compressed_while_in_use(home: Home) -> None:
    """FAULTS 13, 28: between two looks the plain file has become a compressed one: the thread stays, with the same
    answer.
    """
    log = Log()
    log.turn("one")
    path = home.put(log)
    store = home.open()
    before = {
        view: content(store.project(log.thread, view), store.root) for view in (View.EFFECTIVE_HISTORY, View.TURNS)
    }
    home.put(log, compressed=True)
    os.unlink(home.root / path)
    store.refresh()
    after = {view: content(store.project(log.thread, view), store.root) for view in before}
    assert after[View.EFFECTIVE_HISTORY] == before[View.EFFECTIVE_HISTORY]
    assert len(store.rollouts(log.thread)) == 1


def _frames(*parts: bytes) -> bytes:
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in parts)


@pytest.mark.parametrize("mode", MODES)
def test_several_frames(home: Home, mode: str) -> None:
    """FAULTS 13: frames follow one another, also skippable and empty ones, cut anywhere in a line."""
    log = Log(mode)
    log.turn("one")
    log.turn("two")
    data = bytes(log.content)
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"aside"
    packed = skippable + _frames(data[:100], b"", data[100:733]) + skippable + _frames(data[733:])
    home.put_bytes(f"{DAY}/{home.name(log)}.zst", packed, decoded=data)
    views = home.read(log)
    assert views.effective() == pairs("one", "two")
    assert views.problems() == []


def _big(mode: str) -> Log:
    log = Log(mode)
    noise = 1
    for number in range(400):
        noise = noise * 6364136223846793005 + 1442695040888963407 & (1 << 2048) - 1
        log.turn(f"{number} {noise:x}", None)
    return log


@pytest.mark.parametrize("mode", MODES)
def test_truncated(home: Home, mode: str) -> None:
    """FAULTS 13: a file that ends within a frame is read as far as it goes, as a log with a torn tail; what is lost
    could have been anything.
    """
    log = _big(mode)
    packed = _frames(bytes(log.content))
    path = home.put_bytes(f"{DAY}/{home.name(log)}.zst", packed[: len(packed) // 2])
    decoded = zstandard.ZstdDecompressor().decompressobj().decompress(packed[: len(packed) // 2])
    assert 0 < len(decoded) < len(log.content)
    home.expected[path] = decoded
    views = home.read(log)
    whole = decoded.rindex(b"\n") + 1
    problems = views.problems()
    assert ("zstd_torn", path, None, None) in problems
    if whole < len(decoded):
        assert ("torn_tail", path, whole, len(decoded) - whole) in problems
    assert len(problems) == 1 + (whole < len(decoded))
    assert len(views.effective()) == decoded[:whole].count(b'"response_item"')
    assert views.uncertain()


@pytest.mark.parametrize("garbage", [b"garbage after it", b"\0" * 100, b"\x28\xb5\x2f", b"\x28\xb5\x2f\xfd"])
def test_something_after_the_last_frame(home: Home, garbage: bytes) -> None:
    """FAULTS 13: what is decoded counts, and what follows is named."""
    log = Log()
    log.turn("one")
    path = home.put_bytes(f"{DAY}/{home.name(log)}.zst", _frames(bytes(log.content)) + garbage, bytes(log.content))
    views = home.read(log)
    assert views.effective() == pairs("one")
    [(code, file, _, _)] = views.problems()
    assert (code.startswith("zstd_"), file) == (True, path)
    assert views.uncertain()


def test_damaged_in_the_middle(home: Home) -> None:
    """FAULTS 13: bits that changed: what was decoded before them is shown, and that there is damage."""
    log = _big(PAGINATED)
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(bytes(log.content)))
    packed[len(packed) // 2] ^= 0xFF
    path = home.put_bytes(f"{DAY}/{home.name(log)}.zst", bytes(packed))
    home.expected[path] = None
    views = home.read(log)
    assert ("zstd_corrupt", path, None, None) in views.problems()
    assert views.uncertain()
    [rollout] = views.store.rollouts(log.thread)
    shown = raw(views.store, rollout)
    assert bytes(log.content).startswith(shown[: shown.rfind(b"\n", 0, len(shown) // 2)])


@pytest.mark.parametrize("mode", MODES)
def test_plain_text_with_the_suffix(home: Home, mode: str) -> None:
    """FAULTS 13, wrong suffix: nothing can be decoded. Codex can't read it; we don't show an empty thread that "is
    starting" as if it were a fact: derived files give no content, the damage is named.
    """
    log = Log(mode)
    log.turn("one")
    path = home.put_bytes(f"{DAY}/{home.name(log)}.zst", bytes(log.content))
    home.expected[path] = None
    views = home.read(log)
    for view in DERIVED:
        assert views.error(view).endswith(".")
    codes = views.codes()
    assert "zstd_corrupt" in codes
    assert "starting" not in codes
    assert views.thread()["status"] == "damaged"


@pytest.mark.parametrize("mode", MODES)
def test_compressed_without_the_suffix(home: Home, mode: str) -> None:
    """FAULTS 13, wrong suffix the other way: the bytes are no log. They are shown raw, nothing is made of them but
    damage.
    """
    log = Log(mode)
    log.turn("one")
    path = home.put_bytes(f"{DAY}/{home.name(log)}", _frames(bytes(log.content)))
    views = home.read(log)
    assert ("meta_missing", path, 0, None) in views.problems()
    assert views.effective() == []
    assert views.thread()["identity_guessed"] is True
    assert views.thread()["health"] != "sound"


def test_empty_compressed_file(home: Home) -> None:
    """FAULTS 13: 0 bytes are no frame: the file is torn, not a thread that is starting."""
    log = Log()
    path = home.put_bytes(f"{DAY}/{home.name(log)}.zst", b"")
    views = home.read(log)
    assert ("zstd_torn", path, None, None) in views.problems()


def test_temporary_file_beside_it(home: Home) -> None:
    """FAULTS 13: what the compression worker leaves half done doesn't count."""
    log = Log()
    log.turn("one")
    path = home.put(log, compressed=True)
    home.put_bytes(f"{path}.tmp", b"\x28\xb5\x2f\xfd half")
    home.put_bytes(f"{path}.a1b2c3.tmp", b"")
    store = home.open()
    assert len(store.rollouts(log.thread)) == 1
    assert {code for code, _ in store_problems(store)} == {"not_a_rollout"}


def test_truncated_ancestor(home: Home) -> None:
    """FAULTS 9, 13: what a fork has inherited must be whole: a compressed ancestor cut after it is good enough, one cut
    before it breaks the lineage.
    """
    parent = Log()
    parent.turn("parent")
    position = parent.position()
    for number in range(300):
        parent.turn(f"later {number}")
    first, cut = parent.content.index(b"\n") + 1, position["end_byte_offset"]
    head, inherited, later = parent.content[:first], parent.content[first:cut], parent.content[cut:]
    packed = _frames(bytes(head), bytes(inherited), bytes(later))
    child = Log(PAGINATED, 2, base=position)
    child.turn("child")
    home.put(child)
    path = home.put_bytes(f"{DAY}/{home.name(parent)}.zst", packed[:-50])
    home.expected[path] = None
    assert home.read(child).effective() == pairs("parent", "child")
    home.put_bytes(path, packed[: len(_frames(bytes(head))) + 50])
    home.expected[path] = None
    assert "past" in home.read(child).error(View.EFFECTIVE_HISTORY)


# 24: what is no file


@pytest.fixture
def never_blocks() -> Iterator[None]:
    """Kills the test when something in it hangs on a FIFO."""
    import signal

    def hang(_signal: int, _frame: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _look_at_everything(store: ThreadStore) -> None:
    for view in StoreView:
        store.project_store(view)
    for thread in store.thread_ids():
        store.times(thread)
        store.cost(thread)
        store.links(thread)
        for each in View:
            store.project(thread, each)
        for rollout in store.rollouts(thread):
            store.project_rollout(rollout)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def _link_out(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _link_inside(path: Path) -> None:
    path.symlink_to(next((path.parents[3] / "2026/11/28").iterdir()))


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def _folder(path: Path) -> None:
    path.mkdir()


SPECIAL = [_fifo, _socket, _link_out, _link_inside, _link_to_itself, _dangling, _folder]


@pytest.mark.usefixtures("never_blocks")
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.zst"])
@pytest.mark.parametrize("make", SPECIAL)
def test_special_file_named_like_a_rollout(home: Home, make: Callable[[Path], None], suffix: str) -> None:
    """FAULTS 24: it is left alone and listed; it is no thread."""
    name = home.name(Log(), suffix=suffix)
    target = home.root / DAY / name
    target.parent.mkdir(parents=True)
    make(target)
    home.changed()
    store = home.open()
    assert Log().thread not in store
    assert store_problems(store) == [("not_a_file", f"{DAY}/{name}")]
    _look_at_everything(store)


@pytest.mark.usefixtures("never_blocks")
@pytest.mark.parametrize("make", [_fifo, _link_out, _folder, _dangling])
def test_rollout_that_turns_into_something_else(home: Home, make: Callable[[Path], None]) -> None:
    """FAULTS 24: between the look at the folder and the opening, a rollout was replaced: it is opened without following
    links and without waiting.
    """
    log = Log()
    path = home.put(log)
    store = home.open()
    os.unlink(home.root / path)
    make(home.root / path)
    for view in (View.EFFECTIVE_HISTORY, View.FULL_HISTORY):
        with pytest.raises((StoreError, OSError)):
            store.project(log.thread, view)
    with pytest.raises((StoreError, OSError)):
        store.project_rollout(store.rollouts(log.thread)[0])
    store.refresh()
    assert log.thread not in store
    home.changed()


def test_sessions_may_be_a_link(home: Home, tmp_path: Path) -> None:
    """FAULTS 24: people move `sessions` to another disk: the link at the root is followed."""
    log = Log()
    log.turn("one")
    home.put(log)
    os.rename(home.root / "sessions", tmp_path / "elsewhere")
    (home.root / "sessions").symlink_to(tmp_path / "elsewhere")
    home.changed()
    assert home.read(log).effective() == pairs("one")


def test_store_may_be_a_link(home: Home, tmp_path: Path) -> None:
    """FAULTS 24: so may the whole store."""
    log = Log()
    log.turn("one")
    home.put(log)
    (tmp_path / "link").symlink_to(home.root)
    store = ThreadStore(str(tmp_path / "link"), Spool(str(tmp_path / "other-spool")))
    assert Views(store, log.thread).effective() == pairs("one")


@pytest.mark.parametrize("target", ["/etc", "..", ".", "../..", "../../../..", "nowhere"])
def test_links_to_folders_are_not_followed(home: Home, target: str) -> None:
    """FAULTS 24: below the root no link is followed: none leads out of the store, none goes round in circles."""
    log = Log()
    log.turn("one")
    home.put(log)
    (home.root / "sessions/2026/link").symlink_to(target)
    home.changed()
    store = home.open()
    assert ("not_a_file", "sessions/2026/link") in store_problems(store)
    assert len(store.thread_ids()) == 4
    assert Views(store, log.thread).effective() == pairs("one")


@pytest.mark.usefixtures("never_blocks")
@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("name", ["session_index.jsonl", "state_5.sqlite", "state_6.sqlite", "state_5.sqlite-wal"])
def test_special_file_in_place_of_an_index(home: Home, make: Callable[[Path], None], name: str) -> None:
    """FAULTS 24, 26: the indexes are not needed; one that is no file is never opened."""
    log = Log()
    log.turn("one")
    home.put(log)
    if make is _link_inside:
        (home.root / name).symlink_to(f"{DAY}/{home.name(log)}")
    else:
        make(home.root / name)
    home.changed()
    store = home.open()
    _look_at_everything(store)
    assert Views(store, log.thread).effective() == pairs("one")


@pytest.mark.usefixtures("never_blocks")
@pytest.mark.parametrize("make", [_fifo, _socket, _dangling])
def test_sessions_that_is_no_folder(home: Home, make: Callable[[Path], None], tmp_path: Path) -> None:
    """FAULTS 24: then it is no store, and the error says what to do."""
    root = tmp_path / "other"
    root.mkdir()
    make(root / "sessions")
    with pytest.raises(StoreError, match="no folder named sessions"):
        ThreadStore(str(root), Spool(str(tmp_path / "other-spool")))


def test_names_that_are_not_utf8(home: Home) -> None:
    """FAULTS 24: a file name that is no text is listed and harms nobody."""
    target = os.fsencode(home.root) + b"/sessions/caf\xe9"
    os.mkdir(target)
    with open(target + b"/not\xff.jsonl", "wb"):
        pass
    home.changed()
    store = home.open()
    assert "not_a_rollout" in [code for code, _ in store_problems(store)]


# 28: files that change (without open handles: see test_mounted_faults)


@pytest.mark.parametrize("mode", MODES)
def test_grown(home: Home, mode: str) -> None:
    """FAULTS 28: a new look sees what was added, and an old projection is known to be old."""
    log = Log(mode)
    log.turn("one")
    path = home.put(log)
    store = home.open()
    views = Views(store, log.thread)
    old = {view: store.project(log.thread, view) for view in View}
    first = views.effective()
    log.turn("two")
    (home.root / path).write_bytes(log.content)
    home.changed()
    assert not any(store.is_current(log.thread, projection) for projection in old.values())
    assert first == pairs("one")
    assert views.effective() == views.sent() == pairs("one", "two")
    assert views.turns() == done("one", "two")
    assert (
        content(old[View.EFFECTIVE_HISTORY], store.root)
        == views.bytes(View.EFFECTIVE_HISTORY)[: old[View.EFFECTIVE_HISTORY].size]
    )
    home.expected[path] = bytes(log.content)


@pytest.mark.parametrize("mode", MODES)
def test_truncated_while_known(home: Home, mode: str) -> None:
    """FAULTS 28: a file that got shorter is read anew."""
    log = Log(mode)
    log.turn("one")
    size = len(log.content)
    log.turn("two")
    path = home.put(log)
    store = home.open()
    views = Views(store, log.thread)
    assert views.turns() == done("one", "two")
    old = store.project(log.thread, View.EFFECTIVE_HISTORY)
    os.truncate(home.root / path, size)
    home.expected[path] = bytes(log.content[:size])
    home.changed()
    assert not store.is_current(log.thread, old)
    assert views.turns() == done("one")
    assert views.effective() == pairs("one")
    assert len(views.full()) == log.content[:size].count(b"\n")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["rename", "in place"])
def test_replaced_by_another_log(home: Home, how: str, mode: str) -> None:
    """FAULTS 28: another log under the same name, longer than the old one. `cp` over a file keeps its inode, so it
    looks like growth: nothing of the old content may survive in the answers.
    """
    old, new = Log(mode), Log(mode, cwd="/new")
    old.turn("old")
    for text in ("first", "second", "third"):
        new.turn(text)
    path = home.put(old)
    store = home.open()
    views = Views(store, old.thread)
    assert views.turns() == done("old")
    assert views.effective() == pairs("old")
    assert views.thread()["cwd"] == "/repo"
    if how == "rename":
        (home.root / "new").write_bytes(new.content)
        os.rename(home.root / "new", home.root / path)
    else:
        (home.root / path).write_bytes(new.content)
    home.expected[path] = bytes(new.content)
    home.changed()
    store.refresh()
    assert views.effective() == views.sent() == pairs("first", "second", "third")
    assert views.turns() == done("first", "second", "third")
    assert views.thread()["cwd"] == "/new"
    assert views.problems() == []


def test_ancestor_replaced_in_place(home: Home) -> None:
    """FAULTS 28: the same for what a fork has inherited."""
    old, new = Log(), Log()
    old.turn("aaa")
    new.turn("bbb")
    assert len(old.content) == len(new.content)
    path = home.put(old)
    child = Log(PAGINATED, 2, base=old.position())
    child.turn("child")
    home.put(child)
    store = home.open()
    views = Views(store, child.thread)
    assert views.turns() == done("aaa", "child")
    assert views.effective() == pairs("aaa", "child")
    (home.root / path).write_bytes(new.content)
    home.expected[path] = bytes(new.content)
    home.changed()
    assert views.effective() == pairs("bbb", "child")
    assert views.turns() == done("bbb", "child")


def test_archived_and_deleted(home: Home) -> None:
    """FAULTS 28: a file that moved to the archive is the same thread; one that is gone is no thread."""
    log = Log()
    log.turn("one")
    path = home.put(log)
    store = home.open()
    projection = store.project(log.thread, View.THREAD)
    (home.root / "archived_sessions").mkdir()
    os.rename(home.root / path, home.root / "archived_sessions" / home.name(log))
    assert store.refresh()
    assert not store.is_current(log.thread, projection)
    views = Views(store, log.thread)
    assert views.effective() == pairs("one")
    assert views.thread()["archived"] is True
    os.unlink(home.root / "archived_sessions" / home.name(log))
    assert store.refresh()
    assert log.thread not in store
    assert not store.is_current(log.thread, projection)
    home.changed()


def test_deleted_before_a_refresh(home: Home) -> None:
    """FAULTS 28: a file that is gone is a FileNotFoundError, not a surprise."""
    log = Log()
    path = home.put(log)
    store = home.open()
    os.unlink(home.root / path)
    for view in View:
        with pytest.raises((StoreError, OSError)):
            store.project(log.thread, view)
    for call in (store.times, store.links, store.cost):
        with pytest.raises((StoreError, OSError)):
            call(log.thread)
    store.refresh()
    home.changed()


def test_reading_as_a_stranger_sees_no_other_file(home: Home) -> None:
    """FAULTS 24, 31: a base that is a path leads nowhere."""
    secret = home.root / "auth.json"
    secret.write_text('{"timestamp":"t","type":"session_meta"}')
    base = {"thread_id": "../auth.json", "end_ordinal_exclusive": 1, "end_byte_offset": 1}
    log = Log(PAGINATED, 2, base=base, first_ordinal=1)
    home.put(log)
    home.changed()
    views = home.read(log)
    assert views.error(View.EFFECTIVE_HISTORY)


def test_no_descriptor_is_left_open(home: Home) -> None:
    """FAULTS 24, 28: looking at everything, broken lineages included, leaves no file open."""
    for number, base in enumerate((None, {"thread_id": uuid(66), "end_ordinal_exclusive": 1, "end_byte_offset": 1})):
        log = Log(PAGINATED, number + 1, base=base)
        log.turn("one")
        home.put(log, compressed=bool(number))
    store = home.open()
    before = os.listdir("/proc/self/fd")
    _look_at_everything(store)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_walk_in_a_child_process(home: Home) -> None:
    """FAULTS 24: the same in a process of its own, so that a hang would be seen even inside the kernel."""
    fifo = home.root / DAY / home.name(Log())
    fifo.parent.mkdir(parents=True)
    os.mkfifo(fifo)
    home.changed()
    code = (
        "import sys; from threadstore.store import ThreadStore; from threadstore.spool import Spool\n"
        "print(len(ThreadStore(sys.argv[1], Spool(sys.argv[2])).thread_ids()))"
    )
    done_ = subprocess.run(
        [sys.executable, "-c", code, str(home.root), str(home.spool_folder)],
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert orjson.loads(done_.stdout) == 3
