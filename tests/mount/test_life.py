"""A mount from its beginning to its end, and what happens when something goes wrong (FUSE 6.5, FAULTS 24, 25, 28)."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutfs.worker import WAITED_FOR
from tests.mount.conftest import DEADLINE, Lab, children, is_gone, until
from tests.mount.control_lab import big_thread, has_a_job, workers
from tests.tree.sample import message

READ = "import sys; sys.stdout.write(open(sys.argv[1]).read())"


def snapshot(folder: Path) -> dict[str, tuple[int, ...]]:
    """Number, kind, size, times and link count of everything below a folder."""
    found: dict[str, tuple[int, ...]] = {}
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files, "."):
            status = os.lstat(os.path.join(top, name))
            found[os.path.relpath(os.path.join(top, name), folder)] = (
                status.st_ino,
                status.st_mode,
                status.st_nlink,
                status.st_size,
                status.st_mtime_ns,
                status.st_ctime_ns,
                status.st_atime_ns,
            )
    return found


# The beginning


def test_background_returns_once_the_mount_answers(lab: Lab) -> None:
    """After `rolloutfs mount` the next command can use the tree, and nothing of the terminal is held on to."""
    thread = lab.sample.add(1, "hello")
    result = lab.run("mount", lab.sample.root, lab.mountpoint)
    assert str(lab.mountpoint) in result.stdout
    assert "hello" in (lab.thread(thread) / "effective_history.jsonl").read_text()
    server = lab.background_server()
    assert os.getsid(server) != os.getsid(0)
    lab.run("umount", lab.mountpoint)
    until(lambda: is_gone(server), "the server ends")
    until(lambda: lab.spools() == [], "the spool is removed")
    assert os.listdir(lab.mountpoint) == []


def test_store_defaults_to_codex_home(lab: Lab) -> None:
    """With one argument it is the mountpoint; the store is $CODEX_HOME, then ~/.codex."""
    thread = lab.sample.add(1)
    lab.run("mount", lab.mountpoint, CODEX_HOME=str(lab.sample.root))
    assert os.listdir(lab.mountpoint / "threads") == [thread]
    lab.run("umount", lab.mountpoint)
    (lab.folder / "home" / ".codex").symlink_to(lab.sample.root)
    lab.run("mount", lab.mountpoint)
    assert os.listdir(lab.mountpoint / "threads") == [thread]


def test_generic_options_are_accepted_and_unknown_ones_refused(lab: Lab) -> None:
    """What /etc/fstab and mount(8) pass is no error; a typo is."""
    lab.run("mount", "-o", "rw,dev,suid,noauto", "-o", "x-systemd.automount,nofail", lab.sample.root, lab.mountpoint)
    lab.run("umount", lab.mountpoint)
    assert "allow_othr" in lab.run("mount", "-o", "allow_othr", lab.sample.root, lab.mountpoint, code=2).stderr


def test_refusals_say_what_to_do(lab: Lab) -> None:
    """Each refusal is one sentence that names the path and the way out, with an exit code of its own; nothing is
    mounted.
    """
    store, mountpoint = lab.sample.root, lab.mountpoint
    (lab.folder / "empty").mkdir()
    (lab.folder / "file").write_text("")
    (lab.folder / "full").mkdir()
    (lab.folder / "full" / "precious").write_text("")
    inside = store / "sessions" / "mnt"
    inside.mkdir()
    (lab.folder / "way").symlink_to(store / "sessions")
    cases: list[tuple[Path, Path, int, str]] = [
        (lab.folder / "nowhere", mountpoint, 3, "There is no store"),
        (lab.folder / "empty", mountpoint, 3, "sessions/"),
        (store, lab.folder / "missing", 4, "mkdir -p"),
        (store, lab.folder / "file", 4, "not a folder"),
        (store, lab.folder / "full", 4, "not empty"),
        (store, inside, 4, "inside the store"),
        (store, lab.folder / "way" / "mnt", 4, "inside the store"),
        (store, store, 4, "inside the store"),
        (store, lab.folder, 4, "the mount would cover it"),
    ]
    for source, target, code, sentence in cases:
        result = lab.run("mount", source, target, code=code)
        assert sentence in result.stderr, (source, target)
        assert "Traceback" not in result.stderr
        assert not os.path.ismount(target)
    assert lab.spools() == []


def test_a_live_mount_is_not_mounted_over(lab: Lab) -> None:
    """The second mount is refused and says how to end the first one, which goes on."""
    lab.mount()
    for options in ((), ("--replace",)):
        assert "rolloutfs umount" in lab.run("mount", *options, lab.sample.root, lab.mountpoint, code=4).stderr
    assert (lab.mountpoint / "README.md").exists()


@pytest.mark.parametrize("change", ["missing", "forbidden"])
def test_a_fuse_device_that_cannot_be_used_is_named(lab: Lab, change: str) -> None:
    """Without /dev/fuse, or without the right to open it, the sentence says which."""
    patch = {
        "missing": "from rolloutfs import checks; checks.FUSE_DEVICE = '/dev/no-fuse'",
        "forbidden": "from rolloutfs import checks; checks.os.access = lambda path, mode: path != '/dev/fuse'",
    }[change]
    script = f"{patch}\nfrom rolloutfs.cli import main\nmain()"
    result = subprocess.run(
        [sys.executable, "-c", script, "mount", str(lab.sample.root), str(lab.mountpoint)],
        env=lab.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )
    assert result.returncode == 5
    assert {"missing": "/dev/no-fuse does not exist", "forbidden": "may not open /dev/fuse"}[change] in result.stderr


# The end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_unmount_cleanly(lab: Lab, number: signal.Signals) -> None:
    """The server unmounts, removes its spool and ends with 0."""
    lab.sample.add(1)
    server = lab.mount()
    server.send_signal(number)
    assert server.wait(DEADLINE) == 0
    assert not lab.is_mounted()
    assert os.listdir(lab.mountpoint) == []
    assert lab.spools() == []


def test_a_signal_does_not_wait_for_a_replay(lab: Lab) -> None:
    """A request that a (stopped) worker never answers is cut off with an error when the server is told to end."""
    thread = big_thread(lab)
    server = lab.mount("--no-index")
    (lab.thread(thread) / "turns.jsonl").read_bytes()
    (worker,) = workers(server.pid)
    os.kill(worker, signal.SIGSTOP)
    client = lab.client(READ, lab.thread(thread) / "usage.json")
    wait_for_request(client)
    server.terminate()
    assert server.wait(DEADLINE) == 0
    _, error = client.communicate(timeout=DEADLINE)
    assert client.returncode == 1
    assert "[Errno " in error
    assert is_gone(worker)


def test_umount_of_a_busy_mount_says_so_and_offers_lazy(lab: Lab) -> None:
    """An open file keeps the mount; -z detaches it, and the file is still readable to its end."""
    thread = lab.sample.add(1, "hello")
    server = lab.mount()
    with (lab.thread(thread) / "effective_history.jsonl").open() as file:
        result = lab.run("umount", lab.mountpoint, code=7)
        assert "rolloutfs umount -z" in result.stderr
        lab.run("umount", "-z", lab.mountpoint)
        assert not lab.is_mounted()
        assert "hello" in file.read()
    assert server.wait(DEADLINE) == 0


_ABORTED = """
import errno, os, pyfuse3
answer = pyfuse3.main
async def aborted():
    await answer()
    raise ExceptionGroup("", [OSError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))])
