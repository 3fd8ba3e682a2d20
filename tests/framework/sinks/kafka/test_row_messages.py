"""Rows as Kafka messages, and their partitions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from aiokafka.partitioner import DefaultPartitioner
from anyio.to_thread import run_sync
from hypothesis import given
from hypothesis import strategies as st

from kmr import Avro
from kmr.errors import StrategyError
from kmr.mapping.results import from_rows
from kmr.record import Header
from kmr.sinks.kafka.row_messages import RowMessages, messages_of, partitions_by_key


@given(st.lists(st.none() | st.binary(max_size=9), max_size=20), st.integers(1, 12))
def test_partitions_are_those_of_the_java_client(keys: list[bytes | None], count: int) -> None:
    partitions = list(range(count))
    expected = [
        7 if key is None else DefaultPartitioner()(key, partitions, partitions) for key in keys
    ]
    assert partitions_by_key(keys, partitions, 7).tolist() == expected


def test_text_and_numbers_are_sent_as_utf8_and_a_null_header_is_left_out() -> None:
    table = pa.table({"k": ["é", None], "v": [1, 2], "h": [None, "x"]})
    messages = messages_of(table, "k", "v", {"h": "h"}, None)
    assert messages.keys == ["é".encode(), None]
    assert messages.values == [b"1", b"2"]
    assert messages.headers == [[], [("h", b"x")]]
    assert messages.timestamps == [None, None]
    assert [messages.nbytes(at) for at in range(len(messages))] == [3, 3]


def test_lists_are_repeated_headers_and_a_column_of_headers_is_sent_as_records_have_them() -> None:
    had = (Header("a", b"\xff"), Header("a", None), Header("", b""))
    rows = [{"h": had, "of": ["x", None]}, {"h": (), "of": []}, {"h": [Header("b", None)]}]
    mapped = from_rows(None, rows, [0, 1, 2], [])
    assert mapped.table is not None
    assert messages_of(mapped.table, None, "json", "h", None).headers == [
        [*had],
        [],
        [("b", None)],
    ]
    repeated = messages_of(mapped.table, None, "json", {"of": "of"}, None).headers
    assert repeated == [[("of", b"x"), ("of", None)], [], []]


def test_a_header_without_a_name_or_of_another_type_refuses_its_row() -> None:
    nameless = pa.array([[{"key": None, "value": b""}], [{"key": "a", "value": b""}]])
    table = pa.table({"h": nameless, "l": [[b"\xff"], None], "n": [[[1]], [[2]]]})
    messages = messages_of(table, None, "n", "h", None)
    assert "column h[].key (headers) cannot hold" in messages.refused[0]
    assert messages_of(table, None, "n", {"x": "l"}, None).headers[0] == [("x", b"\xff")]
    refused = messages_of(table, None, "l", {"x": "n"}, None).refused
    assert refused[1].startswith("column n (headers) cannot hold list")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x", "v", {}, None), r"no column 'x', only \['v'\]"),
        ((None, "json", {}, "v"), "'v' of type list.* is not a time"),
    ],
)
def test_columns_that_cannot_be_sent_are_named(arguments: Any, message: str) -> None:
    table = pa.table({"v": [[1], [2]]})
    with pytest.raises(StrategyError, match=message):
        messages_of(table, *arguments)


def test_rows_with_a_value_that_cannot_be_sent_are_refused_and_the_others_are_made() -> None:
    times = pa.array([0, 2**63], pa.uint64())
    table = pa.table({"v": [1.5, float("nan")], "t": times, "l": [[1], None]})
    assert dict(messages_of(table, None, "v", {}, "t").refused) == {
        1: f"column t (milliseconds) cannot hold {2**63}"
    }
    assert dict(messages_of(table, None, "json", {}, None).refused) == {
        1: "column v: JSON has no nan"
    }
    refused = messages_of(table, None, "l", {}, None).refused
    assert list(refused) == [0]
    assert refused[0].startswith("column l (bytes) cannot hold list")


FIELDS = [{"name": "id", "type": "int"}, {"name": "u", "type": ["null", "int", "string"]}]


def test_rows_that_a_format_cannot_have_are_refused_for_each_kind_of_reason_and_others_sent() -> (
    None
):
    kind = pa.struct([("int", pa.int64()), ("string", pa.string())])
    union = [None, {"int": 1, "string": "x"}, {"int": 1}, None, {"string": "y"}]
    table = pa.table(
        {
            "id": [1, 2, 2**40, 4, 5],
            "u": pa.array(union, kind),
            "order-id": [None, None, None, 7, None],
        }
    )
    value = Avro({"type": "record", "name": "R", "fields": FIELDS})
    messages = messages_of(table, None, value, {}, None)
    assert {row: why.partition(";")[0] for row, why in messages.refused.items()} == {
        1: "field u: the union has values of int and string",
        2: "column id (int32) cannot hold 1099511627776",
        3: "Avro: the schema R has no field order-id",
    }
    assert messages.general == {messages.refused[3]}
    assert [each is not None for each in messages.values] == [True, False, False, False, True]


async def test_rows_are_refused_whose_names_avro_has_not_or_whose_schema_a_registry_refuses(
    registry_url: str,
) -> None:
    value = Avro(registry=registry_url)

    def messages(**columns: Any) -> RowMessages:
        return messages_of(pa.table(columns), None, value, {}, None, "names")

    made = await run_sync(lambda: messages(**{"id": [1, 2], "1st": [None, 3]}))
    assert list(made.refused) == [1]
    assert "column 1st: Avro's names have" in made.refused[1]
    made = await run_sync(lambda: messages(id=["text"]))
    assert "change the subject's compatibility" in made.refused[0]
    assert made.general == set(made.refused.values())
