"""Names that are always there, each with its number: in the root, in store/ and search/, and in the folder of a thread.

The number of a node is made of it (see `inodes`). Never renumber them: inode numbers must stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from threadstore.projection import FamilyView, StoreView, View

from rolloutfs.nodes import Kind
from rolloutfs.shelves import SHELVES

ROOT, README = 1, 2  # inode numbers; the first is the kernel's

AT_ROOT: dict[int, tuple[str, Kind, StoreView | None, str]] = {
    README: ("README.md", Kind.README, None, ""),
    3: ("threads", Kind.THREADS, None, ""),
    4: ("store", Kind.STORE, None, ""),
    5: ("problems.jsonl", Kind.ROOT_LINK, None, "store/problems.jsonl"),
    6: ("stats.json", Kind.ROOT_LINK, None, "store/stats.json"),
    7: ("operations.jsonl", Kind.OPERATIONS, None, ""),
    8: ("lineage.mmd", Kind.ROOT_LINK, None, "store/lineage.mmd"),
    64: ("search", Kind.SEARCH, None, ""),
    **{72 + number: (name, Kind.SHELF, None, "") for number, name in enumerate(SHELVES)},
}
UNLISTED_AT_ROOT: dict[int, tuple[str, Kind, StoreView | None, str]] = {9: (".mount.json", Kind.MOUNT, None, "")}
IN_SEARCH: dict[int, tuple[str, Kind, StoreView | None, str]] = {
    65: ("README.md", Kind.SEARCH_README, None, ""),
    66: ("problems.jsonl", Kind.SEARCH_PROBLEMS, None, ""),
}
SEARCH_FILES = frozenset(row[0] for row in IN_SEARCH.values())
IN_STORE: dict[int, tuple[str, Kind, StoreView | None, str]] = {
    16: (StoreView.HEADS.value, Kind.STORE_VIEW, StoreView.HEADS, ""),
    17: (StoreView.PROBLEMS.value, Kind.STORE_VIEW, StoreView.PROBLEMS, ""),
    18: (StoreView.STATS.value, Kind.STORE_VIEW, StoreView.STATS, ""),
    19: (StoreView.LINEAGE.value, Kind.STORE_VIEW, StoreView.LINEAGE, ""),
}
IN_THREAD: dict[int, tuple[str, Kind, View | None]] = {
    1: (View.EFFECTIVE_HISTORY.value, Kind.VIEW, View.EFFECTIVE_HISTORY),
    2: (View.MODEL_INPUT.value, Kind.VIEW, View.MODEL_INPUT),
    3: (View.FULL_HISTORY.value, Kind.VIEW, View.FULL_HISTORY),
    4: (View.WORLD_STATE.value, Kind.VIEW, View.WORLD_STATE),
    5: (View.THREAD.value, Kind.VIEW, View.THREAD),
    6: (View.TURNS.value, Kind.VIEW, View.TURNS),
    7: (View.PENDING_CALLS.value, Kind.VIEW, View.PENDING_CALLS),
    8: (View.USAGE.value, Kind.VIEW, View.USAGE),
    9: (View.PROBLEMS.value, Kind.VIEW, View.PROBLEMS),
    10: (View.TRANSCRIPT.value, Kind.VIEW, View.TRANSCRIPT),
    11: (View.DROPPED.value, Kind.VIEW, View.DROPPED),
    12: (View.DROPPED_TURNS.value, Kind.VIEW, View.DROPPED_TURNS),
    16: ("lineage", Kind.LINEAGE, None),
    17: ("rollouts", Kind.ROLLOUTS, None),
    21: ("turns", Kind.TURNS_LINK, None),
}
OF_REVERTS = frozenset((11, 12))  # are there where a thread has several rollouts
UNLISTED: dict[int, tuple[str, Kind, View | None]] = {22: (".turns", Kind.TURNS, None)}

CONTROLS: dict[int, tuple[str, Kind, View | None]] = {
    18: ("fork", Kind.CONTROL, None),
    19: ("revert", Kind.CONTROL, None),
    20: ("compact", Kind.CONTROL, None),
}
IN_LINEAGE: dict[int, tuple[str, Kind, View | FamilyView | None]] = {
    32: (View.LINEAGE.value, Kind.VIEW, View.LINEAGE),
    33: ("forked_from", Kind.FORKED_FROM, None),
    34: ("parent", Kind.PARENT, None),
    35: ("forks", Kind.FORKS, None),
    36: ("agents", Kind.AGENTS, None),
    37: (FamilyView.TEXT.value, Kind.FAMILY, FamilyView.TEXT),
    38: (FamilyView.MERMAID.value, Kind.FAMILY, FamilyView.MERMAID),
    39: (FamilyView.TEXT.value, Kind.FAMILY_LINK, FamilyView.TEXT),
    40: (FamilyView.MERMAID.value, Kind.FAMILY_LINK, FamilyView.MERMAID),
}
#: The derived files of a thread by their slots.
VIEW_SLOTS: Mapping[int, View] = {
    slot: row[2] for slot, row in {**IN_THREAD, **IN_LINEAGE}.items() if isinstance(row[2], View)
}
ALONE = (32, 35, 36)  # what lineage/ lists of a thread that has neither relatives nor a second log
OF_FAMILY = {slot: row for slot, row in IN_LINEAGE.items() if row[1] is Kind.FAMILY}
CURRENT = 48
SHELF_LINKS = {72 + number: name for number, name in enumerate(SHELVES)}  # slots of a thread: it is once on a shelf
SHELF_SLOTS = {name: slot for slot, name in SHELF_LINKS.items()}
THREADS, STORE = 3, 4
LINEAGE, ROLLOUTS = 16, 17
FIXED_ROOT = {**AT_ROOT, **UNLISTED_AT_ROOT, **IN_STORE, **IN_SEARCH}
FIXED_THREAD = {**IN_THREAD, **UNLISTED, **CONTROLS, **IN_LINEAGE, CURRENT: ("current", Kind.CURRENT, None)}
FOLDER_SLOTS = tuple(
    slot for slot, row in FIXED_THREAD.items() if row[1] in (Kind.LINEAGE, Kind.ROLLOUTS, Kind.FORKS, Kind.AGENTS)
)
TURNS = 21  # the slot of a link
STORE_VIEW_NAMES = frozenset(row[0] for row in IN_STORE.values())
