"""The state of all transactional ids, kept in a log: the internal topic `__transaction_state`.

The records have the format of Kafka's TransactionLogKey, version 0, and TransactionLogValue: version 1 where
the end of the transaction has raised the producer's epoch (KIP-890), else version 0.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any, Final

from ..log.producers import ProducerIdentity
from ..log.records import NewRecord
from ..protocol.cursor import Cursor, MalformedRequest, write_uvarint
from .state_log import MalformedRecord, RecordReader, encode_string
from .transaction_state import LAST_EPOCH, NO_PRODUCER, TransactionalId, TransactionState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..log.records import StoredRecord
    from .state_log import StateLog

_VERSION: Final = 0
_ID_BYTES, _PARTITION_BYTES = 1_000, 100  # in memory
_FLEXIBLE_VERSION: Final = 1
_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION = range(3)  # tags
_RAISES_EPOCHS: Final = 2  # the client's version of transactions
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hqhib")
_INT64: Final = struct.Struct(">q")
_TIMES: Final = struct.Struct(">qq")
_STATES: Final = dict(enumerate(TransactionState))
_NUMBERS: Final = {state: number for number, state in _STATES.items()}


def encode_transactional_id(transactional_id: str) -> bytes:
    """Encode the key; raises `ValueError` for an id of more than 32,767 bytes."""
    return _INT16.pack(_VERSION) + encode_string(transactional_id)


def encode_transaction(transaction: TransactionalId) -> bytes:
    """Encode the value."""
    if transaction.raised_epoch:
        return _encode_flexible(transaction)
    topics = itertools.groupby(sorted(transaction.partitions), key=lambda each: each[0])
    listed = [(topic, [index for _, index in partitions]) for topic, partitions in topics]
    parts = [
        _HEAD.pack(
            _VERSION, *transaction.producer, transaction.timeout_ms, _NUMBERS[transaction.state]
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


def _encode_flexible(transaction: TransactionalId) -> bytes:
    producer, last = transaction.producer, transaction.last
    out = bytearray(
        _HEAD.pack(
            _FLEXIBLE_VERSION, *producer, transaction.timeout_ms, _NUMBERS[transaction.state]
        )
    )
    topics = itertools.groupby(sorted(transaction.partitions), key=lambda each: each[0])
    listed = [(topic.encode(), [index for _, index in partitions]) for topic, partitions in topics]
    write_uvarint(out, len(listed) + 1)
    for topic, indexes in listed:
        write_uvarint(out, len(topic) + 1)
        out += topic
        write_uvarint(out, len(indexes) + 1)
        out += struct.pack(f">{len(indexes)}i", *indexes)
        out.append(0)  # tagged fields
    out += _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    tags = {_CLIENT_VERSION: _INT16.pack(_RAISES_EPOCHS)}
    if last.producer_id != producer.producer_id:
        tags[_PREVIOUS_ID] = _INT64.pack(last.producer_id)
    if transaction.next_producer_id != NO_PRODUCER.producer_id:
        tags[_NEXT_ID] = _INT64.pack(transaction.next_producer_id)
    write_uvarint(out, len(tags))
    for tag, value in sorted(tags.items()):
        write_uvarint(out, tag)
        write_uvarint(out, len(value))
        out += value
    return bytes(out)


def decode_transactional_id(data: bytes) -> str:
    """Decode a key; raises `MalformedRecord`."""
    reader = RecordReader(data, version=_VERSION)
    return reader.string()


def decode_transaction(transactional_id: str, data: bytes) -> TransactionalId:
    """Decode a value; raises `MalformedRecord`."""
    if data[: _INT16.size] == _INT16.pack(_FLEXIBLE_VERSION):
        try:
            return _decode_flexible(
                transactional_id, Cursor(memoryview(data), max_elements=len(data))
            )
        except MalformedRequest as error:
            raise MalformedRecord(str(error)) from None
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
    return TransactionalId(
        transactional_id, producer, timeout_ms, state, updated_ms, partitions, started_ms
    )


def _decode_flexible(transactional_id: str, cursor: Cursor) -> TransactionalId:
    cursor.int16()  # the version
    producer = ProducerIdentity(cursor.int64(), cursor.int16())
    timeout_ms, state = cursor.int32(), _STATES.get(cursor.int8())
    if state is None:
        raise MalformedRecord("unknown transaction state")
    partitions = set()
    for _ in range(cursor.array_length(compact=True)):
        topic = cursor.string(compact=True) or ""
        for _ in range(cursor.array_length(compact=True)):
            partitions.add((topic, cursor.int32()))
        cursor.skip_tagged_fields()
    updated_ms, started_ms = cursor.int64(), cursor.int64()
    tags = {}
    for _ in range(cursor.tag_count()):
        tag, size = cursor.uvarint(), cursor.uvarint()
        if size == _INT64.size:
            tags[tag] = cursor.int64()
        elif size == _INT16.size:
            tags[tag] = cursor.int16()
        else:
            cursor.skip(size)
    return TransactionalId(
        transactional_id,
        producer,
        timeout_ms,
        state,
        updated_ms,
        frozenset(partitions),
        started_ms,
        **_raised_epoch(producer, state, tags),
    )


def _raised_epoch(
    producer: ProducerIdentity, state: TransactionState, tags: Mapping[int, int]
) -> dict[str, Any]:
    """Return the fields of a transaction whose end has raised the epoch, from the tagged fields."""

    has_ended = state not in (TransactionState.EMPTY, TransactionState.ONGOING)
    if tags.get(_CLIENT_VERSION, 0) < _RAISES_EPOCHS or not has_ended:
        return {}
    last = ProducerIdentity(producer.producer_id, producer.epoch - 1)
    if _PREVIOUS_ID in tags and producer.epoch == 0:
        last = ProducerIdentity(tags[_PREVIOUS_ID], LAST_EPOCH)
    next_producer_id = tags.get(_NEXT_ID, NO_PRODUCER.producer_id)
    return {"last": last, "raised_epoch": True, "next_producer_id": next_producer_id}


def kept_bytes(transaction: TransactionalId) -> int:
    """Return about the memory of a transactional id and the partitions of its transaction."""
    return (
        _ID_BYTES
        + len(transaction.transactional_id)
        + len(transaction.partitions) * _PARTITION_BYTES
    )


class TransactionStore:
    """The state of every transactional id, in memory and in a log.

    A change is in the log's file when the method returns; with the `fsync` setting "always",
    `until_durable` waits until it is on disk. All raise `LogFailed` when the disk fails.
    """

    def __init__(self, log: StateLog) -> None:
        """Load the log, rewrite it if it is too large, and own it from now on.

        Raises LogError, OSError: the log is closed.
        """
        self.log = log
        """Read-only for others."""
        self.kept_bytes = 0
        """The approximate memory, in bytes, of all transactional ids."""
        self._transactions: dict[str, TransactionalId] = {}
        self._active: dict[str, TransactionalId] = {}
        log.restore(self._replay, self._append_live_records)

    def close(self) -> None:
        """Sync and close the log."""
        self.log.close()

    def __iter__(self) -> Iterator[TransactionalId]:
        """Iterate over a snapshot of all states."""
        return iter(tuple(self._transactions.values()))

    @property
    def active(self) -> list[TransactionalId]:
        """The states with an open transaction or unwritten markers."""
        return list(self._active.values())

    def get(self, transactional_id: str) -> TransactionalId | None:
        """Return the state of a transactional id, if it is known."""
        return self._transactions.get(transactional_id)

    def put(self, transaction: TransactionalId) -> None:
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

    def _remember(self, transaction: TransactionalId) -> None:
        before = self._transactions.get(transaction.transactional_id)
        self.kept_bytes += kept_bytes(transaction) - (0 if before is None else kept_bytes(before))
        self._transactions[transaction.transactional_id] = transaction
        if transaction.state.is_active:
            self._active[transaction.transactional_id] = transaction
        else:
            self._active.pop(transaction.transactional_id, None)

    def _forget(self, transactional_id: str) -> None:
        before = self._transactions.pop(transactional_id, None)
        if before is not None:
            self.kept_bytes -= kept_bytes(before)
        self._active.pop(transactional_id, None)
