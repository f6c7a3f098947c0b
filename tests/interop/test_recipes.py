"""docs/recipes.md, as it stands: every shell block is run, and what it says it prints is what it prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from threadstore.projection import View
from threadstore.usage import FIELDS

from rolloutfs import mounttable
from scripts.sample_store import build
from tests.interop.codex import CHECKOUT, Codex
from tests.interop.following import Following, open_store
from tests.interop.model_server import ModelServer
from tests.interop.untouched import fingerprint
from tests.mount.conftest import until
from tests.tree.sample import SampleStore, line, message

pytestmark = pytest.mark.slow

TOOLS = ("restic", "borg", "rsync")
LIMIT = 300  # seconds for one recipe
#: Between the two runs of a backup a thread goes on.
GROWING = "01a22938-c8bd-7600-8ad4-199cd8a7ead1"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A section: its shell blocks, each with what it is said to print (None: nothing is said)."""

    title: str
    blocks: tuple[tuple[str, str | None], ...]

    @property
    def script(self) -> list[str]:
        """The shell blocks."""
        return [script for script, _ in self.blocks]


def recipes() -> dict[str, Recipe]:
    """All sections by title; what stands before the first is called "Recipes"."""
    found = {}
    for section in re.split(r"^##? ", (CHECKOUT / "docs/recipes.md").read_text(), flags=re.MULTILINE)[1:]:
        blocks: list[tuple[str, str | None]] = []
        for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
            if language == "sh":
                blocks.append((text, None))
            else:
                assert language == "text", section
                blocks[-1] = (blocks[-1][0], text)
        title = section.partition("\n")[0]
        found[title] = Recipe(title, tuple(blocks))
    return found


RECIPES = recipes()
#: What stands in the file under the hand of the tests below.
TESTED = {"Recipes", *(f"{what} with {tool}" for what in ("Back up", "Restore") for tool in TOOLS)}
PLAIN = ("Find a lost thread", "Compare two forks", "Undo a revert", "Copy the threads of a project")


@dataclass(frozen=True, slots=True)
class Household:
    """A person's home, with a store in ~/.codex and nothing else."""

    home: Path

    @property
    def store(self) -> Path:
        """The Codex home."""
        return self.home / ".codex"

    @property
    def environment(self) -> dict[str, str]:
        """Of a shell in which rolloutfs is installed."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"HOME": str(self.home), "PATH": path, "LC_ALL": "C.UTF-8", "TZ": "UTC", "TERM": "dumb"}

    def shell(self, *blocks: str) -> list[str]:
        """Run blocks one after the other in one shell, which stops at the first failure; what each printed."""
        outputs = [self.home / f"output-{number}" for number in range(len(blocks))]
        script = "".join(f"exec > '{output}'\n{block}\n" for output, block in zip(outputs, blocks, strict=True))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return [output.read_text() for output in outputs]

    def follow(self, block: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a block that doesn't end by itself; the process, whose number is that of its group, and its output."""
        output = self.home / "followed"
        with output.open("wb") as file:
            return subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", block],
                cwd=self.home,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                start_new_session=True,
            ), output

    def log(self, thread: str) -> Path:
        """The newest log of a thread."""
        return max(self.store.rglob(f"rollout-*{thread}*.jsonl"))


@pytest.fixture
def household(tmp_path: Path) -> Iterator[Household]:
    """The sample store in a home of its own. What recipes mount is unmounted afterwards."""
    home = tmp_path.resolve() / "home"
    home.mkdir()
    household = Household(home)
    build(household.store)
    try:
        yield household
    finally:
        for place in ("threads", "codex-view"):
            while mounttable.find(str(home / place)) is not None:
                subprocess.run(["fusermount3", "-uz", home / place], check=True, timeout=LIMIT)
    logs = [path.read_text() for path in (home / ".local/state/rolloutfs").glob("*.log")]
    assert set(logs) <= {""}, "a server wrote lines that no test knows of"


@pytest.fixture
def mounted(household: Household) -> Household:
    """The same after the first lines of the page, once the index has everything."""
    household.shell(*RECIPES["Recipes"].script)
    search = household.home / "threads/search/anything"
    until(lambda: "incomplete.json" not in os.listdir(search), "the index has everything")
    return household


def test_every_recipe_is_tried() -> None:
    """A new section needs a test."""
    assert set(RECIPES) - {"What a backup has, and what it hasn't"} == TESTED | {
        *PLAIN,
        "Watch an agent",
        "What a branch cost",
    }
    assert all(recipe.blocks for recipe in RECIPES.values() if recipe.title.partition(" ")[0] != "What")


