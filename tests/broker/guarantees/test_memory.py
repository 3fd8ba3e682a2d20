"""What clients make the broker keep has limits: each kind sends its most, and the process is measured."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from struct import pack, pack_into
from typing import TYPE_CHECKING, Any

import cramjam
import pytest
from crc32c import crc32c
from kio.schema.api_versions.v0 import ApiVersionsRequest

from kmr.broker.log.records import (
    CODECS,
    CRC_START,
    BatchHeader,
    NewRecord,
    build_batch,
    encode_batch,
)
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

PRODUCE, FETCH, CREATE_TOPICS, INCREMENTAL = 0, 1, 19, 44
MIB = 1024 * 1024
SERVE = ("-c", "from kmr.broker.cli import app; app()", "serve", "--port", "0", "--data")


class Served:
    """A broker as a process, with its clients."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address
        self.clients: list[RawClient] = []

    async def connect(self, count: int) -> list[RawClient]:
        new = [await RawClient.connect(self.address) for _ in range(count)]
        self.clients += new
        return new

    def resident(self) -> float:
        """Memory of the process in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(each for each in status.splitlines() if each.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *SERVE, str(tmp_path), "--partitions", "1"),
        *("--request-memory-bytes", "64MiB", "--request-max-bytes", "32MiB"),
        *("--response-memory-bytes", "32MiB", "--log-level", "error"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    ready = (await process.stdout.readline()).decode()
    served = Served(process, ready.split()[2].rstrip(","))
    try:
        yield served
    finally:
        for each in served.clients:
            with suppress(ConnectionError):
                await each.close()
        process.kill()
        await process.communicate()


def produced(client: RawClient, topic: str, records: bytes, *, acks: int = 1) -> Any:
    part = {"index": 0, "records": records}
    return client.message(
        PRODUCE, 8, acks=acks, topic_data=[{"name": topic, "partition_data": [part]}]
    )


async def create(client: RawClient, name: str, partitions: int, **settings: str) -> None:
    wanted = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [{"name": k.replace("_", "."), "value": v} for k, v in settings.items()],
    }
    answer = await client.call(CREATE_TOPICS, 7, topics=[wanted], timeout=timedelta(seconds=30))
    assert answer.topics[0].error_code == 0


async def many_sessions(served: Served, topic: str, partitions: int, times: int) -> None:
    (client,) = await served.connect(1)
    parts = [{"partition": each, "partition_max_bytes": 1} for each in range(partitions)]
    asked = client.message(
        FETCH,
        11,
        max_bytes=1,
        session_id=0,
        session_epoch=0,
        topics=[{"topic": topic, "partitions": parts}],
    )
    for _ in range(times):
        await client.ask(asked)


async def sessions_of_nothing(served: Served) -> None:
    await many_sessions(served, "nothing", 19_990, 60)


async def sessions(served: Served) -> None:
    await many_sessions(served, "wide", 300, 1_000)


async def requests_behind_polls(served: Served) -> None:
    for client in await served.connect(300):
        part = {"partition": 1, "partition_max_bytes": 1}  # it has no records
        poll = client.message(
            FETCH,
            11,
            max_wait=timedelta(minutes=10),
            min_bytes=1,
            max_bytes=1,
            topics=[{"topic": "wide", "partitions": [part]}],
        )
        client.writer.write(client.frame(poll, 1) + client.frame(ApiVersionsRequest(), 2) * 20_000)


async def incomplete_requests(served: Served) -> None:
    for client in await served.connect(300):
        client.writer.write(pack(">ihhih", 30 * MIB, 0, 8, 1, -1) + bytes(500_000))


async def long_client_ids(served: Served) -> None:
    for client in await served.connect(100):
        for version in range(4, 12):
            header = pack(">hhih", FETCH, version, 1, 32_000) + b"c" * 32_000
            client.writer.write(pack(">i", len(header)) + header)
        with suppress(ConnectionError):
            await client.writer.drain()


async def producers(served: Served) -> None:
    (client,) = await served.connect(1)
    record = [NewRecord(b"k", b"v", (), 1)]
    for first in range(0, 30_000, 500):
        frames = b""
        for number in range(first, first + 500):
            batch = build_batch(record, producer_id=number, producer_epoch=0, base_sequence=0)
            frames += client.frame(produced(client, "wide", bytes(batch)), 1)
        await client.send_bytes(frames)
        for _ in range(500):
            await client.receive_frame()


async def bombs(served: Served) -> None:
    compressor = cramjam.zstd.Compressor()
    for _ in range(250):
        compressor.compress(bytes(MIB))
    batch = encode_batch(BatchHeader(record_count=1), bytes(compressor.finish()))
    pack_into(">h", batch, 21, CODECS["zstd"])
    pack_into(">I", batch, 17, crc32c(batch[CRC_START:]))
    clients = await served.connect(20)
    for topic in ("gzipped", "compacted"):
        asked = [client.ask(produced(client, topic, bytes(batch))) for client in clients]
        for answer in await asyncio.gather(*asked):
            assert answer.responses[0].partition_responses[0].error_code == 10


ATTACKS: dict[str, tuple[Callable[[Served], Awaitable[None]], int]] = {
    "sessions of nothing": (sessions_of_nothing, 60),
    "sessions": (sessions, 110),
    "bombs": (bombs, 60),
    "producers": (producers, 40),
    "requests behind polls": (requests_behind_polls, 60),
    "long client ids": (long_client_ids, 30),
    "incomplete requests": (incomplete_requests, 110),
}
"""Each with the memory in MiB that it may take: its limit, and what a process needs besides."""


@pytest.mark.slow
async def test_clients_that_send_their_most_take_no_more_than_their_limits(served: Served) -> None:
    (honest,) = await served.connect(1)
    await create(honest, "wide", 300)
    await create(honest, "gzipped", 1, compression_type="gzip")
    await create(honest, "compacted", 1, cleanup_policy="compact")
    batch = bytes(build_batch([NewRecord(None, bytes(100_000), (), 1)]))
    await create(honest, "honest", 1)
    taken: dict[str, float] = {}
    for name, (attack, _) in ATTACKS.items():
        before = served.resident()
        await attack(served)
        async with asyncio.timeout(60):
            answer = await honest.ask(produced(honest, "honest", batch))
        assert answer.responses[0].partition_responses[0].error_code == 0
        taken[name] = served.resident() - before
    limits = {name: limit for name, (_, limit) in ATTACKS.items()}
    assert all(taken[name] <= limits[name] for name in limits), taken
    assert sum(taken.values()) <= 350, taken
