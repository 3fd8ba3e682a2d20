"""What systemd is told about a process."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from kmr.service.notify import ServiceState, notifying

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(0)
        yield listener


async def told(listener: socket.socket) -> list[str]:
    with anyio.fail_after(60):
        return (await asyncio.get_running_loop().sock_recv(listener, 4096)).decode().split("\n")


async def test_a_process_says_when_it_starts_is_ready_and_stops(tmp_path: object) -> None:
    state = ServiceState(ready=False, live=True, stopping=False, text="starting")
    environ = {"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "30000"}
    with manager(environ["NOTIFY_SOCKET"]) as listener:
        async with notifying(lambda: state, environ):
            extended = "EXTEND_TIMEOUT_USEC=60000000"
            assert await told(listener) == ["STATUS=starting", "WATCHDOG=1", extended]
            state = ServiceState(ready=True, live=True, stopping=False, text="running")
            while (lines := await told(listener))[0] == "STATUS=starting":
                pass
            assert lines == ["STATUS=running", "READY=1", "WATCHDOG=1"]
            state = ServiceState(ready=False, live=True, stopping=True, text="draining")
            while (lines := await told(listener))[0] == "STATUS=running":
                pass
            assert lines == ["STATUS=draining", "STOPPING=1", "WATCHDOG=1", extended]


async def test_a_process_that_hangs_does_not_feed_the_watchdog() -> None:
    address = "@kmr-test-of-the-watchdog"  # a name in no file system
    state = ServiceState(ready=True, live=False, stopping=False, text="a map hangs")
    with manager("\0" + address[1:]) as listener:
        async with notifying(lambda: state, {"NOTIFY_SOCKET": address}):
            assert await told(listener) == ["STATUS=a map hangs", "READY=1"]


async def test_without_a_manager_nothing_is_asked() -> None:
    def never() -> ServiceState:
        raise AssertionError

    async with notifying(never, {}):
        await anyio.lowlevel.checkpoint()
