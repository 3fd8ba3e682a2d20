"""`Distinct` in a strategy and in a worker."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from kmr import Aggregate, Distinct, Json, Strategy, map_record, per_name
from kmr.cli.graph import draw
from kmr.cli.validate import _lines, outline_of
from kmr.delivery.announcement import read_metadata
from kmr.errors import KmrError, StrategyError
from kmr.kafka.consumer import CommitOffset
from kmr.settings import FetchSettings, Settings
from kmr.testing import (
    Journal,
    MemoryConsumer,
    MemoryWriter,
    VirtualTimeLoop,
    batch_of,
    run_strategy,
)
from kmr.worker import Worker
from tests.framework.workers import P0, P1, running

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kmr.record import Batch, Record, TopicPartition
    from kmr.testing import VirtualClock

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@map_record
def identify(record: Record) -> dict[str, Any]:
    return {"id": (record.value or b"").decode(), "o": record.offset}


def put(
    consumer: MemoryConsumer, first: int, keys: str, second: int = 0, partition: int = 0
) -> None:
    """Append a record for each letter."""
    values = [key.encode() for key in keys]
    time = BEGIN + timedelta(seconds=second)
    consumer.put(batch_of("t", partition, first, values, timestamp=time))


def of(journal: Journal) -> str:
    return "".join(row["id"] for row in journal.rows())


def chain(journal: Journal, *between: Any, **arguments: Any) -> list[Any]:
    return [Distinct("id", "10s", **arguments), *between, MemoryWriter(journal, max_age=1.0)]


def test_the_first_row_of_a_key_passes() -> None:
    strategy = Strategy(map=identify, reduce=chain(Journal()))
    run = run_strategy(strategy, ["a", "b", "a", "c", "b"])
    assert [row["o"] for row in run.rows] == [0, 1, 3]


async def test_a_worker_that_starts_remembers_what_the_one_before_has_seen(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, "abc")
    put(consumer, 3, "a", second=6)
    async with running(Strategy(identify, chain(journal)), consumer) as worker:
        await consumer.rebalance([P0])
        await pass_by(clock, 2 + 1)
        assert settled(worker) == 4
    assert of(journal) == "abc"
    consumer = successor(consumer)
    put(consumer, 4, "ad", second=12)
    with capture_logs() as logs:
        async with running(Strategy(identify, chain(journal)), consumer) as worker:
            await consumer.rebalance([P0])
            await pass_by(clock, 3)
            assert settled(worker) == 6
    assert of(journal) == "abcd"
    (again,) = (line for line in logs if line["event"] == "Distinct remembers again")
    assert (again["offsets"], again["keys"]) == ("0..3", 3)
    value = worker.metrics.registry.get_sample_value
    assert value("kmr_distinct_rows_total", {"result": "duplicate"}) == 1
    assert value("kmr_distinct_rows_total", {"result": "passed"}) == 1


class SlowConsumer(MemoryConsumer):
    """Reads records again when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = anyio.Event()

    async def read_range(
        self, partition: TopicPartition, first: int, end: int
    ) -> AsyncGenerator[Batch]:
        await self.may.wait()
        async for batch in super().read_range(partition, first, end):
            yield batch


async def pass_by(clock: VirtualClock, seconds: int) -> None:
    for _ in range(seconds):
        await clock.advance(1.0)


def settled(worker: Worker) -> int | None:
    ledger = worker.pipeline.ledgers.get(P0)
    return None if ledger is None else ledger.watermark


def successor(consumer: MemoryConsumer) -> MemoryConsumer:
    """Return the consumer of the next process of the group."""
    following = MemoryConsumer()
    following.log, following._committed = consumer.log, consumer._committed
    return following


def commit_with_memory(consumer: MemoryConsumer, offset: int, back: int) -> None:
    metadata = f'{{"kmr":2,"generation":0,"back":[{back},10000000]}}'
    consumer._committed[P0] = CommitOffset(offset, metadata)


