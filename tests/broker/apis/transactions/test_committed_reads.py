"""Fetches of committed records, over a socket and in every version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]
Wire = Any  # the class is in conftest.py, which tests do not import

FETCH = 1
OK = ErrorCode.none


async def test_every_consumer_reads_a_committed_transaction_and_its_marker_takes_an_offset(
    wire: Wire,
) -> None:
    producer = await wire.begin()
    assert await wire.add(producer, [0, 1]) == {OK}
    assert await wire.produce(producer, 0) is OK
    assert await wire.produce(producer, 1) is OK
    pid = producer.producer_id

    before = await wire.fetch(committed=True)
    assert before == ([], [], 0, 2), "the last stable offset, and the high watermark"
    assert await wire.latest(committed=True) == 0
    assert await wire.latest(committed=False) == 2
    assert (await wire.fetch(committed=False)).batches == [(0, pid, False), (1, pid, False)]

    assert await wire.end(producer, commit=True) is OK

    everything = [(0, pid, False), (1, pid, False), (2, pid, True)]
    assert await wire.fetch(committed=True) == (everything, [], 3, 3)
    assert await wire.fetch(committed=False) == (everything, None, 3, 3)
    assert await wire.latest(committed=True) == 3


@pytest.mark.parametrize("version", range(4, 13))
async def test_consumers_of_committed_records_get_the_list_of_aborted_transactions(
    wire: Wire, version: int
) -> None:
    producer = await wire.begin()
    pid = producer.producer_id
    for number, commit in enumerate([True, False, True]):
        await wire.add(producer)
        assert await wire.produce(producer, number) is OK
        assert await wire.end(producer, commit=commit) is OK
    found = await wire.fetch(committed=True, version=version)
    assert found.aborted == [(pid, 2)]
    assert [offset for offset, _, control in found.batches if control] == [1, 3, 5]
    assert len(found.batches) == 6
    assert (await wire.fetch(4, committed=True, version=version)).aborted == []
    assert (await wire.fetch(3, committed=True, version=version)).aborted == [(pid, 2)]
    assert (await wire.fetch(committed=False, version=version)).aborted is None


@pytest.mark.parametrize("version", [4, 12])
@pytest.mark.parametrize("max_bytes", [1, 100, 800, 1_500, 100_000])
async def test_a_small_fetch_still_lists_every_aborted_transaction(
    wire: Wire, version: int, max_bytes: int
) -> None:
    names = [f"p{number}" for number in range(40)]
    producers = [await wire.begin(name) for name in names]
    for name, producer in zip(names, producers, strict=True):
        await wire.add(producer, transactional_id=name)
        assert await wire.produce(producer, 0, transactional_id=name) is OK
    for name, producer in zip(names, producers, strict=True):
        assert await wire.end(producer, commit=False, transactional_id=name) is OK
    at, batches = 0, []
    while at < 80:
        found = await wire.fetch(at, committed=True, version=version, max_bytes=max_bytes)
        assert found.batches, "the first batch exceeds the limits and is whole"
        assert found.aborted is not None
        first, last = found.batches[0][0], found.batches[-1][0]
        met = {(pid, at) for at, (pid, _) in enumerate(producers) if first - 40 <= at <= last}
        assert met <= set(found.aborted)
        batches += found.batches
        at = last + 1
    assert [offset for offset, _, _ in batches] == list(range(80))


async def test_committed_records_behind_an_open_transaction_wait_for_it(wire: Wire) -> None:
    first, second = await wire.begin("x"), await wire.begin("y")
    await wire.add(first)
    await wire.add(second, transactional_id="y")
    await wire.produce(first, 0)
    await wire.produce(second, 0, transactional_id="y")
    assert await wire.end(second, commit=True, transactional_id="y") is OK
    assert (await wire.fetch(committed=True)).batches == []
    assert await wire.end(first, commit=False) is OK
    found = await wire.fetch(committed=True)
    assert len(found.batches) == 4
    assert found.aborted == [(first.producer_id, 0)]


async def test_a_long_poll_for_committed_records_ends_with_the_marker(
    wire: Wire, broker: Broker, connect: Connect
) -> None:
    producer = await wire.begin()
    await wire.add(producer)
    await wire.produce(producer, 0)
    reader = await connect(broker)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
    request = reader.message(
        FETCH,
        11,
        max_wait=timedelta(minutes=5),
        min_bytes=100,  # more than a marker has
        max_bytes=2**20,
        isolation_level=1,
        topics=[{"topic": "t", "partitions": [partition]}],
    )
    correlation_id = await reader.send(request)
    assert await wire.end(producer, commit=True) is OK
    async with asyncio.timeout(60):
        answer = await reader.receive(request, correlation_id)
    assert answer.responses[0].partitions[0].last_stable_offset == 2
