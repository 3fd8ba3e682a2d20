"""The words of transactions, free of the wire protocol and of the disk.

Times are milliseconds since the epoch, durations milliseconds. A refused request is a
`TransactionError` that is returned, never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from broker.producers.identity import ProducerIdentity

__all__ = [
    "NO_EPOCH",
    "NO_PRODUCER",
    "NO_TIME",
    "TopicPartition",
    "Transaction",
    "TransactionError",
    "TransactionSettings",
    "TransactionState",
]

NO_EPOCH: Final = -1
NO_TIME: Final = -1
NO_PRODUCER: Final = ProducerIdentity(-1, NO_EPOCH)

TopicPartition = tuple[str, int]


class TransactionState(Enum):
    """Where a transactional id is; the values are Kafka's names in ListTransactions."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def is_active(self) -> bool:
        """Whether there is a transaction that has not ended for all of its partitions."""
        return self is TransactionState.ONGOING or self.is_prepared

    @property
    def is_prepared(self) -> bool:
        """Whether it is decided how the transaction ends, and its markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class TransactionError(Enum):
    """Why a request was refused; the names are those of the protocol's error codes."""

    CONCURRENT_TRANSACTIONS = auto()
    COORDINATOR_NOT_AVAILABLE = auto()
    INVALID_PRODUCER_ID_MAPPING = auto()
    INVALID_REQUEST = auto()
    INVALID_TRANSACTION_TIMEOUT = auto()
    INVALID_TXN_STATE = auto()
    PRODUCER_FENCED = auto()
    TRANSACTION_ABORTABLE = auto()
    """The partition is not part of the transaction (KIP-890); older clients know INVALID_TXN_STATE."""


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """What an operator can turn; the defaults are Kafka's."""

    max_timeout_ms: int = 15 * 60 * 1000
    """A producer that asks for more is refused."""
    id_expiration_ms: int = 7 * 24 * 3600 * 1000
    """A transactional id without an open transaction that was not used for so long is forgotten."""
    check_interval: float = 1.0
    """Seconds between two looks for what has timed out or expired."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id, its newest producer, and that producer's newest transaction.

    `last` is who held the id before `producer` took over as its successor: the same instance, which
    may ask again because it did not get the answer (KIP-360). It does not outlive the broker.
    """

    transactional_id: str
    producer: ProducerIdentity
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    last: ProducerIdentity = NO_PRODUCER
