"""FAULTS 21 and 22: names that come from data, and sub-agents."""

from __future__ import annotations

import unicodedata
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadstore.names import safe_name

from tests.faults.logs import LEGACY, PAGINATED, Home, Log, pairs, uuid

HOSTILE = {
    "../../etc/passwd": "_._.._etc_passwd",
    "a/b": "a_b",
    "a\\b": "a_b",
    ".": "_",
    "..": "_.",
    ".hidden": "_hidden",
    "-rf": "_rf",
    "": "_",
    "   ": "_",
    "two\nlines": "two_lines",
    "tab\tand\0nul": "tab_and_nul",
    "\x1b[31mred": "_[31mred",
    "gnp.\u202etxt": "gnp._txt",
    "isolate\u2066d\u2069": "isolate_d_",
    "zero\u200bwidth": "zero_width",
    "arabic\u061cmark": "arabic_mark",
    "mongolian\u180evowel": "mongolian_vowel",
    "tag\U000e0041s": "tag_s",
    "\ufeffbom": "_bom",
    "half \ud83d emoji": "half _ emoji",
    "nel\u0085": "nel_",
    " padded ": "padded",
    "plain name": "plain name",
    "日本語 🎉": "日本語 🎉",
}


@pytest.mark.parametrize(("text", "name"), HOSTILE.items())
def test_hostile_names(text: str, name: str) -> None:
    """FAULTS 22: what would leave the folder, hide, look like an option or turn the screen around becomes `_`."""
    if text == "../../etc/passwd":
        assert "/" not in safe_name(text)
        assert not safe_name(text).startswith(".")
    else:
        assert safe_name(text) == name


def test_long_names() -> None:
    """FAULTS 22: 300 bytes are cut between characters and leave room for an id."""
    for text in ("x" * 300, "é" * 150, "日" * 100, "🎉" * 75, "x" + "é" * 150):
        name = safe_name(text)
        assert len(name.encode()) <= 200
        assert name.endswith("…")
        assert text.startswith(name[:-1])


def test_normal_forms_give_one_name() -> None:
    """FAULTS 22: NFC and NFD twins look the same, so they are the same name: the caller's suffix tells them apart."""
    assert safe_name(unicodedata.normalize("NFD", "café")) == safe_name("café") == "café"


