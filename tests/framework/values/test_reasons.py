"""Reasons name the field."""

from __future__ import annotations

import datetime as dt  # noqa: TC003  msgspec reads the annotation
from typing import Annotated, Literal

import msgspec
import pyarrow as pa
import pytest

from kmr import Json
from kmr.values.value_format import reason_of_value


class Inner(msgspec.Struct):
    x: int


class Outer(msgspec.Struct):
    items: list[Inner]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"items":[{"x":1},{"x":"a"}]}', "field items[1].x: expected int, got str"),
        (b'{"items":[{}]}', "field items[0].x: missing, and it has no default"),
        (b"{}", "field items: missing, and it has no default"),
        (b"", "value: input data was truncated"),
    ],
)
def test_a_reason_names_the_field_at_any_depth(text: bytes, reason: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(text, type=Outer)
    assert reason_of_value(caught.value) == reason


class Wide(msgspec.Struct):
    counts: dict[int, int] = {}
    at: dt.datetime | None = None
    kind: Literal["a", "b"] = "a"
    text: str = ""
    age: Annotated[int, msgspec.Meta(ge=18)] = 18


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"at":"yesterday"}', "field at: invalid RFC3339 encoded datetime: 'yesterday'"),
        (b'{"kind":"c"}', "field kind: invalid enum value 'c'"),
        (b'{"age":3}', "field age: expected int >= 18: 3"),
        (b'{"age":1e400}', "field age: number out of range: Decimal('1E+400')"),
        (b'{"text":null}', "field text: expected str, got null"),
        (b'{"text":1,"text":"b"}', "field text: expected str, got int"),  # which was it?
        (b'{"counts":{"1":2,"3":"x"}}', "field counts[...]: expected int, got str: 'x'"),
        (b'{"counts":{"1":"x","3":"y"}}', "field counts[...]: expected int, got str"),
        (b'{"counts":{"a":1}}', "field counts (a key): expected int, got str"),
        (b'{"text":"\\ud83d"}', "value: JSON is malformed: invalid utf-16 surrogate pair (byte 9)"),
        (b'{"text":"\\ud83d', "value: input data was truncated"),
    ],
)
def test_a_reason_shows_the_value_where_it_is_known_which_one_it_is(
    text: bytes, reason: str
) -> None:
    decoded = Json(Wide).decode(pa.array([text], pa.binary()))
    assert decoded.failures == {0: reason}


def test_the_reason_of_pydantic_is_its_first_error() -> None:
    class PydanticError(ValueError):
        def errors(self, **_: bool) -> list[dict[str, object]]:
            return [{"loc": ("a", 0), "msg": "Input should be a valid integer"}]

    assert reason_of_value(PydanticError()) == "field a.0: input should be a valid integer"
