"""The coordinates of records travel beside the rows, and fill columns that a table has and the rows lack."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr import Aggregate, Batcher, Collect, Json, Record, Strategy
from kmr.delivery.failures import failed_records
from kmr.mapping.results import Failure
from kmr.record import COORDINATES, Range, Rows, filled, with_coordinates, with_offset_columns
from kmr.reducers.buffer import Buffer
from kmr.reducers.flushing import attempt_flush
from kmr.reducers.sink import NEW
from kmr.sinks import ClickHouseWriter
from kmr.testing import Journal, MemoryWriter, batch_of, run_strategy

if TYPE_CHECKING:
    from kmr.reducers.reducer import Reducer

AT = datetime(2026, 1, 1, tzinfo=UTC)


def rows_of(topic: str, partition: int, offsets: list[int]) -> Rows:
    batch = batch_of(topic, partition, 0, [b"v"] * 10)
    return Rows(
        pa.table({"n": offsets}),
        (Range(topic, partition, 0, 9),),
        np.array(offsets, np.int64),
        (batch,),
    )


def places(rows: Rows) -> list[tuple[Any, ...]]:
    table = rows.with_coordinates(COORDINATES.names)
    return [tuple(row.values()) for row in table.to_pylist()]


def test_rows_are_given_the_columns_of_their_records_that_they_lack() -> None:
    rows = rows_of("t", 3, [1, 1, 4])
    assert places(rows) == [
        (1, "t", 3, 1, AT),
        (1, "t", 3, 1, AT),
        (4, "t", 3, 4, AT),
    ]
    own = replace(rows, table=pa.table({"offset": ["a", "b", "c"], "n": [1, 2, 3]}))
    table = own.with_coordinates(["partition", "offset"])
    assert table.column_names == ["offset", "n", "partition"]
    assert table.column("offset").to_pylist() == ["a", "b", "c"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["t", "u"]),
            st.integers(0, 3),
            st.lists(st.integers(0, 9), max_size=4),
            st.sampled_from(["rows", "others", "places", "none"]),
        ),
        max_size=12,
    )
)
def test_many_parts_together_have_the_same_columns_as_each_alone(
    shapes: list[tuple[str, int, list[int], str]],
) -> None:
    parts = []
    for topic, partition, offsets, kind in shapes:
        rows = rows_of(topic, partition, sorted(offsets))
        if kind == "others":
            rows = replace(
                rows, table=rows.table.append_column("partition", rows.table.column("n"))
            )
        elif kind == "places":
            rows = replace(rows, places=rows.coordinates)
        elif kind == "none":
            rows = replace(rows, offsets=None)
        parts.append(rows)
    names = COORDINATES.names
    alone = [row for rows in parts for row in rows.with_coordinates(names).to_pylist()]
    together = list(with_coordinates(parts, names))
    assert [row for table in together for row in table.to_pylist()] == alone
    assert len(together) <= max(1, len(parts))


def test_cut_taken_and_filtered_rows_keep_their_records() -> None:
    rows = rows_of("t", 3, [1, 2, 4])
    for kept in (rows, replace(rows, places=rows.coordinates)):
        head, tail = kept.cut(1)
        assert tail is not None
        assert [row[3] for part in (head, tail) for row in places(part)] == [1, 2, 4]
        assert [row[3] for row in places(kept.take([2, 0]))] == [4, 1]
        assert [row[3] for row in places(kept.filter(np.array([True, False, True])))] == [1, 4]


def forwarded(reducer: Reducer, *added: Rows) -> Rows:
    async def flush() -> Rows:
        buffer = Buffer(copy.deepcopy(reducer))
        for rows in added:
            buffer.add_unlimited(rows)
        forward = (await attempt_flush(buffer, "reduce-1", 1, NEW)).forward
        assert forward is not None
        return forward

    return anyio.run(flush)


def test_a_batcher_keeps_the_records_of_its_rows_also_of_several_partitions() -> None:
    one = forwarded(Batcher(), rows_of("t", 3, [1, 2]), rows_of("t", 3, [4]))
    assert one.offsets is not None
    assert one.offsets.tolist() == [1, 2, 4]
    several = forwarded(Batcher(), rows_of("t", 3, [1]), rows_of("u", 0, [1, 5]))
    assert several.offsets is None
    assert [row[1:4] for row in places(several)] == [("t", 3, 1), ("u", 0, 1), ("u", 0, 5)]


def test_rows_that_a_reducer_made_are_of_no_record() -> None:
    made = forwarded(Collect(lambda table: table), rows_of("t", 3, [1, 2]))
    assert made.coordinates is None
    assert made.with_coordinates(COORDINATES.names).column_names == ["n"]


def test_failed_records_have_their_own_columns() -> None:
    batch = batch_of("t", 3, 10, [b"a", b"b"])
    rows = failed_records(batch, [Failure(11, "no")], "map", 0)
    assert rows.with_coordinates(COORDINATES.names).equals(rows.table)


def number(record: Record) -> dict[str, int]:
    return {"n": int(record.value or b"")}


SCHEMA = pa.schema([pa.field("customer", pa.string())])


@pytest.mark.parametrize(
    ("before", "place"),
    [
        ([], ["topic", "partition", "offset"]),
        ([Batcher()], ["topic", "partition", "offset"]),
        ([Aggregate(["customer"], {"n": ("*", "count")})], []),
    ],
    ids=["a map", "a batcher", "an aggregate"],
)
def test_a_table_that_is_created_has_the_places_of_records_where_rows_have_them(
    before: list[Reducer], place: list[str]
) -> None:
    writer = ClickHouseWriter("t", create=True)
    strategy = Strategy(value=Json(SCHEMA), reduce=[*before, writer])
    stage = list(strategy.stages)[-1]
    declared = strategy.schema_of(stage) or SCHEMA
    assert [
        name for name in with_offset_columns(declared).names if name in COORDINATES.names
    ] == place
    statement = writer.create_statement(declared)
    assert [name for name in ("topic", "partition", "offset") if f"`{name}`" in statement] == place
    own = ClickHouseWriter("t", create=SCHEMA).create_statement(declared)
    assert "`offset`" not in own


def test_columns_of_the_rows_themselves_are_not_filled() -> None:
    fields: list[pa.Field[Any]] = [pa.field("offset", pa.string()), pa.field("n", pa.int64())]
    schema = pa.schema(fields)
    strategy = Strategy(value=Json(schema), reduce=MemoryWriter(Journal()))
    declared = strategy.schema_of("reduce-1")
    assert declared is not None
    assert [field.name for field in filled(declared, COORDINATES.names)] == [
        "topic",
        "partition",
        "timestamp",
    ]
    run = run_strategy(strategy, [{"offset": "a", "n": 1}])
    assert run.rows == [{"offset": "a", "n": 1}]
