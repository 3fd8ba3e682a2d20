"""Rows of any form that calls return keep the number of their record."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.mapping.collecting import CollectedRows
from kmr.mapping.functions import apply
from kmr.mapping.inputs import Decoding
from kmr.testing import batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.hypothesis


class Row(msgspec.Struct):
    n: int


class Other(msgspec.Struct):
    n: int


def generated(rows: list[Any]) -> Iterator[Any]:
    yield from rows
    if not rows:
        raise ValueError("nothing to generate")


row = st.builds(Row, st.integers(0, 9)) | st.builds(Other, st.integers(0, 9))
several = st.lists(row, max_size=4)
result = (
    st.none()
    | row
    | several
    | several.map(tuple)
    | st.just(5)
    | st.just(ZeroDivisionError("raised"))
)


def rows_in(result: Any) -> list[Any] | None:
    """The rows of a result; None if it fails its record."""
    if result is None:
        return []
    if isinstance(result, Exception | int):
        return None
    return list(result) if isinstance(result, list | tuple) else [result]


def returned(result: Any) -> Any:
    if isinstance(result, Exception):
        raise result
    return result


async def awaited(result: Any) -> Any:
    return returned(result)


@given(st.lists(result, max_size=20))
async def test_each_row_keeps_the_number_of_its_record(results: list[Any]) -> None:
    numbers = [10 * at for at in range(len(results))]
    expected = [rows_in(each) for each in results]
    for is_async in (False, True):
        collected = CollectedRows(None)
        if is_async:
            calls = await collected.await_each(awaited, (results,), numbers)
        else:
            calls = collected.call_each(returned, (results,), numbers)
        assert calls == len(results)
        assert collected.rows == [row for rows in expected for row in rows or ()]
        assert collected.numbers == [
            number for number, rows in zip(numbers, expected, strict=True) for _ in rows or ()
        ]
        assert [failure.offset for failure in collected.failures] == [
            number for number, rows in zip(numbers, expected, strict=True) if rows is None
        ]


def test_a_generator_runs_in_the_call_that_returned_it() -> None:
    collected = CollectedRows(None)
    lists: list[list[Any]] = [[{"a": 1}, {"a": 2}], [], [{"a": 3}]]
    collected.call_each(generated, (lists,), [5, 6, 7])
    assert collected.rows == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert collected.numbers == [5, 5, 7]
    (failure,) = collected.failures
    assert (failure.offset, failure.reason) == (6, "ValueError: nothing to generate")


def test_a_list_that_the_function_fills_again_keeps_the_rows_of_each_call() -> None:
    reused: list[Any] = []

    def refilled(n: int) -> list[Any]:
        reused[:] = [{"n": n}]
        return reused

    collected = CollectedRows(None)
    collected.call_each(refilled, ([1, 2],), [1, 2])
    assert collected.rows == [{"n": 1}, {"n": 2}]


def test_calls_end_where_the_queue_is_emptied() -> None:
    queue = [1, 2, 3]

    def emptying(n: int) -> dict[str, int]:
        if n == 2:
            queue.clear()
        return {"n": n}

    collected = CollectedRows(None)
    assert collected.call_each(emptying, (queue,), [1, 2, 3]) == 2
    assert collected.numbers == [1, 2]


def test_a_function_of_two_parameters_is_called_with_an_item_of_each_list() -> None:
    collected = CollectedRows(None)
    collected.call_each(lambda a, b: {"sum": a + b}, ([1, 2], [10, 20]), [5, 6])
    assert (collected.rows, collected.numbers) == ([{"sum": 11}, {"sum": 22}], [5, 6])


def test_a_function_that_raises_stop_iteration_fails_its_record_alone() -> None:
    def first_of(items: list[int]) -> dict[str, int]:
        return {"n": next(iter(items))}

    collected = CollectedRows(None)
    assert collected.call_each(first_of, ([[1], [], [3], []],), [5, 6, 7, 8]) == 4
    assert (collected.rows, collected.numbers) == ([{"n": 1}, {"n": 3}], [5, 7])
    assert [failure.offset for failure in collected.failures] == [6, 8]


def test_a_mistake_in_the_strategy_ends_the_calls() -> None:
    def wrong(_: int) -> None:
        raise StrategyError("set something else")

    with pytest.raises(StrategyError, match="set something else"):
        CollectedRows(None).call_each(wrong, ([1],), [1])


def test_rows_go_without_a_garbage_collection() -> None:
    gone = weakref.WeakSet[Any]()

    class Tracked:
        pass

    def tracked(_: int) -> list[dict[str, Any]]:
        gone.add(value := Tracked())
        return [{"value": value}]

    gc.disable()
    try:
        apply(tracked, batch_of("t", 0, 0, [b""] * 3).records)
        assert not gone
    finally:
        gc.enable()


def test_a_map_that_fills_one_dict_anew_for_each_record_is_named() -> None:
    row: dict[str, Any] = {}

    def fill(n: int | None) -> dict[str, Any] | None:
        if n is None:
            return None
        row["n"] = n
        return row

    rows = CollectedRows(None)
    with pytest.raises(StrategyError, match=r"changed the row of a record .*column 'n'"):
        rows.call_each(fill, ([None, 1, 2],), [0, 1, 2])

    def add(n: int) -> dict[str, Any]:
        row[f"n{n}"] = n
        return row

    rows = CollectedRows(None)
    with pytest.raises(StrategyError, match="make a new dict for each record"):
        rows.call_each(add, ([1, 2],), [0, 1])


def test_one_constant_row_for_several_records_is_no_mistake() -> None:
    unknown = {"kind": "unknown"}
    rows = CollectedRows(None)
    assert rows.call_each(lambda _: unknown, ([1, 2, 3],), [0, 1, 2]) == 3
    assert rows.rows == [unknown] * 3
    assert rows.numbers == [0, 1, 2]


def test_the_calls_end_when_the_list_is_emptied_also_at_the_first_rows() -> None:
    for at in (0, 1, 9):
        records = list(range(12))

        def stop(n: int, at: int = at, records: list[int] = records) -> dict[str, int] | None:
            if n == at:
                records.clear()
            return {"n": n} if n % 2 else None

        assert CollectedRows(None).call_each(stop, (records,), list(range(12))) == at + 1


def decoded(text: int) -> int:
    """Decode a number; 7 raises an error, 8 what a validator may raise by mistake, 9 a StrategyError."""
    if text in (7, 8, 9):
        raise {7: ValueError, 8: StopIteration, 9: StrategyError}[text](f"bad {text}")
    return text * 10


@given(
    st.lists(st.integers(0, 9), max_size=30),
    st.integers(0, 40),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_values_that_are_decoded_when_they_are_called_fail_alone(
    texts: list[int], end: int, parameters: int, makes_rows: bool
) -> None:
    numbers = [100 + at for at in range(len(texts))]
    good = [at for at, text in enumerate(texts) if text < 7]
    queue, called = [*texts], []

    def function(value: int, number: int = 0) -> dict[str, int] | None:
        called.append(value)
        if parameters == 2:
            assert value == texts[number - 100] * 10
        if len(called) == end:
            queue.clear()
        if value == 50:
            raise KeyError(value)
        return {"n": value} if makes_rows else None

    collected = CollectedRows(None)
    decoding = Decoding(decoded, lambda text, error: f"{text}: {type(error).__name__}")
    lists = (queue,) if parameters == 1 else (queue, numbers)
    done = collected.call_each(function, lists, numbers, decoding)
    assert done == (good[end - 1] + 1 if 0 < end <= len(good) else len(texts))
    assert called == [texts[at] * 10 for at in good if at < done]
    failed = {failure.offset - 100: failure.reason for failure in collected.failures}
    assert list(failed) == [at for at in range(done) if texts[at] in (5, 7, 8, 9)]
    names = {7: "7: ValueError", 8: "8: StopIteration", 9: "9: StrategyError"}
    assert all(failed[at] == names[texts[at]] for at in failed if texts[at] != 5)
    if makes_rows:
        rows = [at for at in good if at < done and texts[at] != 5]
        assert collected.numbers == [numbers[at] for at in rows]
        assert collected.rows == [{"n": texts[at] * 10} for at in rows]


def test_one_object_of_a_value_is_in_memory_at_a_time() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    class Value:
        """An object that can be counted."""

    def decode(_text: int) -> Value:
        alive.add(value := Value())
        return value

    def count(_value: Value) -> None:
        nonlocal most
        most = max(most, len(alive))

    CollectedRows(None).call_each(
        count, ([0] * 50,), [0] * 50, Decoding(decode, lambda _text, error: str(error))
    )
    assert most <= 2


def test_an_error_of_the_function_that_ends_the_strategy_is_no_failure_to_decode() -> None:
    def wrong(_value: int) -> None:
        raise StrategyError("the strategy is wrong")

    with pytest.raises(StrategyError, match="the strategy is wrong"):
        CollectedRows(None).call_each(
            wrong, ([1, 2],), [1, 2], Decoding(decoded, lambda _text, error: str(error))
        )
