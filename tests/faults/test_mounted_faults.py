"""FAULTS 9, 13, 14, 24, 25, 28 and 31 on a real mount: what programs see of damaged threads, and of files that
change.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import orjson
import zstandard
from threadstore.projection import View

from tests.faults.logs import DERIVED, LEGACY, PAGINATED, Home, Log, done, fingerprint, pairs, text_of, uuid
from tests.mount.conftest import Lab, until
from tests.mount.namespaces import as_nobody, give_to_nobody, open_folder
from tests.tree.sample import SampleStore

DAY = "sessions/2026/11/29"
SOUND = (View.FULL_HISTORY, View.THREAD, View.PROBLEMS)


@contextmanager
def mounted(home: Home, folder: Path) -> Iterator[Lab]:
    """The store of a home, mounted as long as this lasts."""
    place = folder / "lab"
    lab = Lab(place, SampleStore(home.root), place / "mnt")
    for needed in (place, place / "home", lab.mountpoint):
        needed.mkdir()
    home.changed()
    home.open()
    try:
        lab.mount()
        yield lab
    finally:
        lab.clean_up()
    assert lab.logs() == ""


def failure(path: Path) -> int | None:
    """The errno that reading a file ends with; None when it can be read, to the size that `stat` tells."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return error.errno
    assert len(data) == path.stat().st_size
    return None


def texts(path: Path) -> list[str]:
    """The texts of the items in a file of items."""
    return [text_of(orjson.loads(line)) for line in path.read_bytes().splitlines()]


def test_damaged_threads_on_a_mount(home: Home, tmp_path: Path) -> None:
    """FAULTS 9, 13, 14, 24: one mount with everything in it that is broken: derived files that can't be true answer
    EIO, the rest of the thread is there, every other thread is as it was, and nothing hangs.
    """
    broken: dict[str, str] = {}
    position = {"end_ordinal_exclusive": 3, "end_byte_offset": 300}
    parent = Log(PAGINATED, 1)
    parent.turn("parent")
    home.put(parent)
    legacy = Log(LEGACY, 2)
    legacy.turn("legacy")
    home.put(legacy)
    bases = {
        "lineage_missing": {"thread_id": uuid(77)} | position,
        "lineage_cycle": {"thread_id": uuid(11)} | position,
        "lineage_cut": parent.position(offset=len(parent.content) + 1),
        "lineage_legacy": {"thread_id": legacy.thread} | position,
        "lineage_base": {"thread_id": parent.thread, "end_ordinal_exclusive": "3", "end_byte_offset": 3},
    }
    for number, (code, base) in enumerate(bases.items(), 10):
        log = Log(PAGINATED, number, base=base, first_ordinal=3)
        log.turn("child")
        home.put(log)
        broken[log.thread] = code
    bomb = Log(PAGINATED, 20)
    path = home.put_bytes(f"{DAY}/{home.name(bomb)}.zst", zstandard.ZstdCompressor().compress(bytes(512 << 20)))
    home.expected[path] = None
    fifo = home.root / DAY / home.name(Log(number=21))
    os.mkfifo(fifo)
    (home.root / DAY / home.name(Log(number=22))).symlink_to("/etc/passwd")
    (home.root / "auth.json").write_text("TOPSECRET")
    damaged = Log(LEGACY, 30)
    damaged.turn("one")
    spot = damaged.raw(b'{"timestamp":"t","type":"event_msg","payload":{"type":"thread_rolled_back","num_tu')
    damaged.turn("two")
    damaged_path = home.put(damaged)
    with mounted(home, tmp_path) as lab:
        for thread, code in broken.items():
            folder = lab.thread(thread)
            for view in DERIVED:
                assert failure(folder / view.value) == errno.EIO, (code, view)
            for view in SOUND:
                assert failure(folder / view.value) is None, (code, view)
            problems = [orjson.loads(line) for line in (folder / "problems.jsonl").read_bytes().splitlines()]
            assert code in [problem["code"] for problem in problems]
            assert orjson.loads((folder / "thread.json").read_bytes())["health"] == "damaged"
            assert failure(folder / "rollouts" / "current") is None
        folder = lab.thread(bomb.thread)
        assert failure(folder / "effective_history.jsonl") is not None
        assert failure(folder / "rollouts" / "current") is not None
        assert [orjson.loads(line)["code"] for line in (folder / "problems.jsonl").read_bytes().splitlines()] == [
            "too_large"
        ]
        folder = lab.thread(damaged.thread)
        assert texts(folder / "effective_history.jsonl") == pairs("one", "two")
        [problem] = [orjson.loads(line) for line in (folder / "problems.jsonl").read_bytes().splitlines()]
        assert (problem["code"], problem["file"], problem["offset"], problem["length"]) == (
            "torn_tail",
            damaged_path,
            *spot,
        )
        assert orjson.loads((folder / "thread.json").read_bytes())["replay"]["uncertain"] is True
        assert (folder / "rollouts" / "current").read_bytes() == bytes(damaged.content)
        script = (
            f"find {shlex.quote(str(lab.mountpoint))} -type f -print0 | xargs -0 cat 2>/dev/null | grep -c TOPSECRET"
        )
        found = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=False, text=True)
        assert found.stdout.strip() == "0"


