"""What a thread is after an operation: the real Codex goes on with it, and our reading agrees after every step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.core.reading import content
from tests.interop.codex import Codex, CodexError

Json = dict[str, Any]
PASSTHROUGH = "internal_chat_message_metadata_passthrough"


@dataclass(frozen=True, slots=True)
class Mounted:
    """A store as a mount shows it; for the tests below it takes the place of the library."""

    mountpoint: Path

    def lines(self, thread_id: str, view: View) -> list[Json]:
        """A derived file, decoded."""
        data = (self.mountpoint / "threads" / thread_id / view.value).read_bytes()
        return [json.loads(line) for line in data.split(b"\n")[:-1]]


Store = ThreadStore | Mounted


def open_store(home: Path) -> ThreadStore:
    """A store with its scratch files beside it."""
    return ThreadStore(str(home), Spool(str(home.parent / "spool")))


def lines(store: Store, thread_id: str, view: View) -> list[Json]:
    """A derived file, decoded."""
    if isinstance(store, Mounted):
        return store.lines(thread_id, view)
    store.refresh()
    return [json.loads(line) for line in content(store, store.project(thread_id, view)).split(b"\n")[:-1]]


def remembered(store: Store, thread_id: str) -> list[Json]:
    """What we say that the model gets to see."""
    return list(map(_bare, lines(store, thread_id, View.MODEL_INPUT)))


def turns(store: Store, thread_id: str) -> list[tuple[str, str]]:
    """Ids and states of the turns that count, as we say."""
    return [(turn["id"], turn["status"]) for turn in lines(store, thread_id, View.TURNS) if turn["effective"]]


def _copied(copy: list[Json], original: list[Json]) -> list[Json]:
    """What a copy remembers, without the ids that Codex gives to what had none in an old log."""
    pairs = zip(copy, original, strict=False)
    same = [{key: value for key, value in item.items() if key != "id" or "id" in there} for item, there in pairs]
    return same + copy[len(original) :]


def _bare(item: Json) -> Json:
    return {key: value for key, value in item.items() if key != PASSTHROUGH}


def _history(sent: list[Json], recorded: list[Json]) -> list[Json]:
    """A request without what Codex puts before the history: base instructions and, for models of the "lite" kind, the
    tools. In threads of such models they may be recorded as well.
    """
    items = list(map(_bare, sent))
    if recorded and items[0] == recorded[0]:
        return items
    return items[2:] if items[0]["type"] == "additional_tools" else items[1:]


class Following:
    """Goes on with threads in one running Codex."""

    def __init__(self, codex: Codex, store: Store, *, ordered: bool = True) -> None:
        self.codex = codex
        self.store = store
        self.ordered = ordered  # False: turns that overlap may come in another order

    def turn(self, thread_id: str, text: str) -> str:
        """Run a turn; its id. What Codex sends begins with what we say is remembered; we remember all of it.

        Where the context was full Codex compacts first: then the first request of the turn has the history.
        """
        before = remembered(self.store, thread_id)
        mark = len(self.codex.model.requests)
        turn = self.codex.turn(thread_id, text)
        assert turn["status"] == "completed", turn
        requests = [
            request["input"]
            for request in self.codex.model.requests[mark:]
            if request["client_metadata"]["turn_id"] == turn["id"]
        ]
        first = _history(requests[0], before)
        assert first[: len(before)] == before
        after = remembered(self.store, thread_id)
        last = _history(requests[-1], after)
        assert after[: len(last)] == last
        assert [item.get("role") for item in after[len(last) :]] == ["assistant"]
        return str(turn["id"])

    def load(self, thread_id: str) -> str:
        """Resume a thread. One that takes no input (a sub-agent's) is forked, and the child, which remembers the same,
        is given back.
        """
        chain = [thread_id]
        while True:
            try:
                thread = self.codex.resume(chain[-1])["thread"]
                break
            except CodexError as error:
                if "unloaded multi-agent v2" not in str(error):
                    raise
                chain.append(self.codex.call("thread/read", threadId=chain[-1])["thread"]["parentThreadId"])
        for descendant in chain[-2::-1]:
            thread = self.codex.resume(descendant)["thread"]
        if thread.get("canAcceptDirectInput") is not False:
            return thread_id
        child = self.codex.fork(thread_id)
        assert remembered(self.store, child)[: len(remembered(self.store, thread_id))] == remembered(
            self.store, thread_id
        )
        return child

    def answers(self, thread_id: str) -> None:
        """Codex resumes the thread and runs a turn."""
        self.turn(self.load(thread_id), f"only {thread_id}")

    def goes_on(self, thread_id: str) -> None:
        """Codex resumes the thread, runs turns, forks it and reverts it; we agree after each step."""
        thread_id = self.load(thread_id)
        self.turn(thread_id, f"first {thread_id}")
        after_one = remembered(self.store, thread_id)
        second = self.turn(thread_id, f"second {thread_id}")
        after_two = remembered(self.store, thread_id)
        third = self.turn(thread_id, f"third {thread_id}")
        child = self.codex.fork(thread_id, beforeTurnId=third)
        assert _copied(remembered(self.store, child), after_two) == after_two
        self.turn(child, f"fork {child}")
        if self.codex.call("thread/read", threadId=thread_id)["thread"]["historyMode"] == "paginated":
            self.codex.call("thread/revert", threadId=thread_id, beforeTurnId=second)
            assert remembered(self.store, thread_id) == after_one
            self.turn(thread_id, f"reverted {thread_id}")
        arranged = list if self.ordered else sorted
        for one in (child, thread_id):
            assert arranged(turns(self.store, one)) == arranged(self.codex.turns(one))
