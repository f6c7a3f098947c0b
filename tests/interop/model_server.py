"""A stand-in for the model: the Responses API on loopback, answering from rules and remembering every request."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import zstandard

Json = dict[str, Any]


@dataclass
class Rule:
    """What the model says when the last item of a request holds `text`. Used once.

    `items` are output items, or short forms: {"say": text}, {"think": text}, {"call": tool, "arguments": {...}}.
    With `stall` the stream stays open after them, until the client leaves or the server stops.
    """

    text: str
    items: list[Json]
    stall: bool = False


@dataclass
class ModelServer:
    """Listens while it is entered. Requests that no rule matches are answered `OK <number>`."""

    rules: list[Rule] = field(default_factory=list)
    requests: list[Json] = field(default_factory=list)  # bodies, in the order in which they came
    port: int = 0
    _salt: str = field(default_factory=lambda: uuid4().hex[:10])
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _http: ThreadingHTTPServer | None = None

    def __enter__(self) -> ModelServer:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                self._json({"object": "list", "data": [], "models": []})

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("content-encoding") == "zstd":
                    data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    server._stream(self, json.loads(data))
                self.close_connection = True

            def _json(self, document: Json) -> None:
                body = json.dumps(document).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        assert self._http is not None
        self._http.shutdown()
        self._http.server_close()

    def wait_for(self, count: int, seconds: float = 60) -> None:
        """Wait until that many requests came."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) >= count, seconds):
                raise TimeoutError(f"{len(self.requests)} requests came, {count} were expected.")

    def _take(self, body: Json) -> tuple[int, Rule]:
        """Note a request; its number and what to answer."""
        last = json.dumps(body["input"][-1], ensure_ascii=False) if body.get("input") else ""
        with self._changed:
            self.requests.append(body)
            number = len(self.requests)
            rule = next((rule for rule in self.rules if rule.text in last), None)
            if rule is not None:
                self.rules.remove(rule)
            self._changed.notify_all()
        return number, rule or Rule("", [{"say": f"OK {number}"}])

    def _stream(self, handler: BaseHTTPRequestHandler, body: Json) -> None:
        number, rule = self._take(body)
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("connection", "close")
        handler.end_headers()

        def send(kind: str, **members: Any) -> None:
            event = json.dumps({"type": kind} | members)
            handler.wfile.write(f"event: {kind}\ndata: {event}\n\n".encode())
            handler.wfile.flush()

        response: Json = {"id": f"resp_{self._salt}{number:04}", "object": "response", "output": []}
        send("response.created", response=response | {"status": "in_progress"})
        items = [self._item(item, f"{self._salt}{number:04}_{at}") for at, item in enumerate(rule.items)]
        for at, item in enumerate(items):
            if item["type"] in ("message", "reasoning"):
                begun = item | {"content": []} if item["type"] == "message" else item
                send("response.output_item.added", output_index=at, item=begun)
            send("response.output_item.done", output_index=at, item=item)
        while rule.stall and not self._stopping.wait(0.1):
            handler.wfile.write(b": still here\n\n")  # fails once the client has left
            handler.wfile.flush()
        if rule.stall:
            return
        usage = {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 110,
        }
        send("response.completed", response=response | {"status": "completed", "output": items, "usage": usage})

    def _item(self, item: Json, suffix: str) -> Json:
        if "say" in item:
            content = [{"type": "output_text", "text": item["say"], "annotations": []}]
            return {"type": "message", "role": "assistant", "id": f"msg_{suffix}", "content": content}
        if "think" in item:
            summary = [{"type": "summary_text", "text": item["think"]}]
            return {
                "type": "reasoning",
                "id": f"rs_{suffix}",
                "summary": summary,
                "encrypted_content": f"SECRET-{suffix}",
            }
        if "call" in item:
            arguments = json.dumps(item["arguments"])
            ids = {"id": f"fc_{suffix}", "call_id": f"call_{suffix}"}
            return {"type": "function_call", "name": item["call"], "arguments": arguments} | ids
        return item
