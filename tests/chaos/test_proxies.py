"""The links, between real clients and real servers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import pytest
from aiohttp import web
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from chaos.kafka_link import KafkaLink
from chaos.proxies import HttpLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.broker import Broker

INSERT = {"query": "INSERT INTO t FORMAT ArrowStream"}
SELECT = {"query": "SELECT 1"}


class Server:
    """An HTTP server that remembers the queries that reached it."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        self.queries.append(request.query["query"])
        return web.Response(text="done")


@asynccontextmanager
async def behind_link() -> AsyncIterator[tuple[Server, HttpLink, aiohttp.ClientSession]]:
    server, app = Server(), web.Application()
    app.router.add_post("/", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        async with HttpLink() as link:
            url = await link.stand_in(f"http://user:secret@127.0.0.1:{port}/?a=1")
            assert url.startswith("http://user:secret@127.0.0.1:")
            assert url.endswith("/?a=1")
            assert str(port) not in url
            async with aiohttp.ClientSession(url.partition("/?")[0]) as session:
                yield server, link, session
    finally:
        await runner.cleanup()


async def post(session: aiohttp.ClientSession, query: dict[str, str]) -> str:
    async with session.post("/", params=query, data=b"x" * 200_000) as response:
        return await response.text()


async def test_an_insert_is_written_and_its_answer_swallowed() -> None:
    async with behind_link() as (server, link, session):
        link.drop_answers(1)
        assert await post(session, SELECT) == "done"
        with pytest.raises(aiohttp.ClientError):
            await post(session, INSERT)
        assert server.queries[-1] == INSERT["query"]
        await link.until_dropped(1)
        assert await post(session, INSERT) == "done"


async def test_a_held_insert_arrives_when_it_is_released_and_all_else_passes() -> None:
    async with behind_link() as (server, link, session), anyio.create_task_group() as tasks:
        answered = anyio.Event()

        async def insert() -> None:
            assert await post(session, INSERT) == "done"
            answered.set()

        link.hold_inserts()
        tasks.start_soon(insert)
        await link.until_held()
        assert await post(session, SELECT) == "done"
        assert server.queries == [SELECT["query"]]
        link.release_inserts()
        with anyio.fail_after(60):
            await answered.wait()
        assert server.queries == [SELECT["query"], INSERT["query"]]


async def test_a_cut_link_resets_connections_until_it_is_healed() -> None:
    async with behind_link() as (_, link, session):
        assert await post(session, SELECT) == "done"
        link.cut()
        for _ in range(3):
            with pytest.raises(aiohttp.ClientError):
                await post(session, SELECT)
        link.heal()
        assert await post(session, SELECT) == "done"


async def test_a_frozen_link_lets_nothing_pass_until_it_is_healed() -> None:
    async with behind_link() as (server, link, session):
        link.freeze()
        with anyio.move_on_after(0.2) as patience:
            await post(session, SELECT)
        assert patience.cancelled_caught
        assert server.queries == []
        link.heal()
        assert await post(session, SELECT) == "done"


async def test_a_delayed_answer_comes_later() -> None:
    async with behind_link() as (_, link, session):
        link.delay_answers(0.3)
        began = anyio.current_time()
        assert await post(session, INSERT) == "done"
        assert anyio.current_time() - began >= 0.3
        link.delay_answers(0)
        assert await post(session, INSERT) == "done"


async def produce(bootstrap_servers: str, value: bytes) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, request_timeout_ms=2_000)
    try:
        await producer.start()
        await producer.send_and_wait("in", value)
    finally:
        await producer.stop()


async def test_kafka_clients_stay_behind_the_link_whatever_the_broker_advertises(
    broker: Broker,
) -> None:
    async with KafkaLink(broker.bootstrap_servers) as link:
        address = await link.bootstrap_servers()
        await produce(address, b"one")
        consumer: Any = AIOKafkaConsumer(
            "in", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest"
        )
        await consumer.start()  # asks for the group's coordinator, too
        try:
            assert (await consumer.getone()).value == b"one"
            nodes = consumer._client.cluster.brokers()
            assert {f"{node.host}:{node.port}" for node in nodes} == {address}
        finally:
            await consumer.stop()
        link.cut()
        with pytest.raises(KafkaError):
            await produce(address, b"two")
        link.heal()
        await produce(address, b"three")
