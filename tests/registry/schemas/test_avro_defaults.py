"""Default values of Avro's fields."""

from __future__ import annotations

from typing import Any

import pytest
from avro.errors import SchemaParseException
from avro.schema import make_avsc_object

from kmr.registry.schemas.avro_defaults import check_defaults

FIXED = {"type": "fixed", "name": "F", "size": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}
NESTED = {
    "type": "record",
    "name": "N",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0}],
}


def check(kind: Any, default: Any) -> None:
    field = {"name": "x", "type": kind, "default": default}
    record = {"type": "record", "name": "R", "fields": [field]}
    check_defaults(make_avsc_object([{"type": "map", "values": record}, "null"]))


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("null", None),
        ("boolean", False),
        ("int", 2**31 - 1),
        ("long", -(2**63)),
        ("double", 1),
        ("float", 1.5),
        ("bytes", "\\u00ff"),
        (["null", "int"], None),
        (["null", "int"], 1),
        ({"type": "array", "items": "int"}, [1]),
        ({"type": "map", "values": "int"}, {"a": 1}),
        (FIXED, "ab"),
        (ENUM, "A"),
        (NESTED, {"a": 1}),
        ({"type": "int", "logicalType": "date"}, 0),
    ],
)
def test_a_value_of_the_type_is_accepted(kind: Any, default: Any) -> None:
    check(kind, default)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("null", 0),
        ("int", True),
        ("int", 2**31),
        ("int", 1.0),
        ("double", "1"),
        ("string", 1),
        (["null", "int"], "a"),
        ({"type": "array", "items": "int"}, ["a"]),
        ({"type": "map", "values": "int"}, [1]),
        (FIXED, "abc"),
        (ENUM, 1),
        (NESTED, {}),
    ],
)
def test_another_value_is_refused_by_name(kind: Any, default: Any) -> None:
    with pytest.raises(
        SchemaParseException, match="of the field x of R is not a value of its type"
    ):
        check(kind, default)
