"""Which names there are, and that they keep their inode numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from threadstore.projection import FamilyView, StoreView, View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import inodes
from rolloutfs.nodes import Kind, Node
from rolloutfs.storefiles import StoreFiles
from rolloutfs.tree import Tree
from tests.tree.conftest import Planted
from tests.tree.sample import DAY, SampleStore, line, meta, thread_id

Plant = Callable[[], Planted]


def everything(planted: Planted) -> dict[str, Node]:
    """Every node by path."""
    found: dict[str, Node] = {"": planted.tree.root}
    todo = [""]
    while todo:
        path = todo.pop()
        listing = planted.tree.listing(found[path], planted.links(found[path]))
        for position, name in enumerate(listing.names):
            inside = f"{path}/{name}".lstrip("/")
            found[inside] = listing.node(position)
            if found[inside].is_folder:
                todo.append(inside)
    return found


def test_the_tree_has_the_names_of_the_design(sample: SampleStore, plant: Plant) -> None:
    """Root, a thread's folder and the store's folder hold exactly what DESIGN 3 lists."""
    thread = sample.add(1)
    (sample.root / "session_index.jsonl").write_text("{}\n")
    planted = plant()
    files = ["problems.jsonl", "stats.json", "operations.jsonl", "lineage.mmd"]
    views = ["by-date", "by-name", "by-cwd", "by-branch", "by-model", "recent", "archived"]
    assert planted.names("") == ["README.md", "threads", "store", *files, "search", *views]
    assert planted.names("search") == ["README.md", "problems.jsonl"]
    assert planted.names("threads") == [thread]
    views = [view.value for view in View if view not in (View.LINEAGE, View.DROPPED, View.DROPPED_TURNS)]
    assert planted.names(f"threads/{thread}") == [*views, "lineage", "rollouts", "turns"]
    for view in (View.DROPPED, View.DROPPED_TURNS):
        with pytest.raises(KeyError):
            planted.walk(f"threads/{thread}/{view.value}")
    assert planted.walk(".mount.json").kind is Kind.MOUNT
    assert planted.names(f"threads/{thread}/lineage") == ["lineage.json", "forks", "agents"]
    assert planted.names(f"threads/{thread}/rollouts") == ["current", sample.path(thread).name]
    assert planted.names("store") == [*(view.value for view in StoreView), "sessions", "session_index.jsonl"]
    assert planted.tree.target(planted.walk("stats.json")) == "store/stats.json"


def test_forks_and_parents_are_relative_links_that_lead_to_their_thread(sample: SampleStore, plant: Plant) -> None:
    """A fork and its origin link to each other; a link to a thread that isn't in the store isn't shown."""
    origin, lost = sample.add(1), thread_id(99)
    fork = sample.add(2, forked_from_id=origin)
    orphan = sample.add(3, forked_from_id=lost)
    planted = plant()
    links = planted.store.links(fork)
    up = planted.tree.target(planted.walk(f"threads/{fork}/lineage/forked_from"), links)
    assert os.path.normpath(f"threads/{fork}/lineage/{up}") == f"threads/{origin}"
    down = planted.tree.target(planted.walk(f"threads/{origin}/lineage/forks/{fork}"))
    assert os.path.normpath(f"threads/{origin}/lineage/forks/{down}") == f"threads/{fork}"
    assert "forked_from" not in planted.names(f"threads/{orphan}/lineage")
    with pytest.raises(KeyError):
        planted.walk(f"threads/{orphan}/lineage/forked_from")


def test_files_about_a_family_are_those_of_its_root(sample: SampleStore, plant: Plant) -> None:
    """Other threads link to them; of a thread that is alone they are found and not listed."""
    root = sample.add(1)
    fork = sample.add(2, forked_from_id=root)
    agent = sample.add(3, parent_thread_id=fork, source={"subagent": "x"})
    alone = sample.add(4)
    planted = plant()
    for view in FamilyView:
        assert planted.walk(f"threads/{root}/lineage/{view.value}").kind is Kind.FAMILY
        for thread in (fork, agent):
            node = planted.walk(f"threads/{thread}/lineage/{view.value}")
            target = planted.tree.target(node, planted.links(node))
            assert os.path.normpath(f"threads/{thread}/lineage/{target}") == f"threads/{root}/lineage/{view.value}"
        for thread in (root, fork, agent):
            assert planted.names(f"threads/{thread}/lineage").count(view.value) == 1
        assert planted.walk(f"threads/{alone}/lineage/{view.value}").kind is Kind.FAMILY
        assert view.value not in planted.names(f"threads/{alone}/lineage")


def test_numbers_are_unique_and_the_same_in_another_process(sample: SampleStore, plant: Plant) -> None:
    """Nothing depends on the order of look-ups: a second tree that is walked backwards has the same numbers."""
    origin = sample.add(1)
    for number in range(2, 20):
        sample.add(number, forked_from_id=origin)
    first = {path: node.ino for path, node in everything(plant()).items()}
    assert len(set(first.values())) == len(first)
    assert all(0 < ino < 1 << 63 for ino in first.values())
    second = plant()
    assert {path: second.walk(path).ino for path in sorted(first, reverse=True) if path} == {
        path: ino for path, ino in first.items() if path
    }


def test_a_node_is_found_from_its_number(sample: SampleStore, plant: Plant) -> None:
    """The kernel asks by number; in whichever epoch, it is the same node."""
    sample.add(1)
    planted = plant()
    for node in everything(planted).values():
        planted.tree.remember(node)
        assert planted.tree.node(node.ino) == node
        assert planted.tree.node(inodes.with_epoch(node.ino, 7)) == node


def test_forgotten_numbers_are_dropped(sample: SampleStore, plant: Plant) -> None:
    """A rollout file's number is known as long as the kernel knows it, and no longer."""
    thread = sample.add(1)
    planted = plant()
    node = planted.walk(f"threads/{thread}/rollouts/{sample.path(thread).name}")
    planted.tree.remember(node)
    planted.tree.remember(node)
    planted.tree.forget(node.ino, 1)
    assert planted.tree.node(node.ino) == node
    planted.tree.forget(inodes.with_epoch(node.ino, 1), 1)
    with pytest.raises(KeyError):
        planted.tree.node(node.ino)


