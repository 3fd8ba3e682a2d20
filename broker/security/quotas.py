"""How many bytes a client may produce and fetch per second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_THROTTLE", "Quotas", "Rate"]

MAX_THROTTLE = 10.0
"""Seconds; a client that does not know that it has to wait gives up after 30."""

_MAX_CLIENTS = 10_000


class Rate:
    """What each client used of the bytes per second that it may.

    A client that was quiet may use those of one second at once; one that used more than it has must
    wait until it is even again.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._even_at: dict[str, float] = {}  # when a client will have paid for all that it used

    def wait(self, client: str) -> float:
        """Seconds until the client may go on, at most MAX_THROTTLE; 0: it may now."""
        return max(0.0, min(self._even_at.get(client, 0.0) - self._clock(), MAX_THROTTLE))

    def use(self, client: str, size: int) -> float:
        """Note that it used `size` bytes; returns `wait`."""
        now = self._clock()
        unused = now - 1.0  # what was not used before this second is lost
        even_at = max(self._even_at.get(client, unused), unused) + size / self._per_second
        if len(self._even_at) >= _MAX_CLIENTS and client not in self._even_at:
            self._forget(now)
        self._even_at[client] = even_at
        return self.wait(client)

    def _forget(self, now: float) -> None:
        """Clients may call themselves anything: forget who has paid, else who owes least."""
        owing = sorted(((at, name) for name, at in self._even_at.items() if at > now), reverse=True)
        self._even_at = {name: at for at, name in owing[: _MAX_CLIENTS // 2]}


class Quotas:
    """The rates of all clients; None where there is no limit."""

    def __init__(self, *, produce: Rate | None, fetch: Rate | None) -> None:
        self.produce = produce
        self.fetch = fetch
