"""Sequences, epochs and transactions of producers; markers and aborted transactions."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.log.log_config import DEFAULT_PRODUCER_EXPIRATION_MS
from kmr.broker.log.producers import (
    KEPT_BATCHES,
    MOST_PRODUCERS,
    AbortedTransaction,
    AbortedTransactions,
    InvalidProducerEpoch,
    InvalidTransactionState,
    Marker,
    OutOfOrderSequence,
    ProducerIdentity,
    ProducerStates,
    build_marker,
    read_marker,
)
from kmr.broker.log.records import (
    BatchHeader,
    CorruptBatch,
    NewRecord,
    build_batch,
    check_batch,
    parse_header,
    read_records,
)

MAX_SEQUENCE = 2**31 - 1


def sent_by(
    producer_id: int = 7, *, epoch: int = 0, sequence: int = 0, count: int = 1
) -> BatchHeader:
    return parse_header(
        build_batch(
            [NewRecord(b"k", b"v", (), 1)] * count,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def append(states: ProducerStates, batch: BatchHeader, first_offset: int, now_ms: int = 0) -> None:
    assert states.check(batch) is None
    states.update(batch, first_offset=first_offset, timestamp=batch.max_timestamp, now_ms=now_ms)


def test_a_batch_that_comes_again_is_answered_with_its_first_offset() -> None:
    states = ProducerStates()
    for number in range(KEPT_BATCHES):
        append(states, sent_by(sequence=number * 10, count=10), first_offset=1000 + number * 10)
    for number in range(KEPT_BATCHES):
        duplicate = states.check(sent_by(sequence=number * 10, count=10))
        assert duplicate is not None
        assert (duplicate.first_offset, duplicate.last_offset) == (
            1000 + number * 10,
            1009 + number * 10,
        )


def test_a_duplicate_older_than_the_kept_batches_is_out_of_order() -> None:
    states = ProducerStates()
    for sequence in range(KEPT_BATCHES + 1):
        append(states, sent_by(sequence=sequence), first_offset=sequence)
    with pytest.raises(OutOfOrderSequence, match="sequence 0 instead of 6"):
        states.check(sent_by(sequence=0))


def test_the_idlest_producers_make_room_but_not_those_of_open_transactions() -> None:
    states = ProducerStates()
    header = sent_by()
    transactional = msgspec.structs.replace(header, attributes=header.attributes | 0x10)
    append(states, transactional, 0)
    for number in range(MOST_PRODUCERS):
        append(states, msgspec.structs.replace(header, producer_id=100 + number), number, number)
    assert len(states.ids) == MOST_PRODUCERS - MOST_PRODUCERS // 4 + 1
    assert states.knows(7)
    assert not states.knows(100)
    assert states.knows(100 + MOST_PRODUCERS - 1)
    later = msgspec.structs.replace(header, producer_id=100, base_sequence=50)
    assert states.check(later) is None


def test_a_gap_in_the_sequence_is_out_of_order() -> None:
    states = ProducerStates()
    append(states, sent_by(count=3), first_offset=0)
    with pytest.raises(OutOfOrderSequence, match="producer 7 epoch 0: sequence 4 instead of 3"):
        states.check(sent_by(sequence=4))


def test_the_same_first_sequence_with_another_length_is_no_duplicate() -> None:
    states = ProducerStates()
    append(states, sent_by(count=3), first_offset=0)
    with pytest.raises(OutOfOrderSequence):
        states.check(sent_by(count=2))


@given(st.integers(min_value=1, max_value=20), st.integers(min_value=1, max_value=20))
def test_sequences_wrap_around(count: int, room: int) -> None:
    states = ProducerStates()
    first = MAX_SEQUENCE - room + 1
    append(states, sent_by(sequence=first, count=count), first_offset=0)
    following = (first + count) % 2**31
    append(states, sent_by(sequence=following), first_offset=count)
    duplicate = states.check(sent_by(sequence=first, count=count))
    assert duplicate is not None
    assert duplicate.first_offset == 0


def test_an_unknown_producer_may_begin_with_any_sequence() -> None:
    append(ProducerStates(), sent_by(sequence=42), first_offset=0)


def test_a_new_epoch_begins_with_sequence_zero_and_fences_the_old_one() -> None:
    states = ProducerStates()
    append(states, sent_by(count=3), first_offset=0)
    with pytest.raises(OutOfOrderSequence, match="a new epoch begins with 0"):
        states.check(sent_by(epoch=1, sequence=3))
    append(states, sent_by(epoch=1), first_offset=3)
    with pytest.raises(InvalidProducerEpoch, match="epoch 1 has taken over"):
        states.check(sent_by(epoch=0, sequence=3))


def test_producers_do_not_know_each_other() -> None:
    states = ProducerStates()
    append(states, sent_by(1, count=3), first_offset=0)
    append(states, sent_by(2, count=5), first_offset=3)
    append(states, sent_by(1, sequence=3), first_offset=8)
    assert len(states.ids) == 2


def test_batches_without_a_producer_id_are_not_tracked() -> None:
    states = ProducerStates()
    for offset in range(3):
        append(states, sent_by(-1, epoch=-1, sequence=-1), first_offset=offset)
    assert len(states.ids) == 0


def test_an_idle_producer_is_forgotten() -> None:
    states = ProducerStates()
    append(states, sent_by(1), first_offset=0, now_ms=0)
    append(states, sent_by(2), first_offset=1, now_ms=1000)
    assert states.expire(DEFAULT_PRODUCER_EXPIRATION_MS) == 1
    append(states, sent_by(1, sequence=99), first_offset=2)  # as if it had never been seen
    with pytest.raises(OutOfOrderSequence):
        states.check(sent_by(2, sequence=99))


def test_a_dump_is_loaded() -> None:
    states, loaded = ProducerStates(), ProducerStates()
    for sequence in range(7):
        append(states, sent_by(sequence=sequence), first_offset=sequence)
    loaded.load(states.dump())
    duplicate = loaded.check(sent_by(sequence=3))
    assert duplicate is not None
    assert duplicate.first_offset == 3
    append(loaded, sent_by(sequence=7), first_offset=7)


@given(st.binary(max_size=50))
def test_anything_else_is_refused_and_changes_nothing(data: bytes) -> None:
    states = ProducerStates()
    append(states, sent_by(), first_offset=0)
    before = states.dump()
    try:
        states.load(data)
    except ValueError:
        assert states.dump() == before


def written(
    states: ProducerStates, offset: int, producer: int, *, epoch: int = 0, sequence: int = 0
) -> None:
    """A transactional batch of one record."""
    batch = transactional(producer, epoch=epoch, sequence=sequence)
    append(states, batch, first_offset=offset)


def transactional(producer: int, *, epoch: int = 0, sequence: int = 0) -> BatchHeader:
    return parse_header(
        build_batch(
            [NewRecord(b"k", b"v", (), 1)],
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )


def marked(
    states: ProducerStates, offset: int, producer: int, *, committed: bool, epoch: int = 0
) -> None:
    marker = Marker(committed, coordinator_epoch=0)
    who = ProducerIdentity(producer, epoch)
    batch = parse_header(build_marker(marker, who, timestamp_ms=0))
    assert states.check(batch) is None
    states.end_transaction(batch, marker, offset=offset, now_ms=0)


def test_the_oldest_open_transaction_holds_the_last_stable_offset() -> None:
    states = ProducerStates()
    assert states.first_open_offset is None
    written(states, 3, 1)
    written(states, 4, 2)
    written(states, 5, 1, sequence=1)
    assert states.first_open_offset == 3
    assert states.open_transactions == [(1, 0), (2, 0)]
    marked(states, 6, 1, committed=True)
    assert states.first_open_offset == 4
    assert not states.has_open_transaction(1)
    marked(states, 7, 2, committed=False)
    assert states.first_open_offset is None
    assert list(states.aborted) == [(2, 4, 7, 8)]


def test_a_batch_outside_the_open_transaction_of_its_producer_is_refused() -> None:
    states = ProducerStates()
    written(states, 0, 7)
    with pytest.raises(InvalidTransactionState, match="producer 7 epoch 0"):
        states.check(sent_by(sequence=1))
    marked(states, 1, 7, committed=True)
    assert states.check(sent_by(sequence=1)) is None


def test_a_marker_with_a_higher_epoch_fences_the_producer() -> None:
    states = ProducerStates()
    written(states, 0, 7)
    marked(states, 1, 7, committed=False, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        states.check(transactional(7, sequence=1))
    with pytest.raises(OutOfOrderSequence, match="sequence 5 instead of 0"):
        states.check(transactional(7, epoch=1, sequence=5))
    assert states.check(transactional(7, epoch=1)) is None


def test_a_marker_keeps_the_sequence_of_its_producer() -> None:
    states = ProducerStates()
    written(states, 0, 7)
    marked(states, 1, 7, committed=True)
    with pytest.raises(OutOfOrderSequence, match="sequence 5 instead of 1"):
        states.check(transactional(7, sequence=5))
    duplicate = states.check(transactional(7))
    assert duplicate is not None
    assert duplicate.first_offset == 0


def test_an_old_marker_is_refused() -> None:
    states = ProducerStates()
    written(states, 0, 7, epoch=3)
    marker = Marker(committed=False, coordinator_epoch=0)
    with pytest.raises(InvalidProducerEpoch):
        states.check(parse_header(build_marker(marker, ProducerIdentity(7, 2), timestamp_ms=0)))


def test_a_marker_without_records_aborts_nothing() -> None:
    states = ProducerStates()
    marked(states, 0, 7, committed=False)
    assert len(states.aborted) == 0
    assert list(states.ids) == [7]


def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    states = ProducerStates()
    written(states, 0, 7)
    assert states.expire(10**15) == 0
    marked(states, 1, 7, committed=True)
    assert states.expire(10**15) == 1


def test_a_dump_keeps_open_and_aborted_transactions() -> None:
    states = ProducerStates()
    for offset, producer in enumerate([3, 1, 2]):
        written(states, offset, producer)
    marked(states, 3, 1, committed=False)
    loaded = ProducerStates()
    loaded.load(states.dump())
    assert loaded.first_open_offset == 0
    assert loaded.open_transactions == [(3, 0), (2, 0)]
    assert list(loaded.aborted) == [(1, 1, 3, 0)]
    marked(loaded, 4, 3, committed=True)
    assert loaded.first_open_offset == 2
    assert list(loaded.ids) == [3, 1, 2]


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_a_control_batch_in_kafkas_format(committed: bool) -> None:
    marker = Marker(committed, coordinator_epoch=5)
    batch = build_marker(marker, ProducerIdentity(7, 3), timestamp_ms=1_000)
    header = parse_header(batch)
    check_batch(memoryview(batch), header)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert (header.producer_id, header.producer_epoch, header.max_timestamp) == (7, 3, 1_000)
    (record,) = read_records(batch, header)
    assert record.key == struct.pack(">hh", 0, committed)
    assert record.value == struct.pack(">hi", 0, 5)
    assert read_marker(batch, header) == marker


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"", b"\0" * 6), (None, None), (b"\0\0\0\7", b"\0" * 6), (b"\0\0\0\1", b"\0")],
)
def test_anything_but_a_marker_is_corrupt(key: bytes | None, value: bytes | None) -> None:
    batch = build_batch([NewRecord(key, value)], producer_id=1, producer_epoch=0, control=True)
    with pytest.raises(CorruptBatch, match="marker"):
        read_marker(batch, parse_header(batch))


@st.composite
def histories(draw: st.DrawFn) -> list[AbortedTransaction]:
    """Any interleaving of transactions of a few producers, some of which abort."""
    open_at: dict[int, int] = {}
    aborted = []
    for offset in range(draw(st.integers(0, 40))):
        producer = draw(st.integers(0, 4))
        if producer in open_at and draw(st.booleans()):
            first = open_at.pop(producer)
            if draw(st.booleans()):
                stable = min(open_at.values(), default=offset + 1)
                aborted.append(AbortedTransaction(producer, first, offset, stable))
        else:
            open_at.setdefault(producer, offset)
    return aborted


@given(histories(), st.integers(0, 45), st.integers(0, 45))
def test_a_reader_learns_of_every_aborted_transaction_that_it_may_meet(
    aborted: list[AbortedTransaction], offset: int, end: int
) -> None:
    found = AbortedTransactions(aborted).between(offset, end)
    needed = [each for each in aborted if each.last_offset >= offset and each.first_offset < end]
    assert found == needed


@given(histories(), st.integers(0, 45))
def test_aborted_transactions_below_the_log_start_are_forgotten(
    aborted: list[AbortedTransaction], start: int
) -> None:
    transactions = AbortedTransactions(aborted)
    transactions.forget_below(start)
    assert list(transactions) == [each for each in aborted if each.last_offset >= start]


# each a producer, and: None, whether its transaction is committed, or whether its batch is in one
changes = st.lists(
    st.tuples(
        st.integers(1, 4), st.integers(0, 1), st.sampled_from(["batch", "part", "commit", "abort"])
    )
)


def change(states: ProducerStates, changed: list[tuple[int, int, str]], first_offset: int) -> None:
    for offset, (producer_id, epoch, what) in enumerate(changed, first_offset):
        header = BatchHeader(producer_id=producer_id, producer_epoch=epoch, base_sequence=offset)
        if what in ("commit", "abort"):
            marker = Marker(what == "commit", coordinator_epoch=offset)
            states.end_transaction(header, marker, offset=offset, now_ms=offset)
        else:
            header = msgspec.structs.replace(header, attributes=0x10 if what == "part" else 0)
            states.update(header, first_offset=offset, timestamp=offset, now_ms=offset)


@given(kept=changes, undone=changes)
def test_changes_that_are_undone_leave_nothing(
    kept: list[tuple[int, int, str]], undone: list[tuple[int, int, str]]
) -> None:
    states, expected = ProducerStates(), ProducerStates()
    for each in (states, expected):
        change(each, kept, 0)
    states.keep()
    change(states, undone, len(kept))
    states.undo(len(kept))
    assert states.aborted == expected.aborted
    assert states.open_transactions == expected.open_transactions
    assert states.first_open_offset == expected.first_open_offset
    # also the batches in which duplicates are recognised
    assert msgspec.msgpack.decode(states.dump()) == msgspec.msgpack.decode(expected.dump())
