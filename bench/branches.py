"""What branches cost: `python -m bench.branches`.

The same rows, three of each record, go to one writer, to a mapping with one branch, and one to each of three
branches. The writers make Arrow's bytes of their rows and forget them. Printed is the processor time for a
row, beside that of one writer: the best of some rounds, in turn.
"""

from __future__ import annotations

import argparse
import logging
import time
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pyarrow as pa
import structlog
from rich.console import Console

from kmr import Json, Strategy
from kmr.record import TopicPartition
from kmr.reducers.collect import Collecting, one_table
from kmr.reducers.sink import NEW, Sink, Write
from kmr.settings import Settings
from kmr.sinks import ClickHouseWriter
from kmr.testing import MemoryConsumer, batch_of
from kmr.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from kmr.reducers.reducer import Reducer

BATCH = 5_000


class Event(msgspec.Struct):
    user: str
    amount: float
    number: int


class First(Event):
    pass


class Second(Event):
    pass


class Third(Event):
    pass


def alike(event: Event) -> list[First]:
    """Three rows of one class."""
    return [
        First(event.user, event.amount, event.number),
        First(event.user, event.amount, event.number),
        First(event.user, event.amount, event.number),
    ]


def unlike(event: Event) -> list[First | Second | Third]:
    """A row of each of three classes."""
    return [
        First(event.user, event.amount, event.number),
        Second(event.user, event.amount, event.number),
        Third(event.user, event.amount, event.number),
    ]


class Bytes(Collecting, Sink):
    """Makes the bytes that a sink would send."""

    def flush(self, write: Write = NEW) -> None:
        table = one_table(self.rows)
        with pa.ipc.new_stream(pa.BufferOutputStream(), table.schema) as stream:
            stream.write_table(table)


def shapes(make: Callable[[str], Reducer]) -> dict[str, Callable[[], Strategy]]:
    """Return the strategies; `make` returns a writer into a table."""

    def strategy(function: Callable[[Event], Any], reduce: Any) -> Strategy:
        return Strategy(value=Json(Event), map=function, reduce=reduce)

    kinds = (First, Second, Third)
    return {
        "one writer": lambda: strategy(alike, make("alone")),
        "a mapping with one branch": lambda: strategy(alike, {First: make("only")}),
        "three branches": lambda: strategy(unlike, {kind: make(kind.__name__) for kind in kinds}),
    }


async def measure(strategy: Strategy, values: list[bytes], group: str) -> float:
    """Return the seconds of processor time from the assignment to the end of the drain."""
    consumer, partition = MemoryConsumer(), TopicPartition("t", 0)
    for first in range(0, len(values), BATCH):
        consumer.put(batch_of("t", 0, first, values[first : first + BATCH]))
    options: dict[str, Any] = {"topics": ("t",), "group": group}
    worker = Worker(strategy, Settings(**options), consumer=consumer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await consumer.started.wait()
        begun = time.process_time()
        await consumer.rebalance([partition])
        while (worker.status().settled) < len(values):  # noqa: ASYNC110  samples the worker
            await anyio.sleep(0.02)
        worker.shutdown("done")
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--clickhouse", help="write to this server instead: http://host:port/database"
    )
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    event = msgspec.json.encode(Event("somebody", 12.5, 1_234_567))
    values = [event] * given.records

    def make(table: str) -> Reducer:
        return (
            ClickHouseWriter(table, url=given.clickhouse, create=True)
            if given.clickhouse
            else Bytes()
        )

    strategies = shapes(make)
    best = dict.fromkeys(strategies, float("inf"))
    for number in range(given.rounds):
        for name, strategy in strategies.items():
            best[name] = min(best[name], anyio.run(measure, strategy(), values, f"{number}"))
    console = Console(highlight=False)
    for name, seconds in best.items():
        each = seconds / given.records / 3 * 1e9
        console.print(f"{name:28} {each:6.0f} ns a row  {seconds / best['one writer']:5.2f}")


if __name__ == "__main__":
    main()
