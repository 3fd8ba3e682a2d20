"""File names made of offsets, and the names of partition directories."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.record import Range, Rows
from kmr.sinks.spark.files import Span, partition_directory, plan_parts

OFFSETS = st.integers(0, 2**63 - 1)
TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=40)
SPANS = st.builds(Span, st.text(max_size=20), TOPICS, st.integers(0, 10_000), OFFSETS, OFFSETS)


def rows_of(*ranges: Range) -> Rows:
    return Rows(pa.table({"a": [1]}), ranges)


@given(SPANS, SPANS)
def test_different_offsets_have_different_names(one: Span, other: Span) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(SPANS)
def test_a_name_can_be_parsed_and_is_safe_in_a_path_and_a_uri(span: Span) -> None:
    parsed = Span.parse(str(span))
    assert parsed is not None
    assert (parsed.topic, parsed.partition, parsed.first, parsed.last) == (
        span.topic,
        span.partition,
        span.first,
        span.last,
    )
    assert str(parsed) == str(span)
    assert re.fullmatch(r"[A-Za-z0-9._~-]+", str(span))


@pytest.mark.parametrize("name", ["part-00000", "g~t~0~1", "g~t~0~1-2-3", "", "g~d41d8cd98f00b204"])
def test_foreign_names_are_not_parsed(name: str) -> None:
    assert Span.parse(name) is None


def test_a_flush_is_one_part_per_topic_partition_from_its_first_to_its_last_offset() -> None:
    parts = plan_parts(
        [
            rows_of(Range("t", 0, 0, 4)),
            rows_of(Range("t", 1, 7, 9)),
            rows_of(Range("t", 0, 8, 9)),
        ],
        "g",
        {},
    )
    assert [part.span for part in parts] == [Span("g", "t", 0, 0, 9), Span("g", "t", 1, 7, 9)]
    assert [len(part.insert) for part in parts] == [2, 1]


def test_rows_of_several_partitions_are_named_after_all_of_their_offsets() -> None:
    one, same, other = (
        plan_parts([rows_of(Range("t", 0, 0, 4), Range("t", 1, 0, last))], "g", {})[0]
        for last in (7, 7, 8)
    )
    assert one.span is None
    assert one.name == same.name != other.name
    assert Span.parse(one.name) is None


def test_a_name_too_long_for_a_file_is_shortened() -> None:
    part = plan_parts([rows_of(Range("t" * 249, 0, 0, 4))], "g" * 300, {})[0]
    assert len(part.name) < 200
    assert part.span is not None


@pytest.mark.parametrize(
    ("value", "directory"),
    [
        ("AA", "carrier=AA"),
        ("a/b=c%", "carrier=a%2Fb%3Dc%25"),
        (None, "carrier=__HIVE_DEFAULT_PARTITION__"),
        (True, "carrier=true"),
        (7, "carrier=7"),
        (date(2026, 1, 2), "carrier=2026-01-02"),
    ],
)
def test_partition_directories_are_named_as_spark_does(value: Any, directory: str) -> None:
    assert partition_directory("carrier", value) == directory
