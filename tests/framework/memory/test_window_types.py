"""Rows of undeclared types beside those of open windows."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kmr.memory.window_types import in_types_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def joined(
    before: pa.DataType, values: list[Any], *, can_add: bool = True
) -> tuple[pa.DataType, list[Any], list[int]]:
    rows, refused = in_types_of(
        pa.schema([("v", before)]), pa.table({"v": values}), lambda _: can_add
    )
    column = rows.column("v")
    return column.type, column.to_pylist(), sorted(refused)


@pytest.mark.parametrize(
    ("before", "values", "expected"),
    [
        (pa.null(), ["a"], (pa.string(), ["a"], [])),
        (pa.string(), [None], (pa.string(), [None], [])),
        (pa.float64(), [1, None], (pa.float64(), [1.0, None], [])),
        (pa.int64(), [1.0, 2.0], (pa.int64(), [1, 2], [])),
        (pa.int64(), [1.5, 2.0], (pa.float64(), [1.5, 2.0], [])),
        (pa.int64(), ["1", None], (pa.int64(), [None, None], [0])),
        (pa.string(), [1, None], (pa.string(), [None, None], [0])),
        (pa.float64(), [Decimal("0.1")], (pa.float64(), [None], [0])),
        (pa.bool_(), [1], (pa.bool_(), [None], [0])),
        (pa.timestamp("us"), [NOON.date()], (pa.timestamp("us"), [None], [0])),
    ],
)
def test_a_value_is_joined_where_a_type_holds_it_exactly(
    before: pa.DataType, values: list[Any], expected: tuple[pa.DataType, list[Any], list[int]]
) -> None:
    assert joined(before, values) == expected


def test_what_cannot_be_widened_refuses_what_it_cannot_hold() -> None:
    kind, values, refused = joined(pa.int64(), [1.5, 2.0], can_add=False)
    assert (kind, refused) == (pa.int64(), [0])
    assert values[1] == 2
