"""What one would write by hand: `python -m bench.wide.by_hand`, with librdkafka, at least once.

A loop over records, one INSERT every four seconds, and a commit after it.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import clickhouse_connect
import pyarrow as pa
from confluent_kafka import Consumer

from bench.wide.strategies import TABLE

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

COLUMNS = ["id", "size", "partition", "offset", "timestamp"]
AGE = 4.0
ROWS = 32_768


def arguments(doc: str | None) -> argparse.Namespace:
    """Parse the command line of a contender that is not ours."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--clickhouse", required=True)
    return parser.parse_args()


def insert(client: Client, rows: list[tuple[int, ...]]) -> None:
    """Insert rows of `COLUMNS`, the timestamp in milliseconds."""
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    columns[-1] = columns[-1].cast(pa.timestamp("ms", tz="UTC"))
    client.insert_arrow(TABLE, pa.table(columns, COLUMNS))


def main() -> None:
    """Consume until the process is ended."""
    given = arguments(__doc__)
    client = clickhouse_connect.get_client(dsn=given.clickhouse)
    consumer = Consumer(
        {
            "bootstrap.servers": given.address,
            "group.id": given.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([given.topic])
    rows: list[tuple[int, ...]] = []
    flushed = time.monotonic()
    while True:
        for message in consumer.consume(10_000, 0.2):
            value, offset = message.value() or b"", message.offset() or 0
            place = message.partition() or 0
            rows.append((offset, len(value), place, offset, message.timestamp()[1]))
        now = time.monotonic()
        if rows and (now - flushed >= AGE or len(rows) >= ROWS):
            insert(client, rows)
            consumer.commit(asynchronous=False)
            rows, flushed = [], now


if __name__ == "__main__":
    main()
