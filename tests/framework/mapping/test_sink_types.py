"""Values whose class a batch's column hides: the sink's column says where it matters."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr import Collect, Record, Strategy
from kmr.mapping.functions import apply
from kmr.mapping.sink_types import hidden_values, number_texts
from kmr.parts import context_of
from kmr.settings import Settings
from kmr.sinks import ParquetWriter
from kmr.tagged_rows import rows_by_branch
from kmr.testing import batch_of

if TYPE_CHECKING:
    from pathlib import Path

_pa: Any = pa
FLOATS = pa.list_(pa.float32())
COUNTS = _pa.map_(pa.string(), pa.int64())


@given(st.integers(-(2**130), 2**130) | st.integers(-(2**25), 2**25))
def test_an_int_is_a_32_bit_float_if_numpy_makes_the_same_number_of_it(number: int) -> None:
    with np.errstate(over="ignore"):
        same = float(np.float32(number)) == number
    assert bool(hidden_values("n", [number], pa.float32())) is not same


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (16777217, pa.float32(), "column c: float cannot hold 16777217"),
        (np.int64(16777217), pa.float32(), "column c: float cannot hold"),
        ([1.5, 16777217], FLOATS, "column c[]: float cannot hold 16777217"),
        ({"x": 16777217}, pa.struct([("x", pa.float32())]), "column c.x: float cannot hold"),
        ({"a": 1, "b": None}, COUNTS, "column c.b: null, which undeclared rows cannot tell"),
        ([{"a": None}], pa.list_(COUNTS), "column c[].a: null"),
        ({"a": {"b": None}}, _pa.map_(pa.string(), COUNTS), "column c.a.b: null"),
    ],
)
def test_a_hidden_value_is_refused_with_its_place(
    value: object, kind: pa.DataType, reason: str
) -> None:
    (found,) = hidden_values("c", [value], kind).values()
    assert found.startswith(reason)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (16777217.0, pa.float32()),
        (True, pa.float32()),
        (16777217, pa.float64()),
        (None, COUNTS),
        ({}, COUNTS),
        ({"a": None}, pa.struct([("a", pa.int64())])),
        ("text", COUNTS),
        ({"a": 1}, FLOATS),
    ],
)
def test_other_values_are_left_to_the_sink(value: object, kind: pa.DataType) -> None:
    assert hidden_values("c", [value], kind) == {}


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([5, 1.5, None, Decimal("2.50")], ["5", "1.5", None, "2.50"]),
        ([2**53 + 1, 1e300], ["9007199254740993", "1e+300"]),
        ([5, 6], [5, 6]),
        ([5, "x"], [5, "x"]),
        ([5, True], [5, True]),
        ([2**70, 1.5], [2**70, 1.5]),
    ],
)
def test_numbers_of_several_classes_are_texts_for_a_column_of_text_as_each_is_alone(
    values: list[Any], texts: list[Any]
) -> None:
    classes = set(map(type, values))
    assert number_texts(values, classes, pa.string()) == texts
    assert number_texts(values, classes, pa.float64()) is values


def loads(record: Record) -> Any:
    return json.loads(record.value or b"")


def loads_named(record: Record) -> Any:
    return loads(record), "a"


async def test_a_value_has_the_same_fate_beside_others_as_alone(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.float32()), ("counts", COUNTS), ("text", pa.string())])
    writer = ParquetWriter(str(tmp_path), schema=schema)
    plain = Strategy(map=loads, reduce=[writer])
    branched = Strategy(map=loads_named, reduce={"a": writer, "b": ParquetWriter(str(tmp_path))})
    values: list[bytes | None] = [
        b'{"n": 16777217, "counts": {"a": 1}}',
        b'{"n": 1.5, "counts": {"a": null}}',
        b'{"n": 16777216, "counts": {"b": 2}, "text": 9007199254740993}',
        b'{"n": 2.5, "counts": {}, "text": 1.5}',
    ]
    settings = Settings(group="g", topics=("t",))
    for strategy, stage in ((plain, "reduce-1"), (branched, "reduce-1 a")):
        own = copy.deepcopy(writer)
        await own.open(replace(context_of(strategy, settings), stage=stage))
        await own.close()
        mapped = apply(strategy.map, batch_of("t", 0, 0, values).records, strategy.map_spec)
        assert mapped.offsets.tolist() == [2, 3]
        ((_, rows, _),) = rows_by_branch(mapped.table) if mapped.table is not None else []
        assert rows.column("text").to_pylist() == ["9007199254740993", "1.5"]
        assert [(each.offset, each.reason.split(",")[0]) for each in mapped.failures] == [
            (0, "column n: float cannot hold 16777217"),
            (1, "column counts.a: null"),
        ]


def test_a_reducer_that_makes_new_rows_hides_the_columns_of_the_sink(tmp_path: Path) -> None:
    writer = ParquetWriter(str(tmp_path))
    strategy = Strategy(map=loads, reduce=[Collect(lambda rows: rows), writer])
    for stage in ("reduce-1", "reduce-2", "reduce-err"):
        strategy.tell_types(stage, {"n": pa.float32()})
    assert strategy.map_spec.sink_types == {}
