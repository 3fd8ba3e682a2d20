"""The state machine of a transactional id, as pure functions from the current state to the next.

    Empty ──add partitions──► Ongoing ──end, commit──► PrepareCommit ──markers written──► CompleteCommit
      ▲                        ▲   │                                                       │
      │                        │   └──end, abort; timeout; fenced──► PrepareAbort ──► CompleteAbort
      └──new producer──────────┴──add partitions───────────────────────────────────────────┘

A client of transaction version 2 may abort in any state where nothing is prepared: its epoch is raised.

Each function returns the next state, which is valid once it is stored, or an error. It returns the
current object if nothing changes. Sources: KIP-98 (the states), KIP-360 (a producer recovers from an
error with a higher epoch), KIP-588 (PRODUCER_FENCED), KIP-890 (partitions are verified; transaction version
2: the end of each transaction raises its producer's epoch).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from ..log.producers import ProducerIdentity

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..topics.topic import TopicPartition

NO_EPOCH: Final = -1
NO_TIME: Final = -1
NO_PRODUCER: Final = ProducerIdentity(-1, NO_EPOCH)


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
        """Whether a transaction is open, or its markers are not all written."""
        return self is TransactionState.ONGOING or self.is_prepared

    @property
    def is_prepared(self) -> bool:
        """Whether commit or abort is decided, and the markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


_AFTER_IDLE: Final = {
    TransactionState.EMPTY,
    TransactionState.ONGOING,
    TransactionState.PREPARE_ABORT,
}
_NEXT: Final = {
    TransactionState.EMPTY: _AFTER_IDLE,
    TransactionState.ONGOING: {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT},
    TransactionState.PREPARE_COMMIT: {TransactionState.COMPLETE_COMMIT},
    TransactionState.PREPARE_ABORT: {TransactionState.COMPLETE_ABORT},
    TransactionState.COMPLETE_COMMIT: _AFTER_IDLE,
    TransactionState.COMPLETE_ABORT: _AFTER_IDLE,
}
"""The picture above as data: the states that may follow each state."""

