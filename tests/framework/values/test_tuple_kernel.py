"""The compiled reader of packed rows: slots and validity, up to the first value of another kind."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from kmr.values.tuple_kernel import BINARY, BOOLEAN, FLOAT, INTEGER, MOMENT, TEXT, read_tuples


def read(rows: list[tuple[Any, ...]], *kinds: int) -> tuple[bool, list[int], list[int]]:
    """Return whether all was read, the slots and their validity, column by column."""
    data = np.frombuffer(msgspec.msgpack.encode(rows), np.uint8)
    bases = np.arange(len(kinds), dtype=np.int64) * len(rows)
    values = np.full(len(rows) * len(kinds), -7, np.int64)
    valid = np.full(len(values), 7, np.uint8)
    done = read_tuples(data, np.array(kinds, np.int64), bases, values, valid)
    return done, values.tolist(), valid.tolist()


@pytest.mark.parametrize("count", [1, 15, 16, 65_535, 65_536])
def test_any_number_of_rows_is_read(count: int) -> None:
    done, values, valid = read([(row, None) for row in range(count)], INTEGER, TEXT)

    assert done
    assert values == [*range(count), *[0] * count]
    assert valid == [*[1] * count, *[0] * count]


def test_rows_have_any_number_of_columns() -> None:
    for count in (1, 15, 16, 300):
        done, values, _ = read([tuple(range(count))], *[INTEGER] * count)
        assert done
        assert values == list(range(count))


def test_texts_and_bytes_are_places_in_the_data() -> None:
    done, (text, piece), _ = read([("abc", b"de")], TEXT, BINARY)

    assert done
    assert (text >> 32, text & 0xFFFFFFFF) == (3, 3)
    assert (piece >> 32, piece & 0xFFFFFFFF) == (8, 2)


@pytest.mark.parametrize("kind", [INTEGER, FLOAT, BOOLEAN, TEXT, BINARY, MOMENT])
def test_a_value_of_another_kind_ends_the_reading(kind: int) -> None:
    of_kind = {INTEGER: 1, FLOAT: 1.5, BOOLEAN: True, TEXT: "x", BINARY: b"x"}
    for other, value in of_kind.items():
        assert read([(value,)], kind)[0] == (other == kind)
    assert not read([([1],)], kind)[0]
    assert not read([({"a": 1},)], kind)[0]
