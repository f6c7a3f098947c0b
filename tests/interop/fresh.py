"""Stores that the real Codex writes while the tests run: one thread for every state that an operation may meet."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from tests.interop.codex import Codex
from tests.interop.model_server import ModelServer, Rule

_DAY = 86_400


def _tool(text: str, command: str) -> list[Rule]:
    call = {"call": "exec_command", "arguments": {"cmd": command}}
    return [
        Rule(text, [{"think": f"I shall run {command}."}, call]),
        Rule("function_call_output", [{"say": "It ran."}]),
    ]


class Author:
    """Writes the threads of one history mode."""

    def __init__(self, home: Path, mode: str) -> None:
        self.home = home
        self.mode = mode
        self.threads: dict[str, str] = {}  # id by what is special about the thread
        self._work = home.parent / "work"
        self._work.mkdir(exist_ok=True)

    def write(self) -> None:
        """All of them. The process is killed in the middle of the last ones."""
        with ModelServer() as model:
            with Codex(self.home, model) as codex:
                self._several(codex)
            codex = Codex(self.home, model)
            try:
                self._killed(codex)
            finally:
                codex.kill()
        self._fold()
        self._age("compressed")
        with ModelServer() as model, Codex(self.home, model) as codex:
            codex.call("rollout/compress")
            codex.resume(self.threads["killed and resumed"])
            self._talk(codex, self.threads["killed and resumed"], "resumed three")
        self._fold()
        kept = ("sessions", "archived_sessions", "session_index.jsonl", "state_5.sqlite", "thread_history_1.sqlite")
        for entry in self.home.iterdir():
            if entry.name not in kept:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _start(self, codex: Codex, kind: str) -> str:
        self.threads[kind] = codex.start(self.mode, self._work)
        return self.threads[kind]

    def _talk(self, codex: Codex, thread_id: str, *texts: str) -> list[str]:
        return [str(codex.turn(thread_id, text)["id"]) for text in texts]

    def _several(self, codex: Codex) -> None:
        model = codex.model
        plain = self._start(codex, "plain")
        model.rules += _tool("plain two", "echo out")
        first, second, third = self._talk(codex, plain, "plain one", "plain two – ünï", "plain three")
        child = self.threads["fork"] = codex.fork(plain, lastTurnId=second)
        self._talk(codex, child, "fork three", "fork four")
        grandchild = self.threads["fork of a fork"] = codex.fork(child, beforeTurnId=second)
        self._talk(codex, grandchild, "grandchild two")
        compacted = self._start(codex, "compacted")
        self._talk(codex, compacted, "compacted one", "compacted two")
        codex.compact(compacted)
        self._talk(codex, compacted, "compacted four")
        if self.mode == "paginated":
            reverted = self._start(codex, "reverted")
            turns = self._talk(codex, reverted, "reverted one", "reverted two", "reverted three")
            codex.call("thread/revert", threadId=reverted, beforeTurnId=turns[1])
            self._talk(codex, reverted, "reverted two again", "reverted three again")
        named = self._start(codex, "named")
        self._talk(codex, named, "named one", "named two")
        codex.call("thread/name/set", threadId=named, name="A name of its own")
        archived = self._start(codex, "archived")
        self._talk(codex, archived, "archived one", "archived two")
        codex.call("thread/archive", threadId=archived)
        interrupted = self._start(codex, "interrupted")
        self._talk(codex, interrupted, "interrupted one")
        turn = self._hang(codex, interrupted, "interrupted two")
        mark = len(codex.events)
        codex.call("turn/interrupt", threadId=interrupted, turnId=turn)
        codex.finished(interrupted, mark, turn)
        self._talk(codex, self._start(codex, "compressed"), "compressed one", "compressed two")
        assert len({first, second, third}) == 3

    def _killed(self, codex: Codex) -> None:
        for kind in ("killed", "killed and resumed"):
            thread_id = self._start(codex, kind)
            self._talk(codex, thread_id, f"{kind}, one")
            self._hang(codex, thread_id, f"{kind}, two")

    def _hang(self, codex: Codex, thread_id: str, text: str) -> str:
        """A turn that has got as far as a tool's output and the beginning of an answer."""
        codex.model.rules += _tool(text, "echo before")[:1]
        codex.model.rules.append(Rule("function_call_output", [{"say": "I have begun"}], stall=True))
        mark = len(codex.events)
        turn = codex.begin(thread_id, text)

        def said(event: dict[str, object]) -> bool:
            return event["method"] == "item/completed" and "I have begun" in str(event["params"])

        codex.event(said, mark)
        return turn

    def _age(self, kind: str) -> None:
        """Make a thread's rollout old enough to be compressed."""
        (path,) = self.home.rglob(f"rollout-*{self.threads[kind]}.jsonl")
        os.utime(path, (time.time() - 30 * _DAY,) * 2)

    def _fold(self) -> None:
        """Fold the logs of the databases into them, so that they can be copied."""
        for database in self.home.glob("*.sqlite"):
            with closing(sqlite3.connect(database)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
