"""mount(8) with `fuse.rolloutfs` and `rolloutfs`, by the system's own mount, in a namespace with its own /etc.

There the tests may put a line into fstab, a user into passwd and a helper where mount(8) looks for it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutfs import mounthelper
from rolloutfs.errors import Exit, MountError
from tests.mount.clients import need, need_root
from tests.mount.conftest import DEADLINE, Lab
from tests.mount.namespaces import open_folder
from tests.tree.sample import sample_store

AGENT = 4711
_AS_AGENT = f"setpriv --reuid={AGENT} --regid={AGENT} --clear-groups --"
# How mount(8) is led to us: the link, and the type that is mounted.
WAYS = {
    "mount.fuse3": ("/usr/local/bin/rolloutfs", "fuse.rolloutfs"),
    "mount.fuse.rolloutfs": ("/usr/sbin/mount.fuse.rolloutfs", "fuse.rolloutfs"),
    "mount.rolloutfs": ("/usr/sbin/mount.rolloutfs", "rolloutfs"),
}


@pytest.fixture
def agents() -> Iterator[Lab]:
    """A store that belongs to another user, who has a home, and an empty folder that belongs to root."""
    need_root("mount with mount(8)")
    for program in ("unshare", "setpriv"):
        need(program, "util-linux")
    need("mount.fuse3", "fuse3")
    if not Path(sys.executable).with_name("mount.rolloutfs").exists():
        pytest.skip("mount.rolloutfs is not beside the interpreter: run the tests in .venv, after `make setup`")
    with open_folder() as folder:
        lab = Lab(folder, sample_store(folder / "store"), folder / "mnt")
        (folder / "home").mkdir()
        lab.mountpoint.mkdir()
        lab.sample.add(1, "hello", *("x" * 1000 for _ in range(600)))  # more than is replayed without a worker
        for path in (lab.sample.root, *lab.sample.root.rglob("*"), folder / "home"):
            os.chown(path, AGENT, AGENT)
        yield lab


def inside(lab: Lab, script: str, way: str = "mount.fuse3", fstab: str = "") -> subprocess.CompletedProcess[str]:
    """Run a shell script where the user `agent` exists; what it mounts is gone with it."""
    target, _ = WAYS[way]
    program = Path(sys.executable).with_name(os.path.basename(target).replace(".fuse.", "."))
    places = {name: lab.folder / name for name in ("passwd", "fstab", "bin", "sbin")}
    places["passwd"].write_text(
        f"{Path('/etc/passwd').read_text()}\nagent:x:{AGENT}:{AGENT}::{lab.folder}/home:/bin/sh\n"
    )
    places["fstab"].write_text(fstab)
    for name in ("bin", "sbin"):
        places[name].mkdir()
    for helper in ("mount.fuse", "mount.fuse3"):
        shutil.copy(shutil.which("mount.fuse3") or "", places["sbin"] / helper)
    link = places["sbin" if "sbin" in target else "bin"] / os.path.basename(target)
    link.symlink_to(program)
    check = subprocess.run(
        [*shlex.split(_AS_AGENT), program.with_name("python"), "-c", "import rolloutfs.mount"],
        capture_output=True,
        cwd="/",
        check=False,
    )
    if check.returncode != 0:
        pytest.skip("the interpreter can't be run by every user: make .venv with one that doesn't lie below /root")
    setup = f"""
        mount --bind {places["passwd"]} /etc/passwd
        mount --bind {places["fstab"]} /etc/fstab
        mount --bind {places["bin"]} /usr/local/bin
        mount --bind {places["sbin"]} /usr/sbin
        """
    done = subprocess.run(
        [
            "unshare",
            "-m",
            "bash",
            "-uc",
            f"set -e; {setup}\nset +e; cd /; S={lab.sample.root} M={lab.mountpoint}; {script}",
        ],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE * 4,
        check=False,
    )
    if "permission denied" in done.stderr and done.returncode == 32 and not done.stdout:
        pytest.skip(f"mount(8) isn't allowed here: {done.stderr.strip()}")
    return done


READ = "sh -c 'cat $0/threads/*/effective_history.jsonl | wc -l'"


@pytest.mark.parametrize("way", WAYS)
def test_root_mounts_for_the_owner_of_the_store(agents: Lab, way: str) -> None:
    """By each way: the owner reads the tree, everybody who isn't the owner, root too, doesn't, and nothing of ours is
    root's. The mount is gone with its server.
    """
    _, kind = WAYS[way]
    script = f"""
        mount -t {kind} $S $M || exit 90
        {_AS_AGENT} {READ} $M
        ls $M 2>/dev/null && exit 91
        grep -c " $M fuse.rolloutfs rw,.*user_id={AGENT}" /proc/mounts
        server=$(pgrep -u {AGENT} -f "$M" | head -1)
        grep -E '^(Uid|Gid|CapPrm|Groups)' /proc/$server/status
        umount $M || exit 92
        tail --pid=$server -f /dev/null
        """
    done = inside(agents, script, way)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [
        *("601", "1", "Uid:", *[str(AGENT)] * 4, "Gid:", *[str(AGENT)] * 4),
        *("Groups:", str(AGENT), "CapPrm:", "0" * 16),
    ]
    made = list((agents.folder / "home").rglob("*"))
    assert made
    assert {path.stat().st_uid for path in made} == {AGENT}
    assert [path for path in made if path.suffix == ".log" and path.read_bytes()] == []


def test_roots_environment_is_left_behind(agents: Lab) -> None:
    """Called by hand: the folders that root's variables name get nothing, those of the owner do."""
    roots = agents.folder / "roots"
    roots.mkdir()
    roots.chmod(0o777)
    variables = f"export XDG_STATE_HOME={roots} XDG_CACHE_HOME={roots} HOME={roots}"
    done = inside(agents, f"{variables}; /usr/sbin/mount.rolloutfs $S $M -v || exit 90; umount $M", "mount.rolloutfs")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"is mounted on {agents.mountpoint}" in done.stdout
    assert list(roots.iterdir()) == []
    assert list((agents.folder / "home").rglob("*.log"))


