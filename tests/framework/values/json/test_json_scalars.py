"""Scalars that come one after the other are read by two loops, which end at anything else."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from kmr import Json

from .walking import walk


class Row(msgspec.Struct):
    a: int
    b: float | None = None
    inner: list[int] | None = None
    pairs: dict[str, int] | None = None
    c: int | None = None


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    a: int
    b: int | None = None


def left_by_walk(cls: type, texts: list[bytes]) -> list[int]:
    """Return which rows the compiled walk leaves to msgspec."""
    return np.flatnonzero(walk(cls, texts).statuses).tolist()


def decoded(cls: type, texts: list[bytes]) -> list[dict[str, Any]]:
    found = Json(cls).decode(pa.array(texts, pa.binary()))
    assert not found.failures
    return found.columns.to_pylist(maps_as_pydicts="strict")


def rows_of(source: random.Random, count: int) -> list[dict[str, Any]]:
    def integer() -> int:
        return source.randrange(-(10 ** source.randrange(1, 19)), 10 ** source.randrange(1, 19))

    return [
        {
            "a": integer(),
            "b": source.choice([None, 0.5, -1e-7, float(integer() % 1000)]),
            "inner": [integer() for _ in range(source.randrange(9))],
            "pairs": {f"{key}": integer() for key in range(source.randrange(4))},
            "c": source.choice([None, integer()]),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,", " :"), (",\n", ":\t")])
def test_rows_with_any_white_space_are_read_without_msgspec(separators: tuple[str, str]) -> None:
    rows = rows_of(random.Random(1), 300)
    texts = [json.dumps(row, separators=separators).encode() for row in rows]
    assert left_by_walk(Row, texts) == []
    assert decoded(Row, texts) == rows


def test_fields_that_the_type_does_not_have_are_left_out_wherever_they_are() -> None:
    others = {"x": 1, "y": [1, {"z": None}], "t": 'a "text"', "f": 1.5}
    rows = rows_of(random.Random(2), 50)
    texts = []
    for at, row in enumerate(rows):
        pairs = [*row.items(), *list(others.items())[: at % 5]]
        random.Random(at).shuffle(pairs)
        texts.append(json.dumps(dict(pairs)).encode())
    assert left_by_walk(Row, texts) == []
    assert decoded(Row, texts) == rows


def test_a_closed_type_leaves_a_row_with_another_field_also_when_one_came_before() -> None:
    texts = [b'{"a":1,"b":2}', b'{"a":1,"x":2}', b'{"a":1,"x":2}', b'{"a":1,"x":[2]}', b'{"a":1}']
    assert left_by_walk(Closed, texts) == [1, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,}',
        b'{"a":01}',
        b'{"a":-}',
        b'{"a":1 2}',
        b'{"a":1]',
        b'{"a":1,"inner":[1,]}',
        b'{"a":1,"inner":[,1]}',
        b'{"a":1,"inner":[1 2]}',
        b'{"a":1,"inner":[1}',
        b'{"a":1,"inner":[00]}',
        b'{"a":1,"pairs":{"x":1,}}',
        b'{"a":1,"pairs":{"x":1]}',
        b'{"a":1,"inner":[1',
        b'{"a":1,"inner":[1,',
    ],
)
def test_what_is_no_json_is_left_to_msgspec_which_refuses_it(text: bytes) -> None:
    good = b'{"a":1,"inner":[1],"pairs":{"x":1}}'
    assert left_by_walk(Row, [good, text, good]) == [1]
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text, type=Row)


def test_a_field_that_comes_twice_is_left_to_msgspec_which_takes_the_last() -> None:
    texts = [b'{"a":1,"b":2,"a":2}', b'{"a":1,"a":2}', b'{"a":1,"a":3}']
    assert left_by_walk(Row, texts) == [0, 1, 2]
    assert [row["a"] for row in decoded(Row, texts)] == [2, 2, 3]


def test_lists_that_need_room_are_read_whole() -> None:
    rows = [{"a": 1, "inner": [*range(size)]} for size in (3000, 1, 0, 1024, 5000)]
    texts = [json.dumps(row).encode() for row in rows]
    assert left_by_walk(Row, texts) == []
    assert [row["inner"] for row in decoded(Row, texts)] == [row["inner"] for row in rows]
