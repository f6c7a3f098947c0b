"""The real Codex as a test subject: `codex app-server`, driven over its JSON-RPC on stdio.

`scripts/setup dev` installs the pinned release into .codex-interop; ROLLOUTFS_CODEX names another binary. It runs
offline, against
`model_server`, with a home below the test's own folder, and sees nothing of the user's settings.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.interop.model_server import ModelServer

Json = dict[str, Any]
VERSION = "0.171.0"
CHECKOUT = Path(__file__).parents[2]
_PATIENCE = 60.0  # seconds for one answer; a healthy Codex needs milliseconds

_CONFIG = """\
model = "gpt-5.5"
model_provider = "mock"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
cli_auth_credentials_store = "file"
openai_base_url = "http://127.0.0.1:{port}/v1"
{providers}
[analytics]
enabled = false
[otel]
exporter = "none"
metrics_exporter = "none"
trace_exporter = "none"
[history]
persistence = "none"
[skills.bundled]
enabled = false
[features]
plugins = false
remote_plugin = false
apps = false
"""
_PROVIDER = """
[model_providers."{name}"]
name = "mock"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
requires_openai_auth = false
request_max_retries = 0
stream_max_retries = 0
supports_websockets = false
"""


def binary() -> Path:
    """The native binary of the pinned release."""
    named = os.environ.get("ROLLOUTFS_CODEX")
    if named:
        return Path(named)
    found = sorted(CHECKOUT.glob(".codex-interop/node_modules/@openai/codex-linux-*/vendor/*/bin/codex"))
    if not found:
        raise FileNotFoundError(f"there is no Codex {VERSION} in {CHECKOUT}/.codex-interop: run 'make setup'.")
    return found[0]


class CodexError(Exception):
    """Codex refused a request; the text is its own."""


#: Who may have begun a thread; lists show what people began unless they are asked for others.
KINDS = ("cli", "vscode", "exec", "appServer", "subAgent", "subAgentThreadSpawn", "unknown")


class Codex:
    """A running app-server on `home`. Use it as a context manager.

    Invariant: what the process has said lies in `_answers` (by request) and `events`, both guarded by `_changed`.
    """

    def __init__(
        self,
        home: Path,
        model: ModelServer,
        patience: float = _PATIENCE,
        *,
        config: str = "",
        variables: dict[str, str] | None = None,
    ) -> None:
        """`config` stands before the rest of the config; `variables` are for the environment."""
        self.home = home
        self._patience = patience
        self.model = model
        self.events: list[Json] = []
        self._answers: dict[int, Json] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._requests = 0
        configure(home, model.port, config)
        relocate(home)
        user = home.parent / "user"
        user.mkdir(exist_ok=True)
        environment = {"CODEX_HOME": str(home), "HOME": str(user), "PATH": "/usr/local/bin:/usr/bin:/bin", "TZ": "UTC"}
        self._errors = (home.parent / "codex.stderr").open("ab")
        self._process = subprocess.Popen(
            [binary(), "app-server"],
            cwd=user,
            env=environment | (variables or {}) | {"LANG": "C.UTF-8", "SHELL": "/bin/sh", "TERM": "dumb"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()
        client = {"name": "interop", "title": "interop", "version": "1"}
        self.call("initialize", clientInfo=client, capabilities={"experimentalApi": True})
        self._send({"method": "initialized"})

    def __enter__(self) -> Codex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it as a client does that hangs up: it finishes writing and lets go of its locks."""
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._release()

    def kill(self) -> None:
        """End it in the middle of whatever it does, and the tools that it runs."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._release()

    def _release(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def call(self, method: str, **parameters: Any) -> Json:
        """One request. Raises CodexError when it is refused."""
        with self._changed:
            self._requests += 1
            number = self._requests
        self._send({"id": number, "method": method, "params": parameters})
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._answers or self._ended, self._patience):
                raise TimeoutError(f"{method} was not answered.")
            answer = self._answers.pop(number, {"error": {"message": "Codex has ended."}})
        if "error" in answer:
            raise CodexError(answer["error"]["message"])
        result: Json = answer["result"]
        return result

    def pages(self, method: str, **parameters: Any) -> list[Json]:
        """Everything that a paginated list has."""
        found: list[Json] = []
        cursor: Json = {}
        while True:
            page = self.call(method, **parameters, **cursor)
            found += page["data"]
            if not page.get("nextCursor"):
                return found
            cursor = {"cursor": page["nextCursor"]}

    # What the tests do with threads

    def start(self, mode: str, cwd: Path) -> str:
        """A new thread of a history mode; its id."""
        instructions = "You are a test agent."
        thread = self.call("thread/start", historyMode=mode, baseInstructions=instructions, cwd=str(cwd))["thread"]
        return str(thread["id"])

    def resume(self, thread_id: str) -> Json:
        """Load a thread."""
        return self.call("thread/resume", threadId=thread_id, excludeTurns=True)

    def turn(self, thread_id: str, text: str) -> Json:
        """Run a turn to its end."""
        mark = len(self.events)
        turn = self.begin(thread_id, text)
        return self.finished(thread_id, mark, turn)

    def begin(self, thread_id: str, text: str) -> str:
        """Start a turn; its id."""
        answer = self.call("turn/start", threadId=thread_id, input=[{"type": "text", "text": text}])
        return str(answer["turn"]["id"])

    def finished(self, thread_id: str, mark: int, turn_id: str | None = None) -> Json:
        """Wait for the end of a turn of a thread, any when none is named, among the events after `mark`."""

        def ended(event: Json) -> bool:
            if event["method"] != "turn/completed" or event["params"]["threadId"] != thread_id:
                return False
            return turn_id in (None, event["params"]["turn"]["id"])

        turn: Json = self.event(ended, mark)["params"]["turn"]
        return turn

    def compact(self, thread_id: str) -> Json:
        """Compact a thread."""
        mark = len(self.events)
        self.call("thread/compact/start", threadId=thread_id)
        return self.finished(thread_id, mark)

    def fork(self, thread_id: str, **boundary: str) -> str:
        """Fork a thread; the child's id. It is loaded afterwards."""
        thread = self.call("thread/fork", threadId=thread_id, excludeTurns=True, **boundary)["thread"]
        return str(thread["id"])

    def turns(self, thread_id: str) -> list[tuple[str, str]]:
        """Ids and states of a thread's turns, oldest first."""
        thread = self.call("thread/read", threadId=thread_id)["thread"]
        if thread["historyMode"] == "paginated":
            turns = self.pages("thread/turns/list", threadId=thread_id, sortDirection="asc", limit=100)
        else:
            turns = self.call("thread/read", threadId=thread_id, includeTurns=True)["thread"]["turns"]
        return [(turn["id"], turn["status"]) for turn in turns]

    def listed(self, **more: Any) -> list[Json]:
        """The threads that Codex lists, from their files: a reverted one once for every rollout. The next page begins
        after the second in which the last one ended, so what is lost between pages of one size is asked for by others.
        """
        found = {
            (thread["id"], thread["path"]): thread
            for limit in ((100,) if more.get("useStateDbOnly") else (100, 83, 61, 37))
            for thread in self.pages("thread/list", limit=limit, modelProviders=[], **more)
        }
        return list(found.values())

    def known(self) -> list[Json]:
        """The threads that Codex lists from its database."""
        return self.listed(sourceKinds=KINDS, useStateDbOnly=True)

    def event(self, wanted: Callable[[Json], bool], mark: int) -> Json:
        """Wait for an event."""
        deadline = time.monotonic() + self._patience
        with self._changed:
            while True:
                for event in self.events[mark:]:
                    if wanted(event):
                        return event
                mark = len(self.events)
                if self._ended or not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"an event did not come; Codex has ended: {self._ended}.")

    def _send(self, message: Json) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                message: Json = json.loads(line)
                with self._changed:
                    if "method" in message:
                        self.events.append(message)
                    else:
                        self._answers[message["id"]] = message
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def configure(home: Path, port: int, first: str = "") -> None:
    """Write a config that sends every model provider named in the store to the stand-in."""
    names = {"mock", *_providers(home)} - {"openai"}
    providers = "".join(_PROVIDER.format(name=name, port=port) for name in sorted(names))
    (home / "config.toml").write_text(first + _CONFIG.format(port=port, providers=providers))
    key = {"auth_mode": "apikey", "OPENAI_API_KEY": "sk-not-a-real-key"}
    (home / "auth.json").write_text(json.dumps(key))


def _providers(home: Path) -> Iterator[str]:
    """The providers that threads were recorded with."""
    for path in home.rglob("rollout-*.jsonl"):
        with path.open("rb") as log:
            found = re.search(rb'"model_provider":"([^"]*)"', log.readline())
        if found:
            yield found[1].decode()
    for database in databases(home):
        with closing(sqlite3.connect(database)) as connection:
            yield from (row[0] for row in connection.execute("SELECT DISTINCT model_provider FROM threads"))


def databases(home: Path) -> list[Path]:
    """Codex's databases of threads."""
    return sorted(home.glob("state_*.sqlite"))


def relocate(home: Path) -> None:
    """Let the rows of a copied store name its own files: Codex doesn't look elsewhere for a path that isn't there."""
    for database in databases(home):
        with closing(sqlite3.connect(database)) as connection:
            for thread_id, path in connection.execute("SELECT id, rollout_path FROM threads").fetchall():
                found = re.search(r"/((?:archived_)?sessions/.*)$", path.replace("\\", "/"))
                if found and not path.startswith(f"{home}/"):
                    connection.execute(
                        "UPDATE threads SET rollout_path = ? WHERE id = ?", (str(home / found[1]), thread_id)
                    )
            connection.commit()
