"""`rolloutfs tree`: families of threads, with their generations, forks and agents."""

from __future__ import annotations

from typing import Any

from threadstore.family import Families, Member, Style, lines, walk

from rolloutfs.commands.opened import opened
from rolloutfs.harmless import json_line
from rolloutfs.meant import find
from rolloutfs.naming import ShortIds, newest_first
from rolloutfs.table import fit, say, width
from rolloutfs.times import amount, local, utc

Json = dict[str, Any]


def tree(store: str, wanted: str | None, *, as_json: bool) -> None:
    """Print the family of a thread, or all of them, the one that was written to last first. Raises MountError."""
    with opened(store) as its:
        families = Families(its.store)
        newest = [thread for _, thread in newest_first(its.store)]
        roots = families.roots(newest) if wanted is None else iter([families.root_of(find(its.store, wanted))])
        style = Style(ShortIds(its.store.thread_ids()).of, lambda ns: local(ns / 1e9), amount)
        for root in map(families.grow, roots):
            if as_json:
                for member, above in walk(root):
                    say(json_line(_document(member, above, root)))
            else:
                for line, is_dim in lines(root, style):
                    say(fit(line, width()), is_dim=is_dim)


def _document(member: Member, above: Member | None, root: Member) -> Json:
    """A thread as JSON. Not nested: a chain of forks may be of any length."""
    summary = member.summary
    return {
        "thread_id": member.thread,
        "above": None if above is None else above.thread,
        "root": root.thread,
        "how": member.how,
        "agent": None if summary is None else summary.agent,
        "boundary": member.boundary,
        "archived": member.is_archived,
        "name": None if summary is None else summary.name,
        "preview": None if summary is None else summary.preview,
        "turns": None if summary is None else summary.turns,
        "own_tokens": None if summary is None else summary.own_tokens,
        "tokens_below": member.below,
        "last_record": utc(member.last_ns / 1e9),
        "generations": [
            {"rollout_id": rollout.rollout_id, "file": rollout.path, "selected": rollout == member.head}
            for rollout in member.rollouts
        ],
    }
