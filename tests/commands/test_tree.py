"""`rolloutfs tree`: who came from whom, and where forks begin."""

from __future__ import annotations

import json

import pytest
from threadstore.projection import View

from tests.commands.conftest import HOSTILE, Ask, OpenStore, assert_harmless, say
from tests.conftest import CopyStore, Corpus
from tests.tree.sample import SampleStore, thread_id

NAMES = ["forks.paginated", "forks.legacy", "subagents_v2.legacy", "revert_forked.paginated", "fork_of_fork.legacy"]


@pytest.mark.parametrize("name", NAMES)
def test_as_the_store_says(name: str, corpus: Corpus, open_store: OpenStore, ask: Ask) -> None:
    """Every thread once, below what thread.json says that it came from; the same with an index."""
    home = corpus(name).home
    store = open_store(home)
    told = []
    for _ in range(2):
        told.append(ask("tree", "--json", "--store", home).objects)
        assert sorted(member["thread_id"] for member in told[-1]) == store.thread_ids()
        seen = {None}
        for member in told[-1]:
            above = member["above"]
            assert above in seen
            seen.add(member["thread_id"])
            document = json.loads(store.rendered(member["thread_id"], View.THREAD))
            assert above == (document["parent"] or document["forked_from"])
            assert member["how"] == ("root" if above is None else "agent" if document["agent"] else "fork")
            for key in ("archived", "name", "preview"):
                assert member[key] == document[key]
            assert len(member["generations"]) == len(store.rollouts(member["thread_id"]))
            (selected,) = [one["file"] for one in member["generations"] if one["selected"]]
            assert selected == document["rollout"]["file"]
        ask("index", home)
    assert told[0] == told[1]
    listed = {one["thread_id"]: one for one in ask("ls", "--all", "-n", "0", "--json", "--store", home).objects}
    same = told[0][0].keys() & listed[told[0][0]["thread_id"]].keys()
    assert same >= {"thread_id", "name", "preview", "turns", "own_tokens", "archived", "agent", "last_record"}
    for member in told[0]:
        assert {key: member[key] for key in same} == {key: listed[member["thread_id"]][key] for key in same}
    (root,) = [member["root"] for member in told[0] if member["thread_id"] == store.thread_ids()[-1]]
    family = [member for member in told[0] if member["root"] == root]
    assert ask("tree", store.thread_ids()[-1], "--json", "--store", home).objects == family


@pytest.mark.parametrize("name", ["forks.paginated", "forks.legacy"])
def test_where_forks_begin(name: str, copy_store: CopyStore, open_store: OpenStore, ask: Ask) -> None:
    """The number of the last turn in common, also after the first thread went back before it."""
    home = copy_store(name).home
    thread = next(thread for thread in open_store(home).thread_ids() if len(open_store(home).turns(thread)) == 4)
    made = {}
    for words, boundary in ((("before", "1"), 0), (("through", "2"), 2), (("before", "-1"), 3), (("latest",), 4)):
        made[ask("fork", thread, *words, "--store", home).objects[0]["thread_id"]] = boundary
    for is_last in (False, True):
        family = ask("tree", thread, "--json", "--store", home).objects
        found = {member["thread_id"]: member["boundary"] for member in family}
        assert {fork: found[fork] for fork in made} == made
        assert found[thread] is None
        shown = ask("tree", thread, "--store", home).out
        assert "after turn 2" in shown
        assert "from the beginning" in shown
        if not is_last:
            ask("revert", thread, "before", "2", "--store", home)


def test_the_shape(sample: SampleStore, ask: Ask) -> None:
    """Lines and corners as tree(1) draws them; archived ones are marked, and nothing in a name is obeyed."""
    root = sample.add(1, cwd="/repo")
    say(sample, root, HOSTILE)
    sample.add(2, forked_from_id=root)
    sample.add(3, forked_from_id=thread_id(2))
    sample.add(4, forked_from_id=root, folder="archived_sessions")
    sample.add(5, parent_thread_id=thread_id(2), agent_nickname=f"Bo{HOSTILE}", source={"subagent": "x"})
    answer = ask("tree", "--store", sample.root)
    assert_harmless(answer.out)
    lines = answer.out.splitlines()
    assert [line.partition("0")[0] for line in lines][:3] == ["", "├─ fork  ", "│  ├─ fork  "]
    assert lines[3].startswith("│  └─ agent  Boa\\x1b[31mred")
    assert lines[4].startswith("└─ fork  ")
    assert "  archived" in lines[4]
    assert len(lines) == 5
    assert ask("tree", thread_id(5), "--store", sample.root).out == answer.out


def test_circles_and_long_chains(sample: SampleStore, ask: Ask) -> None:
    """Links that lead round in a circle, to themselves or to nowhere end, and a long chain is shown to its end."""
    sample.add(1, forked_from_id=thread_id(2))
    sample.add(2, forked_from_id=thread_id(1))
    sample.add(3, forked_from_id=thread_id(3))
    sample.add(4, forked_from_id=thread_id(999))
    for number in range(10, 400):
        sample.add(number, forked_from_id=thread_id(number - 1))
    assert ask("tree", "--store", sample.root).out.count("\n") == 4 + 390
    assert len(ask("tree", "--json", "--store", sample.root).objects) == 4 + 390


def test_no_thread(sample: SampleStore, ask: Ask) -> None:
    """That is code 8; an empty store has an empty tree."""
    assert ask("tree", "--store", sample.root).out == ""
    assert "There is no thread" in ask("tree", "x", "--store", sample.root, code=8).err