_ENDS: Final = {
    True: (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
    False: (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
}
"""The states of a transaction that commits (True) or aborts."""


class TransactionError(Enum):
    """Why a request was refused; the names are those of the protocol's error codes."""

    CONCURRENT_TRANSACTIONS = auto()
    COORDINATOR_NOT_AVAILABLE = auto()
    INVALID_PRODUCER_ID_MAPPING = auto()
    INVALID_REQUEST = auto()
    INVALID_TRANSACTION_TIMEOUT = auto()
    INVALID_TXN_STATE = auto()
    POLICY_VIOLATION = auto()
    """There is no room for another transactional id, or for more partitions in a transaction."""
    PRODUCER_FENCED = auto()
    TRANSACTION_ABORTABLE = auto()
    """The partition is not part of the transaction (KIP-890); older clients know INVALID_TXN_STATE."""


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """A transactional id, its newest producer, and that producer's newest transaction.

    Attributes:
        last: the identity that `producer` replaced when the same instance raised its epoch (KIP-360), or
            ended a transaction: a retry of that request, whose response was lost, still carries it. It is
            stored only with `raised_epoch`.
        raised_epoch: whether the client of transaction version 2 has ended its newest transaction, which
            raised the epoch.
        next_producer_id: the producer id after the end, if there is no higher epoch; else -1.
    """

    transactional_id: str
    producer: ProducerIdentity
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    last: ProducerIdentity = NO_PRODUCER
    raised_epoch: bool = False
    next_producer_id: int = NO_PRODUCER.producer_id

    @property
    def producer_afterwards(self) -> ProducerIdentity:
        """The identity of the producer when the transaction is complete."""
        if self.next_producer_id == NO_PRODUCER.producer_id:
            return self.producer
        return ProducerIdentity(self.next_producer_id, 0)


LAST_EPOCH: Final = 2**15 - 2
"""The highest epoch that a producer gets: one more must remain to fence it."""


def _enter(
    current: TransactionalId, state: TransactionState, now_ms: int, **changes: Any
) -> TransactionalId:
    if state not in _NEXT[current.state]:
        raise RuntimeError(
            f"transactional id {current.transactional_id}: {current.state.value} cannot become"
            f" {state.value}"
        )
    return replace(current, state=state, updated_ms=now_ms, **changes)


def initialise(
    current: TransactionalId | None,
    transactional_id: str,
    *,
    timeout_ms: int,
    expected: ProducerIdentity | None,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> TransactionalId | TransactionError:
    """InitProducerId: give the transactional id to a new producer, and fence the previous one.

    An open transaction is aborted first: the next state is then PREPARE_ABORT, and the client must
    retry once the abort is complete.

    Args:
        current: None if the transactional id is new.
        transactional_id: not empty.
        timeout_ms: of the new producer's transactions.
        expected: the client's identity if it only asks for a higher epoch (KIP-360).
        now_ms: the time of the change.
        new_producer_id: called when an id is needed; its exceptions propagate.
    """
    if current is None:
        producer = ProducerIdentity(new_producer_id(), 0)
        return TransactionalId(
            transactional_id, producer, timeout_ms, TransactionState.EMPTY, now_ms
        )
    if expected is not None and expected not in (current.producer, current.last):
        return TransactionError.PRODUCER_FENCED
    if current.state.is_prepared:
        return TransactionError.CONCURRENT_TRANSACTIONS
    if current.state is TransactionState.ONGOING:
        # A retry with the old epoch: its response has arrived, because the transaction is open.
        is_retry = expected is not None and expected != current.producer
        return TransactionError.PRODUCER_FENCED if is_retry else fence(current, now_ms)
    if expected is not None and expected == current.last:
        producer, last = current.producer, current.last
    else:
        producer = _successor(current.producer, new_producer_id)
        last = NO_PRODUCER if expected is None else current.producer
    return _enter(
        current,
        TransactionState.EMPTY,
        now_ms,
        producer=producer,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        started_ms=NO_TIME,
        last=last,
        raised_epoch=False,
    )


def add_partitions(
    current: TransactionalId | None,
    producer: ProducerIdentity,
    partitions: frozenset[TopicPartition],
    now_ms: int,
) -> TransactionalId | TransactionError:
    """AddPartitionsToTxn and AddOffsetsToTxn: the first call begins the transaction."""
    if isinstance(checked := _check(current, producer), TransactionError):
        return checked
    if checked.state.is_prepared:
        return TransactionError.CONCURRENT_TRANSACTIONS
    if checked.state is not TransactionState.ONGOING:
        return _enter(
            checked,
            TransactionState.ONGOING,
            now_ms,
            partitions=partitions,
            started_ms=now_ms,
            raised_epoch=False,
        )
    if partitions <= checked.partitions:
        return checked
    return replace(checked, partitions=checked.partitions | partitions, updated_ms=now_ms)


def verify(
    current: TransactionalId | None, producer: ProducerIdentity, partition: TopicPartition
) -> TransactionError | None:
    """Check whether the producer may write to the partition within its transaction."""
    if isinstance(checked := _check(current, producer), TransactionError):
        return checked
    if checked.state.is_prepared:
        return TransactionError.CONCURRENT_TRANSACTIONS
    if checked.state is not TransactionState.ONGOING or partition not in checked.partitions:
        return TransactionError.TRANSACTION_ABORTABLE
    return None


def end(
    current: TransactionalId | None, producer: ProducerIdentity, *, commit: bool, now_ms: int
) -> TransactionalId | TransactionError:
    """EndTxn below version 5: decide to commit or abort; the decision is final once it is stored.

    Returns `current` if the transaction has already ended in this way: the client retries.
    """
    if isinstance(checked := _check(current, producer), TransactionError):
        return checked
    prepared, completed = _ENDS[commit]
    if checked.state is TransactionState.ONGOING:
        return _enter(checked, prepared, now_ms)
    if checked.state is prepared:
        return TransactionError.CONCURRENT_TRANSACTIONS
    return checked if checked.state is completed else TransactionError.INVALID_TXN_STATE


def end_and_raise_epoch(
    current: TransactionalId | None,
    producer: ProducerIdentity,
    *,
    commit: bool,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> TransactionalId | TransactionError:
    """EndTxn from version 5 on (transaction version 2): the markers have the next epoch of the producer.

    No late request of the transaction is taken for one of the next transaction, therefore. An abort needs no
    open transaction: it only raises the epoch. Returns `current` if the transaction has already ended in
    this way, and raised the epoch that the client still uses: the client retries.

    Args:
        current: None if the transactional id is unknown.
        producer: as the client knows it.
        commit: commit or abort.
        now_ms: the time of the change.
        new_producer_id: called when there is no higher epoch; its exceptions propagate.
    """
    prepared, completed = _ENDS[commit]
    if current is not None and current.raised_epoch and producer == current.last:
        if current.state is prepared:
            return TransactionError.CONCURRENT_TRANSACTIONS
        return current if current.state is completed else TransactionError.INVALID_TXN_STATE
    if isinstance(checked := _check(current, producer), TransactionError):
        return checked
    if checked.state.is_prepared:
        return TransactionError.PRODUCER_FENCED
    is_open = checked.state is TransactionState.ONGOING
    if commit and not is_open:
        return TransactionError.INVALID_TXN_STATE
    is_last = producer.epoch >= LAST_EPOCH
    return _enter(
        checked,
        prepared,
        now_ms,
        producer=ProducerIdentity(producer.producer_id, producer.epoch + 1),
        started_ms=checked.started_ms if is_open else now_ms,
        last=producer,
        raised_epoch=True,
        next_producer_id=new_producer_id() if is_last else NO_PRODUCER.producer_id,
    )


def fence(current: TransactionalId, now_ms: int) -> TransactionalId:
    """Abort an open transaction and fence its producer with a higher epoch."""
    producer = ProducerIdentity(current.producer.producer_id, current.producer.epoch + 1)
    return _enter(
        current, TransactionState.PREPARE_ABORT, now_ms, producer=producer, last=NO_PRODUCER
    )


def complete(current: TransactionalId, now_ms: int) -> TransactionalId:
    """Complete a prepared transaction, whose markers are all written."""
    (completed,) = _NEXT[current.state]
    return _enter(
        current,
        completed,
        now_ms,
        producer=current.producer_afterwards,
        partitions=frozenset(),
        next_producer_id=NO_PRODUCER.producer_id,
    )


def left_open(
    current: TransactionalId | None, producer: ProducerIdentity, partition: TopicPartition
) -> bool | None:
    """Return what becomes of a transaction that is open in a partition after a start.

    Args:
        current: the transactional id that has this producer id, or had it before; None if none is known.
        producer: of the records in the partition.
        partition: where they are.

    Returns: True to commit it, False to abort it, None to leave it open.
    """
    if current is None:
        return False
    if current.raised_epoch and producer == current.last:
        if current.state is TransactionState.COMPLETE_COMMIT:
            return True  # its marker was lost
        if current.state is TransactionState.COMPLETE_ABORT:
            return False
    if partition not in current.partitions:
        return False
    if current.state is TransactionState.ONGOING and producer != current.producer:
        return False  # of an earlier transaction
    return None


def is_timed_out(current: TransactionalId, now_ms: int) -> bool:
    """Whether the transaction has been open for longer than its producer's timeout."""
    return (
        current.state is TransactionState.ONGOING
        and now_ms - current.started_ms > current.timeout_ms
    )


def is_expired(current: TransactionalId, now_ms: int, expiration_ms: int) -> bool:
    """Whether the transactional id has been unused for at least `expiration_ms`."""
    return not current.state.is_active and now_ms - current.updated_ms >= expiration_ms


def _check(
    current: TransactionalId | None, producer: ProducerIdentity
) -> TransactionalId | TransactionError:
    if current is None or current.producer.producer_id != producer.producer_id:
        return TransactionError.INVALID_PRODUCER_ID_MAPPING
    if current.producer.epoch != producer.epoch:
        return TransactionError.PRODUCER_FENCED
    return current


def _successor(producer: ProducerIdentity, new_producer_id: Callable[[], int]) -> ProducerIdentity:
    if producer.epoch >= LAST_EPOCH:
        return ProducerIdentity(new_producer_id(), 0)
    return ProducerIdentity(producer.producer_id, producer.epoch + 1)
