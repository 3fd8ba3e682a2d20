"""The compiled walk stays inside its rows. `test_json_properties.py` compares its results with msgspec's."""

from __future__ import annotations

import numpy as np
import pytest

from kmr.values.json import json_kernel as kernel

NAMES = np.frombuffer(b"ab", np.uint8)
FIELDS = np.array([[kernel.INTEGER, 0, 1, -9, 9], [kernel.TEXT, 1, 0, 0, 0]], np.int64)
ENDS = np.array([1, 2], np.int64)


def parse(*texts: bytes) -> tuple[list[list[int]], list[int]]:
    """Walk texts that follow each other without a gap; return what each cell is, and the rows left."""
    data = np.frombuffer(b"".join(texts), np.uint8)
    sizes = np.array([len(text) for text in texts], np.int64)
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - sizes
    names = np.frombuffer(bytearray(NAMES), np.uint8)
    _, kinds, others, left = kernel.parse(data, starts, ends, names, ENDS, FIELDS, False)  # noqa: FBT003
    assert others.tolist() == (kinds != kernel.VALUE).sum(axis=1).tolist() or left.any()
    return kinds.T.tolist(), left.tolist()


WHOLE = b'{"a":1,"b":"x","c":{"d":[1,2,{}]}}'


def test_each_prefix_of_a_text_is_left_to_msgspec_even_if_the_next_text_would_complete_it() -> None:
    for size in range(len(WHOLE)):
        kinds, left = parse(WHOLE, WHOLE[:size], WHOLE[size:] + WHOLE)
        assert kinds[0] == [kernel.VALUE, kernel.VALUE]
        assert left[:2] == [0, 1], WHOLE[:size]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"a":1}', [kernel.VALUE, kernel.MISSING]),
        (b'{"b":null,"a":9}', [kernel.VALUE, kernel.NULL]),
        (b'{"a":10,"b":"\\n"}', [kernel.ODD, kernel.ODD]),
        (b'{ "a" : -9 , "b" : [ ] } ', [kernel.VALUE, kernel.ODD]),
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
    assert kinds[1] == kinds[2] == [kernel.VALUE, kernel.VALUE]
