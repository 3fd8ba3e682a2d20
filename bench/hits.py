"""The contenders of `bench.typed`: all read a topic of JSON events, and drop or write the rows.

Of 9 fields 6 are used; events with status 404 are filtered; 8 columns are written. One contender has no map:
it writes the 6 columns of all events.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from bench.consume import NullWriter, run_arroyo, run_worker
from bench.job import COLUMNS, FLUSH_ROWS, TABLE, Hit, Job, writer
from bench.process import Stopwatch, Taken
from kmr import Json, Record, Strategy, map_batch, map_record
from kmr.sinks import ClickHouseWriter

if TYPE_CHECKING:
    from collections.abc import Callable


class Row(msgspec.Struct):
    """The row that every contender writes."""

    ts: datetime
    path: str
    status: int
    ms: float | None
    bytes: int
    country: str
    partition: int
    offset: int


def dicts(decode: Callable[[bytes], Any]) -> Callable[..., Any]:
    """Return a map with dicts, as everybody writes it first."""

    @map_record
    def row(record: Record) -> dict[str, Any] | None:
        hit = decode(record.value or b"null")
        if hit["status"] == 404:
            return None
        return {
            "ts": datetime.fromisoformat(hit["ts"]),
            "path": hit["path"],
            "status": hit["status"],
            "ms": hit["ms"],
            "bytes": hit["bytes"],
            "country": hit["country"],
            "partition": record.partition,
            "offset": record.offset,
        }

    return row


by_hand = dicts(json.loads)
by_msgspec = dicts(msgspec.json.decode)


@map_record
def typed(hit: Hit, record: Record) -> Row | None:
    """The same with types."""
    if hit.status == 404:
        return None
    return Row(
        hit.ts,
        hit.path,
        hit.status,
        hit.ms,
        hit.bytes,
        hit.country,
        record.partition,
        record.offset,
    )


@map_batch
def columns(hits: pa.RecordBatch) -> pa.RecordBatch:
    """The same as columns."""
    return hits.select([*COLUMNS[:-2], "kmr_offset"]).filter(
        pc.not_equal(hits["status"], pa.scalar(404))
    )


def kmr(job: Job, function: Callable[..., Any] | None, value: Json | None = None) -> Taken:
    """This project's worker; into ClickHouse exactly once."""
    sink: Any = NullWriter()
    if job.clickhouse_url is not None:
        sink = ClickHouseWriter(
            TABLE, url=job.clickhouse_url, max_rows=FLUSH_ROWS, max_age=job.max_age
        )
    return run_worker(job, Strategy(map=function, value=value, reduce=[sink]))


def loop(job: Job) -> Taken:
    """The loop by hand: confluent-kafka's consume, msgspec, inserts by columns.

    As the other contenders it does not know which record is the last one: it writes rows that are enough, or
    old enough.
    """
    from confluent_kafka import Consumer

    decode = msgspec.json.Decoder(Hit).decode
    write = writer(job)
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap_servers,
            "group.id": job.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            # By default it fetches nothing for a second once 100,000 messages wait: a run of 400,000
            # records would measure such pauses.
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.subscribe([job.topic])
    rows: list[tuple[Any, ...]] = []
    seen, watch = 0, Stopwatch()
    oldest = 0.0
    while seen < job.records or rows:
        messages = consumer.consume(10_000, timeout=0.1)
        if messages:
            watch.begin()
        if not rows:
            oldest = time.monotonic()
        for message in messages:
            hit = decode(message.value() or b"")
            if hit.status != 404:
                rows.append((*msgspec.structs.astuple(hit), message.partition(), message.offset()))
        seen += len(messages)
        if len(rows) >= FLUSH_ROWS or (rows and time.monotonic() - oldest >= job.max_age):
            write(rows)
            consumer.commit(asynchronous=False)
            rows = []
    taken = watch.taken()
    consumer.close()
    return taken


def arroyo(job: Job) -> Taken:
    """sentry-arroyo: decode, filter, batches of the same size, inserts by columns."""
    from arroyo.processing.strategies import BatchStep, CommitOffsets, FilterStep, RunTask

    decode = msgspec.json.Decoder(Hit).decode
    insert = writer(job)
    watch = Stopwatch()
    seen, kept, written = 0, 0, 0

    def read(message: Any) -> tuple[Any, ...]:
        nonlocal seen
        watch.begin()
        seen += 1
        value = message.value
        hit = decode(value.payload.value)
        return (*msgspec.structs.astuple(hit), value.partition.index, value.offset)

    def is_wanted(message: Any) -> bool:
        nonlocal kept
        is_one = message.payload[2] != 404
        kept += is_one
        return bool(is_one)

    def write(message: Any) -> None:
        nonlocal written
        insert([each.payload for each in message.payload])
        written += len(message.payload)

    def strategy(commit: Any) -> Any:
        batches = BatchStep(FLUSH_ROWS, job.max_age, RunTask(write, CommitOffsets(commit)))
        return RunTask(read, FilterStep(is_wanted, batches))

    return run_arroyo(job, strategy, watch, lambda: seen >= job.records and written == kept)


CONTENDERS: dict[str, Callable[[Job], Taken]] = {
    "kmr per record, `json.loads`": lambda job: kmr(job, by_hand),
    "kmr per record, `msgspec.json.decode`": lambda job: kmr(job, by_msgspec),
    "kmr per record, `Json(Hit)`": lambda job: kmr(job, typed, Json(Hit)),
    "kmr per batch, `Json(Hit)`": lambda job: kmr(job, columns, Json(Hit)),
    "kmr without a map, `Json(Hit)`": lambda job: kmr(job, None, Json(Hit)),
    "confluent-kafka and msgspec by hand": loop,
    "sentry-arroyo and msgspec": arroyo,
}


def main() -> None:
    """Run one contender; print seconds of wall and of processor."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("job", help="a Job as JSON")
    options = parser.parse_args()
    taken = CONTENDERS[options.name](Job(**json.loads(options.job)))
    json.dump(taken._asdict(), sys.stdout)


if __name__ == "__main__":
    main()
