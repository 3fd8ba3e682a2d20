"""sentry-arroyo with the work of `bench.wide`: `python -m bench.wide.arroyo`, at least once.

A map of each message, and a batch that is inserted every four seconds.
"""

from __future__ import annotations

from typing import Any

import clickhouse_connect
from arroyo.processing.strategies import BatchStep, CommitOffsets, RunTask

from bench.consume import run_arroyo
from bench.job import Job
from bench.process import Stopwatch
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

    def strategy(commit: Any) -> Any:
        batches = BatchStep(ROWS, AGE, RunTask(write, CommitOffsets(commit)))
        return RunTask(small, batches)

    job = Job(given.address, given.topic, given.group, 0, given.clickhouse)
    run_arroyo(job, strategy, Stopwatch(), lambda: False)


if __name__ == "__main__":
    main()
