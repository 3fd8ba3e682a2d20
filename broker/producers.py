"""Idempotent producers of one partition: epochs, sequences, duplicates (KIP-98)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.records import BatchHeader

__all__ = [
    "InvalidProducerEpoch",
    "OutOfOrderSequence",
    "ProducerError",
    "ProducerStates",
    "SentBatch",
]

KEPT_BATCHES: Final = 5
"""Batches per producer that are recognised when they come again: clients keep at most 5 in flight."""
DEFAULT_EXPIRY_MS: Final = 24 * 3600 * 1000


class ProducerError(Exception):
    """A batch does not continue what its producer sent before; nothing was appended."""


class OutOfOrderSequence(ProducerError):
    """Its sequence is not the next one (OUT_OF_ORDER_SEQUENCE_NUMBER)."""


class InvalidProducerEpoch(ProducerError):
    """A newer producer with the same id has taken over (INVALID_PRODUCER_EPOCH)."""


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch that a producer sent: sequences and offsets are inclusive."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerStates:
    """What is known of the idempotent producers of one partition."""

    def check(self, batch: BatchHeader) -> SentBatch | None:
        """None if the batch may be appended; the earlier one if it is a duplicate.

        Raises:
            OutOfOrderSequence: a batch is missing in between.
            InvalidProducerEpoch: the producer was fenced off.
        """
        raise NotImplementedError

    def update(self, batch: BatchHeader, *, first_offset: int, now_ms: int) -> None:
        """Remembers an appended batch; `first_offset` as the log assigned it."""
        raise NotImplementedError

    def expire(self, now_ms: int) -> int:
        """Forgets producers that sent nothing for a day; returns how many."""
        raise NotImplementedError
