"""Families: whatever a thread is called, the chart has only the nodes and arrows of its family."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadstore import mermaid
from threadstore.family import Families, Member, walk
from threadstore.projection import FamilyView, StoreView, View, rendered
from threadstore.spool import Spool
from threadstore.store import ThreadStore
from threadstore.summaries import of_row
from threadstore.terminal import harmless

from tests.conftest import Corpus
from tests.core.logs import Log, Store, thread_id

NODE = re.compile(r'  (t\d+)\["([^"]*)"\]')
ARROW = re.compile(r'  (t\d+) (-->|-\.->)\|"([^"]*)"\| (t\d+)')
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CODED = re.compile(r"(?:[^\W_]|[ ,/]|(?<=[^\W_])-(?=[^\W_])|<br/>|#\d+;)*")
HOSTILE = [
    '"] --> evil["',
    "end",
    "<script>alert(1)</script><img src=x>",
    "a\nt9[x]\n  click t1 callback",
    "%%{init: {}}%% `# x` 1. - * _b_",
    "#quot; &quot; #35;",
    "\x1b[31m\u202e\u2028",
    "- one",
    "a -- b --- c --> d-.->e -",
    "-",
]


def flowchart(text: str) -> tuple[dict[str, str], list[tuple[str, str, str, str]], list[str]]:
    """Labels of nodes, arrows and marked nodes of a chart; nothing else may be in it."""
    nodes, arrows, archived = {}, [], []
    first, *lines = text.splitlines()
    assert first == "flowchart TD"
    for line in lines:
        node, arrow = NODE.fullmatch(line), ARROW.fullmatch(line)
        if node is not None:
            nodes[node[1]] = node[2]
        elif arrow is not None:
            arrows.append((arrow[1], arrow[2], arrow[3], arrow[4]))
        elif line.startswith("  class "):
            archived = line.split()[1].split(",")
        else:
            assert re.fullmatch(r"  classDef archived stroke-dasharray: 4|  %% [a-z ]+: \d+", line), line
    for label in (*nodes.values(), *(arrow[2] for arrow in arrows)):
        assert CODED.fullmatch(label), label
    return nodes, arrows, archived


def shown(label: str) -> str:
    """A label as Mermaid shows it."""
    return re.sub(r"#(\d+);", lambda code: chr(int(code[1])), label)


@given(st.one_of(st.sampled_from(HOSTILE), st.text()))
def test_labels_hold_any_text(text: str) -> None:
    """A label shows the text, as far as a terminal may, and no character of it means anything to Mermaid."""
    label = mermaid.label(text)
    assert CODED.fullmatch(label[1:-1])
    assert (label[0], label[-1]) == ('"', '"')
    assert shown(label[1:-1]) == harmless(text)


def _named(name: str) -> Member:
    summary = of_row(thread_id(1), (name, *(None,) * 6, False, 1, 1, *(None,) * 6))
    return Member(thread_id(1), "root", None, summary, 0, (), None)


def test_ids_can_be_read() -> None:
    """A label has an id as it is, and with it words that have hyphens in them."""
    text = f"{thread_id(1)}, re-read a_b, -5"
    assert mermaid.label(text) == f'"{thread_id(1)}, re-read a#95;b, #45;5"'


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_in_a_chart(name: str) -> None:
    """Such a thread is one node."""
    nodes, arrows, _ = flowchart("\n".join(mermaid.flowchart([_named(name)])))
    assert (len(nodes), arrows) == (1, [])


def test_a_family(tmp_path: Path) -> None:
    """Forks with their last turn in common, agents with their names, generations, archived threads and tokens."""
    root = Log(True, thread_id(1)).turn("a", "one").turn("b", "two")
    fork = Log(True, thread_id(2), base=root.end(6), meta={"forked_from_id": thread_id(1)}).turn("c", "three")
    again = Log(True, thread_id(2), thread_id(9), base=fork.end(1), meta={"forked_from_id": thread_id(1)})
    agent = Log(
        True,
        thread_id(3),
        meta={"parent_thread_id": thread_id(2), "agent_nickname": "Bo", "source": {"subagent": "review"}},
    ).turn("d", "four")
    alone = Log(True, thread_id(4)).turn("e", "five")
    made = Store(tmp_path, root, fork, again.turn("f", "again"), alone)
    made.write(agent.name.replace("sessions/2026/11/29", "archived_sessions"), agent.data)
    made.store.refresh()
    text = rendered(made.store.project_family(thread_id(1), FamilyView.TEXT)).decode()
    head, *below = text.splitlines()
    assert head.split("  ") == [thread_id(1), "2026-11-29 10:00Z", "2 turns", "one"]
    assert below[0].split("  ") == [
        *("└─ fork", thread_id(2), "after turn 1", "2026-11-29 10:00Z", "2 turns", "2 generations", "one"),
    ]
    assert below[1].split("  ")[-4:] == ["2026-11-29 10:00Z", "1 turn", "archived", "four"]
    assert below[1].startswith("   └─ agent  Bo")
    nodes, arrows, archived = flowchart(rendered(made.store.project_family(thread_id(1), FamilyView.MERMAID)).decode())
    assert [shown(label).split("<br/>") for label in nodes.values()] == [
        ["one", f"{thread_id(1)}, 2 turns"],
        ["one", f"{thread_id(2)}, 2 turns, 2 generations"],
        ["four", f"{thread_id(3)}, 1 turn, archived"],
    ]
    assert arrows == [("t1", "-->", "fork after turn 1", "t2"), ("t2", "-.->", "agent Bo", "t3")]
    assert archived == ["t3"]
    whole = rendered(made.store.project_store(StoreView.LINEAGE)).decode()
    assert whole.splitlines()[1] == "  %% threads without relatives that are left out: 1"
    assert flowchart(whole)[1] == arrows


@pytest.mark.parametrize("name", ["forks.paginated", "subagents_v2.legacy", "revert_forked.paginated"])
def test_stores_of_codex(name: str, corpus: Corpus, tmp_path: Path) -> None:
    """Text, chart and the chart of the store have the same threads and arrows; tokens add up to what all spent."""
    store = ThreadStore(str(corpus(name).home), Spool(str(tmp_path / "spool")))
    families = Families(store)
    roots = [families.grow(root) for root in families.roots(store.thread_ids())]
    members = [member for root in roots for member, _ in walk(root)]
    assert sorted(member.thread for member in members) == store.thread_ids()
    assert sum(root.tokens + root.below for root in roots) == sum(member.tokens for member in members)
    charts = [flowchart(rendered(store.project_family(root.thread, FamilyView.MERMAID)).decode()) for root in roots]
    whole = flowchart(rendered(store.project_store(StoreView.LINEAGE)).decode())
    assert len(whole[1]) == sum(len(arrows) for _, arrows, _ in charts) == len(members) - len(roots)
    for root, (nodes, _, _) in zip(roots, charts, strict=True):
        text = rendered(store.project_family(root.thread, FamilyView.TEXT)).decode()
        ids = ID.findall(text)
        assert ids == [member.thread for member, _ in walk(root)]
        assert [ID.findall(shown(label))[0] for label in nodes.values()] == ids
        for member, _ in walk(root):
            assert store.links(member.thread).root == root.thread


def test_transcripts_of_forks_differ_after_their_fork(corpus: Corpus, tmp_path: Path) -> None:
    """`diff -u` of two forks of a thread shows nothing before the turn at which the earlier one begins."""
    store = ThreadStore(str(corpus("forks.paginated").home), Spool(str(tmp_path / "spool")))
    root = Families(store).grow(Families(store).root_of(store.thread_ids()[0]))
    forks = sorted((child for child in root.children if child.boundary), key=lambda child: child.boundary or 0)
    assert len(forks) > 2
    texts = {}
    for fork in forks:
        texts[fork.thread] = tmp_path / fork.thread
        texts[fork.thread].write_bytes(store.rendered(fork.thread, View.TRANSCRIPT))
    for one, other in pairwise(forks):
        found = subprocess.run(
            ["diff", "-u", texts[one.thread], texts[other.thread]], capture_output=True, text=True, check=False
        ).stdout
        first = int(re.findall(r"^@@ -(\d+)", found, re.M)[0]) + 3  # after the lines of context
        before = texts[one.thread].read_text().splitlines()[: first - 1]
        assert sum(line.startswith("## Turn ") for line in before) == one.boundary
