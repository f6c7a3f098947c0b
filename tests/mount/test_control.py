"""Control files on a real mount: answers, errors, limits, what is seen afterwards, what is remembered."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.clients import mounted, need, need_root
from tests.mount.conftest import DEADLINE, Lab, children, is_gone, until
from tests.mount.control_lab import (
    LEGACY,
    LOCKS,
    PAGINATED,
    answer,
    has_a_job,
    lines,
    operations,
    shell,
    state,
    stock,
    turns,
    workers,
    write,
)
from tests.mount.namespaces import as_nobody, give_to_nobody, open_folder
from tests.tree.sample import sample_store

BOTH = pytest.mark.parametrize("name", [PAGINATED, LEGACY])

WRITE = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY)
print("open", flush=True)
os.write(file, sys.argv[2].encode())
"""


def wait_for_request(client: subprocess.Popen[str]) -> None:
    """Wait until a client has opened its file and waits for an answer of the mount."""
    assert client.stdout is not None
    assert client.stdout.readline() == "open\n"
    until(lambda: "request" in Path(f"/proc/{client.pid}/wchan").read_text(), "the client waits for the mount")


# What an operation does is seen at once


@BOTH
def test_a_fork_is_there_at_once(lab: Lab, name: str) -> None:
    """It is listed and can be read as soon as `echo` has returned, with the history up to the turn that was named."""
    (thread,) = stock(lab, name)
    lab.mount()
    known = turns(lab, thread)
    history = (lab.thread(thread) / "effective_history.jsonl").read_bytes()
    assert len(known) > 3
    for request, kept in (("latest", known), ("through 2", known[:2]), (f"before {known[-1]}", known[:-1])):
        code, output, _ = shell(lab, thread, f"echo {request} > fork && jq -r .thread_id fork && ls ..")
        child, *listed = output.decode().split()
        assert code == 0
        assert child in listed
        assert [line["status"] for line in lines(lab.thread(child) / "turns.jsonl")]
        assert len(turns(lab, child)) == len(kept)
        copied = (lab.thread(child) / "model_input.jsonl").read_bytes()
        assert (lab.thread(thread) / "model_input.jsonl").read_bytes().startswith(copied)
        assert os.readlink(lab.thread(child) / "lineage" / "forked_from") == f"../../{thread}"
    assert (lab.thread(thread) / "effective_history.jsonl").read_bytes() == history


@BOTH
def test_a_revert_is_seen_by_the_next_open(lab: Lab, name: str) -> None:
    """Content and `stat` are new at once; who has the old content open keeps it, with its size."""
    (thread,) = stock(lab, name)
    lab.mount()
    path = lab.thread(thread) / "effective_history.jsonl"
    known, old = turns(lab, thread), path.read_bytes()
    with path.open("rb") as held:
        held.read(10)
        assert write(lab.thread(thread) / "revert", b"before 3\n") == 0
        new = path.read_bytes()
        assert old.startswith(new)
        assert len(new) < len(old)
        assert turns(lab, thread) == known[:2]
        assert held.read() == old[10:]
        assert os.fstat(held.fileno()).st_size == len(old)
    assert answer(lab, thread)["dropped_turns"] == known[2:]
    for _ in range(2):  # nobody has it open now
        size = path.stat().st_size
        assert size == len(path.read_bytes())
        assert write(lab.thread(thread) / "revert", b"before -1\n") == 0
        assert path.stat().st_size == len(path.read_bytes()) < size


def test_undo_goes_back_and_the_rollouts_stay(lab: Lab) -> None:
    """Each revert and undo is a generation more, and `current` is the newest."""
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    folder = lab.thread(thread)
    before = (folder / "model_input.jsonl").read_bytes()
    assert write(folder / "revert", b"before 2") == 0
    assert (folder / "model_input.jsonl").read_bytes() != before
    assert write(folder / "revert", b"undo") == 0
    assert (folder / "model_input.jsonl").read_bytes() == before
    assert len(list((folder / "rollouts").iterdir())) == 4
    assert os.readlink(folder / "rollouts" / "current") == os.path.basename(answer(lab, thread)["rollout"])


@BOTH
def test_compact_makes_the_text_the_memory(lab: Lab, name: str) -> None:
    """Whatever it says, up to 64 KiB; a JSON object chooses otherwise."""
    (thread,) = stock(lab, name)
    lab.mount()
    folder = lab.thread(thread)
    text = "# Heading\n\nundo\nbefore 3\n" + "word " * 12_000
    (lab.folder / "summary.md").write_text(text)
    assert shell(lab, thread, 'cat "$LAB/summary.md" > compact') == (0, b"", b"")
    last = lines(folder / "model_input.jsonl")[-1]
    assert last["content"][0]["text"].endswith(text.rstrip())
    assert write(folder / "compact", b'{"strategy":"recent"}') == 0
    assert "Heading" not in (folder / "model_input.jsonl").read_text()
    assert write(folder / "compact", b"x" * 65_537) == errno.E2BIG
    assert write(folder / "compact", b"x" * 300_000) == errno.E2BIG
    assert answer(lab, thread)["error"] == "E2BIG"


