"""`rolloutfs search`: the answers of the index are those of a plain scan over the same texts."""

from __future__ import annotations

import json
import os
import re
import shutil
import unicodedata
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from threadstore import search
from threadstore.projection import View
from threadstore.store import ThreadStore
from threadstore.texts import Text

from tests.commands.conftest import HOSTILE, Ask, OpenStore, assert_harmless
from tests.conftest import CopyStore, Corpus
from tests.core.logs import Log, Store
from tests.core.logs import thread_id as log_thread
from tests.tree.sample import SampleStore, thread_id

STORES = ("forks.paginated", "subagents_v2.legacy", "tools.paginated", "compressed.legacy", "old_0.47.0_basic")
Places = set[tuple[str, str, int]]


def tokens(text: str) -> list[str]:
    """What a person calls words: letters and digits, without case and accents, and Chinese characters."""
    bare = "".join(one for one in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(one) != "Mn")
    return re.findall(r"[\u4e00-\u9fff]|[^\W_\u4e00-\u9fff]+", bare)


def has_phrase(text: str, phrase: str, *, prefix: bool = False) -> bool:
    """Word after word; with `prefix` the last one may go on."""
    wanted, there = tokens(phrase), tokens(text)
    for at in range(len(there) - len(wanted) + 1):
        *first, last = there[at : at + len(wanted)]
        if first == wanted[:-1] and (last.startswith(wanted[-1]) if prefix else last == wanted[-1]):
            return True
    return False


def having(phrase: str | None, kind: str | None = None, *, prefix: bool = False) -> Callable[[Text], bool]:
    """Accepts texts of a kind that have a phrase."""

    def accept(text: Text) -> bool:
        right = kind is None or text.kind == kind
        return right and (phrase is None or has_phrase(text.text, phrase, prefix=prefix))

    return accept


def scan(store: ThreadStore, accept: Callable[[Text], bool]) -> Places:
    """Every text that is accepted, by reading all of them."""
    return {
        (thread, text.file, text.offset)
        for thread in store.thread_ids()
        for text in store.texts(thread)
        if accept(text)
    }


def places(ask: Ask, home: Path, *words: str) -> Places:
    """What the command finds."""
    hits = ask("search", "--store", home, "-n", "0", "--json", "--", *words).objects
    found = {(hit["thread_id"], hit["file"], hit["offset"]) for hit in hits}
    assert len(found) == len(hits)
    return found


