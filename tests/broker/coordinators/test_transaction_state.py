"""The states of a transactional id, one change at a time; nothing here touches a disk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.coordinators import transaction_state
from kmr.broker.coordinators.transaction_state import (
    NO_PRODUCER,
    TransactionalId,
    TransactionError,
    TransactionState,
)
from kmr.broker.log.producers import ProducerIdentity

ME = ProducerIdentity(7, 3)
T0 = ("t", 0)
T1 = ("t", 1)
ENDS = {
    True: (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
    False: (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
}


def transaction(state: TransactionState, producer: ProducerIdentity = ME) -> TransactionalId:
    partitions = frozenset({T0}) if state is TransactionState.ONGOING else frozenset()
    return TransactionalId("x", producer, 1_000, state, 50, partitions, started_ms=50)


def initialise(
    current: TransactionalId | None, expected: ProducerIdentity | None = None
) -> TransactionalId | TransactionError:
    return transaction_state.initialise(
        current,
        "x",
        timeout_ms=2_000,
        expected=expected,
        now_ms=60,
        new_producer_id=lambda: 100,
    )


def initialised(
    current: TransactionalId | None, expected: ProducerIdentity | None = None
) -> TransactionalId:
    answer = initialise(current, expected)
    assert isinstance(answer, TransactionalId)
    return answer


IDLE = [
    TransactionState.EMPTY,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
]
PREPARED = [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT]


@pytest.mark.parametrize("expected", [None, ProducerIdentity(5, 5)])
def test_a_new_id_begins_with_a_new_producer(expected: ProducerIdentity | None) -> None:
    # Who expects to be known was forgotten: its id has expired.
    fresh = initialised(None, expected)
    assert (fresh.producer, fresh.state) == ((100, 0), TransactionState.EMPTY)
    assert (fresh.timeout_ms, fresh.updated_ms, fresh.last) == (2_000, 60, NO_PRODUCER)


@pytest.mark.parametrize("state", IDLE)
def test_each_new_producer_gets_a_higher_epoch(state: TransactionState) -> None:
    next_one = initialised(transaction(state))
    assert next_one.producer == (7, 4)
    assert (next_one.state, next_one.timeout_ms) == (TransactionState.EMPTY, 2_000)
    assert next_one.last == NO_PRODUCER


@pytest.mark.parametrize("state", IDLE)
def test_an_epoch_request_may_be_repeated_until_another_producer_comes(
    state: TransactionState,
) -> None:
    bumped = initialised(transaction(state), ME)
    assert (bumped.producer, bumped.last) == ((7, 4), ME)
    assert initialised(bumped, ME).producer == (7, 4)
    taken = initialised(bumped)
    assert initialise(taken, ME) is TransactionError.PRODUCER_FENCED
    assert initialise(taken, bumped.producer) is TransactionError.PRODUCER_FENCED


@pytest.mark.parametrize("state", PREPARED)
def test_a_prepared_transaction_refuses_new_producers(state: TransactionState) -> None:
    waiting = TransactionError.CONCURRENT_TRANSACTIONS
    assert initialise(transaction(state)) is waiting
    assert initialise(transaction(state), ME) is waiting
    assert transaction_state.add_partitions(transaction(state), ME, frozenset({T1}), 60) is waiting
    assert transaction_state.verify(transaction(state), ME, T0) is waiting


def test_an_open_transaction_is_fenced_before_a_new_producer_gets_the_id() -> None:
    for expected in (None, ME):
        fenced = initialised(transaction(TransactionState.ONGOING), expected)
        assert fenced.state is TransactionState.PREPARE_ABORT
        assert (fenced.producer, fenced.partitions) == ((7, 4), frozenset({T0}))
        aborted = transaction_state.complete(fenced, 70)
        assert initialised(aborted).producer == (7, 5)
        assert initialise(aborted, ME) is TransactionError.PRODUCER_FENCED


def test_a_repeated_request_does_not_abort_a_newer_transaction() -> None:
    bumped = initialised(transaction(TransactionState.EMPTY), ME)
    ongoing = transaction_state.add_partitions(bumped, bumped.producer, frozenset({T0}), 70)
    assert isinstance(ongoing, TransactionalId)
    assert initialise(ongoing, ME) is TransactionError.PRODUCER_FENCED


@pytest.mark.parametrize("expected", [False, True])
def test_an_exhausted_epoch_is_followed_by_a_new_id(expected: bool) -> None:
    last = ProducerIdentity(7, transaction_state.LAST_EPOCH)
    current = transaction(TransactionState.COMPLETE_COMMIT, last)
    rotated = initialised(current, last if expected else None)
    assert rotated.producer == (100, 0)
    assert rotated.last == (last if expected else NO_PRODUCER)
    if expected:
        assert initialised(rotated, last).producer == (100, 0), "asked again"
    ongoing = transaction(TransactionState.ONGOING, last)
    fenced = transaction_state.fence(ongoing, 60)
    assert fenced.producer.epoch == 2**15 - 1, "which a marker can still say"
    assert initialised(transaction_state.complete(fenced, 70)).producer == (100, 0)


@pytest.mark.parametrize("state", IDLE)
def test_the_first_partition_begins_the_transaction(state: TransactionState) -> None:
    begun = transaction_state.add_partitions(transaction(state), ME, frozenset({T0}), 60)
    assert isinstance(begun, TransactionalId)
    assert (begun.state, begun.partitions) == (TransactionState.ONGOING, frozenset({T0}))
    assert (begun.started_ms, begun.updated_ms) == (60, 60)
    more = transaction_state.add_partitions(begun, ME, frozenset({T1}), 70)
    assert isinstance(more, TransactionalId)
    assert (more.partitions, more.started_ms, more.updated_ms) == (frozenset({T0, T1}), 60, 70)
    assert transaction_state.add_partitions(more, ME, frozenset({T0}), 80) is more, (
        "nothing to store"
    )


@pytest.mark.parametrize("state", IDLE)
def test_only_partitions_of_the_open_transaction_are_verified(state: TransactionState) -> None:
    ongoing = transaction(TransactionState.ONGOING)
    assert transaction_state.verify(ongoing, ME, T0) is None
    refused = TransactionError.TRANSACTION_ABORTABLE
    assert transaction_state.verify(ongoing, ME, T1) is refused
    assert transaction_state.verify(transaction(state), ME, T0) is refused


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_is_final_and_may_be_repeated(commit: bool) -> None:
    prepared, completed = ENDS[commit]
    decided = transaction_state.end(
        transaction(TransactionState.ONGOING), ME, commit=commit, now_ms=60
    )
    assert isinstance(decided, TransactionalId)
    assert (decided.state, decided.partitions) == (prepared, frozenset({T0}))
    again = transaction_state.end(decided, ME, commit=commit, now_ms=60)
    assert again is TransactionError.CONCURRENT_TRANSACTIONS
    invalid = TransactionError.INVALID_TXN_STATE
    assert transaction_state.end(decided, ME, commit=not commit, now_ms=60) is invalid
    done = transaction_state.complete(decided, 70)
    assert (done.state, done.partitions) == (completed, frozenset())
    assert transaction_state.end(done, ME, commit=commit, now_ms=80) is done
    assert transaction_state.end(done, ME, commit=not commit, now_ms=80) is invalid
    empty = transaction(TransactionState.EMPTY)
    assert transaction_state.end(empty, ME, commit=commit, now_ms=60) is invalid


def end_and_raise(
    current: TransactionalId | None, producer: ProducerIdentity, *, commit: bool
) -> TransactionalId | TransactionError:
    return transaction_state.end_and_raise_epoch(
        current, producer, commit=commit, now_ms=60, new_producer_id=lambda: 100
    )


def completed(answer: TransactionalId | TransactionError) -> TransactionalId:
    assert isinstance(answer, TransactionalId)
    assert answer.state.is_prepared
    return transaction_state.complete(answer, 70)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_that_raises_the_epoch_may_be_repeated_with_the_epoch_before(commit: bool) -> None:
    after = ProducerIdentity(7, 4)
    prepared, complete = ENDS[commit]
    invalid, fenced = TransactionError.INVALID_TXN_STATE, TransactionError.PRODUCER_FENCED
    decided = end_and_raise(transaction(TransactionState.ONGOING), ME, commit=commit)
    assert isinstance(decided, TransactionalId)
    assert (decided.state, decided.producer, decided.started_ms) == (prepared, after, 50)
    waiting = TransactionError.CONCURRENT_TRANSACTIONS
    assert end_and_raise(decided, ME, commit=commit) is waiting
    assert end_and_raise(decided, ME, commit=not commit) is invalid
    assert end_and_raise(decided, after, commit=commit) is fenced, "that epoch is not answered yet"
    assert transaction_state.add_partitions(decided, after, frozenset({T0}), 60) is waiting
    done = transaction_state.complete(decided, 70)
    assert (done.state, done.producer) == (complete, after)
    assert end_and_raise(done, ME, commit=commit) is done
    assert end_and_raise(done, ME, commit=not commit) is invalid
    assert end_and_raise(done, after, commit=True) is invalid, "nothing is open"
    assert completed(end_and_raise(done, after, commit=False)).producer == (7, 5)
    assert transaction_state.add_partitions(done, ME, frozenset({T0}), 80) is fenced


def test_without_a_transaction_an_abort_raises_the_epoch() -> None:
    empty = transaction(TransactionState.EMPTY)
    assert end_and_raise(empty, ME, commit=True) is TransactionError.INVALID_TXN_STATE
    aborted = completed(end_and_raise(empty, ME, commit=False))
    assert (aborted.state, aborted.producer) == (TransactionState.COMPLETE_ABORT, (7, 4))
    bumped = initialised(empty, ME)
    again = end_and_raise(bumped, ME, commit=False)
    assert again is TransactionError.PRODUCER_FENCED, "another request raised that epoch"


def test_a_producer_whose_transaction_timed_out_is_fenced() -> None:
    for current in (
        fenced := transaction_state.fence(transaction(TransactionState.ONGOING), 60),
        transaction_state.complete(fenced, 70),
    ):
        for commit in (True, False):
            answer = end_and_raise(current, ME, commit=commit)
            assert answer is TransactionError.PRODUCER_FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_with_the_last_epoch_gives_the_producer_a_new_id(commit: bool) -> None:
    last = ProducerIdentity(7, transaction_state.LAST_EPOCH)
    ongoing = transaction(TransactionState.ONGOING, last)
    decided = end_and_raise(ongoing, last, commit=commit)
    assert isinstance(decided, TransactionalId)
    assert decided.producer == (7, 2**15 - 1), "which the markers say"
    assert decided.producer_afterwards == (100, 0)
    done = transaction_state.complete(decided, 70)
    assert (done.producer, done.producer_afterwards) == ((100, 0), (100, 0))
    assert end_and_raise(done, last, commit=commit) is done
    begun = transaction_state.add_partitions(done, done.producer, frozenset({T0}), 80)
    assert end_and_raise(done, ME, commit=commit) is TransactionError.INVALID_PRODUCER_ID_MAPPING
    assert isinstance(begun, TransactionalId)
    mapping = TransactionError.INVALID_PRODUCER_ID_MAPPING
    assert end_and_raise(begun, last, commit=commit) is mapping, "it ended before this one"


STATES = st.sampled_from(TransactionState)
STRANGERS = st.builds(ProducerIdentity, st.integers(5, 9), st.integers(0, 6)).filter(
    lambda each: each != ME
)


@given(st.one_of(st.none(), STATES.map(transaction)), STRANGERS)
def test_another_producer_is_refused(
    current: TransactionalId | None, stranger: ProducerIdentity
) -> None:
    same_id = current is not None and stranger.producer_id == ME.producer_id
    refusal = (
        TransactionError.PRODUCER_FENCED
        if same_id
        else TransactionError.INVALID_PRODUCER_ID_MAPPING
    )
    assert transaction_state.add_partitions(current, stranger, frozenset({T0}), 60) is refusal
    assert transaction_state.verify(current, stranger, T0) is refusal
    for commit in (True, False):
        assert transaction_state.end(current, stranger, commit=commit, now_ms=60) is refusal
        assert end_and_raise(current, stranger, commit=commit) is refusal
    if current is not None:
        assert initialise(current, stranger) is TransactionError.PRODUCER_FENCED


@given(STATES, st.integers(50, 5_000))
def test_only_an_open_transaction_times_out_and_only_an_idle_id_expires(
    state: TransactionState, now_ms: int
) -> None:
    current = transaction(state)
    open_too_long = state is TransactionState.ONGOING and now_ms > 1_050
    assert transaction_state.is_timed_out(current, now_ms) == open_too_long
    idle = state in IDLE
    assert transaction_state.is_expired(current, now_ms, 1_000) == (idle and now_ms >= 1_050)
    assert not transaction_state.is_expired(replace(current, updated_ms=now_ms), now_ms, 1_000)
