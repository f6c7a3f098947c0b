"""What an undo goes back to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from threadstore.errors import LineageError
from threadstore.pointer import Pointer
from threadstore.projection import View
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.conftest import CopyStore
from tests.operations.snapshots import read, turns_of


class KilledError(BaseException):
    """The process ends here."""


def opened(home: Path) -> ThreadStore:
    """The store, seen anew."""
    return ThreadStore(str(home), Spool(f"{home}.spool"))


@pytest.mark.parametrize("first", ["1", "-1", "-2"])
@pytest.mark.parametrize("codex", [False, True])
def test_undo_passes_over_what_was_never_selected(
    first: str, copy_store: CopyStore, monkeypatch: pytest.MonkeyPatch, *, codex: bool
) -> None:
    """A revert that was killed between file and pointer leaves a rollout behind, which no later undo goes back to. With
    a revert of Codex's, which doesn't say what was before, that holds where what is left would bring nothing back.
    """
    home = copy_store("forks.paginated").home
    store = opened(home)
    thread_id = next(one for one in store.thread_ids() if len(turns_of(store, one)) >= 3)
    turns, memory = turns_of(store, thread_id), read(store, thread_id, View.MODEL_INPUT)

    def die(*_: object) -> bool:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Pointer, "swap", die)
        with pytest.raises(KilledError):
            store.revert(thread_id, first)
    store = opened(home)
    assert len(store.rollouts(thread_id)) == 2
    assert turns_of(store, thread_id) == turns
    outcome = store.revert(thread_id, "-1")
    assert outcome.rollout is not None
    if codex:
        _as_by_codex(home / outcome.rollout)
    store = opened(home)
    assert turns_of(store, thread_id) == turns[:-1]
    store.undo(thread_id)
    store = opened(home)
    assert turns_of(store, thread_id) == turns
    assert read(store, thread_id, View.MODEL_INPUT) == memory
    store.undo(thread_id)
    assert turns_of(opened(home), thread_id) == turns[:-1]


def _as_by_codex(rollout: Path) -> None:
    """Take away what only we write."""
    data = rollout.read_bytes()
    changed = re.sub(rb',"rolloutfs_previous":"[^"]*"', b"", data, count=1)
    assert changed != data
    rollout.write_bytes(changed)


def test_undo_of_a_revert_of_codex(copy_store: CopyStore) -> None:
    """Codex's own generations don't say what was before: the order of names does."""
    home = copy_store("revert_once.paginated").home
    store = opened(home)
    thread_id = next(one for one in store.thread_ids() if len(store.rollouts(one)) == 2)
    before = turns_of(store, thread_id)
    store.undo(thread_id)
    assert len(turns_of(opened(home), thread_id)) > len(before)


def test_undo_tells_which_turns_it_drops(copy_store: CopyStore) -> None:
    """Those that the thread got since the revert: a compaction's for one; a dry run says the same."""
    home = copy_store("forks.paginated").home
    store = opened(home)
    thread_id = next(one for one in store.thread_ids() if len(turns_of(store, one)) >= 3)
    turns = turns_of(store, thread_id)
    taken_back = store.revert(thread_id, "-2").dropped_turns
    assert tuple(taken_back) == turns[-2:]
    store.compact(thread_id, "the summary")
    (compaction,) = set(turns_of(store, thread_id)) - set(turns)
    told = opened(home).undo(thread_id, dry_run=True).dropped_turns
    assert opened(home).undo(thread_id).dropped_turns == told == [compaction]
    assert turns_of(opened(home), thread_id) == turns
    assert tuple(opened(home).undo(thread_id).dropped_turns) == turns[-2:]


@pytest.mark.parametrize("which", ["original", "later"])
def test_undo_goes_nowhere_when_what_was_before_is_missing(which: str, copy_store: CopyStore, tmp_path: Path) -> None:
    """Another generation that is there is another past: the missing file is named, and nothing is made."""
    home = copy_store("forks.paginated").home
    store = opened(home)
    thread_id = next(one for one in store.thread_ids() if len(turns_of(store, one)) >= 3)
    if which == "later":
        store.revert(thread_id, "-1")
    before = opened(home).head(thread_id)
    opened(home).revert(thread_id, "1")  # so that the next one refers to no byte of it
    missing = home / before.path
    missing.rename(tmp_path / missing.name)
    there = sorted(path.name for path in home.rglob("rollout-*"))
    for dry_run in (True, False):
        with pytest.raises(LineageError, match="no such file") as caught:
            opened(home).undo(thread_id, dry_run=dry_run)
        assert before.rollout_id in caught.value.message
    assert sorted(path.name for path in home.rglob("rollout-*")) == there
    missing.parent.mkdir(exist_ok=True)
    (tmp_path / missing.name).rename(missing)
    assert opened(home).undo(thread_id).before != before.rollout_id
