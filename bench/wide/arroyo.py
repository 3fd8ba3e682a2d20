"""sentry-arroyo with the work of `bench.wide`: `python -m bench.wide.arroyo`, at least once.

A map of each message, and a batch that is inserted every four seconds.
"""

from __future__ import annotations

from typing import Any

import clickhouse_connect
from arroyo.backends.kafka import KafkaConsumer
from arroyo.backends.kafka.configuration import build_kafka_consumer_configuration
from arroyo.commit import IMMEDIATE
from arroyo.processing import StreamProcessor
from arroyo.processing.strategies import (
    BatchStep,
    CommitOffsets,
    ProcessingStrategyFactory,
    RunTask,
)
from arroyo.types import Topic

from bench.wide.by_hand import AGE, ROWS, arguments, insert


def small(message: Any) -> tuple[int, ...]:
    """The row of a message."""
    value = message.value
    size = len(value.payload.value or b"")
    milliseconds = round(value.timestamp.timestamp() * 1000)
    return (value.offset, size, value.partition.index, value.offset, milliseconds)


def main() -> None:
    """Consume until the process is ended."""
    given = arguments(__doc__)
    client = clickhouse_connect.get_client(dsn=given.clickhouse)

    def write(message: Any) -> None:
        insert(client, [each.payload for each in message.payload])

    class Factory(ProcessingStrategyFactory):  # type: ignore[misc]
        def create_with_partitions(self, commit: Any, partitions: Any) -> Any:
            batches = BatchStep(ROWS, AGE, RunTask(write, CommitOffsets(commit)))
            return RunTask(small, batches)

    consumer = KafkaConsumer(
        build_kafka_consumer_configuration(
            {},
            bootstrap_servers=[given.address],
            group_id=given.group,
            auto_offset_reset="earliest",
        )
    )
    StreamProcessor(
        consumer=consumer,
        topic=Topic(given.topic),
        processor_factory=Factory(),
        commit_policy=IMMEDIATE,
    ).run()


if __name__ == "__main__":
    main()
