"""Rows of a declared class: a value of another class than the annotation's fails alone, or is as good."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypedDict
from uuid import UUID

import attrs
import msgspec
import pytest

from kmr.mapping.results import from_rows
from kmr.values.schemas import row_type


class Color(Enum):
    RED = "red"


class Place(msgspec.Struct):
    city: str
    zip: str | None = None


class Larger(msgspec.Struct):
    city: str
    country: str


class Tag(TypedDict):
    name: str


class Row(msgspec.Struct):
    id: int
    color: Color | None = None
    uuid: UUID | None = None
    words: frozenset[str] | None = None
    numbers: tuple[int, ...] | None = None
    counts: dict[str, int] | None = None
    place: Place | None = None
    places: list[Place] | None = None
    tag: Tag | None = None


def made(rows: list[Any], cls: type | None = Row) -> tuple[dict[int, Any], dict[int, str]]:
    """The rows that arrive and the reasons of the others, by their numbers."""
    mapped = from_rows(row_type(cls) if cls else None, rows, range(len(rows)), [])
    found = [] if mapped.table is None else mapped.table.to_pylist()
    failed = {failure.offset: failure.reason for failure in mapped.failures}
    return dict(zip(mapped.offsets.tolist(), found, strict=True)), failed


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("color", "green", "field color: Color cannot hold 'green'"),
        ("color", ["red"], "field color: Color cannot hold ['red']"),
        ("uuid", 5, "field uuid: UUID cannot hold 5"),
        ("words", "red", "field words: list<item: string not null> cannot hold 'red'"),
        ("words", {"a": 1}, "field words: list<item: string not null> cannot hold {'a': 1}"),
        ("numbers", b"x", "field numbers: list<item: int64 not null> cannot hold b'x'"),
        ("numbers", 5, "cannot hold 5 (TypeError: 'int' object is not iterable)"),
        ("counts", "red", "field counts: map<string, int64> cannot hold 'red' (ValueError"),
        ("place", "x", "field place: Place cannot hold 'x'"),
        ("place", Larger("x", "y"), "it lacks the field 'country'"),
        ("place", {"city": "x", "country": "y"}, "it lacks the field 'country'"),
        ("places", [5], "field places: Place cannot hold 5"),
        ("tag", {"name": "x", "more": 1}, "it lacks the field 'more'"),
    ],
)
def test_a_value_of_another_class_than_declared_fails_alone(
    name: str, value: Any, reason: str
) -> None:
    rows = [Row(1), Row(2, **{name: value}), Row(3)]
    found, failed = made(rows)
    assert [row["id"] for row in found.values()] == [1, 3]
    assert reason in failed[1]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("color", "red", "red"),
        ("uuid", "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000001"),
        ("words", ["a", "b"], ["a", "b"]),
        ("place", {"city": "x"}, {"city": "x", "zip": None}),
        ("place", Larger("x", None), {"city": "x", "zip": None}),  # type: ignore[arg-type]
        ("places", [{"city": "x", "zip": "1"}], [{"city": "x", "zip": "1"}]),
    ],
)
def test_what_stands_for_a_value_of_the_declared_class_is_stored(
    name: str, value: Any, expected: Any
) -> None:
    found, failed = made([Row(1), Row(2, **{name: value})])
    assert not failed
    assert found[1][name] == expected


def test_a_row_of_the_class_beside_a_dict_is_converted_as_without_it() -> None:
    row = Row(1, Color.RED, UUID(int=1), frozenset("a"), place=Place("x"))
    (alone,) = made([row])[0].values()
    found, failed = made([row, {"id": 2, "color": "red", "place": {"city": "y"}}])
    assert not failed
    assert found[0] == alone
    assert found[1] == dict.fromkeys(alone) | {
        "id": 2, "color": "red", "place": {"city": "y", "zip": None},
    }  # fmt: skip


@dataclass
class Unset:
    id: int
    total: int = field(init=False)


@attrs.define
class UnsetAttrs:
    id: int
    total: int = attrs.field(init=False)


@dataclass
class Detached:
    id: int
    total: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "total" and object.__getattribute__(self, "id") == 1:
            raise LookupError("the session is closed")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("cls", [Unset, UnsetAttrs, Detached])
@pytest.mark.parametrize("declared", [True, False])
def test_an_object_with_a_field_that_cannot_be_read_fails_alone(cls: Any, declared: bool) -> None:
    whole = cls(2)
    whole.total = 5
    found, failed = made([cls(1), whole], cls if declared else None)
    assert found == {1: {"id": 2, "total": 5}}
    assert "total" in failed[0] or failed[0] == "LookupError: the session is closed"
