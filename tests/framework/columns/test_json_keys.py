"""Objects with a key twice are found in JSON texts."""

from __future__ import annotations

import pyarrow as pa

from kmr.columns.json_keys import repeated_keys


def test_a_key_that_is_twice_in_an_object_is_found_at_any_depth() -> None:
    twice = ['{"a": 1, "\\u0061": 2}', '[{"b": {"c": 1, "c": 1}}]', '{"a": {}, "a": {}}']
    once = ['{"a": {"a": 1}}', '[{"a": 1}, {"a": 2}]', '"a: a"', "x: 1", "[" * 100_000, None]
    numbers = ['{"a": 1e999999}', f'{{"a": {"9" * 6000}}}']
    found = repeated_keys(pa.array([*twice, *once, *numbers]))
    assert found is not None
    assert found.tolist() == [True] * 3 + [False] * 8
    assert repeated_keys(pa.array(["1", None])) is None
