import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from kmr.broker import Broker, BrokerError, BrokerSettings
from kmr.broker.coordinators import state_log
from kmr.broker.log.segment import Segment

Start = Callable[..., Awaitable[Broker]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]
Connect = Callable[[Broker], Awaitable[Any]]


async def produce(broker: Broker, topic: str, *values: bytes, **options: Any) -> list[int]:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options)
    await producer.start()
    try:
        sent = [await producer.send(topic, value, partition=0) for value in values]
        return [record.offset for record in await asyncio.gather(*sent)]
    finally:
        await producer.stop()


async def consume(broker: Broker, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


async def test_a_broker_serves_on_a_free_port_until_it_is_left(tmp_path: Path) -> None:
    broker = Broker(BrokerSettings(data_dir=tmp_path, port=0))
    async with broker:
        host, _, port = broker.bootstrap_servers.partition(":")
        assert host == "127.0.0.1"
        assert await produce(broker, "t", b"a", b"b") == [0, 1]
        assert await consume(broker, "t", 2) == [b"a", b"b"]
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect((host, int(port)))


async def test_topics_are_only_there_while_the_broker_runs(tmp_path: Path) -> None:
    broker = Broker(BrokerSettings(data_dir=tmp_path, port=0))
    async with broker:
        await broker.topics.create("t", 2)
    with pytest.raises(RuntimeError, match="async with"):
        _ = broker.topics


@pytest.mark.parametrize("fsync", ["always", "interval", "os"])
async def test_records_and_ids_survive_a_restart(start: Start, tmp_path: Path, fsync: str) -> None:
    settings = BrokerSettings(data_dir=tmp_path, port=0, fsync=fsync)  # type: ignore[arg-type]
    async with Broker(settings) as broker:
        await produce(broker, "t", b"a", enable_idempotence=True)
        topic = broker.topics.get("t")
    assert (tmp_path / "clean").exists()
    async with Broker(settings) as again:
        assert not (tmp_path / "clean").exists()
        found = again.topics.get("t")
        assert topic is not None
        assert found is not None
        assert found.topic_id == topic.topic_id
        assert await produce(again, "t", b"b", enable_idempotence=True) == [1]
        assert await consume(again, "t", 2) == [b"a", b"b"]


async def test_an_occupied_port_is_named(start: Start, tmp_path: Path, broker: Broker) -> None:
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    with pytest.raises(BrokerError, match=rf"port {port} on 127\.0\.0\.1 is in use"):
        await start(data_dir=tmp_path / "other", port=port)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("host", ["no such host", "203.0.113.1"])
async def test_an_address_that_is_not_ours_is_refused(start: Start, host: str) -> None:
    with pytest.raises(BrokerError, match="cannot listen on"):
        await start(host=host, insecure=True)


async def test_an_error_inside_leaves_the_broker_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with Broker(BrokerSettings(data_dir=tmp_path, port=0)):
            raise KeyError("mine")
    assert (tmp_path / "clean").exists()


async def test_a_cancelled_broker_stops_in_an_orderly_way(tmp_path: Path) -> None:
    async def run(started: anyio.Event) -> None:
        async with Broker(BrokerSettings(data_dir=tmp_path, port=0)) as broker:
            await produce(broker, "t", b"a")
            started.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        started = anyio.Event()
        tasks.start_soon(run, started)
        await started.wait()
        tasks.cancel_scope.cancel()
    assert (tmp_path / "clean").exists()


async def test_the_stop_answers_a_long_poll_at_once(
    tmp_path: Path, connect: Connect, until: Until
) -> None:
    async with Broker(BrokerSettings(data_dir=tmp_path, port=0)) as broker:
        topic = await broker.topics.create("t")
        client = await connect(broker)
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        request = client.message(
            1,
            11,
            max_wait=timedelta(seconds=600),
            min_bytes=1,
            max_bytes=1000,
            topics=[{"topic": "t", "partitions": [partition]}],
        )
        correlation_id = await client.send(request)
        await until(lambda: bool(topic.partitions[0].watches))
    response = await client.receive(request, correlation_id)
    assert response.responses[0].partitions[0].records == b""
    assert await client.is_closed_by_broker()


async def test_clients_get_the_advertised_address(start: Start) -> None:
    broker = await start(
        host="0.0.0.0", insecure=True, advertised_host="kafka.example", advertised_port=9999
    )
    assert broker.bootstrap_servers == "kafka.example:9999"


async def test_a_broker_on_all_addresses_names_the_one_that_its_client_used(start: Start) -> None:
    broker = await start(host="0.0.0.0", insecure=True)
    assert broker.bootstrap_servers.startswith("127.0.0.1:")
    assert await produce(broker, "t", b"a") == [0]


SERVE_UNTIL_KILLED = """
import asyncio, sys
from pathlib import Path
from kmr.broker import Broker, BrokerSettings

async def serve():
    async with Broker(BrokerSettings(data_dir=Path(sys.argv[1]), port=0, fsync="os")) as broker:
        print(broker.bootstrap_servers, flush=True)
        await asyncio.Event().wait()

asyncio.run(serve())
"""


async def test_acknowledged_records_survive_a_kill(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE_UNTIL_KILLED, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    producer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True)
    await producer.start()
    acknowledged = [
        (await producer.send_and_wait("t", str(number).encode(), partition=0)).offset
        for number in range(100)
    ]
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    await producer.stop()

    assert acknowledged == list(range(100))
    assert not (tmp_path / "clean").exists()
    async with Broker(BrokerSettings(data_dir=tmp_path, port=0)) as broker:
        values = await consume(broker, "t", 100)
    assert values == [str(number).encode() for number in range(100)]


async def test_a_disk_that_cannot_delete_old_committed_offsets_does_not_end_the_broker(
    start: Start, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 2

    def delete(segment: Segment) -> None:
        nonlocal failures
        if "offsets" in str(segment.path) and failures:
            failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        works(segment)

    works = Segment.delete
    monkeypatch.setattr(Segment, "delete", delete)
    monkeypatch.setattr(state_log, "REWRITE_BYTES", 0)
    broker = await start()
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id="g")
    await broker.topics.create("t")
    await consumer.start()
    try:
        consumer.assign([TopicPartition("t", 0)])
        for _ in range(20):
            await consumer.commit({TopicPartition("t", 0): 7})
        supervisor = broker.health.supervisor
        await until(lambda: bool(supervisor.failures))
        assert [str(each) for each in supervisor.failures] == [
            "the maintenance of committed offsets fails: [Errno 5] Input/output error"
        ]
        assert await produce(broker, "t", b"a") == [0]
        await until(lambda: not supervisor.failures)
        assert await consumer.committed(TopicPartition("t", 0)) == 7
    finally:
        await consumer.stop()