def test_an_owner_without_an_entry_in_passwd(agents: Lab) -> None:
    """A store from another machine: served by the number alone, in no group of anybody's, with no home."""
    stranger = AGENT + 1
    temporary = agents.folder / "tmp"
    temporary.mkdir()
    temporary.chmod(0o777)
    for path in (agents.sample.root, *agents.sample.root.rglob("*")):
        os.chown(path, stranger, 0)
    script = f"""
        TMPDIR={temporary} /usr/sbin/mount.rolloutfs $S $M || exit 90
        server=$(pgrep -u {stranger} -f "$M" | head -1)
        grep -E '^(Uid|Gid|Groups)' /proc/$server/status
        umount $M || exit 91
        tail --pid=$server -f /dev/null
        """
    done = inside(agents, script, "mount.rolloutfs")
    assert (done.returncode, done.stderr) == (0, "")
    numbers = [*("Uid:", *[str(stranger)] * 4), *("Gid:", *["65534"] * 4), "Groups:", "65534"]
    assert done.stdout.split() == numbers
    assert [path.name for path in temporary.rglob("spool-*")] == []


@pytest.mark.parametrize("options", [f"uid={AGENT}", "user=agent"])
def test_a_line_of_fstab(agents: Lab, options: str) -> None:
    """`mount DIR` is enough; ro leaves the control files out, allow_other lets root in without /etc/fuse.conf, and the
    server unmounts what root has mounted for it.
    """
    fstab = f"{agents.sample.root} {agents.mountpoint} fuse.rolloutfs noauto,x-systemd.automount,nofail,ro,allow_other,"
    script = """
        mount $M || exit 90
        ls $M/threads/*/fork 2>/dev/null
        sh -c 'cat $0/threads/*/effective_history.jsonl | wc -l' $M
        server=$(pgrep -u 4711 -f "$M" | head -1)
        kill $server
        tail --pid=$server -f /dev/null
        grep -c " $M " /proc/mounts
        """
    os.chown(agents.sample.root, 0, 0)  # so that it is the option that counts
    done = inside(agents, script, fstab=f"{fstab}{options} 0 0\n")
    assert (done.stdout.split(), done.stderr) == (["601", "0"], "")


@pytest.mark.parametrize("way", WAYS)
def test_status_tells_what_mount_made(agents: Lab, way: str) -> None:
    """The store and the server of a mount that fstab has made, by each way; and `mount -a` knows that it is there."""
    fstab = f"{agents.sample.root} {agents.mountpoint} {WAYS[way][1]} ro 0 0\n"
    script = f"""
        mount -a || exit 90
        mount -a || exit 91
        grep -c " $M " /proc/mounts
        pgrep -u {AGENT} -f "$M" | head -1
        {Path(sys.executable).with_name("rolloutfs")} status --json
        umount $M || exit 92
        """
    done = inside(agents, script, way, fstab=fstab)
    assert (done.returncode, done.stderr) == (0, "")
    count, server, told = done.stdout.splitlines()
    (mount,) = (one for one in json.loads(told)["mounts"] if one["mountpoint"] == str(agents.mountpoint))
    assert (count, mount["store"], mount["pid"]) == ("1", str(agents.sample.root), int(server))