async def test_it_is_ready_and_maps_when_its_memory_is_complete(clock: VirtualClock) -> None:
    journal, consumer = Journal(), SlowConsumer()
    put(consumer, 0, "ab")
    put(consumer, 2, "bc")
    commit_with_memory(consumer, 2, back=0)
    async with running(Strategy(identify, chain(journal)), consumer) as worker:
        await consumer.rebalance([P0])
        await clock.advance(20.0)
        status = worker.status()
        assert (status.state, status.ready, status.live) == ("running", False, True)
        assert status.stages[0].waits_for == "Distinct, which reads records again"
        assert of(journal) == ""
        consumer.may.set()
        await clock.advance(2.0)
        assert worker.status().ready
    assert of(journal) == "c"


async def test_a_drain_does_not_wait_for_the_memory(clock: VirtualClock) -> None:
    journal, consumer = Journal(), SlowConsumer()
    put(consumer, 0, "abab")
    commit_with_memory(consumer, 2, back=0)
    async with running(Strategy(identify, chain(journal)), consumer) as worker:
        await consumer.rebalance([P0])
        await clock.advance(2.0)
        worker.shutdown("at once")
        consumer.may.set()
        await clock.settle()
    assert consumer._committed[P0].offset == 2
    assert of(journal) == ""


async def test_retention_that_removed_a_part_of_the_memory_is_told(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 5, "b")
    put(consumer, 6, "abc")
    commit_with_memory(consumer, 6, back=2)
    with capture_logs() as logs:
        async with running(Strategy(identify, chain(journal)), consumer) as worker:
            await consumer.rebalance([P0])
            await pass_by(clock, 2 + 1)
            assert settled(worker) == 9
    assert of(journal) == "ac"
    (told,) = (line for line in logs if line["event"].startswith("retention has removed"))
    assert told["offsets"] == "2..4"


