"""Batcher and Collect: rows put together, and handed to a function of the user."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.record import Range, Rows
from kmr.reducers.collect import Batcher, Collect

from ..flushes import Flushed, outcome


def rows_of(first: int = 0, **columns: Any) -> Rows:
    table = pa.table(columns)
    last = first + max(table.num_rows, 1) - 1
    offsets = np.arange(first, first + table.num_rows, dtype=np.int64)
    return Rows(table, (Range("t", 0, first, last),), offsets)


def delivered(result: object) -> pa.Table:
    out = result.out if isinstance(result, Flushed) else result
    assert isinstance(out, pa.Table)
    return out


def test_a_batcher_makes_one_table_of_many_in_order() -> None:
    batcher = Batcher(max_rows=100)
    batcher.add(rows_of(0, a=[1, 2]))
    batcher.add(rows_of(2, a=[3], b=["x"]))
    out = delivered(batcher.flush())
    assert out.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": 3, "b": "x"}]
    assert out.column("a").num_chunks == 1


def test_a_flush_that_is_repeated_gives_the_same_rows() -> None:
    batcher = Batcher()
    batcher.add(rows_of(a=[1]))
    assert delivered(batcher.flush()) == delivered(batcher.flush())


def test_what_was_given_away_is_not_changed_by_a_reset() -> None:
    batcher = Batcher()
    batcher.add(rows_of(a=[1]))
    out = delivered(batcher.flush())
    batcher.reset()
    batcher.add(rows_of(1, a=[2]))
    assert out.to_pylist() == [{"a": 1}]


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), min_size=1, max_size=8))
def test_a_batcher_loses_and_doubles_nothing(batches: list[list[int]]) -> None:
    batcher = Batcher()
    for batch in batches:
        batcher.add(rows_of(a=pa.array(batch, pa.int64())))
    expected = [number for batch in batches for number in batch]
    assert delivered(batcher.flush()).column("a").to_pylist() == expected


def test_columns_whose_types_do_not_go_together_are_a_clear_error() -> None:
    batcher = Batcher()
    batcher.add(rows_of(a=[1]))
    batcher.add(rows_of(1, a=["x"]))
    with pytest.raises(
        StrategyError, match=r"column a: 'x' is string, but .* int64; .*schema=\.\.\."
    ):
        batcher.flush()
    batcher.reset()
    batcher.add(rows_of(a=[2**60 + 1]))
    batcher.add(rows_of(1, a=[0.5]))
    with pytest.raises(
        StrategyError,
        match=r"column a \(double\) cannot hold 1152921504606846977",
    ):
        batcher.flush()


async def test_collect_calls_a_plain_function_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    def double(table: pa.Table) -> pa.Table:
        threads.append(threading.current_thread())
        return pa.concat_tables([table, table])

    collect = Collect(double)
    collect.add(rows_of(a=[1]))
    assert delivered(await outcome(collect)).column("a").to_pylist() == [1, 1]
    assert threads[0] is not threading.main_thread()


async def test_collect_awaits_an_async_function_on_the_event_loop() -> None:
    async def first(table: pa.Table) -> pa.RecordBatch:
        assert threading.current_thread() is threading.main_thread()
        return table.to_batches()[0]

    collect = Collect(first)
    collect.add(rows_of(a=[1]))
    assert delivered(await outcome(collect)).to_pylist() == [{"a": 1}]


async def test_a_function_that_returns_nothing_ends_the_chain() -> None:
    seen: list[int] = []
    collect = Collect(lambda table: seen.append(table.num_rows))
    collect.add(rows_of(a=[1, 2]))
    collect.add(rows_of(2, a=[3]))
    assert await outcome(collect) == Flushed(out=None)
    assert seen == [3]


async def test_a_function_that_returns_something_else_is_a_clear_error() -> None:
    collect = Collect(lambda _: {"a": 1})
    collect.add(rows_of(a=[1]))
    with pytest.raises(StrategyError, match=r"returned dict; return a pyarrow Table"):
        await outcome(collect)


async def test_the_functions_own_error_is_left_to_the_policy() -> None:
    def fail(_: pa.Table) -> None:
        raise ZeroDivisionError("by nothing")

    collect = Collect(fail)
    collect.add(rows_of(a=[1]))
    with pytest.raises(ZeroDivisionError):
        await outcome(collect)


def test_copies_share_no_rows() -> None:
    batcher = Batcher(max_rows=7)
    batcher.add(rows_of(a=[1]))
    other = copy.deepcopy(batcher)
    other.reset()
    other.add(rows_of(1, a=[2]))
    assert delivered(batcher.flush()).column("a").to_pylist() == [1]
    assert other.max_rows == 7


def test_they_can_travel_to_another_process() -> None:
    collect = pickle.loads(pickle.dumps(Collect(pa.Table.combine_chunks, max_rows=5)))
    assert collect.max_rows == 5
    assert collect.function is pa.Table.combine_chunks
