"""Transaction markers and the list of what they aborted."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.producers.aborted import AbortedTransaction, AbortedTransactions
from broker.producers.identity import ProducerIdentity
from broker.producers.markers import Marker, build_marker, read_marker
from broker.records import (
    CorruptBatch,
    NewRecord,
    build_batch,
    check_batch,
    parse_header,
    read_records,
)


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
def test_what_is_no_marker_is_corrupt(key: bytes | None, value: bytes | None) -> None:
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
def test_what_is_deleted_is_forgotten(aborted: list[AbortedTransaction], start: int) -> None:
    transactions = AbortedTransactions(aborted)
    transactions.forget_below(start)
    assert transactions.dump() == [each for each in aborted if each.last_offset >= start]
