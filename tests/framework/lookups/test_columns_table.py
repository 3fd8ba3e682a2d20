"""Joins of a per-batch map with a table."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from kmr import Json, Lookup, Strategy, map_batch
from kmr.errors import StrategyError
from kmr.lookups.columns_table import ColumnsStore, ColumnsTable
from kmr.lookups.table import NoRow
from kmr.testing import Journal, MemoryWriter, run_strategy
from tests.framework.lookups.test_store import records


class Customer(msgspec.Struct):
    id: int
    name: str
    tags: list[str] = []


class Order(msgspec.Struct):
    customer: int | None


LOOKUP = Lookup("customers", key="id", value=Json(Customer))
ORDERS = pa.RecordBatch.from_pydict(
    {"n": [0, 1, 2, 3], "customer": pa.array([2, 7, None, 1], pa.int32())}
)


def joined(store: ColumnsStore, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.table().join(ORDERS, on="customer", **options).to_pylist()
    return rows


@pytest.fixture
def store() -> ColumnsStore:
    made = ColumnsStore("customers", LOOKUP)
    made.apply(records((b"1", Customer(1, "ada", ["x"])), (b"2", Customer(2, "bob"))))
    made._merge()
    made.apply(records((b"2", Customer(2, "bo", ["y", "z"])), (b"3", Customer(3, "eve"))))
    return made


def test_rows_of_the_base_and_newer_ones_are_joined_and_missing_ones_are_null(
    store: ColumnsStore,
) -> None:
    assert joined(store) == [
        {"n": 0, "customer": 2, "name": "bo", "tags": ["y", "z"]},
        {"n": 1, "customer": 7, "name": None, "tags": None},
        {"n": 2, "customer": None, "name": None, "tags": None},
        {"n": 3, "customer": 1, "name": "ada", "tags": ["x"]},
    ]
    assert joined(store, columns={"name": "who"})[0] == {"n": 0, "customer": 2, "who": "bo"}
    rows = store.table().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == [(1, "ada"), (2, "bo"), (3, "eve")]


def test_a_join_that_cannot_be_says_why(store: ColumnsStore) -> None:
    table = store.table()
    with pytest.raises(StrategyError, match="no column who, which on= names; it has n, customer"):
        table.join(ORDERS, on="who")
    with pytest.raises(StrategyError, match="the table has no column age; it has id, name, tags"):
        table.join(ORDERS, on="customer", columns=["age"])
    with pytest.raises(StrategyError, match="a column n already; rename it: columns="):
        table.join(ORDERS, on="customer", columns={"name": "n"})
    with pytest.raises(StrategyError, match="the key has the fields id; on= names 2"):
        table.join(ORDERS, on=["n", "customer"])
    numbers: list[Any] = [[2.0, 2.5], [Decimal("2.0"), None]]
    for each in numbers:
        batch = pa.RecordBatch.from_pydict({"customer": each})
        found = table.join(batch, on="customer", columns=["name"]).column("name")
        assert found.to_pylist() == ["bo", None]
    huge = pa.RecordBatch.from_pydict({"customer": pa.array([2**64 - 1], pa.uint64())})
    assert table.join(huge, on="customer").column("name").to_pylist() == [None]
    words = pa.RecordBatch.from_pydict({"customer": ["a"]})
    with pytest.raises(StrategyError, match="column customer is string, the key id is int64"):
        table.join(words, on="customer")


def test_the_map_decides_by_a_column_that_tells_whether_there_is_a_row(store: ColumnsStore) -> None:
    rows = joined(store, columns=["name"], found="known")
    assert [row["known"] for row in rows] == [True, False, False, True]
    with pytest.raises(StrategyError, match="a column name already"):
        store.table().join(ORDERS, on="customer", found="name")


def test_records_without_a_row_fail_and_the_map_is_called_again_with_the_others() -> None:
    lookup = Lookup("customers", key="id", value=Json(Customer), missing="dead-letter")
    table = ColumnsTable.of(
        "customers", lookup, pa.RecordBatch.from_pydict({"id": [1, 3], "name": ["ada", "eve"]})
    )
    calls: list[int] = []

    @map_batch
    def enriched(orders: pa.RecordBatch) -> Any:
        calls.append(len(orders))
        return table.join(orders, on="customer", columns=["name"])

    strategy = Strategy(
        value=Json(Order),
        map=enriched,
        reduce=MemoryWriter(Journal()),
        reduce_err=MemoryWriter(Journal()),
    )
    run = run_strategy(strategy, [{"customer": n} for n in (1, 2, 3, 4, 1, None)])
    assert [(row["customer"], row["name"]) for row in run.rows] == [
        (1, "ada"),
        (3, "eve"),
        (1, "ada"),
    ]
    assert [(each["offset"], each["reason"]) for each in run.failures] == [
        (offset, f"NoRow: customers has no row of the key {key}")
        for offset, key in ((1, 2), (3, 4), (5, None))
    ]
    assert calls[-2:] == [6, 3]
    assert (table.get(2, "none"), table.get(1)["name"]) == ("none", "ada")
    with pytest.raises(NoRow, match="customers has no row of the key 2"):
        table.get(2)


def test_an_empty_table_joins_nulls() -> None:
    store = ColumnsStore("customers", LOOKUP)
    assert {row["name"] for row in joined(store)} == {None}
    assert store.table().to_arrow().num_rows == 0