@BOTH
def test_a_dry_run_changes_nothing(lab: Lab, name: str) -> None:
    """It tells what would be dropped."""
    (thread,) = stock(lab, name)
    lab.mount()
    known, before = turns(lab, thread), state(lab.sample.root)
    for file, request in (
        ("fork", b"dry-run through 2"),
        ("revert", b"dry-run before 3"),
        ("revert", b'{"before_turn_id":3,"dry_run":true}'),
    ):
        assert write(lab.thread(thread) / file, request) == 0
        assert answer(lab, thread)["dry_run"] is True
        assert answer(lab, thread)["dropped_turns"] == known[2:]
    assert write(lab.thread(thread) / "compact", b'{"summary":"it","dry_run":true}') == 0
    assert state(lab.sample.root) == before


# Errors


@BOTH
def test_refusals_have_their_errno_and_change_nothing(lab: Lab, name: str) -> None:
    """The class is the errno of the write; the reason is in the answer, the attribute and operations.jsonl."""
    (thread,) = stock(lab, name)
    lab.mount()
    before = state(lab.sample.root)
    cases = [
        ("fork", b"before 99", errno.ENOENT, "turn not found"),
        ("fork", b"through ffffffff", errno.ENOENT, "turn not found"),
        ("revert", b"before 0", errno.ENOENT, "turn not found"),
        ("revert", b"undo", errno.EINVAL, "undo"),
        ("revert", b"before 1\nbefore 2\n", errno.EINVAL, "2 lines"),
        ("compact", b'{"strategy":"auto"}', errno.EINVAL, "config.toml"),
    ]
    for file, request, code, reason in cases:
        path = lab.thread(thread) / file
        assert write(path, request) == code
        assert reason in answer(lab, thread, file)["message"]
        assert answer(lab, thread, file)["error"] == errno.errorcode[code]
        assert reason in os.getxattr(path, "user.rolloutfs.error").decode()
    assert [line["error"] for line in operations(lab)] == [errno.errorcode[case[2]] for case in cases]
    assert state(lab.sample.root) == before


