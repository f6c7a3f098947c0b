"""A thread that lived long: turns with tool calls, and checkpoints, as Codex 0.171.0 writes them.

The mix is that of a coding session: a user's message, then rounds of reasoning, call, output and token counts, then an
answer. Most outputs are a few kilobytes, every fiftieth is 100 KB to 1 MB. In paginated threads what a command did is
there twice, as an item and as an event.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from bench.rollout import RolloutWriter, uuid
from bench.text import TextPool

MIB = 1 << 20
THREAD = uuid(0, 1)
PREFIX = (
    b"Another language model started to solve this problem and produced a summary of its thinking process. You also "
    b"have access to the state of the tools that were used by that language model. Use this to build on the work that "
    b"has already been done and avoid duplicating work. Here is the summary produced by the other language model, use "
    b"the information in this summary to assist with your own analysis:\\n"
)
_PROFILE = b'"permission_profile":{"type":"disabled"}'
_MODE = (
    b'"collaboration_mode":{"mode":"default","settings":{"model":"gpt-5.5","reasoning_effort":null,'
    b'"developer_instructions":null}}'
)


class Checkpoints(Enum):
    """Which kind of checkpoints a thread has."""

    NONE = "none"
    FULL = "full"  # 0.171.0: with window, ids and resume metadata; stands for everything before it
    HISTORY = "history"  # 2025: a replacement history and nothing else
    SUMMARY = "summary"  # the oldest: only a message, the history is made from what came before


@dataclass(frozen=True, slots=True)
class Shape:
    """What a thread looks like; sizes in bytes."""

    size: int
    checkpoints: Checkpoints = Checkpoints.FULL
    every: int = 64 * MIB
    tail: int = 32 * MIB  # after the last checkpoint
    paginated: bool = True
    seed: int = 1
    thread: str = THREAD
    forked: tuple[str, int, int] | None = None  # rollout id, ordinal and byte at which a parent's prefix ends


def write_thread(path: Path, shape: Shape) -> RolloutWriter:
    """Write a rollout of that shape; the writer tells its size and next ordinal."""
    first = shape.forked[1] if shape.forked else 0
    with RolloutWriter(path, paginated=shape.paginated, first_ordinal=first) as out:
        author = Author(out, shape)
        author.begin()
        next_checkpoint = (shape.size - shape.tail) % shape.every or shape.every
        while out.size < shape.size:
            author.turn()
            if shape.checkpoints is not Checkpoints.NONE and out.size >= next_checkpoint:
                author.checkpoint()
                next_checkpoint += shape.every
        return out


class Author:
    """Writes the records of one thread, turn after turn."""

    def __init__(self, out: RolloutWriter, shape: Shape, pool: TextPool | None = None) -> None:
        self.out = out
        self.shape = shape
        self.pool = pool or TextPool(shape.seed)
        self._source = random.Random(shape.seed)
        self._thread = shape.thread.encode()
        self._turn = b""
        self._turns = self._items = self._windows = 0
        self._users: list[tuple[bytes, bytes]] = []  # id and text of the newest messages
        self._tokens = 0

    def begin(self, instructions: int = 12_000) -> None:
        """The session meta, with base instructions of so many bytes."""
        thread, forked = self._thread, self.shape.forked
        base = b""
        if forked is not None:
            base = (
                b'"forked_from_id":"%s","history_base":{"thread_id":"%s","end_ordinal_exclusive":%d,"end_byte_offset":%d},'
                % (
                    forked[0].encode(),
                    forked[0].encode(),
                    forked[1],
                    forked[2],
                )
            )
        self.out.add(
            b"session_meta",
            b'{"account_scoped":true,"session_id":"%s","id":"%s",%s' % (thread, thread, base),
            b'"timestamp":"2026-11-29T21:31:46.711Z","cwd":"/repo","runtime_workspace_roots":["/repo"],"originator":"bench",',
            b'"cli_version":"0.171.0","source":"vscode","model_provider":"mock","base_instructions":{"text":"',
            self.pool.text(instructions),
            b'","provenance":{"type":"custom"}},"history_mode":"%s","context_window":{"window_id":"%s"}}'
            % (b"paginated" if self.shape.paginated else b"legacy", uuid(1, 0).encode()),
        )

    def turn(self, rounds: int | None = None, output: int | None = None) -> None:
        """A whole turn, with so many calls whose outputs have so many bytes."""
        self.start()
        self.user(self.pool.text(self._source.randrange(80, 3000)))
        for _ in range(self._source.randrange(4, 20) if rounds is None else rounds):
            self.round(self._output_size() if output is None else output)
        answer = self.pool.text(self._source.randrange(300, 4000))
        self._assistant(answer)
        self._usage()
        self.complete(answer)

    def _output_size(self) -> int:
        kind = self._source.random()
        if kind < 0.80:
            return self._source.randrange(100, 6000)
        if kind < 0.98:
            return self._source.randrange(6000, 40_000)
        return self._source.randrange(100_000, 1_000_000)

    # Records

    def start(self) -> None:
        """`task_started`, and the settings."""
        self._turns += 1
        self._turn = uuid(2, self._turns).encode()
        self._event(
            b'task_started","turn_id":"%s","root_turn_id":"%s","started_at":%d,"model_context_window":258400,'
            b'"collaboration_mode_kind":"default"' % (self._turn, self._turn, self.out.seconds)
        )
        self._context()

    def _context(self) -> None:
        self.out.add(
            b"turn_context",
            b'{"turn_id":"%s","root_turn_id":"%s","disabled_plugin_ids":[],"cwd":"/repo","approval_policy":"never",'
            b'"approvals_reviewer":"user",%s,"model":"gpt-5.5","comp_hash":"2911",%s,"multi_agent_version":"v1",'
            b'"realtime_active":false,"summary":"none","sandbox_policy":{"type":"danger-full-access"}}'
            % (self._turn, self._turn, _PROFILE, _MODE),
        )

    def user(self, text: bytes, image: bytes = b"") -> None:
        """What a person says, as item and as event; `image` is base64."""
        number = self._number()
        parts = b'{"type":"input_text","text":"', text, b'"}'
        picture = (b',{"type":"input_image","image_url":"data:image/png;base64,', image, b'","detail":"original"}')
        self._item(
            b'{"type":"message","id":"msg_%s","role":"user","content":[' % number,
            *parts,
            *(picture if image else ()),
            b"]",
            kinds=b'"create_time":%d.5,"content_item_kinds":["user.text"],"content_item_metadata":[{"provenance":{"type":"user"}}]'
            % self.out.seconds,
        )
        self._users = [*self._users, (number, text)][-12:]
        if self.shape.paginated:
            self._completed(
                b'{"type":"UserMessage","id":"%s","content":[{"type":"text","text":"' % number,
                text,
                b'","text_elements":[]}]}',
            )
        else:
            self._event(b'user_message","message":"', text, b'","images":[],"local_images":[],"text_elements":[]')

    def round(self, size: int, text: bytes = b"") -> None:
        """Reasoning, a call, its output of `size` bytes (or `text`), and what it cost."""
        call, seconds = self._number(), self.out.seconds
        self._item(
            b'{"type":"reasoning","id":"rs_%s","summary":[{"type":"summary_text","text":"%s"}],"content":null,"encrypted_content":"%s"'
            % (call, self.pool.words(30), self.pool.base64(self._source.randrange(800, 4000)))
        )
        self._item(
            b'{"type":"function_call","id":"fc_%s","name":"exec_command","arguments":"{\\"cmd\\": \\"%s\\"}",'
            b'"call_id":"call_%s"' % (call, self.pool.words(40), call)
        )
        output = text or self.pool.text(size)
        if self.shape.paginated and not text:
            self._completed(
                b'{"type":"CommandExecution","id":"call_%s","process_id":"32090","command":["/bin/bash","-lc","%s"],'
                b'"cwd":"file:///repo","parsed_cmd":[],"source":"unified_exec_startup","status":"completed","aggregated_output":"'
                % (call, self.pool.words(40)),
                output,
                b'","exit_code":0,"duration":{"secs":0,"nanos":43641}}',
            )
        self._item(
            b'{"type":"function_call_output","id":"fco_%s","call_id":"call_%s","output":"' % (call, call),
            b"Chunk ID: 2c1ef2\\nWall time: 0.0000 seconds\\nProcess exited with code 0\\nOutput:\\n",
            output,
            b'"',
            kinds=b'"create_time":%d.25' % seconds,
            more=b',"fallback_token_limit_override":12000',
        )
        self._usage()

    def _assistant(self, text: bytes) -> None:
        number = self._number()
        if self.shape.paginated:
            self._completed(
                b'{"type":"AgentMessage","id":"msg_%s","content":[{"type":"Text","text":"' % number, text, b'"}]}'
            )
        else:
            self._event(b'agent_message","message":"', text, b'","phase":null,"memory_citation":null')
        self._item(
            b'{"type":"message","id":"msg_%s","role":"assistant","content":[{"type":"output_text","text":"' % number,
            text,
            b'","annotations":[]}]',
            kinds=b'"content_item_kinds":["unknown"]',
        )

    def complete(self, answer: bytes) -> None:
        """`task_complete`."""
        self._event(
            b'task_complete","root_turn_id":"%s","turn_id":"%s","last_agent_message":"' % (self._turn, self._turn),
            answer,
            b'","started_at":%d,"completed_at":%d,"duration_ms":76000,"time_to_first_token_ms":690'
            % (self.out.seconds - 76, self.out.seconds),
        )

    def checkpoint(self, images: list[bytes] | None = None) -> None:
        """A turn that compacts. `images` (base64) are kept, each in a user's message of its own."""
        self.start()
        self._windows += 1
        summary = PREFIX + self.pool.text(6000)
        self._usage()
        entries = [self._kept(number, b'{"type":"input_text","text":"' + text + b'"}') for number, text in self._users]
        entries += [
            self._kept(
                uuid(4, count).encode(),
                b'{"type":"input_image","image_url":"data:image/png;base64,' + image + b'","detail":"original"}',
            )
            for count, image in enumerate(images or ())
        ]
        entries.append(self._kept(self._number(), b'{"type":"input_text","text":"' + summary + b'"}'))
        kind = self.shape.checkpoints
        history = b'"replacement_history":[' + b",".join(entries) + b"]" if kind is not Checkpoints.SUMMARY else b""
        parts = [b'{"message":"' + summary + b'"', b"," + history if history else b""]
        if kind is Checkpoints.FULL:
            parts.append(self._window(len(entries)))
        self.out.add(b"compacted", *parts, b"}")
        if kind is Checkpoints.FULL:
            self._world()
            self._context()
        if self.shape.paginated:
            self._completed(b'{"type":"ContextCompaction","id":"%s"}' % self._number())
        else:
            self._event(b"context_compacted")
        self.complete(b"")

    def _kept(self, number: bytes, part: bytes) -> bytes:
        return (
            b'{"type":"message","id":"msg_%s","role":"user","content":[%s],"internal_chat_message_metadata_passthrough":'
            b'{"turn_id":"%s","content_item_kinds":["user.text"],"content_item_metadata":[{"provenance":{"type":"user"}}]}}'
            % (number, part, self._turn)
        )

    def _window(self, entries: int) -> bytes:
        """What makes a checkpoint complete in itself."""
        sidecar = (
            b'{"history_sequence":3,"sampled_through_sequence":11,"client_authored":false,'
            b'"model_search_state":"unused"}'
        )
        return (
            b',"replacement_history_metadata":[%s],"retained_context":{"verified_answers":[],"incomplete":false,'
            b'"user_messages":[],"user_messages_incomplete":false,"assistant_messages":[],"assistant_messages_incomplete":false,"next_order":5},'
            b'"window_number":%d,"first_window_id":"%s","previous_window_id":"%s","window_id":"%s",'
            b'"compaction_response_id":"resp_%d","latest_token_usage_record":%s,"resume_metadata":{"dynamic_tools":{"thread_id":"%s",'
            b'"tools":[]},"multi_agent_version":"v1","last_started_turn_id":"%s","previous_turn_settings":{"model":"gpt-5.5",'
            b'"comp_hash":"2911","realtime_active":false}}'
            % (
                b",".join([sidecar] * entries),
                self._windows,
                uuid(1, 0).encode(),
                uuid(1, self._windows - 1).encode(),
                uuid(1, self._windows).encode(),
                self._windows,
                self._usage_record(),
                self._thread,
                self._turn,
            )
        )

    def _world(self) -> None:
        self.out.add(
            b"world_state",
            b'{"full":true,"state":{"agents_md":{},"apps_instructions":false,"collaboration_mode":{"mode":"default",'
            b'"model":"gpt-5.5","instructions":"dfd53114f5f6f9f5fd7816370d0bf2847806246d"},"environments":{"environments":'
            b'{"local":{"cwd":"/repo","status":"available","shell":"bash"}},"current_date":"2026-11-29","timezone":"Etc/UTC"},'
            b'"model":"gpt-5.5","permissions":{"instructions":"32ca25d6d85edaeb6f1e19b2a5cc4e08d2a631cd"},"window":%d}}'
            % self._windows,
        )

    def _usage(self) -> None:
        self._tokens += self._source.randrange(200, 9000)
        self.out.add(b"token_usage_record", self._usage_record())
        total = self._total(self._tokens)
        self._event(
            b'token_count","info":{"total_token_usage":%s,"last_token_usage":%s,"model_context_window":258400},'
            b'"rate_limits":{"limit_id":"codex","limit_name":null,"primary":null,"secondary":null,"credits":null}'
            % (total, total)
        )

    def _usage_record(self) -> bytes:
        total = self._total(self._tokens)
        return (
            b'{"thread_id":"%s","turn_id":"%s","session_id":"%s","root_turn_id":"%s","response_id":"resp_%d","usage":%s,'
            b'"turn_token_usage":%s,"thread_token_usage":%s}'
            % (self._thread, self._turn, self._thread, self._turn, self._items, total, total, total)
        )

    def _total(self, tokens: int) -> bytes:
        return (
            b'{"input_tokens":%d,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":%d,'
            b'"reasoning_output_tokens":0,"total_tokens":%d}' % (tokens, tokens // 10, tokens + tokens // 10)
        )

    # Dress

    def _number(self) -> bytes:
        self._items += 1
        return uuid(3, self._items).encode()

    def _item(self, *parts: bytes, kinds: bytes = b"", more: bytes = b"") -> None:
        """A response item whose last brace is still open."""
        passthrough = b',"internal_chat_message_metadata_passthrough":{"turn_id":"%s"%s}}' % (
            self._turn,
            b"," + kinds if kinds else b"",
        )
        metadata = (
            b'{"history_sequence":%d,"sampled_through_sequence":%d,"client_authored":false%s,"model_search_state":"unused"}'
            % (self._items, self._items, more)
        )
        self.out.add(b"response_item", *parts, passthrough, metadata=metadata)

    def _event(self, *parts: bytes) -> None:
        """An event; the parts begin inside the string of its type, whose closing quote is added where it is missing."""
        whole = b"".join(parts)
        self.out.add(b"event_msg", b'{"type":"', whole, b"}" if b'"' in whole else b'"}')

    def _completed(self, *item: bytes) -> None:
        """An `item_completed` event."""
        at = self.out.seconds * 1000
        self.out.add(
            b"event_msg",
            b'{"type":"item_completed","thread_id":"%s","turn_id":"%s","item":' % (self._thread, self._turn),
            *item,
            b',"started_at_ms":%d,"completed_at_ms":%d}' % (at, at),
        )
