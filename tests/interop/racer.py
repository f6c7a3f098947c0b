"""One of several processes that race for a thread: `python racer.py HOME THREAD OPERATIONS…`.

For every line on stdin it does the next operation and answers with a line: what came of it.
"""

from __future__ import annotations

import os
import sys
from itertools import cycle

from threadstore.cut import Boundary
from threadstore.errors import StoreError
from threadstore.locks import BusyError
from threadstore.spool import Spool
from threadstore.store import ThreadStore


def operate(store: ThreadStore, thread_id: str, operation: str) -> str:
    """Do one operation; the id of the thread or rollout that came of it, or why nothing did."""
    try:
        if operation == "fork":
            return f"fork {store.fork(thread_id, Boundary('latest')).thread_id}"
        if operation == "revert":
            return f"revert {store.revert(thread_id, '-1').after}"
        if operation == "undo":
            return f"undo {store.undo(thread_id).after}"
        return f"compact {store.compact(thread_id, f'Summary of {os.getpid()}').after}"
    except BusyError:
        return "busy"
    except StoreError as error:
        return f"refused {error}"


def main(home: str, thread_id: str, *operations: str) -> None:
    """Work until stdin ends."""
    store = ThreadStore(home, Spool(f"{home}.spool-{os.getpid()}"))
    for operation, _ in zip(cycle(operations), sys.stdin, strict=False):
        print(operate(store, thread_id, operation), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
