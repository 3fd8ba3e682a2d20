"""How a flush is divided into inserts, and which records refused rows name."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.record import Range, Rows
from kmr.sinks.planning import (
    MAX_BLOCK_ROWS,
    RangeRows,
    Section,
    Span,
    join_ranges,
    plan_ranges,
)


def rows(topic: str, partition: int, first: int, last: int, *, origin: bool = True) -> Rows:
    offsets = np.arange(first, last + 1)
    return Rows(
        pa.table({"n": offsets}),
        (Range(topic, partition, first, last),),
        offsets if origin else None,
    )


def tokens(*added: Rows, group: str = "g") -> list[str]:
    return [insert.token for insert in plan_ranges(added, group, {})]


def test_a_token_spans_all_offsets_that_the_flush_has_of_the_partition() -> None:
    assert tokens(rows("t", 0, 10, 19), rows("u", 0, 0, 1), rows("t", 0, 20, 39)) == [
        "g:t:0:10-39",
        "g:u:0:0-1",
    ]


def test_other_records_between_the_same_offsets_have_another_token() -> None:
    ends = rows("t", 0, 13, 13), rows("t", 0, 99, 99)
    (without,), (within,) = tokens(*ends), tokens(*ends, rows("t", 0, 50, 50))
    assert without.startswith("g:t:0:13-99~")
    assert within.startswith("g:t:0:13-99~")
    assert without != within
    assert tokens(*reversed(ends)) == [without]


def test_offsets_without_a_row_count_for_the_token_as_they_do_for_the_ledger() -> None:
    filtered = Rows(pa.table({"n": [5]}), (Range("t", 0, 0, 3), Range("t", 0, 4, 9)), np.array([5]))
    assert tokens(filtered) == ["g:t:0:0-9"]


def test_a_partition_without_a_row_has_no_insert() -> None:
    empty = Rows(pa.table({"n": []}), (Range("t", 0, 0, 3),), np.empty(0, np.int64))
    assert tokens(empty) == []


def test_the_token_does_not_contain_the_generation() -> None:
    again = Rows(pa.table({"n": [1]}), (Range("t", 0, 1, 1, generation=7),), np.array([1]))
    assert tokens(again) == tokens(rows("t", 0, 1, 1))


def test_a_long_token_is_a_hash_that_distinguishes_ranges() -> None:
    many = tuple(Range("t", partition, 0, 9) for partition in range(100))
    more = (*many[:-1], Range("t", 99, 0, 10))
    (one,) = tokens(Rows(pa.table({"n": [1]}), many))
    (other,) = tokens(Rows(pa.table({"n": [1]}), more))
    assert one != other
    assert one.startswith("g:")
    assert len(one) <= 200


def test_rows_without_offsets_are_named_by_their_content() -> None:
    one, other = (Rows(pa.table({"n": [n]}), ()) for n in (1, 2))
    assert tokens(one) == tokens(one)
    assert tokens(one) != tokens(other)


def test_rows_of_several_partitions_belong_to_none_of_them() -> None:
    ranges = (Range("t", 0, 0, 0), Range("t", 1, 0, 0))
    mixed = Rows(pa.table({"n": [0, 0]}), ranges, np.array([0, 0]))
    (insert,) = plan_ranges([mixed], "g", {})
    (poisoned,) = insert.refusals({1: "bad"})
    assert poisoned.rows.ranges == ranges
    assert poisoned.rows.offsets is None


def test_a_block_stays_below_a_million_rows() -> None:
    count = 2 * MAX_BLOCK_ROWS + 5
    offsets = np.arange(count)
    insert = RangeRows("g/a:t:0:0-9", (Rows(pa.table({"n": offsets}), (), offsets),))
    sections = insert.sections()
    assert [(section.start, section.stop) for section in sections] == [
        (0, MAX_BLOCK_ROWS),
        (MAX_BLOCK_ROWS, 2 * MAX_BLOCK_ROWS),
        (2 * MAX_BLOCK_ROWS, count),
    ]
    assert sections[2].token == f"g/a:t:0:0-9/{2 * MAX_BLOCK_ROWS}-{count}"


@given(st.integers(1, 1000))
def test_bisecting_a_section_ends_in_single_rows_with_distinct_tokens(count: int) -> None:
    todo = [Section("g/a:t:0:0-9", 0, count, whole="abc")]
    seen = {todo[0].token}
    single = []
    while todo:
        section = todo.pop()
        if section.stop - section.start == 1:
            single.append(section.start)
            continue
        for half in section.halves():
            assert half.token not in seen
            seen.add(half.token)
            todo.append(half)
    assert sorted(single) == list(range(count))


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.sets(st.integers(0, 99), max_size=30),
    st.integers(1, 3),
)
def test_refused_rows_are_named_by_the_offsets_of_the_rows_they_were_added_with(
    sizes: list[int], refused: set[int], reasons: int
) -> None:
    added, first = [], 0
    for size in sizes:
        added.append(rows("t", 0, first, first + size - 1))
        first += size
    refused = {row for row in refused if row < first}
    (insert,) = plan_ranges(added, "g", {})
    poisoned = list(insert.refusals({row: f"reason {row % reasons}" for row in refused}))
    found: list[int] = []
    for poison in poisoned:
        assert poison.rows.offsets is not None
        offsets = poison.rows.offsets.tolist()
        assert poison.rows.table.column("n").to_pylist() == offsets
        of_rows = (
            [poison.reason] * len(offsets) if isinstance(poison.reason, str) else poison.reason
        )
        assert [f"reason {offset % reasons}" for offset in offsets] == list(of_rows)
        assert [o for r in poison.rows.ranges for o in range(r.first, r.last + 1)] == offsets
        found += offsets
    assert sorted(found) == sorted(refused)


def test_refused_rows_without_offsets_have_all_offsets_of_their_part_and_a_reason_each() -> None:
    made = rows("t", 0, 0, 9, origin=False)
    (insert,) = plan_ranges([made], "g", {})
    (poisoned,) = insert.refusals({2: "bad", 5: "worse"})
    assert poisoned.rows.ranges == made.ranges
    assert poisoned.reason == ("bad", "worse")
    assert poisoned.rows.table.num_rows == 2


OFFSETS = st.integers(0, 2**63 - 1)
TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=40)
SPANS = st.builds(
    Span,
    st.text(max_size=20),
    TOPICS,
    st.integers(0, 10_000),
    OFFSETS,
    OFFSETS,
    st.integers(0, 2**31),
)


def rows_of(*ranges: Range) -> Rows:
    return Rows(pa.table({"a": [1]}), ranges)


@given(SPANS, SPANS)
def test_different_offsets_have_different_names(one: Span, other: Span) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(SPANS)
def test_a_name_can_be_parsed_and_is_safe_in_a_path_and_a_uri(span: Span) -> None:
    parsed = Span.parse(str(span))
    assert parsed is not None
    assert replace(parsed, group=span.group) == span
    assert str(parsed) == str(span)
    assert re.fullmatch(r"[A-Za-z0-9._~-]+", str(span))


@pytest.mark.parametrize("name", ["part-00000", "g~t~0~1", "g~t~0~1-2-3", "", "g~d41d8cd98f00b204"])
def test_foreign_names_are_not_parsed(name: str) -> None:
    assert Span.parse(name) is None


def test_a_flush_is_one_part_per_topic_partition_from_its_first_to_its_last_offset() -> None:
    parts = plan_ranges(
        [
            rows_of(Range("t", 0, 0, 4)),
            rows_of(Range("t", 1, 7, 9)),
            rows_of(Range("t", 0, 8, 9)),
        ],
        "g",
        {},
    )
    assert [part.span for part in parts] == [Span("g", "t", 0, 0, 9), Span("g", "t", 1, 7, 9)]
    assert [len(part) for part in parts] == [2, 1]


def test_rows_of_several_partitions_are_named_after_all_of_their_offsets() -> None:
    one, same, other = (
        plan_ranges([rows_of(Range("t", 0, 0, 4), Range("t", 1, 0, last))], "g", {})[0]
        for last in (7, 7, 8)
    )
    assert one.span is None
    assert one.file_name == same.file_name != other.file_name
    assert Span.parse(one.file_name) is None


def test_a_name_too_long_for_a_file_is_shortened() -> None:
    part = plan_ranges([rows_of(Range("t" * 249, 0, 0, 4))], "g" * 300, {})[0]
    assert len(part.file_name) < 200
    assert part.span is not None


def test_few_rows_of_many_partitions_are_joined_and_large_ranges_are_not() -> None:
    many = [rows("t", partition, 0, 3) for partition in range(100)]
    planned = plan_ranges([*many, rows("t", 100, 0, 999)], "g", {})
    large, *joined = join_ranges(planned)
    assert large.token == "g:t:100:0-999"
    assert [len(each) for each in joined] == [64 * 4, 36 * 4]
    assert sum(len(each.joined) for each in joined) == 100
    again = join_ranges(list(reversed(planned)))
    assert {each.token for each in again} == {each.token for each in (large, *joined)}


def test_ranges_of_few_partitions_are_not_joined() -> None:
    planned = plan_ranges([rows("t", partition, 0, 3) for partition in range(8)], "g", {})
    assert join_ranges(planned) == planned


def test_ranges_that_are_written_are_left_out_and_change_no_other_group() -> None:
    planned = plan_ranges([rows("t", partition, 0, 3) for partition in range(128)], "g", {})
    first, second = join_ranges(planned)
    assert join_ranges(planned, first.joined) == [second]
    (rest,) = join_ranges(planned, (*first.joined, *second.joined[1:]))
    assert rest.token == second.joined[0]
