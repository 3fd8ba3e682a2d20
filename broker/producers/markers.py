"""Transaction markers: control batches of one record that end a producer's transaction (KIP-98).

The key of the record is (version 0, type: 0 abort, 1 commit), its value is (version 0, epoch of the
coordinator that decided). A marker takes an offset as every record does.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.records import CorruptBatch, NewRecord, build_batch, read_records

if TYPE_CHECKING:
    from broker.producers.identity import ProducerIdentity
    from broker.records import BatchHeader

__all__ = ["Marker", "build_marker", "read_marker"]

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that says so."""

    committed: bool
    coordinator_epoch: int


def build_marker(marker: Marker, producer: ProducerIdentity, *, timestamp_ms: int) -> bytearray:
    """The batch that ends the transaction of this producer (milliseconds since the epoch)."""
    key = _KEY.pack(_VERSION, _COMMIT if marker.committed else _ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [NewRecord(key, value, timestamp=timestamp_ms)],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transactional=True,
        control=True,
    )


def read_marker(data: memoryview | bytearray | bytes, header: BatchHeader) -> Marker:
    """The marker in the control batch at `header.position` of `data`; raises `CorruptBatch`."""
    record = read_records(data, header)[0]
    try:
        _, kind = _KEY.unpack_from(record.key or b"")
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except struct.error as error:
        raise CorruptBatch(f"no marker in the control batch at offset {record.offset}") from error
    if kind not in (_ABORT, _COMMIT):
        raise CorruptBatch(f"a marker of unknown type {kind} at offset {record.offset}")
    return Marker(kind == _COMMIT, coordinator_epoch)