@pytest.mark.parametrize("name", STORES)
def test_as_a_plain_scan(name: str, corpus: Corpus, open_store: OpenStore, ask: Ask) -> None:
    """Words, several words, phrases, prefixes and kinds find what reading everything finds."""
    home = corpus(name).home
    store = open_store(home)
    said = [text for thread in store.thread_ids() for text in store.texts(thread)]
    phrases = {" ".join(tokens(text.text)[:3]) for text in said} - {""}
    words = sorted({word for text in said for word in tokens(text.text)})
    assert words
    for word in words[:: max(len(words) // 12, 1)]:
        assert places(ask, home, word) == scan(store, having(word))
        assert places(ask, home, word[:2] + "*") == scan(store, having(word[:2], prefix=True))
    for phrase in sorted(phrases)[:: max(len(phrases) // 8, 1)]:
        assert places(ask, home, f'"{phrase}"') == scan(store, having(phrase))
        found = [scan(store, having(word)) for word in phrase.split()]
        assert places(ask, home, *phrase.split()) == set.intersection(*found)
    kinds: dict[str, Places] = {kind: scan(store, having(None, kind)) for kind in search.KINDS}
    assert kinds == {kind: places(ask, home, f"kind:{kind}") for kind in search.KINDS}


def test_filters(copy_store: CopyStore, open_store: OpenStore, ask: Ask) -> None:
    """Those about the thread and about the tool; a folder stands for those below it, and a star for any end."""
    home = copy_store("tools.paginated").home
    store = open_store(home)
    everything = scan(store, lambda text: True)
    assert places(ask, home, "tool:exec_command") == scan(store, lambda text: text.tool == "exec_command") != set()
    assert places(ask, home, "tool:exec*") >= places(ask, home, "tool:exec_command")
    assert places(ask, home, "cwd:/repo") == places(ask, home, "cwd:/") == everything
    assert places(ask, home, "cwd:/rep") == places(ask, home, "cwd:/repo/x") == set()
    assert places(ask, home, "model:gpt*") == everything
    assert places(ask, home, "model:gpt") == places(ask, home, "branch:main") == set()


@pytest.mark.parametrize("name", STORES)
def test_turns(name: str, corpus: Corpus, open_store: OpenStore, ask: Ask) -> None:
    """What the user said is found in the turn that turns.jsonl gives it."""
    home = corpus(name).home
    store = open_store(home)
    checked = 0
    for hit in ask("search", "--store", home, "-n", "0", "--json", "kind:user").objects:
        lines = store.rendered(hit["thread_id"], View.TURNS)
        users = {turn["id"]: turn for turn in map(json.loads, lines.splitlines())}
        if hit["turn_id"] is not None and (user := users[hit["turn_id"]]["user"]):
            assert tokens(hit["snippet"])[:5] == tokens(user)[:5]
            assert hit["turn"] == users[hit["turn_id"]]["number"]
            checked += 1
    assert checked


def test_days_and_order(sample: SampleStore, ask: Ask) -> None:
    """Both days count as a whole, in local time, which is two hours ahead here; the newest comes first."""
    for number, moment in enumerate(
        ("2026-03-01T21:59:59", "2026-03-01T22:00:00", "2026-03-02T21:59:59", "2026-03-02T22:00:00")
    ):
        sample.add(number, "needle")
        log = sample.path(thread_id(number))
        log.write_bytes(re.sub(rb"2026-11-29T21:..:..", moment.encode(), log.read_bytes()))

    def found(*words: str) -> list[int]:
        hits = ask("search", "--store", sample.root, "--json", "needle", *words).objects
        return [int(hit["thread_id"][-2:], 16) for hit in hits]

    assert found() == found("-n", "0") == [3, 2, 1, 0]
    assert found("since:2026-03-02") == [3, 2, 1]
    assert found("until:2026-03-02") == [2, 1, 0]
    assert found("since:2026-03-02", "until:2026-03-02", "-n", "1") == [2]
    hit = ask("search", "--store", sample.root, "--json", "needle", "-n", "1").objects[0]
    assert datetime.fromisoformat(hit["time"]).timestamp() == datetime.fromisoformat("2026-03-02T22:00:00Z").timestamp()
    assert "2026-03-03 00:00" in ask("search", "--store", sample.root, "needle").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (('"open',), "no partner"),
        (("!!",), "no letter or digit"),
        (("*",), "no letter or digit"),
        (('""',), "no letter or digit"),
        (("branch:",), "needs a value"),
        (("kind:person",), "no kind of text"),
        (("since:yesterday",), "names no day"),
        (("until:2026-02-30",), "names no day"),
        (("since:9999-12-31",), "names no day"),
        (("since:0001-01-01",), "names no day"),
        (tuple("abcdefgh") * 9, "the most is 64"),
        (("\x1b[31m*",), None),
        (("a\x1b]0;x\x07", '"'), "no partner"),
    ],
)
def test_bad_queries(words: tuple[str, ...], told: str | None, sample: SampleStore, ask: Ask) -> None:
    """They are refused with a sentence of ours; what could be a word is one."""
    sample.add(1, "hello")
    answer = ask("search", "--store", sample.root, "--", *words, code=0 if told is None else 2)
    assert (told or "") in answer.err
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    assert told is not None or answer.err == "Nothing was found.\n"
    assert not re.search(r"sqlite|fts5|syntax", answer.err, re.IGNORECASE)
    assert_harmless(answer.err)


@pytest.mark.parametrize(
    ("word", "is_found"),
    [
        *(("OR", True), ("NOT", True), ("^hello", True), ("-hello", True), ("{hello}:", True), ("hello;", True)),
        *(("NEAR(a", False), ("hello AND", False), ("text:hello", False), ("hello + x", False)),
        *(("h' OR 1=1", False), ('h"e"*', False), ('hello"text"', False), ('hello "te"*', True)),
    ],
)
def test_nothing_typed_is_syntax(word: str, is_found: bool, sample: SampleStore, ask: Ask) -> None:
    """Operators of FTS5 and SQL are words like others."""
    sample.add(1, "hello or not text" if is_found else "hello")
    assert bool(places(ask, sample.root, word)) == is_found


def test_a_name_that_nobody_said(sample: SampleStore, ask: Ask) -> None:
    """Who remembers a name is told which threads have it; a filter asks for something else."""
    threads = [sample.add(number, "hello") for number in (1, 2)]
    names = ("Release \x1b[31mnotes", "other")
    lines = (json.dumps({"id": one, "thread_name": name}) + "\n" for one, name in zip(threads, names, strict=True))
    (sample.root / "session_index.jsonl").write_text("".join(lines))
    told = ask("search", "notes", "release", "--store", sample.root).err
    assert_harmless(told)
    assert told.splitlines()[1:] == [
        "Names are not searched, but these threads are called so:",
        f"  {threads[0]}  Release \\x1b[31mnotes",
    ]
    for words in (("notes", "kind:call"), ("nothing",), ("kind:call",)):
        assert ask("search", *words, "--store", sample.root).err == "Nothing was found.\n"
    assert ask("search", "hello", "--store", sample.root).err == ""


def test_filters_in_one_argument(sample: SampleStore, ask: Ask) -> None:
    """The value of the first one would be all of it: nothing would be found, without a word why. In quotation marks of
    its own it is a text.
    """
    sample.add(1, "use kind:call there")
    for words in ("tool:apply_patch kind:call", "since:2026-11-29 until:2026-11-29"):
        assert f"give {words.replace(' ', ' and ')} apart" in ask("search", words, "--store", sample.root, code=2).err
    assert ask("search", "use kind:call there", "--store", sample.root).out
    assert ask("search", '"use kind:call"', "--store", sample.root).out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("修复数据库迁移的测试。", ["数据库", "迁移", "测试", "库迁*", "修复 测试", '"数据库迁移"']),
        ("データベースの移行ガ\u3099", ["データ", "移行", "ベース"]),
        ("데이터베이스를 고쳤다", ["데이터", "베이스", "고쳤"]),
        ("fix数据库v2 の𠮷野家", ["fix", "数据", "v2", "fix数据库", "𠮷野"]),
    ],
)
def test_scripts_without_blanks(text: str, words: list[str], sample: SampleStore, ask: Ask) -> None:
    """Parts of what is written without blanks are found, and shown with what is around; other characters are not."""
    sample.add(1, "x" * 5, f"{'前' * 200} {text}", "nothing")
    for word in words:
        (hit,) = ask("search", "--store", sample.root, "--json", "--", *word.split()).objects
        assert word.strip('"*').split()[0] in hit["snippet"]
        assert len(hit["snippet"]) < 170
    assert places(ask, sample.root, "据数") == places(ask, sample.root, "数据馆") == set()
    sample.replace(thread_id(1), "other")
    assert places(ask, sample.root, words[0]) == places(ask, sample.root, "前") == set()


