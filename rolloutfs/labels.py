"""Extended attributes of a thread's folder: what `thread.json` and `usage.json` say, for tools that sort by them.

Absent are those of which the log says nothing. What the kernel and `ls -l` ask for of every file
(`security.capability`, `system.posix_acl_access`) is never one of these, so it is answered without a look at anything.
"""

from __future__ import annotations

import contextlib
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
    """Names and values; `read` gives a derived file of the thread. What follows from one that can't be given is absent:
    of a thread whose lineage is broken the tokens can't be told, but that it is damaged can.
    """
    found: dict[str, object] = {"thread_id": thread}
    with contextlib.suppress(StoreError, OSError, KeyError):
        document: Json = orjson.loads(await read(View.THREAD))
        git = document["git"]
        found |= {name: document[name] for name in ("name", "status", "model")}
        found["branch"] = git.get("branch") if isinstance(git, dict) else None
        found["problems"] = document["counts"]["problems"]
    with contextlib.suppress(StoreError, OSError, KeyError):
        own = orjson.loads(await read(View.USAGE))["own"]
        found["tokens"] = own["total_tokens"] if own else None
    return _encoded(found)


def _encoded(found: dict[str, object]) -> dict[bytes, bytes]:
    values = {
        name: str(value)[:_LONGEST].encode("utf-8", "replace") for name, value in found.items() if value is not None
    }
    return {PREFIX + name.encode(): value for name, value in values.items()}
