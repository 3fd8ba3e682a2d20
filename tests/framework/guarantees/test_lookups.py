"""Records that are joined with a table that changes, through workers that are killed around their writes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import psycopg
import pytest

from kmr import Json, Lookup, LookupTable, Strategy, map_batch
from kmr.record import TopicPartition

from .dying import Dying, DyingPostgresWriter, run_until_all_died, run_until_settled
from .working import quick_settings

if TYPE_CHECKING:
    from kmr.broker import Broker
    from tests.framework.conftest import CreateTopic, Produce

ORDERS = 200
STARTED = 1_700_000_000_000
HOUR = 3_600_000


class Customer(msgspec.Struct):
    id: int
    name: str


class Order(msgspec.Struct):
    number: int
    customer: int


class Row(msgspec.Struct):
    number: int
    name: str | None


def named(order: Order, customers: LookupTable) -> Row:
    return Row(order.number, customers.get(order.customer).name)


@map_batch
def joined(orders: Any, customers: LookupTable) -> Any:
    rows = customers.join(orders, on="customer", columns=["name"])
    return rows.select(["number", "name", "kmr_offset"])


@pytest.mark.parametrize("function", [named, joined])
async def test_each_record_is_written_once_and_whole_though_the_table_changes_before_it_is_repeated(
    broker: Broker,
    create_topic: CreateTopic,
    produce: Produce,
    postgres_url: str,
    function: Any,
) -> None:
    await create_topic("t")
    await create_topic("customers")

    async def rename(name: str) -> None:
        for key in range(3):
            value = msgspec.json.encode(Customer(key, name))
            await produce("customers", [value], key=str(key).encode())

    await rename("first")
    orders = [msgspec.json.encode(Order(number, number % 3)) for number in range(ORDERS)]
    await produce("t", orders)
    writer = DyingPostgresWriter("orders", url=postgres_url, create=True, max_rows=20, max_age=0.05)
    strategy = Strategy(
        value=Json(Order),
        map=function,
        tables={"customers": Lookup("customers", key="id", value=Json(Customer))},
        reduce=writer,
    )
    settings = quick_settings(broker)
    Dying.plan = [(2, "after"), (0, "before"), (1, "after")]
    names = ["second", "third", "fourth"]
    with anyio.fail_after(90):
        await run_until_all_died(strategy, settings, lambda: rename(names.pop(0)))
        await run_until_settled(strategy, settings, {TopicPartition("t", 0): ORDERS})
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT number, name FROM orders ORDER BY number").fetchall()
    assert [number for number, _ in found] == list(range(ORDERS))
    kinds = [name for _, name in found]
    assert set(kinds) <= {"first", "second", "third", "fourth"}
    assert kinds[0] == "first"
    assert kinds[-1] == "fourth"


@pytest.mark.parametrize("function", [named, joined])
async def test_a_range_that_is_repeated_finds_the_same_versions_by_the_time_of_its_records(
    broker: Broker,
    create_topic: CreateTopic,
    produce: Produce,
    postgres_url: str,
    function: Any,
) -> None:
    await create_topic("t")
    await create_topic("customers")
    hours = itertools.count()

    async def rename(name: str) -> None:
        at = STARTED + next(hours) * HOUR
        for key in range(3):
            value = msgspec.json.encode(Customer(key, name))
            await produce("customers", [value], key=str(key).encode(), timestamp=at)

    for name in ("first", "second", "third"):
        await rename(name)
    for half in (0, 1):
        numbers = range(half * ORDERS // 2, (half + 1) * ORDERS // 2)
        orders = [msgspec.json.encode(Order(number, number % 3)) for number in numbers]
        await produce("t", orders, timestamp=STARTED + half * HOUR + HOUR // 2)
    writer = DyingPostgresWriter("orders", url=postgres_url, create=True, max_rows=20, max_age=0.05)
    lookup = Lookup("customers", key="id", value=Json(Customer), as_of="record", keep="2d")
    strategy = Strategy(
        value=Json(Order), map=function, tables={"customers": lookup}, reduce=writer
    )
    settings = quick_settings(broker)
    Dying.plan = [(2, "after"), (0, "before"), (1, "after")]
    with anyio.fail_after(90):
        await run_until_all_died(strategy, settings, lambda: rename("later"))
        await run_until_settled(strategy, settings, {TopicPartition("t", 0): ORDERS})
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT number, name FROM orders ORDER BY number").fetchall()
    half = ORDERS // 2
    assert found == [(n, "first" if n < half else "second") for n in range(ORDERS)]
