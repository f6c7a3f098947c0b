"""What every handler of a request goes through.

An exception that leaves a handler ends the mount for everybody (pyfuse3#53), and a request that is never answered
leaves its program unkillable.
"""

from __future__ import annotations

import errno
import functools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from pyfuse3 import FUSEError
from threadstore.errors import StoreError

from rolloutfs.requestloop import Waiting
from rolloutfs.worker import code_of

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


#: Of all handlers of this process; pyfuse3 serves one mount a process.
WAITING = Waiting()
#: Requests by the name of their handler, since the mount.
REQUESTS: Counter[str] = Counter()


def guarded(handler: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Let a handler fail with an errno only, and count it."""
    name = handler.__name__

    @functools.wraps(handler)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        WAITING.begin()
        REQUESTS[name] += 1
        WAITING.handlers += 1
        try:
            return await handler(*args, **kwargs)
        except FUSEError:
            raise
        except (StoreError, OSError, KeyError) as error:
            log.debug("%s%r: %s", handler.__name__, args[1:], error)
            raise FUSEError(code_of(error)) from error
        except Exception as error:
            log.exception("%s%r failed", handler.__name__, args[1:])
            raise FUSEError(errno.EIO) from error
        finally:
            WAITING.handlers -= 1

    return wrapper