pyfuse3.main = aborted
"""


def test_a_request_cut_off_by_the_end_is_the_end(lab: Lab) -> None:
    """The kernel may say ECONNABORTED, not ENODEV, when the mount goes while a request is being read."""
    server = lab.mount(patch=_ABORTED)
    lab.run("umount", lab.mountpoint)
    assert server.wait(DEADLINE) == 0


def test_umount_leaves_other_file_systems_alone(lab: Lab) -> None:
    """Only a rolloutfs mount is unmounted."""
    assert "Nothing is mounted" in lab.run("umount", lab.mountpoint, code=4).stderr
    assert "not rolloutfs" in lab.run("umount", "/proc", code=4).stderr


def test_a_killed_server_leaves_a_dead_mount_that_replace_clears(lab: Lab) -> None:
    """kill -9: every access fails, never an empty folder. The next mount shows the command; --replace does it."""
    lab.sample.add(1)
    server = lab.mount()
    server.kill()
    server.wait()
    with pytest.raises(OSError, match="not connected") as caught:
        os.listdir(lab.mountpoint)
    assert caught.value.errno == errno.ENOTCONN
    refused = lab.run("mount", lab.sample.root, lab.mountpoint, code=6).stderr
    command = ["umount", str(lab.mountpoint)]
    assert f"rolloutfs {shlex.join(command)}\n" in refused
    left_over = lab.spools()
    assert len(left_over) == 1
    pid = lab.background("--replace")
    assert len(os.listdir(lab.mountpoint / "threads")) == 1
    assert left_over[0] not in lab.spools()
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "the server ends")
    lab.run(*command)
    assert os.listdir(lab.mountpoint) == []


def test_umount_clears_a_dead_mount(lab: Lab) -> None:
    """`rolloutfs umount` works on what a killed server left."""
    server = lab.mount()
    server.kill()
    server.wait()
    lab.run("umount", lab.mountpoint)
    assert not lab.is_mounted()


def test_an_error_of_ours_leaves_the_mount_dead(lab: Lab) -> None:
    """When the server ends by an exception, the mountpoint doesn't turn into an empty folder, and the exit code
    isn't 0.
    """
    lab.expected += ["Traceback", "Boom"]
    server = lab.mount(patch="import pyfuse3\ndef boom(): raise Exception('Boom')\npyfuse3.terminate = boom")
    server.terminate()
    assert server.wait(DEADLINE) == 1
    with pytest.raises(OSError, match="not connected"):
        os.listdir(lab.mountpoint)


def test_an_exception_in_a_handler_fails_only_its_request(lab: Lab) -> None:
    """A bug in reading one file is logged and answered with EIO; the mount lives on."""
    lab.expected += ["Traceback", "ZeroDivisionError"]
    thread = lab.sample.add(1, "hello")
    lab.mount(patch="from rolloutfs import readers\nreaders._LiteralReader.read = lambda self, offset, length: 1 / 0")
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output") as caught:
            (lab.mountpoint / "README.md").read_bytes()
        assert caught.value.errno == errno.EIO
        assert "hello" in (lab.thread(thread) / "effective_history.jsonl").read_text()
    assert "ZeroDivisionError" in lab.logs()


# Workers


def wait_for_request(client: subprocess.Popen[str]) -> None:
    """Wait until a client waits for an answer of the mount."""
    until(lambda: "request" in Path(f"/proc/{client.pid}/wchan").read_text(), "the client waits for the mount")


def test_workers_are_polite_and_hold_nothing_of_the_mount(lab: Lab) -> None:
    """A worker has a low priority and doesn't hold the FUSE device, which would keep a dead mount hanging."""
    thread = big_thread(lab)
    server = lab.mount("--no-index")
    (lab.thread(thread) / "effective_history.jsonl").read_bytes()
    (worker,) = workers(server.pid)
    assert os.getpriority(os.PRIO_PROCESS, worker) == min(os.getpriority(os.PRIO_PROCESS, server.pid) + WAITED_FOR, 19)
    for pid in children(server.pid):
        targets = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        assert "/dev/fuse" not in targets


