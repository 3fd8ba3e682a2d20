"""Which classes are rows, and what their objects have as fields."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple, TypedDict

import attrs
import msgspec
import pytest

from kmr.values.row_classes import fields_of, is_row_class


class Struct(msgspec.Struct, rename="camel"):
    user_id: int
    name: str = "x"


@dataclasses.dataclass
class Data:
    user_id: int
    name: str = "x"


@attrs.define
class Attrs:
    user_id: int
    name: str = "x"


class Model:
    """Looks like a pydantic model: this suite does not need pydantic."""

    model_fields: ClassVar = {"user_id": None, "name": None}
    model_extra: dict[str, Any] | None = None

    def __init__(self, user_id: int) -> None:
        self.user_id, self.name = user_id, "x"

    @classmethod
    def model_validate_json(cls, text: bytes) -> Any: ...


class Typed(TypedDict):
    user_id: int


class Pair(NamedTuple):
    user_id: int
    name: str


@pytest.mark.parametrize("cls", [Struct, Data, Attrs, Model, Typed])
def test_classes_with_declared_fields_are_rows(cls: type) -> None:
    assert is_row_class(cls)


@pytest.mark.parametrize("other", [dict, int, Pair, object, Struct(1), "Struct", None])
def test_other_classes_and_objects_are_no_rows(other: object) -> None:
    assert not is_row_class(other)


@pytest.mark.parametrize("cls", [Struct, Data, Attrs, Model])
def test_fields_are_the_attributes_in_their_order(cls: Any) -> None:
    assert list(fields_of(cls(user_id=1)).items()) == [("user_id", 1), ("name", "x")]


def test_a_model_may_have_fields_beyond_its_own() -> None:
    row = Model(1)
    row.model_extra = {"more": [2]}
    assert fields_of(row) == {"user_id": 1, "name": "x", "more": [2]}


def test_nested_objects_stay_objects() -> None:
    @dataclasses.dataclass
    class Outer:
        inner: Data

    inner = Data(1)
    assert fields_of(Outer(inner))["inner"] is inner


def test_a_field_that_is_not_set_raises() -> None:
    row = Data.__new__(Data)
    with pytest.raises(AttributeError, match="user_id"):
        fields_of(row)
