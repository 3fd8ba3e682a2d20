"""Transactions of real clients against a broker in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
from functools import partial
from typing import TYPE_CHECKING

import confluent_kafka as ck
import pytest
from anyio import to_thread

from .clients.base import TIMEOUT
from .clients.transactional import TRANSACTIONAL_CLIENTS, Failed, Fenced, ViaLibrdkafka

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .clients.transactional import TransactionalClient
    from .conftest import Serve

pytestmark = [
    pytest.mark.slow,
    # kafka-python forgets to close sockets that could not connect.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

END = b"end"


@pytest.fixture(params=TRANSACTIONAL_CLIENTS, ids=lambda client: client.name)
def client(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[TransactionalClient]:
    with caplog.at_level(logging.CRITICAL):
        yield request.param
    gc.collect()  # while the warnings are ignored


@pytest.fixture(scope="module")
def servers(serve_module: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    return serve_module(tmp_path_factory.mktemp("data")).servers


async def send_last(client: TransactionalClient, servers: str, topic: str) -> None:
    """A committed record, up to which tests read."""
    async with client.producer(servers, f"last-of-{topic}") as producer:
        await producer.begin()
        await producer.send(topic, [END])
        await producer.commit()


async def test_every_client_distinguishes_committed_and_aborted_records(
    client: TransactionalClient, servers: str
) -> None:
    topic = f"both-{client.name}"
    async with client.producer(servers, topic) as producer:
        for number, commit in enumerate([True, False, True, False, False, True]):
            await producer.begin()
            await producer.send(topic, [b"%d-%d" % (number, each) for each in range(3)])
            await (producer.commit() if commit else producer.abort())
    await send_last(client, servers, topic)
    everything = [b"%d-%d" % (number, each) for number in range(6) for each in range(3)] + [END]
    committed = [each for each in everything if each[:1] not in (b"1", b"3", b"4")]
    for reader in TRANSACTIONAL_CLIENTS:
        assert await reader.read(servers, topic, committed=False, last=END) == everything
        assert await reader.read(servers, topic, committed=True, last=END) == committed


async def test_a_zombie_is_fenced_and_what_it_had_open_is_aborted(
    client: TransactionalClient, servers: str
) -> None:
    topic = f"fencing-{client.name}"
    async with client.producer(servers, topic) as zombie:
        await zombie.begin()
        await zombie.send(topic, [b"zombie"])
        async with client.producer(servers, topic) as producer:
            await producer.begin()
            await producer.send(topic, [b"new"])
            with pytest.raises(Fenced):
                await zombie.commit()
            await producer.commit()
    await send_last(client, servers, topic)
    assert await client.read(servers, topic, committed=True, last=END) == [b"new", END]


async def test_offsets_are_committed_with_their_transaction_or_not_at_all(
    client: TransactionalClient, servers: str
) -> None:
    topic = f"offsets-{client.name}"
    await send_last(client, servers, topic)
    async with client.producer(servers, topic) as producer:
        for offset, commit, expected in [(3, True, 3), (7, False, 3), (9, True, 9)]:
            await producer.begin()
            await producer.send_offset(topic, topic, offset)
            await (producer.commit() if commit else producer.abort())
            assert await client.committed(servers, topic, topic) == expected


async def test_a_transaction_that_takes_too_long_is_aborted_so_that_readers_go_on(
    client: TransactionalClient, servers: str
) -> None:
    topic = f"timeout-{client.name}"
    async with client.producer(servers, topic, timeout_ms=4_000) as slow:
        await slow.begin()
        await slow.send(topic, [b"slow"])
        await send_last(client, servers, topic)
        # The reader reaches the end only after the broker has aborted the open transaction.
        assert await client.read(servers, topic, committed=True, last=END) == [END]
        with pytest.raises(Fenced if not isinstance(client, ViaLibrdkafka) else (Fenced, Failed)):
            await slow.commit()


async def test_an_open_transaction_is_committed_after_the_broker_was_killed(
    client: TransactionalClient, serve: Serve, tmp_path: Path
) -> None:
    broker = serve(tmp_path / "data")
    port, servers = broker.port, broker.servers
    async with client.producer(servers, "x") as producer:
        await producer.begin()
        await producer.send("t", [b"before"])
        await to_thread.run_sync(broker.kill)
        broker = await to_thread.run_sync(partial(serve, tmp_path / "data", port=port))
        await producer.send("t", [b"after"])
        await producer.commit()
    await send_last(client, servers, "t")
    assert await client.read(servers, "t", committed=True, last=END) == [b"before", b"after", END]


async def test_offsets_of_a_member_that_has_left_are_refused_and_its_transaction_can_be_aborted(
    servers: str,
) -> None:
    """KIP-447: the member and its generation fence, not one transactional id for each partition."""
    where = [ck.TopicPartition("members", 0)]

    def run() -> None:
        producer = ck.Producer({"bootstrap.servers": servers, "transactional.id": "members"})
        consumer = ck.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "members",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        producer.init_transactions(TIMEOUT)
        producer.begin_transaction()
        producer.produce("members", b"v", partition=0)
        producer.commit_transaction(TIMEOUT)
        consumer.subscribe(["members"])
        (message,) = consumer.consume(1, TIMEOUT * 4)
        assert message.value() == b"v"
        member = consumer.consumer_group_metadata()

        producer.begin_transaction()
        producer.send_offsets_to_transaction(consumer.position(where), member, TIMEOUT)
        producer.commit_transaction(TIMEOUT)
        assert consumer.committed(where, TIMEOUT)[0].offset == 1

        consumer.close()
        producer.begin_transaction()
        late = [ck.TopicPartition("members", 0, 100)]
        with pytest.raises(ck.KafkaException) as refused:
            producer.send_offsets_to_transaction(late, member, TIMEOUT)
        assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction(TIMEOUT)

    await to_thread.run_sync(run)
    assert await ViaLibrdkafka().committed(servers, "members", "members") == 1


class Copier:
    """Copies a topic exactly once: offsets and records are committed in one transaction.

    After any error it closes everything and begins at the group's committed offset, which is `copied`.
    """

    BATCH = 20

    def __init__(self, client: TransactionalClient, servers: str, values: list[bytes]) -> None:
        self._client = client
        self._servers = servers
        self._values = values
        self._progress = asyncio.Event()
        self.copied = 0
        self.restarts = 0
        self.running = asyncio.create_task(self._run())

    async def until(self, copied: int) -> None:
        while self.copied < copied and not self.running.done():
            self._progress.clear()
            waiting = asyncio.create_task(self._progress.wait())
            await asyncio.wait({waiting, self.running}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        if self.running.done():
            await self.running

    async def _run(self) -> None:
        while self.copied < len(self._values):
            try:
                async with self._client.producer(self._servers, "copier") as producer:
                    at = await self._client.committed(self._servers, "copiers", "in")
                    while at < len(self._values):
                        batch = self._values[at : at + self.BATCH]
                        await producer.begin()
                        await producer.send("out", batch)
                        at += len(batch)
                        await producer.send_offset("in", "copiers", at)
                        await producer.commit()
                        self.copied = at
                        self._progress.set()
                    return
            except (Failed, OSError):
                self.restarts += 1


async def test_records_copied_in_transactions_arrive_exactly_once_though_the_broker_is_killed(
    client: TransactionalClient, serve: Serve, tmp_path: Path
) -> None:
    broker = serve(tmp_path / "data")
    port, servers = broker.port, broker.servers
    values = [b"%d" % number for number in range(600)]
    async with client.producer(servers, "source") as source:
        await source.begin()
        await source.send("in", values)
        await source.commit()
    copier = Copier(client, servers, values)
    for kills in (1, 2, 3):
        await copier.until(kills * 120)
        await to_thread.run_sync(broker.kill)
        broker = await to_thread.run_sync(partial(serve, tmp_path / "data", port=port))
    await copier.until(len(values))
    await copier.running
    await send_last(client, servers, "out")
    assert await client.read(servers, "out", committed=True, last=END) == [*values, END]
    assert await client.committed(servers, "copiers", "in") == len(values)
