"""The set of recent keys, and the hashes of columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.memory.distinct_keys import RecentKeys, hashes_of
from tests.examples import examples

WITHIN = 10


def hashes(values: Any, kind: Any = None) -> list[list[int]]:
    found: list[list[int]] = hashes_of(pa.table({"k": pa.array(values, kind)}), ["k"])[0].tolist()
    return found


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4), st.booleans()), max_size=50),
        max_size=20,
    )
)
@settings(max_examples=examples(200), deadline=None)
def test_a_key_is_seen_if_it_came_before_within_the_time(
    batches: list[list[tuple[int, int, bool]]],
) -> None:
    keys, now = RecentKeys(WITHIN), 0
    last: dict[int, int] = {}
    for batch in batches:
        expected, times = [], []
        for key, later, wanted in batch:
            now += later
            times.append(now)
            expected.append(wanted and key in last and now - last[key] < WITHIN)
            if wanted:
                last[key] = now
        table = pa.table({"k": pa.array([key for key, _, _ in batch], pa.int64())})
        found = keys.see(
            hashes_of(table, ["k"])[0],
            np.array(times, np.int64),
            np.array([wanted for _, _, wanted in batch], np.bool_),
        )
        assert found.tolist() == expected


def test_memory_follows_the_keys_within_the_time() -> None:
    keys = RecentKeys(WITHIN)
    rng = np.random.default_rng(0)
    for at in range(200):
        rows = 20_000 if at < 100 else 200
        new = rng.integers(-(2**63), 2**63 - 1, (rows, 2), dtype=np.int64)
        times = np.full(rows, at, np.int64)
        assert not keys.see(new, times, np.ones(rows, np.bool_)).any()
        if at == 99:
            assert keys.nbytes / (WITHIN * 20_000) < 48
    assert keys.nbytes < 200_000


def test_a_key_takes_at_most_40_bytes() -> None:
    keys, rows = RecentKeys(WITHIN), 50_000
    rng = np.random.default_rng(0)
    worst = 0.0
    for number in range(1, 21):
        new = rng.integers(-(2**63), 2**63 - 1, (rows, 2), dtype=np.int64)
        keys.see(new, np.zeros(rows, np.int64), np.ones(rows, np.bool_))
        assert len(keys) == number * rows
        worst = max(worst, keys.nbytes / len(keys))
    assert worst <= 40


def test_hashes_are_those_of_murmur3() -> None:
    words = np.array(hashes(["The quick brown fox jumps over the lazy dog"]), np.int64)
    assert words.view(np.uint64).tolist() == [[0xE34BBC7BBC071B6C, 0x7A433CA9C49A9347]]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33])
def test_each_byte_of_a_value_counts(length: int) -> None:
    whole = bytes(range(1, length + 1))
    values = [whole, whole + b"\0"]
    values += [whole[:at] + b"\xff" + whole[at + 1 :] for at in range(length)]
    assert len(set(map(tuple, hashes(values, pa.binary())))) == len(values)


def test_equal_values_have_equal_hashes_in_any_form() -> None:
    text = ["one", "two", "", "a longer text of more than sixteen bytes"]
    forms: list[Any] = [
        pa.array(text),
        pa.array(text, pa.large_string()),
        pa.array(text).dictionary_encode(),
        pa.array(["x", *text]).slice(1),
        pa.array(text, pa.string_view()),
        pa.chunked_array([text[:1], text[1:]]),
    ]
    found = [hashes_of(pa.table({"k": form}), ["k"])[0].tolist() for form in forms]
    assert all(each == found[0] for each in found)
    assert hashes([1, -2], pa.int8()) == hashes([1, -2], pa.int64())
    assert hashes([7], pa.uint64()) == hashes([7], pa.int32())
    assert hashes(["", ""])[0] == hashes(["", "x"])[0]


def test_columns_are_kept_apart() -> None:
    table = pa.table({"a": ["x", "xy", "", "xyz"], "b": ["yz", "z", "xyz", ""]})
    found, _ = hashes_of(table, ["a", "b"])
    assert len(set(map(tuple, found.tolist()))) == 4


@pytest.mark.parametrize(
    "values",
    [[True, False], [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)]],
    ids=["booleans", "times"],
)
def test_values_of_fixed_width_differ(values: list[Any]) -> None:
    one, other = hashes(values)
    assert one != other


def test_a_null_in_any_column_is_no_key() -> None:
    table = pa.table({"a": [1, None, 1], "b": [None, 1, 1]})
    assert hashes_of(table, ["a", "b"])[1].tolist() == [False, False, True]


def test_a_column_that_is_missing_or_has_no_keys_is_named() -> None:
    with pytest.raises(StrategyError, match=r"no column 'id', only \['k'\]"):
        hashes_of(pa.table({"k": [1]}), ["id"])
    with pytest.raises(StrategyError, match="column 'k' is double, whose values are no key"):
        hashes([1.5])