def test_a_thread_that_is_being_written_is_busy(lab: Lab) -> None:
    """While another process holds Codex's lock, revert and compact change not one byte; a fork works."""
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    folder = lab.sample.root / LOCKS
    folder.mkdir(exist_ok=True)
    before = state(lab.sample.root)
    with (folder / f"{thread}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        configure(lab, "touch $HOME/was-run")
        for name, request in (("revert", b"before 2"), ("compact", b"text"), ("compact", b'{"strategy":"auto"}')):
            assert write(lab.thread(thread) / name, request) == errno.EBUSY
            assert "active writer" in answer(lab, thread)["message"]
        assert write(lab.thread(thread) / "revert", b"dry-run before 2") == 0
        assert write(lab.thread(thread) / "compact", b"dry-run text") == 0
        assert answer(lab, thread)["dry_run"] is True
        assert state(lab.sample.root) == before
        assert write(lab.thread(thread) / "fork", b"latest") == 0
    assert not (lab.folder / "home" / "was-run").exists()
    assert write(lab.thread(thread) / "revert", b"before 2") == 0


def test_a_damaged_lineage_is_an_input_output_error(lab: Lab) -> None:
    """What the thread was forked from is gone: nothing can be said of it, and nothing is done."""
    lab.edits = True
    threads = stock(lab, "forks.paginated")
    lab.mount()
    parents = {os.path.basename(os.readlink(path)) for path in lab.mountpoint.glob("threads/*/lineage/forked_from")}
    child = next(one for one in threads if (lab.thread(one) / "lineage" / "forked_from").is_symlink())
    for path in lab.sample.root.rglob("rollout-*"):
        if path.name[28:64] in parents and path.name[28:64] != child:
            path.unlink()
    before = state(lab.sample.root)
    for file, request in (("fork", b"latest"), ("revert", b"before 1"), ("compact", b"text")):
        assert write(lab.thread(child) / file, request) == errno.EIO
        assert answer(lab, child)["status"] == "failed"
    assert state(lab.sample.root) == before


def test_a_thread_that_is_gone(lab: Lab) -> None:
    """ENOENT, for who had the file open as well."""
    lab.edits = True
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    descriptor = os.open(lab.thread(thread) / "fork", os.O_RDWR)
    for path in lab.sample.root.rglob("rollout-*"):
        path.unlink()
    with pytest.raises(OSError, match="No such file") as caught:
        os.write(descriptor, b"latest")
    assert caught.value.errno == errno.ENOENT
    os.close(descriptor)


def test_the_answer_outlives_the_thread(lab: Lab) -> None:
    """Who has the file open reads what came of the request with cat, which asks for the size first."""
    lab.edits = True
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    script = """
        exec 3<>fork; echo latest >&3
        find "$LAB/store" -name "rollout-*" -delete
        until ! test -e "$LAB/mnt/threads/$THREAD"; do sleep 0.05; done
        cat <&3
    """
    code, output, errors = shell(lab, thread, script, THREAD=thread)
    assert (code, errors) == (0, b"")
    assert json.loads(output)["status"] == "done"


def test_an_error_of_ours_is_answered(lab: Lab) -> None:
    """EIO, an answer, a line in operations.jsonl, and the trace in the log; the mount goes on."""
    lab.expected += ["Traceback", "ZeroDivisionError"]
    (thread,) = stock(lab, PAGINATED)
    lab.mount(patch="from rolloutfs import engine; engine.Engine._operate = lambda *arguments, **more: 1 / 0")
    for file, request in (("fork", b"latest"), ("revert", b"before -1"), ("compact", b"a text")):
        assert write(lab.thread(thread) / file, request) == errno.EIO
        told = answer(lab, thread, file)
        assert (told["op"], told["status"], told["error"]) == (file, "failed", "EIO")
        assert "ZeroDivisionError" in told["message"]
        assert operations(lab)[-1]["message"] == told["message"]
    assert "Traceback" in lab.logs()


# Handles


def test_two_handles_never_see_each_others_answers(lab: Lab) -> None:
    """However their requests overlap."""
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    path = lab.thread(thread) / "fork"
    wrong: list[str] = []
    made: list[str] = []

    def ask(turn: int) -> None:
        for _ in range(3):
            descriptor = os.open(path, os.O_RDWR)
            os.write(descriptor, b"before %d" % turn)
            told = json.loads(os.pread(descriptor, 1 << 16, 0))
            os.close(descriptor)
            made.append(told["thread_id"])
            if len(turns(lab, told["thread_id"])) != turn - 1:
                wrong.append(told["thread_id"])

    askers = [threading.Thread(target=ask, args=(turn,)) for turn in (2, 3, 4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert wrong == []
    assert len(set(made)) == 9


def test_a_shell_reads_its_answer_from_its_handle(lab: Lab) -> None:
    """As the README shows it, in bash and dash, several times on one handle."""
    need("jq", "jq")
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    script = 'exec 3<>fork; for turn in 2 3; do echo "before $turn" >&3; jq -r .thread_id <&3; done'
    for program in ("bash", "dash"):
        need(program, program)
        code, output, errors = shell(lab, thread, script, program)
        assert (code, errors) == (0, b"")
        assert [len(turns(lab, child)) for child in output.decode().split()] == [1, 2]


def test_attributes_do_not_tell_of_requests(lab: Lab) -> None:
    """Mode, number and times of a control file are the same before and after; its size is that of what it shows."""
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    for file in ("fork", "revert", "compact"):
        path = lab.thread(thread) / file
        before = path.stat()
        assert before.st_mode & 0o777 == 0o600
        assert write(path, b'{"dry_run":true,"before_turn_id":"2"}' if file != "compact" else b"{}") in (0, 22)
        after = path.stat()
        assert (after.st_ino, after.st_mode, after.st_mtime_ns, after.st_ctime_ns, after.st_nlink) == (
            before.st_ino,
            before.st_mode,
            before.st_mtime_ns,
            before.st_ctime_ns,
            before.st_nlink,
        )
        assert before.st_mtime_ns == (lab.thread(thread) / "thread.json").stat().st_mtime_ns
        assert after.st_size == len(path.read_bytes())


def test_extended_attributes(lab: Lab) -> None:
    """Control files have one, only after a failure, and none can be set."""
    need("getfattr", "attr")
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    assert shell(lab, thread, "getfattr -d fork thread.json lineage ..") == (0, b"", b"")
    assert shell(lab, thread, "getfattr -n user.rolloutfs.error fork")[0] == 1
    assert write(lab.thread(thread) / "fork", b"nonsense") == errno.EINVAL
    code, output, _ = shell(lab, thread, "getfattr -d fork revert compact thread.json")
    assert code == 0
    assert output.count(b"EINVAL: 'nonsense' is not understood") == 3
    changes: list[Callable[[], object]] = [
        lambda: os.setxattr(lab.thread(thread) / "fork", "user.other", b"x"),
        lambda: os.removexattr(lab.thread(thread) / "fork", "user.rolloutfs.error"),
        lambda: os.setxattr(lab.thread(thread) / "thread.json", "user.other", b"x"),
    ]
    for change in changes:
        with pytest.raises(OSError, match=r"not supported|Permission|permitted"):
            change()
    with pytest.raises(OSError, match="No data") as caught:
        os.getxattr(lab.thread(thread) / "fork", "user.other")
    assert caught.value.errno == errno.ENODATA


# Time, and processes that die


def test_a_slow_operation_blocks_nobody_else(lab: Lab) -> None:
    """While it waits for its worker, which is stopped, everything else is served; then it is done."""
    (thread,) = stock(lab, PAGINATED)
    server = lab.mount("--no-index")
    assert write(lab.thread(thread) / "fork", b"dry-run latest") == 0
    (worker,) = workers(server.pid)
    os.kill(worker, signal.SIGSTOP)
    client = lab.client(WRITE, lab.thread(thread) / "fork", "latest")
    wait_for_request(client)
    assert len(os.listdir(lab.mountpoint / "threads")) == 1
    assert (lab.thread(thread) / "effective_history.jsonl").read_bytes()
    assert answer(lab, thread, "fork")["dry_run"] is True
    assert client.poll() is None
    os.kill(worker, signal.SIGCONT)
    client.communicate(timeout=DEADLINE)
    assert client.returncode == 0
    assert len(os.listdir(lab.mountpoint / "threads")) == 2


def test_a_worker_that_is_killed_in_an_operation(lab: Lab) -> None:
    """EIO, the thread is as before or as after, and the next request is done by another worker."""
    lab.expected.append("A worker process died while it did operate")
    (thread,) = stock(lab, PAGINATED)
    server = lab.mount("--no-index")
    assert write(lab.thread(thread) / "revert", b"dry-run before 2") == 0  # from now on a write is one request
    before = state(lab.sample.root)
    (worker,) = workers(server.pid)
    os.kill(worker, signal.SIGSTOP)
    client = lab.client(WRITE, lab.thread(thread) / "revert", "before 2")
    wait_for_request(client)
    until(lambda: has_a_job(worker), "the worker was given its job")
    os.kill(worker, signal.SIGKILL)
    _, error = client.communicate(timeout=DEADLINE)
    assert client.returncode == 1
    assert "Errno 5" in error
    told = answer(lab, thread)
    assert (told["op"], told["status"], told["error"]) == ("revert", "failed", "EIO")
    assert "before" in told["message"]
    assert state(lab.sample.root) == before
    assert write(lab.thread(thread) / "revert", b"before 2") == 0


def test_a_disk_that_is_full_in_the_end(lab: Lab) -> None:
    """Closing says nothing of it, but an fsync does; the answer is the same, and the thread as it was.

    There is no database: room for its files would be asked for before the first piece of the text is taken.
    """
    need_root("mount a small disk")
    root, text = lab.sample.root, lab.folder / "text"
    lab.edits = True  # its disk goes away before its witness looks
    text.write_text("a summary\n" * 4000)
    (thread,) = stock(lab, LEGACY)
    shutil.copytree(root, lab.folder / "kept")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", root], check=True)
    try:
        shutil.copytree(lab.folder / "kept", root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sqlite*"))
        with mounted(lab):
            before = state(root)
            status = os.statvfs(root)
            (root / "filling").write_bytes(b"\1" * (status.f_bavail * status.f_frsize))
            for conv, wanted in (("notrunc", 0), ("notrunc,fsync", 1)):
                code, _, errors = shell(lab, thread, f'dd if="$LAB/text" of=compact bs=4k status=none conv={conv}')
                assert (code, b"No space left" in errors) == (wanted, bool(wanted))
                told = answer(lab, thread)
                assert (told["op"], told["status"], told["error"]) == ("compact", "failed", "ENOSPC")
            (root / "filling").unlink()
            assert state(root) == before
            assert shell(lab, thread, 'dd if="$LAB/text" of=compact bs=4k status=none conv=fsync') == (0, b"", b"")
            assert answer(lab, thread)["status"] == "done"
    finally:
        subprocess.run(["umount", "--lazy", root], check=True)


def test_an_operation_that_takes_too_long_is_cut_off(lab: Lab) -> None:
    """ETIMEDOUT, and nobody waits for ever."""
    lab.expected.append("was cut off")
    (thread,) = stock(lab, PAGINATED)
    server = lab.mount("--no-index", patch="from rolloutfs import engine; engine.OPERATION_SECONDS = 2.0")
    assert write(lab.thread(thread) / "fork", b"dry-run latest") == 0
    (worker,) = workers(server.pid)
    os.kill(worker, signal.SIGSTOP)
    assert write(lab.thread(thread) / "fork", b"latest") == errno.ETIMEDOUT
    assert answer(lab, thread)["status"] == "failed"
    until(lambda: is_gone(worker), "the worker is ended")
    assert write(lab.thread(thread) / "fork", b"latest") == 0


def test_a_long_log_may_take_longer(lab: Lab) -> None:
    """A copy of it takes its time, and is not cut off for that."""
    (thread,) = stock(lab, LEGACY)
    patch = "from rolloutfs import engine; engine.OPERATION_SECONDS = 0.5; engine.SLOWEST = 1 << 10"
    server = lab.mount("--no-index", patch=patch)
    assert write(lab.thread(thread) / "fork", b"dry-run latest") == 0
    (worker,) = workers(server.pid)
    os.kill(worker, signal.SIGSTOP)
    client = lab.client(WRITE, lab.thread(thread) / "fork", "latest")
    wait_for_request(client)
    time.sleep(1)
    os.kill(worker, signal.SIGCONT)
    client.communicate(timeout=DEADLINE)
    assert client.returncode == 0


def test_a_server_that_is_killed_while_a_worker_writes(lab: Lab) -> None:
    """The process that appends goes on to the end, and the lock of the thread is held until then, also where the server
    had it first.
    """
    need("strace", "strace")
    (thread,) = stock(lab, PAGINATED)
    (log,) = lab.sample.root.rglob(f"rollout-*{thread}.jsonl")
    lock = lab.sample.root / LOCKS / f"{thread}.lock"
    server = lab.mount("--no-index")
    assert write(lab.thread(thread) / "fork", b"dry-run latest") == 0
    (worker,) = workers(server.pid)
    size = log.stat().st_size
    slow = ["strace", "-f", "-qq", "-P", str(log), "-e", "trace=write", "-e", "inject=write:delay_enter=2000000"]
    with subprocess.Popen([*slow, "-o", str(lab.folder / "trace"), "-p", str(worker)]) as tracer:
        until(lambda: "TracerPid:\t0" not in Path(f"/proc/{worker}/status").read_text(), "the worker is traced")
        client = lab.client(WRITE, lab.thread(thread) / "compact", "what was done")
        until(lambda: children(worker), "a process appends")
        (appending,) = children(worker)
        os.kill(server.pid, signal.SIGKILL)
        server.wait(DEADLINE)
        until(lambda: is_gone(worker), "the worker has ended")
        with lock.open("rb") as file:
            assert log.stat().st_size == size, "it should not have begun yet"
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            until(lambda: is_gone(appending), "it has appended")
            assert log.stat().st_size > size
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        client.communicate(timeout=DEADLINE)
        tracer.wait(DEADLINE)
    assert log.read_bytes().endswith(b"}\n")
    assert b'"task_complete"' in log.read_bytes()[size:].splitlines()[-1]


def test_a_signal_does_not_wait_for_an_operation(lab: Lab) -> None:
    """The server ends; the request that was in its worker fails."""
    (thread,) = stock(lab, PAGINATED)
    server = lab.mount("--no-index")
    assert write(lab.thread(thread) / "fork", b"dry-run latest") == 0
    (worker,) = workers(server.pid)
    os.kill(worker, signal.SIGSTOP)
    client = lab.client(WRITE, lab.thread(thread) / "fork", "latest")
    wait_for_request(client)
    server.terminate()
    assert server.wait(DEADLINE) == 0
    client.communicate(timeout=DEADLINE)
    assert client.returncode == 1
    assert is_gone(worker)


# Read-only mounts


@pytest.mark.parametrize("options", [("--read-only",), ("-o", "rw,ro")])
def test_a_read_only_mount_has_no_control_files(lab: Lab, options: tuple[str, ...]) -> None:
    """They are not listed, can't be opened, and can't be made; operations.jsonl can be read."""
    (thread,) = stock(lab, PAGINATED)
    lab.mount(*options)
    folder = lab.thread(thread)
    assert {"fork", "revert", "compact"} & set(os.listdir(folder)) == set()
    with pytest.raises(FileNotFoundError):
        (folder / "fork").read_bytes()
    code, _, errors = shell(lab, thread, "echo latest > fork")
    assert code == 1
    assert b"Read-only file system" in errors
    assert operations(lab) == []
    table = Path("/proc/self/mounts").read_text().split("\n")
    assert any(str(lab.mountpoint) in line and " ro," in line for line in table)


def test_a_mount_is_writable_unless_told_otherwise(lab: Lab) -> None:
    """`-o rw` after `ro` counts."""
    (thread,) = stock(lab, PAGINATED)
    lab.mount("-o", "ro,rw")
    assert (lab.thread(thread) / "fork").exists()


# What is remembered


def test_operations_are_remembered_over_a_remount(lab: Lab) -> None:
    """The list, its exact size, and the last answer of each thread; in a private file outside of the store."""
    threads = stock(lab, PAGINATED, LEGACY)
    with mounted(lab):
        assert operations(lab) == []
        for thread in threads:
            assert write(lab.thread(thread) / "fork", b"latest") == 0
        assert write(lab.thread(threads[0]) / "revert", b"nonsense") == errno.EINVAL
        assert write(lab.thread(threads[0]) / "revert", b"before 2") == 0
        content = (lab.mountpoint / "operations.jsonl").read_bytes()
        assert (lab.mountpoint / "operations.jsonl").stat().st_size == len(content)
        answers = [(lab.thread(thread) / "fork").read_bytes() for thread in threads]
        error = os.getxattr(lab.thread(threads[0]) / "fork", "user.rolloutfs.error")
        told = operations(lab)
        assert [line["thread"] for line in told] == [*threads, threads[0], threads[0]]
        assert [line["request"] for line in told] == ["latest", "latest", "nonsense", "before 2"]
        assert told[3]["before"] != told[3]["after"] == answer(lab, threads[0])["after"]
    (kept,) = (lab.folder / "state" / "rolloutfs" / "operations").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    with mounted(lab):
        assert (lab.mountpoint / "operations.jsonl").read_bytes() == content
        assert [(lab.thread(thread) / "fork").read_bytes() for thread in threads] == answers
        assert os.getxattr(lab.thread(threads[0]) / "compact", "user.rolloutfs.error") == error
        with (lab.mountpoint / "operations.jsonl").open("rb") as file:
            assert file.read() == content
            assert write(lab.thread(threads[1]) / "fork", b"latest") == 0
            until(lambda: len(file.read()) > 0, "the open file grows")
        assert (lab.mountpoint / "operations.jsonl").read_bytes().startswith(content)


def test_the_command_line_and_the_mount_agree(lab: Lab) -> None:
    """What `rolloutfs fork` did is in operations.jsonl of a mount, and its answer is the last one of the thread."""
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    told = json.loads(lab.run("fork", thread[:13], "before", "-1", "--store", lab.sample.root).stdout)
    assert answer(lab, thread) == told
    assert (lab.thread(told["thread_id"]) / "thread.json").read_bytes()
    assert [line["request"] for line in operations(lab)] == ["before -1"]
    refused = lab.run("fork", thread, "before", "99", "--store", lab.sample.root, code=8)
    assert "turn not found" in refused.stderr
    assert answer(lab, thread) == json.loads(refused.stdout)


def revert(folder: Path, codes: list[int]) -> None:
    """Revert a thread before its third turn and note the errno."""
    codes.append(write(folder / "revert", b"before 3"))


def test_two_mounts_of_one_store(lab: Lab) -> None:
    """Both list what either did; of two reverts at one time at most one has no effect, and says so."""
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    first, lab.mountpoint = lab.mountpoint, lab.folder / "second"
    lab.mountpoint.mkdir()
    try:
        lab.mount()
        places = [place / "threads" / thread for place in (first, lab.mountpoint)]
        for _ in range(3):
            before = len(operations(lab))
            codes: list[int] = []
            both = [threading.Thread(target=revert, args=(place, codes)) for place in places]
            for one in both:
                one.start()
            for one in both:
                one.join()
            assert set(codes) <= {0, errno.EBUSY, errno.ENOENT}
            assert 0 in codes
            told = operations(lab)[before:]
            assert sorted(line["status"] for line in told) == sorted(
                "done" if not code else "refused" for code in codes
            )
            assert write(places[0] / "revert", b"undo") == 0
        for name in ("effective_history.jsonl", "turns.jsonl"):
            assert (places[0] / name).read_bytes() == (places[1] / name).read_bytes()
        assert (first / "operations.jsonl").read_bytes() == (lab.mountpoint / "operations.jsonl").read_bytes()
    finally:
        lab.run("umount", lab.mountpoint)
        lab.mountpoint = first


def test_an_answer_that_can_not_be_recorded(lab: Lab) -> None:
    """The newest one is shown whatever becomes of operations.jsonl, and says that it isn't there; so does the log."""
    lab.expected.append("can't be written")
    (thread,) = stock(lab, PAGINATED)
    lab.mount()
    assert write(lab.thread(thread) / "fork", b"latest") == 0
    (path,) = (lab.folder / "state" / "rolloutfs" / "operations").iterdir()
    path.unlink()
    path.mkdir()
    assert write(lab.thread(thread) / "revert", b"before -1") == 0
    for file in ("fork", "revert", "compact"):
        told = answer(lab, thread, file)
        assert (told["op"], told["status"]) == ("revert", "done")
        assert f"operations.jsonl could not be written ({path}: Is a directory)" in told["message"]
    assert write(lab.thread(thread) / "revert", b"before 99") == errno.ENOENT
    assert answer(lab, thread)["error"] == "ENOENT"
    assert "turn not found" in os.getxattr(lab.thread(thread) / "fork", "user.rolloutfs.error").decode()
    assert str(path) in lab.logs()


def test_nothing_of_ours_is_made_in_the_store(lab: Lab) -> None:
    """With state and cache in the Codex home: neither the log of a mount in the background, nor a list, nor copies."""
    (thread,) = stock(lab, PAGINATED)
    inside = {f"XDG_{name}_HOME": str(lab.sample.root / name) for name in ("STATE", "CACHE")}
    before = sorted(lab.sample.root.rglob("*"))
    said = lab.run("mount", lab.sample.root, lab.mountpoint, code=0, **inside).stdout
    assert "operations.jsonl" in said
    assert "log" in said
    assert write(lab.thread(thread) / "fork", b"dry-run latest") == 0
    assert answer(lab, thread)["dry_run"] is True
    lab.unmount()
    told = lab.run("fork", "--dry-run", thread, "--store", lab.sample.root, code=0, **inside)
    assert "operations.jsonl could not be written" in json.loads(told.stdout)["message"]
    assert sorted(lab.sample.root.rglob("*")) == before


@pytest.mark.parametrize("where", ["mnt/state", "home/a-file", "store/sessions", "store/state"])
def test_without_a_state_folder_the_mount_remembers_while_it_lives(lab: Lab, where: str) -> None:
    """When it would be covered by the mount, can't be made, or lies in the store."""
    (thread,) = stock(lab, PAGINATED)
    (lab.folder / "home" / "a-file").write_text("")
    before = state(lab.sample.root)
    lab.mount(patch=f"import os; os.environ['XDG_STATE_HOME'] = {str(lab.folder / where)!r}")
    assert write(lab.thread(thread) / "fork", b"dry-run latest") == 0
    assert [line["status"] for line in operations(lab)] == ["done"]
    assert answer(lab, thread)["status"] == "done"
    assert state(lab.sample.root) == before


# A summary from a program


def configure(lab: Lab, script: str, more: str = "") -> None:
    """Let a shell script be the summarizer."""
    folder = lab.folder / "config" / "rolloutfs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(f"summarizer = {json.dumps(['sh', '-c', script])}\n{more}")


@BOTH
def test_a_program_writes_the_summary(lab: Lab, name: str) -> None:
    """`running` at once, `done` later, on the same handle, in a fresh open, and in operations.jsonl."""
    (thread,) = stock(lab, name)
    gate = lab.folder / "gate"
    os.mkfifo(gate)
    configure(
        lab, f"cat > {shlex.quote(str(lab.folder))}/seen; read line < {shlex.quote(str(gate))}; echo It was $line"
    )
    lab.mount()
    history = (lab.thread(thread) / "effective_history.jsonl").read_bytes()
    descriptor = os.open(lab.thread(thread) / "compact", os.O_RDWR)
    os.write(descriptor, b'{"strategy":"auto"}\n')
    assert json.loads(os.pread(descriptor, 9999, 0))["status"] == "running"
    assert answer(lab, thread)["status"] == "running"
    assert write(lab.thread(thread) / "compact", b'{"strategy":"auto"}') == errno.EBUSY
    assert operations(lab)[-1]["error"] == "EBUSY"
    os.write(os.open(gate, os.O_WRONLY), b"good\n")
    until(lambda: json.loads(os.pread(descriptor, 9999, 0))["status"] == "done", "the summary is written")
    os.close(descriptor)
    assert (lab.folder / "seen").read_bytes() == history
    until(lambda: operations(lab)[-1]["status"] == "done", "it is listed")
    assert answer(lab, thread, "revert")["op"] == "compact"
    assert lines(lab.thread(thread) / "model_input.jsonl")[-1]["content"][0]["text"].endswith("It was good")


@pytest.mark.parametrize(
    ("script", "more", "error", "message"),
    [
        ("echo partial; echo the reason >&2; exit 3", "", "EIO", "the reason"),
        ("true", "", "EIO", "wrote nothing"),
        ("yes", "", "E2BIG", "more than"),
        ("printf '\\377\\376'", "", "EIO", "UTF-8"),
        ("sleep 1000 & wait", "summarizer_seconds = 0.5", "ETIMEDOUT", "longer than 0.5 s"),
    ],
)
def test_a_program_that_fails_changes_nothing(lab: Lab, script: str, more: str, error: str, message: str) -> None:
    """The reason is told, and all that it has started is ended."""
    (thread,) = stock(lab, PAGINATED)
    configure(lab, script, more)
    lab.mount()
    before = state(lab.sample.root)
    assert write(lab.thread(thread) / "compact", b'{"strategy":"auto"}') == 0
    until(lambda: operations(lab), "it is finished")
    told = answer(lab, thread)
    assert (told["status"], told["error"]) == ("failed", error)
    assert message in told["message"]
    assert state(lab.sample.root) == before


@pytest.mark.parametrize(
    "config", ["summarizer = 3", "summarizer = []", "summarizer = '\"'", "nonsense", "summarizer_x = 1"]
)
def test_a_config_that_names_no_program(lab: Lab, config: str) -> None:
    """A clear refusal that names the file."""
    (thread,) = stock(lab, PAGINATED)
    configure(lab, "")
    lab.mount()
    (lab.folder / "config" / "rolloutfs" / "config.toml").write_text(config)  # from now on; a mount is refused with it
    assert write(lab.thread(thread) / "compact", b'{"strategy":"auto"}') == errno.EINVAL
    assert "config.toml" in answer(lab, thread)["message"]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"SUMMARIZER": "echo 'from the  environment'"}, None),
        ({"SUMMARIZER": "'"}, "$ROLLOUTFS_SUMMARIZER is not a command"),
        ({"SUMMARIZER": "echo", "SUMMARIZER_SECONDS": "soon"}, "$ROLLOUTFS_SUMMARIZER_SECONDS must be a number"),
    ],
)
@pytest.mark.parametrize("by_flag", [False, True])
def test_a_program_that_the_environment_names(
    lab: Lab, variables: dict[str, str], told: str | None, by_flag: bool
) -> None:
    """It counts before the config, whose limit stays where the environment has none; so does one that a flag names."""
    (thread,) = stock(lab, PAGINATED)
    configure(lab, "echo from the config")
    environment = {f"ROLLOUTFS_{name}": value for name, value in variables.items()}
    words = ["compact", thread, "--auto", "--store", str(lab.sample.root)]
    if by_flag:
        words[2:3] = ["--summarizer", environment.pop("ROLLOUTFS_SUMMARIZER")]
    done = lab.run(*words, code=0 if told is None else 8, **environment)
    if told is None:
        lab.mount()
        assert "from the  environment" in (lab.thread(thread) / "model_input.jsonl").read_text()
    else:
        assert told in done.stderr


