"""Tell systemd how a process is (sd_notify(3)): ready, alive, stopping, and a line for `systemctl status`.

The protocol is one datagram of `NAME=value` lines to the socket that $NOTIFY_SOCKET names, so no library is
needed. A process that systemd did not start with `Type=notify` sends nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

_LONGEST_PAUSE: Final = 5.0  # seconds between two messages
_EXTENSION: Final = 60.0
"""Seconds that a start or a stop may take from now on, said again with each message while it goes on."""


class ServiceState(NamedTuple):
    """The state of a process, for the service manager.

    Attributes:
        ready: it does its work.
        live: it does not hang. systemd kills a process that is not live for `WatchdogSec=`.
        stopping: it drains, or closes.
        text: for `systemctl status`.
    """

    ready: bool
    live: bool
    stopping: bool
    text: str


@asynccontextmanager
async def notifying(
    look: Callable[[], ServiceState], environ: Mapping[str, str] = os.environ
) -> AsyncIterator[None]:
    """Send the state of this process at once and then regularly, until the end of the block.

    Args:
        look: called on the event loop, so that a loop that stands still is not live.
        environ: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, as systemd sets them.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        yield
        return
    telling = asyncio.create_task(_tell(address, look, _pause(environ)))
    try:
        yield
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling


def _pause(environ: Mapping[str, str]) -> float:
    """Return the seconds between two messages: a third of the time after which systemd kills us."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return _LONGEST_PAUSE
    watchdog = int(environ.get("WATCHDOG_USEC", 0)) / 1e6
    return min(_LONGEST_PAUSE, watchdog / 3) if watchdog else _LONGEST_PAUSE


async def _tell(address: str, look: Callable[[], ServiceState], pause: float) -> None:
    was_ready = False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        while True:
            state = look()
            was_ready = was_ready or state.ready
            lines = [f"STATUS={state.text}"]
            if state.ready:
                lines.append("READY=1")
            if state.stopping:
                lines.append("STOPPING=1")
            if state.live:
                lines.append("WATCHDOG=1")
                if state.stopping or not was_ready:
                    lines.append(f"EXTEND_TIMEOUT_USEC={_EXTENSION * 1e6:.0f}")
            with suppress(OSError):  # systemd is restarted, or its queue is full
                sender.sendto("\n".join(lines).encode(), _path(address))
            # Until it is ready, that is said as soon as it is.
            await asyncio.sleep(pause if was_ready else min(pause, 0.5))


def _path(address: str) -> str:
    """Return the address for the kernel: a leading `@` stands for a name that is in no file system."""
    return "\0" + address[1:] if address.startswith("@") else address
