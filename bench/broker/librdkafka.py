"""Clients on librdkafka (confluent-kafka); each is a process that `gang` starts.

The producer hands over a thousand records with one call, the consumer takes up to ten thousand: what
Python itself costs for each record is a part of the figures, and more for the consumer.
"""

from __future__ import annotations

import time
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from bench.broker.gang import take_part
from bench.broker.payload import values

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITION_UA = -1
"""Whichever: librdkafka's partitioner decides."""

_TAKEN = 10_000
_QUEUE = 1_000_000
_PATIENCE = 300.0  # seconds


def _fail(error: KafkaError) -> None:
    raise SystemExit(f"librdkafka: {error}")


_QUIET: dict[str, Any] = {
    "error_cb": _fail,
    "log_level": 2,
}  # its purging of queues at the end is no news


def main(role: str, **arguments: Any) -> Callable[[], dict[str, Any]]:
    """One of `producer`, `consumer`, `round_trips`, with its arguments."""
    roles: dict[str, Callable[..., Callable[[], dict[str, Any]]]] = {
        "producer": _producer,
        "consumer": _consumer,
        "round_trips": _round_trips,
    }
    return roles[role](**arguments)


def _producer(
    address: str,
    topics: list[str],
    records: int,
    size: int,
    acks: str = "all",
    codec: str = "none",
    per_batch: int = 10_000,
    partition: int = PARTITION_UA,
) -> Callable[[], dict[str, Any]]:
    """From the first record to the last acknowledgement."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": acks,
            "compression.type": codec,
            "linger.ms": 5,
            "batch.num.messages": per_batch,
            "queue.buffering.max.messages": _QUEUE,
            **_QUIET,
        }
    )
    chunk = [{"value": value} for value in values(size)]
    for topic in topics:
        producer.list_topics(topic)

    def work() -> dict[str, Any]:
        left, turns = records, cycle(topics)
        while left:
            topic = next(turns)
            messages = chunk[:left]
            left -= len(messages)
            while messages:
                if producer.produce_batch(topic, messages, partition) < len(messages):
                    messages = [each for each in messages if each.pop("_error", None)]
                    producer.poll(0.01)
                else:
                    messages = []
        if producer.flush(_PATIENCE):
            raise SystemExit("some records were not acknowledged")
        return {"records": records}

    return work


def _consumer(
    address: str, topics: list[str], partitions: list[int], records: int
) -> Callable[[], dict[str, Any]]:
    """So many records of these partitions of each topic, from their beginnings."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            # By default it fetches nothing for a second once 100,000 messages wait for the application: the
            # faster a broker fills the queue, the more of the time would be such pauses.
            "queued.min.messages": _QUEUE,
            "queued.max.messages.kbytes": 65_536,
            "fetch.queue.backoff.ms": 10,
            **_QUIET,
        }
    )
    wanted = [TopicPartition(*each, OFFSET_BEGINNING) for each in product(topics, partitions)]
    for topic in topics:
        consumer.list_topics(topic)

    def work() -> dict[str, Any]:
        consumer.assign(wanted)
        seen = 0
        while seen < records:
            seen += len(consumer.consume(_TAKEN, 0.1))
        consumer.close()
        return {"records": seen}

    return work


def _round_trips(address: str, topic: str, size: int, count: int) -> Callable[[], dict[str, Any]]:
    """One record at a time: produced without lingering, and acknowledged; seconds of each."""
    producer = Producer({"bootstrap.servers": address, "acks": 1, "linger.ms": 0, **_QUIET})
    value = values(size)[0]
    producer.list_topics(topic)

    def work() -> dict[str, Any]:
        taken = []
        for _ in range(count):
            started = time.perf_counter()
            producer.produce(topic, value, partition=0)
            producer.flush(_PATIENCE)
            taken.append(time.perf_counter() - started)
        return {"records": count, "seconds": taken}

    return work


if __name__ == "__main__":
    take_part(main)