@given(st.text(st.characters(), max_size=400))
def test_any_text_gives_a_name(text: str) -> None:
    """FAULTS 22: whatever the text, the result is one path part that can be listed, typed and encoded."""
    name = safe_name(text)
    raw = name.encode("utf-8")
    assert 0 < len(raw) <= 200
    assert name not in (".", "..")
    assert not name.startswith((".", "-", " "))
    assert not set(name) & set("/\0\n\r\\")
    assert not any(unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") for char in name)
    assert not any(
        unicodedata.bidirectional(char) in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI")
        for char in name
    )
    assert safe_name(name) == name


def _agent(number: int, parent: str, nickname: str | None = "Ada", **fields: Any) -> Log:
    spawn = {"parent_thread_id": parent, "depth": 1, "agent_path": None, "agent_nickname": nickname, "agent_role": None}
    return Log(PAGINATED, number, source={"subagent": {"thread_spawn": spawn}}, parent_thread_id=parent, **fields)


def test_137_agents_of_9_parents_3_deep(home: Home) -> None:
    """FAULTS 21: every agent is below its own parent, whoever that is, and below nobody else."""
    parents = {}
    for number in range(1, 147):
        if number <= 9:
            home.put(Log(PAGINATED, number))
            continue
        # three levels: children of the nine, children of these, children of these
        parent = (
            uuid(1 + number % 9) if number < 60 else uuid(10 + number % 50) if number < 110 else uuid(60 + number % 50)
        )
        parents[uuid(number)] = parent
        home.put(_agent(number, parent))
    store = home.open()
    names: dict[str, list[str]] = {}
    found = {}
    for thread in store.thread_ids():
        for name, agent in store.links(thread).agents:
            assert agent not in found
            found[agent] = thread
            names.setdefault(thread, []).append(name)
    assert len(parents) == 137
    assert found == parents
    assert all(max(Counter(group).values()) == 1 for group in names.values())


def test_names_of_agents_never_collide(home: Home) -> None:
    """FAULTS 21: the same nickname, ids with the same ending, begun in the same second: two links all the same."""
    parent = Log(PAGINATED, 1)
    home.put(parent)
    ids = [
        "01a20000-0000-7000-8000-0000aaaaaaaa",
        "01a20001-0000-7000-8000-0000aaaaaaaa",
        "01a20002-0000-7000-9000-0000aaaaaaaa",
    ]
    for agent in ids:
        log = _agent(2, parent.thread, id=agent, session_id=parent.thread)
        log.thread = log.rollout = agent
        home.put(log)
    agents = home.open().links(parent.thread).agents
    assert sorted(agent for _, agent in agents) == ids
    assert len({name for name, _ in agents}) == 3


@pytest.mark.parametrize("nickname", ["../../etc", "a/b", ".", "", "x" * 300, "two\nlines", "\u202egnp", None])
def test_hostile_nicknames(home: Home, nickname: str | None) -> None:
    """FAULTS 22: a nickname becomes a path part through the one escaping function; `thread.json` has it as it is."""
    parent = Log(PAGINATED, 1)
    agent = _agent(2, parent.thread, nickname)
    home.put(parent)
    home.put(agent)
    views = home.read(agent)
    [(name, thread)] = views.store.links(parent.thread).agents
    assert thread == agent.thread
    assert name == f"{safe_name(nickname or 'agent')}-{agent.thread[-8:]}"
    assert views.thread()["agent"]["nickname"] == nickname
    assert views.store.links(agent.thread).parent == parent.thread


def test_titles_are_kept_as_they_are(home: Home) -> None:
    """FAULTS 22: the same title three times, and titles that are no names: `thread.json` tells the original."""
    import orjson

    titles = ["../../etc", "same", "same", "same", "", "a" * 300, "two\nlines", "\u202egnp", "cafe\u0301"]
    lines = []
    for number, title in enumerate(titles):
        log = Log(LEGACY, number + 1)
        home.put(log)
        lines.append(orjson.dumps({"id": log.thread, "thread_name": title}))
    (home.root / "session_index.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    home.changed()
    assert [home.read(uuid(number + 1)).thread()["name"] for number in range(len(titles))] == titles


def test_fork_and_agent_trees_are_two(home: Home) -> None:
    """FAULTS 21: an agent that was forked from its parent is below the parent once, as its agent."""
    parent = Log(PAGINATED, 1)
    parent.turn("parent")
    home.put(parent)
    agent = _agent(2, parent.thread, forked_from_id=parent.thread, base=parent.position())
    agent.turn("agent")
    home.put(agent)
    fork = Log(PAGINATED, 3, base=parent.position(), forked_from_id=parent.thread)
    home.put(fork)
    views = home.read(agent)
    links = views.store.links(parent.thread)
    assert links.forks == (fork.thread,)
    assert [thread for _, thread in links.agents] == [agent.thread]
    assert views.effective() == pairs("parent", "agent")


def test_copied_context_of_an_agent_is_not_its_turns(home: Home) -> None:
    """FAULTS 21, FORMAT 15.4: what lies before `subagent_history_start_ordinal` is context, not turns."""
    parent = Log(PAGINATED, 1)
    home.put(parent)
    agent = _agent(2, parent.thread, subagent_history_start_ordinal=7)
    agent.turn("copied")
    assert agent.ordinal == 7
    agent.turn("own")
    home.put(agent)
    views = home.read(agent)
    assert views.effective() == pairs("copied", "own")
    assert views.turns() == [("turn-own", "completed")]


def test_agents_in_a_circle(home: Home) -> None:
    """FAULTS 21: parents that are each other's children, or their own: links are text, nothing follows them."""
    first, second, third = _agent(1, uuid(2)), _agent(2, uuid(1)), _agent(3, uuid(3))
    for log in (first, second, third):
        home.put(log)
    store = home.open()
    assert [thread for _, thread in store.links(first.thread).agents] == [second.thread]
    assert store.links(third.thread).parent == third.thread


@pytest.mark.parametrize("value", ["not a uuid", "../../etc", 7, [], {}])
def test_links_to_nothing(home: Home, value: object) -> None:
    """FAULTS 21, 22: ids that are none give no link and no error."""
    log = Log(PAGINATED, 1, forked_from_id=value, parent_thread_id=value)
    log.turn("one")
    home.put(log)
    store = home.open()
    links = store.links(log.thread)
    assert links.forked_from is None or "/" not in links.forked_from
    assert links.parent is None or "/" not in links.parent
