"""One contender consumes one topic: `python -m bench.consume NAME ...` prints one line of JSON.

Every contender does the same work: from each record its partition, offset and timestamp, which are
dropped or written to ClickHouse, and offsets that are committed afterwards. The clock runs from the first
record received to the last one settled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import anyio
import pyarrow as pa  # noqa: TC002  a user would write the annotations too

from bench.job import FLUSH_ROWS, Job
from bench.process import Stopwatch, Taken
from kmr import Strategy, map_batch, map_record
from kmr.record import Record  # noqa: TC001
from kmr.service.process import freeze_modules, keep_freed_memory
from kmr.settings import Settings
from kmr.sinks import ClickHouseWriter
from kmr.types import Reducer
from kmr.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from arroyo.types import BaseValue, Message

    from kmr.types import Rows


TABLE = "kmr_consumer_ingest"


@map_batch
def per_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The three columns, as they are."""
    return batch.select(["partition", "offset", "timestamp", "kmr_offset"])


@map_record
def per_record(record: Record) -> dict[str, Any]:
    """The same, as a function of one record."""
    return {"partition": record.partition, "offset": record.offset, "timestamp": record.timestamp}


class NullWriter(Reducer):
    """Counts rows and forgets them."""

    def __init__(self) -> None:
        super().__init__(max_rows=FLUSH_ROWS, max_age=0.2)
        self.reset()

    def add(self, rows: Rows) -> None:
        """Count."""
        self._rows += len(rows)

    async def flush(self) -> None:
        """Forget."""

    def reset(self) -> None:
        """Count anew."""
        self._rows = 0


def kmr(
    job: Job, function: Callable[..., Any], delivery: Literal["at-least-once"] | None = None
) -> Taken:
    """This project's worker, until the watermarks have passed all records.

    Into ClickHouse it delivers exactly once unless `delivery` says otherwise.
    """
    sink: Reducer = NullWriter()
    if job.clickhouse_url is not None:
        sink = ClickHouseWriter(
            table=TABLE,
            url=job.clickhouse_url,
            delivery=delivery,
            max_rows=FLUSH_ROWS,
            max_age=0.5,
        )
    return run_worker(job, Strategy(function, [sink]))


def run_worker(job: Job, strategy: Strategy) -> Taken:
    """Run a worker until the watermarks have passed all records."""
    settings = Settings(
        topics=(job.topic,), group=job.group, bootstrap_servers=job.bootstrap_servers
    )

    keep_freed_memory()  # as `kmr run` does

    async def run() -> Taken:
        worker = Worker(strategy, settings)
        watch = Stopwatch()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await worker.ready()
            freeze_modules()  # as `kmr run` does
            while worker.status().consumed == 0:  # noqa: ASYNC110  samples the clock
                await anyio.sleep(0.001)
            watch.begin()
            while worker.status().settled < job.records:  # noqa: ASYNC110
                await anyio.sleep(0.02)  # a status takes a tenth of a millisecond
            taken = watch.taken()
            worker.shutdown("done")
        return taken

    return anyio.run(run)


