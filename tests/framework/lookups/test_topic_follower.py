"""A worker's table follows its topic: loaded before the first record, and through restarts of the broker."""

from __future__ import annotations

import io
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import msgspec
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from prometheus_client import generate_latest
from rich.console import Console

from kmr import Json, Lookup, Strategy
from kmr.broker import Broker, BrokerSettings
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port
from kmr.cli.top import StatusPoller, screen
from kmr.errors import StrategyError
from kmr.kafka.connection import connection_config
from kmr.lookups.objects_table import ObjectsStore
from kmr.lookups.tables import Tables
from kmr.service.threads import run_in_thread
from kmr.settings import HttpSettings, Settings
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
        with anyio.fail_after(60):
            while names(journal)[-2:] != ["new 99", None]:
                await produce("t", [b'{"customer": 99}', b'{"customer": 30}'])
                await anyio.sleep(0.1)


async def test_a_table_outlives_a_restart_of_the_broker(tmp_path: Path) -> None:
    settings = BrokerSettings(data_dir=tmp_path / "data", port=free_port())
    async with AsyncExitStack() as stack:
        async with Broker(settings) as first:
            async with BatchProducer(first.bootstrap_servers, "customers") as producer:
                await producer.send(customers(0, 3, "old"))
            config = connection_config(settings_of(first))
            lookup = Lookup("customers", key="id", value=Json(Customer))
            tables = Tables({"customers": lookup}, config, as_columns=False)
            await stack.enter_async_context(tables.following())
            (follower,) = tables.followers
            assert follower.rows == 3
        assert tables()["customers"].get(2).name == "old 2"
        async with Broker(settings) as again:
            async with BatchProducer(again.bootstrap_servers, "customers") as producer:
                await producer.send(customers(2, 4, "new"))
            with anyio.fail_after(60):
                while follower.rows < 4:  # noqa: ASYNC110  filled by the client
                    await anyio.sleep(0.05)
            assert tables()["customers"].get(2).name == "new 2"
            await stack.aclose()


@pytest.mark.usefixtures("_topics")
async def test_an_order_waits_for_a_customer_that_comes_after_it(
    broker: Broker, produce: Produce
) -> None:
    journal = Journal()
    async with working(strategy(journal, wait="600s"), settings_of(broker)) as worker:
        await produce("t", [b'{"customer": 1}'])
        with anyio.fail_after(60):
            while not (waits := [s.waits_for for s in worker.status().stages if s.waits_for]):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert waits == ["table customers"]
        await produce("customers", customers(1, 2, "late"), 1, key=b"1")
        await produce("customers", customers(8, 9, "other"), 0, key=b"8")
        await anyio.sleep(0.2)
        assert journal.count == 0  # another partition of the customers may still have one
        await produce("customers", customers(9, 10, "other"), 2, key=b"9")
        await journal.until(lambda j: j.count == 1)
    assert names(journal) == ["late 1"]


@pytest.mark.usefixtures("_topics")
async def test_an_order_waits_no_longer_than_the_limit_and_an_old_one_not_at_all(
    broker: Broker, produce: Produce
) -> None:
    journal = Journal()
    async with working(strategy(journal, wait=1.5), settings_of(broker)):
        began = anyio.current_time()
        await produce("t", [b'{"customer": 1}'])
        await journal.until(lambda j: j.count == 1)
        assert anyio.current_time() - began > 1.4
    assert names(journal) == [None]
    again = msgspec.structs.replace(settings_of(broker), group="another")
    began = anyio.current_time()
    async with working(strategy(journal, wait=3600), again) as worker:
        await produce("customers", customers(0, 3, "a"), key=b"0")
        await anyio.sleep(0.3)
        assert journal.count == 1
        worker.shutdown("it waits; a drain does not")
    assert anyio.current_time() - began < 600


@pytest.mark.usefixtures("_topics")
async def test_a_missing_row_is_a_dead_letter_where_the_table_says_so(
    broker: Broker, produce: Produce
) -> None:
    journal, errors = Journal(), Journal()
    await produce("customers", customers(1, 2, "a"), key=b"1")
    await produce("t", [b'{"customer": 7}', b'{"customer": 1}'])
    strict = replace(
        strategy(journal, missing="dead-letter"), reduce_err=MemoryWriter(errors, max_rows=1)
    )
    async with working(strict, settings_of(broker)):
        await journal.until(lambda j: j.count == 1)
        await errors.until(lambda j: j.count == 1)
    assert names(journal) == ["a 1"]
    assert errors.rows()[0]["reason"] == "NoRow: customers has no row of the key 7"


