"""Ordinary programs say of a mount what they say of the same tree as plain files (issue 2, "Real tools"; FUSE 6.1).

One mount serves a store of many kinds of threads: forks, reverts, checkpoints, sub-agents, archived,
compressed and damaged ones.
`tests/mount/plain.py` writes the same tree as files.  Every command runs in both with the same relative paths, so its
output must be the same to the last byte.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from threadstore.projection import FamilyView

from tests.conftest import CopyStore
from tests.mount.clients import (
    CUT,
    assert_alike,
    mixed_store,
    mounted,
    need,
    need_root,
    outcome,
    python,
    run,
    serving,
)
from tests.mount.conftest import Lab
from tests.mount.namespaces import NOBODY, as_nobody, copy_tree, give_to_nobody, open_folder
from tests.mount.plain import last_time, raw_files, write_tree


@dataclass(frozen=True, slots=True)
class Trees:
    """A store, its mount, and the same tree as plain files."""

    store: Path
    mount: Path
    plain: Path

    def threads(self) -> list[str]:
        """The threads' names, sorted."""
        return sorted(path.name for path in (self.plain / "threads").iterdir())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of many kinds of threads, that nobody changes."""
    root = tmp_path_factory.mktemp("tools") / "store"
    mixed_store(root)
    return root


@pytest.fixture(scope="module")
def trees(store: Path) -> Iterator[Trees]:
    """The store mounted, and as plain files."""
    with serving(store.with_name("lab"), store) as lab, mounted(lab) as mount:
        plain = store.with_name("plain")
        write_tree(store, mount, plain)
        yield Trees(store, mount, plain)


FILES = "find . -type f -print0 | sort -z"
SOME = "find threads store -type f -name '*[aeh].json*' -print0 | sort -z"

#: What is compared, by the program that it is about. Listings are sorted: their order is the file system's own.
COMMANDS: dict[str, str] = {
    "ls": "ls -AR1 --indicator-style=classify",
    "find-type": "for type in f d l p s b c; do find . -type $type | sort; done",
    "find-size": "for size in 0 +8k -1025c +300k; do echo $size; find . -type f -size $size | sort; done",
    "find-empty": "find . -type f -empty | sort",
    "find-newer": "find . -newer threads | sort; find . -newermt '2026-11-29 21:35' | sort",
    "find-perm": "find . ! -type l ! -perm 0400 ! -perm 0700 -printf '%m %p\\n' | sort; find . -perm /077 ! -type l",
    "find-files": "find . -type f -printf '%p %s %T@ %m %n %u %g %y\\n' | sort",
    "find-folders": "find . -type d -printf '%p %T@ %m %u %g\\n' | sort",
    "find-links": "find . -type l -printf '%p %l %s %T@ %m\\n' | sort; find . -xtype l ! -name turns | sort",
    "find-targets": "find . -type l ! -name turns -printf '%p %Y\\n' | sort",  # that of turns is in no copy
    "readlink": 'find . -type l -print0 | sort -z | xargs -0 readlink -f | sed "s|^$(pwd -P)||"',
    "du": f"{FILES} | du --files0-from=- --apparent-size -bc",
    "wc": f"{FILES} | wc --files0-from=-",
    "cat": f"{FILES} | xargs -0 cat | sha256sum",
    "cat-n": f"{SOME} | xargs -0 cat -A | md5sum",
    "head-c": f"{FILES} | xargs -0 head -v -c 1000",
    "head-n": f"{FILES} | xargs -0 head -v -n 2 | cut -c -300",
    "head-but": f"{FILES} | xargs -0 head -v -c -1000 | sha256sum",
    "tail-c": f"{FILES} | xargs -0 tail -v -c 777",
    "tail-c+": f"{FILES} | xargs -0 tail -v -c +5001 | sha256sum",
    "tail-n": f"{FILES} | xargs -0 tail -v -n 2 | cut -c -300",
    "tac": f"{FILES} | xargs -0 tac | sha256sum",
    "grep": "grep -rnaF 'the' . | cut -c -200 | sort",
    "grep-c": "grep -rc '' . | sort",
    "grep-l": "grep -rlE 'exec_command|apply_patch' . | sort",
    "grep-q": "grep -rF 'nowhere to be found'",
    "grep-binary": "grep -r compacted . | cut -c -200 | sort",
    "sed": f"{SOME} | xargs -0 sed -n '$p'",
    "awk": f"{SOME} | xargs -0 awk 'END {{ print NR, FILENAME }}'",
    "sha256sum": f"{FILES} | xargs -0 sha256sum",
    "sort": f"{SOME} | sort --files0-from=- | sha256sum",
    "split": f"{SOME} | xargs -0 -n 1 split -n 2/3 | sha256sum",
    "od": f"{SOME} | xargs -0 od -A x -t x1z | sha256sum",
    "dd": f"{SOME} | xargs -0 -I % dd if=% bs=977 skip=1 count=3 status=none | sha256sum",
    "dd-whole": f"{SOME} | xargs -0 -I % dd if=% bs=4097 status=none | sha256sum",
    "dd-bytes": f"{SOME} | xargs -0 -I % dd if=% iflag=skip_bytes,count_bytes skip=333 count=7001 status=none | md5sum",
    "gzip": f"{SOME} | xargs -0 gzip -c | sha256sum",
}

#: The same for programs that have to be installed: program, package, command.
INSTALLED: dict[str, tuple[str, str, str]] = {
    "rg": ("rg", "ripgrep", "rg --sort path -n the . | cut -c -200"),
    "rg-mmap": ("rg", "ripgrep", "rg --sort path --mmap -n user . | cut -c -200"),
    "rg-no-mmap": ("rg", "ripgrep", "rg --sort path --no-mmap -c user ."),
    "rg-parallel": ("rg", "ripgrep", "rg -a -c user . | sort"),
    "rg-z": ("rg", "ripgrep", "rg --sort path -z -c user ."),
    "rg-files": ("rg", "ripgrep", "rg --files | sort"),
    "jq-lines": ("jq", "jq", "find threads -maxdepth 2 -name '*.jsonl' | sort | xargs jq -c 'keys, input_line_number'"),
    "jq-rollouts": ("jq", "jq", "ls threads/*/rollouts/current | head -30 | xargs -n 1 jq -c .type"),
    "jq-pages": ("jq", "jq", "find threads -name '*.json' | sort | xargs jq -r 'paths | tostring'"),
    "less": ("less", "less", f"{SOME} | xargs -0 less -F"),
    "zstd": ("zstd", "zstd", f"{SOME} | xargs -0 zstd -q -c | sha256sum"),
    "zstd-d": ("zstd", "zstd", "find store -name '*.zst' | sort | xargs -n 1 zstd -dcq | sha256sum"),
    "vim": (
        "vim",
        "vim",
        "find threads -name turns.jsonl | sort | head -20 | xargs -I % vim -es -u NONE -i NONE -c %print -c q! %",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_output_is_that_of_plain_files(trees: Trees, name: str) -> None:
    """Programs that every system has."""
    assert_alike(COMMANDS[name], trees.mount, trees.plain)


@pytest.mark.parametrize("name", INSTALLED)
def test_output_of_installed_programs_is_that_of_plain_files(trees: Trees, name: str) -> None:
    """Programs that have to be installed."""
    program, package, command = INSTALLED[name]
    need(program, package)
    assert_alike(command, trees.mount, trees.plain)


def test_the_commands_have_something_to_show(trees: Trees) -> None:
    """The comparisons above are worth something: the tree has everything that they look for."""
    assert len(trees.threads()) > 40
    for command in ("find-size", "find-newer", "grep-l", "head-c", "readlink"):
        assert len(run(COMMANDS[command], trees.plain).split(b"\n")) > 20
    assert outcome(COMMANDS["grep-q"], trees.plain)[0] == 1
    for kind in ("forks/", "agents/", "forked_from", "parent", "archived_sessions/", "_0"):
        assert f"{kind}".encode() in run("find .", trees.plain)
    assert (trees.plain / "threads" / CUT / "rollouts").exists()
    assert any(file.path.suffix == ".zst" and file.content for file in raw_files(trees.store))


def test_long_listing(trees: Trees) -> None:
    """`ls -lR` shows modes, owners, exact sizes, times and targets. Blocks, and sizes and links of folders, are each
    file system's own.
    """

    def listing(folder: Path) -> list[str]:
        text = re.sub(" +", " ", run("ls -lAR --time-style=full-iso", folder).decode())
        text = re.sub(r"^total \d+$", "total", text, flags=re.MULTILINE)
        return re.sub(r"^(d\S+) \d+ (\w+ \w+) \d+", r"\1 \2", text, flags=re.MULTILINE).splitlines()

    got = listing(trees.mount)
    assert got == listing(trees.plain)
    assert any(line.startswith("-r--------") for line in got)
    assert any(line.startswith("drwx------") for line in got)


def test_times_are_those_of_the_last_records(trees: Trees) -> None:
    """A thread's mtime is the time in the last record of its selected rollout; a file of store/ has its own."""
    checked = 0
    for file in raw_files(trees.store):
        shown = trees.mount / "store" / file.path.relative_to(trees.store)
        assert shown.stat().st_mtime_ns == file.path.stat().st_mtime_ns
        folder = trees.mount / "threads" / file.thread
        if (
            os.readlink(folder / "rollouts/current") == file.name
            and file.content.endswith(b"\n")
            and file.path.suffix != ".zst"
        ):
            time = last_time(file.content)
            of_family = {folder / "lineage" / view.value for view in FamilyView}
            own = {folder, *folder.rglob("*")} - of_family
            assert {path.lstat().st_mtime_ns for path in own} == {time}
            assert min(path.lstat().st_mtime_ns for path in of_family) >= (time or 0)
            checked += 1
    assert checked > 40


