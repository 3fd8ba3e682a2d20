"""Tagged rows against lists of pairs: whatever is sliced, taken and joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.tagged_rows import branches, is_tagged, schemas, tag, tagged_nbytes, tagged_schema

pytestmark = pytest.mark.hypothesis


def tagged(names: list[str]) -> pa.Table:
    """Rows numbered from 0, each tagged with a name; the columns of each name differ."""
    order = {
        name: np.array([at for at, each in enumerate(names) if each == name], np.int64)
        for name in dict.fromkeys(names)
    }
    tables = {
        name: pa.table({"n": at, f"of {name}": [str(each) for each in at.tolist()]})
        for name, at in order.items()
    }
    return tag(tables, order)


def pairs(table: pa.Table) -> list[tuple[str, Any]]:
    found = {}
    for name, rows, places in branches(table):
        assert rows.column_names[0] == "n"
        for place, number in zip(places.tolist(), rows.column("n").to_pylist(), strict=True):
            found[place] = (name, number)
    return [found[place] for place in range(table.num_rows)]


names = st.lists(st.integers(0, 300).map("branch {}".format), min_size=1, max_size=400)


@given(names, st.data())
def test_rows_come_back_with_their_names_in_order(of_rows: list[str], data: st.DataObject) -> None:
    table = tagged(of_rows)
    expected = list(zip(of_rows, range(len(of_rows)), strict=True))
    start = data.draw(st.integers(0, len(of_rows)))
    stop = data.draw(st.integers(start, len(of_rows)))
    some = data.draw(st.lists(st.integers(0, len(of_rows) - 1), max_size=20))
    assert pairs(table) == expected
    assert pairs(table.slice(start, stop - start)) == expected[start:stop]
    assert pairs(table.take(pa.array(some, pa.int64()))) == [expected[at] for at in some]
    parts = [table.slice(start, stop - start), table.slice(0, start)]
    assert pairs(pa.concat_tables(parts)) == expected[start:stop] + expected[:start]
    chosen = [at % 3 == 0 for at in range(len(of_rows))]
    assert pairs(table.filter(pa.array(chosen))) == expected[::3]


def test_more_branches_than_a_union_has_members_are_a_union_of_unions() -> None:
    table = tagged([f"branch {number}" for number in range(500)])
    assert len(schemas(table.schema)) == 500
    assert is_tagged(table.schema)
    assert [number for _, number in pairs(table)] == list(range(500))


def test_declared_columns_are_those_of_the_rows() -> None:
    declared = {"a": pa.schema([("x", pa.int64())]), "b": pa.schema([("y", pa.string())])}
    assert schemas(tagged_schema(declared)) == declared
    assert not is_tagged(declared["a"])


def test_rows_are_sent_to_another_process_as_any_table() -> None:
    table = tagged(["a", "b", "a"]).slice(1)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    assert pairs(pa.ipc.open_stream(sink.getvalue()).read_all()) == [("b", 1), ("a", 2)]


def test_a_slice_has_the_size_of_its_rows() -> None:
    table = tagged(["a", "b"] * 500)
    assert tagged_nbytes(table.slice(0, 10)) < tagged_nbytes(table) / 50


@given(names, st.data())
def test_the_sizes_of_two_parts_are_that_of_the_whole(
    of_rows: list[str], data: st.DataObject
) -> None:
    table = tagged(of_rows)
    at = data.draw(st.integers(0, len(of_rows)))
    parts = tagged_nbytes(table.slice(0, at)) + tagged_nbytes(table.slice(at))
    bits = 8 * len(set(of_rows))  # of validity and of offsets, which both parts have
    assert abs(parts - tagged_nbytes(table)) <= bits


def test_a_column_of_a_map_that_is_a_union_is_no_branches() -> None:
    union = pa.UnionArray.from_dense(
        pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])], ["num"]
    )
    assert not is_tagged(pa.table({"row": union}).schema)
