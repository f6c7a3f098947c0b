"""Names of files, and names made of data (FORMAT 2.1, FAULTS 22, 26)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadstore.names import brief_name, parse_rollout, path_names, relocate, safe_name

from tests.core.logs import rollout_name, thread_id

THREAD, ROLLOUT = thread_id(1), thread_id(2)


def test_name_of_a_rollout() -> None:
    """FORMAT 2.1: with one id the rollout is named after the thread, with two the second one is the rollout's."""
    first = parse_rollout(rollout_name(THREAD))
    second = parse_rollout(rollout_name(THREAD, ROLLOUT) + ".zst")
    assert first is not None
    assert second is not None
    assert (first.thread_id, first.rollout_id, first.archived, first.compressed) == (THREAD, THREAD, False, False)
    assert (second.thread_id, second.rollout_id, second.stamp) == (THREAD, ROLLOUT, "2026-11-29T10-00-00")
    assert second.compressed
    assert second.shown == rollout_name(THREAD, ROLLOUT).rpartition("/")[2]


def test_archived_and_upper_case() -> None:
    """FORMAT 2: the archive is flat; ids are compared in lower case."""
    parsed = parse_rollout(f"archived_sessions/rollout-2026-11-29T10-00-00-{THREAD.upper()}.jsonl")
    assert parsed is not None
    assert (parsed.archived, parsed.thread_id) == (True, THREAD)


@pytest.mark.parametrize(
    "name",
    [
        "",
        f"rollout-2026-11-29T10-00-00-{THREAD}.json",
        f"rollout-2026-11-29T10-00-00-{THREAD} 2.jsonl",
        f"rollout-2026-11-29T10-00-00-{THREAD}.jsonl.tmp",
        f"rollout-2026-11-29T10-00-00-{THREAD}.jsonl.bak",
        f"rollout-2026-11-29T10-00-00-{THREAD}.jsonl.zst.zst",
        f"rollout-2026-11-29T10-00-00-{THREAD[:-1]}.jsonl",
        f"rollout-2026-11-29T10-00-00-{THREAD}_.jsonl",
        f"rollout-2026-11-29T10:00:00-{THREAD}.jsonl",
        f"rollout-2026-11-29-{THREAD}.jsonl",
        f"rollout-٢٠٢٦-11-29T10-00-00-{THREAD}.jsonl",
    ],
)
def test_other_names_are_no_rollouts(name: str) -> None:
    """FAULTS 11: copies, temporary files and anything else."""
    assert parse_rollout(f"sessions/2026/11/29/{name}") is None


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/home/user/.codex/sessions/2026/11/29/x.jsonl", "sessions/2026/11/29/x.jsonl"),
        ("/home/user/.codex/archived_sessions/x.jsonl", "archived_sessions/x.jsonl"),
        ("C:\\Users\\me\\.codex\\sessions\\2026\\x.jsonl", "sessions/2026/x.jsonl"),
        ("/data/sessions/me/.codex/sessions/x.jsonl", "sessions/x.jsonl"),
        ("/data/sessions/../../etc/passwd", None),
        ("/data/sessions//x.jsonl", None),
        ("/data/sessions", None),
        ("/data/x.jsonl", None),
        ("", None),
    ],
)
def test_paths_of_a_moved_store(path: str, inside: str | None) -> None:
    """FAULTS 26: what follows the last folder of rollouts is still right; nothing leads out of the store."""
    assert relocate(path) == inside


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Fix the login", "Fix the login"),
        ("../../etc", "_._.._etc"),
        ("a/b\\c", "a_b_c"),
        (".", "_"),
        ("..", "_."),
        ("", "_"),
        (" \n ", "_"),
        ("-rf", "_rf"),
        ("a\nb\x1b[31m", "a_b_[31m"),
        ("a\u202eb\u200b", "a_b_"),
        ("\ud83d", "_"),
        ("e\u0301", "é"),
    ],
)
def test_names_from_data(text: str, name: str) -> None:
    """FAULTS 22: nothing that separates, hides, reorders or begins like an option is left."""
    assert safe_name(text) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Fix `foo()` in bar.py, please!", "Fix_foo_in_bar.py,_please"),
        ("  it's\t$HOME; rm -rf *\n", "it_s_HOME_rm_-rf"),
        ("../../etc/passwd", "etc_passwd"),
        ("-rf --help", "rf_--help"),
        ("host:path~ #1", "host_path_1"),
        ("日本語 のテスト 🎉", "日本語_のテスト_🎉"),
        ("a\u202eb\x1b[31mc", "a_b_31mc"),
        ("", ""),
        ("...  ?!", ""),
        ("word " * 30, "word_word_word_word_word_word_word_word_word"),
        ("x" * 100, "x" * 48),
        (" " * 119 + "xyz", "x"),
    ],
)
def test_first_words_as_a_name(text: str, name: str) -> None:
    """FAULTS 22: whole words as far as that goes, and nothing that a shell would take for something else."""
    assert brief_name(text) == name


@given(st.text(st.characters(codec=None), max_size=300))
def test_first_words_of_any_text(text: str) -> None:
    """FAULTS 22: empty or one path part with room for a time and an id, with nothing to be quoted in it."""
    name = brief_name(text)
    assert len(name.encode()) <= 130
    assert not set(name) & set(" \t\n\"'`$&*?()[]{}<>|;:!#~^\\/\0")
    assert name[:1] not in tuple(".-")
    assert not name or safe_name(name) == name


@given(st.lists(st.sampled_from([*"ab/.\\:- ", "C:\\", "..", "\0", "ä"]), max_size=40))
def test_parts_of_any_path(pieces: list[str]) -> None:
    """FAULTS 22: none of them leads anywhere."""
    for part in path_names("".join(pieces)):
        assert part not in ("", ".", "..")
        assert "/" not in part
        assert "\0" not in part
        assert not part.startswith("-")


@given(st.text(st.characters(codec=None), max_size=300))
def test_any_text_gives_a_name(text: str) -> None:
    """FAULTS 22: one path part that a file system takes, with room for an id behind it."""
    name = safe_name(text)
    assert name not in ("", ".", "..")
    assert name[0] not in ".-"
    assert "/" not in name
    assert "\0" not in name
    assert len(name.encode()) <= 200
