"""Rows cast to the columns of a destination."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.sinks.parquet.columns import DestinationColumns

if TYPE_CHECKING:
    from pathlib import Path


def test_a_column_keeps_the_type_of_the_first_rows_and_new_ones_follow_it() -> None:
    columns = DestinationColumns("/x")
    assert columns.fit(pa.table({"a": [1], "empty": pa.nulls(1)})).table.column_names == ["a"]
    fitted = columns.fit(pa.table({"b": ["new"], "a": ["2"]}))
    assert fitted.table.to_pylist() == [{"a": 2, "b": "new"}]
    assert columns.fit(pa.table({"a": ["x"]})).refused == {0: "column a (int64) cannot hold 'x'"}
    assert columns.schema is not None
    assert [(each.name, str(each.type)) for each in columns.schema] == [
        ("a", "int64"),
        ("b", "string"),
    ]


def test_a_type_that_can_never_fit_refuses_its_values() -> None:
    columns = DestinationColumns("/x", pa.schema({"a": pa.int64()}))
    fitted = columns.fit(pa.table({"a": [[1], None]}))
    assert fitted.refused[0].startswith("column a (int64) cannot hold list<item: int64>")
    assert fitted.general == set(fitted.refused.values())
    assert fitted.kept().to_pylist() == [{"a": None}]


def test_a_nested_field_that_is_new_is_added() -> None:
    columns = DestinationColumns("/x")
    columns.fit(pa.table({"user": [{"name": "ada"}]}))
    rows: list[Any] = [{"user": {"name": "bob", "age": 7}}, {"user": {"age": 8}}]
    assert columns.fit(pa.Table.from_pylist(rows)).table.to_pylist() == [
        {"user": {"name": "bob", "age": 7}},
        {"user": {"name": None, "age": 8}},
    ]
    assert columns.fit(pa.table({"user": [{"age": "x"}]})).refused == {
        0: "column user.age (struct<name: string, age: int64>) cannot hold 'x'"
    }


@pytest.mark.parametrize(
    ("first", "then"),
    [([], ["x"]), ({}, {"a": 1}), ({"x": None}, {"x": "y"}), ([None], [1.5]), ([{}], [{"a": 1}])],
)
def test_what_is_empty_fixes_no_type(first: Any, then: Any) -> None:
    columns = DestinationColumns("/x")
    fitted = columns.fit(pa.Table.from_pylist([{"id": 1, "new": first}]))
    assert fitted.table.to_pylist() == [{"id": 1}]
    assert fitted.left_out == {"new": 1}
    fitted = columns.fit(pa.Table.from_pylist([{"id": 2, "new": then}]))
    assert fitted.table.to_pylist() == [{"id": 2, "new": then}]
    assert not fitted.left_out


def test_a_nested_field_that_is_empty_is_left_out_and_counted() -> None:
    fitted = DestinationColumns("/x").fit(
        pa.Table.from_pylist([{"user": {"name": "ada", "tags": []}}, {"user": None}])
    )
    assert fitted.table.to_pylist() == [{"user": {"name": "ada"}}, {"user": None}]
    assert fitted.left_out == {"user.tags": 1}


def test_rows_without_any_value_are_refused() -> None:
    fitted = DestinationColumns("/x").fit(pa.Table.from_pylist([{"props": {}}]))
    assert fitted.refused == {0: "/x has no column for it yet: it has no value but empty ones"}


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-100, 100).map(float))))
def test_exactly_the_rows_that_do_not_fit_are_refused(values: list[float | None]) -> None:
    table = pa.table(
        {"a": pa.array(values, pa.float64()), "row": pa.array(range(len(values)), pa.int64())}
    )
    fitted = DestinationColumns("/x", pa.schema({"a": pa.int64()})).fit(table)
    bad = {row for row, value in enumerate(values) if value is not None and value % 1 != 0}
    assert set(fitted.refused) == bad
    assert fitted.kept().column("row").to_pylist() == [
        row for row in range(len(values)) if row not in bad
    ]
    assert all(repr(values[row]) in reason for row, reason in fitted.refused.items())


@pytest.mark.parametrize(
    ("array", "stored", "refused"),
    [
        (pa.array([0, 2**62], pa.timestamp("s", "UTC")), pa.timestamp("ms", "UTC"), [1]),
        (pa.array([b"", b""], pa.binary(0)), pa.binary(), []),
        (pa.array([Decimal("5e3"), None], pa.decimal128(5, -3)), pa.decimal128(8, 0), []),
        (
            pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None])),
            pa.dictionary(pa.int64(), pa.string()),
            [],
        ),
    ],
    ids=lambda each: str(each)[:20],
)
def test_what_parquet_lacks_is_stored_as_what_it_has(
    array: Any, stored: Any, refused: list[int], tmp_path: Path
) -> None:
    fitted = DestinationColumns("/x").fit(pa.table({"v": array}))
    assert fitted.table.schema.field("v").type == stored
    assert list(fitted.refused) == refused
    pq.write_table(fitted.kept(), tmp_path / "file")
    kept = array.take(pa.array([row for row in range(len(array)) if row not in refused]))
    assert pq.ParquetFile(tmp_path / "file").read()["v"].to_pylist() == kept.to_pylist()


def test_only_rows_with_a_value_of_a_type_that_parquet_lacks_are_refused() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    fitted = DestinationColumns("/x").fit(pa.table({"id": [1], "v": union}))
    assert "column v of /x: Parquet has no type for sparse_union" in fitted.refused[0]
    assert fitted.general == {fitted.refused[0]}


def test_null_does_not_fit_a_column_that_cannot_be_null_and_bad_rows_may_have_it() -> None:
    needed = pa.schema([pa.field("id", pa.int8(), nullable=False), pa.field("n", pa.int8())])
    fitted = DestinationColumns("/x", needed).fit(pa.table({"id": [1, None, 300], "n": [1, 2, 3]}))
    assert fitted.refused == {
        1: "column id (int8) cannot be null",
        2: "column id (int8) cannot hold 300",
    }
    assert fitted.kept().schema == needed
    assert fitted.kept().to_pylist() == [{"id": 1, "n": 1}]


def test_a_failed_record_is_never_refused_for_its_values() -> None:
    kinds: dict[str, pa.DataType] = {
        "value": pa.string(),
        "offset": pa.int8(),
        "reason": pa.string(),
    }
    schema = pa.schema(kinds)
    rows = pa.table({"value": ["a"], "offset": [300], "reason": ["late"]})
    assert list(DestinationColumns("/x", schema).fit(rows).refused) == [0]
    fitted = DestinationColumns("/x", schema, letters=True).fit(rows)
    assert fitted.kept().to_pylist() == [
        {"value": "a", "offset": None, "reason": "late (not stored: offset 300)"}
    ]