def test_modes_whatever_the_source_says(home: Home, tmp_path: Path) -> None:
    """FAULTS 31: folders are 0700 and files 0400, those below `store/` their own mode without group and other
    (DESIGN 3), even when the store is open to everybody.
    """
    log = Log(PAGINATED)
    log.turn("one")
    packed = Log(PAGINATED, 2)
    packed.turn("two")
    for path in (home.put(log), home.put(packed, compressed=True)):
        os.chmod(home.root / path, 0o6777)
    for folder, folders, _ in os.walk(home.root):
        for name in folders:
            os.chmod(os.path.join(folder, name), 0o777)
    with mounted(home, tmp_path) as lab:
        modes: dict[str, set[int]] = {"folder": set(), "file": set(), "store": set()}
        for folder, _folders, files in os.walk(lab.mountpoint):
            modes["folder"].add(os.lstat(folder).st_mode & 0o7777)
            for name in files:
                path_ = Path(folder, name)
                if not path_.is_symlink():
                    kind = "store" if path_.is_relative_to(lab.mountpoint / "store") else "file"
                    modes[kind].add(path_.stat().st_mode & 0o7777)
                    assert path_.stat().st_uid == os.getuid()
        assert modes["folder"] == {0o700}
        assert modes["file"] == {0o400, 0o600}  # 0600: the control files, which take requests
        assert modes["store"] == {0o400, 0o600, 0o700}  # the files' own, without group and other, setuid and sticky
        for spool in lab.spools():
            assert spool.stat().st_mode & 0o777 == 0o700
            assert all(path_.stat().st_mode & 0o077 == 0 for path_ in spool.rglob("*"))


def test_unreadable_file_is_its_own_fault_only(tmp_path: Path) -> None:
    """FAULTS 25: served by a user who may not read one of the rollouts: EACCES there (EIO on what is derived from
    it would hide the reason), its problems say why; a folder that can't be read hides only its own threads.
    """
    with open_folder() as folder:
        home = Home(folder / "h")
        log, other, hidden = Log(PAGINATED, 1), Log(PAGINATED, 2), Log(PAGINATED, 3)
        for each in (log, other, hidden):
            each.turn("one")
        path = home.put(log)
        home.put(other)
        home.put(hidden, folder="sessions/2026/11/30")
        lab = Lab(folder, SampleStore(home.root), folder / "mnt")
        (folder / "home").mkdir()
        lab.mountpoint.mkdir()
        shutil.rmtree(folder / "h" / "first-spool", ignore_errors=True)
        give_to_nobody(lab, lab.mountpoint, folder / "home")
        for place, _folders, files in os.walk(folder / "h"):
            os.chmod(place, 0o755)
            for name in files:
                os.chmod(os.path.join(place, name), 0o644)
        os.chmod(home.root / path, 0)
        os.chmod(home.root / "sessions/2026/11/30", 0)
        script = f"""
        cd {shlex.quote(str(folder))}
        $PYTHON -m rolloutfs mount {shlex.quote(str(home.root))} mnt >&2
        trap '$PYTHON -m rolloutfs umount mnt >&2' EXIT
        $PYTHON - <<'END'
import json, pathlib
def answer(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError as error:
        return error.errno
threads = pathlib.Path("mnt/threads")
print(json.dumps({{
    "threads": sorted(path.name for path in threads.iterdir()),
    "raw": answer(threads / "{log.thread}/rollouts/current"),
    "effective": answer(threads / "{log.thread}/effective_history.jsonl"),
    "problems": answer(threads / "{log.thread}/problems.jsonl"),
    "other": answer(threads / "{other.thread}/effective_history.jsonl"),
    "store": answer("mnt/problems.jsonl"),
}}))
END
        """
        answers = orjson.loads(as_nobody(lab, script))
        assert hidden.thread not in answers["threads"]
        assert {log.thread, other.thread} <= set(answers["threads"])
        assert answers["raw"] == errno.EACCES
        assert answers["effective"] in (errno.EACCES, errno.EIO)
        assert [orjson.loads(line)["code"] for line in answers["problems"].splitlines()] == ["no_permission"]
        assert [text_of(orjson.loads(line)) for line in answers["other"].splitlines()] == pairs("one")
        assert "no_permission" in [orjson.loads(line)["code"] for line in answers["store"].splitlines()]


