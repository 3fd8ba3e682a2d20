"""How many connections there may be: in all, from one address, and before they are authenticated."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

__all__ = ["Admission", "Limit"]


class Limit(NamedTuple):
    """A setting that was reached."""

    setting: str
    value: int

    def __str__(self) -> str:
        return f"there are more than {self.setting} ({self.value})"


class Admission:
    """Counts connections. Each is admitted once, perhaps settles, and leaves once."""

    def __init__(self, *, total: int, per_address: int | None, unsettled: int) -> None:
        """`unsettled`: most connections whose clients are still in the TLS handshake or in SASL."""
        self._total = total
        self._per_address = per_address
        self._max_unsettled = unsettled
        self._addresses: Counter[str] = Counter()
        self._count = 0
        self._unsettled = 0

    @property
    def admitted(self) -> int:
        """Connections that are open."""
        return self._count

    @property
    def unsettled(self) -> int:
        """Those of them whose clients are still in the TLS handshake or in SASL."""
        return self._unsettled

    def admit(self, address: str) -> Limit | None:
        """Count a new connection; or say which limit refuses it, and do not count it."""
        if self._count >= self._total:
            return Limit("max_connections", self._total)
        if self._per_address is not None and self._addresses[address] >= self._per_address:
            return Limit("max_connections_per_address", self._per_address)
        if self._unsettled >= self._max_unsettled:
            return Limit("max_unauthenticated_connections", self._max_unsettled)
        self._count += 1
        self._unsettled += 1
        self._addresses[address] += 1
        return None

    def settled(self) -> None:
        """A connection has shown who it is, or need not."""
        self._unsettled -= 1

    def left(self, address: str, *, settled: bool) -> None:
        """A connection was closed."""
        self._count -= 1
        self._unsettled -= not settled
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