def test_a_thread_that_goes_on_meanwhile_is_not_compacted(lab: Lab) -> None:
    """A summary of what was before would hide what came after."""
    (thread,) = stock(lab, PAGINATED)
    gate = lab.folder / "gate"
    os.mkfifo(gate)
    configure(lab, f"read line < {shlex.quote(str(gate))}; echo $line")
    lab.mount()
    assert write(lab.thread(thread) / "compact", b'{"strategy":"auto"}') == 0
    assert write(lab.thread(thread) / "revert", b"before -1") == 0
    assert answer(lab, thread)["op"] == "revert"
    before = state(lab.sample.root)
    os.write(os.open(gate, os.O_WRONLY), b"late\n")
    until(lambda: operations(lab)[-1]["op"] == "compact", "it is finished")
    assert answer(lab, thread)["error"] == "EBUSY"
    assert state(lab.sample.root) == before


def test_an_unmount_ends_the_program(lab: Lab) -> None:
    """What was running is listed as failed after the next mount."""
    (thread,) = stock(lab, PAGINATED)
    configure(lab, f"echo $$ > {shlex.quote(str(lab.folder))}/pid; sleep 1000")
    server = lab.mount()
    assert write(lab.thread(thread) / "compact", b'{"strategy":"auto"}') == 0
    until(lambda: (lab.folder / "pid").exists() and (lab.folder / "pid").read_text(), "the program runs")
    server.terminate()
    assert server.wait(DEADLINE) == 0
    until(lambda: is_gone(int((lab.folder / "pid").read_text())), "the program is ended")
    lab.mount()
    assert answer(lab, thread)["status"] == "failed"
    assert "mount was ended" in answer(lab, thread)["message"]


