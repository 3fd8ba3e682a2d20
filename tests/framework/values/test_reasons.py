"""Reasons name the field."""

from __future__ import annotations

import msgspec
import pytest

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


def test_the_reason_of_pydantic_is_its_first_error() -> None:
    class PydanticError(ValueError):
        def errors(self, **_: bool) -> list[dict[str, object]]:
            return [{"loc": ("a", 0), "msg": "Input should be a valid integer"}]

    assert reason_of_value(PydanticError()) == "field a.0: input should be a valid integer"
