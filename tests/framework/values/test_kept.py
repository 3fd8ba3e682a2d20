"""A declared type of a per-record map's column changes no value: it is kept, or refused by name."""

from collections import deque
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from kmr.mapping.functions import apply, map_record
from kmr.record import Record
from kmr.testing import batch_of
from kmr.values.kept import changed
from kmr.values.python_columns import to_column
from kmr.values.schemas import row_type

OBJECT = pa.struct([("a", pa.int64())])
NESTED = pa.struct([("of", pa.list_(OBJECT))])
MAP: Any = pa.map_(pa.string(), pa.int64())
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class _Countable:
    def __repr__(self) -> str:
        return "countable"

    def __index__(self) -> int:
        return 7


class _Lazy:
    """Is made when it is first used, as Django's lazy objects are."""

    def __repr__(self) -> str:
        return "lazy"

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise LookupError("no connection")


@pytest.mark.parametrize(
    ("kind", "kept", "refused"),
    [
        (pa.int64(), [1, 1.0, Decimal(2), np.int64(3)], [1.5, Decimal("1.5"), np.float64(0.5)]),
        (pa.int8(), [1], [0.5, 1.5]),
        (pa.float32(), [0.1, 1, 16777216], [True, 1e300]),
        (pa.float64(), [0.1, 1], [True, False]),
        (pa.list_(pa.float64()), [[0.1, 1]], [[0.1, True]]),
        (pa.date32(), [date(2026, 1, 1)], [NOON]),
        (pa.timestamp("ms", "UTC"), [NOON], [NOON.replace(microsecond=5)]),
        (pa.time64("us"), [time(1)], [time(1, tzinfo=UTC)]),
        (pa.duration("us"), [timedelta(1), 5], [1.5]),
        (pa.duration("s"), [timedelta(1)], [timedelta(milliseconds=1)]),
        (OBJECT, [{"a": 1}, {}, {"a": None}, {"a": 2.0}], [{"a": 0.5}, {"a": 1, "z": 2}]),
        (NESTED, [{"of": [{"a": 1}]}, {"of": []}], [{"of": [{"a": 1, "z": 1}]}]),
        (pa.list_(pa.int64()), [[1], [], [None], (1, 2)], [[2.5], [1, 0.5]]),
        (MAP, [{"a": None}, {}, [("a", 1)]], [{"a": 0.5}, [("a", 0.5)]]),
        (pa.list_(MAP), [[{"a": 1}], []], [[{}, {"a": 0.5}]]),
        (pa.list_(pa.date32()), [[date(2026, 1, 1), None]], [[None, NOON]]),
        (pa.struct([("d", pa.date32())]), [{"d": date(2026, 1, 1)}], [{"d": NOON}]),
        (pa.list_(pa.time64("us")), [[time(1)]], [[time(1, tzinfo=UTC)]]),
        (pa.list_(pa.timestamp("ms", "UTC")), [[NOON]], [[NOON.replace(microsecond=5)]]),
        (pa.dictionary(pa.int32(), pa.string()), ["a"], []),
        (pa.int64(), [2**63 - 1], [UUID(int=1), Fraction(3, 2), np.True_, _Countable()]),
        (pa.timestamp("us", "UTC"), [NOON, 5], [Decimal("1.5"), UUID(int=1), Fraction(3, 2)]),
        (pa.date32(), [date(2026, 1, 1)], [Decimal(1), UUID(int=1)]),
        (pa.decimal256(50, 0), [2**70], [True, Fraction(1)]),
        (pa.list_(pa.int64()), [range(2), deque([1])], [b"ab", "", {1: 2}, deque([1.5])]),
        (OBJECT, [{}], ["", [("z", 1)], 5]),
        (MAP, [[]], ["", "ab", np.int64(1), range(2), 5]),
        (pa.int64(), [1], [_Lazy()]),
        (pa.list_(pa.string()), [["a"]], [[_Lazy()], [["a", _Lazy()]]]),
    ],
    ids=str,
)
def test_a_value_that_a_declared_type_would_change_is_refused_and_those_beside_it_are_kept(
    kind: pa.DataType, kept: list[Any], refused: list[Any]
) -> None:
    values = [*kept, None, *refused]
    assert sorted(changed(values, kind)) == list(range(len(kept) + 1, len(values)))

    @map_record(schema=pa.schema([("x", kind)]))
    def declared(record: Record) -> dict[str, Any]:
        return {"x": values[record.offset]}

    mapped = apply(declared, batch_of("t", 0, 0, [b""] * len(values)).records)
    assert mapped.offsets.tolist() == list(range(len(kept) + 1))
    assert all("column x: " in str(failure.reason) for failure in mapped.failures)
    assert mapped.table is not None
    assert mapped.table.column("x").combine_chunks() == pa.array([*kept, None], kind)


