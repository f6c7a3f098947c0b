"""Large raw files that the kernel reads by itself: the same bytes, the same tree, the same end of a mount; and a mount
as any other where that can't be done.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from rolloutfs import checks, mounttable
from tests.mount import test_life
from tests.mount.clients import need_root, run, serving
from tests.mount.conftest import DEADLINE, Lab, until
from tests.mount.namespaces import as_nobody, give_to_nobody, in_namespace, open_folder
from tests.tree.sample import sample_store

LARGE = [f"{number} " + "words and more words " * 40 for number in range(1350)]  # more than 1 MiB
EVERYTHING = "import rolloutfs.content; rolloutfs.content.LARGE = 1"  # files of any size are passed through
MISSING = "Without passthrough"  # begins the line that says why


class Through(Lab):
    """A lab whose mounts let the kernel read what it can, whatever its size."""

    def mount(self, *options: str, patch: str = "", **environment: str) -> subprocess.Popen[bytes]:
        """As it does, but for that."""
        return super().mount("--no-index", "--passthrough", *options, patch=f"{EVERYTHING}\n{patch}", **environment)


def served(server: subprocess.Popen[bytes], read: Callable[[], object]) -> int:
    """Bytes that the server read while something was done."""

    def count() -> int:
        return int(Path(f"/proc/{server.pid}/io").read_text().split("rchar: ")[1].split()[0])

    before = count()
    read()
    return count() - before


@pytest.fixture(scope="module")
def able(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where this kernel can't do it, or not for files of the folder that tests work in."""
    need_root("have the kernel read files of a mount by itself")
    folder = tmp_path_factory.mktemp("able")
    with serving(folder / "lab", sample_store(folder / "store").root) as lab:
        thread = lab.sample.add(1, *LARGE)
        lab.mount("--no-index", "--passthrough")
        raw(lab, thread).read_bytes()
        for reason in ("the kernel can't", os.strerror(errno.ELOOP)):
            if reason in lab.logs():
                pytest.skip(lab.logs())


def raw(lab: Lab, thread: str) -> Path:
    """The raw log of a thread in the mount."""
    return lab.thread(thread) / "rollouts" / lab.sample.path(thread).name


@pytest.fixture
def through(lab: Lab, able: None) -> Iterator[Through]:
    """Such a lab, in the folder of the usual one."""
    made = Through(lab.folder, sample_store(lab.folder / "store of its own"), lab.mountpoint)
    yield made
    made.clean_up()
    lab.expected += made.expected
    lab.witness, lab.edits = made.witness, made.edits


READ_SOMEHOW = """
import hashlib, mmap, os, random, sys
chance = random.Random(1)
with open(sys.argv[1], "rb", buffering=0) as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    print("open", flush=True)
    sys.stdin.readline()
    whole = b"".join(iter(lambda: file.read(chance.randrange(1, 1 << 19)), b""))
    for _ in range(300):
        start, length = chance.randrange(len(whole) + 9000), chance.choice((1, 100, 4096, 300_000))
        assert os.pread(file.fileno(), length, start) == whole[start : start + length]
    assert mapped[:] == whole
    null = os.open("/dev/null", os.O_WRONLY)
    os.lseek(file.fileno(), 0, 0)
    assert os.sendfile(null, file.fileno(), 0, len(whole) + 10) == len(whole)
print(hashlib.sha256(whole).hexdigest())
"""


