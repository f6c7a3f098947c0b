"""The files about families: `family.txt`, `family.mmd`, and `lineage.mmd` of a whole store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from threadstore.errors import StoreError
from threadstore.family import Families, Store, Style, lines, walk
from threadstore.mermaid import flowchart
from threadstore.projection import FamilyView


def family(store: Store, root: str, view: FamilyView) -> tuple[bytes, int]:
    """The content of a file about the family of a root, and the time of its newest record (Unix, ns)."""
    grown = Families(store).grow(root)
    style = Style(id=str, time=_minute, amount="{:,}".format)
    text = flowchart([grown]) if view is FamilyView.MERMAID else (line for line, _ in lines(grown, style))
    return _content(list(text)), max(member.last_ns for member, _ in walk(grown))


def whole(store: Store) -> bytes:
    """All families as one chart; threads without relatives are only counted."""
    families, shown, alone = Families(store), [], 0
    for root in families.roots(store.thread_ids()):
        if _is_alone(store, root):
            alone += 1
        else:
            shown.append(families.grow(root))
    return _content(list(flowchart(shown, alone)))


def members(store: Store, root: str) -> Iterator[str]:
    """All threads of a family, the root first."""
    found, waiting = {root}, [root]
    for thread in waiting:  # which grows
        yield thread
        links = store.links(thread)
        for below in (*links.forks, *(agent for _, agent in links.agents)):
            if below not in found and below in store:
                found.add(below)
                waiting.append(below)


def _is_alone(store: Store, thread: str) -> bool:
    try:
        return store.links(thread).are_none and len(store.rollouts(thread)) < 2
    except (KeyError, StoreError, OSError):
        return True


def _content(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _minute(ns: int) -> str:
    """A time as `2026-11-29 21:31Z`; empty for none."""
    try:
        return f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%d %H:%MZ}" if ns else ""
    except (ValueError, OverflowError, OSError):
        return ""
