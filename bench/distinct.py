"""What `Distinct` costs: `python -m bench.distinct [--keys 10000000] [--records 2000000]`.

Four measurements, on this machine and in one run. The first two are of processor time:

- the set of keys alone: insertions and look-ups a second, and bytes for each key;
- `Distinct` alone: records a second, with keys of 32 characters in batches of 10,000;
- a worker that reads JSON records of a broker, one in 30 a duplicate, with and without `Distinct`, in turn:
  records a second from the first one to the last one settled. Its sink drops the rows;
- a worker that starts and has all of these records to read again: seconds until it is ready.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import time
from pathlib import Path

import anyio
import msgspec
import numpy as np
import pyarrow as pa
import structlog
from rich.console import Console

from demo.processes import Children
from kmr import Distinct, Json, Strategy
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port
from kmr.delivery.announcement import Generation, LookBack
from kmr.kafka.connection import consumer_config
from kmr.kafka.consumer import CommitOffset
from kmr.kafka.kafka_consumer import KafkaConsumer
from kmr.mapping.results import MapResult
from kmr.memory.distinct_keys import RecentKeys
from kmr.memory.distinct_memory import PartitionMemory
from kmr.record import TopicPartition
from kmr.reducers.collect import Collecting
from kmr.service.process import freeze_modules, keep_freed_memory
from kmr.settings import Settings
from kmr.testing import batch_of
from kmr.worker import Worker

TOPIC = "distinct"
CHUNK = 10_000
REPEATED = 30


class Event(msgspec.Struct):
    """A record's value."""

    event_id: str
    amount: int


class Drop(Collecting):
    """Drops the rows."""

    def flush(self) -> pa.Table | None:
        return None


def measure_keys(keys: int) -> tuple[float, float, float]:
    """Return millions of insertions and of look-ups a second, and the most bytes for a key."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(-(2**63), 2**63 - 1, (keys, 2), dtype=np.int64)
    shuffled = hashes[rng.permutation(keys)]
    recent, times, wanted = RecentKeys(1), np.zeros(CHUNK, np.int64), np.ones(CHUNK, np.bool_)
    rates, most = [], 0.0
    for chosen in (hashes, shuffled):
        begun = time.process_time()
        for first in range(0, keys - CHUNK + 1, CHUNK):
            recent.see(chosen[first : first + CHUNK], times, wanted)
            if chosen is hashes and first >= keys // 10:
                most = max(most, recent.nbytes / len(recent))
        rates.append(keys / (time.process_time() - begun) / 1e6)
    return rates[0], rates[1], most


def measure_distinct(records: int) -> float:
    """Return millions of records a second."""
    memory = PartitionMemory({"": Distinct("event_id", "10m")}, TopicPartition(TOPIC, 0), 0)
    parts = []
    for first in range(0, records, CHUNK):
        batch = batch_of(TOPIC, 0, first, [None] * CHUNK)
        numbers = (n - 7 if n % REPEATED == 7 else n for n in range(first, first + CHUNK))
        table = pa.table({"event_id": [f"{number:032x}" for number in numbers]})
        parts.append((batch, MapResult(table, batch.offsets())))
    begun = time.process_time()
    for batch, mapped in parts:
        memory.note(batch, mapped)
    return records / (time.process_time() - begun) / 1e6


def strategy_of(*, distinct: bool) -> Strategy:
    """Return the strategy, with and without `Distinct`."""
    sink = Drop(max_rows=131_072)
    if not distinct:
        return Strategy(value=Json(Event), reduce=sink)
    return Strategy(value=Json(Event), reduce=[Distinct("event_id", "10m"), sink])


async def measure_worker(
    settings: Settings, records: int, *, distinct: bool
) -> tuple[float, float]:
    """Return the seconds from the first record to the last one settled, and those until it was ready."""
    begun = time.perf_counter()
    worker = Worker(strategy_of(distinct=distinct), settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        while not worker.status().ready:  # noqa: ASYNC110  samples the worker
            await anyio.sleep(0.01)
        ready = time.perf_counter()
        while worker.status().settled < records:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        done = time.perf_counter()
        worker.shutdown("done")
    return done - ready, ready - begun


class _Once:
    """Commits offsets as a member of the group, when it gets the partitions."""

    def __init__(self, consumer: KafkaConsumer, offset: int) -> None:
        self._consumer = consumer
        self._offset = offset
        self.done = anyio.Event()

    async def revoked(self, partitions: frozenset[object]) -> None:
        """Do nothing."""

    async def assigned(self, partitions: frozenset[object]) -> None:
        """Commit."""
        metadata = Generation(0, LookBack(0, 600_000_000)).metadata
        offset = CommitOffset(self._offset, metadata)
        await self._consumer.commit(dict.fromkeys(partitions, offset))  # type: ignore[arg-type]
        self.done.set()


async def commit_all(settings: Settings, records: int) -> None:
    """Commit that everything was read, and has to be remembered."""
    consumer = KafkaConsumer(consumer_config(settings))
    once = _Once(consumer, records)
    await consumer.start(once)
    await once.done.wait()
    await consumer.stop()


async def produce(servers: str, records: int) -> None:
    """Write the records; some repeat one of the same batch."""
    encode = msgspec.json.Encoder().encode
    async with BatchProducer(servers, TOPIC) as producer:
        for first in range(0, records, CHUNK):
            numbers = (n - 7 if n % REPEATED == 7 else n for n in range(first, first + CHUNK))
            values = [encode(Event(f"{number:032x}", number)) for number in numbers]
            await producer.send(values, partition=0)


async def measure(servers: str, records: int, rounds: int, console: Console) -> None:
    """Print the rates of workers, and the time of a restart."""
    await produce(servers, records)
    taken: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for distinct in (False, True):
            group = f"{number}-{distinct}"
            settings = Settings(
                topics=(TOPIC,), group=group, bootstrap_servers=servers, inflight_bytes=512 << 20
            )
            seconds, _ = await measure_worker(settings, records, distinct=distinct)
            taken[distinct].append(seconds)
    without, with_it = (records / min(taken[distinct]) for distinct in (False, True))
    console.print(
        f"worker: {without:,.0f} records/s without, {with_it:,.0f} with Distinct "
        f"(x {with_it / without:.2f}), the best of {rounds} rounds"
    )
    settings = Settings(
        topics=(TOPIC,), group="again", bootstrap_servers=servers, inflight_bytes=512 << 20
    )
    await commit_all(settings, records)
    _, seconds = await measure_worker(settings, 0, distinct=True)
    console.print(
        f"restart: {records:,} records are remembered and the worker is ready in {seconds:.1f} s"
    )


def main() -> None:
    """Run the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    console = Console()
    inserted, looked_up, most = measure_keys(given.keys)
    console.print(
        f"keys: {given.keys:,}; {inserted:.1f} million insertions/s, {looked_up:.1f} million look-ups/s, at "
        f"most {most:.1f} bytes for a key",
        soft_wrap=True,
    )
    console.print(f"Distinct alone: {measure_distinct(1_000_000):.1f} million records/s")
    keep_freed_memory()
    freeze_modules()
    anyio.run(_with_broker, given.records, given.rounds, console)


async def _with_broker(records: int, rounds: int, console: Console) -> None:
    directory = Path(tempfile.mkdtemp(prefix="kmr-bench-"))
    port = free_port()
    try:
        async with Children(directory / "logs") as children:
            broker = await children.start(
                "broker", "broker", "serve", "--data", str(directory / "data"), "--port", str(port)
            )
            await children.wait_for_port(broker, port)
            await measure(f"127.0.0.1:{port}", records, rounds, console)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
