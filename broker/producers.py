"""Idempotent producers of one partition: epochs, sequences, duplicates (KIP-98).

Nothing is known of a producer that was never seen or was forgotten: it may start anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from broker.records import BatchHeader

__all__ = [
    "DEFAULT_EXPIRY_MS",
    "KEPT_BATCHES",
    "InvalidProducerEpoch",
    "OutOfOrderSequence",
    "ProducerError",
    "ProducerStates",
    "SentBatch",
]

KEPT_BATCHES: Final = 5
"""Batches per producer that are recognised when they come again: clients keep at most 5 in flight."""
DEFAULT_EXPIRY_MS: Final = 24 * 3600 * 1000
MAX_SEQUENCE: Final = 2**31 - 1


class ProducerError(Exception):
    """A batch does not continue what its producer sent before; nothing was appended."""


class OutOfOrderSequence(ProducerError):
    """Its sequence is not the next one (OUT_OF_ORDER_SEQUENCE_NUMBER)."""


class InvalidProducerEpoch(ProducerError):
    """A newer producer with the same id has taken over (INVALID_PRODUCER_EPOCH)."""


class SentBatch(NamedTuple):
    """A batch that a producer sent: sequences and offsets are inclusive, the timestamp its newest."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class _Producer(msgspec.Struct):
    epoch: int
    last_seen_ms: int
    sent: list[SentBatch]


class ProducerStates:
    """What is known of the idempotent producers of one partition."""

    def __init__(self, *, expiry_ms: int = DEFAULT_EXPIRY_MS) -> None:
        """`expiry_ms`: a producer that has sent nothing for this long is forgotten."""
        self._expiry_ms = expiry_ms
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, batch: BatchHeader) -> SentBatch | None:
        """None if the batch may be appended; the earlier one if it is a duplicate.

        Raises:
            OutOfOrderSequence: a batch is missing in between.
            InvalidProducerEpoch: the producer was fenced off.
        """
        if batch.producer_id < 0:
            return None
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return None
        who = f"producer {batch.producer_id} epoch {batch.producer_epoch}"
        if batch.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(f"{who}: epoch {producer.epoch} has taken over")
        if batch.producer_epoch > producer.epoch:
            if batch.base_sequence:
                raise OutOfOrderSequence(
                    f"{who}: begins with sequence {batch.base_sequence}, a new epoch begins with 0"
                )
            return None
        last_sequence = _last_sequence(batch)
        for sent in producer.sent:
            if sent.first_sequence == batch.base_sequence and sent.last_sequence == last_sequence:
                return sent
        expected = _after(producer.sent[-1].last_sequence)
        if batch.base_sequence != expected:
            raise OutOfOrderSequence(f"{who}: sequence {batch.base_sequence} instead of {expected}")
        return None

    def update(self, batch: BatchHeader, *, first_offset: int, timestamp: int, now_ms: int) -> None:
        """Remembers an appended batch with the first offset and timestamp that the log gave it."""
        if batch.producer_id < 0 or batch.is_control:
            return
        producer = self._producers.get(batch.producer_id)
        if producer is None or producer.epoch != batch.producer_epoch:
            producer = _Producer(batch.producer_epoch, now_ms, [])
            self._producers[batch.producer_id] = producer
        producer.last_seen_ms = now_ms
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

    def expire(self, now_ms: int) -> int:
        """Forgets producers that have sent nothing for the expiry time; returns how many."""
        idle = [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.last_seen_ms >= self._expiry_ms
        ]
        for producer_id in idle:
            del self._producers[producer_id]
        return len(idle)

    def dump(self) -> bytes:
        """Everything that is known, for `load`."""
        return msgspec.msgpack.encode(self._producers)

    def load(self, data: bytes) -> None:
        """Replaces what is known by what `dump` returned. Raises ValueError for anything else."""
        try:
            self._producers = msgspec.msgpack.decode(data, type=dict[int, _Producer])
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a dump of producer states: {error}") from error


def _last_sequence(batch: BatchHeader) -> int:
    return (batch.base_sequence + batch.last_offset_delta) % (MAX_SEQUENCE + 1)


def _after(sequence: int) -> int:
    return 0 if sequence == MAX_SEQUENCE else sequence + 1