@pytest.mark.usefixtures("able")
def test_the_kernel_reads_by_itself(lab: Lab) -> None:
    """Below rollouts/ and store/, and what a compressed log says: all bytes, read in any way, of an open file whose
    server is stopped.
    """
    plain, packed = lab.sample.add(1, *LARGE), lab.sample.add(2, *LARGE)
    wanted = {thread: lab.sample.path(thread).read_bytes() for thread in (plain, packed)}
    lab.sample.path(packed, suffix=".jsonl.zst").write_bytes(zstandard.compress(wanted[packed]))
    lab.sample.path(packed).unlink()
    server = lab.mount("--no-index", "--passthrough")
    (stored,) = (lab.mountpoint / "store").rglob(lab.sample.path(plain).name)
    for path, thread in ((raw(lab, plain), plain), (stored, plain), (raw(lab, packed), packed)):
        assert path.stat().st_size == len(path.read_bytes()) == len(wanted[thread])  # the first close asks the server
        client = subprocess.Popen(
            [sys.executable, "-c", READ_SOMEHOW, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert client.stdout is not None
        assert client.stdout.readline() == "open\n"
        server.send_signal(signal.SIGSTOP)
        try:
            output, _ = client.communicate("\n", timeout=DEADLINE)
        finally:
            server.send_signal(signal.SIGCONT)
        assert output.strip() == hashlib.sha256(wanted[thread]).hexdigest()


@pytest.mark.usefixtures("able")
def test_other_files_come_from_the_server(lab: Lab) -> None:
    """Derived files, and raw ones that are small."""
    small, large = lab.sample.add(1, "hello"), lab.sample.add(2, *LARGE)
    server = lab.mount("--no-index", "--passthrough")
    assert raw(lab, small).read_bytes() == lab.sample.path(small).read_bytes()
    shown = lab.thread(large) / "full_history.jsonl"
    assert served(server, shown.read_bytes) > len(LARGE) * 800
    assert served(server, raw(lab, large).read_bytes) < 100_000


@pytest.mark.usefixtures("able")
def test_the_tree_is_that_of_any_mount(lab: Lab) -> None:
    """All names, numbers, attributes and contents, and what the kernel's table says of the mount."""
    for number in range(1, 3):
        lab.sample.add(number, *LARGE[: 40 * number])
    told = []
    for options in (("--no-passthrough",), ("--passthrough",), ("--read-only",), ("--read-only", "--passthrough")):
        server = lab.mount("--no-index", *options, patch=EVERYTHING)
        listing = "find . -printf '%p %i %s %T@ %C@ %m %U %l\\n' | sort"
        walk = run(f"{listing}; find . -type f -exec md5sum {{}} +; {listing}", lab.mountpoint)
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        (line,) = [line for line in mounts if f" {lab.mountpoint} " in line]
        told.append((walk, line.split()[5:]))
        lab.unmount()
        assert server.returncode == 0
    assert told[0] == told[1]
    assert told[2] == told[3]
    assert told[0][1] != told[2][1]


@pytest.mark.usefixtures("able")
def test_reading_leaves_access_times(lab: Lab) -> None:
    """Also the kernel's own reading."""
    thread = lab.sample.add(1, *LARGE)
    os.utime(lab.sample.path(thread), (10**9, 1_500_000_000))
    server = lab.mount("--no-index", "--passthrough")
    with raw(lab, thread).open("rb") as file:
        file.read()
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ).read()
    assert served(server, raw(lab, thread).read_bytes) < 100_000
    assert lab.sample.path(thread).stat().st_atime == 10**9


REPEATED = [
    test_life.test_growth_is_seen_by_new_opens_at_once_and_by_open_files_soon,
    test_life.test_tail_follows_a_thread,
    test_life.test_replaced_content_is_not_mixed_with_the_old_one,
    test_life.test_archived_compressed_and_deleted_while_open,
    test_life.test_readers_and_a_writer_at_the_same_time,
    test_life.test_umount_of_a_busy_mount_says_so_and_offers_lazy,
    test_life.test_an_exception_in_a_handler_fails_only_its_request,
    test_life.test_reading_leaves_no_trace_in_the_store,
]


@pytest.mark.parametrize("test", REPEATED, ids=lambda test: test.__name__.removeprefix("test_"))
def test_it_is_as_without(through: Through, test: Callable[[Lab], None]) -> None:
    """What holds for other mounts, with raw files of any size passed through."""
    test(through)


@pytest.mark.usefixtures("able")
def test_a_file_that_is_cut_is_what_it_is(lab: Lab) -> None:
    """Unlike in other mounts who has it open reads what it holds now, as outside; the size that is told follows."""
    lab.edits = True
    thread = lab.sample.add(1, *LARGE)
    lab.mount("--no-index", "--passthrough")
    source, path = lab.sample.path(thread), raw(lab, thread)
    with path.open("rb", buffering=0) as file:
        start = file.read(4096)
        with source.open("r+b") as log:
            log.truncate(source.read_bytes().index(b"\n", 20_000) + 1)
        until(lambda: os.fstat(file.fileno()).st_size == source.stat().st_size, "the open file has its new size")
        assert start + file.read() == source.read_bytes() == path.read_bytes()
        lab.sample.append(thread, "more")
        assert file.read() in source.read_bytes()
        assert os.pread(file.fileno(), 1 << 20, 0) == source.read_bytes()
    assert path.read_bytes() == source.read_bytes()  # small by now: from the server
    lab.sample.append(thread, *LARGE)
    assert path.read_bytes() == source.read_bytes()


_COUNTED = """
import fcntl
genuine = fcntl.ioctl
def counted(device, request, argument):
    done = genuine(device, request, argument)
    number = done if request == 0x4010E501 else -int.from_bytes(argument, "little")
    with open({!r}, "a") as file:
        print(number, file=file)
    return done
fcntl.ioctl = counted
"""

_MANY = """
import os, random, sys, threading
path, plain = sys.argv[1:]
wanted = open(plain, "rb").read()
chance = random.Random(1)
def use():
    for _ in range(4):
        with open(path, "rb", buffering=0) as file:
            barrier.wait()
            for start in (0, 1_000_000, len(wanted) - 100):
                assert os.pread(file.fileno(), 70_000, start) == wanted[start : start + 70_000]
    done.append(1)
done, barrier = [], threading.Barrier(50)
threads = [threading.Thread(target=use) for _ in range(50)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(done))
"""


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("late", ["", "import rolloutfs.passthrough; del rolloutfs.passthrough._Answer.__del__"])
def test_many_handles_share_one_number(lab: Lab, late: str) -> None:
    """Fifty at once, opened, read and closed at the same time: the kernel is told of one file a time, and at last it
    has let go of all. Also when each detour ends late, just before the next request is read.
    """
    thread = lab.sample.add(1, *LARGE)
    told = lab.folder / "numbers"
    lab.mount("--no-index", "--passthrough", patch=f"{late}\n{_COUNTED.format(str(told))}")
    client = lab.client(_MANY, raw(lab, thread), lab.sample.path(thread))
    output, errors = client.communicate(timeout=DEADLINE * 2)
    assert output == "50\n", errors

    def held() -> set[int]:
        numbers: set[int] = set()
        for number in map(int, told.read_text().split()):
            numbers ^= {abs(number)}
            assert len(numbers) <= 2  # the one that is let go of, and the next one
        return numbers

    until(lambda: not held(), "every number is withdrawn")


_MEANWHILE = """
import os, pyfuse3
from rolloutfs.passthrough import Door
answer, settle, write = Door.answer, Door.settle, Door._write
def disturbed(door, *arguments):
    made = answer(door, *arguments)
    pyfuse3.invalidate_inode(1, attr_only=True)
    return made
def late(door):
    was, result = door._armed, settle(door)
    if was is not None:
        os.write(door._theirs.fileno(), (40).to_bytes(4, "little") + (2).to_bytes(4, "little") + bytes(8)
            + (1).to_bytes(8, "little") + (-1).to_bytes(8, "little", signed=True) + bytes(8))
    return result
def noted(door, message):
    write(door, message)
    if not any(message[8:16]):
        with open({!r}, "a") as file:
            file.write("x")
Door.answer, Door.settle, Door._write = disturbed, late, noted
"""


@pytest.mark.usefixtures("able")
def test_what_else_is_sent_meanwhile_reaches_the_kernel(lab: Lab) -> None:
    """Invalidations that are sent between an open and its answer, and after it but by a descriptor taken before."""
    thread = lab.sample.add(1, *LARGE)
    told = lab.folder / "told"
    server = lab.mount("--no-index", "--passthrough", patch=_MEANWHILE.format(str(told)))
    told.write_text("")
    for _ in range(5):
        assert served(server, raw(lab, thread).read_bytes) < 100_000
    until(lambda: told.read_text() == "x" * 10, "both kinds have been handed on")


@pytest.mark.usefixtures("able")
def test_threads_change_while_files_are_opened(lab: Lab) -> None:
    """Names are dropped by another thread of the server at any moment; every open has its bytes, and no number or
    answer is lost.
    """
    lab.edits = True
    still, moving = lab.sample.add(1, *LARGE), lab.sample.add(2, *LARGE)
    lab.mount("--no-index", "--passthrough")
    wanted = lab.sample.path(still).read_bytes()
    versions = [[f"{number}", *LARGE] for number in range(2)]
    for number in range(30):
        with raw(lab, moving).open("rb") as held:
            old = held.read(1000)
            lab.sample.replace(moving, *versions[number % 2])
            for _ in range(4):
                assert raw(lab, still).read_bytes() == wanted
            assert raw(lab, moving).read_bytes() == lab.sample.path(moving).read_bytes()
            assert os.pread(held.fileno(), 1000, 0) == old
    os.statvfs(lab.mountpoint)  # answered after the last close


# The end

ENDS = {
    "rolloutfs umount -z": False,
    "fusermount3 -uz": False,
    "umount -l": False,
    "rolloutfs umount": True,
    "fusermount3 -u": True,
    "umount": True,
    "SIGTERM": False,
    "SIGKILL": False,
}


@pytest.mark.parametrize("way", ENDS)
@pytest.mark.usefixtures("able")
def test_every_end_of_a_mount(lab: Lab, way: str) -> None:
    """With a large file open, which is readable to its end, unless the end wants it closed (True): the mount is gone
    and its server has ended; after SIGKILL the mount is dead, and goes when it is asked to.
    """
    thread = lab.sample.add(1, *LARGE)
    server = lab.mount("--no-index", "--passthrough")
    assert raw(lab, thread).read_bytes()  # the first close asks the server
    with raw(lab, thread).open("rb", buffering=0) as file:
        assert file.read(100)
        if ENDS[way]:
            file.close()
        if way.startswith("SIG"):
            server.send_signal(getattr(signal, way))
        else:
            command = way.replace("rolloutfs", f"{shlex.quote(sys.executable)} -m rolloutfs")
            run(f"{command} {shlex.quote(str(lab.mountpoint))}", lab.folder, **lab.environment)
        if way.startswith("SIG"):  # else it waits for the file to be closed
            server.wait(DEADLINE)
        if not ENDS[way]:
            assert len(os.pread(file.fileno(), 1 << 22, 100)) == lab.sample.path(thread).stat().st_size - 100
    assert server.wait(DEADLINE) == (-signal.SIGKILL if way == "SIGKILL" else 0)
    if way == "SIGKILL":
        with pytest.raises(OSError, match="not connected"):
            os.listdir(lab.mountpoint)
        lab.run("umount", lab.mountpoint)
    assert not lab.is_mounted()
    assert os.listdir(lab.mountpoint) == []


@pytest.mark.usefixtures("able")
def test_in_the_background(lab: Lab) -> None:
    """A mount is made, used, killed, replaced and unmounted as without; nobody but its server holds it."""
    thread = lab.sample.add(1, *LARGE)
    pid = lab.background("-o", "passthrough")
    assert raw(lab, thread).read_bytes() == lab.sample.path(thread).read_bytes()
    os.kill(pid, signal.SIGKILL)
    until(lambda: checks.is_dead(str(lab.mountpoint)), "the mount is dead")
    lab.background("--replace", "--passthrough")
    assert raw(lab, thread).read_bytes() == lab.sample.path(thread).read_bytes()
    lab.unmount()
    assert mounttable.find(str(lab.mountpoint)) is None


# Where it can't be done

OBSTACLES = {
    "libfuse": ("passthrough.TESTED = ('2.',)", "not tested with libfuse 3."),
    "unknown libfuse": ("passthrough.pyfuse3 = passthrough", "not tested with libfuse of an unknown release"),
    "pyfuse3": ("requestloop.TESTED = ('2.',)", "not tested with pyfuse3 3."),
    "loop": ("import os; os.environ[requestloop.SWITCH] = 'stock'", "$ROLLOUTFS_REQUEST_LOOP is stock"),
    "kernel": ("passthrough._INIT_FLAGS2 = 1 << 20", "the kernel can't do that"),
    "mount": ("passthrough.DEVICE = '/dev/null'", "the mount was refused (Invalid argument)"),
    "capability": ("passthrough._SYS_ADMIN = 1 << 62", "only root may do that"),
    "ioctl": ("fcntl.ioctl = refused(errno.EPERM)", "No file is passed through: Operation not permitted."),
    "file": ("fcntl.ioctl = refused(errno.ELOOP)", "Some files are not passed through: Too many levels"),
    "copy of a mount": ("backing._OPEN_TREE = 100_000", "No file is passed through: Function not implemented."),
}
_REFUSED = """
import errno, fcntl, os
from rolloutfs import backing, passthrough, requestloop
def refused(code):
    def ioctl(*arguments):
        raise OSError(code, os.strerror(code))
    return ioctl
"""


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_an_obstacle_is_told_and_harms_nothing(lab: Lab, obstacle: str) -> None:
    """One line says why, however many files are read; the server reads them."""
    need_root("have the kernel read files of a mount by itself")
    threads = [lab.sample.add(number, *LARGE) for number in (1, 2)]
    patch, told = OBSTACLES[obstacle]
    server = lab.mount("--no-index", "--passthrough", patch=_REFUSED + patch)
    lab.expected.append(told)
    for thread in (*threads, *threads):
        assert raw(lab, thread).read_bytes() == lab.sample.path(thread).read_bytes()
    (line,) = lab.logs().splitlines()
    assert told in line
    lab.unmount()
    assert server.returncode == 0


def test_who_is_not_root_is_told() -> None:
    """On the terminal, and the mount is as any other."""
    with open_folder() as folder, serving(folder / "lab", sample_store(folder / "store").root) as lab:
        thread = lab.sample.add(1, *LARGE)
        give_to_nobody(lab, lab.sample.root)
        mount, store = shlex.quote(str(lab.mountpoint)), shlex.quote(str(lab.sample.root))
        script = f"""
            "$PYTHON" -m rolloutfs mount -o passthrough {store} {mount} 2>&1
            cmp {mount}/threads/{thread}/rollouts/current {store}/sessions/*/*/*/*.jsonl
            "$PYTHON" -m rolloutfs umount {mount}
        """
        told = as_nobody(lab, script).splitlines()
        assert sum(MISSING in line and "only root" in line for line in told) == 1
        assert any(line.endswith(f"rolloutfs umount {lab.mountpoint}") for line in told)


@pytest.mark.usefixtures("able")
def test_a_stacked_file_system(lab: Lab) -> None:
    """A store on overlayfs is served as ever; the log says once why."""
    thread = lab.sample.add(1, *LARGE)
    lab.expected.append("Some files are not passed through: Too many levels of symbolic links.")
    mount, work = shlex.quote(str(lab.mountpoint)), shlex.quote(str(lab.folder / "overlay"))
    python = shlex.quote(sys.executable)
    in_namespace(
        lab,
        f"""
        mkdir {work}
        mount -t tmpfs none {work}
        mkdir {work}/upper {work}/work {work}/store
        mount -t overlay -o lowerdir={lab.sample.root},upperdir={work}/upper,workdir={work}/work none {work}/store
        ROLLOUTFS_REQUEST_LOOP=ours {python} -m rolloutfs mount --passthrough {work}/store {mount}
        for name in current current; do cmp {mount}/threads/{thread}/rollouts/$name {lab.sample.path(thread)}; done
        {python} -m rolloutfs umount {mount}
        """,
    )
    assert lab.logs().count("Too many levels") == 1
