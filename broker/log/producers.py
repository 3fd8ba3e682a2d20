"""Idempotent and transactional producers of one partition: epochs, sequences, duplicates (KIP-98).

`ProducerStates` is rebuilt from the log when it is opened: from the newest snapshot file and the batches
after it. A producer that the partition does not know may start with any sequence.
"""

from __future__ import annotations

import bisect
import struct
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from .durable_files import read_sealed, write_sealed
from .log_config import DEFAULT_PRODUCER_EXPIRATION_MS
from .records import CorruptBatch, NewRecord, build_batch, parse_header, read_records
from .results import LogCorrupt

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from .records import BatchHeader
    from .segment import Segment


KEPT_BATCHES: Final = 5
"""Latest batches per producer in which duplicates are recognised: clients keep at most 5 in flight."""
MOST_PRODUCERS: Final = 10_000
"""Producers that a log remembers, about 600 bytes each; whoever is forgotten may go on with any sequence."""
SNAPSHOT_SUFFIX: Final = ".snapshot"
_KEPT_SNAPSHOTS: Final = 2  # one more than needed, in case the newest is damaged or beyond a cut
_MAX_SEQUENCE: Final = 2**31 - 1
_NONE: Final = -1

# The key of a marker's record is (version 0, type), its value (version 0, coordinator epoch).
_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")
_MARKER_VERSION: Final = 0
_ABORT, _COMMIT = 0, 1


class ProducerError(Exception):
    """A batch does not continue its producer's earlier ones; nothing was appended."""


class OutOfOrderSequence(ProducerError):
    """The batch's sequence is not the next one (OUT_OF_ORDER_SEQUENCE_NUMBER)."""


class InvalidProducerEpoch(ProducerError):
    """A newer producer with the same id has taken over (INVALID_PRODUCER_EPOCH)."""


class InvalidTransactionState(ProducerError):
    """The batch is outside its producer's open transaction (INVALID_TXN_STATE)."""


class ProducerIdentity(NamedTuple):
    """A producer; of two with the same id, the one with the higher epoch fences the other."""

    producer_id: int
    epoch: int


class Marker(NamedTuple):
    """The end of a transaction, and the epoch of the coordinator that decided it.

    In the log it is a control batch of one record, which takes an offset like any other.
    """

    committed: bool
    coordinator_epoch: int


def build_marker(marker: Marker, producer: ProducerIdentity, *, timestamp_ms: int) -> bytearray:
    """Return the control batch that ends this producer's transaction (milliseconds since the epoch)."""
    key = _MARKER_KEY.pack(_MARKER_VERSION, _COMMIT if marker.committed else _ABORT)
    value = _MARKER_VALUE.pack(_MARKER_VERSION, marker.coordinator_epoch)
    return build_batch(
        [NewRecord(key, value, timestamp=timestamp_ms)],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transactional=True,
        control=True,
    )


def read_marker(data: memoryview | bytearray | bytes, header: BatchHeader) -> Marker:
    """Return the marker in the control batch at `header.position` of `data`; raises `CorruptBatch`."""
    record = read_records(data, header)[0]
    try:
        _, kind = _MARKER_KEY.unpack_from(record.key or b"")
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value or b"")
    except struct.error as error:
        raise CorruptBatch(f"no marker in the control batch at offset {record.offset}") from error
    if kind not in (_ABORT, _COMMIT):
        raise CorruptBatch(f"a marker of unknown type {kind} at offset {record.offset}")
    return Marker(kind == _COMMIT, coordinator_epoch)


class AbortedTransaction(NamedTuple):
    """The records of `producer_id` from `first_offset` to the marker at `last_offset` are aborted.

    `last_stable_offset` is the log's, just after the marker: no transaction that ended later has records
    below it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedTransactions(list[AbortedTransaction]):
    """The aborted transactions of a partition, in the order of their markers."""

    def between(self, offset: int, end: int) -> list[AbortedTransaction]:
        """Return those that a consumer must know to read the offsets from `offset` to `end` (exclusive)."""
        found = []
        for number in range(self._first_from(offset), len(self)):
            transaction = self[number]
            if transaction.first_offset < end:
                found.append(transaction)
            if transaction.last_stable_offset >= end:
                break
        return found

    def forget_below(self, log_start_offset: int) -> None:
        """Drop those whose records are all deleted."""
        del self[: self._first_from(log_start_offset)]

    def _first_from(self, offset: int) -> int:
        return bisect.bisect_left(self, offset, key=lambda each: each.last_offset)


class SentBatch(NamedTuple):
    """A batch of a producer: sequences and offsets inclusive, the timestamp that of its newest record."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class _Producer(msgspec.Struct):
    """`transaction_first_offset`: first offset of its open transaction, -1 without one.

    `sent` is replaced, never changed, so that a shallow copy is a copy.
    """

    epoch: int
    last_seen_ms: int
    sent: list[SentBatch]
    transaction_first_offset: int = _NONE


