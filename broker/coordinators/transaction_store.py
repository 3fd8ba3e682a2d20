"""The state of all transactional ids, kept in a log: the internal topic `__transaction_state`.

The records have the format of Kafka's TransactionLogKey and TransactionLogValue, version 0.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Final

from ..log.producers import ProducerIdentity
from ..log.records import NewRecord
from .state_log import MalformedRecord, RecordReader, encode_string
from .transaction_state import Transaction, TransactionState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..log.records import StoredRecord
    from .state_log import StateLog

__all__ = [
    "TransactionStore",
    "decode_transaction",
    "decode_transactional_id",
    "encode_transaction",
    "encode_transactional_id",
]

_VERSION: Final = 0
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hqhib")
_TIMES: Final = struct.Struct(">qq")
_STATES: Final = dict(enumerate(TransactionState))
_NUMBERS: Final = {state: number for number, state in _STATES.items()}


def encode_transactional_id(transactional_id: str) -> bytes:
    """Encode the key; raises `ValueError` for an id of more than 32,767 bytes."""
    return _INT16.pack(_VERSION) + encode_string(transactional_id)


def encode_transaction(transaction: Transaction) -> bytes:
    """Encode the value."""
    topics = itertools.groupby(sorted(transaction.partitions), key=lambda each: each[0])
    listed = [(topic, [index for _, index in partitions]) for topic, partitions in topics]
    parts = [
        _HEAD.pack(
            _VERSION,
            *transaction.producer,
            transaction.timeout_ms,
            _NUMBERS[transaction.state],
        ),
        _INT32.pack(len(listed)),
    ]
    for topic, indexes in listed:
        parts += [
            encode_string(topic),
            struct.pack(f">{len(indexes) + 1}i", len(indexes), *indexes),
        ]
    parts.append(_TIMES.pack(transaction.updated_ms, transaction.started_ms))
    return b"".join(parts)


def decode_transactional_id(data: bytes) -> str:
    """Decode a key; raises `MalformedRecord`."""
    reader = RecordReader(data, version=_VERSION)
    return reader.string()


def decode_transaction(transactional_id: str, data: bytes) -> Transaction:
    """Decode a value; raises `MalformedRecord`."""
    reader = RecordReader(data, version=_VERSION)
    producer = ProducerIdentity(reader.int64(), reader.int16())
    timeout_ms, state = reader.int32(), _STATES.get(reader.int8())
    if state is None:
        raise MalformedRecord("unknown transaction state")
    partitions = frozenset(
        (topic, index)
        for topic in (reader.string() for _ in range(reader.int32()))
        for index in [reader.int32() for _ in range(reader.int32())]
    )
    updated_ms, started_ms = reader.int64(), reader.int64()
    return Transaction(
        transactional_id, producer, timeout_ms, state, updated_ms, partitions, started_ms
    )


class TransactionStore:
    """The state of every transactional id, in memory and in a log.

    A change is in the log's file when the method returns; with the `fsync` setting "always",
    `until_durable` waits until it is on disk. All raise `LogFailed` when the disk fails.
    """

    def __init__(self, log: StateLog) -> None:
        """Load the log, rewrite it if it is too large, and own it from now on.

        Raises `LogCorrupt`, `LogFailed`: the log is closed.
        """
        self.log = log
        """Read-only for others."""
        self._transactions: dict[str, Transaction] = {}
        self._active: dict[str, Transaction] = {}
        log.restore(self._replay, self._append_live_records)

    def close(self) -> None:
        """Sync and close the log."""
        self.log.close()

    def __iter__(self) -> Iterator[Transaction]:
        """Iterate over a snapshot of all states."""
        return iter(tuple(self._transactions.values()))

    @property
    def active(self) -> list[Transaction]:
        """The states with an open transaction or unwritten markers."""
        return list(self._active.values())

    def get(self, transactional_id: str) -> Transaction | None:
        """Return the state of a transactional id, if it is known."""
        return self._transactions.get(transactional_id)

    def put(self, transaction: Transaction) -> None:
        """Store the new state of a transactional id."""
        key = encode_transactional_id(transaction.transactional_id)
        self.log.append([NewRecord(key, encode_transaction(transaction))])
        self._remember(transaction)

    def remove(self, transactional_id: str) -> None:
        """Remove a transactional id."""
        self.log.append([NewRecord(encode_transactional_id(transactional_id), None)])
        self._forget(transactional_id)

    async def until_durable(self) -> None:
        """Wait until all changes so far may be acknowledged."""
        await self.log.until_durable(self.log.end)

    async def maintain(self) -> None:
        """Sync when the fsync policy requires it; rewrite the log if it is too large."""
        await self.log.maintain(self._append_live_records)

    def _append_live_records(self) -> None:
        self.log.append_in_batches(
            NewRecord(encode_transactional_id(each.transactional_id), encode_transaction(each))
            for each in self
        )

    def _replay(self, record: StoredRecord, _: ProducerIdentity | None) -> None:
        transactional_id = decode_transactional_id(record.key or b"")
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
