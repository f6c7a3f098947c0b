"""`rolloutfs show`: exactly the bytes that a mount gives."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from threadstore.projection import FamilyView, View

from tests.commands.conftest import HOSTILE, Ask, OpenStore, assert_harmless, say
from tests.conftest import CopyStore, Corpus
from tests.core.reading import content
from tests.mount.conftest import DEADLINE, Lab
from tests.tree.sample import SampleStore, message


@pytest.mark.parametrize("name", ["forks.paginated", "compressed.legacy", "images.paginated", "old_0.20.0_basic"])
def test_every_file(name: str, corpus: Corpus, open_store: OpenStore, ask: Ask) -> None:
    """Every derived file of every thread, with an index and without one."""
    home = corpus(name).home
    store = open_store(home)
    for _ in range(2):
        for thread in store.thread_ids():
            for view in View:
                shown = ask("show", thread, view.value, "--store", home).out
                assert shown.encode() == content(store, store.project(thread, view))
        ask("index", home)


def test_a_large_file(sample: SampleStore, open_store: OpenStore, ask: Ask) -> None:
    """One that is written in several pieces is whole."""
    thread = sample.add(1, *(f"{number} " * 2000 for number in range(300)))
    shown = ask("show", thread, "full_history.jsonl", "--store", sample.root).out.encode()
    assert len(shown) > 2 << 20
    store = open_store(sample.root)
    assert shown == content(store, store.project(thread, View.FULL_HISTORY))


def test_as_mounted(lab: Lab) -> None:
    """The same as `cat` of the mounted file; thread.json is what is shown unless another one is named."""
    thread = lab.sample.add(1, "hello", HOSTILE)
    lab.mount()
    for view in View:
        path = lab.thread(thread) / ("lineage" if view is View.LINEAGE else "") / view.value
        shown = lab.run("show", thread, view.value, "--store", lab.sample.root).stdout.encode()
        assert path.exists() is (view not in (View.DROPPED, View.DROPPED_TURNS))  # the thread was never reverted
        assert shown == (path.read_bytes() if path.exists() else b"")
    assert (
        lab.run("show", thread, CODEX_HOME=str(lab.sample.root)).stdout.encode()
        == (lab.thread(thread) / "thread.json").read_bytes()
    )


def test_files_of_families_and_turns(lab: Lab, corpus: Corpus) -> None:
    """The same as in a mount, by every name that leads to a turn there; and as a path into it."""
    shutil.copytree(corpus("forks.paginated").home, lab.sample.root, dirs_exist_ok=True)
    lab.mount()
    home = str(lab.sample.root)
    count = 0
    for folder in sorted((lab.mountpoint / "threads").iterdir()):
        inside = [*folder.glob("lineage/family.*"), *folder.glob("turns/*/*.*"), *folder.glob("turns/*/calls/*")]
        inside += [folder / "turns/-1/usage.json", folder / "turns/1/items.jsonl"]
        for path in filter(Path.exists, inside):
            file = str(path.relative_to(folder))
            assert lab.run("show", folder.name, file, "--store", home).stdout.encode() == path.read_bytes(), file
            count += 1
    assert count > 20
    path = next((lab.mountpoint / "threads").glob("*/turns/last/user.md"))
    assert lab.run("show", path).stdout.encode() == path.read_bytes()


def test_turns_and_files_that_are_not_there(sample: SampleStore, ask: Ask) -> None:
    """What there is instead is told."""
    thread = sample.add(1, "hello")
    say(sample, thread, "hello")
    for file, code, told in (
        ("turns/9/user.md", 8, "no turn '9': rolloutfs log lists them"),
        ("turns/0/user.md", 8, "no turn '0'"),
        ("turns/last/nothing", 8, "there are "),
        ("turns/last", 2, "turns/last is a folder"),
        ("turns", 2, "turns/last/user.md"),
    ):
        shown = ask("show", thread, file, "--store", sample.root, code=code)
        assert shown.out == ""
        assert told in shown.err


def test_a_reader_that_goes_away(lab: Lab) -> None:
    """`head` ends early; that is no error, and nothing is said."""
    thread = lab.sample.add(1, *("x" * 10_000 for _ in range(1000)))
    command = [sys.executable, "-m", "rolloutfs", "show", thread, "full_history.jsonl", "--store", str(lab.sample.root)]
    with subprocess.Popen(command, env=lab.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"{"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(DEADLINE) == 0


@pytest.mark.parametrize(
    "words",
    [
        ("show", "{thread}"),
        ("show", "{thread}", "full_history.jsonl"),
        ("ls",),
        ("check",),
        ("status", "--json"),
        ("tree",),
        ("--help",),
        ("unbuffered", "show", "{thread}", "full_history.jsonl"),
        ("unbuffered", "--help"),
    ],
    ids=" ".join,
)
def test_a_full_disk(words: tuple[str, ...], lab: Lab) -> None:
    """One line says that the output can't be written, and Python adds nothing, also where it is told not to buffer."""
    environment = {**lab.environment, "PYTHONUNBUFFERED": "1" * (words[0] == "unbuffered")}
    words = words[words[0] == "unbuffered" :]
    thread = lab.sample.add(1, "hello" * 1_000_000)
    arguments = [word.format(thread=thread) for word in words]
    store = [] if words == ("--help",) else ["--store", str(lab.sample.root)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rolloutfs", *arguments, *store],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=DEADLINE,
        )
    assert done.stderr.decode() in (
        "rolloutfs: the output can't be written: No space left on device.\n",
        "1 thread, 0 problems.\n",  # which is not the output
    )
    assert done.returncode == 9


