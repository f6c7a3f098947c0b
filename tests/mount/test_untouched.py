"""Reading changes nothing in the store, whatever reads and however busy the store is (DESIGN 2.1, FAULTS 26).

The state of the store is compared before and after: every name, kind, byte, mode, owner and time.  Access times
are set to long ago, so that even a file system that is mounted with `relatime` would renew them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.mount.clients import mixed_store, mounted, need, need_root, outcome, run, serving
from tests.mount.conftest import Lab, until
from tests.mount.namespaces import in_namespace
from tests.mount.plain import raw_files

LONG_AGO = 1_600_000_000 * 10**9
DATABASE = "state_5.sqlite"

#: A run of tools over a whole mount that opens every file in several ways.
TOOLS = (
    "ls -lR",
    "find . -size +1k",
    "grep -r compacted .",
    "tar cf - . | cat",
    "find . -type f | xargs tail -c 10",
    "find . -type f | xargs tac",
    "cat store/heads.jsonl stats.json problems.jsonl",
)

State = dict[str, tuple[object, ...]]


def state(root: Path) -> State:
    """All that can be told of a store, read without a trace. Times in ns; access times come last."""
    found: State = {}
    for path in (root, *sorted(root.rglob("*"))):
        status = path.lstat()
        facts = (status.st_ino, status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_size)
        content = ""
        if path.is_file():
            with open(os.open(path, os.O_RDONLY | os.O_NOATIME), "rb") as file:
                content = hashlib.sha256(file.read()).hexdigest()
        times = (status.st_mtime_ns, status.st_ctime_ns, status.st_atime_ns)
        found[str(path.relative_to(root))] = (*facts, content, *times)
    return found


def without_access_times(found: State) -> State:
    """The same without the times of last access."""
    return {name: facts[:-1] for name, facts in found.items()}


def access_times(found: State) -> dict[str, object]:
    """The times of last access of all rollouts."""
    return {name: facts[-1] for name, facts in found.items() if ".jsonl" in name}


def age(root: Path) -> None:
    """Set every access time to one that reading would renew."""
    for path in (root, *root.rglob("*")):
        os.utime(path, ns=(LONG_AGO, path.stat().st_mtime_ns))


@pytest.fixture
def busy_lab(tmp_path: Path) -> Iterator[tuple[Lab, sqlite3.Connection, str]]:
    """A store of many kinds of threads whose database is in use, with changes that are only in its write-ahead log: a
    connection to it, and the thread that it has renamed.
    """
    root = tmp_path / "store"
    mixed_store(root)
    with closing(sqlite3.connect(root / DATABASE)) as writer, serving(tmp_path / "lab", root) as lab:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("PRAGMA wal_autocheckpoint=0")
        thread = str(writer.execute("SELECT id FROM threads WHERE history_mode='paginated' LIMIT 1").fetchone()[0])
        writer.execute("UPDATE threads SET name = 'a new name' WHERE id = ?", (thread,))
        writer.commit()
        assert (root / f"{DATABASE}-wal").stat().st_size > 0
        age(root)
        yield lab, writer, thread


def read_everything(mount: Path) -> None:
    """Let tools read all of a mount."""
    for command in TOOLS:
        code, output, errors = outcome(command, mount)
        assert (code, errors) == (0, b"")
        assert output


@pytest.mark.slow
def test_tools_leave_the_store_as_it_was(busy_lab: tuple[Lab, sqlite3.Connection, str]) -> None:
    """After a run of tools the store is the same to the byte and nanosecond, with a busy database. Rollouts keep even
    their access times; those of folders and databases are as the store's file system keeps them (`relatime`).
    """
    lab, writer, thread = busy_lab
    before = state(lab.sample.root)
    with mounted(lab) as mount:
        read_everything(mount)
        assert json.loads((mount / "threads" / thread / "thread.json").read_bytes())["name"] == "a new name"
        after = state(lab.sample.root)
        writer.execute("BEGIN IMMEDIATE")  # nobody holds a lock that would keep Codex from writing
        writer.rollback()
    assert without_access_times(after) == without_access_times(before)
    assert access_times(after) == access_times(before)
    assert len(access_times(after)) > 50


def test_an_idle_database_gets_no_companions(tmp_path: Path) -> None:
    """Beside a database in WAL mode that nobody has open, no -wal and no -shm appear, and it isn't touched."""
    root = tmp_path / "store"
    mixed_store(root)
    with closing(sqlite3.connect(root / DATABASE)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
    assert [path.name for path in root.glob("*.sqlite*")] == [DATABASE]
    before = state(root)
    with serving(tmp_path / "lab", root) as lab, mounted(lab) as mount:
        run("find threads -name thread.json | xargs cat", mount)
        run("cat store/heads.jsonl", mount)
    assert without_access_times(state(root)) == without_access_times(before)


@pytest.mark.slow
def test_a_read_only_store_gives_the_same_bytes(busy_lab: tuple[Lab, sqlite3.Connection, str]) -> None:
    """Mounted read-only at another path, with a busy database, a store gives the same tree."""
    lab, _, _ = busy_lab
    need_root("make a mount namespace")
    with mounted(lab) as mount:
        run("mkdir ../writable && cp -a . ../writable", mount)
    folder, store = shlex.quote(str(lab.folder)), shlex.quote(str(lab.sample.root))
    before = state(lab.sample.root)
    in_namespace(
        lab,
        f"""
        mkdir {folder}/bound
        mount --bind {store} {folder}/bound
        mount -o remount,ro,bind {folder}/bound
        ! touch {folder}/bound/file 2>/dev/null
        {shlex.quote(sys.executable)} -m rolloutfs mount {folder}/bound {folder}/mnt
        mkdir {folder}/readonly
        cp -a {folder}/mnt/. {folder}/readonly
        {shlex.quote(sys.executable)} -m rolloutfs umount {folder}/mnt
        """,
    )
    assert run("diff -r --no-dereference writable readonly", lab.folder) == b""
    attributes = "find . -printf '%p %s %T@ %m %y %l\\n' | sort"
    assert run(attributes, lab.folder / "readonly") == run(attributes, lab.folder / "writable")
    assert without_access_times(state(lab.sample.root)) == without_access_times(before)


#: System calls that change a file system, but for `open` and those that take a descriptor that was opened.
CHANGING = "unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,mknod,mknodat,"
CHANGING += (
    "truncate,ftruncate,chmod,fchmod,fchmodat,chown,fchown,lchown,fchownat,utime,utimes,utimensat,futimesat,creat,"
)
CHANGING += "setxattr,lsetxattr,fsetxattr,fallocate,flock"


@pytest.mark.slow
def test_the_server_asks_for_no_change(busy_lab: tuple[Lab, sqlite3.Connection, str]) -> None:
    """No process of the server opens a file of the store to write, locks one, or makes, moves or removes one there."""
    lab, _, _ = busy_lab
    need("strace", "strace")
    trace = lab.folder / "trace"
    calls = f"trace=open,openat,openat2,fcntl,{CHANGING}"
    command = ["strace", "-f", "--seccomp-bpf", "-y", "-qq", "-e", calls, "-o", str(trace)]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("strace may not trace here: allow it (docker run --cap-add SYS_PTRACE)")
    with (lab.folder / "server-trace.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, sys.executable, "-m", "rolloutfs", "mount", "-f", str(lab.sample.root), str(lab.mountpoint)],
            env=lab.environment,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    lab.servers.append(server)
    until(lambda: lab.is_mounted() or server.poll() is not None, "the mount is in the table")
    run("cat README.md", lab.mountpoint)
    run("tar cf - . | cat > /dev/null", lab.mountpoint)
    lab.unmount()
    traced = [
        line for line in trace.read_text().splitlines() if str(lab.sample.root) in line and " resumed>" not in line
    ]
    opened = [call for call in traced if re.search(r" open\w*\(", call)]
    assert sum(".jsonl" in call for call in opened) > 50
    assert any(f"{DATABASE}-wal" in call for call in opened)
    assert [call for call in opened if re.search("O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", call)] == []
    harmless = r" fcntl\(.*(F_GETFD|F_SETFD|F_GETFL|F_DUPFD)"
    assert [call for call in traced if call not in opened and not re.search(harmless, call)] == []


def test_deleting_the_databases_while_mounted_changes_no_history(busy_lab: tuple[Lab, sqlite3.Connection, str]) -> None:
    """Every database can be deleted while mounted: all threads are still there, with the same bytes (DESIGN 2.4)."""
    lab, writer, _ = busy_lab
    names = "find threads -name 'effective_history.jsonl' -o -name 'full_history.jsonl' -o -name 'rollout-*' | sort"
    with mounted(lab) as mount:
        before = run(f"{names} | xargs sha256sum", mount)
        writer.close()
        for path in lab.sample.root.glob("*.sqlite*"):
            path.unlink()
        until(lambda: not json.loads((mount / "stats.json").read_bytes())["database"], "the database is gone")
        assert run(f"{names} | xargs sha256sum", mount) == before
    assert before.count(b"full_history") == len({file.thread for file in raw_files(lab.sample.root)})
