"""Every type of Arrow becomes every other one: a value stays as it is, or its row is named."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.columns.casting import Cast, Misfit, limits
from kmr.columns.fitted import TargetColumn, fit_columns
from kmr.columns.fitting import fit, known_to_kernels
from kmr.columns.kinds import whole
from kmr.columns.numbers import to_decimal
from kmr.columns.reasons import count_values, fields_left_out
from kmr.columns.texts import POSTGRES, json_rows, python_values, text_of
from tests.examples import examples


def bad_rows(cast: Cast) -> list[int]:
    return [] if cast.bad is None else np.flatnonzero(cast.bad).tolist()


_INTEGERS: Final = sorted(
    {
        sign * 2**bits + more
        for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64)
        for more in (-1, 0, 1)
        for sign in (1, -1)
    }
)
_FLOATS: Final = [
    *(0.0, -0.0, 1.0, 1.5, 0.1, 1e300, -1e300, 1e-300, math.nan, math.inf, -math.inf, None),
    *(2.0**53, 2.0**63, 2.0**64, -(2.0**63), 3.4e38, 3.5e38, 65504.0, 65520.0, 255.0, 256.0),
]
_TEXTS: Final = [
    *(
        "",
        "1",
        "-1",
        "1.5",
        "x",
        "true",
        "\0",
        "😀",
        "1e400",
        "1e39",
        "nan",
        "+7",
        "0x10",
        " 1",
        "१",
        None,
    ),
    *("2020-01-01", "2020-13-45", "2020-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "12:00:00"),
    *("9999-12-31T23:59:59.9999999-05:00", "x" * 100_000),
]


def _integers(kind: pa.DataType) -> Any:
    low, high = limits(kind)
    return pa.array([each for each in _INTEGERS if low <= each <= high] + [None], kind)


_TICKS: Final = [
    0,
    1,
    -1,
    2**63 - 1,
    -(2**63) + 1,
    1_763_000_000_000_000,
    253_402_300_800_000_000,
    None,
]
_UNITS: Final[tuple[Any, ...]] = ("s", "ms", "us", "ns")
_TWICE: Final[Any] = pa.StructArray.from_arrays([pa.array([1])] * 2, names=["a", "a"])
ARRAYS: Final[list[Any]] = [
    *(_integers(kind()) for kind in (pa.int8, pa.int16, pa.int32, pa.int64)),
    *(_integers(kind()) for kind in (pa.uint8, pa.uint16, pa.uint32, pa.uint64)),
    *(pa.array(_FLOATS).cast(kind(), safe=False) for kind in (pa.float16, pa.float32, pa.float64)),
    pa.array([True, False, None]),
    pa.array(
        [Decimal("1.50"), Decimal("9" * 36 + ".99"), Decimal("-0.01"), None], pa.decimal128(38, 2)
    ),
    pa.array([Decimal("9" * 38), None], pa.decimal128(38, 0)),
    pa.array([Decimal("9" * 76), Decimal(1), None], pa.decimal256(76, 0)),
    pa.array([Decimal("1E2"), None], pa.decimal128(5, -2)),
    *(pa.array(_TEXTS, kind()) for kind in (pa.string, pa.large_string, pa.string_view)),
    pa.array([b"a\xff", b"ok", None]).view(pa.string()),
    *(
        pa.array([b"", b"\xff", b"abc", b"\0", None], kind())
        for kind in (pa.binary, pa.large_binary, pa.binary_view)
    ),
    pa.array([b"ab", None], pa.binary(2)),
    pa.array(["a", "b", None, "a"]).dictionary_encode(),
    pc.call_function("run_end_encode", [pa.array(["a", "a", None])]),
    *(
        pa.array(_TICKS).cast(pa.timestamp(unit, zone))
        for unit in _UNITS
        for zone in (None, "UTC", "Asia/Tokyo")
    ),
    *(pa.array(_TICKS).cast(pa.duration(unit)) for unit in _UNITS),
    pa.array([0, -1, 2**31 - 1, -(2**31), 2_932_897, None], pa.int32()).cast(pa.date32()),
    pa.array([0, 86_400_000, -86_400_000 * 800_000, None]).view(pa.date64()),
    pa.array([0, 86_399, None], pa.int32()).cast(pa.time32("s")),
    pa.array([0, 86_399_999_999_999, -1, 2**62, None]).view(pa.time64("ns")),
    pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    pa.array([b"1" * 16, None], pa.uuid()),
    pa.nulls(3),
    pa.array([[1, 300], [], None, [None]]),
    pa.array([[1, 300], [], None], pa.list_view(pa.int64())),
    pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
    pa.array([[], [None], None]),
    pa.array([{"a": 1, "b": "x"}, {"a": 300, "b": None}, None]),
    pa.array([{}, None], pa.struct([])),
    pa.array([[("a", 1)], [("a", 1), ("a", 2)], [], None], pa.map_(pa.string(), pa.int64())),
    _TWICE,
]
TYPES: Final[list[Any]] = [
    *dict.fromkeys(each.type for each in ARRAYS if each.type not in (pa.null(), _TWICE.type)),
    *(
        pa.decimal128(5, 2),
        pa.decimal128(1, 0),
        pa.list_(pa.int8()),
        pa.list_(pa.int8(), 2),
        pa.binary(3),
    ),
    *(pa.struct([("a", pa.int8()), ("c", pa.string())]), pa.map_(pa.string(), pa.int8())),
]


def _is_same(value: Any, made: Any, kind: Any) -> bool:
    if value is None:
        return made is None
    numbers = int | float | Decimal
    if isinstance(value, numbers) and isinstance(made, numbers) and not isinstance(value, bool):
        if value == made or (value != value and made != made):
            return True
        if pa.types.is_floating(kind):  # the nearest number
            return (
                math.isfinite(made) and abs(float(value) - float(made)) <= abs(float(value)) * 1e-3
            )
        return isinstance(value, float) and math.isclose(float(made), value, rel_tol=1e-7)
    return made is not None


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_a_value_becomes_itself_in_any_type_or_its_row_is_named(array: Any) -> None:
    for kind in TYPES:
        try:
            cast = fit(array, kind)
        except Misfit:
            continue
        assert cast.array.type == kind
        cast.array.validate(full=True)
        bad = set(bad_rows(cast))
        pairs = zip(python_values(array), python_values(cast.array), strict=True)
        for row, (value, made) in enumerate(pairs):
            assert row in bad or _is_same(value, made, kind), f"{array.type} as {kind}: {value!r}"


@pytest.mark.parametrize(
    ("array", "kind", "bad"),
    [
        (pa.array([1e300, 3.4e38, 1e-300, math.inf, 0.0]), pa.float32(), [0, 2]),
        (pa.array([2**53, 2**53 + 1, 2**60]), pa.float64(), [1]),
        (pa.array(["1e400", "inf", "1e300", "1e-400", "0e-9"]), pa.float64(), [0, 3]),
        (pa.array(["16777217", "16777216", "16777217.0", "1e30", "0.1"]), pa.float32(), [0, 2]),
        (pa.array(["9007199254740993", "1e23", "9" * 400, "nan"]), pa.float64(), [0, 2]),
        (pa.array([Decimal("16777217.00"), Decimal("0.10")]), pa.float32(), [0]),
        (pa.array(["2026-01-01 23:00", "2026-01-01", "2026-01-01T00:00:00Z"]), pa.date32(), [0]),
        (pa.array(["2026-01-01T00:00:00+02:00", None]), pa.date32(), [0]),
        (pa.array([1.0, 2.0, math.nan]), pa.bool_(), [1, 2]),
        (pa.array([1.55, 1.555, 3.4e38]), pa.decimal128(38, 2), [1, 2]),
        (pa.array(["1.5e3", "1e77", "1.555"]), pa.decimal128(38, 2), [1, 2]),
        (pa.array([b"12", b"\xff"]), pa.int8(), [1]),
        (pa.array([0, 2**40], pa.timestamp("s")), pa.timestamp("ns"), [1]),
        (
            pa.array(["2020-01-01", "2020-02-30", "0001-01-01T00:00:00+01:00"]),
            pa.timestamp("us", "UTC"),
            [1],
        ),
        (pa.array(["12:00", "24:00:00"]), pa.time64("us"), [1]),
        (pa.array(["0" * 32, "0" * 31]), pa.uuid(), [1]),
        (pa.array([[1], [1, 2], None], pa.list_(pa.int8())), pa.list_(pa.int8(), 1), [1]),
    ],
)
def test_what_does_not_fit(array: Any, kind: Any, bad: list[int]) -> None:
    assert bad_rows(fit(array, kind)) == bad


def test_times_that_are_cut_are_reported() -> None:
    cast = fit(pa.array([1000, 1001, None], pa.timestamp("ns")), pa.timestamp("us"))
    assert cast.array.to_pylist()[:2] == cast.array.to_pylist()[1::-1]
    assert cast.cut is not None
    assert cast.cut.tolist() == [False, True, False]
    seven = pa.array(["2020-01-01T00:00:00.1234560", "2020-01-01T00:00:00.1234567"])
    cut = fit(seven, pa.timestamp("us")).cut
    assert cut is not None
    assert cut.tolist() == [False, True]


def test_a_dict_becomes_a_map_though_its_values_have_several_types() -> None:
    rows = pa.array([{"a": 1.5, "n": 3}, {"a": None, "n": 300}, {}, None])
    cast = fit(rows, pa.map_(pa.string(), pa.float64()))
    assert cast.array.to_pylist() == [[("a", 1.5), ("n", 3.0)], [("n", 300.0)], [], None]
    assert bad_rows(fit(rows, pa.map_(pa.string(), pa.int8()))) == [0, 1]
    assert fit(pa.array([{}]), pa.map_(pa.string(), pa.int8())).array.to_pylist() == [[]]


def test_a_reason_names_the_column_the_field_and_the_value() -> None:
    rows = pa.table(
        {
            "user": [
                {"age": 1, "tags": [{"n": 1}]},
                {"age": 300, "tags": []},
                {"age": 2, "tags": [{"n": 300}]},
            ]
        }
    )
    to = pa.struct([("age", pa.int8()), ("tags", pa.list_(pa.struct([("n", pa.int8())])))])
    fitted = fit_columns(rows, [TargetColumn("user", "object", lambda array: fit(array, to))])
    assert fitted.refused == {
        1: "column user.age (object) cannot hold 300",
        2: "column user.tags[].n (object) cannot hold [{'n': 300}]",
    }
    assert fitted.kept().num_rows == 1


def test_a_type_that_cannot_fit_refuses_its_values_and_no_nulls() -> None:
    rows = pa.table({"at": [1, None], "n": [1, 2]})
    targets = [
        TargetColumn("at", "time", lambda array: fit(array, pa.timestamp("us"))),
        TargetColumn("n", "number", lambda array: fit(array, pa.int64())),
    ]
    fitted = fit_columns(rows, targets)
    reason = "column at (time) cannot hold int64: int64 cannot become timestamp[us]"
    assert fitted.refused == {0: reason}
    assert fitted.general == {reason}


def test_fields_that_a_type_lacks_are_named_and_counted() -> None:
    rows = pa.array([{"a": [{"b": 1, "c": None}, {"b": 2, "c": 3}], "d": 1}, None])
    to = pa.struct([("a", pa.list_(pa.struct([("b", pa.int8())])))])
    assert list(fields_left_out(rows.type, to, "x")) == ["x.a[].c", "x.d"]
    assert [count_values(rows, path) for path in (".a[].c", ".d", ".a")] == [1, 1, 1]


@pytest.mark.parametrize("odd", ["a.b", "a[]"])
def test_values_of_a_field_whose_name_begins_with_its_neighbours_are_counted(odd: str) -> None:
    rows = pa.array([{"a": 1, odd: 2}, {"a": 1, odd: None}])
    (path,) = fields_left_out(rows.type, pa.struct([("a", pa.int8())]), "")
    assert count_values(rows, path) == 1


@settings(max_examples=examples(600))
@given(st.decimals(allow_nan=False, allow_infinity=False, places=4) | st.floats().map(str))
def test_numbers_in_text_are_decimals_exactly_or_not_at_all(number: Any) -> None:
    cast = to_decimal(pa.array([str(number)]), pa.decimal128(38, 2))
    value = Decimal(str(number))
    fits = value.is_finite() and abs(value) < Decimal(10) ** 36
    fits = fits and value == value.quantize(Decimal("0.01"), context=Context(prec=400))
    assert bad_rows(cast) == ([] if fits else [0])
    assert not fits or cast.array.to_pylist() == [value]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_every_row_can_be_taken_and_filtered_without_views(array: Any) -> None:
    table = known_to_kernels(pa.table({"a": array}))
    assert python_values(whole(table.take([0]).column(0))) == python_values(array.slice(0, 1))
    nested = pa.ListArray.from_arrays(pa.array([0, len(array)], pa.int32()), array)
    taken = known_to_kernels(pa.table({"a": nested})).take([0])
    assert len(whole(taken.column(0))[0]) == len(array)


_ROWS: Final = pa.array([0, None, 1], pa.int32())
_DICTIONARIES: Final = [
    pa.DictionaryArray.from_arrays(_ROWS, pa.array(values, kind))
    for values, kind in (
        ([b"", b"x"], pa.binary_view()),
        (["", None], pa.string_view()),
        ([[1], []], pa.list_(pa.int8())),
        ([[1], []], pa.list_view(pa.int8())),
        ([{"a": 1}, None], pa.struct([("a", pa.int8())])),
        ([None, None], pa.null()),
        ([5, 6], pa.duration("s")),
    )
]


@pytest.mark.parametrize("array", _DICTIONARIES, ids=lambda array: str(array.type))
def test_dictionaries_and_runs_of_any_values_are_made_known_to_kernels(array: Any) -> None:
    expected = array.to_pylist()
    encoded: Any = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 7], pa.int32()), array)
    inside = pa.StructArray.from_arrays([array], ["f"])
    table = known_to_kernels(pa.table({"a": array, "f": inside}))
    assert python_values(whole(table.take([0, 1, 2])["a"])) == expected
    assert [each["f"] for each in python_values(whole(table.take([0, 1, 2])["f"]))] == expected
    first, null, last = expected
    of_runs = whole(known_to_kernels(pa.table({"r": encoded.slice(1, 4)})).take([0, 1, 2, 3])["r"])
    assert python_values(of_runs) == [first, null, last, last]


def test_values_beside_views_stay_as_they_are() -> None:
    ill_formed = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    columns: list[Any] = [
        ill_formed,
        pa.array([90_000], pa.time32("s")),
        pa.array(["v"], pa.string_view()),
    ]
    structs = pa.StructArray.from_arrays(columns, ["text", "time", "view"])
    made: Any = known_to_kernels(pa.table({"s": structs}))["s"].chunk(0)
    assert made.field("text").view(pa.binary()).to_pylist() == [b"\xff"]
    assert made.field("time").view(pa.int32()).to_pylist() == [90_000]
    assert made.field("view").to_pylist() == ["v"]


def test_spans_are_written_exactly() -> None:
    spans = pa.array([2**63 - 1, -1_500_000, None, 0], pa.duration("us"))
    assert text_of(spans).to_pylist() == ["PT9223372036854.775807S", "-PT1.500000S", None, "PT0S"]
    assert text_of(spans, POSTGRES).to_pylist() == [
        *("2562047788:00:54.775807", "-00:00:01.500000", None, "00:00:00"),
    ]


def test_a_null_that_a_dictionary_hides_does_not_fit_a_field_that_is_never_null() -> None:
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([7, None]))
    structs = pa.StructArray.from_arrays([hidden], ["a"])
    assert bad_rows(fit(structs, pa.struct([pa.field("a", pa.int64(), nullable=False)]))) == [1]


def test_a_uuid_as_text_is_its_text_though_its_bytes_are_utf_8() -> None:
    made = fit(pa.array([b"0" * 16], pa.uuid()), pa.string())
    assert made.array.to_pylist() == ["30303030-3030-3030-3030-303030303030"]


def test_views_inside_of_lists_of_a_fixed_size_are_made_known_to_kernels() -> None:
    of_views = pa.array([["a", None], None], pa.list_(pa.string_view(), 2))
    of_numbers = pa.array([[1, 2], None], pa.list_(pa.int8(), 2))
    table = known_to_kernels(pa.table({"v": of_views, "n": of_numbers}))
    assert table.take([0]).to_pylist() == [{"v": ["a", None], "n": [1, 2]}]
    assert table["n"].type == of_numbers.type


def test_null_objects_of_a_map_are_null_also_where_their_fields_are_never_null() -> None:
    kind: Any = pa.map_(pa.string(), pa.struct([pa.field("x", pa.int64(), nullable=False)]))
    rows = [[("z", {"x": 9})], [("a", None), ("b", {"x": 1})], None, []]
    array = pa.array(rows, kind).slice(1)
    assert fit(array, kind).array.to_pylist() == rows[1:]
    assert json_rows(pa.table({"m": array})).objects == [
        b'{"m":{"a":null,"b":{"x":1}}}', b'{"m":null}', b'{"m":{}}',
    ]  # fmt: skip


def test_the_values_of_a_dictionary_may_be_views() -> None:
    views = pa.array(["1", "2", None], pa.string_view()).dictionary_encode()
    assert fit(views, pa.int64()).array.to_pylist() == [1, 2, None]
    assert fit(views, pa.string()).array.to_pylist() == ["1", "2", None]


def test_a_null_inside_of_a_list_that_takes_none_refuses_only_its_row() -> None:
    pair = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.int32())])
    rows = [[{"key": None, "value": 1}], [{"key": "a", "value": 2}], None]
    for kind in (pa.list_(pair), pa.large_list(pa.field("each", pair, nullable=False))):
        made = fit(pa.array(rows), kind)
        assert made.array.type == kind
        assert made.bad is not None
        assert made.bad.tolist() == [True, False, False]
        assert made.array.slice(1).to_pylist() == rows[1:]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("a", pa.uuid())])),
        pa.large_list(pa.list_(pa.uuid())),
        pa.list_(pa.struct([("a", pa.uuid())]), 2),
    ],
)
def test_lists_without_items_fit_where_objects_in_them_have_types_of_extensions(
    kind: Any,
) -> None:
    assert fit(pa.nulls(3, kind), kind).array.to_pylist() == [None] * 3


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.time64("ns")], ids=str)
def test_a_time_is_no_integer_whose_unit_nobody_knows(kind: Any) -> None:
    for integer in (pa.int64(), pa.uint8()):
        with pytest.raises(Misfit, match="cannot become"):
            fit(pa.array([1], kind), integer)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-999, max_value=999))
def test_a_decimal_is_the_nearest_float(number: Decimal) -> None:
    cast = fit(pa.array([number], pa.decimal128(38, 4)), pa.float64())
    assert (cast.array.to_pylist(), cast.bad) == ([float(number)], None)