# Other users


def test_an_unprivileged_user_can_fork(lab: Lab) -> None:
    """Mounted through fusermount3 by uid 65534: requests work, refusals are seen, and nobody else's files are."""
    with open_folder() as folder:
        inner = Lab(folder, sample_store(folder / "store"), folder / "mnt")
        for name in ("home", "mnt"):
            (folder / name).mkdir()
        (thread,) = stock(inner, PAGINATED)
        give_to_nobody(inner, folder / "store")
        output = as_nobody(
            inner,
            f"""
            cd /
            "$PYTHON" -m rolloutfs mount {folder}/store {folder}/mnt > /dev/null
            cd {folder}/mnt/threads/{thread}
            echo latest > fork
            cat fork
            ! echo nonsense > fork
            ! echo x > thread.json
            ! echo x > frok
            stat -c '%u %a' fork
            cd /
            "$PYTHON" -m rolloutfs umount {folder}/mnt
            """,
        )
        told = json.loads(output.split("\n")[0])
        assert told["status"] == "done"
        assert output.split("\n")[1] == "65534 600"
        assert Path(folder, "store", told["rollout"]).stat().st_uid == 65534


def test_a_killed_server_takes_the_program_with_it(lab: Lab) -> None:
    """With all that it has started, although nothing of ours runs then; the next mount knows of no such request, and
    the thread is as it was.
    """
    (thread,) = stock(lab, PAGINATED)
    pids = lab.folder / "pids"
    quoted = shlex.quote(str(pids))
    configure(lab, f"sleep 1000 & echo $! > {quoted}.new; echo $$ >> {quoted}.new; mv {quoted}.new {quoted}; wait")
    server = lab.mount()
    before = state(lab.sample.root)
    assert write(lab.thread(thread) / "compact", b'{"strategy":"auto"}') == 0
    until(pids.exists, "the program runs")
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    for pid in pids.read_text().split():
        until(lambda pid=pid: is_gone(int(pid)), "what the program started is ended")  # type: ignore[misc]  # mypy can't tell the type of such a lambda
    lab.run("umount", lab.mountpoint)
    lab.mount()
    assert (lab.thread(thread) / "compact").read_bytes().startswith(b"# rolloutfs: compact")
    assert operations(lab) == []
    assert state(lab.sample.root) == before
