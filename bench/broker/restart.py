"""How long the broker takes to start: in a test's process, and with much on disk in one of its own."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import anyio

from bench.broker.gang import Client, ClientFailed
from bench.broker.measuring import fresh_topic, raw, run
from bench.broker.servers import Server
from demo.processes import Children
from kmr.broker import Broker, BrokerSettings
from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from demo.processes import Child

_GIGABYTE = 1_000_000_000
_SIZE, _PER_BATCH = 1_000, 900  # a batch stays below the broker's limit of 1 MiB
_PARTITIONS = 8
_BEFORE_KILL = 2.0  # seconds of production
_ENDLESS = 10**15  # records
_IN_PROCESS = 20  # starts


@dataclass(frozen=True)
class Start:
    """One start: until it answers, in seconds; the memory of its process in megabytes, if it has one."""

    after: str
    seconds: float
    peak_mb: float | None = None


async def starts_in_process(directory: Path) -> list[Start]:
    """Start brokers in this process, as tests do, one after the other."""
    seconds = []
    for number in range(_IN_PROCESS):
        began = time.monotonic()
        async with Broker(BrokerSettings(data_dir=directory / str(number), port=0)):
            seconds.append(time.monotonic() - began)
    first, *others = seconds
    return [
        Start("nothing, in process, the first", first),
        Start("nothing, in process, others (median)", median(others)),
    ]


async def starts(directory: Path, gigabytes: float) -> list[Start]:
    """Fill a broker's log, stop it, start it, kill it while it is written to, start it again."""
    records = round(gigabytes * _GIGABYTE / _SIZE)
    found: list[Start] = []
    async with Children(directory / "logs") as children:
        async with _running(children, directory, "nothing", found) as (broker, server):
            topic = fresh_topic(server, _PARTITIONS)
            await run(server, [_producer(server, topic, records)])
            await broker.stop()
        async with _running(children, directory, "a clean stop", found) as (broker, server):
            await _kill_while_producing(broker, _producer(server, topic, _ENDLESS), server)
        async with _running(children, directory, "kill -9 while producing", found):
            pass
    return found


@asynccontextmanager
async def _running(
    children: Children, directory: Path, after: str, found: list[Start]
) -> AsyncIterator[tuple[Child, Server]]:
    port = free_port()
    began = time.monotonic()
    child = await children.start(
        "broker",
        *("broker", "serve", "--data", str(directory / "broker"), "--port", str(port)),
    )
    await children.wait_for_port(child, port)
    server = Server("kmr", f"127.0.0.1:{port}", child.pid)
    found.append(Start(after, time.monotonic() - began, server.peak_mb))
    yield child, server
    await child.stop()


async def _kill_while_producing(broker: Child, producer: Client, server: Server) -> None:
    async with anyio.create_task_group() as tasks:

        async def produce() -> None:
            try:
                await run(server, [producer])
            except (ClientFailed, OSError):
                return  # its broker is gone
            raise AssertionError("the producer has ended before the broker was killed")

        tasks.start_soon(produce)
        await anyio.sleep(_BEFORE_KILL)
        broker.kill()


def _producer(server: Server, topic: str, records: int) -> Client:
    partitions = list(range(_PARTITIONS))
    return raw(
        "producer",
        server,
        topic=topic,
        partitions=partitions,
        records=records,
        size=_SIZE,
        per_batch=_PER_BATCH,
    )
