"""Rebuilding a thread: a reverse scan finds the base, a forward replay builds the state (FORMAT 7).

A log records what happened; what a model remembers is derived from it. Read from the end, the records of a turn
form a *segment* that is closed by its `task_started`. Rollback markers are met before the turns that they undo, so
a count of turns still to skip is carried towards the start, and only segments with a real user turn use it up. The
newest surviving checkpoint is the *base*: its replacement history stands for everything before it.

When may the scan stop? Codex first asks whether the newest checkpoint is complete in itself (FORMAT 7.1). If so it
is the base, whatever follows. If not, the history is known once a segment with a checkpoint has survived, and the
settings once a surviving user turn had a turn context. A thread of gigabytes with checkpoints is therefore rebuilt
from its tail.

What was met newest first is then replayed oldest first: items are added, a checkpoint of the old kind replaces them
by user messages and its summary, a rollback marker drops turns. Nothing is ever executed.

`ReverseScan` takes records and opens nothing; `Replay` is what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from threadstore.boundaries import is_boundary
from threadstore.checkpoints import Checkpoint, Window, read_checkpoint
from threadstore.history import Fetch, History, Item, Look, history_item
from threadstore.records import Record

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Replay:
    """What a thread is, as far as the next turn is concerned.

    `base` is the checkpoint that the history begins with. `settings` is the turn context of the newest surviving
    user turn, `reference` the one that the next turn's context is compared with. `world` is the world-state
    baseline. `ops` are the places of the records that replaced history after the base: with the base they identify
    what the history is an extension of.
    """

    history: History
    base: Checkpoint | None
    settings: Json | None
    previous: Json | None
    reference: Json | None
    world: Json | None
    window: Window
    tokens: Json | None
    checkpoints: int
    ops: tuple[tuple[int, int], ...]
    complete: bool  # False: the scan stopped early


@dataclass(slots=True)
class _Turn:
    """A segment of the reverse scan; see FORMAT 7.2."""

    turn_id: str | None = None
    completed: bool = False
    counts: bool = False
    settings: Json | None = None
    reference: Json | None = None
    cleared: bool = False  # a checkpoint was met before any turn context
    worlds: list[Json | None] = field(default_factory=list)  # newest first; None stands for a checkpoint
    fresh_world: bool = False  # a full world state newer than the newest checkpoint
    checkpoint: tuple[Checkpoint, int, int] | None = None
    window: Window | None = None


def _compatible(first: str | None, second: str | None) -> bool:
    return first is None or second is None or first == second


#: Events that say something to a replay; others, and records of other kinds than `feed` names, leave it as it is.
_TELLING = frozenset(
    {
        "thread_rolled_back",
        "task_complete",
        "turn_complete",
        "turn_aborted",
        "user_message",
        "task_started",
        "turn_started",
        "token_count",
    }
)
_READ = frozenset({"response_item", "inter_agent_communication", "compacted", "turn_context", "world_state"})


def is_silent(record: Record) -> bool:
    """True for a record that `ReverseScan.feed` takes no notice of."""
    if record.type == "event_msg":
        return record.kind not in _TELLING
    return record.type not in _READ and record.type != "session_meta"


class ReverseScan:
    """Feed it the records of a lineage, newest first, without session metas; then ask for the `result`.

    Invariant: `_items` and `_ops` hold what was met so far, newest first; once a base is known, only what is newer
    than it.
    """

    def __init__(self, *, paginated: bool, state: bool = True, exhaustive: bool = False) -> None:
        self._paginated = paginated
        self._state = state  # settings, world state and window are wanted, too
        self._exhaustive = exhaustive  # read everything, as the reference for the early stop
        self._items: list[Item] = []
        self._budgets: dict[tuple[int, int], int] = {}
        self._ops: list[tuple[int, Checkpoint | int, tuple[int, int]]] = []  # (items newer than it, what, place)
        self._turn: _Turn | None = None
        self._pending = 0
        self._base: Checkpoint | None = None
        self._bounded = False  # the newest checkpoint is complete in itself
        self._checkpoints = 0
        self._numbered = True  # every checkpoint met has a window number
        self._settings: Json | None = None
        self._reference: Json | None = None
        self._reference_known = False
        self._worlds: list[Json | None] = []
        self._window: Window | None = None
        self._tokens: Json | None = None
        self.done = False

    def feed(self, record: Record, segment: int) -> bool:
        """Take the next older record, of segment number `segment` of the lineage; True when no older one is needed."""
        kind = record.type
        if kind in ("response_item", "inter_agent_communication"):
            self._item(record, segment)
        elif kind == "event_msg":
            self._event(record, segment)
        elif kind == "compacted":
            self._compacted(record, segment)
        elif kind == "turn_context":
            self._turn_context(record.payload)
        elif kind == "world_state":
            turn = self._open()
            turn.worlds.append(record.payload)
            if record.payload["full"] and None not in turn.worlds:
                turn.fresh_world = True
        self.done = not self._exhaustive and self._is_known()
        return self.done

    # What each record does (FORMAT 7.2, table)

    def _open(self) -> _Turn:
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def _item(self, record: Record, segment: int) -> None:
        if record.type == "response_item":
            turn = self._open()
            turn.counts = turn.counts or is_boundary(record.payload)
        else:
            self._open().counts = True
        made = history_item(record, segment) if self._base is None else None
        if made is not None:
            item, budget = made
            self._items.append(item)
            if budget is not None:
                self._budgets[segment, item.offset] = budget

    def _event(self, record: Record, segment: int) -> None:
        kind, payload = record.kind, record.payload
        if kind == "thread_rolled_back":
            self._pending += payload["num_turns"]
            if self._base is None:
                self._ops.append((len(self._items), payload["num_turns"], (segment, record.line.start)))
        elif kind in ("task_complete", "turn_complete"):
            turn = self._open()
            turn.completed = True
            turn.turn_id = turn.turn_id or payload["turn_id"]
        elif kind == "turn_aborted":
            turn_id = payload.get("turn_id")
            if self._turn is not None or turn_id is not None:
                turn = self._open()
                turn.turn_id = turn.turn_id or turn_id
        elif kind == "user_message":
            self._open().counts = True
        elif kind in ("task_started", "turn_started"):
            if self._turn is not None and _compatible(self._turn.turn_id, payload["turn_id"]):
                self._finish()
        elif kind == "token_count" and self._tokens is None:
            self._tokens = payload.get("info")

    def _turn_context(self, payload: Json) -> None:
        turn = self._open()
        turn_id = payload.get("turn_id")
        if turn.turn_id is None and isinstance(turn_id, str):
            turn.turn_id = turn_id
        if _compatible(turn.turn_id, turn_id if isinstance(turn_id, str) else None):
            turn.settings = payload  # an older one of the same turn wins
            if turn.reference is None and not turn.cleared:
                turn.reference = payload

    def _compacted(self, record: Record, segment: int) -> None:
        self._checkpoints += 1
        checkpoint = read_checkpoint(record, segment, paginated=self._paginated)
        self._numbered = self._numbered and checkpoint.window is not None
        if self._checkpoints == 1 and self._stands_alone(checkpoint):
            self._base, self._bounded, self._window = checkpoint, True, checkpoint.window
            return
        turn = self._open()
        turn.worlds.append(None)
        turn.window = turn.window or checkpoint.window
        turn.cleared = turn.cleared or turn.reference is None
        if self._base is not None:
            return
        place = (segment, record.line.start)
        if checkpoint.items is None:
            self._ops.append((len(self._items), checkpoint, place))
        elif turn.checkpoint is None:
            turn.checkpoint = (checkpoint, len(self._items), len(self._ops))

    def _stands_alone(self, checkpoint: Checkpoint) -> bool:
        """FORMAT 7.1: the newest checkpoint bounds the replay when it is complete."""
        complete = checkpoint.items is not None and checkpoint.window is not None
        return complete and (self._paginated or checkpoint.resume is not None)

    def _finish(self) -> None:
        """Close the open segment: drop it when a rollback covers it, else take over what it knows."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        if self._pending > 0:
            if turn.counts:
                self._pending -= 1
            return
        if self._base is None and turn.checkpoint is not None:
            self._base, items, ops = turn.checkpoint
            del self._items[items:]
            del self._ops[ops:]
        self._window = self._window or turn.window
        self._worlds += turn.worlds
        baseline = turn.counts or turn.fresh_world
        if self._settings is None and baseline:
            self._settings = turn.settings
        if not self._reference_known and (baseline or turn.cleared) and (turn.reference is not None or turn.cleared):
            self._reference, self._reference_known = turn.reference, True

    def _is_known(self) -> bool:
        """True when older records can't change the answer."""
        if self._bounded:
            return True
        if self._base is None:
            return False
        if not self._state:
            return True
        return (
            self._settings is not None
            and self._reference_known
            and self._window is not None
            and self._tokens is not None
            and self._turn is None
            and any(world is None or world["full"] for world in self._worlds)
        )

    # What comes out

    def continuing(self, before: Replay) -> Replay | None:
        """The thread when nothing but whole turns was added to what `before` was rebuilt from, and all that was added
        has been fed. None when it takes more than that: a scan from the new end.

        Segments are closed one by one, so the older ones give what they gave before; what is known now comes first.
        """
        if self._turn is not None or self._ops or self._pending or self._checkpoints or before.ops:
            return None
        history = before.history
        for item in reversed(self._items):
            history.append(item)
        history.budgets |= self._budgets
        known = self._settings is not None
        return replace(
            before,
            settings=self._settings if known else before.settings,
            previous=_previous(self._settings) or before.previous,
            reference=self._reference if self._reference_known else before.reference,
            world=fold_world(reversed(self._worlds), before.world),
            tokens=self._tokens if self._tokens is not None else before.tokens,
        )

    def result(self, initial: Window | None, fetch: Fetch, look: Look | None = None) -> Replay:
        """The rebuilt thread.

        `initial` is the window of the session meta; `fetch` gives the bytes of an item, `look` a long item. Call
        once, after the last `feed`.
        """
        resume = self._base.resume if self._bounded and self._base is not None else None
        if self._turn is not None and resume is not None and not self._turn.completed:
            self._turn.settings = None
        self._finish()
        history, summarised = self._forward(fetch, look)
        previous = _previous(self._settings) or (resume or {}).get("previous_turn_settings")
        return Replay(
            history=history,
            base=self._base,
            settings=self._settings,
            previous=previous,
            reference=None if summarised else self._reference,
            world=fold_world(reversed(self._worlds)),
            window=self._window or self._fallback_window(initial),
            tokens=self._tokens,
            checkpoints=self._checkpoints,
            ops=tuple(place for _, _, place in reversed(self._ops)),
            complete=not self.done,
        )

    def _forward(self, fetch: Fetch, look: Look | None) -> tuple[History, bool]:
        """Oldest first: add items, drop turns, apply checkpoints of the old kind. Also whether there was one of
        these.
        """
        history = History()
        history.budgets = self._budgets
        if self._base is not None:
            for item in self._base.items or ():
                history.append(item)
        summarised = False
        ops = list(self._ops)  # newest first: the oldest is at the end
        for newer in range(len(self._items), -1, -1):
            while ops and ops[-1][0] == newer:
                what = ops.pop()[1]
                if isinstance(what, int):
                    history.drop_turns(what)
                else:
                    history.summarise(what.message, fetch, look)
                    summarised = True
            if newer:
                history.append(self._items[newer - 1])
        return history, summarised

    def _fallback_window(self, initial: Window | None) -> Window:
        if initial is not None and self._numbered:
            return initial
        return Window(self._checkpoints, None, None, None)


def _previous(settings: Json | None) -> Json | None:
    """The settings of a turn that the next one is compared with."""
    if settings is None:
        return None
    return {key: settings.get(key) for key in ("model", "comp_hash", "realtime_active")}


def fold_world(oldest_first: Any, state: Json | None = None) -> Json | None:
    """The world-state baseline: a full state, then merge patches; a checkpoint (None) resets it (FORMAT 7.3). `state`
    is what it was before.
    """
    for world in oldest_first:
        if world is None:
            state = None
        elif world["full"]:
            state = world["state"]
        elif state is not None:
            state = merge(state, world["state"])
    return state


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: `null` deletes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged
