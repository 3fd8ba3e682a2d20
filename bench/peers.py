"""Contenders of `bench.typed --peers`: other libraries of PyPI, each with its way of writing batches.

They do the job of `bench.hits`: decode with msgspec, drop 404s, insert by columns. They run in an environment
of their own, because Quix Streams needs an older pandas than ClickHouse as a library does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from typing import TYPE_CHECKING, Any

import msgspec

from bench.job import FLUSH_ROWS, Hit, Job, writer
from bench.process import Stopwatch, Taken

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HitRow = tuple[Any, ...]


def quix(job: Job) -> Taken:
    """Quix Streams: a streaming data frame into a sink of batches, at least once."""
    from quixstreams import Application
    from quixstreams.sinks import BatchingSink

    decode = msgspec.json.Decoder(Hit).decode
    insert = writer(job)
    watch = Stopwatch()
    app = Application(
        broker_address=job.bootstrap_servers,
        consumer_group=job.group,
        auto_offset_reset="earliest",
        commit_every=FLUSH_ROWS,
        loglevel=None,
    )

    class Sink(BatchingSink):  # type: ignore[misc]
        def write(self, batch: Any) -> None:
            partition = batch.partition
            insert([(*item.value, partition, item.offset) for item in batch])

    def read(value: bytes) -> Hit:
        watch.begin()
        return decode(value)

    topic = app.topic(job.topic, value_deserializer="bytes")
    frame = app.dataframe(topic).apply(read).filter(lambda hit: hit.status != 404)
    frame.apply(msgspec.structs.astuple).sink(Sink())
    app.run(count=job.records)
    return watch.taken()


def faststream(job: Job) -> Taken:
    """FastStream on aiokafka: a subscriber of batches, acknowledged after each."""
    import anyio
    from faststream import AckPolicy
    from faststream.kafka import KafkaBroker, KafkaMessage

    decode = msgspec.json.Decoder(Hit).decode
    insert = writer(job)
    watch = Stopwatch()
    broker = KafkaBroker(job.bootstrap_servers, logger=None)
    seen = 0
    done = anyio.Event()

    async def as_it_is(message: KafkaMessage) -> Any:
        return message.body

    @broker.subscriber(  # type: ignore[untyped-decorator]
        job.topic,
        group_id=job.group,
        auto_offset_reset="earliest",
        batch=True,
        max_records=FLUSH_ROWS,
        ack_policy=AckPolicy.ACK,
        decoder=as_it_is,
    )
    async def handle(message: KafkaMessage) -> None:
        nonlocal seen
        watch.begin()
        rows: list[HitRow] = []
        records: Any = message.raw_message
        for record in records:
            hit = decode(record.value)
            if hit.status != 404:
                rows.append((*msgspec.structs.astuple(hit), record.partition, record.offset))
        if rows:
            await anyio.to_thread.run_sync(insert, rows)
        seen += len(records)
        if seen >= job.records:
            done.set()

    async def run() -> Taken:
        async with broker:
            await broker.start()
            await done.wait()
            return watch.taken()

    return anyio.run(run)


def bytewax(job: Job) -> Taken:
    """Bytewax: a dataflow into a sink that collects batches; without a recovery store, so without commits."""
    import bytewax.operators as op
    from bytewax.connectors.kafka import KafkaSource
    from bytewax.dataflow import Dataflow
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.testing import run_main

    decode = msgspec.json.Decoder(Hit).decode
    insert = writer(job)
    watch = Stopwatch()

    class Part(StatelessSinkPartition[HitRow]):  # type: ignore[misc]
        def __init__(self) -> None:
            self._rows: list[HitRow] = []

        def write_batch(self, items: list[HitRow]) -> None:
            self._rows += items
            if len(self._rows) >= FLUSH_ROWS:
                self._insert()

        def close(self) -> None:
            if self._rows:
                self._insert()

        def _insert(self) -> None:
            insert(self._rows)
            self._rows = []

    class Sink(DynamicSink[HitRow]):  # type: ignore[misc]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Part:
            return Part()

    def read(message: Any) -> HitRow | None:
        watch.begin()
        hit = decode(message.value)
        if hit.status == 404:
            return None
        return (*msgspec.structs.astuple(hit), message.partition, message.offset)

    flow = Dataflow("hits")
    source = KafkaSource([job.bootstrap_servers], [job.topic], tail=False, batch_size=10_000)
    op.output("rows", op.filter_map("read", op.input("topic", flow, source), read), Sink())
    run_main(flow)
    return watch.taken()


PEERS: dict[str, Callable[[Job], Taken]] = {
    "Quix Streams and msgspec": quix,
    "FastStream and msgspec": faststream,
    "Bytewax and msgspec": bytewax,
}

REQUIREMENTS = (
    "quixstreams>=3.28",
    "faststream[kafka]>=0.7",
    "bytewax>=0.21",
    "clickhouse-connect",
)


def make_environment(directory: Path) -> str:
    """Install the peers into a virtual environment; return its interpreter."""
    venv.create(directory, with_pip=True)
    python = str(directory / "bin" / "python")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "msgspec", *REQUIREMENTS], check=True
    )
    return python


def main() -> None:
    """Run one contender; print seconds of wall and of processor."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("job", help="a Job as JSON")
    options = parser.parse_args()
    json.dump(PEERS[options.name](Job(**json.loads(options.job)))._asdict(), sys.stdout)


if __name__ == "__main__":
    main()
