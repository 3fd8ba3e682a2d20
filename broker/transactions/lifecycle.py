"""How the state of a transactional id changes: pure functions from the current state to the next.

Each returns the next state, which holds once it is stored, or the reason for a refusal. A state that
is the current one means that there is nothing to do. Sources: KIP-98 (the states), KIP-360 (a producer
goes on after an error by a higher epoch), KIP-588 (PRODUCER_FENCED), KIP-890 (partitions are verified).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from broker.producers.identity import ProducerIdentity
from broker.transactions.types import (
    NO_PRODUCER,
    Transaction,
    TransactionError,
    TransactionState,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.transactions.types import TopicPartition

__all__ = [
    "LAST_EPOCH",
    "add_partitions",
    "complete",
    "end",
    "fence",
    "initialise",
    "is_expired",
    "is_timed_out",
    "verify",
]

LAST_EPOCH: Final = 2**15 - 2
"""The highest epoch that a producer is given: one more must be left to fence it."""


def initialise(
    current: Transaction | None,
    transactional_id: str,
    *,
    timeout_ms: int,
    expected: ProducerIdentity | None,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Transaction | TransactionError:
    """InitProducerId: hand the transactional id to whoever asks, and fence off who had it.

    An open transaction comes first: the next state is then PREPARE_ABORT, and the client has to ask
    again once it is aborted.

    Args:
        current: None if the transactional id is new.
        transactional_id: not empty.
        timeout_ms: of the new producer's transactions.
        expected: who the client is, if it only wants to go on with a higher epoch.
        now_ms: the time of the change.
        new_producer_id: called when one is needed; what it raises comes through.
    """
    if current is None:
        producer = ProducerIdentity(new_producer_id(), 0)
        return Transaction(transactional_id, producer, timeout_ms, TransactionState.EMPTY, now_ms)
    if expected is not None and expected not in (current.producer, current.last):
        return TransactionError.PRODUCER_FENCED
    if current.state.is_prepared:
        return TransactionError.CONCURRENT_TRANSACTIONS
    if current.state is TransactionState.ONGOING:
        # Whoever opened it has had the answer to the request that is repeated here.
        repeated = expected is not None and expected != current.producer
        return TransactionError.PRODUCER_FENCED if repeated else fence(current, now_ms)
    asks_again = expected is not None and expected == current.last
    if asks_again:
        producer, last = current.producer, current.last
    else:
        producer = _successor(current.producer, new_producer_id)
        last = NO_PRODUCER if expected is None else current.producer
    return Transaction(
        transactional_id, producer, timeout_ms, TransactionState.EMPTY, now_ms, last=last
    )


def add_partitions(
    current: Transaction | None,
    producer: ProducerIdentity,
    partitions: frozenset[TopicPartition],
    now_ms: int,
) -> Transaction | TransactionError:
    """AddPartitionsToTxn and AddOffsetsToTxn; the first one begins the transaction."""
    if isinstance(checked := _check(current, producer), TransactionError):
        return checked
    if checked.state.is_prepared:
        return TransactionError.CONCURRENT_TRANSACTIONS
    if checked.state is not TransactionState.ONGOING:
        return replace(
            checked,
            state=TransactionState.ONGOING,
            partitions=partitions,
            started_ms=now_ms,
            updated_ms=now_ms,
        )
    if partitions <= checked.partitions:
        return checked
    return replace(checked, partitions=checked.partitions | partitions, updated_ms=now_ms)


def verify(
    current: Transaction | None, producer: ProducerIdentity, partition: TopicPartition
) -> TransactionError | None:
    """Say whether the producer may write to the partition as a part of its transaction."""
    if isinstance(checked := _check(current, producer), TransactionError):
        return checked
    if checked.state.is_prepared:
        return TransactionError.CONCURRENT_TRANSACTIONS
    if checked.state is not TransactionState.ONGOING or partition not in checked.partitions:
        return TransactionError.TRANSACTION_ABORTABLE
    return None


def end(
    current: Transaction | None, producer: ProducerIdentity, *, commit: bool, now_ms: int
) -> Transaction | TransactionError:
    """EndTxn: the decision, from which on there is no way back.

    The current state if the transaction has already ended in this way: the client asks again.
    """
    if isinstance(checked := _check(current, producer), TransactionError):
        return checked
    prepared, completed = (
        (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        if commit
        else (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
    )
    if checked.state is TransactionState.ONGOING:
        return replace(checked, state=prepared, updated_ms=now_ms)
    if checked.state is prepared:
        return TransactionError.CONCURRENT_TRANSACTIONS
    return checked if checked.state is completed else TransactionError.INVALID_TXN_STATE


def fence(current: Transaction, now_ms: int) -> Transaction:
    """Abort an open transaction without its producer, which a higher epoch locks out."""
    producer = ProducerIdentity(current.producer.producer_id, current.producer.epoch + 1)
    return replace(
        current,
        producer=producer,
        state=TransactionState.PREPARE_ABORT,
        updated_ms=now_ms,
        last=NO_PRODUCER,
    )


def complete(current: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    committed = current.state is TransactionState.PREPARE_COMMIT
    return replace(
        current,
        state=TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        updated_ms=now_ms,
    )


def is_timed_out(current: Transaction, now_ms: int) -> bool:
    """Whether the transaction has been open for longer than its producer wanted."""
    return (
        current.state is TransactionState.ONGOING
        and now_ms - current.started_ms > current.timeout_ms
    )


def is_expired(current: Transaction, now_ms: int, expiration_ms: int) -> bool:
    """Whether the transactional id has not been used for so long that it may be forgotten."""
    return not current.state.is_active and now_ms - current.updated_ms >= expiration_ms


def _check(
    current: Transaction | None, producer: ProducerIdentity
) -> Transaction | TransactionError:
    if current is None or current.producer.producer_id != producer.producer_id:
        return TransactionError.INVALID_PRODUCER_ID_MAPPING
    if current.producer.epoch != producer.epoch:
        return TransactionError.PRODUCER_FENCED
    return current


def _successor(producer: ProducerIdentity, new_producer_id: Callable[[], int]) -> ProducerIdentity:
    if producer.epoch >= LAST_EPOCH:
        return ProducerIdentity(new_producer_id(), 0)
    return ProducerIdentity(producer.producer_id, producer.epoch + 1)
