"""Whatever writes to a control file: a request is done once, an error is seen, a copy or a saved file starts nothing
(FUSE 6.3, issue 3.5).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.clients import Output, mounted, need, serving
from tests.mount.conftest import Lab
from tests.mount.control_lab import LEGACY, PAGINATED, operations, shell, state, stock

PYTHON = "python3 -c 'import sys; file = open(sys.argv[1], \"w\"); file.write(sys.argv[2]); file.close()'"
VIM = "vim -es -u NONE -i NONE -n"

#: Each asks for one fork. $LAB/latest is a file that says `latest`.
REQUESTS: dict[str, tuple[str, str]] = {
    "bash": ("bash", "echo latest > fork"),
    "bash-append": ("bash", "echo latest >> fork"),
    "bash-noclobber": ("bash", "set -o noclobber; echo latest >| fork"),
    "bash-printf": ("bash", "printf latest > fork"),
    "bash-comments": ("bash", "cat <<EOF > fork\n# why\n\nlatest\nEOF"),
    "bash-both-ways": ("bash", 'exec 3<>fork; echo latest >&3; [[ $(cat <&3) == *\'"status":"done"\'* ]]'),
    "bash-set-e": ("bash", "set -e; echo latest > fork; true"),
    "dash": ("dash", "echo latest > fork"),
    "dash-printf": ("dash", "printf latest >> fork"),
    "zsh": ("zsh", "echo latest > fork"),
    "echo": ("bash", "/bin/echo latest > fork"),
    "tee": ("tee", "echo latest | tee fork"),
    "tee-append": ("tee", "echo latest | tee -a fork > /dev/null"),
    "cp": ("cp", 'cp "$LAB/latest" fork'),
    "cp-preserving": ("cp", 'cp --preserve=timestamps "$LAB/latest" fork'),
    "cp-p": ("cp", 'chmod 640 "$LAB/latest"; cp -p "$LAB/latest" fork'),
    "rsync-a-inplace": ("rsync", 'rsync -a --inplace "$LAB/latest" fork'),
    "chmod-after": (
        "chmod",
        "echo latest > fork; chmod 640 fork; chown $(id -u):$(id -g) fork; touch -t 202601010000 fork",
    ),
    "cat": ("cat", 'cat "$LAB/latest" > fork'),
    "dd": ("dd", 'dd if="$LAB/latest" of=fork status=none'),
    "dd-notrunc": ("dd", 'dd if="$LAB/latest" of=fork conv=notrunc,fsync bs=1M status=none'),
    "python": ("python3", f"{PYTHON} fork latest"),
    "python-careless": ("python3", 'python3 -c \'open("fork", "w").write("latest")\''),
    "python-append": ("python3", 'python3 -c \'open("fork", "a").write("latest\\n")\''),
    "python-unbuffered": ("python3", 'python3 -c \'open("fork", "wb", buffering=0).write(b"latest")\''),
    "perl": ("perl", 'perl -e \'open(F, ">", "fork") or die; print F "latest\\n"; close(F) or die $!\''),
    "awk": ("awk", 'awk "BEGIN { print \\"latest\\" > \\"fork\\" }"'),
    "rsync-inplace": ("rsync", 'rsync --inplace -t "$LAB/latest" fork'),
    "vim": ("vim", f"{VIM} -c '%d' -c 'call setline(1, \"latest\")' -c 'wq!' fork"),
}

#: A request that is not understood, and what the program says about it.
MISTAKES: dict[str, tuple[str, str, str]] = {
    "bash": ("bash", "echo nonsense > fork", "write error: Invalid argument"),
    "bash-append": ("bash", "echo nonsense >> fork", "write error: Invalid argument"),
    "bash-printf": ("bash", "printf nonsense > fork", "write error: Invalid argument"),
    "bash-set-e": ("bash", "set -e; echo nonsense > fork; touch $LAB/went-on", "write error: Invalid argument"),
    "bash-handle": ("bash", "exec 3<>fork; echo nonsense >&3", "write error: Invalid argument"),
    "dash": ("dash", "echo nonsense > fork", "I/O error"),
    "dash-set-e": ("dash", "set -e; echo nonsense > fork; touch $LAB/went-on", "I/O error"),
    "zsh": ("zsh", "echo nonsense > fork", "write error"),
    "echo": ("bash", "/bin/echo nonsense > fork", "Invalid argument"),
    "tee": ("tee", "echo nonsense | tee fork > /dev/null", "Invalid argument"),
    "cp": ("cp", "cp $LAB/nonsense fork", "Invalid argument"),
    "cat": ("cat", "cat $LAB/nonsense > fork", "Invalid argument"),
    "dd": ("dd", "dd if=$LAB/nonsense of=fork status=none", "Invalid argument"),
    "python": ("python3", f"{PYTHON} fork nonsense", "Errno 22"),
    "perl": ("perl", 'perl -e \'open(F, ">", "fork"); print F "nonsense\\n"; close(F) or die $!\'', "Invalid arg"),
    "rsync-inplace": ("rsync", "rsync --inplace $LAB/nonsense fork", "Invalid argument"),
    "typo-in-the-name": ("bash", "echo latest > frok", "Operation not permitted"),
}

#: What copies, saves or restores without meaning a request. $OTHER is the folder of another thread of the mount, $COPY
#: a copy of that. The first number is 0 where the program has nothing to complain about.
HARMLESS: dict[str, tuple[int, str, str]] = {
    "cp": (0, "cp", 'for file in fork revert compact; do cp "$OTHER/$file" $file; done'),
    "cat": (0, "cat", 'for file in fork revert compact; do cat "$OTHER/$file" > $file; done'),
    "cat-append": (0, "cat", 'for file in fork revert compact; do cat "$OTHER/$file" >> $file; done'),
    "tee": (0, "tee", 'for file in fork revert compact; do tee $file < "$OTHER/$file" > /dev/null; done'),
    "dd": (0, "dd", 'for file in fork revert compact; do dd if="$OTHER/$file" of=$file status=none; done'),
    "dd-100": (0, "dd", 'for file in fork revert compact; do dd if="$OTHER/$file" of=$file bs=100 status=none; done'),
    "rsync-inplace": (0, "rsync", 'rsync -t --inplace "$OTHER"/{fork,revert,compact} .'),
    "rsync-inplace-delta": (0, "rsync", 'rsync -t -I --no-whole-file --inplace "$COPY"/{fork,revert,compact} .'),
    "vim": (0, "vim", f"for file in fork revert compact; do {VIM} -c 'w!' -c 'q!' $file; done"),
    "touch": (0, "touch", "touch fork revert compact"),
    "truncate": (0, "truncate", "truncate -s 0 fork revert compact"),
    "redirection": (0, "bash", "> fork; : >> revert; : > compact"),
    "echo-nothing": (0, "bash", "echo > compact; echo '  ' > compact"),
    "echo-nothing-to-revert": (1, "bash", "echo > fork; echo '  ' > revert"),
    "chmod-same": (0, "chmod", "chmod 600 fork revert compact"),
    "zeros": (1, "dd", "dd if=/dev/zero of=compact bs=4096 count=1 status=none"),
    "huge": (1, "cat", 'cat "$LAB/huge" > compact'),
    "huge-python": (1, "python3", 'python3 -c \'open("compact", "w").write("word " * 100_000)\''),
    "cp-r": (1, "cp", 'cp -r "$OTHER"/* .'),
    "cp-r-copy": (1, "cp", 'cp -r "$COPY"/* .'),
    "cp-a": (1, "cp", 'cp -a "$OTHER"/. .'),
    "cp-f": (1, "cp", 'cp -rf --remove-destination "$OTHER"/* .'),
    "rsync-a": (23, "rsync", 'rsync -a "$OTHER"/ .'),
    "rsync-a-checksum": (23, "rsync", 'rsync -ac --delete "$COPY"/ .'),
    "rsync-a-inplace": (23, "rsync", 'rsync -a --inplace "$COPY"/ .'),
    "tar": (2, "tar", 'tar cf - -C "$OTHER" . | tar xf - '),
    "tar-overwrite": (2, "tar", 'tar cf - -C "$COPY" . | tar xf - --overwrite'),
    "sed-i": (4, "sed", "sed -i s/latest/before/ fork revert compact"),
    "mv": (1, "mv", 'mv "$LAB/latest-2" fork'),
    "mv-away": (1, "mv", "mv fork revert"),
    "rm": (1, "rm", "rm -rf ."),
    "rm-files": (1, "rm", "rm -f fork revert compact"),
    "ln": (1, "ln", "ln -s fork link; ln fork hard"),
    "mkdir": (1, "mkdir", "mkdir folder"),
    "chmod": (0, "chmod", "chmod 666 fork; test $(stat -c %a fork) = 600"),
    "chown": (1, "chown", "chown 4711 fork"),
    "patch": (1, "install", 'install -m 600 "$OTHER/fork" fork'),
}


@dataclass(frozen=True, slots=True)
class Scene:
    """A mount that all tests of a module write to, with two threads and a copy of the second one's folder."""

    lab: Lab
    thread: str
    other: str

    def run(self, script: str, program: str = "bash") -> Output:
        """Run a script in the folder of the first thread."""
        other, copy = str(self.lab.thread(self.other)), str(self.lab.folder / "copy")
        return shell(self.lab, self.thread, script, program, OTHER=other, COPY=copy)