@pytest.mark.parametrize(
    ("words", "code", "closed"),
    [(("ls",), 0, ">&-"), (("show", "01a2"), 0, "<&- >&- 2>&-"), (("show", "nobody"), 8, "<&- >&- 2>&-")],
)
def test_no_output_at_all(words: tuple[str, ...], code: int, closed: str, lab: Lab) -> None:
    """Who closed it wants to hear nothing, and that is no error."""
    lab.sample.add(1, "hello")
    command = [sys.executable, "-m", "rolloutfs", *words, "--store", str(lab.sample.root)]
    bash = ["bash", "-c", f'exec "$@" {closed}', "-", *command]
    done = subprocess.run(bash, env=lab.environment, stderr=subprocess.PIPE, check=False, timeout=DEADLINE)
    assert (done.returncode, b"Traceback" in done.stderr, b"itself" in done.stderr) == (code, False, False)
    assert code or done.stderr == b""


def test_what_is_done_is_done(lab: Lab) -> None:
    """Also when a command can't say so: its words go to stderr."""
    lab.sample.add(1, "hello")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rolloutfs", "index", str(lab.sample.root)],
            env=lab.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=DEADLINE,
        )
    assert done.returncode == 0
    assert done.stderr.startswith("rolloutfs: 1 threads, of which 1 had changed")
    assert done.stderr.count("\n") == 1


def test_names_and_beginnings(copy_store: CopyStore, open_store: OpenStore, ask: Ask) -> None:
    """A thread is found by the beginning of its id in any case, and by its name where only one has it."""
    home = copy_store("named.legacy").home
    store = open_store(home)
    names = {thread: store.name(thread) for thread in store.thread_ids()}
    thread = next(thread for thread, name in names.items() if name == "New name")
    whole = ask("show", thread, "--store", home).out
    for wanted in (thread[:13], thread.upper(), "New name"):
        assert ask("show", wanted, "--store", home).out == whole
    assert "threads are called 'First name'" in ask("show", "First name", "--store", home, code=8).err
    error = ask("show", thread[:4], "--store", home, code=8).err
    assert "give more of it" in error
    beginnings = [line.split()[0] for line in error.splitlines()[1:]]
    assert [[one for one in names if one.startswith(told)] for told in beginnings] == [
        [one] for one in sorted(names)[::-1]
    ]
    for wanted in ("nobody", "", "../x", HOSTILE.replace("\0", "")):
        error = ask("show", wanted, "--store", home, code=8).err
        assert "There is no thread" in error
        assert_harmless(error)
        assert error.count("\n") == 1


def test_refusals(copy_store: CopyStore, ask: Ask, tmp_path: Path) -> None:
    """Another file, a file that can't be given, no store: a sentence and a code each."""
    home = copy_store("revert_forked.paginated").home
    (first, *_) = sorted(home.rglob("rollout-*.jsonl"))
    assert "has no file 'x\\x1b'" in ask("show", "01", "x\x1b", "--store", home, code=2).err
    assert "no store" in ask("show", "01", "--store", tmp_path / "none", code=3).err
    heads = [path for path in sorted(home.rglob("rollout-*.jsonl")) if path != first]
    first.unlink()
    codes = set()
    for path in heads:
        thread = path.stem[28:64]
        try:
            ask("show", thread, "effective_history.jsonl", "--store", home, code=9)
            codes.add(9)
        except AssertionError:
            ask("show", thread, "effective_history.jsonl", "--store", home)
    assert codes == {9}


def test_damage_stays_as_it_is(sample: SampleStore, ask: Ask, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Bytes that are no UTF-8 come out as they lie in the log."""
    thread = sample.add(1, "hello")
    with sample.path(thread).open("ab") as file:
        file.write(message("again").replace(b"again", b"ag\\u001bain"))
    assert "ag\\u001bain" in ask("show", thread, "full_history.jsonl", "--store", sample.root).out


def test_one_turn_is_no_turns(sample: SampleStore, ask: Ask) -> None:
    """A refusal counts turns as people do."""
    thread = sample.add(1, "one")
    say(sample, thread, "one")
    told = ask("fork", "--store", sample.root, thread, "before", "3", code=8).err
    assert "The thread has 1 turn; see" in told


def test_help_lists_all_files(ask: Ask) -> None:
    """Every derived file that can be shown is named."""
    told = ask("show", "--help").out.partition("Files: ")[2].partition(";")[0]
    assert set(told.replace(",", " ").split()) == {one.value for one in (*View, *FamilyView)}
