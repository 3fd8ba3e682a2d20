"""Arguments of `Lookup`, and of the strategies that have one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kmr import Json, Lookup, Strategy, map_batch
from kmr.errors import StrategyError
from kmr.sinks import StreamWriter


class Customer(msgspec.Struct):
    id: int


class Tagged(Customer):
    tags: list[str]


CUSTOMERS = Lookup("customers", key="id", value=Json(Customer))


def strategy(function: Any, **options: Any) -> Strategy:
    return Strategy(value=Json(Customer), map=function, reduce=StreamWriter("stdout"), **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"key": "ID", "value": Json(Customer)}, "has no field ID, which key= names; it has id"),
        ({"key": (), "value": Json(Customer)}, "key= names no field"),
        (
            {"key": "tags", "value": Json(Tagged)},
            "key= names tags, which is list<.*>: a key has single",
        ),
        ({"key": "id", "value": Customer}, "is not a format: pass Json"),
        ({"key": "id", "value": Json(Customer), "max_bytes": 0}, "max_bytes must be at least 1"),
    ],
)
def test_wrong_arguments_are_explained(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(StrategyError, match=reason):
        Lookup("customers", **options)


def test_the_columns_of_a_join_are_known_before_the_first_record() -> None:
    class Shop(msgspec.Struct):
        id: int
        city: str

    @map_batch
    def joined(batch: Any, shops: Any) -> Any:
        return shops.join(batch, on="id").select(["id", "city", "kmr_offset"])

    shops = Lookup("shops", key="id", value=Json(Shop))
    found = strategy(joined, tables={"shops": shops}).row_schema
    assert found is not None
    assert found.names == ["id", "city"]
    unknown = Lookup.query("SELECT 1 AS id", key="id", every=1)
    assert strategy(joined, tables={"shops": unknown}).row_schema is None


def test_a_table_needs_a_map_with_a_parameter_of_its_name() -> None:
    def with_table(customer: Customer, customers: Any) -> dict[str, int]:
        return {"id": customer.id}

    def without(customer: Customer) -> dict[str, int]:
        return {"id": customer.id}

    assert (
        strategy(with_table, tables={"customers": CUSTOMERS}).map_spec.inputs.parameters == "value"
    )
    with pytest.raises(StrategyError, match="no map has a parameter of that name"):
        strategy(without, tables={"customers": CUSTOMERS})
    with pytest.raises(StrategyError, match="must be a Lookup, not 'customers'"):
        strategy(with_table, tables={"customers": "customers"})
    with pytest.raises(StrategyError, match="no table clients, only customers"):
        strategy(with_table, tables={"customers": CUSTOMERS}).with_tables({"clients": []})
