"""Tuples as columns: the compiled way makes what Arrow makes, or nothing."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from kmr.values.python_columns import to_column
from kmr.values.schemas import row_type
from kmr.values.tuple_columns import columns_of_tuples, types_of_tuple

MOMENT = pa.timestamp("us", tz="UTC")


class Number(IntEnum):
    ONE = 1


INTEGERS: list[int] = [
    *(
        sign * 2**bits + more
        for bits in (0, 5, 7, 8, 15, 16, 31, 32, 62)
        for sign in (1, -1)
        for more in (-1, 0, 1)
    ),
    2**63 - 1,
    -(2**63),
    Number.ONE,
]
LENGTHS = [0, 1, 31, 32, 33, 255, 256, 65_535, 65_536, 70_000]
COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), INTEGERS),
    (pa.float64(), [0.0, -0.0, 1.5, -1e300, 5e-324, math.inf, -math.inf]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["", "é", "日本", "\0", *("x" * length for length in LENGTHS)]),
    (pa.binary(), [b"", b"\xff", *(bytes(length) for length in LENGTHS)]),
    (
        MOMENT,
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC),
            datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=5, minutes=30))),
            datetime(2600, 1, 1, 0, 0, 0, 1, UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
        ],
    ),
]


class Color(str, Enum):  # noqa: UP042  of this form, too
    RED = "red"


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=lambda each: str(each)[:12])
@pytest.mark.parametrize("count", [1, 7, 16, 70_000])
def test_a_column_is_the_one_that_arrow_makes(
    kind: pa.DataType, values: list[Any], count: int
) -> None:
    most = count if count < 1_000 else count if len(str(values)) < 2_000 else 300
    repeated = ([None, *values] * most)[:most]

    (column,) = columns_of_tuples([(value,) for value in repeated], [kind]) or [None]

    assert column is not None
    assert column.equals(pa.array(repeated, kind))
    column.validate(full=True)


def array_of(values: Any, kind: Any) -> Any:
    return pa.array(values, kind)


def test_a_float_that_is_no_number_stays_one() -> None:
    (column,) = columns_of_tuples([(math.nan,), (None,)], [pa.float64()]) or [pa.nulls(0)]

    assert column.null_count == 1
    assert math.isnan(column[0].as_py())


def test_all_columns_of_a_row_stay_beside_each_other() -> None:
    rows = [tuple(values[at % len(values)] for _, values in COLUMNS) for at in range(100)]
    types = [kind for kind, _ in COLUMNS]

    columns: Any = columns_of_tuples(rows, types)

    assert columns is not None
    assert [column.to_pylist() for column in columns] == [
        array_of(values, kind).to_pylist()
        for values, kind in zip(zip(*rows, strict=True), types, strict=True)
    ]


class Plain(Enum):
    NUMBER = 1
    TEXT = "text"


class Whole(int):
    """A number of its own class."""


class Text(str):
    """A text of its own class."""

    __slots__ = ()


ODD: list[Any] = [
    True,
    1,
    1.0,
    1.5,
    2**53 + 1,
    2**63,
    2**64,
    -(2**63) - 1,
    "1",
    "1.5",
    "true",
    "2026-01-01T00:00:00Z",
    "\ud800",
    b"x",
    bytearray(b"x"),
    memoryview(b"x"),
    Decimal(1),
    Decimal("NaN"),
    date(2026, 1, 1),
    datetime(2026, 1, 1),  # noqa: DTZ001
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=1))),
    timedelta(1),
    uuid.UUID(int=1),
    Number.ONE,
    Color.RED,
    Plain.NUMBER,
    Plain.TEXT,
    Whole(7),
    Text("x"),
    np.int64(1),
    np.float64(1.5),
    np.float32(1.5),
    np.str_("x"),
    np.datetime64("2026-01-01", "us"),
    [1],
    {"a": 1},
    object(),
    msgspec.UNSET,
]


@pytest.mark.parametrize("value", ODD, ids=lambda each: f"{type(each).__name__}-{each!s:.20}")
def test_an_odd_value_is_what_it_is_to_those_who_look_at_each_or_is_left_to_them(
    value: object,
) -> None:
    for kind, (good, *_) in COLUMNS:
        column = columns_of_tuples([(good,), (value,)], [kind])

        refused: dict[int, str] = {}
        expected = to_column([good, value], kind, refused)
        if column is not None:
            assert not refused, kind
            assert column[0].equals(expected), kind


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.0),
        (pa.int64(), True),
        (pa.float64(), 2**53 + 1),
        (pa.string(), date(1, 1, 1)),
    ],
)
def test_a_value_of_another_class_is_left_to_those_who_look_at_each(
    kind: pa.DataType, value: object
) -> None:
    assert columns_of_tuples([(value,)], [kind]) is None


def test_types_that_are_not_plain_are_left_to_those_who_look_at_each() -> None:
    for kind in (pa.int32(), pa.float32(), pa.decimal128(9, 2), pa.list_(pa.int64()), pa.date32()):
        assert columns_of_tuples([(1,)], [kind]) is None
    assert types_of_tuple((1, Decimal(1))) is None
    assert types_of_tuple((1, None)) is None


def test_a_row_with_another_number_of_values_is_left() -> None:
    assert columns_of_tuples([(1, 2), (1,)], [pa.int64(), pa.int64()]) is None
    assert columns_of_tuples([(1, 2, 3)], [pa.int64(), pa.int64()]) is None


class _Struct(msgspec.Struct, omit_defaults=True, rename="camel", tag="t"):
    some_text: str = "x"
    number: int | None = None


@dataclass
class _Dataclass:
    some_text: str
    number: int | None


class _Dict(TypedDict):
    some_text: str
    number: int | None


@pytest.mark.parametrize("cls", [_Struct, _Dataclass, _Dict])
def test_rows_of_each_class_have_the_columns_of_their_attributes(cls: Any) -> None:
    rows = [cls(some_text="a", number=1), cls(some_text="x", number=None)]

    columns, failures = row_type(cls).to_columns(rows)

    assert columns.to_pylist() == [
        {"some_text": "a", "number": 1},
        {"some_text": "x", "number": None},
    ]
    assert not failures


def test_a_value_that_does_not_fit_is_refused_alone() -> None:
    rows = [_Struct("a", 1), _Struct("b", 1.5), _Struct(7, 2), _Struct("d", 3)]  # type: ignore[arg-type]

    columns, failures = row_type(_Struct).to_columns(rows)

    assert failures.keys() == {1, 2}
    assert columns.column("number").to_pylist() == [1, None, 2, 3]
    assert columns.column("some_text").to_pylist() == ["a", "b", None, "d"]