def test_hostile_texts(sample: SampleStore, ask: Ask) -> None:
    """A table has a line a hit, whatever was said, and nothing that a terminal obeys; JSON says what it was."""
    sample.add(1, f"needle {HOSTILE}")
    answer = ask("search", "--store", sample.root, "needle")
    assert len(answer.rows()) == 1
    assert "\\x1b[31mred\\x07 second\\x9b2J \\u202eevil" in answer.out
    assert_harmless(answer.out)
    told = ask("search", "--store", sample.root, "--json", "needle")
    assert_harmless(told.out)
    assert "a\x1b[31mred\x07\nsecond\x9b2J \u202eevil" in told.objects[0]["snippet"]


def test_what_changed_is_found_at_once(sample: SampleStore, ask: Ask) -> None:
    """The index is brought up to date before it is asked."""
    thread = sample.add(1, "hello")
    assert places(ask, sample.root, "hello") != set()
    sample.append(thread, "goodbye")
    assert places(ask, sample.root, "goodbye") != set()
    sample.replace(thread, "other")
    assert places(ask, sample.root, "hello") == set()
    sample.path(thread).unlink()
    assert places(ask, sample.root, "other") == set()
    sample.add(2, "another")
    assert places(ask, sample.root, "other") == set()


def test_without_a_place_for_the_index(sample: SampleStore, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache can't be written, or lies in the store, the answer is the same and nothing stays."""
    sample.add(1, "hello")
    before = sorted(sample.root.rglob("*"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(sample.root / "cache"))
    assert places(ask, sample.root, "hello") != set()
    blocked = sample.root.parent / "blocked"
    blocked.write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert places(ask, sample.root, "hello") != set()
    assert sorted(sample.root.rglob("*")) == before


def test_a_damaged_index(sample: SampleStore, ask: Ask, tmp_path: Path) -> None:
    """It is made anew."""
    sample.add(1, "hello")
    assert places(ask, sample.root, "hello") != set()
    (index,) = (tmp_path / "xdg/cache/rolloutfs/index").glob("*.sqlite")
    for end in ("-wal", "-shm"):
        Path(f"{index}{end}").unlink(missing_ok=True)
    index.write_bytes(b"SQLite format 3\0" + os.urandom(8192))
    assert places(ask, sample.root, "hello") != set()


def test_threads_that_are_not_in_it(copy_store: CopyStore, ask: Ask) -> None:
    """A thread that can't be read as a whole is told of, not passed over silently."""
    home = copy_store("revert_forked.paginated").home
    logs = sorted(home.rglob("rollout-*.jsonl"))
    ask("search", "--store", home, "zzz")
    shutil.copyfile(logs[0], home / "kept")
    logs[0].unlink()
    assert "were not searched" in ask("search", "--store", home, "zzz").err


def test_no_store(tmp_path: Path, ask: Ask) -> None:
    """That is exit code 3."""
    assert "no store" in ask("search", "--store", tmp_path / "none", "x", code=3).err


@pytest.mark.parametrize("name", ["revert_once.paginated", "revert_forked.paginated", "revert_then_turns.paginated"])
def test_what_a_revert_dropped(name: str, corpus: Corpus, open_store: OpenStore, ask: Ask) -> None:
    """It is found, in the turn that it was said in, and is told to be dropped; what counts is told to count."""
    home = corpus(name).home
    store = open_store(home)
    dropped = 0
    for hit in ask("search", "--store", home, "-n", "0", "--json", "kind:user").objects:
        views = {True: View.TURNS, False: View.DROPPED_TURNS}
        turns = {
            turn["id"]: turn
            for turn in map(json.loads, store.rendered(hit["thread_id"], views[hit["effective"]]).splitlines())
        }
        turn = turns[hit["turn_id"]]
        assert tokens(hit["snippet"])[:5] == tokens(turn["user"])[:5]
        assert (hit["turn"], turn["effective"]) == (turn["number"], hit["effective"])
        dropped += not hit["effective"]
    lists = {thread: store.rendered(thread, View.DROPPED_TURNS).splitlines() for thread in store.thread_ids()}
    own = [
        line for thread, lines in lists.items() for line in lines if f"-{thread}" in json.loads(line)["start"]["file"]
    ]
    assert dropped == len(own) > 0  # what was inherited is found in the thread that it comes from
    rows = ask("search", "--store", home, "-n", "0", "kind:user").rows()
    assert sum(row.split()[3] == "dropped" for row in rows) == dropped


@pytest.mark.parametrize("size", [1, 2 << 20])
def test_what_is_taken_back_later(size: int, tmp_path: Path, ask: Ask) -> None:
    """A text that was found before its turn was taken back is told to be dropped from then on, in both modes and in
    logs of any size, and counts again after an undo.
    """
    legacy = Log(thread=log_thread(1)).turn("a", "needle").turn("b", "x" * size).turn("c", "needle")
    one = Log(True, log_thread(2)).turn("a", "needle").turn("b", "x" * size).turn("c", "needle")
    store = Store(tmp_path / "home", legacy, one)

    def effective() -> dict[str, list[bool]]:
        hits = ask("search", "--store", store.root, "--json", "kind:user", "needle").objects
        found: dict[str, list[bool]] = {}
        for hit in sorted(hits, key=lambda hit: (hit["file"], hit["offset"])):
            found.setdefault(hit["thread_id"], []).append(hit["effective"])
        return found

    assert effective() == {log_thread(1): [True, True], log_thread(2): [True, True]}
    store.write(legacy.name, legacy.roll_back(1).turn("d", "other").data)
    back = Log(True, log_thread(2), log_thread(3), base=one.end(11)).turn("d", "other")
    store.write(back.name, back.data)
    assert effective() == {log_thread(1): [True, False], log_thread(2): [True, False]}
    store.write(legacy.name, legacy.turn("e", "needle").data)
    store.write(back.name, back.turn("e", "needle").data)
    assert effective() == {log_thread(1): [True, False, True], log_thread(2): [True, False, True]}
    again = Log(True, log_thread(2), log_thread(4), base=one.end()).turn("f", "needle")
    store.write(again.name, again.data)
    assert effective()[log_thread(2)] == [True, True, False, True]
    (store.root / back.name).unlink()
    store.write(again.name, again.turn("g", "needle").data)
    assert effective()[log_thread(2)] == [True, True, True, True]  # what isn't there is not found


MISSPELT = {
    "brnach:main": "branch",
    "Branch:main": "branch",
    "branches:x*": "branch",
    "modle:gpt": "model",
    "tools:exec": "tool",
    "knid:user": "kind",
    'brnach:"my branch"': "branch",
    "cdw:/repo": "cwd",
    "snice:2026-11-01": "since",
    "form:2026-11-01": "since",
    "after:2026-11-01": "since",
    "untill:2026-11-01": "until",
    "before:2026-11-01": "until",
}
TEXTS = (
    *("std::vector", "http://x", "TODO:", "TODO:x", "main.c:12", "a:b", "error:x", "note:see", "user:me", "E:x"),
    *("brnach::x", "brnach://x", "brnach", '"brnach:main"', '"x brnach:main"', "kind_:x", "font:x", "word:x"),
)


@pytest.mark.parametrize("word", MISSPELT)
def test_a_misspelt_filter(word: str, sample: SampleStore, ask: Ask) -> None:
    """It is searched for as text, which is found, and a hint says how the filter is written, and the text."""
    sample.add(1, f"see {word.replace('*', '')} there")
    (thread,) = {hit["thread_id"] for hit in ask("search", word, "--json", "--store", sample.root).objects}
    assert thread == thread_id(1)
    said = ask("search", "there", word, "--store", sample.root)
    name, value = MISSPELT[word], word.partition(":")[2]
    assert said.err == (
        f"rolloutfs: {word} was searched for as text; the filter would be {name}:{value}. "
        "In quotation marks it is no filter.\n"
    )
    if '"' not in word:
        assert search.parse([f'"{word}"']).hints == search.parse_line(f'there "{word}"').hints == ()
    assert search.parse_line(f"there {word}").hints == search.parse([word]).hints


@pytest.mark.parametrize("word", TEXTS)
def test_text_with_colons(word: str) -> None:
    """It is text, and nothing is said about it."""
    assert (search.parse([word]).hints, search.parse([word]).where) == ((), ())
