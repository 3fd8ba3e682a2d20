"""What branches cost: `python -m bench.branches`.

The same rows, three of each record, go to one writer, to a mapping with one branch, and one to each of three
branches. The writers make Arrow's bytes of their rows and forget them. Printed is the processor time of the
worker for a row, and its ratio to that of one writer in the same round: the median of some rounds, and its
quartiles.
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import clickhouse_connect
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

    from kmr.reducers.reducer import Limits, Reducer

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


class Counting(Bytes):
    """Notes how many rows each flush has; a worker uses copies of it, so that the class has the list."""

    flushed: ClassVar[list[int]] = []

    def flush(self, write: Write = NEW) -> None:
        self.flushed.append(sum(map(len, self.rows)))
        super().flush(write)


RARE: Final = 1_000
"""Records of which one is for the rare branch."""

_LARGE: Final[Limits] = {"max_rows": 120_000, "max_age": 10.0}

LIMITS: Final[dict[str, Limits]] = {
    "the defaults": {},
    "when_full=backpressure": {"when_full": "backpressure"},
    "max_rows=120_000, max_age=10": _LARGE,
    "the same, when_full=backpressure": {**_LARGE, "when_full": "backpressure"},
}


def rarely(event: Event) -> First | Third:
    """A row of the rare class, or of the other one."""
    kind = First if event.number % RARE else Third
    return kind(event.user, event.amount, event.number)


async def feed(limits: Limits, rate: int, seconds: float) -> tuple[int, list[int]]:
    """Let records come; return how many were settled, and the rows of each flush of the rare branch."""
    consumer, partition = MemoryConsumer(), TopicPartition("t", 0)
    Counting.flushed.clear()
    strategy = Strategy(
        value=Json(Event), map=rarely, reduce={First: Bytes(**limits), Third: Counting(**limits)}
    )
    options: dict[str, Any] = {"topics": ("t",), "group": "rare"}
    worker = Worker(strategy, Settings(**options), consumer=consumer)
    batch = rate // 10
    values = [msgspec.json.encode(Event("somebody", 12.5, at)) for at in range(batch)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await consumer.started.wait()
        await consumer.rebalance([partition])
        begin = anyio.current_time()
        for first in range(0, int(rate * seconds), batch):
            consumer.put(batch_of("t", 0, first, values))
            await anyio.sleep_until(begin + (first + batch) / rate)
        settled, flushed = worker.status().settled, list(Counting.flushed)
        worker.shutdown("done")
    return settled, flushed


def print_rare(rate: int, seconds: float) -> None:
    """Measure and print the flushes of a rare branch."""
    console = Console(highlight=False)
    for name, limits in LIMITS.items():
        settled, flushed = anyio.run(feed, limits, rate, seconds)
        rows = statistics.mean(flushed) if flushed else 0
        console.print(
            f"{name:42} {len(flushed):3} flushes, {rows:6.1f} rows each; "
            f"{settled / seconds:6,.0f} records/s"
        )


def print_by_hand(url: str, rows: int, rounds: int = 40) -> None:
    """Measure and print what a server takes for the same rows in one INSERT and in three."""
    client = clickhouse_connect.get_client(dsn=url)
    for table in ("whole", "part1", "part2", "part3"):
        client.command(f"DROP TABLE IF EXISTS {table}")
        client.command(
            f"CREATE TABLE {table} (user String, amount Float64, number Int64) ENGINE = MergeTree "
            "ORDER BY number SETTINGS non_replicated_deduplication_window = 10000"
        )

    def some(count: int) -> pa.Table:
        columns = {"user": ["somebody"] * count, "amount": [12.5] * count}
        return pa.table(columns | {"number": range(count)})

    whole, part = some(rows), some(rows // 3)
    clients = [clickhouse_connect.get_client(dsn=url) for _ in range(3)]
    tables = ("part1", "part2", "part3")

    def insert(client: Any, table: str, made: pa.Table) -> None:
        token = {"insert_deduplication_token": uuid.uuid4().hex}
        client.insert_arrow(table, made, settings=token)

    with ThreadPoolExecutor(3) as pool:
        ways: dict[str, Callable[[], object]] = {
            "one INSERT": lambda: insert(client, "whole", whole),
            "three in turn": lambda: list(map(insert, clients, tables, [part] * 3)),
            "three at once": lambda: list(pool.map(insert, clients, tables, [part] * 3)),
        }
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds):
            for name, way in ways.items():
                begun = time.perf_counter()
                way()
                best[name] = min(best[name], time.perf_counter() - begun)
    console = Console(highlight=False)
    for name, taken in best.items():
        console.print(
            f"{rows:,} rows by hand, {name:14} {taken * 1e3:6.1f} ms  {taken / best['one INSERT']:5.2f}"
        )


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
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--clickhouse", help="write to this server instead: http://host:port/database"
    )
    parser.add_argument("--rare", action="store_true", help="the flushes of a rare branch")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if given.rare:
        print_rare(rate=10_000, seconds=45.0)
        return
    event = msgspec.json.encode(Event("somebody", 12.5, 1_234_567))
    values = [event] * given.records

    def make(table: str) -> Reducer:
        return (
            ClickHouseWriter(table, url=given.clickhouse, create=True)
            if given.clickhouse
            else Bytes()
        )

    strategies = shapes(make)
    anyio.run(measure, strategies["one writer"](), values[:BATCH], "warm-up")
    taken: dict[str, list[float]] = {name: [] for name in strategies}
    for number in range(given.rounds):
        for name in list(strategies)[:: 1 if number % 2 else -1]:
            gc.collect()
            taken[name].append(anyio.run(measure, strategies[name](), values, uuid.uuid4().hex))
    console = Console(highlight=False)
    for name, seconds in taken.items():
        each = statistics.median(seconds) / given.records / 3 * 1e9
        ratios = [a / b for a, b in zip(seconds, taken["one writer"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        console.print(f"{name:28} {each:6.0f} ns a row  {middle:5.2f} ({low:.2f} to {high:.2f})")
    if given.clickhouse:
        for rows in (30_000, 120_000):
            print_by_hand(given.clickhouse, rows)


if __name__ == "__main__":
    main()