# Copies


def test_diff(trees: Trees) -> None:
    """The two trees are the same for `diff -r`; without links for every thread by itself, too."""
    assert run(f"diff -r --no-dereference . {shlex.quote(str(trees.plain))}", trees.mount) == b""
    for thread in trees.threads()[:5]:
        assert run(f"diff -r rollouts {trees.plain}/threads/{thread}/rollouts", trees.mount / "threads" / thread) == b""


STATE = "find . ! -type d -printf '%p %s %T@ %m %y %l %u %g\\n' -o -printf '%p %T@ %m %u %g\\n' | sort"


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("cp", "cp -a . {copy}"),
        ("tar", "mkdir {copy} && tar --format=posix -cf - . | tar xpf - -C {copy}"),
        ("rsync", "rsync -aH . {copy}"),
    ],
)
def test_copies_are_complete(trees: Trees, tmp_path: Path, program: str, command: str) -> None:
    """A copy has all names, bytes, modes, times and links."""
    need(program, program)
    copy = tmp_path / "copy"
    run(command.format(copy=shlex.quote(str(copy))), trees.mount)
    assert run(f"diff -r --no-dereference {shlex.quote(str(copy))} .", trees.plain) == b""
    assert run(STATE, copy) == run(STATE, trees.plain)


def test_tar_compares(trees: Trees, tmp_path: Path) -> None:
    """An archive of either tree is equal to the other one for `tar --compare`."""
    for source, other in ((trees.mount, trees.plain), (trees.plain, trees.mount)):
        archive = shlex.quote(str(tmp_path / f"{source.name}.tar"))
        run(f"tar cf {archive} .", source)
        assert run(f"tar --compare -f {archive}", other) == b""


