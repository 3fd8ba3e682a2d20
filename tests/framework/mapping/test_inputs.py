"""Values and keys are decoded before the map; what cannot be decoded is a failed record of its own."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kmr import Json, Record, Strategy, Text, map_batch, map_record
from kmr.errors import StrategyError
from kmr.mapping.functions import apply, apply_async
from kmr.mapping.results import Failure
from kmr.testing import Journal, MemoryWriter, batch_of

if TYPE_CHECKING:
    from kmr.mapping.results import MapResult

HITS = [
    b'{"path":"/a","status":200}',
    b'{"path":"/b","status":"x"}',
    None,
    b'{"path":"/c","status":500}',
]
KEYS = [b"k0", b"k1", b"k2", None]


class Hit(msgspec.Struct):
    path: str
    status: int


class Timed(msgspec.Struct):
    timestamp: int


@map_batch
def errors_only(hits: pa.RecordBatch) -> pa.RecordBatch:
    return hits.filter(pc.field("status") >= 500)


@map_record
def path_of(hit: Hit) -> dict[str, str]:
    return {"path": hit.path}


@map_record
async def path_and_offset(hit: Hit, record: Record) -> dict[str, object]:
    return {"path": hit.path, "offset": record.offset}


def strategy(**parts: object) -> Strategy:
    return Strategy(**{"value": Json(Hit), "reduce": [MemoryWriter(Journal())]} | parts)  # type: ignore[arg-type]


def mapped(**parts: object) -> MapResult:
    records = batch_of("t", 3, 10, HITS, keys=KEYS).records
    made = strategy(**parts)
    return apply(made.map, records, made.map_spec)


def rows(result: MapResult) -> list[dict[str, object]]:
    return [] if result.table is None else result.table.to_pylist()


REASON = "field status: expected int, got str: 'x'"


def test_without_a_map_the_columns_of_the_value_are_the_rows() -> None:
    result = mapped()
    assert rows(result) == [{"path": "/a", "status": 200}, {"path": "/c", "status": 500}]
    assert result.offsets.tolist() == [10, 13]
    assert result.failures == (Failure(11, REASON),)


def test_a_per_batch_map_gets_typed_columns_beside_those_of_the_record() -> None:
    result = mapped(map=errors_only)
    assert result.table is not None
    assert result.table.column_names == [
        *("path", "status", "topic", "partition", "offset", "timestamp", "key", "headers")
    ]
    assert result.offsets.tolist() == [13]
    assert result.failures == (Failure(11, REASON),)


def test_a_per_record_map_gets_an_object_of_the_users_type() -> None:
    result = mapped(map=path_of)
    assert rows(result) == [{"path": "/a"}, {"path": "/c"}]
    assert result.failures == (Failure(11, REASON),)


async def test_a_per_record_map_may_take_the_record_too_and_be_async() -> None:
    made = strategy(map=path_and_offset)
    records = batch_of("t", 3, 10, HITS).records
    result = await apply_async(path_and_offset, records, made.map_spec)
    assert rows(result) == [{"path": "/a", "offset": 10}, {"path": "/c", "offset": 13}]


def test_the_pairs_of_a_value_and_its_record_do_not_exist_all_at_a_time() -> None:
    pairs: list[int] = []

    def count(hit: Hit, record: Record) -> None:
        tuples = [each for each in gc.get_objects() if type(each) is tuple and len(each) == 2]
        pairs.append(sum(type(each[1]) is Record for each in tuples))

    values = [b'{"path":"/","status":1}'] * 9
    made = strategy(map=map_record(count))
    apply(made.map, batch_of("t", 0, 0, values).records, made.map_spec)
    assert max(pairs) <= 2


def test_a_failure_of_the_map_and_one_of_a_value_come_in_the_order_of_offsets() -> None:
    @map_record
    def refuse(hit: Hit) -> None:
        raise ValueError(hit.path)

    assert [failure.offset for failure in mapped(map=refuse).failures] == [10, 11, 13]

    @map_batch
    def refuse_all(hits: pa.RecordBatch) -> None:
        raise ValueError(len(hits))

    assert [failure.offset for failure in mapped(map=refuse_all).failures] == [10, 11, 13]


@pytest.mark.parametrize("function", [None, errors_only, path_of])
def test_tombstones_are_dropped_or_failed_as_the_strategy_says(function: object) -> None:
    assert [f.offset for f in mapped(map=function).failures] == [11]
    failed = mapped(map=function, tombstones="fail").failures
    assert failed == (Failure(11, REASON), Failure(12, "value: null (a tombstone)"))


def test_a_tombstone_may_be_a_row_of_nulls_beside_its_key() -> None:
    result = mapped(key=Text(), tombstones="null")
    assert rows(result) == [
        {"path": "/a", "status": 200, "key": "k0"},
        {"path": None, "status": None, "key": "k2"},
        {"path": "/c", "status": 500, "key": None},
    ]
    assert all(field.nullable for field in strategy(tombstones="null").row_schema or ())

    @map_record
    def is_deleted(hit: Hit | None) -> dict[str, bool]:
        return {"deleted": hit is None}

    assert [row["deleted"] for row in rows(mapped(map=is_deleted, tombstones="null"))] == [
        *(False, True, False)
    ]


def test_a_key_is_decoded_too_and_its_reason_says_so() -> None:
    records = batch_of("t", 0, 0, HITS[:1] * 2, keys=[b"\xff", b"k"]).records
    made = strategy(key=Text())
    result = apply(None, records, made.map_spec)
    assert rows(result) == [{"path": "/a", "status": 200, "key": "k"}]
    assert result.failures[0].reason.startswith("key: invalid UTF-8")


def test_a_key_alone_may_be_decoded() -> None:
    @map_batch
    def keys(columns: pa.RecordBatch) -> pa.RecordBatch:
        return columns.select(["key", "value", "offset", "kmr_offset"])

    assert rows(mapped(value=None, key=Text(), map=keys))[0] == {
        "key": "k0",
        "value": HITS[0],
        "offset": 10,
    }


def test_the_offset_that_came_with_the_batch_names_the_record_and_is_a_column_of_the_row() -> None:
    @map_batch
    def kept(columns: pa.RecordBatch) -> pa.RecordBatch:
        found = columns.filter(pa.array([True] * len(columns))).select(["path", "offset"])
        return found.append_column("again", found.column("path")).sort_by("path")

    result = mapped(map=kept)
    assert [row["offset"] for row in rows(result)] == result.offsets.tolist()
    assert result.table is not None
    assert all(field.metadata is None for field in result.table.schema)


def test_an_offset_that_the_function_made_names_no_record() -> None:
    @map_batch
    def made(columns: pa.RecordBatch) -> pa.Table:
        return pa.table({"offset": pa.array([10] * len(columns))})

    with pytest.raises(StrategyError, match="without `kmr_offset`"):
        mapped(map=made)


def test_a_field_of_the_value_goes_before_the_column_of_the_record() -> None:
    @map_batch
    def times(columns: pa.RecordBatch) -> pa.RecordBatch:
        assert columns.schema.names.count("timestamp") == 1
        return columns.select(["timestamp", "kmr_offset"])

    records = batch_of("t", 0, 10, [b'{"timestamp":7}']).records
    timed = strategy(value=Json(Timed), map=times)
    assert rows(apply(times, records, timed.map_spec)) == [{"timestamp": 7}]


def test_columns_of_the_same_name_are_refused() -> None:
    class Taken(msgspec.Struct):
        kmr_offset: int

    with pytest.raises(StrategyError, match=r"has a column kmr_offset, as the record; give"):
        strategy(value=Json(Taken), map=errors_only)
    with pytest.raises(StrategyError, match="value= and key= both have a column path"):
        strategy(key=Json(Hit))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"value": Hit}, "value=.* is not a format"),
        ({"value": None}, "needs map=, value= or both"),
        ({"tombstones": "keep"}, "tombstones must be"),
        ({"map": path_of, "key": Text()}, "key= needs a per-batch map or none"),
        ({"map": path_and_offset, "value": None}, "takes a value and a record, but .* no value="),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: dict[str, object], words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        strategy(**parts)


def test_the_schema_of_the_rows_is_known_before_the_first_record() -> None:
    assert strategy().row_schema == Json(Hit).schema
    assert strategy(map=path_of).row_schema is None
    found = strategy(map=errors_only).row_schema
    assert found is not None
    assert found.names[:3] == ["path", "status", "topic"]

    @map_batch
    def needs_rows(hits: pa.RecordBatch) -> pa.RecordBatch:
        return hits.slice(0, int(hits.column("status")[0].as_py()))

    assert strategy(map=needs_rows).row_schema is None

    @map_batch
    def with_keep(hits: pa.RecordBatch) -> tuple[pa.RecordBatch, object]:
        return hits.select(["path"]), np.arange(len(hits))

    assert strategy(map=with_keep).row_schema == pa.schema(
        [pa.field("path", pa.string(), nullable=False)]
    )


def test_formats_load_what_they_need_before_the_first_batch() -> None:
    class Slow(Text):
        warm = 0

        def warm_up(self) -> None:
            self.warm += 1

    value, key = Slow(), Slow()
    strategy(value=value, key=key).map_spec.inputs.warm_up()
    assert (value.warm, key.warm) == (1, 1)
