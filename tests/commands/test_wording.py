"""Names of files in what commands say: harmless to a terminal, and right where they are to be typed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rolloutfs.errors import Exit, MountError
from rolloutfs.wording import printable, shell_word
from tests.commands.conftest import HOSTILE, Ask, assert_harmless
from tests.tree.sample import SampleStore

NAMES = (
    *(bytes([byte]) for byte in range(1, 256)),
    *(
        b"",
        b"plain",
        b"a b",
        b"$x`y`",
        b"it's",
        b"-n",
        b"!1\\n",
        b"\xff7",
        b"\x1b7\\'",
        HOSTILE.replace("\0", "").encode(),
    ),
    "schöne 线程 🧵".encode(),
)


def test_a_shell_reads_back_every_name() -> None:
    """bash makes the same bytes of the word, in which nothing is that a terminal obeys."""
    words = [shell_word(os.fsdecode(name)) for name in NAMES]
    for word in words:
        assert_harmless(word)
        assert "\n" not in word
    script = os.fsencode(f"printf '%s\\0' {' '.join(words)}")
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, timeout=60)
    assert done.stdout.split(b"\0")[:-1] == list(NAMES)


def test_what_is_shown_as_itself_stays() -> None:
    """Letters of any script, blanks, ends of lines and what is quoted."""
    assert printable("schöne 线程:\n    'a  b'") == "schöne 线程:\n    'a  b'"
    assert (shell_word("/a/b-c"), shell_word("schöne")) == ("/a/b-c", "'schöne'")
    assert MountError("a\x1b[31m\udcff", Exit.USAGE).message == "a\\x1b[31m\\udcff"


def test_refusals(ask: Ask, sample: SampleStore, tmp_path: Path) -> None:
    """A name of any bytes is refused in a sentence."""
    odd = tmp_path / os.fsdecode(b"\xff \x1b[31m")
    store = sample.root.rename(f"{odd} store")
    sample.add(1)
    odd.mkdir()
    for arguments, code in (
        (("mount", store, f"{odd}x"), 4),
        (("mount", f"{store}x", odd), 3),
        (("mount", store, store / "sessions"), 4),
        (("umount", odd), 4),
        (("show", "--store", store, "nope"), 8),
        (("ls", "--store", odd), 3),
        (("index", odd), 3),
    ):
        said = ask(*arguments, code=code).err
        assert said.startswith("rolloutfs: ")
        assert_harmless(said)