@pytest.mark.parametrize("title", PLAIN)
def test_prints_what_it_says(title: str, mounted: Household) -> None:
    """Each block of a recipe prints what stands below it."""
    recipe = RECIPES[title]
    for (block, told), printed in zip(recipe.blocks, mounted.shell(*recipe.script), strict=True):
        assert told is None or printed == told, block


def test_watching(mounted: Household) -> None:
    """What Codex writes appears; what is pending is told, and nothing when nothing is."""
    watching, pending = RECIPES["Watch an agent"].script
    process, output = mounted.follow(watching)
    try:
        until(lambda: b"child turn of fork_last_turn2" in output.read_bytes(), "the end of what is known is shown")
        log = mounted.log(GROWING)
        ordinal = json.loads(log.read_bytes().split(b"\n")[-2])["ordinal"] + 1
        call = {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"make"}', "call_id": "call_x"}
        with log.open("ab") as file:
            for number, record in enumerate((message("One word more.", "assistant"), line("response_item", call))):
                file.write(json.dumps({"ordinal": ordinal + number, **json.loads(record)}).encode() + b"\n")
        until(lambda: b"message\tassistant\tOne word more." in output.read_bytes(), "the message is shown")
        until(lambda: b'function_call\texec_command\t{"cmd":"make"}' in output.read_bytes(), "the call is shown")
        assert mounted.shell(pending) == ['exec_command {"cmd":"make"}\n']
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_costs(household: Household) -> None:
    """Tokens by branch are the sum of what threads themselves used; those of forks are what the page says."""
    sample = SampleStore(household.store)
    expected: Counter[str] = Counter()
    for number, (branch, tokens) in enumerate((("main", 700), ("fix/a b", 30), ("main", 5))):
        thread = sample.add(number, git={"branch": branch})
        usage = dict.fromkeys(FIELDS, 0) | {"total_tokens": tokens, "input_tokens": tokens}
        info = {"total_token_usage": usage, "last_token_usage": usage, "model_context_window": 1000}
        count = {"type": "token_count", "info": info, "rate_limits": None}
        with sample.path(thread).open("ab") as log:
            log.write(line("event_msg", count, 50))
        expected[branch] += tokens
    store = open_store(household.store)
    for thread in store.thread_ids():
        about, usage = (json.loads(store.rendered(thread, view)) for view in (View.THREAD, View.USAGE))
        if about["git"] is None and usage["own"]:
            expected["(none)"] += usage["own"]["total_tokens"]
    recipe = RECIPES["What a branch cost"]
    _, branches, forks = household.shell(*RECIPES["Recipes"].script, *recipe.script)
    assert branches == "".join(f"{tokens}\t{branch}\n" for branch, tokens in expected.most_common())
    assert forks == recipe.blocks[1][1]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_lost_store(tool: str, household: Household) -> None:
    """Backed up twice through the mount, deleted and restored: every log is as it was, Codex resumes every thread, and
    goes on with one in three, others for each program.
    """
    prepare, *backup = RECIPES[f"Back up with {tool}"].script
    again = backup[-1] if backup else prepare
    log = household.log(GROWING)
    ordinal = json.loads(log.read_bytes().split(b"\n")[-2])["ordinal"] + 1
    record = json.dumps({"ordinal": ordinal, **json.loads(message("meanwhile"))})
    household.shell(prepare, *backup, f"echo '{record}' >> {log}", again)
    before = _logs(household.store)
    store = open_store(household.store)
    names = {thread: store.name(thread) for thread in store.thread_ids()}
    shutil.rmtree(household.store)
    household.shell(*RECIPES[f"Restore with {tool}"].script)
    assert _logs(household.store) == before
    assert all(
        path.name in ("sessions", "archived_sessions", "session_index.jsonl") for path in household.store.iterdir()
    )
    with ModelServer() as model, Codex(household.store, model) as codex:
        restored = open_store(household.store)
        assert {thread: restored.name(thread) for thread in restored.thread_ids()} == names
        following = Following(codex, restored)
        for number, thread in enumerate(names):
            if restored.head(thread).archived:
                codex.call("thread/unarchive", threadId=thread)
            loaded = following.load(thread)
            if number % len(TOOLS) == TOOLS.index(tool):
                following.turn(loaded, f"only {thread}")


def _logs(store: Path) -> dict[str, str]:
    return {name: digest for name, digest in fingerprint(store).items() if not name.startswith("row of")}
