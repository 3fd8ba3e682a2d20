"""The broker with librdkafka's clients: `python -m bench.librdkafka produce ...` prints one JSON line."""

from __future__ import annotations

import argparse
import json
import sys
import time

from confluent_kafka import Consumer, Producer


def produce(bootstrap_servers: str, topic: str, records: int) -> float:
    """Produce 100-byte records with acks=all, from the first one until the last acknowledgement; seconds."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 5,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    value = b"x" * 100
    started = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number % 4)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
    return time.perf_counter() - started


def consume(bootstrap_servers: str, topic: str, records: int) -> float:
    """Consume in batches, from the first record to the last; seconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"bench-{time.time_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    seen, started = 0, 0.0
    while seen < records:
        seen += len(consumer.consume(10_000, 0.2))
        if seen and not started:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    consumer.close()
    return seconds


def main() -> None:
    """Run one direction once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("direction", choices=("produce", "consume"))
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    options = parser.parse_args()
    run = produce if options.direction == "produce" else consume
    seconds = run(options.bootstrap_servers, options.topic, options.records)
    json.dump({"name": options.direction, "seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main()