@pytest.mark.slow
def test_rsync_transfers_nothing_twice(store: Path, tmp_path: Path) -> None:
    """A second `rsync -a` finds nothing to do: at once, after a remount, and mounted at another path."""
    need("rsync", "rsync")
    copy = tmp_path / "copy"
    again = f"rsync -a --delete --itemize-changes . {shlex.quote(str(copy))}"
    with serving(tmp_path / "lab", store) as lab:
        with mounted(lab) as mount:
            assert run(again, mount).count(b"\n") > 1000
            assert run(again, mount) == b""
        with mounted(lab) as mount:
            assert run(again, mount) == b""
        with mounted(lab, at=tmp_path / "another place" / "mount") as mount:
            assert run(again, mount) == b""
            assert run(again.replace("-a ", "-ac "), mount) == b""


# Single files, in every way that they can be read


READ_SOMEHOW = r"""
import mmap, os, random, sys
mount, plain = sys.argv[1:]
chance = random.Random(1)
count = 0
for top, _, names in os.walk(plain):
    for name in names:
        if name == "turns":  # a link into what is in no copy
            continue
        path = os.path.join(top, name)
        other = os.path.join(mount, os.path.relpath(path, plain))
        with open(path, "rb") as file:
            wanted = file.read()
        with open(other, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            assert size == len(wanted), (other, size, len(wanted))
            assert os.lseek(file.fileno(), 0, os.SEEK_END) == size
            for _ in range(25):
                start = chance.choice((chance.randrange(size + 1), chance.randrange(size + 9000), size))
                length = chance.choice((1, chance.randrange(1, 300), 4096, chance.randrange(1, 200_000)))
                assert os.pread(file.fileno(), length, start) == wanted[start : start + length], (other, start, length)
                count += 1
            if size and name not in ("fork", "revert", "compact"):  # what answers can't be mapped
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    assert mapped[:] == wanted, other
                    assert mapped.rfind(b"\n") == wanted.rfind(b"\n")
        with open(other, encoding="utf-8", errors="surrogateescape", newline="") as file:
            assert file.read().encode("utf-8", "surrogateescape") == wanted
        target = os.open(os.path.devnull, os.O_WRONLY)
        source = os.open(other, os.O_RDONLY)
        assert os.sendfile(target, source, 0, size + 10) == size, other
        os.close(source)
        os.close(target)
assert count > 10_000
"""