@pytest.fixture(scope="module", params=[PAGINATED, LEGACY])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Threads of both modes."""
    folder = tmp_path_factory.mktemp("writers")
    (folder / "store").mkdir()
    with serving(folder / "lab", folder / "store") as lab:
        (thread,) = stock(lab, request.param)
        other = next(one for one in stock(lab, "simple.paginated") if one != thread)
        for name, content in (("latest", "latest\n"), ("latest-2", "latest\n"), ("nonsense", "nonsense\n")):
            (lab.folder / name).write_text(content)
        (lab.folder / "huge").write_text("word " * 100_000)
        with mounted(lab):
            shell(lab, thread, f'cp -r {shlex.quote(str(lab.thread(other)))} "$LAB/copy"')
            yield Scene(lab, thread, other)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_done_once(scene: Scene, name: str) -> None:
    """One fork, exit code 0, and nothing to complain about."""
    program, script = REQUESTS[name]
    need(program, program)
    shell_name = program if program in ("dash", "zsh") else "bash"
    before, done = state(scene.lab.sample.root), len(operations(scene.lab))
    code, _, errors = scene.run(script, shell_name)
    assert (code, errors) == (0, b"")
    after = state(scene.lab.sample.root)
    new = [path for path in after if path not in before]
    assert len(new) == 1, "one rollout more"
    assert {path: after[path] for path in before if ".sqlite" not in path} == {
        path: before[path] for path in before if ".sqlite" not in path
    }
    assert [line["status"] for line in operations(scene.lab)[done:]] == ["done"]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen(scene: Scene, name: str) -> None:
    """The exit code isn't 0, there is a message, a script with `set -e` ends, the reason can be read; nothing is
    changed.
    """
    program, script, message = MISTAKES[name]
    need(program, program)
    shell_name = program if program in ("dash", "zsh") else "bash"
    before, done = state(scene.lab.sample.root), len(operations(scene.lab))
    code, _, errors = scene.run(script, shell_name)
    assert code != 0
    assert message in errors.decode()
    assert state(scene.lab.sample.root) == before
    assert not (scene.lab.folder / "went-on").exists()
    if "frok" not in script:
        assert [line["error"] for line in operations(scene.lab)[done:]] == ["EINVAL"], (
            "once, also where it was repeated"
        )
        code, reason, _ = scene.run("getfattr -n user.rolloutfs.error --only-values fork; cat fork")
        assert code == 0
        assert reason.count(b"nonsense") == 2


@pytest.mark.parametrize("program", ["bash", "dash", "zsh"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("undo", "alone"),
        ("dry-run", "alone"),
        ("before -1", "alone"),
        ('{"strategy": recent}', "isn"),
        ('{"strategy":"recnt"}', "strategy"),
        ('{\n  "strategy": "recnt"\n}', "strategy"),
        ('{\n  "strategy": recent\n}', "isn"),
    ],
)
def test_what_can_only_be_a_mistake_is_no_summary(scene: Scene, program: str, text: str, reason: str) -> None:
    """The shell says so, also when it writes a JSON object line by line, and nothing is changed."""
    need(program, program)
    before = state(scene.lab.sample.root)
    script = (
        f"printf '%s\n' {shlex.quote(text)} > compact" if program != "bash" else f"echo {shlex.quote(text)} > compact"
    )
    code, _, errors = scene.run(script, program)
    if program == "bash" or "\n" not in text:  # the others write all of it at once
        assert code != 0
        assert errors
    assert state(scene.lab.sample.root) == before
    assert reason in operations(scene.lab)[-1]["message"]
    assert operations(scene.lab)[-1]["error"] == "EINVAL"


@pytest.mark.parametrize(
    "script",
    [
        "echo 'dry-run my summary' > compact",
        "printf 'dry-run one\ntwo\n' > compact",
        'echo \'dry-run {"strategy":"recent"}\' > compact',
        '{ printf "dry-run "; cat "$LAB/nonsense"; } > compact',
        "printf 'dry-run \303\274' | dd of=compact bs=1 status=none",
    ],
)
def test_a_dry_run_of_a_compaction(scene: Scene, script: str) -> None:
    """As the README promises for any request: told, and not done."""
    before, done = state(scene.lab.sample.root), len(operations(scene.lab))
    assert scene.run(script) == (0, b"", b"")
    assert [(line["status"], line["dry_run"]) for line in operations(scene.lab)[done:]] == [("done", True)]
    assert state(scene.lab.sample.root) == before


def test_the_same_request_twice_is_done_twice(scene: Scene) -> None:
    """On one handle as on two: one write is one request."""
    before = state(scene.lab.sample.root)
    assert scene.run("exec 3<>fork; echo latest >&3; echo latest >&3") == (0, b"", b"")
    assert len(state(scene.lab.sample.root)) == len(before) + 2


def test_a_text_may_begin_with_a_cut_character_or_with_our_name(scene: Scene) -> None:
    """It is judged as a whole."""
    for text in ("\u00fcber alles", "# rolloutfs: what we made\n\nA file system."):
        (scene.lab.folder / "text").write_text(text)
        assert scene.run('dd if="$LAB/text" of=compact bs=1 status=none') == (0, b"", b"")
        memory = (scene.lab.thread(scene.thread) / "model_input.jsonl").read_text()
        assert text.replace("\n", "\\n") + '"' in memory.rstrip().rpartition("\n")[2]


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_request_does_no_harm(scene: Scene, name: str) -> None:
    """The store is the same to the byte, whether or not the program could do what it wanted."""
    code, program, script = HARMLESS[name]
    need(program, program)
    _reset(scene)
    before = state(scene.lab.sample.root)
    got, _, errors = scene.run(script)
    assert state(scene.lab.sample.root) == before
    assert got == code, errors
    assert bool(errors) == bool(code)


@pytest.mark.parametrize("file", ["fork", "revert", "compact"])
@pytest.mark.parametrize("program", ["bash", "dash", "zsh"])
def test_blanks_are_refused(scene: Scene, program: str, file: str) -> None:
    """A script whose variable is empty is told: by its exit code, and in compact by the answer alone, as a summary may
    begin with a blank line. A file that was only opened, or emptied, has no answer of its own.
    """
    need(program, program)
    before = state(scene.lab.sample.root)
    assert scene.run("echo 'dry-run latest' > fork") == (0, b"", b"")
    empty = f"(set -e; : > {file}; cat /dev/null > {file}; jq -r .status {file})"
    script = f"{empty}; echo $nothing > {file} && echo 0; jq -r .status {file}"
    code, told, errors = scene.run(script, program)
    assert (code, told) == (0, b"done\nrefused\n" if file != "compact" else b"done\n0\nrefused\n")
    assert bool(errors) == (file != "compact")
    assert (operations(scene.lab)[-1]["op"], operations(scene.lab)[-1]["error"]) == (file, "EINVAL")
    assert state(scene.lab.sample.root) == before


@pytest.mark.parametrize("name", [name for name in HARMLESS if "$OTHER" in HARMLESS[name][2]])
def test_copying_answers_does_no_harm(scene: Scene, name: str) -> None:
    """The same when the other thread's control files have an answer in them."""
    _, program, script = HARMLESS[name]
    need(program, program)
    assert scene.run("cd $OTHER && echo 'dry-run latest' > fork") == (0, b"", b"")
    before = state(scene.lab.sample.root)
    done = len(operations(scene.lab))
    assert scene.run(script)[0] != 0
    assert state(scene.lab.sample.root) == before
    assert {line["error"] for line in operations(scene.lab)[done:]} <= {"EINVAL"}
    _reset(scene)