def getmany(job: Job) -> Taken:
    """What one would write by hand: aiokafka's getmany, a loop over records, inserts of the same size."""
    from aiokafka import AIOKafkaConsumer, TopicPartition
    from clickhouse_connect import get_async_client

    async def run() -> Taken:
        consumer = AIOKafkaConsumer(
            job.topic,
            bootstrap_servers=job.bootstrap_servers,
            group_id=job.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        client = await get_async_client(dsn=job.clickhouse_url) if job.clickhouse_url else None
        rows: list[tuple[int, int, int]] = []
        offsets: dict[TopicPartition, int] = {}
        seen, watch = 0, Stopwatch()
        while seen < job.records:
            fetched = await consumer.getmany(timeout_ms=200)
            if fetched:
                watch.begin()
            for partition, records in fetched.items():
                rows.extend((r.partition, r.offset, r.timestamp // 1000) for r in records)
                offsets[partition] = records[-1].offset + 1
                seen += len(records)
            if len(rows) >= FLUSH_ROWS or seen >= job.records:
                if client is not None:
                    columns = [list(column) for column in zip(*rows, strict=True)]
                    await client.insert(
                        TABLE,
                        columns,
                        column_names=["partition", "offset", "timestamp"],
                        column_type_names=["UInt32", "UInt64", "DateTime"],
                        column_oriented=True,
                    )
                await consumer.commit(offsets)
                rows = []
        taken = watch.taken()
        await consumer.stop()
        if client is not None:
            await client.close()
        return taken

    return asyncio.run(run())


def arroyo(job: Job) -> Taken:
    """sentry-arroyo: a map of each message, and a reduce into batches of the same size."""
    import clickhouse_connect
    from arroyo.processing.strategies import CommitOffsets, Reduce, RunTask

    watch = Stopwatch()
    seen = 0
    client = clickhouse_connect.get_client(dsn=job.clickhouse_url) if job.clickhouse_url else None

    def locate(message: Message[Any]) -> tuple[int, int, float]:
        watch.begin()
        value = message.value
        return value.partition.index, value.offset, value.timestamp.timestamp()

    def collect(
        rows: list[tuple[int, int, float]], value: BaseValue[Any]
    ) -> list[tuple[int, int, float]]:
        rows.append(value.payload)
        return rows

    def write(message: Message[list[tuple[int, int, float]]]) -> int:
        nonlocal seen
        rows = message.payload
        if client is not None:
            columns = [list(column) for column in zip(*rows, strict=True)]
            columns[2] = [int(seconds) for seconds in columns[2]]
            client.insert(
                TABLE,
                columns,
                column_names=["partition", "offset", "timestamp"],
                column_type_names=["UInt32", "UInt64", "DateTime"],
                column_oriented=True,
            )
        seen += len(rows)
        return len(rows)

    def strategy(commit: Any) -> Any:
        batches = Reduce(FLUSH_ROWS, 0.5, collect, list, RunTask(write, CommitOffsets(commit)))
        return RunTask(locate, batches)

    return run_arroyo(job, strategy, watch, lambda: seen >= job.records)


def run_arroyo(
    job: Job,
    strategy: Callable[[Any], Any],
    watch: Stopwatch,
    is_done: Callable[[], bool],
) -> Taken:
    """Run sentry-arroyo's processor, with a strategy made of its `commit`, until all is done."""
    from arroyo.backends.kafka import KafkaConsumer
    from arroyo.backends.kafka.configuration import build_kafka_consumer_configuration
    from arroyo.commit import IMMEDIATE
    from arroyo.processing import StreamProcessor
    from arroyo.processing.strategies import ProcessingStrategyFactory
    from arroyo.types import Topic

    found: list[Taken] = []

    class Factory(ProcessingStrategyFactory):  # type: ignore[misc]
        def create_with_partitions(self, commit: Any, partitions: Any) -> Any:
            def committed(*args: Any, **kwargs: Any) -> None:
                commit(*args, **kwargs)
                if is_done() and not found:
                    found.append(watch.taken())
                    processor.signal_shutdown()

            return strategy(committed)

    consumer = KafkaConsumer(
        build_kafka_consumer_configuration(
            {},
            bootstrap_servers=[job.bootstrap_servers],
            group_id=job.group,
            auto_offset_reset="earliest",
        )
    )
    processor = StreamProcessor(
        consumer=consumer,
        topic=Topic(job.topic),
        processor_factory=Factory(),
        commit_policy=IMMEDIATE,
    )
    processor.run()
    return found[0]


CONTENDERS: dict[str, Callable[[Job], Taken]] = {
    "kmr per batch": lambda job: kmr(job, per_batch),
    "kmr per batch, at least once": lambda job: kmr(job, per_batch, "at-least-once"),
    "kmr per record": lambda job: kmr(job, per_record),
    "getmany loop": getmany,
    "sentry-arroyo": arroyo,
}


def main() -> None:
    """Run one contender; prints records, seconds of wall and processor, and the peak memory in MB."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=CONTENDERS)
    for option in ("bootstrap-servers", "topic", "group"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--clickhouse-url")
    options = vars(parser.parse_args())
    name = options.pop("name")
    job = Job(**options)
    taken = CONTENDERS[name](job)
    json.dump({"name": name, **taken._asdict(), **asdict(job)}, sys.stdout)


if __name__ == "__main__":
    main()
