"""Values that Arrow cannot read without ending the process are refused one by one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from kmr.values.readable import ENDLESS, readable


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


class Lazy:
    @property
    def __class__(self) -> Any:
        raise ValueError("no connection")

    @__class__.setter
    def __class__(self, cls: Any) -> None:
        raise AssertionError


def test_values_that_can_be_read_are_returned_as_they_are() -> None:
    refused: dict[int, str] = {}
    values = [1, 2**80, "a", "\ud800", None, {1, 2}, Decimal(1), nested(20), object]
    assert readable(values, refused) == values
    assert refused == {}


def test_a_value_that_contains_itself_alone_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    refused: dict[int, str] = {}
    assert readable([[1], endless, {"a": endless}, [2]], refused) == [[1], None, None, [2]]
    assert refused == {1: ENDLESS, 2: ENDLESS}


def test_a_value_that_is_nested_too_deeply_for_the_encoder_is_refused() -> None:
    refused: dict[int, str] = {}
    assert readable([1, nested(100_000)], refused) == [1, None]
    assert refused == {1: ENDLESS}


@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: [each], lambda each: {"a": each}])
def test_an_object_whose_class_raises_is_refused_with_its_reason(wrap: Any) -> None:
    refused: dict[int, str] = {}
    assert readable([1, wrap(Lazy()), 2], refused) == [1, None, 2]
    assert list(refused) == [1]
    assert "no connection" in refused[1]


def test_rows_are_numbered_from_the_first() -> None:
    refused: dict[int, str] = {}
    readable([1, nested(100_000), 3], refused, first=10)
    assert list(refused) == [11]
