"""Producers with an id in one partition: epochs, sequences, duplicates, transactions (KIP-98).

Nothing is known of a producer that was never seen or was forgotten: it may start anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from broker.producers.aborted import AbortedTransaction, AbortedTransactions
from broker.producers.identity import ProducerIdentity

if TYPE_CHECKING:
    from broker.producers.markers import Marker
    from broker.records import BatchHeader

__all__ = [
    "DEFAULT_EXPIRY_MS",
    "KEPT_BATCHES",
    "CoordinatorFenced",
    "InvalidProducerEpoch",
    "InvalidTransactionState",
    "OutOfOrderSequence",
    "ProducerDescription",
    "ProducerError",
    "ProducerStates",
    "SentBatch",
]

KEPT_BATCHES: Final = 5
"""Batches per producer that are recognised when they come again: clients keep at most 5 in flight."""
DEFAULT_EXPIRY_MS: Final = 24 * 3600 * 1000
MAX_SEQUENCE: Final = 2**31 - 1
_NONE: Final = -1


class ProducerError(Exception):
    """A batch does not continue what its producer sent before; nothing was appended."""


class OutOfOrderSequence(ProducerError):
    """Its sequence is not the next one (OUT_OF_ORDER_SEQUENCE_NUMBER)."""


class InvalidProducerEpoch(ProducerError):
    """A newer producer with the same id has taken over (INVALID_PRODUCER_EPOCH)."""


class CoordinatorFenced(ProducerError):
    """A newer transaction coordinator has written for the producer (TRANSACTION_COORDINATOR_FENCED)."""


class InvalidTransactionState(ProducerError):
    """The batch is outside the transaction that its producer has open (INVALID_TXN_STATE)."""


class SentBatch(NamedTuple):
    """A batch that a producer sent: sequences and offsets are inclusive, the timestamp its newest."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerDescription(NamedTuple):
    """A producer as DescribeProducers shows it; -1 where there is nothing to say (KIP-664)."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_seen_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


class _Producer(msgspec.Struct):
    """`transaction_first_offset`: where its open transaction begins, -1 without one."""

    epoch: int
    last_seen_ms: int
    sent: list[SentBatch]
    transaction_first_offset: int = _NONE
    coordinator_epoch: int = _NONE


class _Dump(msgspec.Struct):
    producers: dict[int, _Producer]
    aborted: list[AbortedTransaction]


class ProducerStates:
    """What is known of the producers of one partition, and of their transactions.

    Attributes:
        aborted: the transactions that ended with an abort marker.
    """

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset, in the order of the offsets
        self.aborted = AbortedTransactions()

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return next(iter(self._open.values()), None)

    @property
    def open_transactions(self) -> list[ProducerIdentity]:
        """The producers with an open transaction."""
        return [ProducerIdentity(each, self._producers[each].epoch) for each in self._open]

    def has_open_transaction(self, producer_id: int) -> bool:
        """Whether this producer has appended records that no marker has settled yet."""
        return producer_id in self._open

    def check_coordinator(self, producer_id: int, epoch: int) -> None:
        """Raises CoordinatorFenced if a marker of a newer coordinator than this one came before."""
        producer = self._producers.get(producer_id)
        if producer is not None and epoch < producer.coordinator_epoch:
            raise CoordinatorFenced(
                f"producer {producer_id}: coordinator epoch {producer.coordinator_epoch} is newer than"
                f" {epoch}"
            )

    def check(self, batch: BatchHeader) -> SentBatch | None:
        """None if the batch may be appended; the earlier one if it is a duplicate.

        Markers, and what else the broker writes for a producer, have no sequence.

        Raises:
            OutOfOrderSequence: a batch is missing in between.
            InvalidProducerEpoch: the producer was fenced off.
            InvalidTransactionState: it is not part of the transaction that is open.
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
        """Remembers an appended batch with the first offset and timestamp that the log gave it."""
        if batch.producer_id < 0 or batch.is_control:
            return
        producer = self._seen(batch, now_ms)
        if batch.is_transactional and producer.transaction_first_offset == _NONE:
            producer.transaction_first_offset = first_offset
            self._open[batch.producer_id] = first_offset
        if batch.base_sequence < 0:  # offsets that a transaction commits
            return
        producer.sent.append(
            SentBatch(
                batch.base_sequence,
                _last_sequence(batch),
                first_offset,
                first_offset + batch.last_offset_delta,
                timestamp,
            )
        )
        del producer.sent[:-KEPT_BATCHES]

    def end_transaction(
        self, batch: BatchHeader, marker: Marker, *, offset: int, now_ms: int
    ) -> None:
        """Remembers a marker, which the log has put at `offset`.

        Without an open transaction it only tells the producer's epoch, which may be a new one: so
        fences the coordinator.
        """
        producer = self._seen(batch, now_ms)
        producer.coordinator_epoch = marker.coordinator_epoch
        first_offset = self._open.pop(batch.producer_id, None)
        if first_offset is None:
            return
        producer.transaction_first_offset = _NONE
        if not marker.committed:
            stable = self.first_open_offset
            self.aborted.add(
                AbortedTransaction(
                    batch.producer_id,
                    first_offset,
                    offset,
                    offset + 1 if stable is None else stable,
                )
            )

    def expire(self, now_ms: int, *, expiry_ms: int = DEFAULT_EXPIRY_MS) -> int:
        """Forgets producers that have sent nothing for `expiry_ms`; returns how many.

        Those with an open transaction stay.
        """
        idle = [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.last_seen_ms >= expiry_ms and producer_id not in self._open
        ]
        for producer_id in idle:
            del self._producers[producer_id]
        return len(idle)

    def describe(self) -> list[ProducerDescription]:
        """All producers that are known."""
        return [
            ProducerDescription(
                producer_id,
                producer.epoch,
                producer.sent[-1].last_sequence if producer.sent else _NONE,
                producer.last_seen_ms,
                producer.coordinator_epoch,
                producer.transaction_first_offset,
            )
            for producer_id, producer in self._producers.items()
        ]

    def dump(self) -> bytes:
        """Everything that is known, for `load`."""
        return msgspec.msgpack.encode(_Dump(self._producers, self.aborted.dump()))

    def load(self, data: bytes) -> None:
        """Replaces what is known by what `dump` returned. Raises ValueError for anything else."""
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
        """The producer of an appended batch; a new epoch begins with nothing sent."""
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = _Producer(batch.producer_epoch, now_ms, [])
            self._producers[batch.producer_id] = producer
        elif producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.sent = []
        producer.last_seen_ms = now_ms
        return producer


def _last_sequence(batch: BatchHeader) -> int:
    return (batch.base_sequence + batch.last_offset_delta) % (MAX_SEQUENCE + 1)


def _after(sequence: int) -> int:
    return 0 if sequence == MAX_SEQUENCE else sequence + 1
