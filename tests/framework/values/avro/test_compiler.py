"""Which schemas cannot be read as which, and where our rules go beyond Avro's."""

from __future__ import annotations

from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.values.avro.program import SchemaPrograms
from kmr.values.avro.schema import Unresolvable, parse
from tests.examples import examples

from .generated import encode, varint
from .test_kernel import decode


def record(*fields: Any) -> Any:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": f"f{at}", "type": each} for at, each in enumerate(fields)],
    }


def enum(*symbols: str, **more: Any) -> Any:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def one(writer: Any, reader: Any, value: Any) -> tuple[Any, dict[int, str]]:
    into = BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(record(writer)), {"f0": value})
    rows, failures = decode([into.getvalue()], record(writer), record(reader))
    return rows[0]["f0"], failures


def logical(kind: str, of: str) -> dict[str, str]:
    return {"type": kind, "logicalType": of}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("long", "int", "field f0: long of the writer's schema cannot be read as int"),
        ("string", "int", "field f0: string of the writer's"),
        (["null", "string"], "int", r"field f0: \[null, string\] of the writer's"),
        ("int", ["null", "string"], r"cannot be read as \[null, string\]"),
        (
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "fixed", "name": "F", "size": 3},
            "fixed F",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
            r"bytes \(decimal\(9, 2\)\)",
        ),
        (logical("int", "date"), logical("long", "timestamp-micros"), r"int \(date\)"),
        (logical("int", "time-millis"), logical("long", "timestamp-micros"), "time-millis"),
        ("string", DECIMAL, "string of the writer"),  # its bytes are no number
        (DECIMAL, "string", "cannot be read as string"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_with_the_field(
    writer: Any, reader: Any, reason: str
) -> None:
    named: dict[str, Any] = {}
    program = SchemaPrograms(parse(record(reader), named), named)
    before = len(program.code.lines)
    written: dict[str, Any] = {}
    with pytest.raises(Unresolvable, match=reason):
        program.add(parse(record(writer), written), written)
    assert len(program.code.lines) == before


def test_a_missing_field_without_a_default_is_refused() -> None:
    named: dict[str, Any] = {}
    program = SchemaPrograms(parse(record("int", "int"), named), named)
    with pytest.raises(Unresolvable, match="field f1: the writer's schema has no such field"):
        program.add(record("int"), {})


@pytest.mark.parametrize(
    ("writer", "reader", "value", "found"),
    [
        (["null", "int"], "long", 5, 5),
        (["int", "string"], ["null", "string"], "x", "x"),
        ("int", ["null", "double"], 5, 5.0),
        ("float", ["string", "double"], 0.5, {"string": None, "double": 0.5}),
        ("int", ["null", "long", "int"], 5, 5),
        ("bytes", "string", "ä".encode(), "ä"),
        ("string", "bytes", "ä", "ä".encode()),
        (enum("A", "B"), enum("B", "C"), "B", "B"),
        (enum("A", "B"), enum("C", default="C"), "A", "C"),
        (enum("A", "B"), "string", "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, "bytes", b"ab", b"ab"),
    ],
)
def test_values_are_promoted(writer: Any, reader: Any, value: Any, found: Any) -> None:
    assert one(writer, reader, value) == (found, {})


def test_a_time_in_another_unit_is_converted() -> None:
    millis, micros = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
    assert one(millis, micros, 1500)[0].timestamp() == 1.5
    assert one(micros, millis, 1_500_000)[0].timestamp() == 1.5
    assert one(millis, micros, 2**62) == (
        None,
        {0: f"field f0: {2**62} is out of the range of its type"},
    )


@pytest.mark.parametrize(
    ("writer", "reader", "values", "reason"),
    [
        (
            logical("long", "timestamp-micros"),
            logical("long", "timestamp-millis"),
            [1_500_999, -1],
            "the time {} has more digits than the reader's unit",
        ),
        (
            logical("int", "time-millis"),
            logical("long", "time-micros"),
            [86_400_000, -1],
            "{} is out of the range of its type",
        ),
        (
            "long",
            "double",
            [2**53 + 1, 2**63 - 1, -(2**63) + 1],
            "the reader's float or double has not all digits of {}",
        ),
        (
            "int",
            "float",
            [2**24 + 1, 2**31 - 1],
            "the reader's float or double has not all digits of {}",
        ),
    ],
)
def test_what_a_promotion_would_change_is_refused_alone(
    writer: Any, reader: Any, values: list[int], reason: str
) -> None:
    kept = [0, 1000]
    encoded = [varint(value) for value in (kept[0], *values, kept[1])]
    rows, failures = decode(encoded, record(writer), record(reader))
    assert failures == {
        at: f"field f0: {reason.format(value)}" for at, value in enumerate(values, 1)
    }
    assert [row["f0"] is None for row in rows] == [False, *(True for _ in values), False]


@pytest.mark.parametrize(
    ("writer", "reader", "value", "reason"),
    [
        (
            ["null", "int"],
            "int",
            None,
            "branch 0 of the writer's union is not in the reader's schema",
        ),
        (enum("A", "B"), enum("B"), "A", "the reader's schema has no symbol 0 of the writer's"),
    ],
)
def test_values_without_a_place_in_the_readers_schema_fail_alone(
    writer: Any, reader: Any, value: Any, reason: str
) -> None:
    found, failures = one(writer, reader, value)
    assert found is None
    assert failures[0].startswith(f"field f0: {reason}")


def test_a_record_that_contains_itself_is_skipped() -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [
            {"name": "tags", "type": {"type": "map", "values": ["null", "double", "float"]}},
            {"name": "next", "type": {"type": "array", "items": "Node"}},
        ],
    }
    leaf: dict[str, Any] = {"tags": {"a": None, "b": 0.5}, "next": []}
    value = {"tags": {}, "next": [leaf, {"tags": {}, "next": [leaf]}]}
    into = BytesIO()
    fastavro.schemaless_writer(
        into, fastavro.parse_schema(record(node, "int")), {"f0": value, "f1": 7}
    )
    reader = {"type": "record", "name": "R", "fields": [{"name": "f1", "type": "int"}]}
    assert decode([into.getvalue()], record(node, "int"), reader) == ([{"f1": 7}], {})
    deep = [b"\0\2" * times + b"\0\0" + b"\0" * times + b"\x0e" for times in (2000, 5000)]
    rows, failures = decode(deep, record(node, "int"), reader)
    assert rows[0] == {"f1": 7}
    assert list(failures) == [1]
    assert failures[1].endswith("it is nested too deep")


@given(st.integers(-(10**9), 10**9), st.integers(1, 9))
@settings(max_examples=examples(60))
def test_decimals_may_be_fixed(unscaled: int, extra: int) -> None:
    size = 4 + extra
    fixed = {"type": "fixed", "name": "D", "size": size, "logicalType": "decimal", "precision": 11}
    raw = unscaled.to_bytes(size, "big", signed=True)
    rows, failures = decode([raw], record(fixed))
    assert (int(rows[0]["f0"]), failures) == (unscaled, {})


@given(st.integers(-(10**18) + 1, 10**18 - 1))
@settings(max_examples=examples(60))
def test_decimals_are_read_with_a_larger_scale(unscaled: int) -> None:
    small = {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}
    for precision, scale in ((38, 18), (76, 50)):
        large = {**small, "precision": precision, "scale": scale}
        found, failures = one(small, large, Decimal(unscaled).scaleb(-2))
        assert (found, failures) == (Decimal(unscaled).scaleb(-2), {})
    tiny = {**small, "precision": 20}
    oversized = encode(record("bytes"), {"f0": (2**100).to_bytes(13, "big")})
    assert decode([oversized], record(tiny), record({**tiny, "precision": 38, "scale": 18}))[1] == {
        0: "field f0: the decimal has too many digits"
    }
