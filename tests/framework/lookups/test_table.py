"""What a map asks of a table, with given rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from kmr import Json, Lookup, LookupTable, Strategy, map_batch
from kmr.errors import StrategyError
from kmr.lookups.given import GivenRows
from kmr.sinks import StreamWriter
from kmr.testing import run_strategy

if TYPE_CHECKING:
    import pyarrow as pa


class Customer(msgspec.Struct):
    id: int
    name: str


class Order(msgspec.Struct):
    customer: int


LOOKUP = Lookup("customers", key="id", value=Json(Customer))
ORDERS = [{"customer": 1}, {"customer": 7}]


def strategy(function: Any) -> Strategy:
    made = Strategy(
        value=Json(Order),
        map=function,
        tables={"customers": LOOKUP},
        reduce=StreamWriter("stdout"),
        reduce_err=StreamWriter("stderr"),
    )
    return made.with_tables({"customers": [Customer(1, "ada")]})


def test_a_row_that_is_missing_is_none_or_fails_its_record() -> None:
    def by_get(order: Order, customers: LookupTable) -> dict[str, Any]:
        found = customers.get(order.customer)
        return {"name": found and found.name, "known": order.customer in customers}

    def by_key(order: Order, customers: LookupTable) -> dict[str, Any]:
        return {"name": customers[order.customer].name}

    assert run_strategy(strategy(by_get), ORDERS).rows == [
        {"name": "ada", "known": True},
        {"name": None, "known": False},
    ]
    run = run_strategy(strategy(by_key), ORDERS)
    assert run.rows == [{"name": "ada"}]
    assert [each["reason"] for each in run.failures] == ["NoRow: customers has no row of the key 7"]


def test_a_map_of_batches_joins() -> None:
    @map_batch
    def enriched(orders: pa.RecordBatch, customers: LookupTable) -> pa.RecordBatch:
        joined: pa.RecordBatch = customers.join(orders, on="customer")
        return joined.select(["customer", "name", "kmr_offset"])

    assert run_strategy(strategy(enriched), ORDERS).rows == [
        {"customer": 1, "name": "ada"},
        {"customer": 7, "name": None},
    ]


async def test_an_async_map_looks_things_up_too() -> None:
    async def enriched(order: Order, customers: LookupTable) -> dict[str, Any]:
        return {
            "size": len(customers),
            "name": customers.get(order.customer, Customer(0, "?")).name,
        }

    assert run_strategy(strategy(enriched), ORDERS).rows == [
        {"size": 1, "name": "ada"},
        {"size": 1, "name": "?"},
    ]


def test_what_is_for_batches_is_refused_in_a_map_of_records() -> None:
    def wrong(order: Order, customers: LookupTable) -> dict[str, Any]:
        return {"rows": customers.to_arrow().num_rows}

    with pytest.raises(StrategyError, match=r"customers.to_arrow is for a per-batch map"):
        run_strategy(strategy(wrong), ORDERS)
    with pytest.raises(StrategyError, match=r"customers.join is for a per-batch map"):
        GivenRows(LOOKUP, []).table("customers", as_columns=False).join(None, on="x")
