"""Extended attributes of a thread's folder: what `thread.json` and `usage.json` say, for tools that sort by them.

Absent are those of which the log says nothing. What the kernel and `ls -l` ask for of every file
(`security.capability`, `system.posix_acl_access`) is never one of these, so it is answered without a look at anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from threadstore.errors import StoreError
from threadstore.projection import View

PREFIX: Final = b"user.rolloutfs."
THREAD_ID: Final = PREFIX + b"thread_id"
NAMES: Final = ("thread_id", "name", "status", "model", "branch", "tokens", "problems")
_LONGEST = 1024  # characters of a value

Json = dict[str, Any]


async def of_thread(thread: str, read: Callable[[View], Awaitable[bytes]]) -> dict[bytes, bytes]:
    """Names and values; `read` gives a derived file of the thread. Where those can't be given, only the id is known."""
    found: dict[str, object] = {"thread_id": thread}
    try:
        document: Json = orjson.loads(await read(View.THREAD))
        usage: Json = orjson.loads(await read(View.USAGE))
    except (StoreError, OSError, KeyError):
        return _encoded(found)
    git, own = document["git"], usage["own"]
    found |= {name: document[name] for name in ("name", "status", "model")}
    found["branch"] = git.get("branch") if isinstance(git, dict) else None
    found["tokens"] = own["total_tokens"] if own else None
    found["problems"] = document["counts"]["problems"]
    return _encoded(found)


def _encoded(found: dict[str, object]) -> dict[bytes, bytes]:
    values = {
        name: str(value)[:_LONGEST].encode("utf-8", "replace") for name, value in found.items() if value is not None
    }
    return {PREFIX + name.encode(): value for name, value in values.items()}
