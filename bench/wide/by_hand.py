"""What one would write by hand: `python -m bench.wide.by_hand`, with librdkafka, at least once.

A loop over records, one INSERT every four seconds, and a commit after it.
"""

from __future__ import annotations

import argparse
import time

import clickhouse_connect
import pyarrow as pa
from confluent_kafka import Consumer

from bench.wide.strategies import TABLE

COLUMNS = ["id", "size", "partition", "offset", "timestamp"]
AGE = 4.0
ROWS = 32_768


def main() -> None:
    """Consume until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--clickhouse")
    given = parser.parse_args()
    client = clickhouse_connect.get_client(dsn=given.clickhouse) if given.clickhouse else None
    consumer = Consumer(
        {
            "bootstrap.servers": given.address,
            "group.id": given.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([given.topic])
    rows: list[tuple[int | None, ...]] = []
    flushed = time.monotonic()
    while True:
        for message in consumer.consume(10_000, 0.2):
            value, offset = message.value() or b"", message.offset()
            rows.append((offset, len(value), message.partition(), offset, message.timestamp()[1]))
        now = time.monotonic()
        if rows and (now - flushed >= AGE or len(rows) >= ROWS):
            if client is not None:
                columns = [pa.array(column) for column in zip(*rows, strict=True)]
                columns[-1] = columns[-1].cast(pa.timestamp("ms", tz="UTC"))
                client.insert_arrow(TABLE, pa.table(columns, COLUMNS))
            consumer.commit(asynchronous=False)
            rows, flushed = [], now


if __name__ == "__main__":
    main()
