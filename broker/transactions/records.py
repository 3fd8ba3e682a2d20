"""The records of `__transaction_state`, in Kafka's own format, so that its tools can read them.

Key: version 0 and the transactional id. Value: version 0; no value is a tombstone. Source: Kafka's
TransactionLogKey and TransactionLogValue message definitions.
"""

from __future__ import annotations

import itertools
import struct
from typing import Final

from broker.producers.identity import ProducerIdentity
from broker.state_records import MalformedRecord, RecordReader, encode_string
from broker.transactions.types import Transaction, TransactionState

__all__ = ["decode_key", "decode_transaction", "encode_key", "encode_transaction"]

_VERSION: Final = 0
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hqhib")
_TIMES: Final = struct.Struct(">qq")
_STATES: Final = {
    0: TransactionState.EMPTY,
    1: TransactionState.ONGOING,
    2: TransactionState.PREPARE_COMMIT,
    3: TransactionState.PREPARE_ABORT,
    4: TransactionState.COMPLETE_COMMIT,
    5: TransactionState.COMPLETE_ABORT,
}
_NUMBERS: Final = {state: number for number, state in _STATES.items()}


def encode_key(transactional_id: str) -> bytes:
    """Bytes of the key; raises `ValueError` for an id of more than 32,767 bytes."""
    return _INT16.pack(_VERSION) + encode_string(transactional_id)


def encode_transaction(transaction: Transaction) -> bytes:
    """Bytes of the value."""
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


def decode_key(data: bytes) -> str:
    """The transactional id; raises `MalformedRecord`."""
    reader = RecordReader(data)
    version = reader.int16()
    if version != _VERSION:
        raise MalformedRecord(f"a key of version {version}")
    return reader.string()


def decode_transaction(transactional_id: str, data: bytes) -> Transaction:
    """The value; raises `MalformedRecord`."""
    reader = RecordReader(data)
    version = reader.int16()
    if version != _VERSION:
        raise MalformedRecord(f"a transaction of version {version}")
    producer = ProducerIdentity(reader.int64(), reader.int16())
    timeout_ms, state = reader.int32(), _STATES.get(reader.int8())
    if state is None:
        raise MalformedRecord("a transaction in an unknown state")
    partitions = frozenset(
        (topic, index)
        for topic in (reader.string() for _ in range(reader.int32()))
        for index in [reader.int32() for _ in range(reader.int32())]
    )
    updated_ms, started_ms = reader.int64(), reader.int64()
    return Transaction(
        transactional_id, producer, timeout_ms, state, updated_ms, partitions, started_ms
    )