def test_disk_space_of_a_deleted_log_is_not_kept(lab: Lab) -> None:
    """What was read of a log stays open for a while; once it is deleted, no longer than it takes to hear of that."""
    threads = [lab.sample.add(number, "hello") for number in (1, 2)]
    server = lab.mount()
    for thread in threads:
        (lab.thread(thread) / "effective_history.jsonl").read_bytes()
    path = str(lab.sample.path(threads[0]))

    def held() -> list[str]:
        return [target for entry in Path(f"/proc/{server.pid}/fd").iterdir() if path in (target := os.readlink(entry))]

    assert held() == [path]
    lab.edits = True
    lab.sample.path(threads[0]).unlink()
    until(lambda: held() == [], "the deleted log is closed")


_STUCK = """
import os, trio
from rolloutfs import operations, shortcuts
answered = operations.Operations.read
async def read(self, fh, off, size):
    if off and os.path.exists({marker!r}):
        await trio.sleep_forever()
    return await answered(self, fh, off, size)
operations.Operations.read = read
shortcuts.Shortcuts.read_now = lambda *_: None
"""
_READ_AT_THE_END = (
    "import os, sys; os.pread(os.open(sys.argv[1], os.O_RDONLY), 4096, os.stat(sys.argv[1]).st_size - 4096)"
)


