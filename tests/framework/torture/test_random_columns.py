"""Columns of random nested types as JSON, as messages and in Parquet files: as they are, or refused."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings

from kmr.columns.fitting import known_to_kernels
from kmr.columns.kinds import has_values, is_list, known
from kmr.columns.texts import json_rows
from kmr.record import Range, Rows
from kmr.reducers.reducer import Context
from kmr.sinks import ParquetWriter
from kmr.sinks.kafka.row_messages import messages_of
from tests.examples import examples

from ..flushes import Flushed, outcome
from .arrow_columns import columns
from .plain_values import is_json_of, is_same, plain, read_json
from .readers import FIELD, parquet_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SLOW = [HealthCheck.too_slow]


def rows_of(array: pa.Array[Any]) -> pa.Table:
    return known_to_kernels(pa.table({"id": np.arange(len(array)), FIELD: array}))


def check_reasons(expected: list[Any], refused: Mapping[int, str]) -> None:
    for row, reason in refused.items():
        assert FIELD in reason
        assert expected[row] is not None, reason


@settings(max_examples=examples(300), suppress_health_check=SLOW)
@given(columns())
def test_a_column_of_any_type_is_json_as_it_is_or_is_refused(array: pa.Array[Any]) -> None:
    expected, made = plain(array), json_rows(rows_of(array))
    check_reasons(expected, made.refused)
    for row, value in enumerate(expected):
        if row not in made.refused:
            assert is_json_of(value, dict(read_json(made.objects[row])).get(FIELD))


@settings(max_examples=examples(150), suppress_health_check=SLOW)
@given(columns())
def test_a_column_of_any_type_is_a_key_a_value_and_a_header_or_is_refused(
    array: pa.Array[Any],
) -> None:
    expected, made = plain(array), messages_of(rows_of(array), FIELD, FIELD, {"h": FIELD}, None)
    check_reasons(expected, made.refused)
    for row, value in enumerate(expected):
        if row not in made.refused:
            assert (made.values[row] is None) == (value is None)
            assert made.keys[row] == made.values[row]
            assert made.headers[row] == ([] if value is None else [("h", made.values[row])])


def _is_typed(kind: Any) -> bool:
    """Whether Parquet can store each value. It cannot store a type whose values are null or empty in all rows."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_typed(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _is_typed(kind.item_type)
    return _is_typed(kind.value_type) if is_list(kind) else has_values(kind)


def test_a_column_of_any_type_is_in_a_parquet_file_as_it_is_or_is_refused(tmp_path: Path) -> None:
    directories = (tmp_path / str(number) for number in range(1_000_000))

    @settings(max_examples=examples(60), suppress_health_check=SLOW)
    @given(columns().filter(lambda array: _is_typed(known(array).type)))
    def attempt(array: pa.Array[Any]) -> None:
        expected, directory = plain(array), next(directories)
        refused = anyio.run(_written, directory, rows_of(array))
        check_reasons(expected, refused)
        found = dict(parquet_rows(directory)) if directory.exists() else {}
        assert sorted([*found, *refused]) == list(range(len(expected)))
        for row, value in found.items():
            assert is_same(expected[row], value)

    attempt()


async def _written(directory: Path, table: pa.Table) -> dict[int, str]:
    writer = copy.deepcopy(ParquetWriter(directory))
    await writer.open(Context(group="g", stage="reduce-1"))
    last = table.num_rows - 1
    writer.add(Rows(table, (Range("t", 0, 0, last),), np.arange(table.num_rows)))
    result = await outcome(writer)
    await writer.close()
    assert isinstance(result, Flushed)
    refused: dict[int, str] = {}
    for each in result.refusals:
        assert each.rows.offsets is not None
        numbers = each.rows.offsets.tolist()
        texts = [each.reason] * len(numbers) if isinstance(each.reason, str) else each.reason
        refused |= dict(zip(numbers, texts, strict=True))
    return refused