def test_root_may_stay_root(agents: Lab) -> None:
    """uid=0 says so; then it is root who looks in, with what its own variables say, and the owner who doesn't."""
    script = f"""
        export {" ".join(f"XDG_{name}_HOME={agents.folder}/roots" for name in ("CACHE", "CONFIG", "STATE"))}
        /usr/sbin/mount.rolloutfs $S $M -o uid=0 || exit 90
        ls $M
        {_AS_AGENT} ls $M && exit 91
        umount $M
        """
    done = inside(agents, script, "mount.rolloutfs")
    assert done.returncode == 0, done.stderr
    assert "threads\n" in done.stdout
    assert {path.stat().st_uid for path in (agents.folder / "roots").rglob("*")} == {0}


def test_passthrough_is_for_who_stays_root(agents: Lab) -> None:
    """Else one line on the terminal says so, and the owner has the mount as it always is."""
    script = f"""
        export XDG_STATE_HOME={agents.folder}/roots XDG_CACHE_HOME={agents.folder}/roots
        mount -t rolloutfs -o passthrough $S $M || exit 90
        {_AS_AGENT} {READ} $M
        umount $M || exit 91
        /usr/sbin/mount.rolloutfs $S $M -o passthrough,uid=0 || exit 92
        {READ} $M
        umount $M
        """
    done = inside(agents, script, "mount.rolloutfs")
    assert (done.returncode, done.stdout.split()) == (0, ["601", "601"]), done.stderr
    (line,) = done.stderr.splitlines()
    assert "Without passthrough" in line
    assert "only root" in line


def test_a_user_mounts_by_fstab(agents: Lab) -> None:
    """With `user` in the line whoever may read the store mounts it for himself, on a folder of his own."""
    os.chown(agents.mountpoint, AGENT, AGENT)
    fstab = f"{agents.sample.root} {agents.mountpoint} fuse.rolloutfs noauto,user 0 0\n"
    script = f"""
        mknod -m 0666 {agents.folder}/fuse c 10 229; mount --bind {agents.folder}/fuse /dev/fuse
        export HOME={agents.folder}/home
        {_AS_AGENT} mount $M || exit 90
        {_AS_AGENT} {READ} $M
        {_AS_AGENT} fusermount3 -u $M || exit 91
        """
    done = inside(agents, script, fstab=fstab)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[0] == "601"


_CASES = [
    ("-o allow_othr $S $M", 1, "allow_othr"),
    ("-o uid=nobody-at-all $S $M", 1, "no user nobody-at-all"),
    ("/nowhere $M", 32, "no store"),
    ("$S /usr", 32, "not empty"),
    ("-s -f -o allow_othr $S $M", 0, ""),  # mount.fuse3 takes neither of them
]


@pytest.mark.parametrize(
    ("way", "arguments", "code", "told"),
    [(way, *case) for way in WAYS for case in _CASES if way != "mount.fuse3" or "-s" not in case[0]],
)
def test_exit_codes_of_mount(agents: Lab, way: str, arguments: str, code: int, told: str) -> None:
    """They reach the caller of mount(8) as they are, with a reason, and nothing is mounted. -s passes over options."""
    done = inside(agents, f"mount -t {WAYS[way][1]} {arguments}; code=$?; grep -c $M /proc/mounts; exit $code", way)
    assert (done.returncode, done.stdout.split()) == (code, ["0"])
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_what_mount_says_is_understood() -> None:
    """The order and the letters of mount(8); whose mount it is isn't handed on as an option."""
    call = mounthelper.parse(["S", "D", "-sfnv", "-o", "rw,uid=7", "-o", "user,ro", "-t", "fuse.rolloutfs"])
    assert call == mounthelper.Call("S", "D", ("rw", "user", "ro"), "7", fake=True, sloppy=True, verbose=True)
    assert mounthelper.parse(["-r", "-N", str(os.getpid()), "S", "D"]) == mounthelper.Call("S", "D", ("ro",))


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """What it is, and where its options are described."""
    assert mounthelper.run(["--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("mount.rolloutfs STORE DIR")
    assert "rolloutfs mount" in told


@pytest.mark.parametrize("line", ["S", "S D E", "S D -x", "S D -t ext4", "S D -N /nowhere", "S D -o"])
def test_what_is_no_call_of_mount_is_refused(line: str) -> None:
    """As usage, which is 1 for mount(8)."""
    with pytest.raises(MountError) as refused:
        mounthelper.parse(line.split())
    assert refused.value.code == Exit.USAGE


def test_a_command_line_without_a_command(lab: Lab) -> None:
    """`rolloutfs STORE DIR -o …` mounts as mount(8) would, in the background and without a word; a relative first
    word is still a command.
    """
    thread = lab.sample.add(1)
    done = lab.run(lab.sample.root, lab.mountpoint, "-o", "ro,dev,suid", code=0)
    assert (done.stdout, done.stderr) == ("", "")
    assert os.listdir(lab.mountpoint / "threads") == [thread]
    lab.run("umount", lab.mountpoint)
    lab.run("store", lab.mountpoint, code=2)