def test_a_server_that_is_killed_but_cannot_go_keeps_nobody_waiting(lab: Lab) -> None:
    """One of its threads waits, unkillably, for a page that a program is reading: both end, since the connection is
    aborted by whoever is left.
    """
    thread = big_thread(lab)
    marker = lab.folder / "stuck"
    server = lab.mount(patch=_STUCK.format(marker=str(marker)))
    path = lab.thread(thread) / "rollouts" / "current"
    worker = children(server.pid)
    until(lambda: children(server.pid), "a worker starts")
    marker.touch()
    reader = lab.client(_READ_AT_THE_END, path)
    try:
        until(lambda: "folio" in _waits_in(reader.pid), "the reader waits for its page")
        with lab.sample.path(thread).open("ab") as file:
            file.write(message("one more"))
        other = lab.client("import os, sys\nwhile True: os.stat(sys.argv[1])", path)
        threads = Path(f"/proc/{server.pid}/task")
        until(lambda: any("folio" in _waits_in(int(one.name)) for one in threads.iterdir()), "a thread waits for it")
        server.kill()
        assert "Error" in reader.communicate(timeout=DEADLINE)[1]
        assert "Error" in other.communicate(timeout=DEADLINE)[1]
        server.wait(DEADLINE)
        until(lambda: all(map(is_gone, worker)), "the workers end")
    finally:
        subprocess.run(["umount", "-f", lab.mountpoint], check=False, capture_output=True)


def _waits_in(task: int) -> str:
    """The function of the kernel that a thread waits in."""
    try:
        return Path(f"/proc/{task}/wchan").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_killed_worker_fails_its_request_and_is_replaced(lab: Lab) -> None:
    """kill -9 while it computes: EIO for what was in flight, and the next request is answered."""
    lab.expected.append("A worker process died")
    thread = big_thread(lab)
    server = lab.mount("--no-index")
    (lab.thread(thread) / "turns.jsonl").read_bytes()
    (worker,) = workers(server.pid)
    os.kill(worker, signal.SIGSTOP)
    clients = [lab.client(READ, lab.thread(thread) / "usage.json") for _ in range(3)]
    for client in clients:
        wait_for_request(client)
    assert len(os.listdir(lab.mountpoint / "threads")) == 1  # the others are served meanwhile
    until(lambda: has_a_job(worker), "the worker was given its job")
    os.kill(worker, signal.SIGKILL)
    for client in clients:
        _, error = client.communicate(timeout=DEADLINE)
        assert client.returncode == 1
        assert "Errno 5" in error
    assert (lab.thread(thread) / "usage.json").read_bytes()
    assert workers(server.pid) not in ([], [worker])


def test_workers_end_with_a_killed_server(lab: Lab) -> None:
    """Also when the server gets no chance to tell them."""
    thread = big_thread(lab)
    server = lab.mount("--no-index")
    (lab.thread(thread) / "turns.jsonl").read_bytes()
    left = children(server.pid)
    assert workers(server.pid)
    server.kill()
    server.wait()
    until(lambda: all(is_gone(pid) for pid in left), "the workers end")


# What stays


def test_numbers_and_times_are_the_same_after_a_remount(lab: Lab) -> None:
    """Inode, mtime, ctime, size and link count: else backup programs read everything again (FUSE 6.4)."""
    origin = lab.sample.add(1, "hello")
    for number in range(2, 8):
        lab.sample.add(number, "hello", forked_from_id=origin)
    lab.mount()
    first = snapshot(lab.mountpoint)
    lab.unmount()
    lab.mount()
    for path in sorted(first, reverse=True):  # another order of look-ups
        os.lstat(lab.mountpoint / path)
    assert snapshot(lab.mountpoint) == first
    assert len(first) > 100
    for _, mode, *_ in first.values():
        assert mode & 0o077 == 0 or stat.S_ISLNK(mode)


def test_listing_and_stat_agree(lab: Lab) -> None:
    """d_ino of a listing is st_ino and never 0; link counts are those of a POSIX file system, or 1, which means that
    nobody has counted: for a view that would mean looking at every thread.
    """
    origin = lab.sample.add(1)
    lab.sample.add(2, forked_from_id=origin)
    lab.mount()
    for top, folders, _ in os.walk(lab.mountpoint):
        with os.scandir(top) as listing:
            for entry in listing:
                status = os.lstat(entry.path)
                assert entry.inode() == status.st_ino != 0
                assert entry.is_dir(follow_symlinks=False) == os.path.isdir(entry.path) or entry.is_symlink()
        real = [name for name in folders if not os.path.islink(os.path.join(top, name))]
        uncounted = Path(top).parent == lab.mountpoint and Path(top).name.startswith(("by-", "recent", "archived"))
        assert os.lstat(top).st_nlink == (1 if uncounted else 2 + len(real))


