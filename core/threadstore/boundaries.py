"""What counts as a user's turn (FORMAT 6).

A user message is not always a user's: Codex puts the environment, AGENTS.md, skills, notices of aborted turns and
the summary of a compaction into the history under the role `user`. Those are *contextual* and begin no turn. On the
other hand a message from another agent does begin one. Rollback counts boundaries, so a wrong answer here drops the
wrong part of a thread.

Three counters exist and must not be mixed (FORMAT 6.3): user-turn boundaries (rollback), visible user messages
(compaction, previews), and fork turns of sub-agents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from threadstore.schema import is_agent_path

Item = Mapping[str, Any]

#: FORMAT 9.1: every summary of a local compaction begins with this text and a newline.
SUMMARY_PREFIX = (
    "Another language model started to solve this problem and produced a summary of its thinking process. "
    "You also have access to the state of the tools that were used by that language model. "
    "Use this to build on the work that has already been done and avoid duplicating work. "
    "Here is the summary produced by the other language model, "
    "use the information in this summary to assist with your own analysis:"
)

_MARKED = (
    ("# agents.md instructions", "</instructions>"),
    ("<environment_context>", "</environment_context>"),
    ("<agent_message_board_notification>", "</agent_message_board_notification>"),
    ("<skill>", "</skill>"),
    ("<user_shell_command>", "</user_shell_command>"),
    ("<turn_aborted>", "</turn_aborted>"),
    ("<subagent_notification>", "</subagent_notification>"),
    ("<goal_context>", "</goal_context>"),
    ("<recommended_plugins>", "</recommended_plugins>"),
)
_EXTERNAL = re.compile(r"\s*<external_([^>\s]+)>.*</external_\1>\s*\Z", re.DOTALL | re.IGNORECASE)
_INTERNAL = re.compile(
    r'\s*<codex_internal_context source="[a-z][a-z0-9_]*">.*</codex_internal_context>\s*\Z', re.DOTALL
)
_HOOK = re.compile(r'\s*<hook_prompt\b[^>]*\bhook_run_id\s*=\s*["\'][^>]*>.*</hook_prompt>\s*\Z', re.DOTALL)
#: Warnings that older releases recorded as user messages.
_WARNINGS = (
    "Warning: The maximum number of unified exec processes",
    "Warning: apply_patch was requested via",
    "Warning: Your account was flagged",
)
_DEVELOPER = tuple(
    f"<{name}>"
    for name in (
        "permissions instructions",
        "model_switch",
        "managed_developer_instructions",
        "persistent_mode",
        "apps_instructions",
        "collaboration_mode",
        "multi_agent_role",
        "multi_agent_mode",
        "environments_instructions",
        "git_attribution",
        "plugins_instructions",
        "realtime_conversation",
        "skills_instructions",
        "tools",
        "personality_spec",
        "token_budget",
        "context_window",
        "context_window_guidance",
        "rollout_budget",
    )
)


def texts(item: Item) -> Iterator[str]:
    """The texts of a message's content items, in order."""
    content = item.get("content")
    if isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]


def _inputs(item: Item) -> Iterator[str]:
    content = item.get("content")
    if isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and part.get("type") == "input_text" and isinstance(part.get("text"), str):
                yield part["text"]


def is_contextual_text(text: str) -> bool:
    """True for a text that Codex itself put into a user message (FORMAT 6.1)."""
    start, end = text.lstrip()[:64].lower(), text.rstrip()[-64:].lower()
    if any(start.startswith(opening) and end.endswith(closing) for opening, closing in _MARKED):
        return True
    if text.startswith(_WARNINGS):
        return True
    if not start.startswith(("<external_", "<codex_internal_context", "<hook_prompt")):
        return False
    return any(pattern.match(text) is not None for pattern in (_EXTERNAL, _INTERNAL, _HOOK))


def is_hook_prompt(item: Item) -> bool:
    """True for a user message made by a hook: no turn, but kept by remote compaction."""
    return any(_HOOK.match(text) is not None for text in _inputs(item))


def is_summary_text(text: str) -> bool:
    """True for the summary of a local compaction: the whole prefix and a newline."""
    return text.startswith(SUMMARY_PREFIX + "\n")


def is_contextual_user(item: Item) -> bool:
    """True for a user message of which any content item is contextual."""
    return item.get("type") == "message" and item.get("role") == "user" and any(map(is_contextual_text, _inputs(item)))


def is_contextual_developer(item: Item) -> bool:
    """True for a developer message of which any part begins with a prefix of FORMAT 6.2."""
    return (
        item.get("type") == "message"
        and item.get("role") == "developer"
        and any(text.lstrip().lower().startswith(_DEVELOPER) for text in texts(item))
    )


def is_envelope(item: Item) -> bool:
    """True for an assistant message whose only text is the JSON of an inter-agent communication (FORMAT 3.5)."""
    if item.get("type") != "message" or item.get("role") != "assistant":
        return False
    content = item.get("content")
    if not isinstance(content, list) or len(content) != 1:
        return False
    text = next(texts(item), "")
    if not text.lstrip().startswith("{"):
        return False
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and is_communication(document)


def is_communication(document: Mapping[str, Any]) -> bool:
    """True for the fields of an inter-agent communication; agent paths begin with `/root` or are `/morpheus`."""
    return (
        all(is_agent_path(document.get(key)) for key in ("author", "recipient"))
        and isinstance(document.get("content"), str)
        and isinstance(document.get("trigger_turn"), bool)
    )


def is_boundary(item: Item) -> bool:
    """True when the item begins a user's turn for rollback (FORMAT 6, rules 1 to 3)."""
    kind = item.get("type")
    if kind == "agent_message":
        return True
    if kind != "message":
        return False
    if item.get("role") == "user":
        return not any(is_contextual_text(text) or is_summary_text(text) for text in _inputs(item))
    return is_envelope(item)


def is_visible_user(item: Item) -> bool:
    """True for a message that a person wrote: role user, not contextual, no summary of a compaction (FORMAT 6.3,
    9.2).
    """
    return item.get("type") == "message" and item.get("role") == "user" and is_boundary(item)


def user_text(item: Item) -> str:
    """The texts of a message as one, as Codex joins them for summaries."""
    return "".join(texts(item))
