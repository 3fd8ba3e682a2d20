"""kmr broker txn."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaProducer

from kmr.broker.log.records import NewRecord, build_batch, parse_header

if TYPE_CHECKING:
    from kmr.broker import Broker
    from tests.broker.cli.conftest import Kmr

PRODUCER_ID = 77


async def test_a_transaction_is_listed_described_and_aborted(kmr: Kmr, servers: str) -> None:
    await asyncio.to_thread(kmr, "topic", "create", "orders")
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="shop")
    async with producer:
        empty = (await asyncio.to_thread(kmr, "txn", "describe", "shop")).lines
        assert empty[0].startswith("shop: Empty, producer ")
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"one")
        listed = [line.split() for line in (await asyncio.to_thread(kmr, "txn", "list")).lines]
        assert [each[::2] for each in listed[1:]] == [["shop", "Ongoing"]]
        described = (await asyncio.to_thread(kmr, "txn", "describe", "shop")).lines
        assert described[0].startswith("shop: Ongoing, open for ")
        assert "timeout 1m" in described[0]
        assert described[1:] == ["  orders-0"]
        assert (await asyncio.to_thread(kmr, "txn", "hanging")) == (0, b"", b""), "it is known"

        refused = await asyncio.to_thread(kmr, "txn", "abort", "orders", "0", "--start-offset", "9")
        assert (refused.code, refused.err.decode()) == (
            1,
            "kmr broker: orders-0: no transaction begins at 9; open transactions begin at 0\n",
        )
        aborted = await asyncio.to_thread(kmr, "txn", "abort", "orders", "0", "--start-offset", "0")
        assert aborted.lines == ["orders-0: aborted the transaction that began at 0"]
        again = await asyncio.to_thread(kmr, "txn", "abort", "orders", "0", "--start-offset", "0")
        assert (again.code, again.err.decode()) == (
            1,
            "kmr broker: orders-0: no transaction begins at 0; none is open\n",
        )
        await producer.commit_transaction()
    (info,) = json.loads((await asyncio.to_thread(kmr, "txn", "describe", "shop", "--json")).out)
    assert (info["state"], info["partitions"]) == ("CompleteCommit", [])


async def test_a_hanging_transaction_is_found_and_aborted(kmr: Kmr, start: Any) -> None:
    broker: Broker = await start()
    topic = await broker.topics.create("t", 2)
    partition = topic.partitions[1]
    batch = build_batch(
        [NewRecord(None, b"v", (), int(time.time() * 1000))],
        producer_id=PRODUCER_ID,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    partition.log.append(batch, [parse_header(batch)], now_ms=int(time.time() * 1000))
    partition.log.flush_pending()
    there = ("--bootstrap-servers", broker.bootstrap_servers)

    found = (await asyncio.to_thread(kmr, "txn", "hanging", *there)).lines
    assert found[0].split()[:5] == ["TOPIC", "PARTITION", "START", "PRODUCER", "EPOCH"]
    assert [line.split()[:5] for line in found[1:]] == [["t", "1", "0", str(PRODUCER_ID), "3"]]
    (as_json,) = json.loads(
        (await asyncio.to_thread(kmr, "txn", "hanging", "t", "--json", *there)).out
    )
    assert (as_json["partition"], as_json["start_offset"]) == (["t", 1], 0)
    await asyncio.to_thread(kmr, "txn", "abort", "t", "1", "--start-offset", "0", *there)
    assert (await asyncio.to_thread(kmr, "txn", "hanging", *there)).lines == []
    assert partition.log.last_stable_offset == partition.log.next_offset == 2


def test_a_missing_transaction_or_topic_is_one_line(kmr: Kmr) -> None:
    for arguments, words in (
        (("txn", "describe", "unknown"), "transactional id unknown: transactional id not found"),
        (("txn", "describe"), "name at least one transactional id"),
        (("txn", "hanging", "none"), "topic none: does not exist"),
        (("txn", "abort", "none", "0", "--start-offset", "0"), "none-0: does not exist"),
    ):
        result = kmr(*arguments)
        assert (result.code > 0, result.out) == (True, b"")
        assert result.err.decode().startswith(f"kmr broker: {words}"), result.err
        assert result.err.count(b"\n") == 1
