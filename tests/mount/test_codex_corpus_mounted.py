"""Through a mount, every thread of the corpus is still what Codex 0.171.0 rebuilt from it.

`tests/core/test_corpus.py` compares the library with Codex; this says that the mount adds nothing and loses
nothing.  All stores are merged into one home, so that one mount serves them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from scripts.sample_store import merge_home
from tests.core.test_corpus import Raw, codex_input, is_readable
from tests.corpus_store import copy_home, load_expected, store_folders
from tests.mount.clients import mounted, run, serving
from tests.mount.plain import join

Json = dict[str, Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One Codex home with every store of the corpus in it."""
    folder = tmp_path_factory.mktemp("merged")
    home = folder / "home"
    home.mkdir()
    for name, source in store_folders().items():
        merge_home(copy_home(source, folder / name), home)
    return home


@pytest.fixture(scope="module")
def mount(home: Path) -> Iterator[Path]:
    """That home, mounted."""
    with serving(home.with_name("lab"), home) as lab, mounted(lab) as mount:
        yield mount


def in_one_go(mount: Path, names: list[str]) -> list[bytes]:
    """The bytes of many files, as `cat` gives them, told apart by their sizes."""
    quoted = "\n".join(names).encode()
    listing = mount.with_name("names")
    listing.write_bytes(quoted)
    sizes = [int(size) for size in run("xargs stat -c %s < ../names", mount).split()]
    output = run("xargs cat < ../names", mount)
    parts, at = [], 0
    for size in sizes:
        parts.append(output[at : at + size])
        at += size
    assert at == len(output)
    return parts


def test_model_input_is_what_codex_sent(home: Path, mount: Path) -> None:
    """`cat threads/ID/model_input.jsonl` of every thread that Codex could read is its own input."""
    expected: dict[str, Json] = {}
    for folder in store_folders().values():
        threads = load_expected(folder)["threads"]
        assert not expected.keys() & threads.keys()
        expected |= {thread: codex for thread, codex in threads.items() if is_readable(codex)}
    raw = Raw(home)
    found = in_one_go(mount, [f"threads/{thread}/model_input.jsonl" for thread in expected])
    wrong = []
    for (thread, codex), content in zip(expected.items(), found, strict=True):
        head = codex["probe"]["resumed"]["thread"]["path"].rpartition("/")[2].removesuffix(".zst")
        wanted = codex_input(codex["probe"], list(raw.lineage(head)))
        if [json.loads(row) for row in content.split(b"\n")[:-1]] != wanted:
            wrong.append(thread)
    print(f"{len(expected) - len(wrong)}/{len(expected)} threads agree through a mount")
    assert wrong == []
    assert len(expected) > 150


@pytest.mark.parametrize("view", View, ids=lambda view: view.value)
def test_files_are_what_the_library_gives(home: Path, mount: Path, view: View) -> None:
    """Each derived file has the library's bytes; of every third thread, since the parts differ little. What reverts
    dropped is a file of the threads that were reverted.
    """
    store = ThreadStore(str(home), Spool(f"{home}.spool"))
    name = f"lineage/{view.value}" if view is View.LINEAGE else view.value
    dropped = view in (View.DROPPED, View.DROPPED_TURNS)
    threads = sorted(store.reverted()) if dropped else store.thread_ids()[::3]
    assert threads
    found = in_one_go(mount, [f"threads/{thread}/{name}" for thread in threads])
    assert [
        thread for thread, one in zip(threads, found, strict=True) if one != join(store, store.project(thread, view))
    ] == []