def test_random_reads_and_mapped_memory(trees: Trees, tmp_path: Path) -> None:
    """Any piece of any file read by `pread`, all of it mapped, as text and by `sendfile`, is the plain file's."""
    python(READ_SOMEHOW, trees.mount, trees.plain, cwd=tmp_path)


def test_direct_io(trees: Trees) -> None:
    """A program that asks for O_DIRECT gets the same bytes."""
    for name in ("effective_history.jsonl", "rollouts/current", "thread.json"):
        for thread in trees.threads()[:10]:
            path = f"threads/{thread}/{name}"
            got = run(f"dd if={path} iflag=direct bs=4096 status=none", trees.mount)
            assert got == (trees.plain / path).read_bytes()


def test_cmp(trees: Trees) -> None:
    """`cmp` agrees file by file."""
    plain = shlex.quote(str(trees.plain))
    run(f"{FILES} | xargs -0 -I % cmp % {plain}/%", trees.mount)


def test_an_editor_writes_the_same_bytes_elsewhere(trees: Trees, tmp_path: Path) -> None:
    """A file opened in vim, with a swap file if it can, and saved elsewhere is the same; the original stays."""
    need("vim", "vim")
    name = f"threads/{trees.threads()[3]}/full_history.jsonl"
    before = run(f"sha256sum {name}", trees.mount)
    outcome(f"vim -es -u NONE -i NONE -c 'w! {tmp_path}/saved' -c q! {name}", trees.mount)
    assert (tmp_path / "saved").read_bytes() == (trees.plain / name).read_bytes()
    code, _, _ = outcome(f"vim -es -u NONE -i NONE -c 'normal ix' -c w! -c q! {name}", trees.mount)
    assert code != 0
    assert run(f"sha256sum {name}", trees.mount) == before


#: Programs that believe the size that they are told, or don't (FUSE 6.1).
SIZE_SENSITIVE = (
    "cat {0}",
    "wc -c {0}",
    "wc {0}",
    "tail -c 100 {0}",
    "tail -n 1 {0}",
    "tac {0}",
    "head -c -10 {0}",
    "cp {0} /dev/stdout",
    "dd if={0} bs=1M status=none",
    "grep -c . {0}",
    "sort {0}",
    "gzip -nc {0}",
    "tar chf - {0} | tar xOf -",
    "python3 -c 'import mmap, sys; f = open(sys.argv[1]); print(mmap.mmap(f.fileno(), 0, prot=1)[:])' {0}",
    "stat -c %s {0}",
    "find {0} -size +200c",
    "sha256sum < {0}",
    "split -n 2/2 {0}",
    "du -b {0}",
    "test -s {0}",
)


@pytest.mark.parametrize("name", ["effective_history.jsonl", "thread.json", "rollouts/current", "lineage/lineage.json"])
def test_first_look_at_a_file_is_right(trees: Trees, tmp_path: Path, name: str) -> None:
    """Each program is right although nobody has looked at its file before, and a listing gave a placeholder as size."""
    big = [
        path.parent.name
        for path in (trees.plain / "threads").glob("*/effective_history.jsonl")
        if path.stat().st_size > 3000
    ]
    threads = (sorted(big) * len(SIZE_SENSITIVE))[: len(SIZE_SENSITIVE)]
    with serving(tmp_path / "lab", trees.store) as lab, mounted(lab) as mount:
        run("find . -type d", mount)
        for command, thread in zip(SIZE_SENSITIVE, threads, strict=True):
            assert_alike(command.format(f"threads/{thread}/{name}"), mount, trees.plain)


# Threads that can't be shown


