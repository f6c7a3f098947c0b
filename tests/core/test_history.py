"""Undoing turns and rebuilding after a checkpoint of the old kind (FORMAT 8.1, 9.2), on a history of its own."""

from __future__ import annotations

from typing import Any

import pytest
from threadstore.boundaries import SUMMARY_PREFIX
from threadstore.history import MADE, SUMMARY_BUDGET, History, Item, describe, split_middle

from tests.core.logs import agent_message, assistant, call, developer, dumps, output, user

NOTE = user("<environment_context>x</environment_context>")
RULES = developer("<permissions instructions>x")
Json = dict[str, Any]


class Memory:
    """A history whose items lie in a list instead of a log."""

    def __init__(self, *items: Json) -> None:
        self.stored = [dumps(item) for item in items]
        self.history = History()
        for number, item in enumerate(items):
            flags, call_hash = describe(item, len(self.stored[number]))
            self.history.append(Item(0, number, len(self.stored[number]), int(flags), call_hash))

    def fetch(self, item: Item) -> bytes:
        """The bytes of an item that lies in a log; there is none for a made one."""
        assert item.segment != MADE, "an item that was made lies in no log"
        return self.stored[item.offset]

    @property
    def items(self) -> list[bytes]:
        """Every item now."""
        return [
            self.history.made[item.offset] if item.segment == MADE else self.stored[item.offset]
            for item in self.history
        ]


def dropped(count: int, *items: Json) -> list[bytes]:
    """What is left after undoing `count` turns."""
    memory = Memory(*items)
    memory.history.drop_turns(count)
    return memory.items


def stored(*items: Json) -> list[bytes]:
    """Items as they lie in a log."""
    return [dumps(item) for item in items]


TWO = (NOTE, user("one"), assistant("1"), user("two"), assistant("2"))


@pytest.mark.parametrize(("count", "left"), [(0, 5), (1, 3), (2, 1), (3, 1), (1 << 32, 1)])
def test_turns_are_dropped_from_the_end(count: int, left: int) -> None:
    """FORMAT 8.1, 1 and 2: none for 0; what is before the first turn survives whatever the count."""
    assert dropped(count, *TWO) == stored(*TWO[:left])


def test_without_a_turn_nothing_is_dropped() -> None:
    """FORMAT 8.1, 1: no boundary, no change."""
    assert dropped(1, NOTE, assistant("hello")) == stored(NOTE, assistant("hello"))


def test_context_before_a_dropped_turn_goes_with_it() -> None:
    """FORMAT 8.1, 3: contextual messages directly before the cut, but not those before the first turn."""
    items = (RULES, NOTE, user("one"), assistant("1"), RULES, NOTE, user("two"))
    assert dropped(1, *items) == stored(*items[:4])
    assert dropped(2, *items) == stored(*items[:2])


@pytest.mark.parametrize("last", [developer("plain"), assistant("1"), user(SUMMARY_PREFIX + "\nx"), output("c")])
def test_other_items_before_a_dropped_turn_stay(last: Json) -> None:
    """FORMAT 8.1, 3: the walk back ends at the first item that is no context; a summary is none."""
    assert dropped(1, user("one"), NOTE, last, NOTE, user("two")) == stored(user("one"), NOTE, last)


def test_messages_of_agents_are_turns() -> None:
    """FORMAT 6, rule 1."""
    assert dropped(1, user("one"), agent_message(), assistant("done")) == stored(user("one"))


def summarised(*items: Json, message: str = "S") -> list[bytes]:
    """A history after a checkpoint without replacement history."""
    memory = Memory(*items)
    memory.history.summarise(message, memory.fetch)
    return memory.items


def test_summary_keeps_what_persons_wrote() -> None:
    """FORMAT 9.2: their messages as they are, in order, then the summary; no context, answers, calls, summaries."""
    one, two = user("one", id="msg_1"), user("two")
    old = user(SUMMARY_PREFIX + "\nbefore")
    assert summarised(NOTE, one, RULES, assistant("1"), call("c"), output("c"), old, agent_message(), two) == stored(
        one, two, user("S")
    )


def test_empty_summary() -> None:
    """FORMAT 9.2: a checkpoint that says nothing."""
    assert summarised(user("one"), message="") == stored(user("one"), user("(no summary available)"))


def test_newest_messages_fill_the_budget() -> None:
    """FORMAT 9.2: 20,000 tokens from the newest message back; the one that doesn't fit is cut into three parts."""
    new, old = "n" * 4 * (SUMMARY_BUDGET - 10), "o" * 100
    cut = user("") | {
        "content": [{"type": "input_text", "text": text} for text in ("o" * 20, "…15 tokens truncated…", "o" * 20)]
    }
    assert summarised(user("lost"), user(old), user(new)) == stored(cut, user(new), user("S"))


def test_budget_that_is_just_used_up() -> None:
    """FORMAT 9.2: nothing older follows when no token is left, and a part of a token counts as one."""
    exact = user("n" * (4 * SUMMARY_BUDGET - 3))
    assert summarised(user("lost"), exact) == stored(exact, user("S"))


def test_media_in_old_messages_are_left_out() -> None:
    """FORMAT 9.2: a message with an image keeps its text."""
    parts = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "data:"}]
    assert summarised(user("") | {"content": parts}) == stored(user("see"), user("S"))


def test_two_checkpoints_of_the_old_kind() -> None:
    """FORMAT 7.3: the second one is applied to what the first one made, cut messages and a summary without prefix."""
    memory = Memory(user("o" * 4 * (SUMMARY_BUDGET + 8)))
    memory.history.summarise("first", memory.fetch)
    memory.history.summarise("second", memory.fetch)
    texts = [item for item in memory.items if b"tokens truncated" in item]
    assert len(texts) == 1
    assert memory.items[-2:] == stored(user("first"), user("second"))


@pytest.mark.parametrize(
    ("text", "budget", "parts"),
    [
        ("abcdefghij", 2, ("abcd", "…1 tokens truncated…", "ghij")),
        ("abcdefghijklmnopq", 2, ("abcd", "…3 tokens truncated…", "nopq")),
        ("äääääää", 1, ("ä", "…3 tokens truncated…", "ä")),
        ("€€€€", 2, ("€", "…1 tokens truncated…", "€")),
        ("abc", 0, ("", "…1 tokens truncated…", "")),
    ],
)
def test_middle_is_cut_between_characters(text: str, budget: int, parts: tuple[str, str, str]) -> None:
    """FORMAT 7.6: 2B bytes at either end, each cut to whole characters; the note counts what is over 4B."""
    assert split_middle(text.encode(), budget) == parts
