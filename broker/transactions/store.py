"""The state of all transactional ids, kept in a log: the internal topic `__transaction_state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.records import NewRecord
from broker.transactions.records import (
    decode_key,
    decode_transaction,
    encode_key,
    encode_transaction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.producers.identity import ProducerIdentity
    from broker.records import StoredRecord
    from broker.state_log import StateLog
    from broker.transactions.types import Transaction

__all__ = ["TRANSACTIONS_TOPIC", "TransactionStore"]

TRANSACTIONS_TOPIC: Final = "__transaction_state"


class TransactionStore:
    """What is known of every transactional id, in memory and in a log.

    A change is in the log's file when the method that made it returns; `until_durable` waits until it
    is on disk when the log's `fsync` setting is "always". All raise `LogFailed` when the disk fails.
    """

    def __init__(self, log: StateLog) -> None:
        """Load what the log holds, and rewrite it if it has grown too large; it is the store's now.

        Raises `LogCorrupt`, `LogFailed`: then the log is closed.
        """
        self._log = log
        self._transactions: dict[str, Transaction] = {}
        self._active: dict[str, Transaction] = {}
        log.restore(self._replay, self._append_live_records)

    def close(self) -> None:
        """Sync and close the log."""
        self._log.close()

    @property
    def log(self) -> StateLog:
        """Where it is kept; to be looked at only."""
        return self._log

    def __iter__(self) -> Iterator[Transaction]:
        """All of them as they are now."""
        return iter(tuple(self._transactions.values()))

    @property
    def active(self) -> list[Transaction]:
        """Those that have not ended for all of their partitions."""
        return list(self._active.values())

    def get(self, transactional_id: str) -> Transaction | None:
        """The newest state of a transactional id."""
        return self._transactions.get(transactional_id)

    def put(self, transaction: Transaction) -> None:
        """Store a new state."""
        key = encode_key(transaction.transactional_id)
        self._log.append([NewRecord(key, encode_transaction(transaction))])
        self._remember(transaction)

    def remove(self, transactional_id: str) -> None:
        """Forget a transactional id."""
        self._log.append([NewRecord(encode_key(transactional_id), None)])
        self._forget(transactional_id)

    async def until_durable(self) -> None:
        """Wait until all changes so far may be acknowledged."""
        await self._log.until_durable(self._log.end)

    async def maintain(self) -> None:
        """Sync when the fsync policy says so, rewrite when the log is too large."""
        await self._log.maintain(self._append_live_records)

    def _append_live_records(self) -> None:
        self._log.append_in_batches(
            NewRecord(encode_key(each.transactional_id), encode_transaction(each)) for each in self
        )

    def _replay(self, record: StoredRecord, _: ProducerIdentity | None) -> None:
        transactional_id = decode_key(record.key or b"")
        if record.value is None:
            self._forget(transactional_id)
        else:
            self._remember(decode_transaction(transactional_id, record.value))

    def _remember(self, transaction: Transaction) -> None:
        self._transactions[transaction.transactional_id] = transaction
        if transaction.state.is_active:
            self._active[transaction.transactional_id] = transaction
        else:
            self._active.pop(transaction.transactional_id, None)

    def _forget(self, transactional_id: str) -> None:
        self._transactions.pop(transactional_id, None)
        self._active.pop(transactional_id, None)