async def test_a_longer_time_is_told_until_it_is_remembered(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    put(consumer, 0, "ab")
    commit_with_memory(consumer, 1, back=0)
    with capture_logs() as logs:
        strategy = Strategy(identify, [Distinct("id", "1h"), MemoryWriter(Journal())])
        async with running(strategy, consumer):
            await consumer.rebalance([P0])
            await clock.settle()
    (told,) = (line for line in logs if line["event"].startswith("Distinct remembers less"))
    assert (told["remembered_seconds"], told["within_seconds"]) == (10, 3600)


async def test_partitions_whose_rows_were_mixed_remember_only_what_was_written(
    clock: VirtualClock,
) -> None:
    """Both stages are shared: when one partition is lost, the other begins again at its watermark."""
    journal, consumer = Journal(), MemoryConsumer()
    middle = MemoryWriter(Journal(), forward=True, max_age=30.0)
    async with running(Strategy(identify, chain(journal, middle)), consumer) as worker:
        await consumer.rebalance([P0, P1])
        put(consumer, 0, "ab")
        await pass_by(clock, 40 + 1)
        assert settled(worker) == 2
        put(consumer, 2, "ac")
        put(consumer, 0, "z", partition=1)
        await clock.advance(1.0)  # collected, not written
        await consumer.rebalance([P0])
        put(consumer, 4, "bcd")
        await pass_by(clock, 40 + 1)
        assert settled(worker) == 7
    assert of(journal) == "abcd"


async def test_a_record_of_duplicates_is_a_dead_letter_beyond_the_limit(
    clock: VirtualClock,
) -> None:
    journal, errors, consumer = Journal(), Journal(), MemoryConsumer()
    put(consumer, 0, "aabaa")
    strategy = Strategy(
        identify,
        chain(journal, on_duplicate="dead-letter"),
        reduce_err=MemoryWriter(errors, max_age=1.0),
    )
    async with running(strategy, consumer) as worker:
        await consumer.rebalance([P0])
        await pass_by(clock, 2 + 1)
        assert settled(worker) == 5
    assert of(journal) == "ab"
    letters = [(row["offset"], row["stage"], row["reason"]) for row in errors.rows()]
    reason = "duplicate: one row per id within 10 s"
    assert letters == [(at, "distinct", reason) for at in (1, 3, 4)]


async def test_duplicates_alone_are_settled_and_committed(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    async with running(Strategy(identify, chain(journal)), consumer) as worker:
        await consumer.rebalance([P0])
        put(consumer, 0, "a")
        put(consumer, 1, "aaa")
        await pass_by(clock, 5 + 1)
        assert settled(worker) == 4
    assert consumer._committed[P0].offset == 4
    back = read_metadata(P0, consumer._committed[P0]).back
    assert back is not None
    assert (back.offset, back.within) == (0, 10_000_000)


async def test_the_worker_ends_when_half_of_the_budget_is_remembered(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    for first in range(0, 80_000, 1000):
        values = [str(first + at).encode() for at in range(1000)]
        consumer.put(batch_of("t", 0, first, values))
    settings = Settings(
        topics=("t",),
        group="g",
        inflight_bytes=2**20,
        fetch=FetchSettings(max_partition_bytes=2**20),
        executor="inline",
    )
    strategy = Strategy(identify, chain(Journal()))
    worker = Worker(strategy, settings, consumer=consumer)

    async def run() -> None:
        with suppress(KmrError):
            await worker.run()

    with anyio.fail_after(100):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await consumer.started.wait()
            await consumer.rebalance([P0])
            while worker.failure is None:
                await clock.advance(0.1)
    message = str(worker.failure)
    assert "more than half of inflight_bytes (1.0 MB)" in message
    assert "t-0 with" in message
    assert "at the event time 2026-01-01T00:00:00.000Z" in message


def refused(**arguments: Any) -> str:
    with pytest.raises(StrategyError) as error:
        Strategy(**({"map": identify} | arguments))
    return str(error.value)


def test_it_stands_first() -> None:
    writer = MemoryWriter(Journal())
    aggregate = Aggregate(["id"], {"n": ("*", "count")})
    for reduce in (
        [aggregate, Distinct("id", "1m"), writer],
        [Distinct("id", "1m"), Distinct("o", "1m"), writer],
        per_name(lambda _: [Distinct("id", "1m"), writer], at_most=3),  # type: ignore[list-item]
    ):
        assert "Distinct must be the first of reduce=, or of a branch" in refused(reduce=reduce)
    assert "put a reducer after it" in refused(reduce=[Distinct("id", "1m")])
    assert "needs reduce_err=" in refused(reduce=chain(Journal(), on_duplicate="dead-letter"))


def test_declared_columns_are_checked() -> None:
    fields: dict[str, pa.DataType] = {"id": pa.string(), "ms": pa.int64(), "price": pa.float64()}
    schema = pa.schema(fields)

    def check(distinct: Distinct) -> None:
        Strategy(value=Json(schema), reduce=[distinct, MemoryWriter(Journal())]).validate()

    check(Distinct(["id", "ms"], "1m"))
    for distinct, message in (
        (Distinct("event", "1m"), "no column 'event'"),
        (Distinct("price", "1m"), "whose values are no key"),
        (Distinct("id", "1m", time="ms"), "time='ms' is int64, not a timestamp"),
    ):
        with pytest.raises(StrategyError, match=message):
            check(distinct)


@pytest.mark.parametrize("within", ["", "10 parsecs", 0, -1, "0s", float("nan")])
def test_a_time_that_is_none_is_refused(within: Any) -> None:
    with pytest.raises(StrategyError, match="Distinct: within"):
        Distinct("id", within)


@pytest.mark.parametrize("key", ["", [], [""]])
def test_a_key_names_columns(key: Any) -> None:
    with pytest.raises(StrategyError, match="Distinct: key must be the name of a column"):
        Distinct(key, "1m")


def test_validate_and_graph_show_it() -> None:
    strategy = Strategy(map=identify, reduce=chain(Journal()))
    outline = outline_of("module:strategy", strategy)
    shown = "one row per id within 10 s, of each partition"
    assert outline.distinct == (shown,)
    assert f"distinct    {shown}" in _lines(outline)
    assert shown in draw(outline, "text")