@pytest.mark.parametrize("options", [(), ("--read-only",), ("-o", "ro")])
def test_nothing_can_be_written(lab: Lab, options: tuple[str, ...]) -> None:
    """Every way to change something answers EROFS in a read-only mount; in others the tree can't be changed, either."""
    thread = lab.sample.add(1)
    lab.mount(*options)
    codes = {errno.EROFS} if options else {errno.EPERM, errno.EACCES}
    file = lab.thread(thread) / "thread.json"
    attempts: list[Callable[[], object]] = [
        lambda: file.open("a").close(),
        lambda: file.unlink(),
        lambda: os.truncate(file, 0),
        lambda: os.chmod(file, 0o777),
        lambda: os.utime(file),
        lambda: (lab.mountpoint / "x").mkdir(),
        lambda: (lab.mountpoint / "x").write_text(""),
        lambda: file.rename(lab.mountpoint / "y"),
        lambda: os.symlink("a", lab.mountpoint / "z"),
        lambda: shutil.rmtree(lab.thread(thread)),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match=r"Read-only|not permitted|denied") as caught:
            attempt()
        assert caught.value.errno in codes


# A store that changes (FAULTS 28)


def test_growth_is_seen_by_new_opens_at_once_and_by_open_files_soon(lab: Lab) -> None:
    """An open shows what is there now; a file that is open grows, with a size that never lies."""
    thread = lab.sample.add(1, "hello")
    lab.mount()
    for name in ("effective_history.jsonl", f"rollouts/{lab.sample.path(thread).name}"):
        path = lab.thread(thread) / name
        with path.open("rb") as file:
            before = file.read()
            for number in range(5):
                lab.sample.append(thread, f"more {number}")
                assert f"more {number}".encode() in path.read_bytes()
            until(lambda file=file, before=before: os.fstat(file.fileno()).st_size > len(before), "the open file grows")  # type: ignore[misc]
            assert before + file.read() == path.read_bytes()


def test_tail_follows_a_thread(lab: Lab) -> None:
    """`tail -f` prints what is appended, once, in order."""
    thread = lab.sample.add(1, "hello")
    lab.mount()
    for name in ("effective_history.jsonl", f"rollouts/{lab.sample.path(thread).name}"):
        path = lab.thread(thread) / name
        tail = subprocess.Popen(["tail", "-n", "+1", "-s", "0.05", "-f", str(path)], stdout=subprocess.PIPE)
        assert tail.stdout is not None
        size = path.stat().st_size
        seen = tail.stdout.read(size)
        added = [f"{name} {number}" for number in range(3)]
        for text in added:
            lab.sample.append(thread, text)
            seen += tail.stdout.readline()
        tail.kill()
        tail.wait()
        tail.stdout.close()
        assert seen == path.read_bytes()


def test_replaced_content_is_not_mixed_with_the_old_one(lab: Lab) -> None:
    """An open file keeps its bytes and its size, a new open has the new ones, mapped memory too; then the number
    returns.
    """
    lab.edits = True
    import mmap

    thread = lab.sample.add(1, *(f"old {number}" * 50 for number in range(100)))
    lab.mount()
    for name in ("effective_history.jsonl", f"rollouts/{lab.sample.path(thread).name}"):
        path = lab.thread(thread) / name
        number = path.stat().st_ino
        old = path.read_bytes()
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            start = file.read(10)
            lab.sample.replace(thread, *(f"new {name}" * 70 for _ in range(90)))
            with path.open("rb") as other:
                new = other.read()
                assert os.fstat(other.fileno()).st_size == len(new)
                assert os.fstat(other.fileno()).st_ino != number
            assert new == path.read_bytes() != old
            assert start + file.read() == old
            assert os.fstat(file.fileno()).st_size == len(old)
            assert mapped[:] == old
            mapped.close()
        assert path.read_bytes() == new
        until(lambda path=path, number=number: path.stat().st_ino == number, "the file has its own number again")  # type: ignore[misc]
        assert path.stat().st_size == len(new)


