"""The compiled walk stays inside its rows. `test_json_properties.py` compares its results with msgspec's."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from kmr.values.json.json_scalars import ESCAPED, MISSING, NULL, ODD, VALUE

from .walking import walk


class Row(msgspec.Struct):
    a: Annotated[int, msgspec.Meta(ge=-9, le=9)]
    b: str | None = None


def parse(*texts: bytes) -> tuple[list[list[int]], list[int]]:
    """Walk texts that follow each other without a gap; return what each cell is, and the rows left."""
    slots, others, statuses = walk(Row, texts)
    kinds = slots.valid.reshape(2, -1).T.tolist()
    assert {kind for row in kinds for kind in row} - {VALUE} <= {
        kind for kind in range(5) for seen in [*others.tolist(), statuses.any()] if seen & 1 << kind
    }
    return kinds, statuses.tolist()


WHOLE = b'{"a":1,"b":"x","c":{"d":[1,2,{}]}}'


def test_each_prefix_of_a_text_is_left_to_msgspec_even_if_the_next_text_would_complete_it() -> None:
    for size in range(len(WHOLE)):
        kinds, left = parse(WHOLE, WHOLE[:size], WHOLE[size:] + WHOLE)
        assert kinds[0] == [VALUE, VALUE]
        assert left[:2] == [0, 1], WHOLE[:size]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"a":1}', [VALUE, MISSING]),
        (b'{"b":null,"a":9}', [VALUE, NULL]),
        (b'{"a":10,"b":"\\n"}', [ODD, ESCAPED]),
        (b'{"a":"1","b":["x"]}', [ODD, ODD]),
        (b'{ "a" : -9 , "b" : [ ] } ', [VALUE, ODD]),
    ],
)
def test_a_cell_is_read_or_its_place_is_noted(text: bytes, found: list[int]) -> None:
    kinds, left = parse(text)
    assert kinds == [found]
    assert left == [0]


def test_a_field_in_another_place_than_before_is_found() -> None:
    kinds, left = parse(
        b'{"a":1,"b":"x"}', b'{"b":"x","a":1}', b'{"a":1,"b":"x"}', b'{"x":1,"a":1}'
    )
    assert left == [0, 0, 0, 0]
    assert kinds[1] == kinds[2] == [VALUE, VALUE]