# 28: with open handles


def _truncate(_home: Home, path: Path, _log: Log) -> None:
    os.truncate(path, 700)


def _grow(_home: Home, path: Path, log: Log) -> None:
    size = len(log.content)
    log.turn("grown")
    with path.open("ab") as file:
        file.write(log.content[size:])


def _replace(_home: Home, path: Path, log: Log) -> None:
    other = Log(log.mode)
    other.turn("another log")
    other.turn("and more")
    other.turn("and more")
    path.with_suffix(".tmp").write_bytes(other.content)
    os.rename(path.with_suffix(".tmp"), path)
    log.content = other.content


def _archive(home: Home, path: Path, _log: Log) -> None:
    (home.root / "archived_sessions").mkdir(exist_ok=True)
    os.rename(path, home.root / "archived_sessions" / path.name)


def _compress(home: Home, path: Path, log: Log) -> None:
    home.put(log, compressed=True)
    path.unlink()


def _delete(_home: Home, path: Path, _log: Log) -> None:
    path.unlink()


CHANGES = [_truncate, _grow, _replace, _archive, _compress, _delete]


def test_open_handles_keep_what_they_opened(home: Home, tmp_path: Path) -> None:
    """FAULTS 28: whatever happens to a file, a handle gives the prefix that it opened or an error, never other
    bytes; a new open sees the new state, whole and of the size that `stat` tells.
    """
    logs = {}
    for number, change in enumerate(CHANGES, 1):
        log = Log(LEGACY, number)
        log.turn("first")
        log.turn("second")
        logs[change] = log, home.root / home.put(log)
    with mounted(home, tmp_path) as lab:
        for change, (log, path) in logs.items():
            thread = lab.thread(log.thread)
            names = ("rollouts/current", "effective_history.jsonl", "full_history.jsonl")
            before = {name: (thread / name).read_bytes() for name in names}
            handles = {name: os.open(thread / name, os.O_RDONLY) for name in names}
            try:
                change(home, path, log)
                for name, handle in handles.items():
                    data = _content(handle)
                    if data is not None:
                        whole = min(len(data), len(before[name]))
                        assert data[:whole] == before[name][:whole], (change, name)
                        assert len(data) >= len(before[name]) or change is _truncate
            finally:
                for handle in handles.values():
                    os.close(handle)
            if change is _delete:
                until(partial(_is_missing, thread), "the deleted thread is gone")
                continue
            expected = bytes(log.content[:700] if change is _truncate else log.content)
            until(partial(_settled, thread, expected), f"{change.__name__} is seen")
            assert failure(thread / "effective_history.jsonl") is None
    home.changed()
    home.expected = {path: data for path, data in home.expected.items() if (home.root / path).exists()}
    for change, (log, path) in logs.items():
        if path.exists():
            home.expected[str(path.relative_to(home.root))] = bytes(
                log.content[:700] if change is _truncate else log.content
            )


def _content(handle: int) -> bytes | None:
    """What an open file says now; None when it says that it no longer can."""
    try:
        return os.pread(handle, 1 << 20, 0)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ESTALE):
            return None
        raise


def _is_missing(thread: Path) -> bool:
    return not thread.exists()


def _settled(thread: Path, expected: bytes) -> bool:
    try:
        return (thread / "rollouts/current").read_bytes() == expected
    except OSError:
        return False


def test_reading_the_mount_changes_nothing(home: Home, tmp_path: Path) -> None:
    """FAULTS 31, DESIGN rule 1: after everything was read through the mount, the store is as it was, to the
    nanosecond.
    """
    log = Log(PAGINATED)
    log.turn("one")
    log.raw(b"damage")
    home.put(log)
    home.put(Log(LEGACY, 2), compressed=True)
    home.changed()
    before = fingerprint(home.root)
    with mounted(home, tmp_path) as lab:
        script = f"cd {shlex.quote(str(lab.mountpoint))} && grep -r nothing . ; tar cf - . | wc -c"
        subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=True)
        assert texts(lab.thread(log.thread) / "model_input.jsonl") == pairs("one")
        turns = [orjson.loads(line) for line in (lab.thread(log.thread) / "turns.jsonl").read_bytes().splitlines()]
        assert [(turn["id"], turn["status"]) for turn in turns] == done("one")
    assert fingerprint(home.root) == before