def test_a_file_cut_in_place_never_gives_wrong_bytes(lab: Lab) -> None:
    """The old bytes are gone: who reads on gets what was read before or EIO, a new open the new state."""
    lab.edits = True
    thread = lab.sample.add(1, *(f"old {number}" * 200 for number in range(300)))
    lab.mount()
    source = lab.sample.path(thread)
    path = lab.thread(thread) / "rollouts" / source.name
    old = source.read_bytes()
    with path.open("rb", buffering=0) as file:
        start = file.read(4096)
        with source.open("r+b") as raw:
            raw.truncate(old.index(b"\n", 20_000) + 1)
            raw.seek(0, os.SEEK_END)
            raw.write(b'{"timestamp":"2026-11-29T22:00:00.000Z","type":"event_msg","payload":{}}\n' * 9000)
        assert path.read_bytes() == source.read_bytes()
        got = [start]

        def read_on() -> None:
            while piece := file.read(4096):
                got.append(piece)

        with pytest.raises(OSError, match="Input/output"):
            read_on()
        assert old.startswith(b"".join(got))


def test_archived_compressed_and_deleted_while_open(lab: Lab) -> None:
    """The open file reads on; the path shows the present state."""
    lab.edits = True
    import zstandard

    thread = lab.sample.add(1, *("words " * 100 for _ in range(50)))
    lab.mount()
    source = lab.sample.path(thread)
    raw = source.read_bytes()
    path = lab.thread(thread) / "rollouts" / source.name
    with path.open("rb") as first:
        archive = lab.sample.root / "archived_sessions"
        archive.mkdir()
        source = source.rename(archive / source.name)
        until(lambda: (lab.mountpoint / "store/archived_sessions" / source.name).exists(), "the archived file is seen")
        with path.open("rb") as second:
            assert os.fstat(second.fileno()).st_ino == os.fstat(first.fileno()).st_ino
            Path(f"{source}.zst").write_bytes(zstandard.compress(raw))
            source.unlink()
            until(lambda: path.exists() and path.read_bytes() == raw, "the compressed rollout is shown decoded")
            Path(f"{source}.zst").unlink()
            until(lambda: not path.exists(), "the thread is gone")
            assert second.read() == raw
            assert os.fstat(second.fileno()).st_size == len(raw)
        assert first.read() == raw


def test_new_and_removed_threads_are_seen(lab: Lab) -> None:
    """A thread that starts is there for a look-up at once, and one that is deleted goes."""
    lab.sample.add(1)
    lab.mount()
    assert len(os.listdir(lab.mountpoint / "threads")) == 1
    thread = lab.sample.add(2, "hello")
    until(lambda: (lab.thread(thread) / "effective_history.jsonl").exists(), "the new thread is seen")
    assert len(os.listdir(lab.mountpoint / "threads")) == 2
    lab.sample.path(thread).unlink()
    until(lambda: not lab.thread(thread).exists(), "the thread is gone")


