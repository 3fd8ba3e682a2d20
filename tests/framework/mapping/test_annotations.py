"""The annotations of a per-record map: its parameters, and the type of its rows."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pyarrow as pa
import pytest

from kmr import Record, Strategy, map_batch, map_record
from kmr.errors import StrategyError
from kmr.mapping.annotations import check_result, parameters_of, row_class_of
from kmr.mapping.functions import apply, spec_of
from kmr.testing import Journal, MemoryWriter, batch_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from decimal import Decimal


class Row(msgspec.Struct):
    a: int
    b: str | None = None


@dataclass
class Other:
    a: int
    at: dt.datetime


class Typed(TypedDict):
    a: int


def one(record: Record) -> Row | None: ...
def several(record: Record) -> list[Row]: ...  # type: ignore[empty-body]
def generated(record: Record) -> Iterator[Other]: ...  # type: ignore[empty-body]
async def awaited(record: Record) -> Row: ...  # type: ignore[empty-body]
def typed(record: Record) -> Typed: ...  # type: ignore[empty-body]
def untyped(record): ...  # type: ignore[no-untyped-def]
def plain(record: Record) -> dict[str, Any]: ...  # type: ignore[empty-body]
def mixed(record: Record) -> Row | Other: ...  # type: ignore[empty-body]
def unknown(record: Record) -> Row | Decimal: ...  # type: ignore[empty-body]
def unknown_parameter(value: Decimal) -> Row: ...  # type: ignore[empty-body]


@map_record
def early(record: Record) -> list[Late] | None: ...


class Late(msgspec.Struct):
    a: int


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (one, Row),
        (several, Row),
        (generated, Other),
        (awaited, Row),
        (typed, Typed),
        (untyped, None),
        (plain, None),
        (mixed, None),
        (unknown, None),
        (unknown_parameter, Row),
    ],
)
def test_the_return_annotation_names_the_class_of_rows(function: object, found: object) -> None:
    assert row_class_of(function) is found


@pytest.mark.parametrize(
    ("function", "decoded", "found"),
    [
        (lambda record: None, False, "record"),
        (lambda hit: None, True, "value"),
        (lambda hit, record: None, True, "value and record"),
        (lambda hit, extra=1: None, True, "value"),
        (lambda *arguments: None, True, "value"),
        (print, True, "value"),
    ],
)
def test_the_parameters_say_what_a_call_gets(function: object, decoded: bool, found: str) -> None:
    assert parameters_of(function, decoded=decoded) == found


@pytest.mark.parametrize(
    ("function", "decoded", "said"),
    [
        (lambda: None, False, "is called with the record: it takes fewer parameters"),
        (
            lambda a, b, c: None,
            False,
            "is called with the record: missing a required argument: 'b'",
        ),
        (
            lambda a, *, b: None,
            False,
            "is called with the record: missing a required argument: 'b'",
        ),
        (lambda: None, True, "is called with the value: it takes fewer parameters"),
        (lambda a, b, c: None, True, "is called with the value: missing a required argument: 'b'"),
        (lambda a, b, *, c: None, True, "with the value and the record: missing .*: 'c'"),
        (one, True, "takes the record alone"),
    ],
)
def test_parameters_that_cannot_be_called_are_refused(
    function: object, decoded: bool, said: str
) -> None:
    with pytest.raises(StrategyError, match=said):
        parameters_of(function, decoded=decoded)


@pytest.mark.parametrize("function", [lambda: None, lambda a, b: None, lambda a, *, b: None])
def test_a_map_per_batch_that_cannot_be_called_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(StrategyError, match=r"<lambda>.* is called with the batch: "):
        Strategy(map=map_batch(function), reduce=[MemoryWriter(Journal())])


def a_text(record: Record) -> str: ...  # type: ignore[empty-body]
def a_row_or_a_number(record: Record) -> Row | int: ...  # type: ignore[empty-body]
def some_texts(record: Record) -> list[str | None]: ...  # type: ignore[empty-body]
def named_rows(record: Record) -> list[tuple[Row, str]] | dict[str, int] | None: ...


@pytest.mark.parametrize(
    ("function", "named"), [(a_text, "str"), (a_row_or_a_number, "int"), (some_texts, "str")]
)
def test_a_map_that_returns_single_values_by_its_annotation_is_refused(
    function: Callable[..., Any], named: str
) -> None:
    with pytest.raises(StrategyError, match=f"returns {named} by its annotation, which is no row"):
        Strategy(map=function, reduce=[MemoryWriter(Journal())])


def test_a_row_with_its_name_and_a_dict_are_rows_by_their_annotations() -> None:
    check_result(named_rows)


RECORDS = batch_of("t", 0, 5, [b"1", b"2", b"3"]).records
AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def test_rows_of_the_annotated_class_have_its_columns_even_if_all_are_null() -> None:
    @map_record
    def rows(record: Record) -> Row | None:
        return None if record.offset == 6 else Row(record.offset)

    result = apply(rows, RECORDS)
    assert result.table is not None
    assert result.table.schema.types == [pa.int64(), pa.string()]
    assert result.table.to_pylist() == [{"a": 5, "b": None}, {"a": 7, "b": None}]
    strategy = Strategy(map=rows, reduce=[MemoryWriter(Journal())])
    assert strategy.row_schema == result.table.schema


def test_a_generator_of_dataclasses_gives_several_rows() -> None:
    @map_record
    def rows(record: Record) -> Iterator[Other]:
        yield Other(record.offset, AT)
        yield Other(-record.offset, AT)

    result = apply(rows, RECORDS)
    assert result.table is not None
    assert result.table.column("a").to_pylist() == [5, -5, 6, -6, 7, -7]
    assert result.offsets.tolist() == [5, 5, 6, 6, 7, 7]


def test_a_field_that_does_not_fit_its_annotation_fails_its_record_alone() -> None:
    @map_record
    def rows(record: Record) -> Row:
        return Row({5: 1, 6: None, 7: "x"}[record.offset])  # type: ignore[arg-type]

    result = apply(rows, RECORDS)
    assert result.offsets.tolist() == [5]
    assert [failure.offset for failure in result.failures] == [6, 7]
    assert result.failures[0].reason == "column a: null, but it is not nullable"
    assert result.failures[1].reason.startswith("field a: ")


def test_objects_without_an_annotation_are_rows_with_inferred_types() -> None:
    @map_record
    def rows(record: Record):  # type: ignore[no-untyped-def]
        return Row(record.offset) if record.offset < 7 else {"a": 0.5, "c": 1}

    result = apply(rows, RECORDS)
    assert result.table is not None
    assert result.table.column("a").to_pylist() == [5.0, 6.0, 0.5]
    assert result.table.column("c").to_pylist() == [None, None, 1]


def test_a_dict_in_place_of_the_annotated_class_has_its_columns_too() -> None:
    @map_record
    def rows(record: Record) -> Typed | Row:
        return {"a": record.offset}

    assert spec_of(rows).row_class is None

    @map_record
    def declared(record: Record) -> Typed:
        return {"a": record.offset, "x": 1} if record.offset == 7 else {"a": 1}  # type: ignore[typeddict-unknown-key]

    mapped = apply(declared, RECORDS)
    assert mapped.offsets.tolist() == [5, 6]
    assert [failure[:2] for failure in mapped.failures] == [
        (7, "the row has the column x, which the map does not declare")
    ]


def strategy_of(function: Any) -> Strategy:
    return Strategy(map=function, reduce=[MemoryWriter(Journal())])


def test_a_class_that_is_defined_after_the_map_is_its_class_of_rows() -> None:
    assert strategy_of(early).map_spec.row_class is Late


def test_a_class_that_only_the_maps_function_knows_is_its_class_of_rows() -> None:
    @dataclass
    class Local:
        a: int

    def local(record: Record) -> Local:
        return Local(record.offset)

    assert strategy_of(local).map_spec.row_class is Local


def test_a_return_annotation_that_cannot_be_resolved_is_refused_but_beside_a_schema() -> None:
    with pytest.raises(
        StrategyError, match=r"map=unknown: .*name 'Decimal' is not defined.*import"
    ):
        strategy_of(unknown)
    schema = pa.schema([("a", pa.int64())])

    @map_record(schema=schema)
    def declared(record: Record) -> Row | Decimal: ...  # type: ignore[empty-body]

    assert strategy_of(declared).row_schema == schema


def test_several_classes_of_rows_without_branches_are_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"map=mixed .*\(Other, Row\), so the types"):
        strategy_of(mixed)