class Line(msgspec.Struct):
    amount: int


class Order(msgspec.Struct):
    amount: int = 1
    lines: list[Line] = []
    counts: dict[str, int] = {}
    days: list[date] = []
    at: time | None = None


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (Order(amount=1.5), "field amount: int64 cannot hold 1.5"),  # type: ignore[arg-type]
        (
            Order(lines=[Line(1.5)]),  # type: ignore[arg-type]
            "field lines: list<item: struct<amount: int64 not null> not null>",
        ),
        (Order(counts={"a": 1.5}), "field counts: map<string, int64> cannot hold {'a': 1.5}"),  # type: ignore[dict-item]
        (Order(days=[NOON]), "field days: list<item: date32[day] not null> cannot hold [datetime"),
        (Order(at=time(1, tzinfo=UTC)), "field at: datetime.time(1, 0, tzinfo="),
    ],
)
def test_a_row_of_a_class_whose_value_its_declared_type_would_change_is_refused(
    order: Order, reason: str
) -> None:
    kept = Order(2, [Line(3)], {"a": 4}, [date(2026, 1, 1)], time(1))
    columns, refused = row_type(Order).to_columns([kept, order])
    assert columns.slice(0, 1).to_pylist()[0]["counts"] == [("a", 4)]
    assert list(refused) == [1]
    assert refused[1].startswith(reason)


@pytest.mark.parametrize("number", ["1e-999999999", "-0e-999999999", "1e999999999"])
def test_a_decimal_of_any_exponent_is_refused_and_ends_no_process(number: str) -> None:
    kind = pa.decimal128(38, 18)
    for value, of in (
        (Decimal(number), kind),
        ([Decimal(number)], pa.list_(kind)),
        ({"a": Decimal(number)}, pa.struct([("a", kind)])),
    ):
        refused: dict[int, str] = {}
        column = to_column([value, None], of, refused)
        assert column.null_count == 2
        part = f"at a: {kind}" if isinstance(value, dict) else str(of)
        assert refused[0].startswith(f"{part} cannot hold")


def test_the_reason_names_the_field_of_an_object_that_is_refused() -> None:
    kind = pa.struct([("of", OBJECT), ("to", pa.list_(pa.int8()))])
    refused: dict[int, str] = {}
    values = [{"of": {"a": 2**63}}, {"of": {"a": 0.5}}, {"to": [300]}, {"of": {"a": 1}, "to": [1]}]
    assert to_column(values, kind, refused).null_count == 3
    assert refused == {
        0: "at of.a: int64 cannot hold 9223372036854775808",
        1: "at of.a: int64 cannot hold 0.5",
        2: "at to: list<item: int8> cannot hold [300]",
    }


@pytest.mark.parametrize("kind", [pa.decimal32(9, 2), pa.decimal128(38, 2), pa.decimal256(76, 2)])
def test_a_decimal_with_more_places_than_arrow_can_scale_is_refused_and_does_not_become_zero(
    kind: pa.DataType,
) -> None:
    values = [Decimal(f"1e-{places}") for places in range(3, 400)]
    values += [Decimal("1." + "0" * zeros + "1") for zeros in range(2, 400)]
    refused: dict[int, str] = {}
    column = to_column([*values, Decimal("1.25")], kind, refused)
    assert column.null_count == len(values)
    assert refused.keys() == set(range(len(values)))
    assert column[-1].as_py() == Decimal("1.25")