def test_a_copy_of_a_tree_is_whole(scene: Scene, tmp_path: Path) -> None:
    """cp -a, tar, rsync and grep -r over a mount with control files complain about nothing."""
    target = shlex.quote(str(tmp_path))
    for script in (
        f"cp -a . {target}/cp",
        f"tar cf {target}/tar.tar .",
        f"rsync -a ./ {target}/rsync",
        f"rsync -aX ./ {target}/rsync-x",
        "grep -r nothing-like-that . || test $? = 1",
        "find . -type f | xargs wc -c > /dev/null",
    ):
        assert scene.run(f"cd ../..; {script}") == (0, b"", b""), script
    assert scene.run(f"diff -r --no-dereference {target}/cp {target}/rsync") == (0, b"", b"")
    assert scene.run(f"cd ../..; tar df {target}/tar.tar") == (0, b"", b"")


#: Each writes the lines one, two and three as a summary, most of them in several writes.
TEXTS: dict[str, tuple[str, str]] = {
    "bash-printf": ("bash", 'printf "one\\ntwo\\nthree\\n" > compact'),
    "bash-echo": ("bash", 'echo -e "one\\ntwo\\nthree" > compact'),
    "bash-append": ("bash", 'printf "%s\\n" one two three >> compact'),
    "bash-variable": ("bash", "text=$'one\\ntwo\\nthree'; echo \"$text\" > compact"),
    "bash-here": ("bash", "cat <<EOF > compact\none\ntwo\nthree\nEOF"),
    "bash-group": ("bash", "{ echo one; /bin/echo two; $SHELL_HERE -c 'echo three'; } > compact"),
    "bash-handle": ("bash", "exec 3<>compact; echo one >&3; /bin/echo two >&3; echo three >&3; grep -q done <&3"),
    "bash-exec": ("bash", "exec > compact; echo one; /bin/echo two; echo three"),
    "bash-background": ("bash", "{ echo one; echo two; echo three; } > compact & wait $!"),
    "bash-json": ("bash", """printf '%s\\n' '{' '"summary":' '"one\\ntwo\\nthree"' '}' > compact"""),
    "dash-printf": ("dash", 'printf "one\\ntwo\\nthree\\n" > compact'),
    "dash-group": ("dash", "{ echo one; /bin/echo two; echo three; } > compact"),
    "zsh-print": ("zsh", "print -l one two three > compact"),
    "zsh-printf": ("zsh", 'printf "one\\ntwo\\nthree\\n" > compact'),
    "zsh-group": ("zsh", "{ echo one; /bin/echo two; echo three; } > compact"),
    "tee": ("tee", 'printf "one\\ntwo\\nthree\\n" | tee compact > /dev/null'),
    "tee-slow": ("tee", "{ echo one; sleep 0.05; echo two; sleep 0.05; echo three; } | tee compact > /dev/null"),
    "cat-slow": ("cat", "{ echo one; sleep 0.05; echo two; echo three; } | cat > compact"),
    "dd": ("dd", 'printf "one\\ntwo\\nthree\\n" | dd of=compact bs=1 status=none'),
    "python": ("python3", 'python3 -c \'print(*"one two three".split(), sep="\\n", file=open("compact", "w", 1))\''),
    "perl": (
        "perl",
        'perl -e \'open(F, ">", "compact"); select(F); $|=1; print "$_\\n" for qw(one two three); close(F) or die\'',
    ),
    "awk": ("awk", 'awk \'BEGIN { print "one" > "compact"; fflush(); print "two\\nthree" > "compact" }\''),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_in_pieces_is_one_summary(scene: Scene, name: str) -> None:
    """Whoever writes it, all of it is the memory as soon as the program has ended, by one checkpoint."""
    program, script = TEXTS[name]
    need(program, program)
    shell_name = program if program in ("dash", "zsh") else "bash"
    done = len(operations(scene.lab))
    script = script.replace("$SHELL_HERE", "sh")
    code, _, errors = scene.run(script, shell_name)
    memory = (scene.lab.thread(scene.thread) / "model_input.jsonl").read_bytes()
    assert (code, errors) == (0, b"")
    assert memory.rstrip().rpartition(b"\n")[2].count(b'one\\ntwo\\nthree"') == 1
    assert [(line["op"], line["status"]) for line in operations(scene.lab)[done:]] == [("compact", "done")]


def test_a_long_text_from_a_program_that_writes_in_blocks(scene: Scene) -> None:
    """stdio writes 4 KiB at a time."""
    done = len(operations(scene.lab))
    assert scene.run("seq -f 'line %06g of a long summary' 1 2000 > compact") == (0, b"", b"")
    memory = (scene.lab.thread(scene.thread) / "model_input.jsonl").read_bytes()
    assert memory.rstrip().endswith(b'line 002000 of a long summary"}]}')
    assert b"line 000001 of a long summary" in memory
    assert [line["status"] for line in operations(scene.lab)[done:]] == ["done"]


def test_a_text_that_is_too_long_is_refused_as_a_whole(scene: Scene) -> None:
    """The program sees it, no part of the text is used, and what the shell still writes is refused as well."""
    before, done = state(scene.lab.sample.root), len(operations(scene.lab))
    code, _, errors = scene.run("seq 1 20000 > compact")
    assert code != 0
    assert b"Argument list too long" in errors
    code, _, errors = scene.run('for line in {1..1200}; do echo "$line: $(printf %060d 0)"; done > compact')
    assert b"Argument list too long" in errors
    assert state(scene.lab.sample.root) == before
    assert [line["error"] for line in operations(scene.lab)[done:]] == ["E2BIG", "E2BIG"]


def test_writers_of_one_file_wait_for_each_other(scene: Scene) -> None:
    """Five that open the same file at the same time, and five that share a handle: each request is done once, and
    each has its own place in the list.
    """
    for script in (
        "for n in 1 2 3 4 5; do echo latest > fork & done; wait",
        "for n in 1 2 3 4 5; do /bin/echo 'before -'$((1 + n % 2)) > fork & done; wait",
        'exec 3<>fork; for n in 1 2 3 4 5; do echo "{\\"dry_run\\":false}$(printf "%${n}s")" >&3 & done; wait',
    ):
        before, done = state(scene.lab.sample.root), len(operations(scene.lab))
        assert scene.run(script) == (0, b"", b"")
        after = state(scene.lab.sample.root)
        listed = operations(scene.lab)[done:]
        assert [line["status"] for line in listed] == ["done"] * 5
        assert len({line["thread_id"] for line in listed}) == 5
        assert {path for path in after if path not in before} == {line["rollout"] for line in listed}


def test_writers_of_one_summary(scene: Scene) -> None:
    """Of eight that write a summary at the same time nobody mixes with another one: who is refused is told so."""
    done = len(operations(scene.lab))
    script = """
        for n in 1 2 3 4 5 6 7 8; do
            { printf "this is\\nsummary $n\\nto its end $n\\n" > compact; } 2> "$LAB/errors-$n" &
            writers[$n]=$!
        done
        for n in 1 2 3 4 5 6 7 8; do wait ${writers[$n]} || echo refused; done
    """
    code, output, errors = scene.run(script)
    listed = operations(scene.lab)[done:]
    assert (code, errors) == (0, b"")
    assert len(listed) == 8
    told = [(scene.lab.folder / f"errors-{number}").read_text() for number in range(1, 9)]
    assert output.count(b"refused") == sum(line["error"] == "EBUSY" for line in listed) < 8, (told, listed)
    last = (scene.lab.thread(scene.thread) / "model_input.jsonl").read_bytes().rstrip().rpartition(b"\n")[2]
    assert re.search(rb"this is\\nsummary (\d)\\nto its end \1\"", last)


def test_a_handle_asks_for_what_was_seen(scene: Scene) -> None:
    """`exec 3<>revert` looks at the thread; what changed it meanwhile makes the request a mistake, and the same again
    is meant for what is there now. A dry run is a look, too.
    """
    script = """
        ask() { { echo "$2" >&$1; } 2> /dev/null || echo no; jq -r "$3" <&$1; }
        exec 3<>compact 4<>compact
        ask 3 first .status
        ask 4 second '.error, .message'
        sleep 0.3
        ask 4 second .status
        ask 3 '{"summary":"x","dry_run":true}' .status
        ask 3 third .status
        ask 4 '{"strategy":"recent"}' .error
    """
    code, output, errors = scene.run(script)
    assert (code, errors) == (0, b"")
    told = output.decode().split("\n")
    assert "changed since" in told.pop(3)
    assert told == ["done", "no", "EBUSY", "done", "done", "done", "no", "EBUSY", ""]


def test_a_careless_program_can_look_for_the_error(scene: Scene) -> None:
    """Python says nothing of a file that it closed by itself; the answer, the attribute and the list do."""
    done = len(operations(scene.lab))
    code, _, errors = scene.run('python3 -c \'open("fork", "w").write("nonsense")\'')
    assert code == 0
    assert b"Invalid argument" in errors or errors == b""
    assert [line["error"] for line in operations(scene.lab)[done:]] == ["EINVAL"]
    assert b"nonsense" in scene.run("cat fork; getfattr -n user.rolloutfs.error --only-values fork")[1]
    assert scene.run('python3 -c \'with open("fork", "w") as file: file.write("nonsense")\'')[0] == 1


def _reset(scene: Scene) -> None:
    """Forget past answers, so that control files show how to use them."""
    for path in (scene.lab.folder / "state" / "rolloutfs" / "operations").glob("*"):
        path.unlink()