@pytest.mark.usefixtures("_topics")
async def test_the_status_tells_how_far_the_first_load_is_and_how_old_the_table_is(
    broker: Broker, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    await produce("customers", customers(0, 5, "a"))
    go = threading.Event()
    apply = ObjectsStore.apply
    monkeypatch.setattr(ObjectsStore, "apply", lambda *given: go.wait(60) and apply(*given))
    settings = msgspec.structs.replace(settings_of(broker), http=HttpSettings(port=0))
    worker = Worker(strategy(Journal()), settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        with anyio.fail_after(60):
            while not (tables := worker.status().tables) or not tables[0].of:  # noqa: ASYNC110
                await anyio.sleep(0.02)
            async with aiohttp.ClientSession() as client:
                async with client.get(f"{worker.health_url}/ready") as answer:
                    text = await answer.text()
                assert (answer.status, text.strip()) == (
                    503,
                    "loading table customers: 0 of 5 records",
                )
                view = StatusPoller(worker.health_url or "")
                shown = io.StringIO()
                look = await run_in_thread(view.look)
                Console(file=shown, width=120).print(screen(look))
                assert "0 of 5 records" in shown.getvalue()
                go.set()
                await worker.ready()
                async with client.get(f"{worker.health_url}/ready") as answer:
                    assert answer.status == 200
            (table,) = worker.status().tables
            assert (table.rows, table.read, table.of, table.problem) == (5, 5, 5, None)
            while (stale := worker.status().tables[0].stale) is None:  # noqa: ASYNC110
                await anyio.sleep(0.02)
            assert stale < 60
            found = generate_latest(worker.metrics.registry).decode()
            assert 'kmr_lookup_stale_seconds{table="customers"} ' in found
        worker.shutdown("done")


async def test_partitions_that_are_added_to_the_topic_are_read(
    broker: Broker, create_topic: CreateTopic, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic("customers")
    await produce("customers", customers(0, 2, "old"))
    config = replace(connection_config(settings_of(broker)), metadata_max_age=0.2)
    tables = Tables(
        {"customers": Lookup("customers", key="id", value=Json(Customer))}, config, as_columns=False
    )
    async with tables.following():
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        await admin.create_partitions({"customers": NewPartitions(2)})
        await admin.close()
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.send_and_wait("customers", *customers(5, 6, "new"), partition=1)
        with anyio.fail_after(60):
            while 5 not in tables()["customers"]:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        assert tables()["customers"].get(1).name == "old 1"


async def test_a_topic_that_is_made_anew_is_read_again(
    broker: Broker, create_topic: CreateTopic, produce: Produce
) -> None:
    await create_topic("customers")
    await produce("customers", customers(0, 4, "old"))
    lookup = Lookup("customers", key="id", value=Json(Customer))
    tables = Tables({"customers": lookup}, connection_config(settings_of(broker)), as_columns=False)
    async with tables.following():
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        await admin.delete_topics(["customers"])
        await admin.close()
        assert tables()["customers"].get(3).name == "old 3"
        await create_topic("customers")
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.send_and_wait("customers", *customers(9, 10, "new"))
        with anyio.fail_after(60):
            while 9 not in tables()["customers"]:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        assert len(tables()["customers"]) == 1


async def test_a_topic_that_is_made_anew_with_as_many_records_is_read_again(
    broker: Broker, create_topic: CreateTopic, produce: Produce
) -> None:
    await create_topic("customers")
    await produce("customers", customers(0, 4, "old"))
    lookup = Lookup("customers", key="id", value=Json(Customer))
    tables = Tables({"customers": lookup}, connection_config(settings_of(broker)), as_columns=False)
    async with tables.following():
        await broker.topics.delete("customers")
        await create_topic("customers")
        await produce("customers", customers(0, 4, "new"))
        with anyio.fail_after(60):
            while tables()["customers"].get(3).name != "new 3":  # noqa: ASYNC110
                await anyio.sleep(0.05)


@pytest.mark.usefixtures("_topics")
async def test_a_table_that_has_caught_up_has_everything_that_was_produced_before(
    broker: Broker, produce: Produce
) -> None:
    lookup = Lookup("customers", key="id", value=Json(Customer))
    tables = Tables({"customers": lookup}, connection_config(settings_of(broker)), as_columns=True)
    await produce("customers", customers(90, 95, "deleted"), 2)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    await admin.delete_records({TopicPartition("customers", 2): RecordsToDelete(5)})
    await admin.close()
    async with tables.following():
        with anyio.fail_after(60):
            await tables.catch_up()
        for number in range(20):
            await produce("customers", customers(number, number + 1, "new"), number % 3)
            with anyio.fail_after(60):
                await tables.catch_up()
            assert len(tables()["customers"]) == number + 1


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
        with anyio.fail_after(60):
            while not failed:
                await produce("t", [b'{"customer": 1}'])
                await anyio.sleep(0.1)
    assert "more than max_bytes=2,000; raise it" in str(failed[0])


@pytest.mark.usefixtures("_topics")
async def test_a_process_of_its_own_is_refused(broker: Broker) -> None:
    settings = msgspec.structs.replace(settings_of(broker), executor="process")
    with pytest.raises(StrategyError, match="tables= and executor='process'"):
        await Worker(strategy(Journal()), settings).run()
