"""The aborted transactions of one partition, which read_committed consumers leave out (KIP-98)."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["AbortedTransaction", "AbortedTransactions"]


class AbortedTransaction(NamedTuple):
    """Records of `producer_id` from `first_offset` to the marker at `last_offset` do not count.

    `last_stable_offset` is what it was just after the marker: no transaction that ended later has
    records below it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """In the order of their markers."""

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        self._transactions = list(transactions)

    def __len__(self) -> int:
        return len(self._transactions)

    def add(self, transaction: AbortedTransaction) -> None:
        """The newest one: its marker is behind all others."""
        self._transactions.append(transaction)

    def between(self, offset: int, end: int) -> list[AbortedTransaction]:
        """Those that a consumer needs to know of for the records from `offset` to `end` (exclusive)."""
        found = []
        for number in range(self._first_from(offset), len(self._transactions)):
            transaction = self._transactions[number]
            if transaction.first_offset < end:
                found.append(transaction)
            if transaction.last_stable_offset >= end:
                break
        return found

    def forget_below(self, log_start_offset: int) -> None:
        """Drop those whose records are all deleted."""
        del self._transactions[: self._first_from(log_start_offset)]

    def dump(self) -> list[AbortedTransaction]:
        """All of them, for the constructor."""
        return list(self._transactions)

    def _first_from(self, offset: int) -> int:
        return bisect.bisect_left(self._transactions, offset, key=lambda each: each.last_offset)