def test_readers_and_a_writer_at_the_same_time(lab: Lab) -> None:
    """While a log grows and is replaced, every complete read is a state that the log had, and nothing fails."""
    lab.edits = True
    thread = lab.sample.add(1, "start")
    lab.mount()
    path = lab.thread(thread) / "rollouts" / lab.sample.path(thread).name
    states: list[bytes] = [lab.sample.path(thread).read_bytes()]
    stop = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not stop.is_set():
            content = path.read_bytes()
            if not any(state.startswith(content) for state in list(states)):
                wrong.append(f"{len(content)} bytes")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for one in readers:
        one.start()
    for number in range(150):
        if number % 10:
            fresh = states[-1] + b'{"timestamp":"2026-11-29T22:00:00.000Z","type":"event_msg","payload":{}}\n' * number
            states.append(fresh)
            with lab.sample.path(thread).open("ab") as file:
                file.write(fresh[len(states[-2]) :])
        else:
            fresh = states[0][: len(states[0]) // 2] + b"%d" % number * (number + 1) + b"\n"
            states.append(fresh)
            temporary = lab.sample.root / "temporary"
            temporary.write_bytes(fresh)
            os.rename(temporary, lab.sample.path(thread))
    stop.set()
    for one in readers:
        one.join()
    assert wrong == []
    assert path.read_bytes() == states[-1]


# Permissions (FAULTS 24, 25)


def unprivileged_python() -> list[str] | None:
    """A command that runs an interpreter that can load us as user 65534, in a mount namespace with a usable
    /dev/fuse.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None or shutil.which("unshare") is None:
        return None
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    check = subprocess.run(
        [*drop, "-c", "import pyfuse3, threadstore, rolloutfs"], capture_output=True, check=False, cwd="/"
    )
    return drop if check.returncode == 0 else None


def test_an_unprivileged_user_can_mount_through_fusermount3(lab: Lab) -> None:
    """Mounted by uid 65534: the tree is theirs, what they may not read is EACCES on that file only, and they can
    unmount.
    """
    python = unprivileged_python()
    if python is None:
        pytest.skip("needs root, setpriv, unshare, and an interpreter that every user can run (not below /root)")
    readable, secret = lab.sample.add(1, "hello"), lab.sample.add(2, "hello")
    for path in (lab.mountpoint, lab.folder / "home", *lab.sample.root.rglob("*"), lab.sample.root):
        os.chown(path, 65534, 65534)
    os.chown(lab.sample.path(secret), 0, 0)
    lab.sample.path(secret).chmod(0o600)
    for folder in (lab.folder, *lab.folder.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            if not str(folder).startswith(str(lab.folder.parent.parent)):
                pytest.skip(f"{folder} can't be entered by other users: set --basetemp to a folder that can")
            folder.chmod(folder.stat().st_mode | 0o055)
    for name in ("cache", "state"):
        (lab.folder / name).mkdir(exist_ok=True)
        os.chown(lab.folder / name, 65534, 65534)
    script = f"""
        set -e
        node={shlex.quote(str(lab.folder))}/fuse
        mknod -m 0666 "$node" c 10 229
        mount --bind "$node" /dev/fuse
        cd /
        run() {{ {shlex.join(python)} "$@"; }}
        run -m rolloutfs mount {lab.sample.root} {lab.mountpoint}
        run -c '
import os, sys
mount, good, bad = sys.argv[1:]
assert os.stat(mount).st_uid == 65534
print("good", "hello" in open(f"{{mount}}/threads/{{good}}/effective_history.jsonl").read())
for name in ("effective_history.jsonl", "rollouts/current"):
    try: open(f"{{mount}}/threads/{{bad}}/{{name}}")
    except OSError as error: print("bad", error.errno)
print("listed", len(os.listdir(f"{{mount}}/threads/{{bad}}")))
' {lab.mountpoint} {readable} {secret}
        grep ' {lab.mountpoint} ' /proc/self/mounts
        run -m rolloutfs umount {lab.mountpoint}
    """
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        env=lab.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "good True" in result.stdout
    assert result.stdout.count(f"bad {errno.EACCES}") == 2
    assert "listed 16" in result.stdout
    assert "user_id=65534" in result.stdout
    assert "default_permissions" in result.stdout


def test_reading_leaves_no_trace_in_the_store(lab: Lab) -> None:
    """Everything that `stat` says of the store is the same after all of it was read; access times when store/ was
    read.
    """
    threads = [lab.sample.add(number, "hello") for number in range(1, 4)]
    old = 1_600_000_000 * 10**9
    for path in (*lab.sample.root.rglob("*"), lab.sample.root):
        os.utime(path, ns=(old, old))  # an access time before the change: relatime would renew it
    lab.mount()

    def state() -> dict[str, tuple[int, ...]]:
        found = {}
        for thread in threads:
            status = lab.sample.path(thread).stat()
            found[thread] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return {**found, "atime": tuple(lab.sample.path(thread).stat().st_atime_ns for thread in threads)}

    before = state()
    subprocess.run(["grep", "-r", "nothing", str(lab.mountpoint / "store/sessions")], check=False, timeout=DEADLINE)
    assert state() == before
    subprocess.run(
        ["grep", "-r", "nothing", str(lab.mountpoint)], check=False, timeout=DEADLINE, stdout=subprocess.DEVNULL
    )
    assert {**state(), "atime": ()} == {**before, "atime": ()}
    names = {path.name for path in lab.sample.root.rglob("*") if path.is_file()}
    assert names == {lab.sample.path(thread).name for thread in threads}
