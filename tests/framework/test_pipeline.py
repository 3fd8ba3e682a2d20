"""The pipeline: rows that several partitions share, batches of any size, and a drain; time is virtual."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from structlog.testing import capture_logs

from kmr.errors import StrategyError
from kmr.mapping.functions import map_record
from kmr.record import Record, TopicPartition
from kmr.settings import Settings
from kmr.strategy import Strategy, TopicMap
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop, batch_of
from kmr.values.plain import Text
from kmr.worker import Worker

from .workers import P0, P1, committed, locate, put, running, written

if TYPE_CHECKING:
    from kmr.reducers.sink import Delivery
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_rows_that_a_reducer_mixed_with_a_lost_partition_are_read_again(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    put(consumer, 1, 0, b"a", b"b")
    batcher = Journal()
    strategy = Strategy(
        locate,
        [MemoryWriter(batcher, max_rows=4, forward=True), MemoryWriter(journal, max_rows=100)],
    )
    async with running(strategy, consumer):
        await consumer.rebalance([P0, P1])
        await batcher.until(lambda j: len(j.written) == 1)
        await clock.settle()
        await consumer.rebalance([P1])
        await clock.advance(4.0)
        await clock.advance(4.0)
        await clock.advance(4.0)
    assert written(journal, 0) == []
    assert written(journal, 1) == [0, 1]
    assert committed(consumer) == {P0: 0, P1: 2}


async def test_a_batch_larger_than_the_whole_budget_passes_alone(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, *([b"x" * 1_000] * 10))
    put(consumer, 0, 10, b"y")
    strategy = Strategy(locate, [MemoryWriter(journal, max_age=None)])
    async with running(strategy, consumer) as worker:
        worker.pipeline.intake.budget.limit = 100
        await consumer.rebalance([P0])
        await journal.until(lambda j: sum(t.num_rows for t in j.written) == 10)
        await clock.settle()  # the other record is taken in
    assert written(journal, 0) == list(range(11))


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
async def test_the_start_says_where_failed_records_have_another_guarantee(
    clock: VirtualClock, delivery: Delivery
) -> None:
    errors, consumer = MemoryWriter(Journal()), MemoryConsumer()
    strategy = Strategy(locate, [MemoryWriter(Journal())], reduce_err=errors, delivery=delivery)
    with capture_logs() as logs:
        async with running(strategy, consumer):
            await consumer.rebalance([P0])
    said = [log["delivery"] for log in logs if log.get("stage") == "reduce-err"]
    assert said == ([] if delivery == "at-least-once" else ["at-least-once"])


class SlowToLoad(Text):
    """A format that loads until the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_load = threading.Event()

    def warm_up(self) -> None:
        assert self.may_load.wait(60)


async def test_a_start_that_compiles_for_seconds_says_so_in_the_log(clock: VirtualClock) -> None:
    value = SlowToLoad()
    strategy = Strategy(lambda text: {"text": text}, [MemoryWriter(Journal())], value=value)
    worker = Worker(strategy, Settings(topics=("t",), group="g"), consumer=MemoryConsumer())
    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await clock.advance(2.9)
            assert not any("compiles" in log["event"] for log in logs)
            await clock.advance(0.2)
            assert sum("compiles" in log["event"] for log in logs) == 1
            value.may_load.set()
            worker.shutdown("the test is over")


@map_record
def of_order(record: Record) -> dict[str, str]:
    return {"name": f"order {record.offset}"}


@map_record
async def of_click(record: Record) -> dict[str, str]:
    if record.value == b"poison":
        raise ValueError("poisoned")
    return {"name": f"click {record.offset}"}


async def test_each_topic_is_mapped_by_its_own_map_and_one_without_ends_the_worker(
    clock: VirtualClock,
) -> None:
    journal, errors, consumer = Journal(), Journal(), MemoryConsumer()
    strategy = Strategy(
        by_topic={"orders": TopicMap(of_order), "clicks": TopicMap(of_click)},
        reduce=[MemoryWriter(journal, max_rows=1)],
        reduce_err=MemoryWriter(errors, max_rows=1),
    )
    consumer.put(batch_of("orders", 0, 0, [b"a"]))
    consumer.put(batch_of("clicks", 0, 5, [b"b", b"poison"]))
    with pytest.RaisesGroup(pytest.RaisesExc(StrategyError, match="does not name topic users")):
        async with running(strategy, consumer, topics=(), topic_pattern=".*") as worker:
            await consumer.rebalance([TopicPartition(t, 0) for t in ("orders", "clicks")])
            await journal.until(lambda j: len(j.rows()) == 2)
            await errors.until(lambda j: len(j.rows()) == 1)
            assert {row["name"] for row in journal.rows()} == {"order 0", "click 5"}
            assert [row["topic"] for row in errors.rows()] == ["clicks"]
            assert worker.status().topics == ("topics that match .*",)
            await consumer.rebalance([TopicPartition("users", 0)])
    with pytest.raises(StrategyError, match="does not name topic users"):
        Worker(strategy, Settings(topics=("users",), group="g"), consumer=consumer)