def test_colliding_threads_get_different_numbers() -> None:
    """Two ids with one hash are told apart, in both directions."""
    numbers = inodes.ThreadNumbers(lambda key, probe: 42 + probe)
    first, second = numbers.of("a"), numbers.of("b")
    assert first != second
    assert (numbers.thread(first), numbers.thread(second)) == ("a", "b")
    assert (numbers.of("a"), numbers.of("b")) == (first, second)


def test_only_files_and_folders_of_the_store_are_shown(sample: SampleStore, plant: Plant, tmp_path: Path) -> None:
    """Links, FIFOs and what is secret are not there, and can't be reached by name either (FAULTS 24, 31)."""
    sample.add(1)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    day = sample.root / DAY
    (day / "link.jsonl").symlink_to(outside / "secret.txt")
    (sample.root / "sessions" / "linked").symlink_to(outside)
    (day / "loop").symlink_to("loop")
    os.mkfifo(day / "pipe.jsonl")
    for name in ("auth.json", "config.toml", "state_5.sqlite", "state_5.sqlite-wal"):
        (sample.root / name).write_text("secret")
        (day / name).write_text("secret")
    planted = plant()
    assert planted.names(f"store/{DAY}") == [sample.path(thread_id(1)).name]
    assert planted.names("store/sessions") == ["2026"]
    for path in (
        f"{DAY}/link.jsonl",
        "sessions/linked",
        f"{DAY}/pipe.jsonl",
        f"{DAY}/auth.json",
        "auth.json",
        "config.toml",
    ):
        with pytest.raises((KeyError, OSError)):
            planted.walk(f"store/{path}")
    files = StoreFiles(planted.store.root)
    for path in (
        f"{DAY}/link.jsonl",
        "sessions/linked/secret.txt",
        f"{DAY}/pipe.jsonl",
        f"{DAY}/../../x",
        "auth.json/x",
    ):
        with pytest.raises(OSError, match=r"No such file|Not a directory"):
            files.open(path)


def test_sessions_may_be_a_link(tmp_path: Path) -> None:
    """People move `sessions` to another disk: that one link is followed (FAULTS 24)."""
    elsewhere = SampleStore(tmp_path / "elsewhere")
    thread = elsewhere.add(1)
    home = tmp_path / "home"
    home.mkdir()
    (home / "sessions").symlink_to(elsewhere.root / "sessions")
    files = StoreFiles(str(home))
    tree = Tree(ThreadStore(str(home), Spool(str(tmp_path / "spool"))), files)
    store = tree.lookup(tree.root, "store")
    assert tree.lookup(store, "sessions").kind is Kind.STORE_FOLDER
    os.close(files.open(f"{DAY}/{elsewhere.path(thread).name}"))


@pytest.mark.parametrize("nickname", ["../../etc", "a/b", ".", "", "x" * 300, "new\nline", "\u202ertl", "same", "-rf"])
def test_names_from_data_are_one_path_part(sample: SampleStore, plant: Plant, nickname: str) -> None:
    """Whatever an agent is called, its link is one harmless name, and two of one name are two links (FAULTS 22)."""
    parent = sample.add(1)
    source = {"subagent": {"thread_spawn": {"parent_thread_id": parent, "depth": 1, "agent_nickname": nickname}}}
    for number in (2, 3):
        thread = thread_id(number)
        sample.path(thread).write_bytes(meta(thread, source=source, agent_nickname=nickname) + line("event_msg", {}))
    planted = plant()
    names = planted.names(f"threads/{parent}/lineage/agents")
    assert len(set(names)) == 2
    for name in names:
        assert "/" not in name
        assert "\n" not in name
        assert name not in (".", "..")
        assert len(os.fsencode(name)) <= 255
        target = planted.tree.target(planted.walk(f"threads/{parent}/lineage/agents/{name}"))
        assert os.path.normpath(f"threads/{parent}/lineage/agents/{target}") in (
            f"threads/{thread_id(2)}",
            f"threads/{thread_id(3)}",
        )
