"""The load generators of the broker's bench: they count exactly the sent records."""

from __future__ import annotations

import os
from subprocess import Popen
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio.to_thread
import pytest

from bench.broker import librdkafka, raw
from bench.broker.gang import Client, ClientFailed, run_together
from bench.broker.measuring import RAW
from bench.broker.payload import batch, values
from bench.broker.report import starting
from bench.broker.restart import starts, starts_in_process
from bench.broker.servers import Server
from bench.broker.wire import Wire, WireError, fetch_request, fetched, produce_request, produced_at
from kmr.broker.log.records import parse_header, read_records

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kmr.broker import Broker


Create: TypeAlias = "Callable[[str, int], Awaitable[None]]"


@pytest.fixture
def ask(broker: Broker) -> Callable[..., Any]:
    """Runs a client of one of the two kinds against the broker."""

    async def run(client: Any, role: str, **arguments: Any) -> Any:
        def work() -> dict[str, Any]:
            return client.main(role, address=broker.bootstrap_servers, **arguments)()  # type: ignore[no-any-return]

        return await anyio.to_thread.run_sync(work)

    return run


@pytest.fixture
def create(broker: Broker) -> Create:
    """Creates a topic with so many partitions."""
    server = Server("kmr", broker.bootstrap_servers, os.getpid())

    async def create(topic: str, partitions: int) -> None:
        await anyio.to_thread.run_sync(server.create, topic, partitions)

    return create


@pytest.mark.parametrize("size", [1, 100, 1_000])
def test_values_have_the_size_that_was_asked_for_and_are_always_the_same(size: int) -> None:
    found = values(size)
    assert {len(each) for each in found} == {size}
    assert found == values(size)
    assert size == 1 or len(set(found)) > 900


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_holds_as_many_records_as_it_says(codec: Any) -> None:
    data = memoryview(batch(30, 100, codec))
    header = parse_header(data)
    assert (header.size, header.last_offset_delta) == (len(data), 29)
    assert [record.value for record in read_records(data, header)] == values(100)[:30]


async def test_what_raw_clients_produce_raw_and_librdkafka_consumers_count(
    create: Create, ask: Callable[..., Any]
) -> None:
    await create("t", 3)
    produced = await ask(
        raw, "producer", topic="t", partitions=[0, 1, 2], records=995, size=100, per_batch=10
    )
    assert produced["records"] == 1_000  # whole batches
    offsets = dict.fromkeys("012", 0)
    counted = await ask(raw, "consumer", topic="t", offsets=offsets, records=1_000)
    assert counted["records"] == 1_000
    assert counted["bytes"] == 100 * len(batch(10, 100))
    again = await ask(librdkafka, "consumer", topics=["t"], partitions=[0, 1, 2], records=1_000)
    assert again["records"] == 1_000


async def test_librdkafka_producers_leave_out_nothing_of_several_topics(
    create: Create, ask: Callable[..., Any]
) -> None:
    for topic in ("a", "b"):
        await create(topic, 2)
    await ask(librdkafka, "producer", topics=["a", "b"], records=2_500, size=100, codec="lz4")
    for topic, records in (("a", 1_500), ("b", 1_000)):
        offsets = dict.fromkeys("01", 0)
        counted = await ask(raw, "consumer", topic=topic, offsets=offsets, records=records)
        assert counted["records"] == records


async def test_every_round_trip_is_timed(create: Create, ask: Callable[..., Any]) -> None:
    await create("t", 1)
    for client in (raw, librdkafka):
        found = await ask(client, "round_trips", topic="t", size=100, count=20)
        assert len(found["seconds"]) == found["records"] == 20
    many = await ask(
        raw, "connections", topic="t", partitions=1, size=100, per_batch=3, connections=4, count=50
    )
    assert (len(many["seconds"]), many["records"]) == (50, 150)


async def test_an_error_of_the_broker_is_not_counted_as_success(
    broker: Broker, create: Create
) -> None:
    await create("t", 1)

    def try_it() -> None:
        with Wire(broker.bootstrap_servers) as wire:
            wire.send(produce_request("t", 7, batch(1, 10), 1))
            with pytest.raises(WireError, match="error 3"):
                produced_at(wire.frames()[0])
            wire.send(fetch_request("t", {0: 99}, 1_000))
            with pytest.raises(WireError, match="error 1"):
                fetched(wire.frames()[0])

    await anyio.to_thread.run_sync(try_it)


_TRIPS = {"role": "round_trips", "topic": "t", "size": 1, "count": 1}


async def test_a_client_that_fails_says_why() -> None:
    with pytest.raises(ClientFailed, match="Connection refused"):
        await run_together(
            [
                Client(RAW, {**_TRIPS, "address": "127.0.0.1:1"}),
                Client(RAW, {**_TRIPS, "address": "127.0.0.1:1"}),
            ]
        )


async def test_a_broker_starts_in_a_tests_process(tmp_path: Path) -> None:
    first, others = await starts_in_process(tmp_path)
    assert first.after.endswith("the first")
    assert others.seconds > 0
    assert starting([first, others]).row_count == 2


@pytest.mark.slow
async def test_a_broker_starts_again_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    found = await starts(tmp_path, 0.005)
    assert [each.after for each in found] == ["nothing", "a clean stop", "kill -9 while producing"]
    assert starting(found).row_count == 3


def test_a_server_and_its_clients_share_one_processor_for_a_while() -> None:
    with Popen(["sleep", "60"]) as process:
        server = Server("any", "127.0.0.1:0", process.pid)
        before = os.sched_getaffinity(process.pid)
        with server.on_one_processor():
            assert os.sched_getaffinity(0) == os.sched_getaffinity(process.pid) == {min(before)}
        assert os.sched_getaffinity(0) == os.sched_getaffinity(process.pid) == before
        process.kill()