def test_what_cannot_be_given_is_an_error_for_every_program(lab: Lab, tmp_path: Path) -> None:
    """A file without truthful content is an I/O error; it is never copied as an empty one, and the rest is complete."""
    good = lab.sample.add(1, "hello")
    base = {"thread_id": "01a22938-0000-7000-8000-00000000ffff", "end_byte_offset": 1000, "end_ordinal_exclusive": 3}
    bad = lab.sample.add(2, "hello", history_mode="paginated", history_base=base)
    lab.mount()
    threads = lab.mountpoint / "threads"
    code, output, errors = outcome(f"cat {bad}/effective_history.jsonl", threads)
    assert (code, output) == (1, b"")
    assert b"Input/output error" in errors
    failing = {path.name for path in (threads / bad).iterdir() if path.is_file() and outcome(f"cat {path}", threads)[0]}
    assert {"effective_history.jsonl", "model_input.jsonl"} <= failing
    assert "problems.jsonl" not in failing
    copy = shlex.quote(str(tmp_path / "copy"))
    for command in (
        f"cp -a . {copy}",
        f"rsync -a . {copy}",
        f"mkdir {copy}; tar cf - . | tar xf - -C {copy}",
        "grep -r hello",
    ):
        code, output, errors = outcome(command, threads)
        assert code != 0
        assert b"Input/output error" in errors
        if command.startswith("grep"):
            assert f"{good}/effective_history.jsonl".encode() in output
        else:
            copied = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*")}
            assert {f"{good}/effective_history.jsonl", f"{bad}/problems.jsonl"} <= copied
            if not command.startswith("mkdir"):  # tar fills up with NULs what it can't read, and says so
                assert not copied & {f"{bad}/{name}" for name in failing}
            run(f"rm -r {copy}", tmp_path)


# Somebody else than root

AS_NOBODY = ("find-files", "find-links", "wc", "grep", "sha256sum")


@pytest.mark.slow
def test_tools_of_an_unprivileged_user(trees: Trees) -> None:
    """Mounted by uid 65534 through fusermount3, the tree is theirs, and their tools find the same in it."""
    need_root("become somebody else")
    with open_folder() as folder, serving(folder / "lab", copy_tree(trees.store, folder / "store")) as lab:
        plain = copy_tree(trees.plain, lab.folder / "plain")
        for name in AS_NOBODY:
            (lab.folder / f"{name}.sh").write_text(COMMANDS[name])
        give_to_nobody(lab, lab.sample.root, plain)
        script = f"""
            cd {shlex.quote(str(lab.folder))}
            $PYTHON -m rolloutfs mount {shlex.quote(str(lab.sample.root))} mnt
            for name in {" ".join(AS_NOBODY)}; do
                (cd mnt && bash ../$name.sh > ../state/$name.mounted 2>&1)
                (cd plain && bash ../$name.sh > ../state/$name.plain 2>&1)
                cmp state/$name.mounted state/$name.plain && wc -l < state/$name.mounted
            done
            mkdir state/copy
            rsync -a mnt/ state/copy
            rsync -a --itemize-changes mnt/ state/copy
            stat -c %u:%a mnt mnt/README.md
            $PYTHON -m rolloutfs umount mnt
        """
        output = as_nobody(lab, script).splitlines()
        assert output[0].endswith(f"umount {lab.mountpoint}")
        counts = output[1 : 1 + len(AS_NOBODY)]
        assert all(int(count) > 0 for count in counts)
        assert output[1 + len(AS_NOBODY) :] == [f"{NOBODY}:700", f"{NOBODY}:400"]


@pytest.mark.parametrize("name", ["revert_once.paginated", "compressed.paginated"])
def test_places_in_transcripts(name: str, copy_store: CopyStore, tmp_path: Path) -> None:
    """What a transcript says where a revert dropped something is read as the README of the mount says."""
    home = copy_store(name).home
    with serving(tmp_path / "lab", home) as lab, mounted(lab):
        told = (
            run("grep -ho 'What had followed: `[^`]*' threads/*/transcript.md", lab.mountpoint).decode().split("`")[1]
        )
        path, _, offset = told.rpartition(":")
        if path.endswith(".zst"):
            path = f"threads/*/rollouts/{path.rpartition('/')[2].removesuffix('.zst')}"
        else:
            path = f"store/{path}"
        read = run(f"tail -c +{int(offset) + 1} {path}", lab.mountpoint)
        (whole,) = {run(f"cat {path}", lab.mountpoint)}
        assert read == whole[int(offset) :]
        assert whole[int(offset) - 1 : int(offset) + 1] == b"\n{"
        assert b"task_started" in read