class _Dump(msgspec.Struct):
    producers: dict[int, _Producer]
    aborted: list[AbortedTransaction]


class ProducerStates:
    """The producers of one partition and their transactions.

    Calls: `update` and `end_transaction` for each appended batch; then `keep` if these batches are written,
    `undo` if they are not.

    Attributes:
        aborted: the aborted transactions.
    """

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset, in the order of the offsets
        self._before: dict[int, _Producer | None] = {}  # as of `keep`, those that changed since
        self.aborted = AbortedTransactions()

    @property
    def ids(self) -> Collection[int]:
        """The producers that are not forgotten."""
        return self._producers.keys()

    @property
    def first_open_offset(self) -> int | None:
        """First offset of the oldest open transaction."""
        return next(iter(self._open.values())) if self._open else None

    @property
    def open_transactions(self) -> list[ProducerIdentity]:
        """The producers with an open transaction."""
        return [ProducerIdentity(each, self._producers[each].epoch) for each in self._open]

    def knows(self, producer_id: int) -> bool:
        """Whether this producer has written to the partition, and is not forgotten."""
        return producer_id in self._producers

    def has_open_transaction(self, producer_id: int, *, below: int | None = None) -> bool:
        """Whether this producer has transactional records after its last marker.

        `below`: only if its epoch is below this one.
        """
        if producer_id not in self._open:
            return False
        return below is None or self._producers[producer_id].epoch < below

    def check(self, batch: BatchHeader) -> SentBatch | None:
        """Return None if the batch may be appended, the stored batch if it is a duplicate.

        The broker's own batches (markers, committed offsets) have no sequence to check.

        Raises:
            OutOfOrderSequence: a batch before it is missing.
            InvalidProducerEpoch: the producer is fenced.
            InvalidTransactionState: the batch is outside the open transaction.
        """
        if batch.producer_id < 0:
            return None
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return None
        who = f"producer {batch.producer_id} epoch {batch.producer_epoch}"
        if batch.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(f"{who}: epoch {producer.epoch} has taken over")
        if batch.base_sequence < 0:
            return None  # the broker's own
        if batch.producer_epoch > producer.epoch:
            if batch.base_sequence:
                raise OutOfOrderSequence(
                    f"{who}: begins with sequence {batch.base_sequence}, a new epoch begins with 0"
                )
        else:
            sequences = (batch.base_sequence, _last_sequence(batch))
            for sent in producer.sent:
                if (sent.first_sequence, sent.last_sequence) == sequences:
                    return sent
            expected = _after(producer.sent[-1].last_sequence) if producer.sent else 0
            if batch.base_sequence != expected:
                raise OutOfOrderSequence(
                    f"{who}: sequence {batch.base_sequence} instead of {expected}"
                )
        if producer.transaction_first_offset != _NONE and not batch.is_transactional:
            raise InvalidTransactionState(f"{who}: its transaction is open, the batch is in none")
        return None

    def update(self, batch: BatchHeader, *, first_offset: int, timestamp: int, now_ms: int) -> None:
        """Note an appended batch, with the first offset and timestamp that the log gave it."""
        if batch.producer_id < 0 or batch.is_control:
            return
        producer = self._seen(batch, now_ms)
        if batch.is_transactional and producer.transaction_first_offset == _NONE:
            producer.transaction_first_offset = first_offset
            self._open[batch.producer_id] = first_offset
        if batch.base_sequence < 0:  # offsets committed by a transaction
            return
        sent = SentBatch(
            batch.base_sequence,
            _last_sequence(batch),
            first_offset,
            first_offset + batch.last_offset_delta,
            timestamp,
        )
        producer.sent = [*producer.sent[1 - KEPT_BATCHES :], sent]

    def end_transaction(
        self, batch: BatchHeader, marker: Marker, *, offset: int, now_ms: int
    ) -> None:
        """Note a marker, which is at `offset` in the log.

        Without an open transaction it only sets the producer's epoch: the coordinator fences older
        producers this way.
        """
        producer = self._seen(batch, now_ms)
        first_offset = self._open.pop(batch.producer_id, None)
        if first_offset is None:
            return
        producer.transaction_first_offset = _NONE
        if not marker.committed:
            stable = self.first_open_offset
            self.aborted.append(
                AbortedTransaction(
                    batch.producer_id,
                    first_offset,
                    offset,
                    offset + 1 if stable is None else stable,
                )
            )

    def keep(self) -> None:
        """Make the changes since the last call final."""
        self._before.clear()

    def undo(self, next_offset: int) -> None:
        """Undo the changes since `keep`, which are those of batches from `next_offset` on."""
        for producer_id, producer in self._before.items():
            self._open.pop(producer_id, None)
            self._producers.pop(producer_id, None)
            if producer is None:
                continue
            self._producers[producer_id] = producer
            if producer.transaction_first_offset != _NONE:
                self._open[producer_id] = producer.transaction_first_offset
        self._before.clear()
        self._open = dict(sorted(self._open.items(), key=lambda each: each[1]))
        while self.aborted and self.aborted[-1].last_offset >= next_offset:
            self.aborted.pop()

    def expire(self, now_ms: int, *, expiry_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS) -> int:
        """Forget producers that have sent nothing for `expiry_ms`, except those with an open transaction.

        Return how many.
        """
        idle = [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.last_seen_ms >= expiry_ms and producer_id not in self._open
        ]
        for producer_id in idle:
            del self._producers[producer_id]
        return len(idle)

    def _forget_idlest(self) -> None:
        """Forget a quarter of the producers, those that have sent nothing for longest."""
        idle = sorted(
            (each.last_seen_ms, producer_id)
            for producer_id, each in self._producers.items()
            if producer_id not in self._open
        )
        for _, producer_id in idle[: MOST_PRODUCERS // 4]:
            del self._producers[producer_id]

    def dump(self) -> bytes:
        """Return the whole state, for `load`."""
        return msgspec.msgpack.encode(_Dump(self._producers, self.aborted))

    def load(self, data: bytes) -> None:
        """Replace the state by a dump. Raises ValueError if `data` is none."""
        try:
            dump = msgspec.msgpack.decode(data, type=_Dump)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a dump of producer states: {error}") from error
        self._producers = dump.producers
        self.aborted = AbortedTransactions(dump.aborted)
        first_offsets = (
            (producer.transaction_first_offset, producer_id)
            for producer_id, producer in dump.producers.items()
            if producer.transaction_first_offset != _NONE
        )
        self._open = {producer_id: first for first, producer_id in sorted(first_offsets)}

    def _seen(self, batch: BatchHeader, now_ms: int) -> _Producer:
        """Return the producer of an appended batch; a new epoch begins without batches."""
        producer = self._producers.get(batch.producer_id)
        if batch.producer_id not in self._before:
            self._before[batch.producer_id] = copy(producer)
        if producer is None:
            producer = _Producer(batch.producer_epoch, now_ms, [])
            self._producers[batch.producer_id] = producer
            if len(self._producers) > MOST_PRODUCERS:
                self._forget_idlest()
        elif producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.sent = []
        producer.last_seen_ms = now_ms
        return producer


def _last_sequence(batch: BatchHeader) -> int:
    return (batch.base_sequence + batch.last_offset_delta) % (_MAX_SEQUENCE + 1)


def _after(sequence: int) -> int:
    return 0 if sequence == _MAX_SEQUENCE else sequence + 1


def save_producers(producers: ProducerStates, directory: Path, next_offset: int) -> None:
    """Save a snapshot of the states after all batches below `next_offset`; delete old snapshots."""
    path = directory / f"{next_offset:020d}{SNAPSHOT_SUFFIX}"
    write_sealed(path, producers.dump(), durable=False)
    for old in sorted(directory.glob(f"*{SNAPSHOT_SUFFIX}"))[:-_KEPT_SNAPSHOTS]:
        old.unlink()


def restore_producers(
    directory: Path, segments: Sequence[Segment], next_offset: int, *, now_ms: int
) -> ProducerStates:
    """Return the states after all batches below `next_offset`.

    Load the newest usable snapshot, then read the headers of the batches after it. Damaged batches are
    skipped here; reading them reports the damage. A snapshot beyond `next_offset` covers batches that were
    cut off, and is deleted. All producers of the batches after the snapshot count as seen at `now_ms`.
    """
    producers = ProducerStates()
    offset = segments[0].base_offset
    for path in sorted(directory.glob(f"*{SNAPSHOT_SUFFIX}"), reverse=True):
        if not path.stem.isdecimal() or int(path.stem) > next_offset:
            path.unlink()
        elif int(path.stem) >= offset:
            with suppress(LogCorrupt, ValueError):  # an older one, or the log, is used instead
                producers.load(read_sealed(path) or b"")
                offset = int(path.stem)
                break
    for number, segment in enumerate(segments):
        last = number + 1 == len(segments)
        end = next_offset if last else segments[number + 1].base_offset
        if end > offset:
            _replay(producers, segment, offset, now_ms)
    producers.keep()
    return producers


def _replay(producers: ProducerStates, segment: Segment, offset: int, now_ms: int) -> None:
    base_offset, position = segment.index.position_before(offset)
    try:
        for header in segment.batches(position, base_offset, verify=True):
            if header.base_offset < offset or header.producer_id < 0:
                continue
            if header.is_control:
                batch = segment.batch_bytes(header)
                marker = read_marker(batch, parse_header(batch))
                producers.end_transaction(header, marker, offset=header.base_offset, now_ms=now_ms)
            else:
                producers.update(
                    header,
                    first_offset=header.base_offset,
                    timestamp=header.max_timestamp,
                    now_ms=now_ms,
                )
    except (LogCorrupt, CorruptBatch):
        return
