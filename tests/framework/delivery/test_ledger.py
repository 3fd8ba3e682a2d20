"""The ledger against a set of settled offsets."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from kmr.delivery.ledger import InflightBatch, Ledger, Ledgers
from kmr.record import Batch, Range, TopicPartition
from kmr.testing import batch_of
from tests.examples import examples

P0 = TopicPartition("t", 0)


def batch(first: int, count: int) -> Batch:
    return batch_of("t", 0, first, [b"x"] * count)


class LedgerMachine(RuleBasedStateMachine):
    """Batches come in order, with gaps; parts of them settle in any order, some twice."""

    parts = Bundle("parts")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(P0, 5, generation=1)
        self.records: set[int] = set()
        self.unsettled: set[int] = set()
        self.delivered = 5
        self.watermark = 5
        self.batches: list[tuple[int, int]] = []
        self.done: list[InflightBatch] = []

    @rule(
        target=parts,
        gap=st.integers(0, 3),
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    )
    def deliver(self, gap: int, sizes: list[int]) -> object:
        first = self.delivered + gap
        self.ledger.take_in(batch(first, sum(sizes)))
        self.batches.append((first, first + sum(sizes) - 1))
        self.delivered = first + sum(sizes)
        self.records.update(range(first, self.delivered))
        self.unsettled.update(range(first, self.delivered))
        parts = []
        for size in sizes:
            parts.append((first, first + size - 1))
            first += size
        return multiple(*parts)

    @rule(part=consumes(parts))
    def settle(self, part: tuple[int, int]) -> None:
        self.unsettled.difference_update(range(part[0], part[1] + 1))
        self.done += self.ledger.settle(*part)

    @rule(part=parts)
    def settle_and_settle_again_later(self, part: tuple[int, int]) -> None:
        self.unsettled.difference_update(range(part[0], part[1] + 1))
        self.done += self.ledger.settle(*part)

    @invariant()
    def the_watermark_is_the_lowest_unsettled_offset(self) -> None:
        assert self.ledger.watermark == min(self.unsettled, default=self.delivered)
        assert self.ledger.has_unsettled == bool(self.unsettled)

    @invariant()
    def a_hole_is_a_settled_record_above_the_watermark(self) -> None:
        settled = self.records - self.unsettled
        assert self.ledger.has_holes == (max(settled, default=0) > min(self.unsettled, default=1e9))

    @invariant()
    def the_watermark_never_moves_back(self) -> None:
        assert self.ledger.watermark is not None
        assert self.ledger.watermark >= self.watermark
        self.watermark = self.ledger.watermark

    @invariant()
    def a_batch_is_reported_once_when_all_below_its_end_is_settled(self) -> None:
        expected = [b for b in self.batches if b[1] < min(self.unsettled, default=self.delivered)]
        assert [(d.first, d.last) for d in self.done] == expected


LedgerMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None
)
test_the_ledger_agrees_with_a_set_of_offsets = LedgerMachine.TestCase


def test_a_partition_without_a_commit_starts_at_its_first_batch() -> None:
    ledger = Ledger(P0, None, 1)
    ledger.take_in(batch(100, 10))
    assert ledger.watermark == 100


def test_settling_offsets_that_were_never_taken_in_is_an_error() -> None:
    ledger = Ledger(P0, 0, 1)
    ledger.take_in(batch(0, 10))
    with pytest.raises(ValueError, match=r"t-0\[5\.\.10\] cannot be settled"):
        ledger.settle(5, 10)


def test_a_batch_below_the_position_is_refused() -> None:
    ledger = Ledger(P0, 0, 1)
    ledger.take_in(batch(0, 10))
    with pytest.raises(ValueError, match="below offset 10"):
        ledger.take_in(batch(9, 2))


def test_acks_of_an_old_generation_are_dropped() -> None:
    ledgers = Ledgers()
    old = ledgers.open(P0, 0)
    old.take_in(batch(0, 10))
    new = ledgers.open(P0, 0)
    new.take_in(batch(0, 10))
    ledgers.settle([Range("t", 0, 0, 9, old.generation)])
    assert new.watermark == 0
    assert not ledgers.is_current([Range("t", 0, 0, 9, old.generation)])
    ledgers.settle([Range("t", 0, 0, 9, new.generation)])
    assert new.watermark == 10


def test_dropping_a_partition_gives_its_bytes_back() -> None:
    changes: list[tuple[int, int]] = []
    ledgers = Ledgers(on_bytes=lambda *change: changes.append(change))
    one, two = batch(0, 10), batch(10, 5)
    ledger = ledgers.open(P0, 0)
    ledgers.take_in(one)
    ledgers.take_in(two)
    ledgers.settle([Range("t", 0, 0, 9, ledger.generation)])
    ledgers.drop(P0)
    assert changes == [
        (one.nbytes, one.nbytes),
        (two.nbytes, two.nbytes),
        (-one.nbytes, -one.nbytes),
        (-two.nbytes, -two.nbytes),
    ]


def test_the_rows_of_a_part_leave_with_its_records_not_with_the_rest_of_their_batch() -> None:
    changes: list[tuple[int, int]] = []
    ledgers = Ledgers(on_bytes=lambda *change: changes.append(change))
    ledger = ledgers.open(P0, 0)
    ledgers.take_in(one := batch(0, 10))
    ledgers.take_in(batch(10, 10))
    half = Range("t", 0, 0, 4, ledger.generation)
    other = half._replace(first=5, last=9)
    share = one.nbytes // 2
    ledgers.mapped(half, 1000)
    ledgers.charge([half._replace(last=1), half._replace(first=3)], 50)
    ledgers.mapped(half._replace(generation=0), 7)
    ledgers.charge([half._replace(first=20, last=29)], 7)
    assert changes[2:] == [(1000, -share), (50, 0)]
    ledgers.settle([half])
    assert changes[4:] == [(-share - 1050, 0)], "the rest of the batch is not mapped yet"
    ledgers.mapped(other, 500)
    ledgers.settle([other])
    assert changes[5:] == [(500, share - one.nbytes), (share - one.nbytes - 500, 0)]
    ledgers.charge([half], 7)
    ledgers.mapped(half, 7)
    assert len(changes) == 7, "what is settled is not charged"


def test_what_was_not_delivered_is_given_back_with_the_gaps_behind_it() -> None:
    ledger = Ledger(P0, 0, 1)
    for first, count in ((0, 4), (6, 4), (12, 4)):
        ledger.take_in(batch(first, count))
    ledger.settle(0, 1)
    ledger.settle(3, 3)
    assert [b.first for b in ledger.give_back(8)] == [12]
    assert (ledger.watermark, ledger.position, ledger.has_holes) == (2, 8, True)
    ledger.settle(2, 2)
    assert [b.first for b in ledger.settle(6, 7)] == [6]
    assert (ledger.watermark, ledger.has_unsettled, ledger.has_holes) == (8, False, False)
    ledger.take_in(batch(8, 2))


def test_nothing_below_the_watermark_is_given_back() -> None:
    ledger = Ledger(P0, 0, 1)
    ledger.take_in(batch(0, 4))
    ledger.take_in(batch(6, 4))
    ledger.settle(0, 7)
    assert [(b.first, b.last) for b in ledger.give_back(4)] == [(6, 7)]
    assert (ledger.watermark, ledger.position, ledger.has_unsettled) == (8, 8, False)


def test_the_watermark_with_more_ranges_is_what_it_would_be_if_they_were_settled() -> None:
    ledgers = Ledgers()
    ledger = ledgers.open(P0, 0)
    ledger.take_in(batch(0, 10))
    ledger.settle(4, 5)
    ours = Range("t", 0, 0, 3, ledger.generation)
    gap = Range("t", 0, 7, 8, ledger.generation)
    assert ledgers.watermarks([ours]) == {P0: 6}
    assert ledgers.watermarks([gap, ours]) == {P0: 6}
    assert ledgers.watermarks([ours._replace(generation=99)]) == {P0: 0}
    assert ledger.watermark == 0
    assert ledgers.complete([ours])
    assert not ledgers.complete([ours, gap])
    ledger.settle(6, 6)
    assert ledgers.complete([ours, gap])
    assert not ledgers.are_settled([ours])
    ledger.settle(0, 3)
    assert ledgers.are_settled([ours])
    assert not ledgers.are_settled([ours, gap])


def test_failed_records_leave_when_they_are_settled_though_windows_hold_their_batch() -> None:
    changes: list[int] = []
    ledgers = Ledgers(on_bytes=lambda nbytes, _: changes.append(nbytes))
    ledger = ledgers.open(P0, 0, holds=True)
    ledgers.take_in(batch(0, 10))
    letter = Range("t", 0, 4, 4, ledger.generation)
    ledgers.charge([letter], 7, failed=True)
    ledgers.release([Range("t", 0, 0, 9, ledger.generation)])
    assert sum(changes) == 7
    ledgers.settle([letter])
    assert sum(changes) == 0
    ledgers.charge([letter._replace(first=5, last=5)], 3, failed=True)
    ledgers.drop(P0)
    assert sum(changes) == 0


def test_a_history_is_read_when_all_but_the_records_of_open_windows_is_settled() -> None:
    ledger = Ledger(P0, 0, generation=1)
    ledger.until = 10
    ledger.take_in(batch(0, 10))
    ledger.settle(0, 3)
    assert not ledger.leaves_windows_open  # the stage has not ended
    ledger.in_windows = [Range("t", 0, 4, 5, 1), Range("t", 0, 8, 8, 1)]
    assert not ledger.leaves_windows_open  # 6, 7 and 9 fail, or are on their way
    ledger.settle(6, 7)
    ledger.settle(9, 9)
    assert ledger.leaves_windows_open
    ledger.until = 11
    assert not ledger.leaves_windows_open
