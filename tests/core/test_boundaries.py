"""What begins a user's turn (FORMAT 6), rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
from threadstore.boundaries import (
    SUMMARY_PREFIX,
    is_boundary,
    is_contextual_developer,
    is_contextual_user,
    is_hook_prompt,
    is_visible_user,
)

from tests.core.logs import agent_message, assistant, call, developer, envelope, user

CONTEXTUAL = [
    "# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>\nbe kind\n</INSTRUCTIONS>",
    "<environment_context>\n<cwd>/repo</cwd>\n</environment_context>",
    "<external_issue>text</external_issue>",
    "<agent_message_board_notification>x</agent_message_board_notification>",
    "<skill>\nname\n</skill>",
    "<user_shell_command>ls</user_shell_command>",
    "<turn_aborted>\nstopped\n</turn_aborted>",
    "<subagent_notification>done</subagent_notification>",
    '<codex_internal_context source="goal_tracker2">x</codex_internal_context>',
    "<goal_context>x</goal_context>",
    "<recommended_plugins>x</recommended_plugins>",
    '<hook_prompt hook_run_id="h1">be brief</hook_prompt>',
    " \n<ENVIRONMENT_CONTEXT>\nloud\n</Environment_Context>\t\n",
]
PLAIN = [
    "",
    "hello",
    "please see <environment_context></environment_context>",
    "<environment_context>never closed",
    "closed only</environment_context>",
    "<external_a>x</external_b>",
    '<codex_internal_context source="Goal">x</codex_internal_context>',
    "<codex_internal_context>x</codex_internal_context>",
    "<hook_prompt>no id</hook_prompt>",
    "<user_instructions>x</user_instructions>",
    "# AGENTS.md instructions without the end",
]


@pytest.mark.parametrize("text", CONTEXTUAL)
def test_contextual_user_messages_begin_no_turn(text: str) -> None:
    """FORMAT 6.1: each kind of text that Codex itself puts into a user message."""
    assert is_contextual_user(user(text))
    assert not is_boundary(user(text))
    assert not is_visible_user(user(text))


@pytest.mark.parametrize("text", PLAIN)
def test_what_a_person_writes_begins_a_turn(text: str) -> None:
    """FORMAT 6, rule 2: anything else under the role `user`, also what only looks like context."""
    assert is_boundary(user(text))
    assert is_visible_user(user(text))
    assert not is_contextual_user(user(text))


def test_one_contextual_part_is_enough() -> None:
    """FORMAT 6.1: one matching content item makes the whole message contextual; an image never matches."""
    parts = [
        {"type": "input_text", "text": "hello"},
        {"type": "input_text", "text": "<turn_aborted></turn_aborted>"},
    ]
    assert not is_boundary(user("") | {"content": parts})
    assert is_boundary(user("") | {"content": [{"type": "input_image", "image_url": "data:"}]})
    assert is_boundary(user("") | {"content": []})


def test_summary_is_no_turn() -> None:
    """FORMAT 9.1: the whole prefix and a newline make a summary; its first sentence alone does not."""
    assert len(SUMMARY_PREFIX.encode()) == 399
    assert not is_boundary(user(SUMMARY_PREFIX + "\ndone so far"))
    assert not is_contextual_user(user(SUMMARY_PREFIX + "\ndone so far"))
    assert is_boundary(user(SUMMARY_PREFIX))
    assert is_boundary(user(SUMMARY_PREFIX.partition(".")[0] + ".\ndone so far"))


@pytest.mark.parametrize("item", [agent_message(), envelope(), envelope(trigger=False), envelope("/morpheus")])
def test_messages_of_agents_begin_a_turn(item: dict[str, Any]) -> None:
    """FORMAT 6, rules 1 and 3: whatever their `trigger_turn`, and though no person wrote them."""
    assert is_boundary(item)
    assert not is_visible_user(item)


@pytest.mark.parametrize(
    "item",
    [
        assistant("hello"),
        assistant('{"author":"/root","recipient":"/root/a"}'),
        assistant('{"author":"me","recipient":"/root","content":"x","trigger_turn":true}'),
        assistant('{"author":"/rooted","recipient":"/root","content":"x","trigger_turn":true}'),
        assistant('{"author":"/root","recipient":"/root","content":"x","trigger_turn":1}'),
        assistant("{"),
        envelope() | {"content": envelope()["content"] * 2},
        envelope() | {"role": "developer"},
        developer("hello"),
        call("c"),
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "x"}]},
    ],
)
def test_other_items_begin_no_turn(item: dict[str, Any]) -> None:
    """FORMAT 6: neither what the model says nor what merely resembles an envelope."""
    assert not is_boundary(item)


def test_hook_prompts_are_known() -> None:
    """FORMAT 6.1: a hook's prompt is contextual, and remote compaction keeps it."""
    assert is_hook_prompt(user('<hook_prompt hook_run_id="h1">be brief</hook_prompt>'))
    assert not is_hook_prompt(user("<hook_prompt>be brief</hook_prompt>"))


@pytest.mark.parametrize(
    ("text", "contextual"),
    [
        ("<permissions instructions>read only</permissions instructions>", True),
        ("  <Model_Switch>\nnow another", True),
        ("<context_window>", True),
        ("<context_window_guidance>", True),
        ("<tools>", True),
        ("<tools_instructions>", False),
        ("<model_instructions>", False),
        ("<environments>", False),
        ("<realtime>", False),
        ("<user_instructions>", False),
        ("be kind", False),
        ("first <tools>", False),
    ],
)
def test_contextual_developer_prefixes(text: str, *, contextual: bool) -> None:
    """FORMAT 6.2: the prefixes that were tried with Codex, and those that are none."""
    assert is_contextual_developer(developer(text)) is contextual
    assert is_contextual_developer(developer("plain", text)) is contextual
    assert not is_contextual_developer(user(text))
