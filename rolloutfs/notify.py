"""What a service manager is told of a mount, by the protocol of sd_notify(3): one datagram a message.

The variable is taken out of the environment, as sd_notify does when asked: a worker or a summarizer that is a service
program itself would speak in our name. Nobody need listen: what can't be told is logged, and the mount goes on.
"""

from __future__ import annotations

import logging
import os
import re
import socket

log = logging.getLogger(__name__)

_VARIABLE = "NOTIFY_SOCKET"
_CONTROL = re.compile(r"[\x00-\x1f]")  # a path may hold a newline, and what follows one is a message of its own


class Manager:
    """Whoever listens at $NOTIFY_SOCKET; without an address every message goes nowhere."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    def ready(self, status: str) -> None:
        """The mount can be used from now on."""
        self._send("READY=1", f"STATUS={_CONTROL.sub('?', status)}")

    def stopping(self) -> None:
        """The mount is about to end."""
        self._send("STOPPING=1", "STATUS=Unmounting")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        message = os.fsencode("\n".join(lines))
        try:
            if self._address[:1] not in ("/", "@"):
                raise OSError(f"no address of a kind known here: {self._address}")
            address = os.fsencode(self._address)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel:
                channel.sendto(message, b"\0" + address[1:] if address.startswith(b"@") else address)
        except OSError as error:
            log.warning("The service manager can't be told %s: %s", lines[0], error)


def take() -> Manager:
    """The service manager that started this process, if one did. Children of this process don't see it."""
    return Manager(os.environ.pop(_VARIABLE, None) or None)
