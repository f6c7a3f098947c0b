"""Does one operation on a store, in a process that a test may stop at any system call.

    python -m tests.operations.driver HOME THREAD OPERATION [ARGUMENT]

Prints the outcome as JSON. Status 0: done; 3: refused or failed with nothing changed.
"""

from __future__ import annotations

import json
import sys

from threadstore.cut import Boundary
from threadstore.errors import StoreError
from threadstore.operations import Outcome
from threadstore.spool import Spool
from threadstore.store import ThreadStore


def run(home: str, thread_id: str, operation: str, argument: str = "") -> Outcome:
    """Carry the operation out. A compaction without argument keeps the newest messages alone."""
    store = ThreadStore(home, Spool(home + ".spool"))
    if operation == "fork":
        kind, _, turn = argument.partition(" ")
        return store.fork(thread_id, Boundary(kind, turn))
    if operation == "revert":
        return store.revert(thread_id, argument)
    if operation == "undo":
        return store.undo(thread_id)
    return store.compact(thread_id, argument or None)


def main() -> int:
    """The command."""
    try:
        print(json.dumps(run(*sys.argv[1:]).as_json()))
    except (StoreError, OSError) as error:
        print(json.dumps({"status": "failed", "error": type(error).__name__, "message": str(error)}))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
