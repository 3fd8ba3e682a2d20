"""Sends records to every partition at an even pace, cheaply: `python -m bench.wide.producer`.

One Produce request has a batch for each partition, the same bytes for all of them.
"""

from __future__ import annotations

import argparse
import time

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from bench.broker.wire import Wire, produce_to_all

TICK = 0.1
VALUE = b'{"id": 1234567, "kind": "view", "city": "Nairobi", "amount": 12.5, "session": "5f3c9a7e21b04d68"}'


def batch(records: int) -> bytes:
    """A record batch of records of now."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=records * (len(VALUE) + 64) + 1024,
    )
    now = int(time.time() * 1000)
    for number in range(records):
        builder.append(number, now, None, VALUE, [])
    return bytes(builder.build())


def send(address: str, topic: str, partitions: int, records: int) -> None:
    """Send so many records to each partition, in one request."""
    with Wire(address) as wire:
        wire.send(produce_to_all(topic, partitions, batch(records)))
        wire.frames()


def main() -> None:
    """Send `--rate` records a second to each partition until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    given = parser.parse_args()
    tick = max(TICK, 1 / given.rate)
    records = max(1, round(given.rate * tick))
    following = time.monotonic()
    with Wire(given.address) as wire:
        while True:
            wire.send(produce_to_all(given.topic, given.partitions, batch(records)))
            wire.frames()
            following += tick
            time.sleep(max(0.0, following - time.monotonic()))


if __name__ == "__main__":
    main()
