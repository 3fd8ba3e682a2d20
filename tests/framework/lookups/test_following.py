"""A worker's table follows its topic: loaded before the first record, and through restarts of the broker."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest

from kmr import Json, Lookup, Strategy
from kmr.broker import Broker, BrokerSettings
from kmr.broker.client import BatchProducer
from kmr.errors import StrategyError
from kmr.kafka.connection import connection_config
from kmr.lookups.following import following
from kmr.settings import Settings
from kmr.testing import Journal, MemoryWriter
from kmr.worker import Worker
from tests.framework.guarantees.working import working

if TYPE_CHECKING:
    from pathlib import Path

    from kmr import LookupTable
    from tests.framework.conftest import CreateTopic, Produce


class Customer(msgspec.Struct):
    id: int
    name: str


class Order(msgspec.Struct):
    customer: int


def enriched(order: Order, customers: LookupTable) -> dict[str, Any]:
    found = customers.get(order.customer)
    return {"customer": order.customer, "name": None if found is None else found.name}


def strategy(journal: Journal, **options: Any) -> Strategy:
    return Strategy(
        value=Json(Order),
        map=enriched,
        tables={"customers": Lookup("customers", key="id", value=Json(Customer), **options)},
        reduce=MemoryWriter(journal, max_rows=1),
    )


def settings_of(broker: Broker) -> Settings:
    return Settings(topics=("t",), group="g", bootstrap_servers=broker.bootstrap_servers)


def customers(first: int, last: int, name: str) -> list[bytes]:
    return [msgspec.json.encode(Customer(n, f"{name} {n}")) for n in range(first, last)]


def names(journal: Journal) -> list[Any]:
    return [row["name"] for row in journal.rows()]


@pytest.fixture
async def _topics(create_topic: CreateTopic) -> None:
    await create_topic("t")
    await create_topic("customers", 3)


@pytest.mark.usefixtures("_topics")
async def test_a_table_is_whole_before_the_first_record_and_follows_its_topic(
    broker: Broker, produce: Produce
) -> None:
    for number, value in enumerate(customers(0, 31, "old")):
        await produce("customers", [value], number % 3, key=str(number).encode())
    journal = Journal()
    await produce("t", [b'{"customer": 30}', b'{"customer": 99}'])
    async with working(strategy(journal), settings_of(broker)):
        await journal.until(lambda j: j.count == 2)
        assert names(journal) == ["old 30", None]
        await produce("customers", customers(99, 100, "new"), 1, key=b"99")
        await produce("customers", [None], 0, key=b"30")
        with anyio.fail_after(20):
            while names(journal)[-2:] != ["new 99", None]:
                await produce("t", [b'{"customer": 99}', b'{"customer": 30}'])
                await anyio.sleep(0.1)


async def test_a_table_outlives_a_restart_of_the_broker(tmp_path: Path) -> None:
    settings = BrokerSettings(data_dir=tmp_path / "data", port=0)
    async with AsyncExitStack() as stack:
        async with Broker(settings) as first:
            port = int(first.bootstrap_servers.rpartition(":")[2])
            async with BatchProducer(first.bootstrap_servers, "customers") as producer:
                await producer.send(customers(0, 3, "old"))
            config = connection_config(settings_of(first))
            lookup = Lookup("customers", key="id", value=Json(Customer))
            tables = await stack.enter_async_context(
                following({"customers": lookup}, config, as_columns=False)
            )
            assert tables.followers["customers"].rows == 3
        assert tables()["customers"].get(2).name == "old 2"
        async with Broker(BrokerSettings(data_dir=tmp_path / "data", port=port)) as again:
            async with BatchProducer(again.bootstrap_servers, "customers") as producer:
                await producer.send(customers(2, 4, "new"))
            with anyio.fail_after(30):
                while tables.followers["customers"].rows < 4:  # noqa: ASYNC110  filled by the client
                    await anyio.sleep(0.05)
            assert tables()["customers"].get(2).name == "new 2"
            await stack.aclose()


@pytest.mark.usefixtures("_topics")
async def test_an_empty_topic_is_a_table_without_rows(broker: Broker, produce: Produce) -> None:
    journal = Journal()
    await produce("t", [b'{"customer": 1}'])
    async with working(strategy(journal), settings_of(broker)):
        await journal.until(lambda j: j.count == 1)
    assert names(journal) == [None]


async def test_a_topic_that_is_not_there_is_one_message(
    broker: Broker, create_topic: CreateTopic
) -> None:
    await create_topic("t")
    with pytest.raises(StrategyError, match=r"tables= cannot be opened: .*topic customers"):
        await Worker(strategy(Journal()), settings_of(broker)).run()


@pytest.mark.usefixtures("_topics")
async def test_a_table_that_outgrows_its_memory_ends_the_worker_with_the_reason(
    broker: Broker, produce: Produce
) -> None:
    await produce("customers", customers(0, 1, "a"), key=b"0")
    journal = Journal()
    worker = Worker(strategy(journal, max_bytes=2000), settings_of(broker))
    failed: list[BaseException] = []

    async def run() -> None:
        try:
            await worker.run()
        except StrategyError as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await worker.ready()
        await produce("customers", customers(1, 100, "b"))
        with anyio.fail_after(20):
            while not failed:
                await produce("t", [b'{"customer": 1}'])
                await anyio.sleep(0.1)
    assert "more than max_bytes=2,000; raise it" in str(failed[0])


@pytest.mark.usefixtures("_topics")
async def test_a_process_of_its_own_is_refused(broker: Broker) -> None:
    settings = msgspec.structs.replace(settings_of(broker), executor="process")
    with pytest.raises(StrategyError, match="tables= and executor='process'"):
        await Worker(strategy(Journal()), settings).run()
