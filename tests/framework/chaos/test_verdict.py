"""Every way in which a record can be lost, doubled or made up is found, and nothing else is."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from kmr.chaos.verdict import ExpectedRecords, Verdict, expect, judge
from kmr.record import Batch, TopicPartition, with_schema
from tests.framework.chaos.strategies import ORDERS

if TYPE_CHECKING:
    from kmr.types import Delivery

AT = TopicPartition("t", 0)
# offset 0: filtered, 1: one row, 2: two rows, 3: fails, 4: one row
EXPECTED = {
    AT: ExpectedRecords(
        np.arange(5), np.array([0, 1, 2, 0, 1]), np.array([False, False, False, True, False])
    )
}
GOOD = {("t", 0, 1): 1, ("t", 0, 2): 2, ("t", 0, 4): 1}
FAILED = {("t", 0, 3): 1}
Rows = dict[tuple[str, int, int], int]


def counts(rows: Rows) -> Counter[tuple[TopicPartition, int]]:
    return Counter(
        {(TopicPartition(topic, p), offset): n for (topic, p, offset), n in rows.items()}
    )


def verdict(
    rows: Rows,
    errors: Rows | None = FAILED,
    delivery: Delivery = "exactly-once",
    *,
    acknowledged: tuple[int, ...] = (0, 1, 2, 3, 4),
) -> Verdict:
    diverted = None if errors is None else counts(errors)
    return judge(EXPECTED, counts(rows), diverted, delivery, {AT: acknowledged})


def test_records_that_are_all_where_they_belong_are_counted() -> None:
    found = verdict(GOOD)
    assert found.offences == ()
    assert (found.records, found.rows) == (5, 4)
    assert (found.delivered, found.filtered, found.failed, found.refused) == (3, 1, 1, 0)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({("t", 0, 1): 0}, "lost.* 1 .t.0. offset 1"),
        ({("t", 0, 2): 1}, "lost.* 1 .t.0. offset 2"),
        ({("t", 0, 2): 3}, "too often: 1 .t.0. offset 2"),
        ({("t", 0, 0): 1}, "filters or fails on: 1 .t.0. offset 0"),
        ({("t", 0, 3): 1}, "filters or fails on: 1 .t.0. offset 3"),
        ({("t", 0, 9): 1}, "filters or fails on: 1 .t.0. offset 9"),
        ({("t", 7, 1): 1}, "filters or fails on: 1 .t.7. offset 1"),
    ],
)
def test_a_row_too_few_or_too_many_is_found(changed: Rows, what: str) -> None:
    (offence,) = verdict({at: n for at, n in {**GOOD, **changed}.items() if n}).offences
    assert re.search(what, str(offence))


def test_a_failed_record_that_is_not_in_reduce_err_is_lost() -> None:
    (offence,) = verdict(GOOD, {}).offences
    assert offence.examples == ("t[0] offset 3",)


def test_a_record_that_the_sink_refuses_is_not_lost() -> None:
    found = verdict({("t", 0, 2): 2, ("t", 0, 4): 1}, FAILED | {("t", 0, 1): 1})
    assert found.offences == ()
    assert (found.delivered, found.refused) == (2, 1)


def test_an_acknowledged_record_that_is_not_in_the_topic_is_found() -> None:
    (offence,) = verdict(GOOD, acknowledged=(1, 5, 6)).offences
    assert offence.examples == ("t[0] offset 5", "t[0] offset 6")


def test_what_a_guarantee_allows_is_counted_and_is_no_offence() -> None:
    doubled = GOOD | {("t", 0, 1): 2}
    lost = {("t", 0, 2): 2, ("t", 0, 4): 1}
    assert verdict(doubled, delivery="at-least-once").offences == ()
    assert verdict(doubled, delivery="at-least-once").doubled == 1
    assert verdict(lost, delivery="at-most-once").offences == ()
    assert verdict(lost, delivery="at-most-once").lost == 1
    assert verdict(lost, delivery="at-least-once").offences
    assert verdict(doubled, delivery="at-most-once").offences


def test_where_reduce_err_cannot_be_read_records_that_fail_are_taken_for_delivered_there() -> None:
    found = verdict(GOOD, None)
    assert found.offences == ()
    assert (found.failed, found.refused) == (1, 0)
    assert verdict({("t", 0, 4): 1}, None).lost == 2


def test_what_the_map_makes_of_each_record_is_expected() -> None:
    values = [
        *(b'{"customer": "a", "amount": 20}', b'{"customer": "a", "amount": 2}', b"broken"),
        b'{"customer": "b", "amount": 30}',
    ]
    offsets = [10, 11, 13, 20]
    batch = Batch.of(
        with_schema(
            pa.RecordBatch.from_pydict(
                {
                    "value": pa.array(values, pa.binary()),
                    "topic": ["t"] * 4,
                    "partition": [0] * 4,
                    "offset": offsets,
                    "timestamp": [0] * 4,
                    "timestampType": [0] * 4,
                }
            )
        )
    )
    expected = expect(ORDERS, [batch])[""][AT]
    assert expected.offsets.tolist() == offsets
    assert expected.rows.tolist() == [1, 0, 0, 1]
    assert expected.failed.tolist() == [False, False, True, False]
